"""Shards on a real scheduler: what they make, and what no kill may cost."""

from __future__ import annotations

import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import psutil
import pytest

from tests.servers.fake_openai import FakeOpenAI, error, tool_call
from tests.workflow.conftest import REPOSITORY, Workflow, wait_until, write_tasks
from workflow_scripts import slurm

from .conftest import ClusterWorkflow

ROW = "results/rollouts/copy_last/nohist"
SHARDS = "results/shards/copy_last"


def by_step(request):
    """Taps twice, then ends; the reply is a function of the request alone."""
    if request.turn >= 3:
        return tool_call({"action": "terminate", "status": "success"})
    return tool_call({"action": "tap", "coordinate": [request.turn * 5, 7]})


def online(server: FakeOpenAI, **changes):
    planner = {"kind": "openai", "model": "test-model", "base_url": server.base_url, "api_key_env": None}
    return {"planner": "openai", "planners": {"openai": {**planner, "max_attempts": 1}}, **changes}


def asked(server: FakeOpenAI) -> Counter:
    """How often each decision was asked for."""
    return Counter((request.user_text, request.turn) for request in server.requests)


# --- runs that something happens to; they go on at once, since they spend their time waiting for the scheduler --------


def two_shards_make_what_an_unsharded_run_makes(workflow):
    """And with another number of shards, or none, nothing is made again."""
    write_tasks(workflow.directory / "set", "offline", 5, 3)
    output = workflow.ok(*workflow.config())
    assert "5 of 5 tasks complete" in output
    first, second = workflow.json(f"{SHARDS}/2/1.json"), workflow.json(f"{SHARDS}/2/2.json")
    assert (first["tasks"], second["tasks"]) == (3, 2)
    assert (first["jobs_done"], second["jobs_done"]) == (21, 14)
    assert first["gpus"] == second["gpus"] == "0"
    assert first["slurm_job"] != second["slurm_job"]

    whole = Workflow(workflow.directory / "whole")
    write_tasks(whole.directory / "set", "offline", 5, 3)
    whole.ok("rollouts", "--config", "model=copy_last", "tasks=set")
    assert workflow.content() == whole.content()

    for shards in (2, 3, None):
        assert workflow.planned(*workflow.config(shards=shards)) == {}
    # A manifest that lies there hides no missing task.
    (workflow.directory / ROW / "t003/step_001/prediction.json").unlink()
    for shards in (2, 5):
        one = {"shard": 1, "rollout_results": 1}
        assert workflow.planned(*workflow.config(shards=shards)) == one
    assert workflow.planned(*workflow.config(shards=None))["act"] == 1


def killed_shard_and_a_step_that_always_fails(workflow):
    """A killed shard resumes at its next step; a step that cannot be made costs that step, and the run goes on."""
    broken = True

    def reply(request):
        if broken and "t003" in request.user_text and request.turn == 2:
            return error(401, "no such key")
        return by_step(request)

    with FakeOpenAI(reply, latency_s=1) as server:
        write_tasks(workflow.directory / "set", "online", 6, 4)
        config = workflow.config(**online(server, tasks_in_flight=1))
        head = workflow.start(*config)
        wait_until(lambda: inner_runs(workflow, "/1.config.json") and shard_has_a_step(workflow, "1"), 120)
        os.killpg(os.getpgid(inner_runs(workflow, "/1.config.json")[0]), signal.SIGKILL)
        assert head.wait(300) == 1
        output = workflow.output()
        assert "5 of 6 tasks complete (terminated 5)" in output
        assert "shard 2/2 of copy_last: 7 jobs left" in output
        assert "HTTP 401" in output
        assert workflow.json(f"{SHARDS}/2/1.json")["tasks_complete"] == 3
        failed = workflow.json(f"{SHARDS}/2/2.failed.json")
        assert [item["target"] for item in failed["failed"]] == [f"{ROW}/t003/step_001/action.json"]
        assert not (workflow.directory / f"{SHARDS}/2/2.json").exists()
        twice = [(text, turn) for (text, turn), times in asked(server).items() if times > 1 and "t003" not in text]
        assert len(twice) <= 1  # the one in flight when it was killed

        broken = False
        seen = len(server.requests)
        workflow.ok(*config)
        assert len(server.requests) - seen == 2
    assert workflow.json(f"{ROW}/rollout_results.json")["t003"]["complete"] is True
    assert not (workflow.directory / f"{SHARDS}/2/2.failed.json").exists()


def time_limit(workflow):
    """Near its limit a shard finishes its steps and goes back into the queue; nothing is asked for twice."""
    with FakeOpenAI(by_step, latency_s=3) as server:
        write_tasks(workflow.directory / "set", "online", 9, 4)
        config = workflow.config(**online(server, tasks_in_flight=1, shards=1), slurm=jobs("gpu", runtime_min=1))
        workflow.ok(*config)
        assert max(asked(server).values()) == 1
    log = (workflow.directory / "results/logs/shards/copy_last/1/1.run.log").read_text()
    assert log.count("Building DAG of jobs") >= 2
    assert 0 < workflow.json(f"{SHARDS}/1/1.json")["jobs_done"] < 9 * 9
    (scheduler,) = (workflow.directory / ".snakemake/slurm_logs").rglob("*.log")
    assert "DUE TO JOB REQUEUE" in scheduler.read_text()


def requeue_by_hand_and_a_lost_node(workflow):
    """One shard is put back into the queue by an administrator, the node of the other one is lost."""
    cluster = workflow.cluster
    with FakeOpenAI(by_step, latency_s=1) as server:
        write_tasks(workflow.directory / "set", "online", 12, 4)
        head = workflow.start(*workflow.config(**online(server, tasks_in_flight=1), slurm=jobs("spare", gres="gpu:1")))
        wait_until(lambda: shard_has_a_step(workflow, "1") and shard_has_a_step(workflow, "2"), 120)
        cluster.client("scontrol", "requeue", *cluster.running("n3"))
        cluster.stop_node("n4")
        cluster.client("scontrol", "update", "nodename=n4", "state=down", "reason=test")
        cluster.start_node("n4")
        cluster.client("scontrol", "update", "nodename=n4", "state=resume", check=False)
        assert head.wait(300) == 0
        assert sum(times > 1 for times in asked(server).values()) <= 2  # the two in flight
    assert len(workflow.json(f"{ROW}/rollout_results.json")) == 13


def killed_head(workflow):
    """The same command after kill -9 needs no --unlock, and its jobs start after those that still run."""
    with FakeOpenAI(by_step, latency_s=1) as server:
        write_tasks(workflow.directory / "set", "online", 8, 4)
        config = workflow.config(**online(server, tasks_in_flight=1))
        head = workflow.start(*config)
        wait_until(lambda: len(server.requests) > 4, 120)
        os.killpg(head.pid, signal.SIGKILL)
        head.wait()
        output = workflow.ok(*config)
        assert "of an earlier run of copy_last still wait or run" in output
        assert max(asked(server).values()) == 1
    assert workflow.planned(*config) == {}


SCENARIOS = (
    two_shards_make_what_an_unsharded_run_makes,
    killed_shard_and_a_step_that_always_fails,
    time_limit,
    requeue_by_hand_and_a_lost_node,
    killed_head,
)


@pytest.fixture(scope="module")
def running(cluster, tmp_path_factory):
    with ThreadPoolExecutor(len(SCENARIOS)) as pool:
        yield {
            scenario: pool.submit(scenario, ClusterWorkflow(tmp_path_factory.mktemp("run"), cluster))
            for scenario in SCENARIOS
        }


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_is_lost(running, scenario):
    running[scenario].result()


# ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ({"partition": "nope"}, "invalid partition"),
        ({"gres": "gpu:9"}, "Requested node configuration is not available"),
        ({"runtime_min": 10000}, "time limit"),
    ],
)
def test_what_slurm_would_not_take_is_refused_with_its_own_reason(workflow, job, reason):
    write_tasks(workflow.directory / "set", "offline", 2, 2)
    output = workflow.refused(*workflow.config(slurm=jobs(**job)))
    assert "SLURM refuses the jobs of rule shard" in output
    assert reason in output
    assert "Traceback (most recent call last)" not in output


def test_models_at_an_endpoint_queue_nothing(workflow):
    with FakeOpenAI() as server:
        write_tasks(workflow.directory / "set", "offline", 3, 2)
        row = {"family": "images_api", "endpoint": server.base_url, "model": "edit", "prompt": "hosted_image"}
        models = {"hosted": {**row, "api_key_env": None}}
        before = next_job(workflow)
        workflow.ok(*workflow.config(model="hosted", models=models))
        assert next_job(workflow) == before + 1
        assert len(server.requests) == 6


def test_jobs_that_are_left_over_or_will_never_start_are_found(cluster, tmp_path, monkeypatch):
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    comment = "rule_shard_wildcards_flux2_2_1"
    options = ["--parsable", "--hold", f"--chdir={tmp_path}", f"--comment={comment}", "--wrap", "true"]
    job = cluster.client("sbatch", *options).stdout.strip()
    assert slurm.leftovers(tmp_path, "rule_shard_wildcards_flux2_") == [job]
    assert slurm.leftovers(tmp_path, "rule_shard_wildcards_flux_") == []
    assert slurm.leftovers(tmp_path.parent, "rule_shard_wildcards_flux2_") == []
    assert list(slurm.stuck(tmp_path).values()) == [[job]]
    cluster.client("scancel", job)
    assert slurm.leftovers(tmp_path, "rule_shard_wildcards_flux2_") == []


def next_job(workflow) -> int:
    """Number of a job submitted now."""
    job = workflow.cluster.client("sbatch", "--parsable", "--hold", "--wrap", "true").stdout.strip()
    workflow.cluster.client("scancel", job)
    return int(job)


def test_every_line_of_the_profile_says_why():
    lines = (REPOSITORY / "profiles/slurm/config.yaml").read_text().splitlines()
    assert all(above.startswith("#") for above, line in pairwise(lines) if line and not line.startswith("#"))


def jobs(partition="gpu", runtime_min=10, **more):
    """A `slurm:` block of small jobs."""
    return {
        "default": {"partition": partition, "runtime_min": runtime_min, "mem_mb": 500, "cpus": 1, **more},
        "warn_s": 10,
    }


def inner_runs(workflow, config: str) -> list[int]:
    """Process ids of the shards' inner Snakemakes whose configuration file ends like this."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if process.info["cwd"] == str(workflow.directory) and any(word.endswith(config) for word in words):
            found.append(process.pid)
    return found


def shard_has_a_step(workflow, index: str) -> bool:
    """Whether a shard of two has made a prediction."""
    tasks = sorted((workflow.directory / ROW).glob("t*"))
    own = [task for task in tasks if int(task.name[1:]) % 2 + 1 == int(index)]
    return any(list(task.glob("step_000/prediction.json")) for task in own)
