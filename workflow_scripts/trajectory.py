"""Rule `trajectory`: the steps of one task as one record that GUI-CC's evaluator accepts, and the last screen.

``trajectory.json`` is GUI-CC's rollout record (its field names, paths relative to the row's folder) with our additions:
schema, identity, why the episode ended, and every frame with its digest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chain import (
    clear,
    content_digest,
    picture,
    read_picture,
    read_record,
    step_folder,
    to_frame,
    trajectory_identity,
)
from .identity import digest
from .records import SCHEMA_VERSION, write_bytes, write_json

if TYPE_CHECKING:
    from .plan import Row
    from .tasks import Task


def main(row: Row, task: Task, output: Path) -> str:
    """Makes `output` (trajectory.json) and final_frame.png; returns why the episode ended."""
    task_folder = output.parent
    clear(task_folder, "trajectory.json", "final_frame.png")
    entries: list[dict[str, Any]] = []
    frames: list[dict[str, Any]] = []
    contents: list[str] = []
    seconds = 0.0
    ended: dict[str, Any] = {
        "reason": "actions_used" if task.track == "offline" else "budget_used",
        "step": task.step_budget - 1,
    }
    failure: dict[str, Any] | None = None
    terminal_status: str | None = None
    current = b""
    for step in range(task.step_budget):
        folder = step_folder(task_folder, step)
        acted, predicted = read_record(folder / "action.json"), read_record(folder / "prediction.json")
        contents += [content_digest(acted), content_digest(predicted)]
        if acted["status"] == "skipped":
            continue
        seconds += acted["timing"]["seconds"] + predicted.get("timing", {}).get("seconds", 0)
        entry = _entry(task, folder, acted, predicted)
        entries.append(entry)
        frames.append({**acted["frame"], "path": entry["frame"]})
        current = read_picture(folder, acted["frame"])
        if predicted["status"] == "predicted":
            current, _, _ = to_frame(read_picture(folder, predicted["prediction"]), (task.width, task.height))
            continue
        ended = predicted["ended"]
        failure = predicted.get("failure")
        if failure is None:
            terminal_status = str(acted["semantic_action"].get("value") or "unknown")
    write_bytes(task_folder / "final_frame.png", current)
    if ended["reason"] not in ("terminated", "answered"):
        last = picture("final_frame.png", current, (task.width, task.height))
        frames.append({**last, "path": f"{task.task_id}/final_frame.png"})
    write_json(
        output,
        {
            "schema": SCHEMA_VERSION,
            "record": "trajectory",
            "identity": trajectory_identity(row, task),
            "inputs": {"content": digest(contents)},
            "task_id": task.task_id,
            "model": row.model,
            "setting": row.setting,
            "track": task.track,
            "instruction": task.instruction,
            "step_budget": task.step_budget,
            "run_sha256": row.run_sha256,
            "complete": failure is None,
            "error": None if failure is None else failure["code"],
            "failure": failure,
            "failure_class": None if failure is None else failure["kind"],
            "terminal_status": terminal_status,
            "end_reason": ended["reason"],
            "end_step": ended["step"],
            "steps_taken": len(entries),
            "total_time_s": round(seconds, 2),
            "trajectory": entries,
            "frames": frames,
        },
    )
    return str(ended["reason"])


def _entry(task: Task, folder: Path, acted: dict[str, Any], predicted: dict[str, Any]) -> dict[str, Any]:
    """One entry of GUI-CC's ``trajectory`` list."""
    here = f"{task.task_id}/{folder.name}"
    response = folder / "agent_response.txt"
    entry: dict[str, Any] = {
        "step": acted["step"],
        "frame": f"{here}/{acted['frame']['path']}",
        "agent_response": response.read_text(encoding="utf-8") if response.is_file() else "",
        "agent_evidence": f"{here}/agent_evidence.json",
        "semantic_action": acted["semantic_action"],
    }
    if predicted["status"] == "skipped":
        entry["terminated"] = True
    elif predicted["status"] == "failed":
        entry["wm_error"] = predicted["failure"]["code"]
        entry["failure_class"] = predicted["failure"]["kind"]
    else:
        entry["pred_png"] = f"{here}/{predicted['prediction']['path']}"
        entry["pred_original_size"] = predicted["prediction"]["size"]
        entry["pred_resized_to_frame"] = predicted["resized"]
        entry["pred_html"] = f"{here}/{predicted['html']['path']}" if "html" in predicted else ""
        entry["wm_cached"] = False
        entry["supported"] = predicted["supported"]
        if "page" in predicted:
            entry["page"] = predicted["page"]
    return entry
