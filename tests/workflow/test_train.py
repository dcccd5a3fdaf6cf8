"""Training as a workflow: a tiny real model and a real browser, killed, stopped, resumed, evaluated, exported.

The same commands as a user's. Needs torch in the environment that runs snakemake (extra `train`).
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from .conftest import REPOSITORY, Workflow, kill_group, wait_until

NEEDED = ("torch", "transformers", "peft", "matplotlib")
pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED), reason=f"training needs {', '.join(NEEDED)}"
)

RUN = Path("results/train/tiny")
ENV = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def configuration(**changes: Any) -> dict[str, Any]:
    run = {
        "model": {"base": "model", "dtype": "float32", "device": "cpu", "lora": {"rank": 2, "alpha": 4}},
        "sampling": {"developer_tokens": 16, "critic_tokens": 6, "batch_rows": 2},  # two waves an iteration
        "episodes": {"group_size": 2, "groups": 2, "turns": 2, "levels": ["easy"]},
        "credit": {"min_range": 0.0},
        "reward": "original",  # a random model's drafts are worth nothing under the other
        "update": {"learning_rate": 1e-2},
        "schedule": [{"phase": "combined", "iterations": 2}, {"phase": "developer", "iterations": 1}],
        "iterations_per_job": 2,
        "collectors": 1,
        "evaluation": {"pages": 2, "repeats": 2, "every": 3, "validation_pages": 1},
    }
    return {"run": "tiny", "runs": {"tiny": {**run, **changes}}}


def written(directory: Path, **changes: Any) -> list[str]:
    (directory / "run.json").write_text(json.dumps(configuration(**changes)))
    return ["--configfile", "run.json"]


def checkpoints(folder: Path) -> dict[str, bytes]:
    """Every file of the iterations but their timings and claims."""
    files = [path for path in sorted(folder.glob("iteration_*/**/*")) if path.is_file() and path.name != "timing.json"]
    kept = [path for path in files if path.suffix not in (".tmp", ".lock")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """A run that was killed once and told to end once on its way, in the directory it was made in."""
    from tests.tiny.vlm import build

    workflow = Workflow(tmp_path_factory.mktemp("trained"))
    build(workflow.directory / "model")
    arguments = ["train", *written(workflow.directory)]
    here = workflow.directory / RUN

    process = workflow.start(*arguments, **ENV)
    wait_until(lambda: list((here / "iteration_00001/episodes").glob("*.json")), 120)
    mine = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    kill_group(process)
    wait_until(lambda: not any(map(alive, mine)))  # no orphan goes on beside its successor
    assert not (here / "iteration_00002/checkpoint.json").exists()

    process = workflow.start(*arguments, **ENV)
    wait_until(lambda: (here / "iteration_00001/checkpoint.json").exists(), 120)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(120) != 0
    log = (workflow.directory / "results/logs/train/tiny/update_00002.run.log").read_text()
    assert "asked to stop (SIGTERM)" in log
    assert "was told to end after iteration" in log

    output = workflow.ok(*arguments, **ENV)
    assert "3 of 3 iterations" in output
    return workflow


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_disturbed_run_ends_with_the_bits_of_an_undisturbed_one(trained: Workflow, tmp_path: Path) -> None:
    shutil.copytree(trained.directory / "model", tmp_path / "model")
    (tmp_path / RUN).mkdir(parents=True)
    shutil.copy(trained.directory / RUN / "config.resolved.json", tmp_path / RUN)
    command = [sys.executable, "-m", "workflow_scripts.update", str(RUN), "--until", "3"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, **ENV, "PYTHONPATH": path()}, check=True, timeout=300)
    assert list((trained.directory / RUN / "collectors").glob("*.json"))  # the other run shared its episodes out
    expected, found = checkpoints(tmp_path / RUN), checkpoints(trained.directory / RUN)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
    weights = "adapters/{}/adapter_model.safetensors"
    first, last = (trained.directory / RUN / f"iteration_{i:05d}" for i in (0, 3))
    for role in ("developer", "critic"):
        assert (first / weights.format(role)).read_bytes() != (last / weights.format(role)).read_bytes()


def path() -> str:
    return os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))


def test_the_log_has_every_iteration_once(trained: Workflow) -> None:
    rows = list(csv.DictReader((trained.directory / RUN / "log.csv").read_text().splitlines()))
    assert [row["iteration"] for row in rows] == ["0", "1", "2", "3"]  # 0: its validation pages
    assert [row["roles"] for row in rows[1:]] == ["developer critic", "developer critic", "developer"]
    for row in rows[1:]:
        metrics = trained.json(f"{RUN}/iteration_{int(row['iteration']):05d}/metrics.json")
        assert float(row["developer/loss"]) == metrics["developer/loss"]
    assert all(row["heldout/multi_turn"] for row in (rows[0], rows[3]))
    assert (trained.directory / RUN / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_evaluation_is_paired_and_names_both_rewards(trained: Workflow) -> None:
    record = trained.json(f"{RUN}/evaluation.json")
    assert record["iterations"] == {"start": 0, "last": 3, "best": record["iterations"]["best"]}
    assert record["rewards"] == {"trained": "original", "independent": "visible"}
    found = {i: sorted((trained.directory / RUN / f"evaluation/iteration_{i:05d}/episodes").glob("*")) for i in (0, 3)}
    played = {i: [json.loads(file.read_text()) for file in files] for i, files in found.items()}
    pairs = list(zip(played[0], played[3], strict=True))
    assert len(pairs) == 4
    assert all((a["task_id"], a["seed"], a["reference"]) == (b["task_id"], b["seed"], b["reference"]) for a, b in pairs)
    assert {a["task_id"] for a, _ in pairs} == {"procedural/easy/heldout/0", "procedural/easy/heldout/1"}
    for name, draft in (("single_turn", 0), ("multi_turn", -1)):
        by_hand = sum(b["rewards"][draft] - a["rewards"][draft] for a, b in pairs) / len(pairs)
        difference = record["differences"]["last"]["all"][name]
        assert difference["difference"] == pytest.approx(by_hand)
        assert difference["low"] <= difference["difference"] <= difference["high"]
        assert f"independent/{name}" in record["differences"]["last"]["easy"]


def test_what_is_finished_is_not_made_again(trained: Workflow) -> None:
    config = ["--configfile", "run.json"]
    assert trained.planned("train", *config) == {}
    for file in sorted((trained.directory / RUN).glob("iteration_*/checkpoint.json")):
        file.touch()  # file times say nothing after a copy
    assert "update" not in trained.planned("train", *config)
    longer = [{"phase": "combined", "iterations": 2}, {"phase": "developer", "iterations": 4}]
    grown = written(trained.directory, schedule=longer)
    assert trained.planned("train", *grown)["update"] == 2  # 4 and 6; what lies behind stays
    written(trained.directory)


def test_one_episode_is_made_again_with_the_same_bits(trained: Workflow) -> None:
    target = RUN / "iteration_00002/episodes/group_00002_member_01.json"
    before = (trained.directory / target).read_bytes()
    (trained.directory / target).unlink()
    assert trained.planned(str(target), "--configfile", "run.json") == {"episode": 1}
    trained.ok(str(target), "--configfile", "run.json", **ENV)
    assert (trained.directory / target).read_bytes() == before


def test_export_is_a_model_folder(trained: Workflow) -> None:
    assert trained.planned("export", "--configfile", "run.json")["export_coder"] == 1
    trained.ok("export", "--configfile", "run.json", **ENV)
    folder = trained.directory / "results/export/tiny"
    card = (folder / "README.md").read_text()
    assert "iteration 3" in card
    assert "multi_turn" in card
    assert (folder / "adapters/developer/adapter_model.safetensors").read_bytes() == (
        trained.directory / RUN / "iteration_00003/adapters/developer/adapter_model.safetensors"
    ).read_bytes()
    assert {p.name for p in (folder / "developer").iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert trained.planned("export", "--configfile", "run.json") == {}


def test_another_configuration_is_refused_before_anything_runs(trained: Workflow) -> None:
    changed = written(trained.directory, update={"learning_rate": 2e-2})
    refused = trained.refused("train", *changed)
    assert "update.learning_rate 0.01 → 0.02" in refused
    reward = written(trained.directory, reward="visible")
    assert "reward: original" in trained.refused("train", *reward)
    assert "one of tiny" in trained.refused("train", "-n", *written(trained.directory), "--config", "run=small")
    wrong = written(trained.directory, sampling={"temprature": 1})
    assert "temperature: 1" in trained.refused("train", "-n", *wrong)
    (trained.directory / "run.json").write_text(json.dumps({**configuration(), "run": None}))
    assert "--config run=tiny" in trained.refused("train", "-n", *changed)
    written(trained.directory)


def test_damage_is_named_before_anything_runs(trained: Workflow, tmp_path: Path) -> None:
    from tests.tiny.vlm import build
    from workflow_scripts.train_check import main

    shutil.copytree(trained.directory / RUN, tmp_path / "run")
    last = tmp_path / "run/iteration_00002"
    shutil.rmtree(tmp_path / "run/iteration_00003")
    os.symlink(trained.directory / "model", tmp_path / "model")
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        assert main(tmp_path / "run", elsewhere=False) == []
        episode = tmp_path / "run/iteration_00003/episodes/group_00004_member_00.json"
        episode.parent.mkdir(parents=True)
        episode.write_text(json.dumps({"rewards": [float("nan")]}))
        assert "rewards" in main(tmp_path / "run", elsewhere=False)[0]
        episode.unlink()
        state = last / "optimizer/developer.safetensors"
        kept = state.read_bytes()
        state.unlink()
        state.write_bytes(kept[:-1] + b"\0" if kept[-1:] != b"\0" else kept[:-1] + b"\1")
        assert "optimizer/developer.safetensors" in main(tmp_path / "run", elsewhere=False)[0]
        state.write_bytes(kept)
        adapter = last / "adapters/critic/adapter_model.safetensors"
        adapter.rename(tmp_path / "kept")
        assert "adapters/critic/adapter_model.safetensors" in main(tmp_path / "run", elsewhere=False)[0]
        (tmp_path / "kept").rename(adapter)
        os.unlink(tmp_path / "model")
        build(tmp_path / "model", seed=1)
        assert "model.base" in main(tmp_path / "run", elsewhere=False)[0]
        shutil.rmtree(tmp_path / "model")
        assert "cannot be found" in main(tmp_path / "run", elsewhere=False)[0]
    finally:
        os.chdir(here)


def test_two_thousand_iterations_are_planned_flat(workflow: Workflow) -> None:
    schedule = [{"phase": "alternate", "iterations": 2000}]
    row = {"schedule": schedule, "iterations_per_job": 1, "collectors": 1}
    (workflow.directory / "run.json").write_text(json.dumps({"run": "long", "runs": {"long": row}}))
    planned = workflow.planned("train", "--configfile", "run.json")
    assert planned["update"] == planned["collect"] <= 240
    for number in (0, 1800):
        folder = workflow.directory / f"results/train/long/iteration_{number:05d}"
        folder.mkdir(parents=True)
        (folder / "checkpoint.json").write_text("{}")
    assert workflow.planned("train", "--configfile", "run.json")["update"] < 30  # what lies behind is no part of it
