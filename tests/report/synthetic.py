"""Rollouts and scores of any size without a workflow: records of the contract's form, made in a second.

Screens are one tiny PNG; scores come from the real `row_scores` over made-up transitions. Left out: evidence,
and identities that hold (nothing here is meant to be rolled out again).
"""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

from PIL import Image

from tests.workflow.conftest import REPOSITORY, write_tasks
from workflow_scripts import config as configuration
from workflow_scripts import row_scores, tables
from workflow_scripts.identity import seed_of
from workflow_scripts.plan import Row, Rows
from workflow_scripts.tasks import Task

SCORES = Path("results/scores")
TABLES = Path("results/tables")
FAILS_EVERY = 7
"""Every such task of a row but the first row's ends in a model failure half-way."""


def make(root: Path, tasks: int, steps: int, models: tuple[str, ...] = ("gworld", "copy_last", "blank")) -> list[Row]:
    """Rows of offline tasks with their scores and tables, in the current directory, which must be `root`."""
    write_tasks(root / "set", "offline", tasks, steps)
    picture = io.BytesIO()
    Image.new("RGB", (64, 64), "grey").save(picture, format="PNG")
    for number in range(tasks):
        for step in range(steps):
            (root / f"set/offline_data/t{number:03d}/step_{step:03d}_after.png").write_bytes(picture.getvalue())
    rows = list(Rows(load({"model": list(models), "tasks": "set"}), Path("set")))
    for position, row in enumerate(rows):
        for number, task in enumerate(row.tasks):
            fails = position > 0 and number % FAILS_EVERY == 3
            _rollout(row, task, position, steps // 2 if fails else None, picture.getvalue())
        folder = SCORES / row.model / row.setting
        row_scores.main(row, [], [], "identity", folder, folder / "scores.json")
    TABLES.mkdir(parents=True, exist_ok=True)
    names = {name: TABLES / f"offline.{name}" for name in tables.FORMATS}
    outputs = {**names, "about": TABLES / "offline.json"}
    outputs |= {name: TABLES / f"offline_{name}.csv" for name in ("pairs", "costs")}
    tables.main([SCORES / row.model / row.setting / "scores.json" for row in rows], outputs)
    return rows


def load(changes: dict[str, Any]) -> configuration.Config:
    """The default configuration with changes."""
    models = configuration.read_yaml(REPOSITORY / "config/models.yaml")
    return configuration.load({**configuration.read_yaml(REPOSITORY / "config/config.yaml"), **changes}, models)


def _rollout(row: Row, task: Task, quality: int, fails_at: int | None, picture: bytes) -> None:
    folder = row.folder / task.task_id
    dice = random.Random(seed_of(row.model, task.task_id))
    entries: list[dict[str, Any]] = []
    frames: list[dict[str, Any]] = []
    transitions: list[dict[str, Any]] = []
    for step in range(task.step_budget if fails_at is None else fails_at + 1):
        here = folder / f"step_{step:03d}"
        here.mkdir(parents=True)
        failed = step == fails_at
        action = task.actions[step].semantic(task.width, task.height)
        (here / "frame.png").write_bytes(picture)
        entry = {"step": step, "frame": f"{task.task_id}/{here.name}/frame.png", "semantic_action": action}
        outcome = {"wm_error": "no_image", "failure_class": "model"} if failed else {"supported": True}
        entries.append({**entry, "agent_response": "Tap.", **outcome})
        frames.append({"path": entry["frame"], "size": [64, 64]})
        timing = {"timing": {"seconds": 0.5}}
        failure = {"failure": {"kind": "model", "code": "no_image", "message": "none", "detail": {}}} if failed else {}
        _write(here / "action.json", {"schema": 1, "status": "acted", "plan": "A plan.", **timing})
        status = "failed" if failed else "predicted"
        _write(here / "prediction.json", {"schema": 1, "status": status, "evidence": {}, **timing, **failure})
        if not failed:
            score = max(0.0, min(1.0, 1 - quality * dice.random()))
            values = {**dict.fromkeys(("ssim", "ms_ssim", "edges", "change_aware", "changed_iou"), score), "stay": None}
            zero = {name: None if value is None else 0.0 for name, value in values.items()}
            transitions.append({"step": step, "changed": True, "scores": values, "copy": zero, "blank": zero})
    (folder / "final_frame.png").write_bytes(picture)
    frames.append({"path": f"{task.task_id}/final_frame.png", "size": [64, 64]})
    failed = fails_at is not None
    record = {
        "schema": 1,
        "task_id": task.task_id,
        "step_budget": task.step_budget,
        "run_sha256": row.run_sha256,
        "complete": not failed,
        "error": "no_image" if failed else None,
        "failure": {"kind": "model", "code": "no_image", "message": "none", "detail": {}} if failed else None,
        "failure_class": "model" if failed else None,
        "end_reason": "model_failure" if failed else "actions_used",
        "trajectory": entries,
        "frames": frames,
    }
    _write(folder / "trajectory.json", record)
    true = [task.image, *(task.after_image(step) for step in range(len(entries) - failed))]
    measured = {"schema": 1, "true_screens": True, "transitions": transitions, "true": [str(path) for path in true]}
    _write(SCORES / row.model / row.setting / task.task_id / "measured.json", measured)


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
