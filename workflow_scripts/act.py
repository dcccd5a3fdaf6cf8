"""Rule `act`: the planner looks at the current screen and decides on one action.

Writes ``frame.png``, ``agent_response.txt``, ``agent_evidence.json`` and, last, ``action.json``. A planner that fails
writes nothing: it is a fixed part of the experiment, so its failures are infrastructure.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chain import (
    act_identity,
    actions_until,
    base_record,
    clear,
    content_digest,
    picture,
    read_picture,
    read_record,
    step_folder,
    to_frame,
)
from .identity import seed_of
from .planners.base import PlannerRequest
from .records import write_bytes, write_json

if TYPE_CHECKING:
    from .plan import Row
    from .tasks import Task


def main(row: Row, task: Task, step: int, output: Path) -> str:
    """Makes `output` (action.json of this step); returns its status, acted or skipped."""
    started = time.time()
    task_folder = row.folder / task.task_id
    size = task.width, task.height
    identity = act_identity(row, task, step)
    folder = output.parent
    clear(folder, "action.json", "frame.png", "agent_response.txt", "agent_evidence.json")
    if step == 0:
        before = task.image_sha256
        frame, _, _ = to_frame(task.image.read_bytes(), size)
    else:
        previous_folder = step_folder(task_folder, step - 1)
        previous = read_record(previous_folder / "prediction.json")
        before = content_digest(previous)
        if previous["status"] != "predicted":
            return _skip(task, step, identity, before, previous["ended"], output)
        frame, _, _ = to_frame(read_picture(previous_folder, previous["prediction"]), size)

    write_bytes(folder / "frame.png", frame)
    planned = row.planner.act(
        PlannerRequest(
            task=task,
            step=step,
            frame=folder / "frame.png",
            width=task.width,
            height=task.height,
            past=actions_until(task_folder, task, step - 1) if step else (),
            seed=seed_of("act", task.task_id, step, row.seed, row.repeat),
        )
    )
    write_bytes(folder / "agent_response.txt", planned.response_text.encode())
    write_json(folder / "agent_evidence.json", planned.evidence)
    record: dict[str, Any] = base_record("action", task, step, identity, {"content": before})
    record.update(
        status="acted",
        frame=picture("frame.png", frame, size),
        plan=planned.plan,
        semantic_action=planned.action.semantic(*size),
        timing={"started": started, "seconds": round(time.time() - started, 3)},
    )
    write_json(output, record)
    return "acted"


def _skip(task: Task, step: int, identity: str, before: str, ended: dict[str, Any], output: Path) -> str:
    record = base_record("action", task, step, identity, {"content": before})
    write_json(output, {**record, "status": "skipped", "ended": ended})
    return "skipped"
