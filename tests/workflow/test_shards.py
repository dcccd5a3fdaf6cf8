"""Shards without a cluster, and the questions before a run: same files, refusals, estimates."""

from __future__ import annotations

import json

from tests.servers.fake_openai import FakeOpenAI, text, tool_call

from .conftest import Workflow, write_tasks

ROW = "results/rollouts/copy_last/nohist"


def test_shards_on_one_machine_make_the_same_files(workflow, tmp_path_factory):
    write_tasks(workflow.directory / "set", "offline", 4, 2)
    config = ["--config", "model=copy_last", "tasks=set"]
    output = workflow.ok("rollouts", *config, "shards=3")
    assert "4 of 4 tasks complete" in output
    assert workflow.planned("rollouts", *config, "shards=2") == {}
    assert workflow.planned("rollouts", *config) == {}
    whole = Workflow(tmp_path_factory.mktemp("whole"))
    write_tasks(whole.directory / "set", "offline", 4, 2)
    whole.ok("rollouts", *config)
    assert workflow.content() == whole.content()
    # More shards than tasks: none is empty.
    (workflow.directory / ROW / "t001/trajectory.json").unlink()
    assert workflow.planned("rollouts", *config, "shards=99") == {"shard": 1, "rollout_results": 1}
    refused = workflow.refused("rollouts", "-n", "--forcerun", "predict", *config, "shards=2")
    assert "a run with shards plans whole shards" in refused
    assert "shard: null" in workflow.refused("rollouts", "-n", *config, "shards=2", "shard=1/2")


def test_what_a_run_will_take_and_took(workflow):
    write_tasks(workflow.directory / "set", "offline", 4, 2)
    config = ["--config", "model=copy_last", "tasks=set"]
    before = workflow.ok("plan", *config)
    row = next(line for line in before.splitlines() if line.startswith("copy_last/nohist"))
    assert row.split()[1:5] == ["4", "8", "0", "8"]  # tasks, steps, planner calls, world calls
    assert "configured" in row
    run = workflow.ok("rollouts", *config)
    assert "estimated 8 steps" in run
    assert "made 8 steps" in run
    after = workflow.ok("plan", *config)
    assert "measured on 8 steps" in after
    assert not list((workflow.directory / "results/rollouts").rglob("*estimate*"))


def online(workflow, base_url: str, **planner) -> list[str]:
    row = {"kind": "openai", "model": "m", "base_url": base_url, "api_key_env": None, **planner}
    fields = {"model": "copy_last", "planner": "openai", "tasks": "set", "planners": {"openai": row}}
    (workflow.directory / "online.json").write_text(json.dumps(fields))
    return ["preflight", "--configfile", "online.json"]


def test_preflight_asks_the_planner_and_says_what_is_wrong(workflow):
    write_tasks(workflow.directory / "set", "online", 2, 2)
    with FakeOpenAI(lambda request: tool_call({"action": "wait"})) as server:
        assert "ready" in workflow.ok(*online(workflow, server.base_url))
        assert len(server.requests) == 1
        missing = workflow.refused(*online(workflow, server.base_url, api_key_env="NO_SUCH_KEY"))
        assert "NO_SUCH_KEY" in missing
        assert len(server.requests) == 1
    with FakeOpenAI(lambda request: text("I would tap.")) as server:
        said = workflow.refused(*online(workflow, server.base_url))
        assert "it must be a vision model that calls tools" in said
        assert "no_tool_call" in said
    assert "endpoint_unreachable" in workflow.refused(*online(workflow, "http://127.0.0.1:9/v1"))


def test_preflight_asks_a_world_model_at_an_endpoint(workflow):
    write_tasks(workflow.directory / "set", "offline", 2, 2)
    with FakeOpenAI() as server:
        row = {"family": "images_api", "model": "edit", "prompt": "hosted_image", "api_key_env": None}
        for endpoint, status in ((server.base_url, 0), ("http://127.0.0.1:9/v1", 1)):
            models = {"hosted": {**row, "endpoint": endpoint}}
            (workflow.directory / "run.json").write_text(
                json.dumps({"model": "hosted", "tasks": "set", "models": models})
            )
            done = workflow.run("preflight", "--configfile", "run.json")
            assert (done.returncode != 0) == status, done.stdout + done.stderr
        assert len(server.requests) == 1
    assert "model hosted: endpoint_unreachable" in done.stdout + done.stderr
