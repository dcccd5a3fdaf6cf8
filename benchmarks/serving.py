"""Image steps per second: one lock and one row per call, against calls that join the rows of tasks, in one run.

    python benchmarks/serving.py [--pipelines flux2_klein,kontext] [--tasks 1,4,16] [--steps-per-task 4] [--device cpu]
                                 [--weights FOLDER] [--size 128x256] [--sampling-steps 2] [--batch-size 8]

Three ways: `in process`, a thread pool over one pipeline object, where every thread takes a lock and calls the pipeline
with one row, without HTTP; `one row`, the model server with batches of one; `joined`, the model server as it is. The
second differs from the third by batching alone; the first shows what PNG and HTTP cost, which matters for tiny models
only. Tasks are closed loops: each sends its next step when the last one is answered. `slowest` is the time of the
slowest task over the mean; a starved task would make it large. Without `--weights` a tiny random model is built.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy
from PIL import Image

from workflow_scripts.records import png_bytes
from workflow_scripts.serving.client import Endpoint, Patience, edit, post_empty
from workflow_scripts.serving.launcher import Slot, ensure_server, slots
from workflow_scripts.serving.spec import ServerSpec

ROW = "{:<16} {:>5} {:>13.2f} {:>11.2f} {:>10.2f} {:>14.2f} {:>8.2f}"

Step = Callable[[int, int], object]
"""Carries out step `k` of task `t`."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """Steps per second, and the seconds each task took."""

    rate: float
    task_seconds: list[float]

    @property
    def unfairness(self) -> float:
        """The slowest task's time over the mean."""
        return max(self.task_seconds) / (sum(self.task_seconds) / len(self.task_seconds))


def closed_loop(step: Step, tasks: int, steps: int) -> Measured:
    """Runs `tasks` tasks of `steps` steps at the same time."""

    def run(task: int) -> float:
        begun = time.perf_counter()
        for number in range(steps):
            step(task, number)
        return time.perf_counter() - begun

    begun = time.perf_counter()
    with ThreadPoolExecutor(tasks) as pool:
        seconds = list(pool.map(run, range(tasks)))
    return Measured(tasks * steps / (time.perf_counter() - begun), seconds)


def screens(count: int, size: tuple[int, int]) -> list[Image.Image]:
    """Random blocks, one picture per task."""
    noise = numpy.random.default_rng(0).integers(0, 255, (count, 8, 8, 3), dtype=numpy.uint8)
    return [Image.fromarray(blocks).resize(size, Image.Resampling.NEAREST) for blocks in noise]


def locked(spec: ServerSpec, pictures: Sequence[Image.Image], size: tuple[int, int], sampling_steps: int) -> Step:
    """The one-lock way, on a pipeline loaded into this process."""
    from workflow_scripts.serving.pipelines import Edit, EditPipeline

    pipeline, lock = EditPipeline(spec), threading.Lock()

    def step(task: int, number: int) -> bytes:
        with lock:
            # The lock is what makes this safe here; the pipeline is told that this thread owns it.
            pipeline._owner = threading.get_ident()
            row = Edit(f"tap {number}", (pictures[task],), *size, task * 100 + number, sampling_steps, guidance=1.0)
            return png_bytes(pipeline.generate([row])[0])

    return step


def served(endpoint: Endpoint, pictures: Sequence[Image.Image], size: tuple[int, int], sampling_steps: int) -> Step:
    """Our way: a request over the Unix socket."""
    files = [png_bytes(picture) for picture in pictures]

    def step(task: int, number: int) -> object:
        extra = {"task": f"t{task}", "steps": sampling_steps, "guidance": 1.0}
        fields = {"size": f"{size[0]}x{size[1]}", "seed": str(task * 100 + number), "extra": json.dumps(extra)}
        return edit(endpoint, prompt=f"tap {number}", images=[files[task]], fields=fields, patience=Patience(3600))

    return step


def compare(
    spec: ServerSpec, slot: Slot, counts: Sequence[int], steps: int, size: tuple[int, int], sampling: int
) -> None:
    """Prints the table's rows of one pipeline."""
    pictures = screens(max(counts), size)
    # Not at the same time: two copies of a real model may not fit, and they would share the cores.
    baseline = locked(spec, pictures, size, sampling)
    baseline(0, 0)
    before = {count: closed_loop(baseline, count, steps) for count in counts}
    del baseline
    release()
    with tempfile.TemporaryDirectory() as logs:
        rounds = []
        # Servers are shared by content, whatever their batch size: the second slot's name keeps these two apart.
        for batch_size, name in ((1, slot.name + "-one-row"), (spec.batch_size, slot.name)):
            one = dataclasses.replace(spec, batch_size=batch_size)
            endpoint = ensure_server(one, Slot(name, slot.environment), log_folder=logs)
            ours = served(endpoint, pictures, size, sampling)
            ours(0, 0)
            rounds.append({count: closed_loop(ours, count, steps) for count in counts})
            time.sleep(4.0)  # a server that was just used does not quit
            post_empty(endpoint, "/quit", 10.0)
        for count in counts:
            alone, joined = rounds[0][count], rounds[1][count]
            rates = (before[count].rate, alone.rate, joined.rate, joined.rate / alone.rate)
            print(ROW.format(spec.pipeline, count, *rates, joined.unfairness), flush=True)


def release() -> None:
    """Gives the baseline's memory back."""
    from workflow_scripts.serving.pipelines import free_memory

    free_memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipelines", default="flux2_klein,kontext,pix2pix,qwen_image_edit")
    parser.add_argument("--tasks", default="1,4,16")
    parser.add_argument("--steps-per-task", type=int, default=4)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--weights", help="model folder or hub id; with one pipeline only")
    parser.add_argument("--size", default="128x256")
    parser.add_argument("--sampling-steps", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args()
    width, height = (int(side) for side in options.size.split("x"))
    slot = slots(options.device, None, split=False)[0]
    os.environ.update(slot.environment)
    header = ("pipeline", "tasks", "in process /s", "one row /s", "joined /s", "joined/one row", "slowest")
    print("{:<16} {:>5} {:>13} {:>11} {:>10} {:>14} {:>8}".format(*header))
    with tempfile.TemporaryDirectory() as folder:
        for name in options.pipelines.split(","):
            weights = options.weights
            if weights is None:
                from tests.tiny.image_edit import build

                weights = str(build(Path(folder) / name, name))
            spec = ServerSpec(
                pipeline=name,
                weights=weights,
                dtype=options.dtype,
                device=options.device,
                reference_pixels=width * height if options.weights is None else None,
                max_pixels=width * height,
                batch_size=options.batch_size,
            )
            compare(
                spec,
                slot,
                [int(count) for count in options.tasks.split(",")],
                options.steps_per_task,
                (width, height),
                options.sampling_steps,
            )


if __name__ == "__main__":
    main()
