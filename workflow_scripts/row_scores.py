"""Rule `row_scores`: everything one row scored, in one record that tables and report read.

Official metrics per judge exist where that judge has scored all tasks (and, offline, where both backbones are
configured, for Overall); local metrics always. Per task the means, per transition the values; survival, first failure,
partial credit and costs. Left out: comparison of rows, which is the tables' business.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .chain import read_record
from .judge import episode_of
from .records import SCHEMA_VERSION, write_json
from .scoring.aggregate import (
    METRICS,
    SURVIVES,
    Course,
    EpisodeScores,
    aggregate_row,
    agreement,
    local_mean,
    partial_credit,
    rating_level,
    ratings_of,
    score_episode,
    survival,
)
from .scoring.costs import row_costs
from .scoring.judges import call_path, read_call
from .scoring.measure import steps_of
from .scoring.metrics import VERSION

if TYPE_CHECKING:
    from .plan import Row
    from .scoring.judges import JudgeSettings
    from .tasks import Track

FEATURES = ("S_sig", "S_dino")


def main(
    row: Row, judges: Sequence[JudgeSettings], features: Collection[str], identity: str, scores: Path, output: Path
) -> str:
    """Makes `output`: results/scores/{model}/{setting}/scores.json. `features` are those of FEATURES with weights."""
    left_out = [name for name in FEATURES if name not in features]
    names = [task.task_id for task in row.tasks]
    measured = {name: read_record(scores / name / "measured.json") for name in names}
    local: dict[str, EpisodeScores] = {}
    official: dict[str, dict[str, EpisodeScores]] = {judge.name: {} for judge in judges}
    ratings: dict[str, dict[str, float]] = {judge.name: {} for judge in judges}
    tasks: dict[str, Any] = {}
    for task in row.tasks:
        episode, trajectory = episode_of(row, task)
        steps = _steps(measured[task.task_id]["transitions"])
        local[task.task_id] = EpisodeScores(task.task_id, {}, steps, episode.failure)
        shown: dict[str, Any] = {
            "end_reason": trajectory["end_reason"],
            "steps": len(episode.transitions),
            "failure": trajectory["error"],
            # What a whole rollout has: on the offline track all recorded actions, online those that were taken.
            "planned": task.step_budget if row.track == "offline" else len(episode.transitions) + bool(episode.failure),
            "apps": list(task.apps),
            "local": {name: _mean(values) for name, values in steps.items()},
            "transitions": steps,
            "judged": {},
        }
        for judge in judges:
            judged = _calls(scores, task.task_id, judge.name)
            scored = score_episode(episode, judged, {key: steps[key] for key in FEATURES if key in steps}, left_out)
            official[judge.name][task.task_id] = scored
            for key, value in ratings_of(judged).items():
                ratings[judge.name][f"{task.task_id}/{key}"] = value
            shown["judged"][judge.name] = {
                "metrics": dict(scored.metrics),
                "steps": {key: list(value) for key, value in scored.steps.items()},
                "missing": list(scored.missing),
            }
        tasks[task.task_id] = shown
    every = sorted({name for episode in local.values() for name in episode.steps})
    record = {
        "schema": SCHEMA_VERSION,
        "record": "row_scores",
        "identity": identity,
        "model": row.model,
        "setting": row.setting,
        "repeat": row.repeat,
        "track": row.track,
        "partial": row.partial,
        "run_sha256": row.run_sha256,
        "versions": {"metrics": VERSION, "judges": {judge.name: judge.identity() for judge in judges}},
        "requested": names,
        "total_tasks": row.total_tasks,
        "model_failures": _count(tasks[name]["failure"] for name in names),
        "local": {name: asdict(local_mean(names, local, name)) for name in every},
        "official": {
            judge: asdict(aggregate_row(row.track, names, found, full=not row.partial))
            for judge, found in official.items()
        },
        "courses": _courses(names, local, official, tasks, measured),
        "agreement": _agreement(ratings),
        "costs": {part: asdict(cost) for part, cost in row_costs(row.folder, scores).items()},
        "tasks": tasks,
    }
    write_json(output, record)
    return f"{len(names)} tasks"


def _steps(transitions: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Values per transition by name, as `scoring.measure.steps_of` names them, without those that have no value."""
    steps = steps_of({"transitions": transitions}) if transitions else {}
    found = {name: list(values) for name, values in steps.items() if any(value is not None for value in values)}
    if transitions:
        found["changed"] = [float(transition["changed"]) for transition in transitions]
    return found


def _calls(scores: Path, task_id: str, judge: str) -> dict[str, dict[str, Any]]:
    judged = read_record(scores / task_id / "judge" / judge / "judged.json")
    found = {name: read_call(call_path(scores, task_id, judge, name), made) for name, made in judged["calls"].items()}
    return {name: record for name, record in found.items() if record is not None}


def _courses(
    names: Sequence[str],
    local: Mapping[str, EpisodeScores],
    official: Mapping[str, Mapping[str, EpisodeScores]],
    tasks: Mapping[str, Any],
    measured: Mapping[str, Any],
) -> dict[str, Any]:
    """Survival, first failure and partial credit, by the local course `consistent` and by each judge's S_ad."""
    sources = {"consistent": ("consistent", local)} if any(m["true_screens"] for m in measured.values()) else {}
    sources |= {f"S_ad:{judge}": ("S_ad", found) for judge, found in official.items()}
    result = {}
    for label, (metric, scores) in sources.items():
        threshold = SURVIVES[metric]
        courses = {
            name: Course(scores[name].steps.get(metric, ()), failed=tasks[name]["failure"] is not None)
            for name in names
        }
        planned = {name: tasks[name]["planned"] for name in names}
        result[label] = {
            "threshold": threshold,
            "survival": [asdict(point) for point in survival(list(courses.values()), threshold)],
            "first_failure": {name: course.first_failure(threshold) for name, course in courses.items()},
            "partial_credit": _mean([partial_credit(courses[name], planned[name]) for name in names]),
        }
    return result


def _agreement(ratings: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Agreement of the judges on everything that two or more of them rated, nominal and ordinal ratings apart."""
    if len(ratings) < 2:
        return {}
    result: dict[str, Any] = {}
    levels: tuple[Literal["nominal", "ordinal"], ...] = ("nominal", "ordinal")
    for level in levels:
        keys = sorted({key for rated in ratings.values() for key in rated if _level(key) == level})
        if keys:
            result[level] = asdict(agreement([[rated.get(key) for key in keys] for rated in ratings.values()], level))

    return result


def _level(key: str) -> str:
    return rating_level(key.split("/", 1)[1])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _count(codes: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for code in codes:
        if code is not None:
            found[code] = found.get(code, 0) + 1
    return found


def official_metrics(track: Track) -> tuple[str, ...]:
    """The official metrics of a track in the order of the tables, Overall last."""
    return (*METRICS[track], "Overall")
