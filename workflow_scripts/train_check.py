"""What keeps a training run from working here, found before a job starts, in a process that may import torch.

    python -m workflow_scripts.train_check results/train/NAME [--elsewhere]

Prints one line per fault, which `train_run.TrainRun.preflight` collects: missing libraries, a device that is not here,
a base that cannot be found, a checkpoint of another base, of another schedule or with a missing or damaged file, and
episodes of the iteration in progress that are damaged. ``--elsewhere``: the jobs run on other nodes, whose devices are
not looked at.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
from pathlib import Path

from .failures import Failure, InvalidInput
from .records import read_json
from .train_rows import RunRow, finished, iteration_folder, resolved

LIBRARIES = ("torch", "transformers", "peft", "safetensors", "matplotlib")


def main(folder: Path, elsewhere: bool) -> list[str]:
    """The faults; none where the run can begin or go on."""
    name, row = resolved(folder)
    if missing := [library for library in LIBRARIES if importlib.util.find_spec(library) is None]:
        return [f"training needs {', '.join(missing)}: bash envs/setup.sh train"]
    faults = [] if elsewhere else _device_faults(name, row)
    try:
        _check(folder, row)
    except (InvalidInput, Failure) as error:
        faults.append(str(error))
    except OSError as error:
        faults.append(
            f"runs.{name}.model.base: {row.model.base!r} cannot be found ({error}); "
            f"fetch it first: hf download {row.model.base}"
        )
    return faults


def _device_faults(name: str, row: RunRow) -> list[str]:
    from .coder.train.libraries import torch

    device = row.model.device
    if device.startswith("cuda") and not torch.cuda.is_available():
        return [f"runs.{name}.model.device: {device}, but this node has no CUDA device (cpu trains small models)"]
    index = int(device.partition(":")[2] or 0)
    if device.startswith("cuda") and index >= torch.cuda.device_count():
        return [f"runs.{name}.model.device: {device}, but this node has {torch.cuda.device_count()} devices"]
    return []


def _check(folder: Path, row: RunRow) -> None:
    from .coder.train import checkpoint
    from .coder.train.model import base_identity
    from .coder.train.prompts import Prompts

    config = row.train(folder)
    done = finished(folder)
    if done:
        checkpoint.check(iteration_folder(folder, done[-1]), config, Prompts().identity())
        _check_episodes(iteration_folder(folder, done[-1] + 1))
    elif row.warm_start is not None or not _made_by_another_run(config.model.base):
        base_identity(row.model)


def _made_by_another_run(base: str) -> bool:
    return Path(base).parts[:2] == ("results", "train") and not Path(base).exists()


def _check_episodes(here: Path) -> None:
    """Raises InvalidInput for an episode of the iteration in progress that cannot be learned from."""
    for path in sorted((here / "episodes").glob("*.json")):
        fix = f"rm {path}: it is played again"
        try:
            rewards = read_json(path)["rewards"]
        except (OSError, ValueError, KeyError) as error:
            raise InvalidInput(str(path), "episode", "an episode record", str(error), fix) from error
        if not rewards or not all(isinstance(r, (int, float)) and math.isfinite(r) for r in rewards):
            raise InvalidInput(str(path), "rewards", "finite numbers, at least one", rewards, fix)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--elsewhere", action="store_true")
    options = parser.parse_args()
    print(json.dumps(main(options.folder, options.elsewhere)))
