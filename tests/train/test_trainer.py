"""A run as a folder: killed anywhere it continues to the same bits; roles do not touch each other; damage is named."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from workflow_scripts.coder.train.config import TrainConfig
from workflow_scripts.failures import InfrastructureFailure, InvalidInput
from workflow_scripts.records import read_json

from .lives import Point, fork, live
from .world import Breaking, World, short_prompts

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from workflow_scripts.coder.train.trainer import Run

POINTS: tuple[Point, ...] = (
    ("file", 2),  # in the first checkpoint, before any training
    ("episode", 1),  # one episode of iteration 1 is on disk, the others are not
    ("generation", 0),  # on the way to the rest
    ("backward", 1),  # in the middle of accumulating gradients
    ("step", 0),  # before the first optimizer step
    ("stepped", 0),  # developer stepped in memory, critic not yet
    ("file", 1),  # some files of the new checkpoint written
    ("file", 8),  # all but its manifest
    ("stepped", 2),  # iteration 2: one more whole iteration on the way, then as above
    ("link", 3),  # iteration 3 trains one role: files that did not change are links
)
UNTIL = 3


@pytest.fixture(scope="module")
def config(config_of: Callable[..., TrainConfig]) -> TrainConfig:
    return config_of(
        schedule=[{"phase": "combined", "iterations": 2}, {"phase": "developer", "iterations": 1}],
        update={"micro_batch_tokens": 1500},
        loss={"kl": 0.05},
        episodes={"levels": ["easy", "hard"]},
        sampling={"developer_tokens": 8, "critic_tokens": 6},
    )


@pytest.fixture(scope="module")
def whole(config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("run") / "whole"
    live(folder, config, UNTIL)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a run but the timings and what a kill left half written."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != "timing.json" and not p.name.endswith(".tmp")]
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(files)}


def test_killed_at_every_point_it_ends_with_the_same_bits(config: TrainConfig, whole: Path, tmp_path: Path) -> None:
    """One run that dies ten times, each time continued by another process, the last one a fresh interpreter."""
    folder = tmp_path / "killed"
    for point in POINTS:
        assert fork(folder, config, UNTIL, point) == signal.SIGKILL, f"{point} was never reached"
    arguments = [sys.executable, "-m", "tests.train.lives", str(folder), config.model_dump_json(), str(UNTIL)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(arguments, check=True, cwd=Path(__file__).parents[2], env=environment, timeout=300)
    expected, found = contents(whole), contents(folder)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
    assert {read_json(folder / f"iteration_{i:05d}" / "metrics.json")["iteration"] for i in range(UNTIL + 1)} == {
        0,
        1,
        2,
        3,
    }


def test_training_one_role_leaves_the_others_files(whole: Path) -> None:
    before, after = whole / "iteration_00002", whole / "iteration_00003"
    for name in ("adapters/critic/adapter_model.safetensors", "optimizer/critic.safetensors"):
        assert (before / name).read_bytes() == (after / name).read_bytes()
        assert (before / name).stat().st_ino == (after / name).stat().st_ino  # and costs no disk
    for name in ("adapters/developer/adapter_model.safetensors", "optimizer/developer.safetensors"):
        assert (before / name).read_bytes() != (after / name).read_bytes()
    first = whole / "iteration_00000"
    for role in ("developer", "critic"):
        name = f"adapters/{role}/adapter_model.safetensors"
        assert (first / name).read_bytes() != (before / name).read_bytes()


def test_the_partner_acts_with_its_own_adapter(config: TrainConfig, whole: Path, tmp_path: Path) -> None:
    """A row of iteration 3 has, under the adapters of iteration 2, the log-probs that its role's adapter gives."""
    from workflow_scripts.coder.train.episodes import rows_of

    from .conftest import log_probs

    run = open_run(whole, config, iteration=2)
    record = read_json(next((whole / "iteration_00003" / "episodes").glob("*_member_00.json")))
    for role, other in (("developer", "critic"), ("critic", "developer")):
        rows = rows_of(record, role)  # type: ignore[arg-type]
        sampled = torch.tensor([v for row in rows for v in row.log_probs])
        with run.policy.sampling(role):
            torch.testing.assert_close(log_probs(run.policy, rows, run.store), sampled, rtol=0, atol=1e-5)
        with run.policy.sampling(other):
            assert (log_probs(run.policy, rows, run.store) - sampled).abs().max() > 1e-4


def test_a_stop_is_a_clean_end(config: TrainConfig, whole: Path, tmp_path: Path) -> None:
    from workflow_scripts.coder.train.trainer import train

    folder = tmp_path / "stopped"
    run = open_run(folder, config)
    train(run, UNTIL, World, stop=lambda: run.iteration == 1, document=str.strip)
    assert run.iteration == 1
    expected = contents(whole)
    found = contents(folder)
    assert all(found[name] == expected[name] for name in found)


def open_run(folder: Path, config: TrainConfig, **options: Any) -> Run:
    from workflow_scripts.coder.train import trainer

    return trainer.open_run(folder, config, prompts=short_prompts(), **options)


def copied(whole: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    return folder


@pytest.mark.parametrize(
    "name", ["adapters/critic/adapter_model.safetensors", "optimizer/developer.safetensors", "metrics.json"]
)
@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_damage_is_named_before_weights_are_loaded(
    config: TrainConfig, whole: Path, tmp_path: Path, name: str, damage: str
) -> None:
    path = copied(whole, tmp_path) / "iteration_00003" / name
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "flipped":
        data[-1] ^= 1
        path.write_bytes(data)
    with pytest.raises(InvalidInput) as error:
        open_run(tmp_path / "copy", config)
    assert name in error.value.where


def test_another_base_configuration_or_schedule(
    config: TrainConfig, config_of: Callable[..., TrainConfig], whole: Path, tmp_path: Path
) -> None:
    from tests.tiny.vlm import build
    from workflow_scripts.coder.train import trainer
    from workflow_scripts.coder.train.config import train_config

    def changed(**blocks: Any) -> TrainConfig:
        fields = config.model_dump()
        for key, block in blocks.items():
            fields[key] = {**fields[key], **block} if isinstance(block, dict) else block
        return train_config(fields)

    other = build(tmp_path / "other", seed=9)
    with pytest.raises(InvalidInput) as error:
        open_run(whole, changed(model={"base": str(other)}))
    assert error.value.key == "model.base"
    with pytest.raises(InvalidInput) as error:
        open_run(whole, changed(loss={"name": "grpo"}))
    assert error.value.key == "config"
    with pytest.raises(InvalidInput) as error:
        open_run(whole, changed(model={"adapters": "shared"}))
    assert error.value.key == "config"
    with pytest.raises(InvalidInput) as error:
        open_run(whole, changed(schedule=[{"phase": "critic", "iterations": 9}]))
    assert error.value.key == "schedule"
    with pytest.raises(InvalidInput) as error:
        trainer.open_run(whole, config)
    assert error.value.key == "config/prompts/coder"
    longer = [*config.model_dump()["schedule"], {"phase": "critic", "iterations": 5}]
    assert open_run(whole, changed(schedule=longer, sampling={"batch_rows": 3})).iteration == UNTIL


def test_an_episode_of_other_actors_is_refused(config: TrainConfig, whole: Path, tmp_path: Path) -> None:
    from workflow_scripts.coder.train.trainer import collect_iteration

    folder = copied(whole, tmp_path)
    run = open_run(folder, config, iteration=2)
    with pytest.raises(InvalidInput, match="stands at iteration 0"):
        collect_iteration(run, 1, World, document=str.strip)
    path = next((folder / "iteration_00003" / "episodes").glob("*.json"))
    record = read_json(path)
    record["actors"]["adapters"]["developer"] = "0" * 64
    path.write_text(json.dumps(record))
    with pytest.raises(InvalidInput) as error:
        collect_iteration(run, 3, World, document=str.strip)
    assert error.value.where == str(path)
    path.write_text("{")
    with pytest.raises(InvalidInput, match="not JSON"):
        collect_iteration(run, 3, World, document=str.strip)


def test_one_episode_can_be_played_again(config: TrainConfig, whole: Path, tmp_path: Path) -> None:
    """Deleted and collected again: the same file; the others stay as they are."""
    from workflow_scripts.coder.train.trainer import collect_iteration

    folder = copied(whole, tmp_path)
    run = open_run(folder, config, iteration=2)
    path = next((folder / "iteration_00003" / "episodes").glob("*_member_01.json"))
    others = {p: p.stat().st_mtime_ns for p in path.parent.iterdir() if p != path}
    before = path.read_bytes()
    path.unlink()
    collect_iteration(run, 3, World, document=str.strip)
    assert path.read_bytes() == before
    assert {p: p.stat().st_mtime_ns for p in path.parent.iterdir() if p != path} == others


def test_failing_environments_are_retried_then_given_up(config_of: Callable[..., TrainConfig], tmp_path: Path) -> None:
    from workflow_scripts.coder.train.trainer import collect_iteration, learn

    class Once(Breaking):
        at = frozenset({1})

    class Often(Breaking):
        at = frozenset({0, 3, 5, 6, 7, 8})

    class Always(Breaking):
        at = frozenset(range(1000))

    run = open_run(tmp_path / "run", config_of(episodes={"group_size": 3, "attempts": 2}))
    (group,) = collect_iteration(run, 1, Once, document=str.strip)
    assert sorted(record["attempts"] for record in group) == [1, 1, 2]
    metrics = learn(run, 1, [group])
    assert (metrics["episodes"], metrics["given_up"], metrics["retried"]) == (3, 0, 1)
    with pytest.raises(InfrastructureFailure, match="group_failed"):
        collect_iteration(run, 2, Always, document=str.strip)
    assert not (run.path(2) / "checkpoint.json").exists()
    (group,) = collect_iteration(run, 2, World, document=str.strip)
    assert len(group) == 3


def test_shared_adapters_train_both_roles(config_of: Callable[..., TrainConfig], tmp_path: Path) -> None:
    from workflow_scripts.coder.train.trainer import train

    config = config_of(model={"adapters": "shared"}, schedule=[{"phase": "combined", "iterations": 1}])
    run = open_run(tmp_path / "run", config)
    (metrics,) = train(run, 1, World, document=str.strip)
    assert metrics["developer/steps"] + metrics["critic/steps"] >= 1
    assert [p.name for p in (run.path(1) / "adapters").iterdir()] == ["shared"]
    assert open_run(tmp_path / "run", config).iteration == 1
