"""Rule `export_coder`: a trained run as a folder that others load and serve (coder/train/export.py).

    python -m workflow_scripts.export_coder results/train/NAME results/export/NAME

The new folder is made beside the old one and takes its place when it is whole.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from . import worker
from .evaluate import best_iteration, headline
from .failures import InvalidInput
from .records import read_json
from .train_rows import RunRow, finished, resolved


def main(folder: Path, target: Path) -> str:
    """Exports the iteration that the run's configuration names; returns a summary."""
    from .coder.train.export import export

    _, row = resolved(folder)
    iteration = iteration_of(folder, row)
    evaluation = headline(read_json(folder / "evaluation.json"))
    made = target.with_name(f".{target.name}.new")
    shutil.rmtree(made, ignore_errors=True)
    export(folder, row.train(folder), made, iteration, evaluation)
    shutil.rmtree(target, ignore_errors=True)  # the workflow has made the folder, and an older export may lie there
    made.rename(target)
    return f"iteration {iteration} in {target}"


def iteration_of(folder: Path, row: RunRow) -> int:
    """Which iteration is exported. Raises InvalidInput if it is not finished."""
    done = finished(folder)
    chosen = row.export_iteration
    number = best_iteration(folder) if chosen == "best" else done[-1] if chosen == "last" and done else chosen
    if number not in done:
        expected = f"a finished iteration ({done[0]} … {done[-1]})" if done else "a trained run"
        raise InvalidInput("config", "export_iteration", expected, chosen, "export_iteration: last")
    return int(number)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    sys.exit(worker.serve(lambda: main(options.folder, options.target)))
