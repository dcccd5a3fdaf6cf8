"""A small hand-made task set and rollout rows in GUI-CC's layout, with every kind of failure among them.

Screens are 64 × 96 pixels with a bar and a coloured block, so that no two steps look alike. Left out: anything of ours
(digests of frames, identities): this is what other people's tools write.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from workflow_scripts.tasks import Task, load_tasks

SIZE = (64, 96)
MILESTONES = [
    {"id": "m1", "type": ["progress"], "assertion": "The list is open."},
    {"id": "m2", "type": ["memory_persistence", "terminal_success"], "assertion": "The entry is gone."},
]
TAP = {
    "type": "tap",
    "target": "the entry",
    "low_level_instruction": "Tap the entry.",
    "source_coord": [10, 20],
    "source_coord_norm": [156, 208],
}
BACK = {"type": "navigate_back", "target": "", "low_level_instruction": ""}
DONE = {"type": "terminate", "value": "success", "target": "", "low_level_instruction": ""}
RUN = {"model": {"model_id": "theirs", "history_setting": "WM-NoHist"}, "planner": {"model": "p"}}
RUN_SHA256 = hashlib.sha256(json.dumps(RUN, sort_keys=True).encode()).hexdigest()


def screen(number: int) -> Image.Image:
    """Screen `number` of a course: a white page, a grey bar, a block that moves and changes its colour."""
    image = Image.new("RGB", SIZE, "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, SIZE[0], 9), fill="grey")
    draw.rectangle(
        (6 + 4 * number, 20 + 6 * number, 30 + 4 * number, 36 + 6 * number), fill=(200, 40 * number % 256, 60)
    )
    return image


def save(path: Path, image: Image.Image) -> Path:
    """Writes a PNG, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return path


def online_tasks(root: Path, ids: tuple[str, ...], **changes: Any) -> list[Task]:
    """A set of online tasks of three steps."""
    lines = []
    for task_id in ids:
        save(root / "online_data" / task_id / "initial.png", screen(0))
        row = {"task_id": task_id, "instruction": "Delete the entry.", "step_budget": 3, "milestones": MILESTONES}
        lines.append(json.dumps({**row, "category": "System", "apps": ["Notes"], **changes}))
    (root / "online_samples.jsonl").write_text("\n".join(lines))
    return load_tasks(root, "online")


def offline_tasks(root: Path, ids: tuple[str, ...]) -> list[Task]:
    """A set of offline tasks of two recorded steps, with their true screens."""
    lines = []
    for sample_id in ids:
        folder = root / "offline_data" / sample_id
        save(folder / "initial.png", screen(0))
        actions = [{"step_id": step, "semantic_action": action} for step, action in enumerate((TAP, BACK))]
        (folder / "reference_trajectory.jsonl").write_text("\n".join(map(json.dumps, actions)))
        for step in range(2):
            save(folder / f"step_{step:03d}_after.png", screen(step + 1))
        lines.append(json.dumps({"sample_id": sample_id, "task_instruction": "Delete the entry.", "n_steps": 2}))
    (root / "offline_samples.jsonl").write_text("\n".join(lines))
    return load_tasks(root, "offline")


def complete(row: Path, task_id: str, actions: list[dict[str, Any]], budget: int = 3) -> dict[str, Any]:
    """Writes the screens of a complete rollout and returns its record; a terminal last action ends it."""
    entries = []
    terminated = bool(actions) and actions[-1]["type"] in ("terminate", "answer")
    for step, action in enumerate(actions):
        folder = row / task_id / f"step_{step:03d}"
        save(folder / "frame.png", screen(step))
        entry: dict[str, Any] = {
            "step": step,
            "frame": f"{task_id}/step_{step:03d}/frame.png",
            "agent_response": "Action.",
            "agent_evidence": f"{task_id}/step_{step:03d}/agent_evidence.json",
            "semantic_action": action,
        }
        if terminated and step == len(actions) - 1:
            entry["terminated"] = True
        else:
            entry["pred_png"] = f"wm_cache/{task_id}/step_{step:03d}/pred.png"
        entries.append(entry)
    save(row / task_id / "final_frame.png", screen(len(actions) - terminated))
    return {
        "task_id": task_id,
        "instruction": "Delete the entry.",
        "step_budget": budget,
        "run_sha256": RUN_SHA256,
        "complete": True,
        "error": None,
        "failure_class": None,
        "terminal_status": "success" if terminated else None,
        "steps_taken": len(entries),
        "total_time_s": 1.0,
        "trajectory": entries,
    }


def failed(row: Path, task_id: str, reached: int, kind: str, error: str) -> dict[str, Any]:
    """The record of a rollout that failed at step `reached`, after as many good ones."""
    record = complete(row, task_id, [TAP] * (reached + 1))
    record["trajectory"][-1].update(wm_error=error, failure_class=kind)
    record["trajectory"][-1].pop("pred_png")
    return {**record, "complete": False, "error": error, "failure_class": kind}


def online_row(row: Path, ids: tuple[str, ...] = ("full", "stopped", "at_once", "model", "infra")) -> dict[str, Any]:
    """Writes rollout_results.json with a task of each kind (see the ids) and returns its content."""
    made = {
        "full": lambda: complete(row, "full", [TAP, BACK, TAP]),
        "stopped": lambda: complete(row, "stopped", [TAP, DONE]),
        "at_once": lambda: complete(row, "at_once", [DONE]),
        "model": lambda: failed(row, "model", 1, "model", "world_model_returned_no_image"),
        "infra": lambda: failed(row, "infra", 2, "infrastructure", "planner_api_error"),
    }
    results: dict[str, Any] = {"_RUN": {"schema": "gui_cc_online_rollout", **RUN, "run_sha256": RUN_SHA256}}
    results |= {task_id: made[task_id]() for task_id in ids}
    write(row, results)
    return results


def offline_row(row: Path, tasks: list[Task]) -> dict[str, Any]:
    """Other people's offline layout: run.json, summary.json and pred.png files, all complete. Returns the samples."""
    samples = {}
    for task in tasks:
        for step in range(2):
            save(row / task.task_id / f"step_{step:03d}" / "pred.png", screen(step + 1))
        steps = [{"step": step, "cached": False} for step in range(2)]
        record = {"sample_id": task.task_id, "run_sha256": RUN_SHA256, "complete": True, "n_steps": 2, "steps": steps}
        samples[task.task_id] = record
    write_offline(row, samples)
    return samples


def write(row: Path, results: dict[str, Any]) -> None:
    """Writes rollout_results.json."""
    row.mkdir(parents=True, exist_ok=True)
    (row / "rollout_results.json").write_text(json.dumps(results))


def write_offline(row: Path, samples: dict[str, Any]) -> None:
    """Writes run.json and summary.json."""
    run = {"schema": "gui_cc_offline_rollout", "model": RUN["model"], "commit": "abc", "run_sha256": RUN_SHA256}
    row.mkdir(parents=True, exist_ok=True)
    (row / "run.json").write_text(json.dumps(run))
    (row / "summary.json").write_text(json.dumps({"run": run, "samples": samples}))
