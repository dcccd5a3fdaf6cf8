"""Rule `episode`: one episode of an iteration, played (again) with the state before it.

    python -m workflow_scripts.episode results/train/NAME --iteration 2 --group 4 --member 1

Its seeds are its own, so it says what it said before: on a CPU to the last bit, because its wave is played again as one
batch; on a GPU up to rounding. An update that was made from the old file is not made again.
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
    """Plays the episode if its file is missing, and what else is missing of its wave; returns a summary."""
    from .coder.train import trainer
    from .coder.train.episodes import episode_path
    from .coder.train.schedule import waves

    _, row = resolved(folder)
    config = row.train(folder)
    places = {found.number: (wave, found) for wave, part in enumerate(waves(config, iteration)) for found in part}
    if group not in places or member >= config.episodes.group_size:
        numbers = list(places)
        expected = f"a group of {numbers[0]} … {numbers[-1]} and a member of 0 … {config.episodes.group_size - 1}"
        fix = f"group_{numbers[0]:05d}_member_00.json"
        raise InvalidInput("target", f"iteration {iteration}", expected, f"group {group}, member {member}", fix)
    run = trainer.open_run(folder, config, iteration=iteration - 1)
    wave, plan = places[group]
    trainer.collect_iteration(run, iteration, environment_maker(folder, row), [wave])
    record = read_json(episode_path(run.path(iteration), plan, member))
    return f"{len(record['rewards'])} drafts, reward {record['rewards'][-1]:.4f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    for option in ("--iteration", "--group", "--member"):
        parser.add_argument(option, type=int, required=True)
    o = parser.parse_args()
    sys.exit(worker.serve(lambda: main(o.folder, o.iteration, o.group, o.member)))
