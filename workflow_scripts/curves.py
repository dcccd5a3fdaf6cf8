"""Rule `curves`: a training run's log.csv and curves.png, made from the files of its iterations.

    python -m workflow_scripts.curves results/train/NAME

One row per finished iteration: its metrics.json, its timing.json and, where validation pages were drawn, their rewards
as ``heldout/…``. Nothing is appended, so neither a kill nor a resume can lose or double a row.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import worker
from .records import read_json, write_bytes
from .train_rows import finished, iteration_folder

FIRST = ("iteration", "phase", "roles", "reward", "reward_first", "reward_best", "drafts")
SMOOTH = 10
"""Iterations of the running mean that is drawn over single iterations."""


def main(folder: Path) -> str:
    """Writes both files."""
    rows = write_log(folder)
    draw(rows, folder / "curves.png", folder.name)
    return f"{len(rows)} iterations"


def log_rows(folder: Path) -> list[dict[str, Any]]:
    """One row per finished iteration, iteration 0 (which has no episodes) left out."""
    rows = []
    for number in finished(folder):
        here = iteration_folder(folder, number)
        held = here / "validation.json"
        found = {f"heldout/{k}": v for k, v in read_json(held).items() if k != "pages"} if held.is_file() else {}
        if number == 0 and not found:
            continue
        timing = here / "timing.json"
        rows.append({**read_json(here / "metrics.json"), **(read_json(timing) if timing.is_file() else {}), **found})
    return rows


def write_log(folder: Path) -> list[dict[str, Any]]:
    """Makes log.csv again; returns its rows."""
    rows = log_rows(folder)
    names = {name for row in rows for name in row}
    columns = [*(name for name in FIRST if name in names), *sorted(names - set(FIRST))]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: " ".join(v) if isinstance(v, list) else v for k, v in row.items()})
    write_bytes(folder / "log.csv", text.getvalue().encode())
    return rows


Panel = tuple[str, str, Callable[[str], bool]]
PANELS: tuple[Panel, ...] = (
    ("reward of last drafts", "", lambda k: k == "reward" or k.startswith("reward/")),
    ("held-out reward, validation pages", "", lambda k: k in ("heldout/single_turn", "heldout/multi_turn")),
    ("drafts per episode", "", lambda k: k == "drafts"),
    ("loss (surrogate)", "", lambda k: k.endswith("/loss")),
    ("KL to the base", "nats per token", lambda k: k.endswith("/kl")),
    ("entropy", "nats per token", lambda k: k.endswith("/entropy")),
    ("clipped tokens", "share", lambda k: k.endswith("/clipped")),
    ("groups without variance", "share", lambda k: k.endswith("/zero_variance")),
    ("sampled tokens per second", "", lambda k: k == "sampled_tokens_per_s"),
)


def draw(rows: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Nine panels as one PNG. Raises ModuleNotFoundError without matplotlib (extra `train`)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 9), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    names = sorted({key for row in rows for key in row})
    for axes, (head, unit, wanted) in zip(figure.subplots(3, 3).flat, PANELS, strict=True):
        axes.set_title(head, fontsize=10)
        axes.set_xlabel("iteration", fontsize=8)
        axes.set_ylabel(unit, fontsize=8)
        axes.grid(alpha=0.25)
        drawn = [name for name in names if wanted(name)]
        for color, name in enumerate(drawn):
            points = [(row["iteration"], float(row[name])) for row in rows if _number(row.get(name))]
            if not points:
                continue
            x, y = zip(*points, strict=True)
            style = {"color": f"C{color}"}
            if len(points) > SMOOTH:
                axes.plot(x, y, alpha=0.25, linewidth=0.8, **style)
                axes.plot(x, running_mean(y, SMOOTH), label=name, linewidth=1.6, **style)
            else:
                axes.plot(x, y, marker="o", markersize=3, label=name, **style)
        if any(axes.get_legend_handles_labels()):
            axes.legend(fontsize=7)
        else:
            axes.text(0.5, 0.5, "no data", ha="center", va="center", transform=axes.transAxes, color="0.5")
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=90, metadata={"Software": None})
    write_bytes(path, data.getvalue())


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of each value and the up to `window` - 1 before it."""
    return [
        math.fsum(part) / len(part) for part in (values[max(0, i - window + 1) : i + 1] for i in range(len(values)))
    ]


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    sys.exit(worker.serve(lambda: main(options.folder)))
