"""Rule `plan`: what a run will take (steps, calls, time, GPU-hours, disk), and after it what it took.

Seconds per call are those measured in this folder, else the configured ones (`expect:`). With measured seconds the time
follows from Little's law: `tasks_in_flight` tasks are under way, each step takes its action's and its prediction's
seconds (waiting included), so a step is done every (act + predict) / tasks_in_flight seconds, whatever the bottleneck.
Configured seconds are those of a call alone, and a GPU makes one prediction after the other. Left out: start-up of
servers, time in a cluster's queue, prices (`scores.json` has the costs of calls).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from .chain import step_folder
from .progress import duration
from .records import read_json, write_json

if TYPE_CHECKING:
    from .plan import Row

ESTIMATES = Path("results/logs/estimates")
RECORDS_BYTES = 12_000
"""JSON and text files of a step, in bytes."""


class Expect(BaseModel):
    """What a step is expected to take before anything was measured here."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    planner_s: float = Field(8.0, ge=0, strict=False, description="Seconds of one planner call (online track).")
    world_s: float = Field(15.0, ge=0, strict=False, description="Seconds of one prediction.")
    length: float = Field(1.0, gt=0, le=1, strict=False, description="Share of the step budget that episodes use.")


@dataclass(frozen=True)
class Measured:
    """What the steps of a row that lie there took: means over `steps` steps, `length` as a share of the budget."""

    steps: int
    act_s: float
    predict_s: float
    step_bytes: float
    length: float | None


@dataclass(frozen=True)
class Estimate:
    """What is left of a row. `steps` is the expected number, `most_steps` the budget; `seconds` is wall time."""

    row: str
    tasks: int
    most_steps: int
    steps: int
    planner_calls: int
    world_calls: int
    seconds: float
    gpu_hours: float
    bytes: int
    basis: str


def estimate(row: Row, left: Sequence[int], expect: Expect, *, in_flight: int, shards: int, gpu: bool) -> Estimate:
    """What is left of a row.

    Args:
        left: steps left of each of the row's tasks, the budget counted in full.
        in_flight: tasks under way at a time in each of the `shards` (at least 1) processes.
        gpu: whether each of these holds a GPU.
    """
    measured = measure(row)
    length = measured.length if measured and measured.length else expect.length
    most = sum(left)
    steps = round(most * length)
    tasks = sum(count > 0 for count in left)
    online = row.track == "online"
    busy = max(1, min(in_flight, -(-tasks // shards)))
    if measured:
        per_step = (measured.act_s + measured.predict_s) / busy
    else:
        alone = (expect.planner_s if online else 0.0) + expect.world_s
        per_step = max(alone / busy, expect.world_s if gpu else 0.0)
    size = measured.step_bytes if measured else 2.0 * mean(task.image.stat().st_size for task in row.tasks)
    return Estimate(
        row=f"{row.model}/{row.setting}",
        tasks=tasks,
        most_steps=most,
        steps=steps,
        planner_calls=steps if online else 0,
        world_calls=steps,
        seconds=steps * per_step / shards,
        gpu_hours=steps * per_step / 3600 if gpu else 0.0,
        bytes=round(steps * (size + RECORDS_BYTES)),
        basis=f"measured on {measured.steps} steps" if measured else "configured (expect:)",
    )


def measure(row: Row, since: float = 0.0) -> Measured | None:
    """What the steps of a row took that were begun after `since` (seconds since the epoch); None without any."""
    steps = list(_steps(row, since))
    if not steps:
        return None
    ended = [_quiet(row.folder / task.task_id / "trajectory.json") for task in row.tasks]
    lengths = [record["steps_taken"] / record["step_budget"] for record in ended if record]
    return Measured(
        steps=len(steps),
        act_s=mean(act for act, _, _ in steps),
        predict_s=mean(predict for _, predict, _ in steps),
        step_bytes=mean(size for _, _, size in steps),
        length=mean(lengths) if lengths else None,
    )


def _steps(row: Row, since: float) -> Iterator[tuple[float, float, int]]:
    """Seconds of action and prediction and bytes of the pictures of every step that was made."""
    for task in row.tasks:
        for step in range(task.step_budget):
            folder = step_folder(row.folder / task.task_id, step)
            acted, predicted = _quiet(folder / "action.json"), _quiet(folder / "prediction.json")
            if not acted or not predicted or "timing" not in acted or "timing" not in predicted:
                break
            if predicted["timing"]["started"] >= since:
                parts = (acted.get("frame"), predicted.get("prediction"), predicted.get("html"))
                size = sum(part["bytes"] for part in parts if part)
                yield acted["timing"]["seconds"], predicted["timing"]["seconds"], size


def _quiet(path: Path) -> dict[str, Any] | None:
    try:
        record = read_json(path)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


# --- for a person -----------------------------------------------------------------------------------------------------


def table(estimates: Sequence[Estimate]) -> str:
    """The estimates as text, with their sum."""
    head = ("row", "tasks", "steps", "planner calls", "world calls", "time", "GPU-hours", "disk", "seconds per call")
    lines = [_cells(item) for item in estimates]
    if len(estimates) > 1:
        lines.append(_cells(total(estimates)))
    widths = [max(len(line[column]) for line in [head, *lines]) for column in range(len(head))]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in [head, *lines]]
    return "\n".join(row.rstrip() for row in rows)


def total(estimates: Sequence[Estimate]) -> Estimate:
    """The sum; times add up, as rows share GPUs and endpoints."""
    numbers = ("tasks", "most_steps", "steps", "planner_calls", "world_calls", "seconds", "gpu_hours", "bytes")
    sums = {name: sum(getattr(item, name) for item in estimates) for name in numbers}
    return Estimate(row="all", basis="", **sums)


def _cells(item: Estimate) -> tuple[str, ...]:
    steps = f"{item.steps}" if item.steps == item.most_steps else f"{item.steps} (at most {item.most_steps})"
    return (
        item.row,
        str(item.tasks),
        steps,
        str(item.planner_calls),
        str(item.world_calls),
        duration(item.seconds),
        f"{item.gpu_hours:.1f}",
        size_text(item.bytes),
        item.basis,
    )


def size_text(count: float) -> str:
    """Bytes for a person: 340 kB, 12.0 MB, 3.4 GB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"


# --- estimated against actual -----------------------------------------------------------------------------------------


def save(item: Estimate, row: Row) -> None:
    """Keeps the estimate of a run that begins now."""
    write_json(_file(row), {"schema": 1, "record": "estimate", "at": time.time(), **asdict(item)})


def compared(row: Row) -> str | None:
    """One line: the last run's estimate against what was made since; None without either."""
    kept = _quiet(_file(row))
    made = list(_steps(row, kept["at"])) if kept else []
    if kept is None or not made:
        return None
    ended = max(path.stat().st_mtime for path in _predictions(row))
    took = max(0.0, ended - kept["at"])
    size = sum(size for _, _, size in made) + RECORDS_BYTES * len(made)
    return (
        f"{kept['row']}: estimated {kept['steps']} steps, {duration(kept['seconds'])}, {size_text(kept['bytes'])}; "
        f"made {len(made)} steps in {duration(took)}, {size_text(size)}"
    )


def _file(row: Row) -> Path:
    return ESTIMATES / row.model / f"{row.setting}.json"


def _predictions(row: Row) -> Iterator[Path]:
    for task in row.tasks:
        yield from (row.folder / task.task_id).glob("step_*/prediction.json")
