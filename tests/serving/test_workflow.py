"""The main job with image models: real snakemake, real servers, tiny real weights, a kill in the middle."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("diffusers")

from tests.serving.conftest import gone
from tests.workflow.conftest import Workflow, kill_group, wait_until, write_tasks
from workflow_scripts.serving import leases


@pytest.fixture
def flow(tmp_path: Path) -> Workflow:
    """Three offline tasks of three steps."""
    write_tasks(tmp_path / "set", "offline", 3, 3)
    return Workflow(tmp_path)


def tiny(weights: Callable[[str], Path], pipeline: str, **fields: Any) -> dict[str, Any]:
    """A row of config/models.yaml for the tiny pipeline on the CPU."""
    return {
        "family": "flux2",
        "pipeline": pipeline,
        "weights": str(weights(pipeline)),
        "dtype": "float32",
        "device": "cpu",
        "steps": 2,
        "max_pixels": 64 * 64,
        "history_as": "text" if pipeline == "kontext" else "images",
        **fields,
    }


def configured(flow: Workflow, rows: dict[str, dict[str, Any]]) -> list[str]:
    """Arguments that run these rows on the flow's tasks."""
    content = {"models": rows, "model": list(rows), "tasks": "set"}
    (flow.directory / "tiny.yaml").write_text(json.dumps(content))
    return ["rollouts", "--configfile", "tiny.yaml"]


def servers() -> list[dict[str, Any]]:
    """The living servers of this test session, read where the client side looks for them."""
    folder = Path(os.environ["TMPDIR"])
    records = [leases.read(path) for path in folder.glob("guiloop-*/*/server.json")]
    return [record for record in records if record and leases.lives(record)]


def test_a_killed_server_costs_a_retry_and_a_killed_run_takes_its_server_along(
    flow: Workflow, weights: Callable[[str], Path]
) -> None:
    before = {record["pid"] for record in servers()}
    arguments = configured(flow, {"tiny": tiny(weights, "kontext", steps=40, max_pixels=80 * 80)})

    def own() -> set[int]:
        return {record["pid"] for record in servers()} - before

    def predicted() -> int:
        return len(list(flow.directory.glob("results/rollouts/tiny/nohist/*/*/prediction.json")))

    run = flow.start(*arguments)
    wait_until(lambda: predicted() >= 1, 120)
    for pid in own():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: predicted() >= 5, 120)
    (second,) = own()
    kill_group(run)
    assert gone(second, 15)
    flow.ok(*arguments)
    results = flow.json("results/rollouts/tiny/nohist/rollout_results.json")
    assert [results[f"t{number:03d}"]["complete"] for number in range(3)] == [True] * 3
    assert list(flow.directory.glob("results/logs/servers/kontext-cpu-0-*.log"))


def test_history_reaches_an_image_model(flow: Workflow, weights: Callable[[str], Path]) -> None:
    arguments = configured(flow, {"tiny": tiny(weights, "flux2_klein")})
    flow.ok(*arguments, "--config", "setting=fullhist", "task_ids=t000")
    step = flow.json("results/rollouts/tiny/fullhist/t000/step_002/prediction.json")
    assert len(step["evidence"]["images"]) == 3
    assert flow.planned(*arguments, "--config", "setting=fullhist", "task_ids=t000") == {}


def test_without_a_gpu_or_weights_it_stops_before_anything_runs(flow: Workflow, tmp_path: Path) -> None:
    row = {"family": "flux2", "weights": str(tmp_path / "none")}
    output = flow.refused(*configured(flow, {"big": row}), CUDA_VISIBLE_DEVICES="")
    assert "`weights:`" in output
    assert "`device: cpu`" in output
    assert not list(flow.directory.glob("results/rollouts/big/nohist/t000/step_000/*"))
