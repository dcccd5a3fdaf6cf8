"""Rule `rollout_results`: all trajectories of a row in one file, as GUI-CC's evaluator reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .chain import clear, read_record
from .records import write_json

if TYPE_CHECKING:
    from .plan import Row


def main(row: Row, output: Path) -> str:
    """Makes `output` (rollout_results.json): ``_RUN`` and one record per task, in file order."""
    clear(output.parent, output.name)
    records = {task.task_id: read_record(row.folder / task.task_id / "trajectory.json") for task in row.tasks}
    write_json(output, {"_RUN": row.run, **records})
    failed = sum(record["failure_class"] == "model" for record in records.values())
    return f"{len(records)} tasks, {failed} model failures"
