"""Whole episodes against their true screens: what an exact, a copying and a blank world score."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests.tiny import gui_cc_rows as rows
from workflow_scripts.failures import InfrastructureFailure
from workflow_scripts.scoring.aggregate import SURVIVES, Course, local_mean, relative, score_episode
from workflow_scripts.scoring.episodes import Episode
from workflow_scripts.scoring.gui_cc_import import read_row
from workflow_scripts.scoring.measure import measure, measure_identity, steps_of


@pytest.fixture
def exact(tmp_path: Path) -> Episode:
    tasks = rows.offline_tasks(tmp_path / "data", ("a",))
    rows.offline_row(tmp_path / "row", tasks)
    return read_row(tmp_path / "row", tasks)["a"]


def test_worlds_against_each_other(exact, tmp_path):
    blank = rows.save(tmp_path / "blank.png", Image.new("RGB", rows.SIZE, "white"))
    worlds = {
        "browser": exact,
        "copy_last": replace(exact, frames=exact.frames[:1] * 3),
        "blank": replace(exact, frames=(exact.frames[0], blank, blank)),
    }
    scores = {name: score_episode(episode, {}, steps_of(measure(episode))) for name, episode in worlds.items()}
    means = {name: local_mean(["a"], {"a": found}, "change_aware").value for name, found in scores.items()}
    assert means["browser"] == pytest.approx(1.0, abs=1e-5)
    assert means["copy_last"] < 0.2
    assert means["blank"] < 0.2
    assert relative(means["browser"], means)["skill"] == pytest.approx(1.0)
    threshold = SURVIVES["consistent"]
    ends = {name: Course(found.steps["consistent"]).first_failure(threshold) for name, found in scores.items()}
    assert ends == {"browser": None, "copy_last": 0, "blank": 0}


def test_the_record(exact):
    record = measure(exact)
    assert (record["schema"], record["record"], record["task_id"]) == (1, "measured", "a")
    assert [transition["step"] for transition in record["transitions"]] == [0, 1]
    steps = steps_of(record)
    assert steps["ssim"] == pytest.approx([1.0, 1.0])
    assert steps["change_aware_copy"] == [0.0, 0.0]
    assert steps["text"] == [None, None]


def test_a_step_that_changes_nothing_counts_by_what_is_kept(exact):
    still = replace(exact, true=(exact.true[0], exact.true[0], exact.true[2]))
    steps = steps_of(measure(replace(still, frames=still.true)))
    assert steps["change_aware"] == [None, pytest.approx(1.0)]
    assert steps["stay"] == [1.0, None]
    assert steps["consistent"] == pytest.approx([1.0, 1.0])


def test_identity_follows_the_screens(exact):
    before = measure_identity(exact, None, ())
    assert measure_identity(exact, None, ()) == before
    rows.save(exact.frames[2], rows.screen(9))
    assert measure_identity(exact, None, ()) != before
    exact.true[1].unlink()
    for use in (lambda: measure(exact), lambda: measure_identity(exact, None, ())):
        with pytest.raises(InfrastructureFailure) as caught:
            use()
        assert caught.value.code == "frame_missing"


def test_an_episode_without_true_screens(exact):
    with pytest.raises(InfrastructureFailure) as caught:
        measure(replace(exact, true=()))
    assert caught.value.code == "no_true_screens"


def test_an_episode_that_reached_nothing(exact):
    record = measure(replace(exact, frames=exact.frames[:1], true=exact.true[:1], actions=()))
    assert record["transitions"] == []
    assert steps_of(record) == {"consistent": []}
