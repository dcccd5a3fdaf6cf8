"""World models that write HTML in the real workflow, against a local chat server and a real browser."""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any

from PIL import Image

from tests.servers.fake_openai import FakeOpenAI, Request, Response, completion, error, page, text

from .conftest import Workflow, write_tasks

TASKS = "click-tab-2-hard-s1,enter-date-s1"
"""Two built-in tasks of three recorded actions: taps, a scroll or text among them."""


def arguments(workflow: Workflow, server: FakeOpenAI | str, models: str, tasks: str = "data/miniwob", **row: Any):
    """Arguments that roll out HTML models at a local server with recorded actions; `row` changes each model's row."""
    endpoint = server if isinstance(server, str) else server.base_url
    fields = {"endpoint": endpoint, "api_key_env": None, "max_attempts": 2, **row}
    config = {"tasks": tasks, "models": dict.fromkeys(models.split(","), fields)}
    (workflow.directory / "html.yaml").write_text(json.dumps(config))
    return ["rollouts", "--configfile", "html.yaml", "--config", f"model={models}"]


def test_every_style_runs_built_in_tasks_to_the_end_with_and_without_history(workflow):
    models = "chat_html,gworld,code2world"
    with FakeOpenAI(page) as server:
        selection = ["setting=nohist,fullhist", f"task_ids={TASKS}"]
        run = [*arguments(workflow, server, models), *selection]
        workflow.ok(*run)
        steps = {task: workflow.json(f"results/rollouts/gworld/nohist/{task}/trajectory.json")["steps_taken"]
                 for task in TASKS.split(",")}  # fmt: skip
        assert len(server.requests) == 3 * 2 * sum(steps.values())
        assert workflow.planned(*run) == {}
        workflow.ok(*run)
        assert len(server.requests) == 3 * 2 * sum(steps.values())
        shown = {len(request.images) for request in server.requests}
        assert shown == set(range(1, min(4, max(steps.values())) + 1))
        seeds = {request.body["seed"] for request in server.requests if "gWorld" in request.body["model"]}
        assert seeds == {42}
        seeds = [request.body["seed"] for request in server.requests if request.body["model"] == "code2world"]
        assert len(set(seeds)) == sum(steps.values())  # task and step decide, not the setting
        # Another address changes nothing of a result.
        assert workflow.planned(*arguments(workflow, "http://127.0.0.1:9/v1", models), *selection) == {}
    for model in models.split(","):
        for setting in ("nohist", "fullhist"):
            row = f"results/rollouts/{model}/{setting}"
            results = workflow.json(f"{row}/rollout_results.json")
            for task, count in steps.items():
                record = results[task]
                assert (record["end_reason"], record["complete"]) == ("actions_used", True)
                assert len(record["frames"]) == count + 1
                step = f"{row}/{task}/step_000"
                predicted = workflow.json(f"{step}/prediction.json")
                assert predicted["prediction"]["size"] == [480, 480]
                assert predicted["resized"] is False
                evidence = predicted["evidence"]
                assert (evidence["finish_reason"], evidence["usage"]["total_tokens"]) == ("stop", 18)
                assert evidence["render"]["browser"]
                assert "base64" not in json.dumps(evidence)
                html = (workflow.directory / step / "prediction.html").read_text()
                assert html.startswith("<!DOCTYPE html>")
                assert html.endswith("</html>")
                assert (workflow.directory / step / "prediction.txt").read_text() == f"```html\n{html}\n```"


def numbered_page(number: int, script: str = "") -> Response:
    """A page whose top left pixel says which task it belongs to."""
    return text(
        f'<!DOCTYPE html><html><body style="margin:0;background:rgb({number},0,0)"><p>x</p>{script}</body></html>'
    )


FAULTS = {
    1: ("cut_off", text("<!DOCTYPE html><html><body>and so", finish_reason="length")),
    2: ("cut_off_html", text("<!DOCTYPE html><html><body>and so")),
    3: ("no_html", text("The screen shows a list.")),
    4: ("content_filtered", completion({"content": ""}, finish_reason="content_filter")),
    5: ("refused", completion({"content": None, "refusal": "I would rather not."})),
    6: ("empty_reply", completion({"content": None})),
    7: ("render_timeout", numbered_page(7, "<script>for (;;) {}</script>")),
}


def by_task(workflow: Workflow, faults: dict[int, Response], at: int = 1):
    """A script that answers with the task's page, and from step `at` on with its fault."""
    first = {}
    for path in (workflow.directory / "set/offline_data").glob("*/initial.png"):
        first[hashlib.sha256(path.read_bytes()).digest()] = int(path.parent.name[1:])

    def script(request: Request) -> Response:
        screen = request.images[-1]
        number = first.get(hashlib.sha256(screen).digest())
        step = 0 if number is not None else 1
        if number is None:
            with Image.open(io.BytesIO(screen)) as image:
                number = image.getpixel((0, 0))[0]
        return faults[number] if number in faults and step >= at else numbered_page(number)

    return script


def test_model_failures_are_results_that_end_their_task_and_are_never_rolled_again(workflow):
    count = len(FAULTS) + 1
    write_tasks(workflow.directory / "set", "offline", count, 3)
    faults = {number: response for number, (_, response) in FAULTS.items()}
    with FakeOpenAI(by_task(workflow, faults)) as server:
        run = arguments(workflow, server, "chat_html", "set", cue=False, javascript=True, render_timeout_s=6)
        output = workflow.ok(*run, cores=1)
        # Three steps of the task that works, two of each other: the failing one is asked for once.
        asked = 3 + 2 * len(FAULTS)
        assert len(server.requests) == asked
        assert workflow.planned(*run) == {}
        workflow.ok(*run)
        assert len(server.requests) == asked
        # Nothing in the text says where: neither this style nor the action's summary in the record.
        assert {request.user_text for request in server.requests} == {"The user's action: Tap the screen."}
    assert "chat_html/nohist: 8 of 8 tasks complete" in output
    row = "results/rollouts/chat_html/nohist"
    assert workflow.json(f"{row}/t000/trajectory.json")["end_reason"] == "actions_used"
    for number, (code, _) in FAULTS.items():
        folder = f"{row}/t{number:03d}"
        record = workflow.json(f"{folder}/trajectory.json")
        assert (record["end_reason"], record["end_step"], record["failure_class"]) == ("model_failure", 1, "model")
        predicted = workflow.json(f"{folder}/step_001/prediction.json")
        assert (predicted["status"], predicted["failure"]["code"]) == ("failed", code)
        evidence = predicted["evidence"]
        assert evidence["usage"]["total_tokens"] == 18
        assert len(evidence["attempts"]) == 1
        assert ("browser" in evidence.get("render", {})) == (code == "render_timeout")
        assert workflow.json(f"{folder}/step_002/action.json")["status"] == "skipped"
        assert workflow.json(f"{folder}/step_002/prediction.json")["status"] == "skipped"
        assert not (workflow.directory / folder / "step_001/prediction.png").exists()
        assert (workflow.directory / folder / "final_frame.png").is_file()


def test_an_endpoint_that_stays_down_is_nobodys_result_and_the_next_run_resumes(workflow):
    write_tasks(workflow.directory / "set", "offline", 3, 3)
    faults = {1: error(503), 2: error(429)}
    with FakeOpenAI(by_task(workflow, faults)) as server:
        run = arguments(workflow, server, "chat_html", "set", cue=False)
        output = workflow.refused(*run)
        assert "1 of 3 tasks complete (actions_used 1)" in output
        assert "endpoint_server_error" in output
        assert "endpoint_rate_limited" in output
        row = workflow.directory / "results/rollouts/chat_html/nohist"
        for task in ("t001", "t002"):
            assert sorted(path.name for path in (row / task / "step_001").iterdir()) == [
                "action.json", "agent_evidence.json", "agent_response.txt", "frame.png",
            ]  # fmt: skip
            assert not (row / task / "trajectory.json").exists()
        seen = len(server.requests)
        faults.clear()
        workflow.ok(*run)
        assert len(server.requests) == seen + 2 * 2  # steps 1 and 2 of both tasks
        assert workflow.planned(*run) == {}
    assert workflow.json("results/rollouts/chat_html/nohist/rollout_results.json")["t001"]["complete"] is True


def test_a_local_server_that_is_not_there_is_reported_before_anything_is_spent(workflow):
    write_tasks(workflow.directory / "set", "offline", 1, 2)
    run = arguments(workflow, "http://127.0.0.1:9/v1", "code2world", "set")
    output = workflow.refused(*run)
    assert "write:    canvas: frame" in output  # a canvas of 1080 is too wide for frames of 64 pixels
    run = arguments(workflow, "http://127.0.0.1:9/v1", "code2world", "set", canvas="frame")
    output = workflow.refused(*run)
    assert "nothing answers at http://127.0.0.1:9/v1: start the server of code2world there" in output
    assert not list((workflow.directory / "results").rglob("action.json"))
