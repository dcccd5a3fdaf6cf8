"""Rule `episode`: one episode of an iteration, played (again) with the state before it.

    python -m workflow_scripts.episode results/train/NAME --iteration 2 --group 4 --member 1

Its seeds are its own, so it says what it said before, to the last bit of a token's log-prob: rows of a batch share
arithmetic, and one row alone may round otherwise. An update that was made from the old file is not made again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import worker
from .failures import InvalidInput
from .records import read_json
from .train_rows import resolved
from .update import environment_maker


def main(folder: Path, iteration: int, group: int, member: int) -> str:
    """Plays the episode where its file is missing; returns a summary. Other files of its group are left alone."""
    from .coder.train import trainer
    from .coder.train.episodes import episode_path
    from .coder.train.schedule import plan

    _, row = resolved(folder)
    config = row.train(folder)
    mine = [found for found in plan(config, iteration).groups if found.number == group]
    if not mine or member >= config.episodes.group_size:
        numbers = [found.number for found in plan(config, iteration).groups]
        expected = f"a group of {numbers[0]} … {numbers[-1]} and a member of 0 … {config.episodes.group_size - 1}"
        fix = f"group_{numbers[0]:05d}_member_00.json"
        raise InvalidInput("target", f"iteration {iteration}", expected, f"group {group}, member {member}", fix)
    run = trainer.open_run(folder, config, iteration=iteration - 1)
    trainer.collect_iteration(run, iteration, environment_maker(folder), mine)
    record = read_json(episode_path(run.path(iteration), mine[0], member))
    return f"{len(record['rewards'])} drafts, reward {record['rewards'][-1]:.4f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    for option in ("--iteration", "--group", "--member"):
        parser.add_argument(option, type=int, required=True)
    o = parser.parse_args()
    sys.exit(worker.serve(lambda: main(o.folder, o.iteration, o.group, o.member)))
