"""The configuration and the schedule: defaults, refusals, who is trained when, on which tasks."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest

from workflow_scripts.coder.train.config import train_config
from workflow_scripts.coder.train.schedule import past_digest, plan, total_iterations, waves
from workflow_scripts.failures import InvalidInput


def test_defaults_are_the_originals() -> None:
    config = train_config({})
    assert config.model.base == "Qwen/Qwen3.5-9B"
    assert (config.model.lora.rank, config.model.lora.alpha) == (16, 32)
    assert config.update.learning_rate == 2e-5
    assert (config.episodes.group_size, config.episodes.turns) == (4, 5)
    assert (config.credit.shaping, config.sampling.temperature) == (0.2, 0.7)
    assert (config.sampling.tokens("developer"), config.sampling.tokens("critic")) == (2048, 512)
    assert [plan(config, i).groups[0].level for i in (1, 2, 3, 4)] == ["easy", "medium", "hard", "easy"]


def test_every_phase() -> None:
    config = train_config(
        {
            "schedule": [
                {"phase": "developer", "iterations": 2},
                {"phase": "critic", "iterations": 1},
                {"phase": "alternate", "iterations": 5, "every": 2},
                {"phase": "combined", "iterations": 1},
            ]
        }
    )
    assert total_iterations(config) == 9
    initials = ["".join(role[0] for role in plan(config, i).roles) for i in range(1, 10)]
    assert initials == ["d", "d", "c", "d", "d", "c", "c", "d", "dc"]
    for index in (0, 10):
        with pytest.raises(InvalidInput, match="1 … 9"):
            plan(config, index)


def test_tasks_never_repeat_and_phases_go_on_with_the_cycle() -> None:
    blocks = {"schedule": [{"phase": "developer", "iterations": 4}, {"phase": "critic", "iterations": 4}]}
    config = train_config({**blocks, "episodes": {"groups": 3, "levels": ["easy", "hard", "easy", "medium"]}})
    groups = [group for i in range(1, 9) for group in plan(config, i).groups]
    assert [group.number for group in groups] == list(range(24))
    assert len({group.task_id for group in groups}) == len({group.seed for group in groups}) == 24
    assert [g.level for g in groups] == ["easy", "hard", "easy", "medium"] * 6
    easy = [int(g.task_id.rsplit("/", 1)[1]) for g in groups if g.level == "easy"]
    assert easy == list(range(12))
    assert all("/train/" in group.task_id for group in groups)


def test_waves_fill_a_batch() -> None:
    config = train_config({"episodes": {"groups": 5, "group_size": 4}, "sampling": {"batch_rows": 8}})
    assert [[g.number for g in wave] for wave in waves(config, 1)] == [[0, 1], [2, 3], [4]]
    narrow = train_config({"episodes": {"groups": 2, "group_size": 4}, "sampling": {"batch_rows": 2}})
    assert [len(wave) for wave in waves(narrow, 2)] == [1, 1]


def test_a_schedule_may_grow_but_not_change_behind_a_run() -> None:
    def of(*phases: dict[str, Any]) -> Any:
        return train_config({"schedule": list(phases)})

    short = of({"phase": "developer", "iterations": 3})
    longer = of({"phase": "developer", "iterations": 3}, {"phase": "critic", "iterations": 3})
    other = of({"phase": "combined", "iterations": 3})
    assert past_digest(short, 3) == past_digest(longer, 3) != past_digest(other, 3)
    assert short.identity() == other.identity()


def test_identity_is_about_results() -> None:
    config = train_config({})
    for block, value in (("model", {"device": "cpu"}), ("sampling", {"batch_rows": 2}), ("episodes", {"attempts": 9})):
        assert train_config({block: value}).identity() == config.identity(), block
    different = [
        train_config({block: value}).identity()
        for block, value in (
            ("loss", {"kl": 0.1}),
            ("sampling", {"temperature": 1.0}),
            ("model", {"lora": {"rank": 8}}),
        )
    ]
    assert len({config.identity(), *different}) == 4


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"modell": {}}, "modell"),
        ({"episodes": {"group_size": 1}}, "episodes.group_size"),
        ({"episodes": {"turns": 2, "min_turns": 3}}, "episodes"),
        ({"loss": {"name": "ppo"}}, "loss.name"),
        ({"sampling": {"top_p": 0.9}}, "sampling.top_p"),
        ({"schedule": [{"phase": "developer", "iterations": 2, "every": 1}]}, "schedule.0"),
        ({"schedule": [{"phase": "critic", "iterations": 2}], "episodes": {"turns": 1}}, "train"),
        ({"schedule": []}, "schedule"),
    ],
)
def test_wrong_keys_are_named(fields: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidInput) as error:
        train_config(fields)
    assert error.value.key == key


def test_phases_are_planned_quickly_however_long_the_run() -> None:
    config = train_config({"schedule": [{"phase": "alternate", "iterations": 2000}]})
    plans = [plan(config, i) for i in range(1, 2001)]
    assert all(a.roles != b.roles for a, b in pairwise(plans))


def test_nothing_here_imports_torch() -> None:
    modules = ", ".join(
        f"workflow_scripts.coder.train.{n}" for n in ("config", "schedule", "advantages", "rows", "prompts", "episodes")
    )
    code = f"import sys, {modules}; assert not {{'torch', 'transformers', 'cv2'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
