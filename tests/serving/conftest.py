"""Tiny real model folders and real servers, each test session with a folder of its own for sockets and leases."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest
from PIL import Image

from workflow_scripts.actions import Action
from workflow_scripts.records import png_bytes
from workflow_scripts.serving import leases
from workflow_scripts.serving.launcher import Slot
from workflow_scripts.serving.spec import ServerSpec
from workflow_scripts.tasks import Task
from workflow_scripts.worlds.base import Past, StepRequest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two threads on shared cores make tiny calls 50 times slower

CPU = Slot("cpu-0")
SIDE = (128, 256)


@pytest.fixture(scope="session", autouse=True)
def _runtime_folder() -> Iterator[Path]:
    """Sockets have short paths only, so this is not pytest's temporary folder. All servers are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="gl", dir="/tmp"))
    old, tempfile.tempdir = tempfile.tempdir, str(folder)
    os.environ["TMPDIR"] = str(folder)
    yield folder
    tempfile.tempdir = old
    for path in folder.glob("guiloop-*/*/process.json"):
        record = leases.read(path)
        if record and leases.lives(record):
            os.kill(record["pid"], signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`weights(pipeline)`: the folder of the tiny pipeline, built once."""
    pytest.importorskip("diffusers")
    from tests.tiny.image_edit import build

    root = tmp_path_factory.mktemp("weights")

    def of(pipeline: str) -> Path:
        folder = root / pipeline
        return folder if folder.is_dir() else build(folder, pipeline)

    return of


@pytest.fixture(scope="session")
def spec(weights: Callable[[str], Path]) -> Callable[..., ServerSpec]:
    """`spec(pipeline, **fields)`: a server of that tiny pipeline on the CPU."""

    def of(pipeline: str, **fields: object) -> ServerSpec:
        common = {"dtype": "float32", "device": "cpu", "reference_pixels": 128 * 256, "max_pixels": 128 * 256}
        return ServerSpec(pipeline=pipeline, weights=str(weights(pipeline)), **{**common, **fields})  # type: ignore[arg-type]

    return of


def screen(seed: int, size: tuple[int, int] = SIDE) -> Image.Image:
    """Random blocks: a picture with structure, a function of `seed`."""
    blocks = numpy.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=numpy.uint8)
    return Image.fromarray(blocks).resize(size, Image.Resampling.NEAREST)


@pytest.fixture
def request_of(tmp_path: Path) -> Callable[..., StepRequest]:
    """`request_of(number, action, history)`: a step of task `number`, whose frames are files."""

    def of(
        number: int = 0, action: Action | None = None, history: int = 0, size: tuple[int, int] = SIDE
    ) -> StepRequest:
        frames = [tmp_path / f"frame_{number}_{k}.png" for k in range(history + 1)]
        for k, frame in enumerate(frames):
            frame.write_bytes(png_bytes(screen(100 * number + k, size)))
        tap = Action("tap", x=size[0] // 2, y=size[1] // 2, target="the button")
        task = Task(f"t{number}", "online", "Do it.", 10, frames[0], *size, image_sha256="")
        past = tuple(Past(k, frames[k], tap) for k in range(history))
        return StepRequest(
            task, history, frames[-1], action or tap, past, (tap,) * history + (action or tap,), 7 + number
        )

    return of


def gone(pid: int, within_s: float) -> bool:
    """Whether the process ends within that time."""
    import psutil

    try:
        record = leases.process(pid)
    except psutil.NoSuchProcess:
        return True
    deadline = time.monotonic() + within_s
    while leases.lives(record):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
