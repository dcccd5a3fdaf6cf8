"""What happens when something dies: server, owner, start-up, memory. Real processes, real signals."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy
import pytest
from PIL import Image

pytest.importorskip("diffusers")

from tests.serving.conftest import CPU, gone, screen
from workflow_scripts.failures import InfrastructureFailure
from workflow_scripts.records import png_bytes
from workflow_scripts.serving import launcher, leases
from workflow_scripts.serving.client import Endpoint, Patience, edit, get_json, post_empty
from workflow_scripts.serving.launcher import Slot, ensure_server
from workflow_scripts.serving.spec import ServerSpec

ROOT = Path(__file__).parents[2]
PNG = png_bytes(screen(0))
ONCE = Patience(timeout_s=120, attempts=1, queue_s=0)


def send(endpoint: Endpoint, seed: int = 0, steps: int = 2, task: str = "") -> bytes:
    extra = {"task": task or f"t{seed}", "steps": steps, "guidance": 1.0}
    fields = {"size": "128x256", "seed": str(seed), "extra": json.dumps(extra)}
    return edit(endpoint, prompt="tap", images=[PNG], fields=fields, patience=ONCE).data


def pid_of(endpoint: Endpoint) -> int:
    record = leases.read(Path(endpoint.socket or "").parent / "server.json")
    assert record
    return int(record["pid"])


def apart(one: bytes, other: bytes) -> int:
    """Largest difference of two pictures in grey levels."""
    first, second = (numpy.asarray(Image.open(io.BytesIO(data)), int) for data in (one, other))
    return int(abs(first - second).max())


def metric(endpoint: Endpoint, name: str) -> float:
    lines = get_json(endpoint, "/metrics", 5)[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"guiloop_server_{name}"))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def script(path: Path, body: str) -> str:
    """An executable that stands in for the server's interpreter."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_kill_of_the_server_in_the_middle_of_a_batch(spec: Callable[..., ServerSpec], tmp_path: Path) -> None:
    wanted = spec("kontext", idle_s=500)
    endpoint = ensure_server(wanted, CPU, log_folder=tmp_path)
    before = send(endpoint)
    first = pid_of(endpoint)
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(send, endpoint, seed, 900) for seed in range(3)]
        until(lambda: metric(endpoint, "pending") == 3)
        os.kill(first, signal.SIGKILL)
        for future in futures:
            with pytest.raises(InfrastructureFailure) as caught:
                future.result()
            assert caught.value.code == "server_lost"
    again = ensure_server(wanted, CPU, log_folder=tmp_path)
    assert pid_of(again) != first
    assert send(again) == before


def owner(wanted: ServerSpec, tmp_path: Path) -> subprocess.Popen[str]:
    """A process that starts the server and then only lives. It prints the server's pid."""
    code = f"""
        import json, sys, time
        from pathlib import Path
        from workflow_scripts.serving.launcher import Slot, ensure_server
        from workflow_scripts.serving.spec import ServerSpec
        spec = ServerSpec(**json.loads({json.dumps(json.dumps(asdict(wanted)))}))
        endpoint = ensure_server(spec, Slot("cpu-shared"), log_folder={str(tmp_path)!r})
        print(json.loads((Path(endpoint.socket).parent / "server.json").read_text())["pid"], flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def server_pid(process: subprocess.Popen[str]) -> int:
    assert process.stdout
    return int(process.stdout.readline())


def test_two_runs_share_one_server_and_the_last_killed_takes_it_along(
    spec: Callable[..., ServerSpec], tmp_path: Path
) -> None:
    wanted = spec("pix2pix", idle_s=500)
    one, other = owner(wanted, tmp_path), owner(wanted, tmp_path)
    pid = server_pid(one)
    assert server_pid(other) == pid
    one.kill()
    one.wait()
    assert not gone(pid, 8)
    other.kill()
    other.wait()
    assert gone(pid, 15)


def test_the_server_goes_when_idle(spec: Callable[..., ServerSpec], tmp_path: Path) -> None:
    wanted = spec("pix2pix", idle_s=1, reference_pixels=64 * 64)
    pid = pid_of(ensure_server(wanted, CPU, log_folder=tmp_path))
    assert gone(pid, 15)


def test_a_server_that_never_becomes_healthy(spec: Callable[..., ServerSpec], tmp_path: Path) -> None:
    stuck = script(tmp_path / "stuck", "echo 'I am only pretending' >&2\nexec sleep 600")
    with pytest.raises(InfrastructureFailure) as caught:
        ensure_server(spec("kontext", python=stuck), CPU, log_folder=tmp_path, start_timeout_s=1)
    assert caught.value.code == "server_never_healthy"
    assert "I am only pretending" in str(caught.value)
    folder = launcher._folder(spec("kontext", python=stuck), CPU)
    record = leases.read(folder / "process.json")
    assert record
    assert gone(record["pid"], 5)


def test_a_server_that_dies_at_the_start_fails_all_who_wait_with_one_try(
    spec: Callable[..., ServerSpec], tmp_path: Path
) -> None:
    broken = script(tmp_path / "broken", f"echo tried >> {tmp_path}/tries\necho 'no such library' >&2\nsleep 1\nexit 7")
    wanted = spec("kontext", python=broken)

    def attempt(_: int) -> InfrastructureFailure:
        with pytest.raises(InfrastructureFailure) as caught:
            ensure_server(wanted, CPU, log_folder=tmp_path, start_timeout_s=30)
        return caught.value

    with ThreadPoolExecutor(6) as pool:
        failures = list(pool.map(attempt, range(6)))
    assert {failure.code for failure in failures} == {"server_died"}
    assert all("no such library" in str(failure) for failure in failures)
    assert (tmp_path / "tries").read_text().count("tried") <= 2


def test_broken_weights_are_said_with_the_log(spec: Callable[..., ServerSpec], tmp_path: Path) -> None:
    wanted = spec("kontext")
    with pytest.raises(InfrastructureFailure) as caught:
        ensure_server(ServerSpec(**{**asdict(wanted), "pipeline": "pix2pix"}), CPU, log_folder=tmp_path)
    assert caught.value.code == "load_failed"
    assert caught.value.detail["tail"]
    assert list(tmp_path.glob("pix2pix-cpu-0-*.log"))


OUT_OF_MEMORY = '''
"""The ordinary server, except that calls of more than two rows (and all of seed 99) find no memory."""
import runpy, sys
import torch
from workflow_scripts.serving.pipelines import EditPipeline
generate = EditPipeline.generate
def scarce(self, rows):
    if len(rows) > 2 or rows[0].seed == 99:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return generate(self, rows)
EditPipeline.generate = scarce
sys.argv = sys.argv[2:]
runpy.run_module("workflow_scripts.serving.server", run_name="__main__")
'''


def test_out_of_memory_makes_batches_smaller_and_says_so(spec: Callable[..., ServerSpec], tmp_path: Path) -> None:
    (tmp_path / "scarce.py").write_text(OUT_OF_MEMORY)
    python = script(tmp_path / "python", f'exec {sys.executable} {tmp_path}/scarce.py "$@"')
    endpoint = ensure_server(spec("kontext", python=python, batch_size=8), CPU, log_folder=tmp_path)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(send, endpoint, 100, 100)  # holds the pipeline while the other eight line up
        until(lambda: metric(endpoint, "pending") >= 1)
        pictures = list(pool.map(lambda seed: send(endpoint, seed), range(8)))
        first.result()
    assert len(set(pictures)) == 8
    assert metric(endpoint, "row_limit") in (1, 2)
    assert metric(endpoint, "out_of_memory_total") >= 1
    assert "out of memory with" in next(tmp_path.glob("kontext-*.log")).read_text()
    with pytest.raises(InfrastructureFailure) as caught:
        send(endpoint, 99)
    assert caught.value.code == "out_of_memory"
    assert "max_pixels" in caught.value.message
    assert apart(send(endpoint, 3), pictures[3]) <= 1


def test_several_slots_share_the_work(spec: Callable[..., ServerSpec], tmp_path: Path) -> None:
    wanted = spec("kontext", idle_s=499)
    slots = launcher.slots("cpu", [0, 1], split=False)

    def step(seed: int) -> str:
        with launcher.borrowed(wanted, slots, log_folder=tmp_path, start_timeout_s=120) as endpoint:
            send(endpoint, seed, steps=20)
            return str(endpoint.socket)

    with ThreadPoolExecutor(6) as pool:
        used = list(pool.map(step, range(18)))
    assert len(set(used)) == 2


def test_room_is_made_for_another_model_on_the_slot(spec: Callable[..., ServerSpec], tmp_path: Path) -> None:
    slot = Slot("cpu-7")
    endpoint = ensure_server(spec("pix2pix", idle_s=498), slot, log_folder=tmp_path)
    pid = pid_of(endpoint)
    assert post_empty(endpoint, "/quit", 5) == 409  # it has just been used
    other = launcher._folder(spec("kontext"), slot)
    assert launcher._make_room(slot, other, time.monotonic() + 30)
    assert gone(pid, 5)
    assert not launcher._make_room(slot, other, time.monotonic() + 30)  # nobody else is there


def test_a_folder_of_somebody_else_is_refused(
    spec: Callable[..., ServerSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="gl", dir="/tmp") as short:
        (Path(short) / f"guiloop-{os.getuid()}").mkdir(mode=0o755)
        monkeypatch.setattr(tempfile, "tempdir", short)
        with pytest.raises(InfrastructureFailure) as caught:
            ensure_server(spec("kontext"), CPU, log_folder=tmp_path)
    assert caught.value.code == "unsafe_folder"


def test_the_client_side_does_not_import_torch() -> None:
    code = (
        "import sys; import workflow_scripts.worlds.images, workflow_scripts.worlds.vimo; "
        "heavy = {'torch', 'diffusers', 'openai', 'pandas', 'transformers', 'cv2', 'httpx2'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
