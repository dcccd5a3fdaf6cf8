"""GUI-CC's acceptance rules on hand-made rows: a good row has no problem, every breach has its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.tiny import gui_cc_rows as rows
from workflow_scripts.failures import InfrastructureFailure
from workflow_scripts.scoring.gui_cc_import import read_row, validate_rollout_row
from workflow_scripts.tasks import Task

IDS = ("full", "stopped", "at_once", "model", "infra")


@pytest.fixture
def online(tmp_path: Path) -> tuple[Path, list[Task], dict[str, Any]]:
    tasks = rows.online_tasks(tmp_path / "data", IDS)
    return tmp_path / "row", tasks, rows.online_row(tmp_path / "row")


def codes(row: Path, tasks: list[Task]) -> list[str]:
    return [problem.code for problem in validate_rollout_row(row, tasks)]


def test_a_good_row_has_no_problem_and_its_episodes_are_aligned(online):
    row, tasks, _ = online
    assert validate_rollout_row(row, tasks) == []
    episodes = read_row(row, tasks)
    shape = {name: (len(e.frames), len(e.actions), e.terminated) for name, e in episodes.items()}
    assert shape == {
        "full": (4, 3, False),
        "stopped": (2, 1, True),
        "at_once": (1, 0, True),
        "model": (2, 1, False),
        "infra": (3, 2, False),
    }
    assert episodes["model"].failure == {"kind": "model", "code": "world_model_returned_no_image"}
    assert episodes["infra"].failure["kind"] == "infrastructure"
    assert episodes["full"].frames[-1].name == "final_frame.png"


def entry(number: int, /, **changes: Any):
    return lambda record, row: record["trajectory"][number].update(changes)


def field(**changes: Any):
    return lambda record, row: record.update(changes)


def without(step: int, key: str):
    return lambda record, row: record["trajectory"][step].pop(key)


def file(name: str, make: Any):
    return lambda record, row: make(row / "full" / name)


def many(record: dict[str, Any], row: Path) -> None:
    record["trajectory"] = rows.complete(row, "full", [rows.TAP] * 26)["trajectory"]


def jpeg(path: Path) -> None:
    rows.screen(0).save(path, format="JPEG")


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (field(step_budget=4), "step_budget_mismatch"),
        (field(run_sha256="other"), "run_mismatch"),
        (field(task_id="stopped"), "task_id_mismatch"),
        (field(complete=None), "complete_not_false"),
        (field(complete=False, error=None, failure_class="model"), "error_missing"),
        (field(complete=False, error="broken", failure_class=None), "failure_class_unknown"),
        (field(complete=False, error="broken", failure_class="infra"), "failure_class_unknown"),
        (field(trajectory=[]), "trajectory_empty"),
        (field(trajectory=None), "trajectory_empty"),
        (entry(1, step=2), "step_not_consecutive"),
        (entry(1, step="1"), "step_not_consecutive"),
        (entry(0, step=False), "step_not_consecutive"),
        (without(1, "semantic_action"), "action_missing"),
        (entry(1, semantic_action={"target": "x"}), "action_missing"),
        (entry(1, frame="/tmp/frame.png"), "frame_not_relative"),
        (entry(1, frame="../row/full/step_001/frame.png"), "frame_not_relative"),
        (entry(1, frame=None), "frame_missing"),
        (file("step_001/frame.png", Path.unlink), "frame_missing"),
        (file("final_frame.png", Path.unlink), "frame_missing"),
        (file("step_001/frame.png", lambda path: path.write_bytes(path.read_bytes()[:60])), "frame_unreadable"),
        (file("step_001/frame.png", jpeg), "frame_unreadable"),
        (entry(1, terminated=True, semantic_action=rows.DONE), "terminated_early"),
        (entry(2, terminated=True), "terminated_without_terminal_action"),
        (many, "budget_exceeded"),
        (many, "too_many_frames"),
    ],
)
def test_every_breach_has_its_name(online, spoil, code):
    row, tasks, results = online
    spoil(results["full"], row)
    rows.write(row, results)
    assert code in codes(row, tasks)
    with pytest.raises(InfrastructureFailure) as caught:
        read_row(row, tasks)
    assert caught.value.code == "invalid_rollout"
    assert code in caught.value.detail["problems"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda results: results.pop("_RUN"), "run_missing"),
        (lambda results: results["_RUN"].update(schema="gui_cc_online_rollout_v2"), "unknown_schema"),
        (lambda results: results["_RUN"].pop("run_sha256"), "run_sha256_missing"),
        (lambda results: results.pop("full"), "record_missing"),
        (lambda results: results.update(full=[]), "record_not_an_object"),
    ],
)
def test_breaches_of_the_row(online, change, code):
    row, tasks, results = online
    change(results)
    rows.write(row, results)
    assert codes(row, tasks) == [code]


def test_a_missing_record_is_an_infrastructure_failure_of_that_task(online):
    row, tasks, results = online
    del results["full"]
    rows.write(row, results)
    assert read_row(row, tasks)["full"].failure == {"kind": "infrastructure", "code": "record_missing"}


def test_files_that_cannot_be_read(tmp_path):
    tasks = rows.online_tasks(tmp_path / "data", ("full",))
    row = tmp_path / "row"
    assert codes(row, tasks) == ["file_missing"]
    row.mkdir()
    (row / "rollout_results.json").write_text('{"_RUN": ')
    assert codes(row, tasks) == ["not_json"]
    (row / "rollout_results.json").write_text("[]")
    assert codes(row, tasks) == ["not_an_object"]


def test_a_budget_that_the_judge_cannot_take(tmp_path):
    tasks = rows.online_tasks(tmp_path / "data", ("full",), step_budget=25)
    results = rows.online_row(tmp_path / "row", ("full",))
    results["full"]["step_budget"] = 25
    rows.write(tmp_path / "row", results)
    assert codes(tmp_path / "row", tasks) == ["budget_too_large"]


def test_offline_layout_of_others(tmp_path):
    tasks = rows.offline_tasks(tmp_path / "data", ("a", "b", "c"))
    row = tmp_path / "row"
    samples = rows.offline_row(row, tasks)
    samples["b"] = {**samples["b"], "complete": False, "error": "empty_completion", "failure_class": "model"}
    samples["b"]["steps"] = [{"step": 0}, {"step": 1, "error": "empty_completion"}]
    samples["c"] = {**samples["c"], "complete": False, "error": "HTTP 503", "failure_class": "infrastructure"}
    rows.write_offline(row, samples)
    assert codes(row, tasks) == []
    episodes = read_row(row, tasks)
    assert [len(episodes[name].frames) for name in "abc"] == [3, 2, 2]
    assert [path.name for path in episodes["a"].true] == ["initial.png", "step_000_after.png", "step_001_after.png"]
    assert episodes["a"].actions[0]["type"] == "tap"
    assert (episodes["b"].failure["kind"], episodes["c"].failure["kind"]) == ("model", "infrastructure")

    (row / "a" / "step_001" / "pred.png").unlink()
    samples["a"]["n_steps"] = 3
    samples["b"]["steps"] = []
    samples["c"]["failure_class"] = None
    rows.write_offline(row, samples)
    found = ["step_count_mismatch", "frame_missing", "failure_step_missing", "failure_class_unknown"]
    assert codes(row, tasks) == found
    run = json.loads((row / "run.json").read_text())
    (row / "run.json").write_text(json.dumps({**run, "schema": "x", "run_sha256": "y"}))
    assert {"unknown_schema", "run_mismatch"} <= set(codes(row, tasks))


def test_a_frame_may_be_of_another_mode(online):
    row, tasks, _ = online
    Image.new("RGBA", rows.SIZE).save(row / "full" / "step_001" / "frame.png")
    assert codes(row, tasks) == []
