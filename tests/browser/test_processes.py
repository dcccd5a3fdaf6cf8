"""Processes: none survives its owner, forked and parallel owners do not disturb each other, a broken start is told."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from workflow_scripts.browser import pool as pool_module
from workflow_scripts.browser.pool import BrowserPool, shared_pool
from workflow_scripts.failures import InfrastructureFailure
from workflow_scripts.identity import bytes_digest

from .conftest import ORDINARY

ENDS_WITHIN_S = 20.0
OWNER = """
import sys, threading, time
from workflow_scripts.browser.pool import shared_pool
pool = shared_pool()
pool.render("<p>x", 50, 50)
print("ready", flush=True)
hostile = dict(html="<script>while(1);</script>", width=50, height=50, javascript=True, timeout_s=60)
threading.Thread(target=lambda: pool.render(**hostile), daemon=True).start()
time.sleep(600)
"""


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def wait_until_gone(processes: list[psutil.Process]) -> list[str]:
    """What is left after a while, as command lines."""
    _, alive = psutil.wait_procs(processes, timeout=ENDS_WITHIN_S)
    return [" ".join(arguments_of(p))[:80] for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def render_digest(_: object = None) -> str:
    return bytes_digest(shared_pool().render(ORDINARY, 200, 200).png)


def test_nothing_survives_an_owner_that_is_killed(tmp_path: Path) -> None:
    """Killed while a page spins: no browser, driver or guard stays, nor a temporary folder."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=environment)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"ready\n"
    time.sleep(0.5)  # lets the spinning page get under way
    family = descendants(owner.pid)
    assert any("chrom" in process.name() or "headless" in process.name() for process in family)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert wait_until_gone(family) == []
    deadline = time.monotonic() + ENDS_WITHIN_S
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(tmp_path.iterdir()) == []


def test_closing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {process.pid for process in descendants(os.getpid())}
    with BrowserPool() as pool:
        pool.render("x", 50, 50)
        family = [process for process in descendants(os.getpid()) if process.pid not in before]
        assert family
    assert wait_until_gone(family) == []
    with pytest.raises(InfrastructureFailure, match="browser_closed"):
        pool.render("x", 50, 50)
    pool.close()


def arguments_of(process: psutil.Process) -> list[str]:
    """Its command line; of one that has just ended, none."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie counts as one
        return []


def test_a_browser_killed_from_outside_is_replaced(pool: BrowserPool) -> None:
    """The machine's fault, not the pages': every page under way comes out all the same."""
    expected = pool.render(ORDINARY, 200, 200).png
    with ThreadPoolExecutor(4) as threads:
        renders = [threads.submit(pool.render, ORDINARY, 200, 200) for _ in range(12)]
        for process in descendants(os.getpid()):
            if any(argument.startswith("--remote-debugging-pipe") for argument in arguments_of(process)):
                process.kill()
        assert {render.result().png for render in renders} == {expected}


def test_children_of_either_kind_have_a_pool_of_their_own() -> None:
    expected = render_digest()
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as workers:
            assert set(workers.map(render_digest, range(4))) == {expected}
    assert render_digest() == expected


def test_worn_pages_and_browsers_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "USES_PER_PAGE", 3)
    monkeypatch.setattr(pool_module, "VISITS_PER_BROWSER", 10)
    with BrowserPool() as pool, ThreadPoolExecutor(5) as threads:
        assert len(set(threads.map(lambda _: pool.render(ORDINARY, 200, 200).png, range(40)))) == 1


def test_closing_ends_what_is_under_way() -> None:
    pool = BrowserPool()
    pool.render("x", 50, 50)
    with ThreadPoolExecutor(1) as threads:
        spinning = threads.submit(pool.render, "<script>while(1);</script>", 50, 50, javascript=True, timeout_s=60)
        time.sleep(0.5)  # lets the page get under way
        pool.close()
        with pytest.raises(InfrastructureFailure, match="browser_closed"):
            spinning.result(ENDS_WITHIN_S)


def test_memory_of_many_pages_is_bounded(pool: BrowserPool) -> None:
    """Pages are renewed: as many processes after 60 pages of six kinds as after a few."""
    for width in range(100, 160):
        pool.render("<p>x", width - width % 10, 50)
    mine = [process for process in descendants(os.getpid()) if "--type=renderer" in arguments_of(process)]
    assert len(mine) <= 2 * 8 + 2


def test_a_browser_that_does_not_start_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "browser"
    broken.write_text("#!/bin/sh\necho no display at all >&2\nexit 7\n")
    broken.chmod(0o755)
    monkeypatch.setenv("GUILOOP_BROWSER", str(broken))
    with BrowserPool() as pool, pytest.raises(InfrastructureFailure) as caught:
        pool.render("x", 50, 50)
    assert caught.value.code == "browser_unavailable"
    assert "no display at all" in caught.value.detail["stderr"]
    monkeypatch.setenv("GUILOOP_BROWSER", str(tmp_path / "none"))
    with BrowserPool() as pool, pytest.raises(InfrastructureFailure, match="browser_missing"):
        pool.render("x", 50, 50)
