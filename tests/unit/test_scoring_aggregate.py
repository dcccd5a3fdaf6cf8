"""Aggregation: exact numbers of every formula, the fixed denominator, what blocks a row, and the statistics."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import gui_cc_rows as rows
from workflow_scripts.scoring import aggregate
from workflow_scripts.scoring.aggregate import (
    METRICS,
    Course,
    EpisodeScores,
    aggregate_row,
    agreement,
    interval,
    local_mean,
    paired,
    partial_credit,
    relative,
    score_episode,
    survival,
)
from workflow_scripts.scoring.episodes import Episode
from workflow_scripts.scoring.gui_cc_import import read_row

IDS = ("full", "stopped", "at_once", "model", "infra")


@pytest.fixture
def online(tmp_path: Path) -> dict[str, Episode]:
    tasks = rows.online_tasks(tmp_path / "online", IDS)
    rows.online_row(tmp_path / "online_row")
    return read_row(tmp_path / "online_row", tasks)


@pytest.fixture
def offline(tmp_path: Path) -> Episode:
    tasks = rows.offline_tasks(tmp_path / "offline", ("a",))
    rows.offline_row(tmp_path / "offline_row", tasks)
    return read_row(tmp_path / "offline_row", tasks)["a"]


def record(metric: str, **result: Any) -> dict[str, Any]:
    result.setdefault("scores", {})
    return {"metric": metric, "result": result}


def judged(
    steps: dict[str, list[float]], cp: float = 0.6, rd: float = 1.0, passed: tuple[int, ...] = (1, 0)
) -> dict[str, Any]:
    """Judge records of an online episode."""
    found = {
        f"{metric}_step_{step:03d}": record(metric, scores={metric: value})
        for metric, values in steps.items()
        for step, value in enumerate(values)
    }
    found |= {"S_cp": record("S_cp", scores={"S_cp": cp}), "S_rd": record("S_rd", scores={"S_rd": rd})}
    return found | {f"S_mp_step_{k:03d}": record("S_mp", passed=value) for k, value in enumerate(passed)}


FULL = {"S_ad": [0.8, 0.4, 0.0], "S_id": [1.0, 0.0, 1.0], "S_use": [1.0, 0.8, 0.6]}


def test_an_online_episode(online):
    scores = score_episode(online["full"], judged(FULL))
    assert scores.missing == ()
    expected = {"S_ad": 0.4, "S_id": 2 / 3, "S_use": 0.8, "S_cp": 0.6, "S_rd": 1.0, "S_mp": 0.5}
    assert scores.metrics == pytest.approx(expected)
    assert scores.steps["S_ad"] == [0.8, 0.4, 0.0]
    assert aggregate.overall(scores.metrics) == pytest.approx(sum(expected.values()) / 6)


def test_an_offline_episode(offline):
    found: dict[str, Any] = {}
    for step, (ele, lay, ad) in enumerate([(1.0, 0.5, 0.8), (0.0, 0.5, 0.6)]):
        found[f"S_ele_lay_step_{step:03d}"] = record("S_ele_lay", scores={"S_ele": ele, "S_lay": lay})
        found[f"S_ad_step_{step:03d}"] = record("S_ad", scores={"S_ad": ad})
        found[f"S_id_step_{step:03d}"] = record("S_id", scores={"S_id": 1.0})
        found[f"S_use_step_{step:03d}"] = record("S_use", scores={"S_use": 0.2})
    found |= {name: record(name, scores={name: 0.4}) for name in ("S_cp", "S_rd")}
    found |= {"S_rap_step_000": record("S_rap", passed=1), "S_rap_step_001": record("S_rap", passed=0)}
    measured = {"S_sig": [0.9, 0.7], "S_dino": [0.5, 0.5], "change_aware": [0.3, None]}
    scores = score_episode(offline, found, measured)
    expected = {"S_ele": 0.5, "S_lay": 0.5, "S_sig": 0.8, "S_dino": 0.5, "S_ad": 0.7, "S_id": 1.0, "S_use": 0.2}
    assert scores.metrics == pytest.approx({**expected, "S_cp": 0.4, "S_rd": 0.4, "S_rap": 0.5})
    assert list(scores.metrics) == list(METRICS["offline"])
    assert score_episode(offline, found).missing == ("S_sig: not measured", "S_dino: not measured")
    bad = score_episode(offline, found, {"S_sig": [0.9, math.nan], "S_dino": [0.5]})
    assert bad.missing == ("S_sig: score 1 is nan", "S_dino: 1 scores for 2 transitions")
    first_failed = {**found, "S_rap_step_000": record("S_rap", passed=0)}
    assert score_episode(offline, first_failed, measured).metrics["S_rap"] == 0.0


def test_terminating_at_once_scores_zero_per_step_and_is_judged_as_a_whole(online):
    scores = score_episode(online["at_once"], judged({}, cp=1.0, rd=0.4, passed=(1, 1)))
    expected = {"S_ad": 0.0, "S_id": 0.0, "S_use": 0.0, "S_cp": 1.0, "S_rd": 0.4, "S_mp": 1.0}
    assert scores.metrics == expected
    assert scores.missing == ()


def test_failures(online):
    failed = score_episode(online["model"], {}, {"change_aware": [0.5]})
    assert failed.metrics == dict.fromkeys(METRICS["online"], 0.0)
    assert failed.failure["code"] == "world_model_returned_no_image"
    assert failed.planned == 2
    stopped = score_episode(online["infra"], {})
    assert stopped.metrics == {}
    assert stopped.missing == ("the rollout stopped: planner_api_error",)


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 1.1, "0.8", True, None])
def test_a_score_that_is_none_blocks_its_episode(online, value):
    found = judged(FULL)
    found["S_ad_step_001"] = record("S_ad", scores={"S_ad": value})
    scores = score_episode(online["full"], found)
    assert scores.metrics == {}
    assert len(scores.missing) == 1
    assert scores.missing[0].startswith("S_ad_step_001: S_ad is")


def test_missing_calls_block_their_episode(online):
    for name in ("S_use_step_002", "S_cp", "S_mp_step_001"):
        found = judged(FULL)
        del found[name]
        assert len(score_episode(online["full"], found).missing) == 1
    assert len(score_episode(online["full"], {}).missing) == 9 + 2 + 1
    found = {**judged(FULL), "S_mp_step_000": {"metric": "S_mp", "result": None}}
    assert score_episode(online["full"], found).missing == ("S_mp_step_000: no verdict",)


def test_a_task_without_milestones_defines_no_milestone_score(online):
    task = replace(online["full"].task, milestones=())
    scores = score_episode(replace(online["full"], task=task), judged(FULL, passed=()))
    assert scores.missing == ()
    assert scores.metrics["S_mp"] is None
    row = aggregate_row("online", ["full"], {"full": scores}, full=True)
    assert (row.status, row.metrics["S_mp"], row.overall, row.undefined) == ("complete", None, None, {"S_mp": 1})
    assert row.metrics["S_cp"] == 0.6


# ---- rows --------------------------------------------------------------------------------------------------------


def uniform(task_id: str, value: float, **more: Any) -> EpisodeScores:
    return EpisodeScores(task_id, dict.fromkeys(METRICS["online"], value), **more)


def test_a_model_failure_stays_in_the_denominator():
    zero = uniform("b", 0.0, failure={"kind": "model", "code": "no_html"})
    row = aggregate_row(
        "online", ["a", "b", "c"], {"a": uniform("a", 1.0), "b": zero, "c": uniform("c", 0.5)}, full=True
    )
    assert (row.status, row.scope, row.requested) == ("complete", "full", 3)
    assert row.metrics == dict.fromkeys(METRICS["online"], 0.5)
    assert row.overall == 0.5
    assert row.model_failures == {"no_html": 1}
    assert row.percent()["Overall"] == 50.0


def test_whatever_is_missing_blocks_the_row_and_says_how_to_go_on():
    blocked = EpisodeScores("b", {}, missing=("S_cp: not judged",))
    scores = {"a": uniform("a", 1.0), "b": blocked}
    row = aggregate_row("online", ["a", "b", "c"], scores, full=True, command="snakemake scores --config models=m")
    assert row.status == "blocked"
    assert row.blocked == {"b": ("S_cp: not judged",), "c": ("no rollout",)}
    assert row.command == "snakemake scores --config models=m"
    assert row.metrics == dict.fromkeys(METRICS["online"])
    assert row.overall is None


def test_a_subset_is_partial_and_gives_no_overall():
    scores = {"a": uniform("a", 0.25), "other": uniform("other", 1.0)}
    row = aggregate_row("online", ["a"], scores, full=False)
    assert (row.scope, row.status, row.command) == ("partial", "complete", None)
    assert row.metrics["S_ad"] == 0.25
    assert row.overall is None
    assert row.percent() == {**dict.fromkeys(METRICS["online"], 25.0), "Overall": None}
    with pytest.raises(ValueError, match="at least one"):
        aggregate_row("online", [], {}, full=False)


def test_nothing_is_rounded_before_the_end():
    values = (0.1, 0.2, 0.3, 0.4, 0.5, 0.600001)
    scores = {"a": EpisodeScores("a", dict(zip(METRICS["online"], values, strict=True)))}
    row = aggregate_row("online", ["a"], scores, full=True)
    assert row.overall == pytest.approx(sum(values) / 6, abs=1e-12)
    assert row.percent()["Overall"] == 35.0
    assert aggregate.percent(0.70949) == 70.9
    assert aggregate.percent(None) is None


def test_local_means():
    scores = {
        "a": EpisodeScores("a", {}, {"change_aware": [0.2, None, 0.6]}),
        "b": EpisodeScores("b", {}, {"change_aware": [None]}),
        "c": EpisodeScores("c", {}, {"change_aware": [1.0]}, failure={"kind": "model"}),
    }
    mean = local_mean(["a", "b", "c", "d"], scores, "change_aware")
    assert (mean.value, mean.tasks) == (pytest.approx(0.2), 2)
    assert local_mean(["b"], scores, "change_aware").value is None


def test_relative_to_the_baselines():
    row = relative(0.7, {"copy_last": 0.6, "blank": 0.1, "browser": 1.0})
    assert row == pytest.approx({"over_copy_last": 0.1, "over_blank": 0.6, "over_browser": -0.3, "skill": 0.25})
    assert relative(0.7, {"copy_last": 0.6}) == {
        "over_copy_last": pytest.approx(0.1),
        "over_blank": None,
        "over_browser": None,
        "skill": None,
    }
    assert relative(None, {"copy_last": 0.6, "browser": 1.0})["skill"] is None
    assert relative(0.5, {"copy_last": 1.0, "browser": 1.0})["skill"] is None


# ---- courses -----------------------------------------------------------------------------------------------------


def test_first_failure():
    assert Course([0.9, 0.7, 0.2, 0.1]).first_failure(0.7) == 2
    assert Course([0.9, None, 0.8]).first_failure(0.7) is None
    assert Course([0.9, 0.8], failed=True).first_failure(0.7) == 2
    assert Course([], failed=True).first_failure(0.7) == 0
    assert Course([]).first_failure(0.7) is None


def test_survival():
    # Fails at its 1st transition; ends consistent after 1; fails at its 3rd; a model failure at its 2nd.
    courses = [Course([0.0, 1.0]), Course([1.0]), Course([1.0, 1.0, 0.0]), Course([1.0], failed=True)]
    curve = survival(courses, 0.5)
    assert [point.step for point in curve] == [0, 1, 2, 3]
    assert [point.share for point in curve] == [1.0, 0.75, 0.5, 0.25]
    assert [(point.at_risk, point.failed) for point in curve[1:]] == [(4, 1), (2, 1), (1, 1)]
    assert [point.product_limit for point in curve] == pytest.approx([1.0, 0.75, 0.375, 0.0])
    longer = survival(courses, 0.5, horizon=5)
    assert [point.share for point in longer] == [1.0, 0.75, 0.5, 0.25, 0.25, 0.25]
    assert survival([], 0.5) == []
    assert [point.share for point in survival([Course([])], 0.5)] == [1.0]


def test_partial_credit():
    assert partial_credit(Course([1.0, 0.5], failed=True), 3) == 0.5
    assert partial_credit(Course([1.0, None], failed=True), 4) == pytest.approx(1 / 3)
    assert partial_credit(Course([]), 0) == 0.0
    assert partial_credit(Course([], failed=True), 1) == 0.0


# ---- statistics --------------------------------------------------------------------------------------------------


def test_interval_takes_tasks_as_clusters():
    values = {f"t{number}": [float(number % 2)] * 3 for number in range(40)}
    clustered = interval(values, seed=1)
    assert (clustered.mean, clustered.tasks, clustered.values) == (0.5, 40, 120)
    # Repeats that always agree are worth one: the width is that of 40 values, not of 120.
    width = clustered.high - clustered.low
    assert width == pytest.approx(2 * 1.96 * 0.5 / math.sqrt(40), rel=0.15)
    single = interval({task: repeats[:1] for task, repeats in values.items()}, seed=1)
    assert (single.low, single.high) == (clustered.low, clustered.high)


def test_interval_is_seeded_and_does_not_depend_on_order():
    values = {f"t{number}": [number / 10, number / 20] for number in range(10)}
    assert interval(values, 3) == interval(dict(reversed(values.items())), 3)
    assert interval(values, 3) != interval(values, 4)
    constant = interval({"a": [0.5], "b": [0.5]}, 0)
    assert (constant.low, constant.high) == (0.5, 0.5)
    assert interval({"a": [0.5, 0.7]}, 0).low is None
    for bad in ({}, {"a": []}, {"a": [math.nan], "b": [1.0]}):
        with pytest.raises(ValueError):  # noqa: PT011
            interval(bad, 0)


def test_paired():
    rng = np.random.default_rng(0)
    base = {f"t{number}": [float(rng.random())] for number in range(30)}
    better = {task: [values[0] + 0.1 + 0.01 * rng.random()] for task, values in base.items()}
    result = paired(better, base, seed=0)
    assert result.difference == pytest.approx(0.105, abs=0.01)
    assert 0.09 < result.low < result.difference < result.high < 0.12
    assert result.p < 0.001
    assert (result.tasks, result.left_out) == (30, 0)
    same = paired(base, base, seed=0)
    assert (same.difference, same.p) == (0.0, 1.0)
    back = paired(base, better, seed=0)
    assert (back.difference, back.p) == (pytest.approx(-result.difference), result.p)


def test_paired_is_exact_on_few_tasks_and_uses_common_ones():
    a = {"t1": [0.6], "t2": [0.7], "t3": [0.9], "only_a": [0.0]}
    b = {"t1": [0.5], "t2": [0.5], "t3": [0.5], "only_b": [1.0]}
    result = paired(a, b, seed=0)
    assert (result.tasks, result.left_out) == (3, 2)
    assert result.p == 2 / 2**3  # all signs as seen, or all turned
    with pytest.raises(ValueError, match="no task in common"):
        paired({"a": [1.0]}, {"b": [1.0]}, seed=0)


def test_agreement():
    same = agreement([[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]], "nominal")
    assert (same.exact, same.cohen_kappa, same.krippendorff_alpha, same.items) == (1.0, 1.0, 1.0, 3)
    # Cohen's kappa by hand: observed .7, chance .5·.6 + .5·.4 = .5
    a = [1.0] * 5 + [0.0] * 5
    b = [1.0] * 4 + [0.0] * 1 + [1.0] * 2 + [0.0] * 3
    assert agreement([a, b], "nominal").cohen_kappa == pytest.approx(0.4)
    gaps = agreement([[1.0, None, 2.0], [1.0, 3.0, None], [1.0, 3.0, 2.0]], "ordinal")
    assert (gaps.judges, gaps.items, gaps.exact, gaps.cohen_kappa) == (3, 3, 1.0, None)
    assert gaps.krippendorff_alpha == 1.0
    # Krippendorff's own example of three coders (2011, nominal): alpha = .691
    letters = [
        [None] * 5 + [3, 4, 1, 2, 1, 1, 3, 3, None, 3],
        [1, None, 2, 1, 3, 3, 4, 3] + [None] * 7,
        [None, None, 2, 1, 3, 4, 4, None, 2, 1, 1, 3, 3, None, 4],
    ]
    assert agreement(letters, "nominal").krippendorff_alpha == pytest.approx(0.691, abs=1e-3)


def test_agreement_where_it_is_not_defined():
    assert agreement([[1.0, 1.0], [1.0, 1.0]], "nominal").krippendorff_alpha is None
    assert agreement([[1.0, 1.0], [1.0, 1.0]], "nominal").cohen_kappa is None
    assert agreement([[1.0, None], [None, 1.0]], "nominal").exact is None
    with pytest.raises(ValueError, match="two or more"):
        agreement([[1.0]], "nominal")


def test_ratings_of_a_judge():
    found = {
        "S_ad_step_000": record("S_ad", raw=8.0),
        "S_id_step_000": record("S_id", inferred="scroll"),
        "S_ele_lay_step_000": record("S_ele_lay", raw={"S_ele": 3.0, "S_lay": 4.0}),
        "S_cp": record("S_cp", criteria={"C1_step_continuity": 1}),
        "S_mp_step_000": record("S_mp", passed=0),
    }
    ratings = aggregate.ratings_of(found)
    assert ratings == {
        "S_ad_step_000": 8.0,
        "S_id_step_000": 2.0,
        "S_ele_lay_step_000/S_ele": 3.0,
        "S_ele_lay_step_000/S_lay": 4.0,
        "S_cp/C1_step_continuity": 1.0,
        "S_mp_step_000": 0.0,
    }
    levels = {name: aggregate.rating_level(name) for name in ratings}
    assert [name for name, level in levels.items() if level == "ordinal"] == [
        "S_ad_step_000",
        "S_ele_lay_step_000/S_ele",
        "S_ele_lay_step_000/S_lay",
    ]
