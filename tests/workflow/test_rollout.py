"""The rollout workflow: what is made, what reruns, what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from tests.servers.fake_openai import FakeOpenAI, error, tool_call

from .conftest import REPOSITORY, Workflow, kill_group, wait_until, write_tasks

ROW = "results/rollouts/copy_last/nohist"


def online_config(workflow: Workflow, base_url: str, **planner) -> list[str]:
    """Arguments for the openai planner against a local server."""
    row = {"kind": "openai", "model": "test-model", "base_url": base_url, "api_key_env": None, **planner}
    (workflow.directory / "online.yaml").write_text(
        json.dumps({"model": "copy_last", "planner": "openai", "tasks": "set", "planners": {"openai": row}})
    )
    return ["rollouts", "--configfile", "online.yaml"]


def by_step(request):
    """A planner that taps and ends at its third turn; its reply is a function of the request alone."""
    if request.turn >= 3:
        return tool_call({"action": "terminate", "status": "success"})
    return tool_call({"action": "tap", "coordinate": [request.turn * 5, 7]})


def test_recorded_actions_end_to_end(workflow):
    write_tasks(workflow.directory / "set", "offline", 3, 4)
    arguments = ["rollouts", "--config", "model=copy_last,blank", "setting=nohist,fullhist", "tasks=set"]
    output = workflow.ok(*arguments)
    assert "copy_last/nohist: 3 of 3 tasks complete (actions_used 3)" in output
    assert "copy_last × fullhist is left out" in output
    assert workflow.planned(*arguments) == {}
    record = workflow.json(f"{ROW}/t001/trajectory.json")
    assert record["end_reason"] == "actions_used"
    assert record["steps_taken"] == 4
    assert len(record["frames"]) == 5
    first = workflow.directory / ROW / "t001/step_000"
    initial = workflow.directory / "set/offline_data/t001/initial.png"
    assert (first / "frame.png").read_bytes() == initial.read_bytes()
    assert (workflow.directory / ROW / "t001/final_frame.png").read_bytes() == initial.read_bytes()
    assert sorted(path.name for path in first.iterdir()) == [
        "action.json", "agent_evidence.json", "agent_response.txt", "frame.png", "prediction.json", "prediction.png",
    ]  # fmt: skip
    assert (workflow.directory / "results/logs/progress.log").read_text().count("run begins") == 1


def test_a_missing_or_forced_step_reruns_itself_and_what_follows_in_its_task_only(workflow):
    write_tasks(workflow.directory / "set", "offline", 3, 4)
    arguments = ["rollouts", "--config", "model=copy_last", "tasks=set"]
    workflow.ok(*arguments)
    before = workflow.content()
    step = f"{ROW}/t001/step_002"
    one_task = {"trajectory": 1, "rollout_results": 1}

    assert workflow.planned(*arguments, "--forcerun", f"{step}/prediction.json") == {"predict": 2, "act": 1, **one_task}
    assert workflow.planned(*arguments, "--forcerun", f"{step}/action.json") == {"predict": 2, "act": 2, **one_task}
    for name, planned in (
        ("prediction.json", {"predict": 2, "act": 1}),
        ("prediction.png", {"predict": 2, "act": 1}),
        ("action.json", {"predict": 2, "act": 2}),
        ("frame.png", {"predict": 2, "act": 2}),
    ):
        (workflow.directory / step / name).unlink()
        assert workflow.planned(*arguments) == {**planned, **one_task}
        workflow.ok(*arguments)
        assert workflow.content() == before
    (workflow.directory / ROW / "t002/final_frame.png").unlink()
    assert workflow.planned(*arguments) == one_task


def test_copies_and_file_times_rerun_nothing_and_edits_rerun_what_depends_on_them(workflow, tmp_path):
    write_tasks(workflow.directory / "set", "offline", 2, 3)
    arguments = ["rollouts", "--config", "model=copy_last", "tasks=set"]
    workflow.ok(*arguments)
    # A copy without Snakemake's own records and with file times in no order.
    shutil.rmtree(workflow.directory / ".snakemake")
    for number, path in enumerate(sorted((workflow.directory / "results").rglob("*.json"), key=lambda p: p.name)):
        subprocess.run(["touch", "-d", f"2026-01-{1 + number % 27:02d}", path], check=True)
    (workflow.directory / "set/offline_data/t000/initial.png").touch()
    assert workflow.planned(*arguments) == {}
    # A recorded action changed: from that step on, in that task.
    reference = workflow.directory / "set/offline_data/t001/reference_trajectory.jsonl"
    reference.write_text(reference.read_text().replace("[1, 1]", "[9, 9]"))
    assert workflow.planned(*arguments) == {"act": 2, "predict": 2, "trajectory": 1, "rollout_results": 1}
    # An action edited by hand is kept, what was predicted from it is made again.
    workflow.ok(*arguments)
    action = workflow.directory / ROW / "t000/step_001/action.json"
    action.write_text(action.read_text().replace('"source_coord": [\n   1,\n   1', '"source_coord": [\n   2,\n   2'))
    assert workflow.planned(*arguments) == {"act": 1, "predict": 2, "trajectory": 1, "rollout_results": 1}


def test_a_step_of_a_row_that_the_config_does_not_name_is_made_by_its_file_name(workflow):
    write_tasks(workflow.directory / "set", "offline", 2, 3)
    target = "results/rollouts/blank/nohist/t001/step_001/prediction.json"
    workflow.ok(target, "--config", "model=copy_last", "tasks=set")
    assert (workflow.directory / target).is_file()
    assert not (workflow.directory / "results/rollouts/blank/nohist/t000").exists()


def test_kill_and_resume_repeats_no_finished_step_and_ends_in_the_same_files(workflow, tmp_path_factory):
    with FakeOpenAI(by_step, latency_s=0.05) as server:
        arguments = online_config(workflow, server.base_url)
        write_tasks(workflow.directory / "set", "online", 4, 4)
        kills = 0
        for requests in (2, 5, 9):
            process = workflow.start(*arguments)
            wait_until(lambda n=requests: len(server.requests) >= n or process.poll() is not None)  # noqa: B023
            if process.poll() is None:
                kills += 1
            kill_group(process) if process.poll() is None else None
        assert kills >= 2
        done = {path.parent for path in (workflow.directory / ROW).rglob("action.json")}
        seen = len(server.requests)
        workflow.ok(*arguments)
        asked = len(server.requests) - seen
        # 4 tasks of 3 decisions each (the fourth step is passed through); nothing that lay there was asked again.
        assert asked == 12 - len([folder for folder in done if folder.name != "step_003"])
        assert workflow.planned(*arguments) == {}
        killed = workflow.content()

        other = Workflow(tmp_path_factory.mktemp("uninterrupted"))
        arguments = online_config(other, server.base_url)
        write_tasks(other.directory / "set", "online", 4, 4)
        other.ok(*arguments)
        assert other.content() == killed
    record = workflow.json(f"{ROW}/t000/trajectory.json")
    assert (record["end_reason"], record["end_step"], record["terminal_status"]) == ("terminated", 2, "success")
    assert workflow.json(f"{ROW}/t000/step_003/action.json")["status"] == "skipped"
    assert not list(workflow.directory.rglob("*.tmp"))


def test_what_a_change_reruns(workflow):
    with FakeOpenAI(by_step) as server:
        write_tasks(workflow.directory / "set", "online", 2, 3)
        workflow.ok(*online_config(workflow, server.base_url))
        everything = {"act": 6, "predict": 6, "trajectory": 2, "rollout_results": 1}
        # What changes nothing of a result: host, port, time-outs, attempts, tasks in flight, cores.
        same = online_config(workflow, "http://127.0.0.1:9/v1", timeout_s=5, max_attempts=3)
        assert workflow.planned(*same, "--config", "tasks_in_flight=3") == {}
        workflow.ok(*same, cores=1)
        # What does.
        for change in ({"temperature": 0.5}, {"model": "other"}, {"max_tokens": 99}):
            assert workflow.planned(*online_config(workflow, server.base_url, **change)) == everything


def test_eight_tasks_wait_at_the_same_time_on_one_core(workflow):
    with FakeOpenAI(by_step, latency_s=0.5) as server:
        write_tasks(workflow.directory / "set", "online", 10, 2)
        workflow.ok(*online_config(workflow, server.base_url), cores=1)
        assert max(request.in_flight for request in server.requests) == 8


def test_infrastructure_failure_stops_one_task_and_the_next_run_resumes_there(workflow):
    broken = True

    def reply(request):
        if broken and "t001" in request.user_text and request.turn == 2:
            return error(401, "no such key")
        return by_step(request)

    with FakeOpenAI(reply) as server:
        arguments = online_config(workflow, server.base_url, max_attempts=2)
        write_tasks(workflow.directory / "set", "online", 3, 3)
        output = workflow.refused(*arguments)
        assert "copy_last/nohist: 2 of 3 tasks complete (terminated 2)" in output
        assert f"{ROW}/t001/step_001/action.json" in output
        assert "repeat the command" in output
        assert not (workflow.directory / ROW / "rollout_results.json").exists()
        assert (
            "401" in (workflow.directory / "results/logs/rollouts/copy_last/nohist/t001/step_001_act.log").read_text()
        )
        broken = False
        seen = len(server.requests)
        workflow.ok(*arguments)
        assert len(server.requests) - seen == 2
    assert workflow.json(f"{ROW}/rollout_results.json")["t001"]["complete"] is True


def test_two_runs_at_once(workflow):
    with FakeOpenAI(by_step, latency_s=3) as server:
        write_tasks(workflow.directory / "set", "online", 4, 2)
        arguments = online_config(workflow, server.base_url)
        first = workflow.start(*arguments, "--config", "shard=1/2")
        wait_until(lambda: len(server.requests) >= 1)
        output = workflow.refused(*arguments)
        assert "in the making by process" in output
        second = workflow.run(f"{ROW}/t001/trajectory.json", *arguments[1:])
        assert second.returncode == 0, second.stderr
        assert first.wait() == 0


def test_the_other_track_is_not_overwritten(workflow):
    write_tasks(workflow.directory / "set", "offline", 1, 2)
    write_tasks(workflow.directory / "set", "online", 1, 2)
    workflow.ok("rollouts", "--config", "model=copy_last", "tasks=set")
    before = workflow.content()
    output = workflow.refused(*online_config(workflow, "http://127.0.0.1:9/v1"))
    assert "row.json: planner" in output
    assert workflow.content() == before


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (["model=copy_lst"], "write:    model: copy_last"),
        (["model="], "model"),
        (["sublet=3"], "write:    subset: 3"),
        (["subset=0"], "subset"),
        (["subset=9"], "1 to 2"),
        (["task_ids=nope"], "ids of the task file"),
        (["task_ids=,"], "task_ids"),
        (["shard=3/2"], "1 <= i <= n"),
        (["shard=3/3"], "a shard that holds a task"),
        (["tasks_in_flight=0"], "tasks_in_flight"),
        (["tasks=nowhere"], "a folder with offline_samples.jsonl"),
        (["setting=fullhist"], "a setting without history"),
        (["model=browser"], "environment"),
    ],
)
def test_bad_configuration_is_refused_at_once(workflow, config, said):
    write_tasks(workflow.directory / "set", "offline", 2, 2)
    output = workflow.refused(
        "-n", "--config", "tasks=set", *(["model=copy_last"] if "model" not in config[0] else []), *config
    )
    assert said in output
    assert "Traceback (most recent call last)" not in output


def test_an_empty_task_file_is_refused(workflow):
    write_tasks(workflow.directory / "set", "offline", 1, 2)
    (workflow.directory / "set/offline_samples.jsonl").write_text("\n")
    assert "at least one task" in workflow.refused("-n", "--config", "model=copy_last", "tasks=set")


def test_thin_jobs_import_nothing_heavy():
    code = (
        "import sys; from workflow_scripts import act, predict, trajectory, rollout_results, plan;"
        "from workflow_scripts.planners import reference, openai;"
        "from workflow_scripts.worlds import browser, copy_last, blank, registry;"
        "heavy = {'torch', 'transformers', 'diffusers', 'openai', 'pandas', 'playwright'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)


@pytest.mark.slow
def test_two_hundred_tasks_of_25_steps_plan_within_400_mb(workflow):
    write_tasks(workflow.directory / "set", "offline", 200, 25)
    command = workflow.command("-n", "rollouts", "--config", "model=copy_last", "tasks=set")
    code = (
        "import resource, subprocess, sys;"
        "done = subprocess.run(sys.argv[1:], capture_output=True, text=True);"
        "usage = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(done.returncode, usage.ru_maxrss // 1024, done.stdout.count('predict'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=workflow.directory, capture_output=True, text=True
    )
    status, megabytes, _ = map(int, done.stdout.split())
    assert status == 0
    assert megabytes < 400
