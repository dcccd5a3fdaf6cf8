"""Reads and checks rows of results in GUI-CC's layout: ours, and other people's.

    online    <row>/rollout_results.json + <row>/<task>/{step_NNN/frame.png, final_frame.png}
    offline   <row>/{run.json, summary.json} + <row>/<sample>/step_NNN/pred.png      (other people's)
              <row>/rollout_results.json as online                                   (ours)

`validate_rollout_row` names every breach of a rule by which GUI-CC's evaluator accepts a row; `read_row` turns a row
into episodes. Left out: GUI-CC's own judge caches and evaluation files (another judge's words are not ours to reuse).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..failures import InfrastructureFailure
from ..tasks import Task
from .episodes import FAILURE_CLASSES, MAX_FRAMES, Episode, Problem, build, undecodable

SCHEMAS = {"online": "gui_cc_online_rollout", "offline": "gui_cc_offline_rollout"}


def validate_rollout_row(folder: Path, tasks: Sequence[Task]) -> list[Problem]:
    """Every breach of GUI-CC's acceptance rules in a row; empty where its evaluator would score it as it is.

    Args:
        folder: the row: ``outputs/online/<model>/<nohist|fullhist>`` or ``results/rollouts/{model}/{setting}``.
        tasks: the tasks asked for; records of others are not looked at.

    A failed rollout is no breach: it needs ``complete: false``, ``error`` and ``failure_class``.
    """
    return _row(folder, tasks)[1]


def read_row(folder: Path, tasks: Sequence[Task]) -> dict[str, Episode]:
    """The row's episodes by task id. Raises InfrastructureFailure (``invalid_rollout``) that lists all problems.

    A task without any record is an infrastructure failure of that episode, as in GUI-CC, not a problem of the row.
    """
    episodes, problems = _row(folder, tasks)
    problems = [problem for problem in problems if problem.code != "record_missing"]
    if problems:
        listed = "\n  ".join(map(str, problems[:20]))
        more = f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
        message = f"{folder} breaks {len(problems)} rules:\n  {listed}{more}"
        raise InfrastructureFailure("invalid_rollout", message, problems=[problem.code for problem in problems])
    for task in tasks:
        if task.task_id not in episodes:
            failure = {"kind": "infrastructure", "code": "record_missing"}
            episodes[task.task_id] = Episode(task, (task.image,), (), failure=failure)
    return episodes


def _row(folder: Path, tasks: Sequence[Task]) -> tuple[dict[str, Episode], list[Problem]]:
    if (folder / "rollout_results.json").is_file() or not (folder / "summary.json").is_file():
        return _online_layout(folder, tasks)
    return _offline_layout(folder, tasks)


def _online_layout(folder: Path, tasks: Sequence[Task]) -> tuple[dict[str, Episode], list[Problem]]:
    path = folder / "rollout_results.json"
    problems: list[Problem] = []
    results = _object(path, problems)
    if results is None:
        return {}, problems
    run = results.get("_RUN")
    run_sha256 = None
    if not isinstance(run, Mapping):
        problems.append(Problem("run_missing", f"{path}: _RUN", "expected an object"))
    else:
        if run.get("schema") not in SCHEMAS.values():
            message = f"expected {' or '.join(SCHEMAS.values())}, found {run.get('schema')!r}"
            problems.append(Problem("unknown_schema", f"{path}: _RUN.schema", message))
        run_sha256 = run.get("run_sha256")
        if not isinstance(run_sha256, str) or not run_sha256:
            message = f"expected a digest, found {run_sha256!r}"
            problems.append(Problem("run_sha256_missing", f"{path}: _RUN.run_sha256", message))
            run_sha256 = None
    episodes: dict[str, Episode] = {}
    for task in tasks:
        if task.step_budget + 1 > MAX_FRAMES:
            message = f"{task.step_budget} steps are {task.step_budget + 1} frames, the judge takes {MAX_FRAMES}"
            problems.append(Problem("budget_too_large", f"task {task.task_id}: step_budget", message))
        if task.task_id not in results:
            problems.append(Problem("record_missing", f"{path}: {task.task_id}", "no record of this task"))
            continue
        episode, found = build(folder, task, results[task.task_id], run_sha256)
        problems += found
        frames = _frame_count(results[task.task_id])
        if frames > MAX_FRAMES:
            message = f"{frames} frames, the judge takes {MAX_FRAMES}"
            problems.append(Problem("too_many_frames", f"{path}: {task.task_id}: trajectory", message))
        if episode is not None:
            episodes[task.task_id] = episode
    return episodes, problems


def _frame_count(record: Any) -> int:
    """Frames of a rollout record: one per entry, and the final one unless a terminal action ended it."""
    entries = record.get("trajectory") if isinstance(record, Mapping) else None
    if not isinstance(entries, list) or not entries:
        return 0
    return len(entries) + (not (isinstance(entries[-1], Mapping) and entries[-1].get("terminated")))


def _offline_layout(folder: Path, tasks: Sequence[Task]) -> tuple[dict[str, Episode], list[Problem]]:
    problems: list[Problem] = []
    run, summary = _object(folder / "run.json", problems), _object(folder / "summary.json", problems)
    run_sha256 = None
    if run is not None:
        if run.get("schema") != SCHEMAS["offline"]:
            message = f"expected {SCHEMAS['offline']}, found {run.get('schema')!r}"
            problems.append(Problem("unknown_schema", f"{folder / 'run.json'}: schema", message))
        run_sha256 = run.get("run_sha256")
    samples = summary.get("samples") if summary is not None else None
    if summary is not None and not isinstance(samples, Mapping):
        problems.append(Problem("samples_missing", f"{folder / 'summary.json'}: samples", "expected an object"))
    if not isinstance(samples, Mapping):
        return {}, problems
    episodes: dict[str, Episode] = {}
    for task in tasks:
        where = f"{folder / 'summary.json'}: samples.{task.task_id}"
        record = samples.get(task.task_id)
        if not isinstance(record, Mapping):
            problems.append(Problem("record_missing", where, "no record of this sample"))
            continue
        if run_sha256 and record.get("run_sha256") != run_sha256:
            message = f"expected run.json's {run_sha256!r}, found {record.get('run_sha256')!r}"
            problems.append(Problem("run_mismatch", f"{where}.run_sha256", message))
        episodes[task.task_id] = _sample(folder, task, record, where, problems)
    return episodes, problems


def _sample(folder: Path, task: Task, record: Mapping[str, Any], where: str, problems: list[Problem]) -> Episode:
    steps = len(task.actions)
    failure: dict[str, Any] | None = None
    if record.get("complete") is not True:
        kind = record.get("failure_class")
        if kind not in FAILURE_CLASSES:
            message = f"expected model or infrastructure, found {kind!r}"
            problems.append(Problem("failure_class_unknown", f"{where}.failure_class", message))
            kind = "infrastructure"
        error = record.get("error")
        if not isinstance(error, str) or not error:
            message = f"a failed rollout names its error, found {error!r}"
            problems.append(Problem("error_missing", f"{where}.error", message))
        failure = {"kind": kind, "code": str(error or "unknown")}
        made = record.get("steps")
        last = made[-1].get("step") if isinstance(made, list) and made and isinstance(made[-1], Mapping) else None
        if kind == "model" and type(last) is not int:
            message = "a model failure's last entry says at which step"
            problems.append(Problem("failure_step_missing", f"{where}.steps", message))
        steps = min(last, steps) if isinstance(last, int) else 0
    elif record.get("n_steps", steps) != steps:
        message = f"the sample has {steps} recorded actions, found {record.get('n_steps')!r}"
        problems.append(Problem("step_count_mismatch", f"{where}.n_steps", message))
    frames = [task.image]
    for step in range(steps):
        path = folder / task.task_id / f"step_{step:03d}" / "pred.png"
        reason = undecodable(path) if path.is_file() else "no such file"
        if reason:
            code = "frame_unreadable" if path.is_file() else "frame_missing"
            if failure is None or failure["kind"] == "model":
                problems.append(Problem(code, str(path), reason))
            break
        frames.append(path)
    reached = len(frames) - 1
    actions = tuple(action.semantic(task.width, task.height) for action in task.actions[:reached])
    true = (task.image, *(task.after_image(step) for step in range(reached)))
    reason = "actions_used" if failure is None else f"{failure['kind']}_failure"
    return Episode(task, tuple(frames), actions, true, failure, end_reason=reason)


def _object(path: Path, problems: list[Problem]) -> Mapping[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        problems.append(Problem("file_missing", str(path), error.strerror or str(error)))
        return None
    except ValueError as error:
        problems.append(Problem("not_json", str(path), str(error)))
        return None
    if not isinstance(value, Mapping):
        problems.append(Problem("not_an_object", str(path), f"found {type(value).__name__}"))
        return None
    return value
