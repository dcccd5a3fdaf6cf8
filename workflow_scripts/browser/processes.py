"""Process trees: who belongs to a browser, how much memory they hold, and their certain end.

A renderer in an endless loop, a hung GPU process or a flooded pipe outlives a polite close, so a browser is always
ended by SIGKILL to its whole tree. `Guard` extends that beyond our own end: a helper process that kills what is
registered with it when this process is gone, however it went.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def tree(root: int) -> list[int]:
    """Process ids of `root` and all its descendants, root first; empty when it is gone."""
    if not Path(f"/proc/{root}/task/{root}/children").exists():
        return _portable_tree(root)
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        with contextlib.suppress(OSError):  # a process that ends while we look has no children left
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    queue.extend(map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split()))
    return found


def _portable_tree(root: int) -> list[int]:
    try:
        process = psutil.Process(root)
        return [root, *(child.pid for child in process.children(recursive=True))]
    except psutil.Error:
        return []


def resident_bytes(pids: Iterable[int]) -> int:
    """Sum of the resident memory of processes in bytes; memory that they share counts for each."""
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES
        except (OSError, IndexError):
            with contextlib.suppress(psutil.Error):
                total += psutil.Process(pid).memory_info().rss
    return total


def parent_and_profile(browser: int) -> tuple[int, str | None]:
    """A browser's parent process (Playwright's driver) and the temporary profile folder it was started with."""
    process = psutil.Process(browser)
    flag = "--user-data-dir="
    return process.ppid(), next((a[len(flag) :] for a in process.cmdline() if a.startswith(flag)), None)


def kill_tree(root: int) -> None:
    """SIGKILL to `root`, its process group where it leads one, and every descendant. A no-op when they are gone."""
    pids = tree(root)
    with contextlib.suppress(OSError):
        if os.getpgid(root) == root:
            os.killpg(root, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


class Guard:
    """A helper process that outlives us by a moment: when we end, it kills the registered browsers and their folders.

    It notices the end of its standard input, and, should a forked child of ours still hold that open, its new parent.
    """

    def __init__(self) -> None:
        self._killed: set[int] = set()
        self._awaited: set[int] = set()
        self._folders: set[str] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # neither Ctrl-C nor the end of our process group shall reach it
        )

    def add(self, *, kill: int | None = None, awaits: int | None = None, folder: str | None = None) -> None:
        """Registers a browser to kill, a driver that gets a moment to end by itself, or a folder to remove."""
        self._killed.update(() if kill is None else (kill,))
        self._awaited.update(() if awaits is None else (awaits,))
        self._folders.update(() if folder is None else (folder,))
        self._tell()

    def remove(self, *, kill: int | None = None, awaits: int | None = None, folder: str | None = None) -> None:
        """Undoes `add`."""
        self._killed.difference_update(() if kill is None else (kill,))
        self._awaited.difference_update(() if awaits is None else (awaits,))
        self._folders.difference_update(() if folder is None else (folder,))
        self._tell()

    def close(self) -> None:
        """Ends the guard, which kills whatever is still registered."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell(self) -> None:
        state = {"kill": sorted(self._killed), "await": sorted(self._awaited), "folders": sorted(self._folders)}
        with contextlib.suppress(OSError):  # a guard that somebody killed protects no more, but breaks nothing
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(state).encode() + b"\n")
            self._process.stdin.flush()


def remove_folder(path: str) -> None:
    """Removes a temporary folder as far as possible."""
    shutil.rmtree(path, ignore_errors=True)
