"""Rule `collect`: a further process that plays episodes while another one updates.

    python -m workflow_scripts.collect results/train/NAME --until 20 --collector 1

Waves of the iteration that is due (`schedule.waves`: the groups that share a batch) are claimed by file locks, the
updating job from the front and collectors from the back. So any number of collectors may come late, be killed or never
be scheduled: the updating job plays what nobody has claimed and waits only for claims of living processes. Episodes on
disk are the only thing that passes between them, and since a wave is always one batch, who played it changes no result.
Left out: episodes of a coming iteration, which would be played by an older policy.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import worker
from .records import SCHEMA_VERSION, write_json
from .train_rows import RunRow, finished, iteration_folder, resolved

if TYPE_CHECKING:
    from .coder.train.config import TrainConfig
    from .coder.train.trainer import Run
    from .update import Coached

POLL_S = 0.3
PATIENCE_S = 1800.0
"""A collector that for so long finds nothing to play and no iteration finished takes the updating job for dead."""


def main(folder: Path, until: int, collector: int) -> str:
    """Plays waves until iteration `until` is finished; returns a summary."""
    from .update import environment_maker

    _, row = resolved(folder)
    config, make = row.train(folder), environment_maker(folder, row)
    run: Run | None = None
    played, since = 0, time.monotonic()
    while (last := max(finished(folder), default=-1)) < until:
        if worker.stopping():
            raise worker.Stopped(f"was told to end after {played} waves", played > 0)
        here = iteration_folder(folder, last + 1)
        left = _missing(config, last + 1, here) if last >= 0 else []
        if left:
            run = _stand_at(run, folder, row, last, collector)
        if left and run is not None and _play_one(run, last + 1, make, reversed(left)):
            played, since = played + 1, time.monotonic()
        elif time.monotonic() - since > PATIENCE_S:
            raise worker.Stopped(f"waited {PATIENCE_S:.0f} s in vain for iteration {last + 1}", False)
        else:
            time.sleep(POLL_S)
    output = folder / "collectors" / f"to_{until:05d}_{collector}.json"
    write_json(output, {"schema_version": SCHEMA_VERSION, "record": "collector", "until": until, "waves": played})
    return f"{played} waves"


def play_shared(run: Run, index: int, make: Callable[[], Coached]) -> list[list[dict[str, Any]]]:
    """The updating job's part: plays what is not claimed, waits for the rest, returns all groups of the iteration."""
    from .coder.train.trainer import collect_iteration

    here = run.path(index)
    while left := _missing(run.config, index, here):
        if not _play_one(run, index, make, left):
            if all(_free(_lock(here, wave)) for wave in left):
                break  # given up by whoever claimed them: played again below, and counted
            if worker.stopping():
                raise worker.Stopped("was told to end")
            time.sleep(POLL_S)
    return collect_iteration(run, index, make)


def _play_one(run: Run, index: int, make: Callable[[], Coached], waves: Iterable[int]) -> bool:
    """Claims and plays the first wave that nobody has claimed; whether that made it whole."""
    from .coder.train.trainer import collect_iteration

    here = run.path(index)
    for wave in waves:
        with _claim(_lock(here, wave)) as mine:
            # Whoever held the claim before may have finished it in between.
            if mine and wave in _missing(run.config, index, here):
                collect_iteration(run, index, make, [wave])
                return wave not in _missing(run.config, index, here)
    return False


def _missing(config: TrainConfig, index: int, here: Path) -> list[int]:
    """Numbers of the waves of which an episode is not on disk."""
    from .coder.train.episodes import episode_path
    from .coder.train.schedule import waves

    members = range(config.episodes.group_size)
    return [
        number
        for number, wave in enumerate(waves(config, index))
        if not all(episode_path(here, group, member).exists() for group in wave for member in members)
    ]


def _stand_at(run: Run | None, folder: Path, row: RunRow, iteration: int, collector: int) -> Run:
    """The run at a finished iteration: opened the first time, then given the adapters alone."""
    from .coder.train.checkpoint import check
    from .coder.train.libraries import torch
    from .coder.train.model import load_adapter
    from .coder.train.trainer import open_run

    if run is None:
        config = row.train(folder)
        devices = torch.cuda.device_count()
        if config.model.device == "cuda" and devices > 1:  # device 0 is the updating job's
            model = config.model.model_copy(update={"device": f"cuda:{collector % devices}"})
            config = config.model_copy(update={"model": model})
        return open_run(folder, config, iteration=iteration)
    if run.iteration != iteration:
        check(run.path(iteration), run.config, run.prompts.identity())
        for name in run.policy.adapters:
            load_adapter(run.policy.model, name, run.path(iteration) / "adapters" / name)
        run.iteration = iteration
    return run


def _lock(here: Path, wave: int) -> Path:
    return here / "claims" / f"wave_{wave:03d}.lock"


@contextmanager
def _claim(path: Path) -> Iterator[bool]:
    """Whether no other process holds the claim; it is held inside the block, and the kernel frees a dead holder's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = True
    except OSError:
        free = False
    try:
        yield free
    finally:
        os.close(descriptor)


def _free(path: Path) -> bool:
    with _claim(path) as free:
        return free


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--until", type=int, required=True)
    parser.add_argument("--collector", type=int, required=True)
    o = parser.parse_args()
    sys.exit(worker.serve(lambda: main(o.folder, o.until, o.collector)))
