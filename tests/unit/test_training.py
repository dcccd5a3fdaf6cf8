"""Training without a model: the division into jobs, identities, the numbers of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from workflow_scripts import config as configuration
from workflow_scripts.curves import running_mean
from workflow_scripts.evaluate import compare
from workflow_scripts.failures import InvalidInput
from workflow_scripts.train_rows import MAX_DEPTH, RunRow

FOLDER = Path("results/train/a")


def row(**fields: Any) -> RunRow:
    return configuration.load({"runs": {"a": fields}}, {}).train_row("a")


def phases(*iterations: int) -> list[dict[str, Any]]:
    return [{"phase": "developer", "iterations": count} for count in iterations]


def test_jobs_end_at_multiples_and_at_the_end():
    assert row(schedule=phases(7), iterations_per_job=3).ends() == [3, 6, 7]
    assert row(schedule=phases(3), iterations_per_job=3).ends() == [3]
    assert row(schedule=phases(7, 4), iterations_per_job=3).ends() == [3, 6, 9, 11]
    long = row(schedule=phases(2000, 999), iterations_per_job=1).ends()
    assert len(long) <= MAX_DEPTH
    assert long[-1] == 2999
    assert row(schedule=phases(7), iterations_per_job=3).end_before(6) == 3
    assert row(schedule=phases(7), iterations_per_job=3).end_before(2) is None


def test_how_a_run_is_carried_out_changes_no_identity():
    plain = row().train(FOLDER).identity()
    assert row(iterations_per_job=1, collectors=3, evaluation={"pages": 3}).train(FOLDER).identity() == plain
    assert row(seed=1).train(FOLDER).identity() != plain
    assert row(warm_start={"mode": "full"}).train(FOLDER).model.base == "results/train/a/warm_start/base"
    assert row(warm_start={"steps": 9}).warm_start_identity() != row(warm_start={"steps": 8}).warm_start_identity()


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"iterations": 3}, "runs.a.iterations"),
        ({"sampling": {"temprature": 1}}, "runs.a.sampling.temprature"),
        ({"evaluation": {"repeats": 1}}, "runs.a.evaluation.repeats"),
        ({"export_iteration": "best"}, "runs.a"),
        ({"schedule": [{"phase": "critic", "iterations": 1, "every": 2}]}, "runs.a.schedule"),
    ],
)
def test_wrong_rows_are_refused_by_key(fields, key):
    with pytest.raises(InvalidInput) as error:
        row(**fields)
    assert error.value.key.startswith(key)


def test_validation_pages_are_none_of_the_test_pages():
    rules = row(evaluation={"pages": 3, "every": 1, "validation_pages": 2})
    test, validation = ({group["task_id"] for group in rules.page_groups(kind)} for kind in (False, True))
    assert len(test) == 9
    assert len(validation) == 6
    assert not test & validation
    assert all("/heldout/" in name for name in test | validation)


def episode(task: int, *rewards: float) -> dict[str, Any]:
    drafts = [{"role": "developer", "parts": {"look": reward}} for reward in rewards]
    return {"task_id": f"t{task}", "level": "easy" if task % 2 else "hard", "rewards": list(rewards), "turns": drafts}


def test_a_reward_that_rises_alone_is_marked():
    before = [episode(task, 0.1, 0.2 + task / 100) for task in range(8)]
    after = [episode(task, 0.1, 0.5 + task / 100) for task in range(8)]
    flat, risen = [(0.3, 0.3)] * 8, [(0.3, 0.4 + task / 100) for task in range(8)]
    alone = compare({"start": before, "last": after}, {"start": flat, "last": flat}, 0)
    assert alone["differences"]["last"]["reward_alone"]
    assert len(alone["notes"]) == 1
    both = compare({"start": before, "last": after}, {"start": flat, "last": risen}, 0)
    assert not both["differences"]["last"]["reward_alone"]
    found = both["differences"]["last"]["all"]
    assert found["multi_turn"]["difference"] == pytest.approx(0.3)
    assert found["single_turn"]["difference"] == 0
    assert both["policies"]["last"]["easy"]["parts/look"] == pytest.approx(0.5 + (1 + 3 + 5 + 7) / 400)


def test_running_mean_begins_with_what_there_is():
    assert running_mean([1, 3, 5, 7], 2) == [1, 2, 4, 6]
