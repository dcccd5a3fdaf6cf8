"""Rule `collect`: a further process that plays episodes while another one updates.

    python -m workflow_scripts.collect results/train/NAME --until 20 --collector 1

Groups of the iteration that is due are claimed by file locks, the updating job from the front and collectors from the
back, so any number of collectors may come late, be killed or never be scheduled: the updating job plays what nobody has
claimed and waits only for claims of living processes. Episodes on disk are the only thing that passes between them.
Which process played a group is no part of a result; in another batch an episode's log-probs may round otherwise
(coder/train/sampler.py). Left out: episodes of a coming iteration, which would be played by an older policy.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import worker
from .records import SCHEMA_VERSION, write_json
from .train_rows import finished, iteration_folder, resolved

if TYPE_CHECKING:
    from .coder.train.schedule import GroupPlan
    from .coder.train.trainer import Run
    from .update import Coached

POLL_S = 0.3
PATIENCE_S = 1800.0
"""A collector that for so long finds nothing to play and no iteration finished takes the updating job for dead."""


def main(folder: Path, until: int, collector: int) -> str:
    """Plays groups until iteration `until` is finished; returns a summary."""
    from .update import environment_maker

    _, row = resolved(folder)
    make = environment_maker(folder)
    run: Run | None = None
    played, since = 0, time.monotonic()
    while (last := max(finished(folder), default=-1)) < until:
        if worker.stopping():
            raise worker.Stopped(f"was told to end after {played} groups", played > 0)
        here = iteration_folder(folder, last + 1)
        if last < 0 or not (open_groups := _open(_groups(row.train(folder), last + 1), here, row.episodes.group_size)):
            if time.monotonic() - since > PATIENCE_S:
                raise worker.Stopped(f"waited {PATIENCE_S:.0f} s in vain for iteration {last + 1}", False)
            time.sleep(POLL_S)
            continue
        run = _stand_at(run, folder, row, last, collector)
        count = _play_some(run, last + 1, make, list(reversed(open_groups)))
        played += count
        since = time.monotonic() if count else since
        if not count:
            time.sleep(POLL_S)
    output = folder / "collectors" / f"to_{until:05d}_{collector}.json"
    write_json(output, {"schema_version": SCHEMA_VERSION, "record": "collector", "until": until, "groups": played})
    return f"{played} groups"


def play_shared(run: Run, index: int, make: Callable[[], Coached]) -> list[list[dict[str, Any]]]:
    """The updating job's part: plays what is not claimed, waits for the rest, returns all groups of the iteration."""
    from .coder.train.trainer import collect_iteration

    here, groups = run.path(index), _groups(run.config, index)
    size = run.config.episodes.group_size
    while left := _open(groups, here, size):
        if not _play_some(run, index, make, left):
            if all(_free(_lock(here, group)) for group in left):
                break  # given up by whoever claimed them: played again below, and counted
            if worker.stopping():
                raise worker.Stopped("was told to end")
            time.sleep(POLL_S)
    return collect_iteration(run, index, make)


def _play_some(run: Run, index: int, make: Callable[[], Coached], groups: Sequence[GroupPlan]) -> int:
    """Claims and plays a batch of groups; how many."""
    from .coder.train.episodes import episode_path
    from .coder.train.trainer import collect_iteration

    here, size = run.path(index), run.config.episodes.group_size
    wanted = max(1, run.config.sampling.batch_rows // size)
    with _claims(here, groups, wanted) as mine:
        # Whoever held a claim before may have finished it in between.
        mine = [group for group in mine if not _complete(here, group, size)]
        if mine:
            before = sum(episode_path(here, g, m).exists() for g in mine for m in range(size))
            collect_iteration(run, index, make, mine)
            return (
                len(mine) if sum(episode_path(here, g, m).exists() for g in mine for m in range(size)) > before else 0
            )
    return 0


def _stand_at(run: Run | None, folder: Path, row: Any, iteration: int, collector: int) -> Run:
    """The run at a finished iteration: opened the first time, then given the adapters alone."""
    from .coder.train.checkpoint import check
    from .coder.train.libraries import torch
    from .coder.train.model import load_adapter
    from .coder.train.trainer import open_run

    config = row.train(folder)
    if run is None:
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


def _groups(config: Any, index: int) -> Sequence[GroupPlan]:
    from .coder.train.schedule import plan

    return plan(config, index).groups


def _complete(here: Path, group: GroupPlan, size: int) -> bool:
    from .coder.train.episodes import episode_path

    return all(episode_path(here, group, member).exists() for member in range(size))


def _open(groups: Sequence[GroupPlan], here: Path, size: int) -> list[GroupPlan]:
    return [group for group in groups if not _complete(here, group, size)]


def _lock(here: Path, group: GroupPlan) -> Path:
    return here / "claims" / f"group_{group.number:05d}.lock"


@contextmanager
def _claims(here: Path, groups: Sequence[GroupPlan], wanted: int) -> Iterator[list[GroupPlan]]:
    """Up to `wanted` groups that no other process has claimed, held inside the block; the kernel frees a dead one's."""
    held: list[tuple[GroupPlan, int]] = []
    try:
        for group in groups:
            if len(held) == wanted:
                break
            if (descriptor := _acquire(_lock(here, group))) is not None:
                held.append((group, descriptor))
        yield [group for group, _ in held]
    finally:
        for _, descriptor in held:
            os.close(descriptor)


def _acquire(path: Path) -> int | None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _free(path: Path) -> bool:
    descriptor = _acquire(path)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--until", type=int, required=True)
    parser.add_argument("--collector", type=int, required=True)
    o = parser.parse_args()
    sys.exit(worker.serve(lambda: main(o.folder, o.until, o.collector)))
