"""The planners: the recorded one, and the vision planner against a real local HTTP server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.servers.fake_openai import NAMED, FakeOpenAI, Response, completion, error, form, text, tool_call
from workflow_scripts.actions import Action
from workflow_scripts.chat import ChatClient, image_part, text_part
from workflow_scripts.config import OpenAIPlanner, ReferencePlanner
from workflow_scripts.failures import InfrastructureFailure, InvalidInput
from workflow_scripts.identity import bytes_digest, digest
from workflow_scripts.planners import openai as vision
from workflow_scripts.planners.base import Planned, PlannerRequest
from workflow_scripts.planners.openai import VisionPlanner
from workflow_scripts.planners.reference import RecordedPlanner
from workflow_scripts.planners.registry import make_planner
from workflow_scripts.tasks import Task

ROOT = Path(__file__).parents[2]
KEY = "sk-planner-0123456789abcdef"
WIDTH, HEIGHT = 320, 480
TAP = {"thinking": "I see a button.", "action": "tap", "coordinate": [10, 20], "target": "OK"}
PAST = (Action("tap", 5, 6, target="the\nfield"), Action("type_text", text="{instruction}"))


@pytest.fixture
def frame(tmp_path: Path) -> Path:
    path = tmp_path / "frame.png"
    Image.new("RGB", (WIDTH, HEIGHT), "teal").save(path)
    return path


def a_task(frame: Path, **fields: Any) -> Task:
    image = {"image": frame, "width": WIDTH, "height": HEIGHT, "image_sha256": bytes_digest(frame.read_bytes())}
    return Task(task_id="t1", track="online", instruction="Press {it}.", step_budget=9, **image, **fields)


def asked(frame: Path, past: tuple[Action, ...] = (), seed: int = 7) -> PlannerRequest:
    return PlannerRequest(a_task(frame), len(past), frame, WIDTH, HEIGHT, past, seed)


def planner(server: FakeOpenAI, **settings: Any) -> VisionPlanner:
    row = {"model": "m", "base_url": server.base_url, "api_key_env": None, "max_attempts": 3, **settings}
    return VisionPlanner(OpenAIPlanner(**row))


def plan(frame: Path, *script: Response, **settings: Any) -> tuple[Planned, FakeOpenAI]:
    with FakeOpenAI(script) as server:
        planned = planner(server, **settings).act(asked(frame))
    assert len(server.requests) == len(script)
    json.dumps(planned.evidence, allow_nan=False).encode()
    return planned, server


def fail(frame: Path, *script: Response, **settings: Any) -> InfrastructureFailure:
    with FakeOpenAI(script) as server, pytest.raises(InfrastructureFailure) as caught:
        planner(server, **settings).act(asked(frame))
    assert len(server.requests) == len(script)
    json.dumps(caught.value.record(), allow_nan=False).encode()
    return caught.value


# --- recorded ---------------------------------------------------------------------------------------------------------


def test_recorded_actions_are_carried_out(frame: Path) -> None:
    recorder = make_planner(ReferencePlanner())
    assert isinstance(recorder, RecordedPlanner)
    task = a_task(frame, actions=PAST)
    planned = recorder.act(PlannerRequest(task, 1, frame, WIDTH, HEIGHT, PAST[:1], 0))
    assert planned.action == PAST[1]
    assert planned.evidence["planner_attempts"] == []
    with pytest.raises(InfrastructureFailure, match="recording_over"):
        recorder.act(PlannerRequest(task, 2, frame, WIDTH, HEIGHT, PAST, 0))
    assert recorder.preflight() == []


def test_recorded_step_identity_is_its_own_action(frame: Path) -> None:
    recorder = RecordedPlanner(ReferencePlanner())
    before = a_task(frame, actions=PAST)
    after = a_task(frame, actions=(PAST[0], Action("wait")))
    assert recorder.step_identity(before, 0) == recorder.step_identity(after, 0)
    assert recorder.step_identity(before, 1) != recorder.step_identity(after, 1)


# --- vision: the request ----------------------------------------------------------------------------------------------


def test_request(frame: Path) -> None:
    with FakeOpenAI([tool_call(TAP)]) as server:
        planned = planner(server).act(asked(frame, PAST))
    body = server.requests[0].body
    assert planned.action == Action("tap", 10, 20, target="OK")
    assert (body["model"], body["tool_choice"], body["temperature"], body["max_tokens"]) == ("m", "auto", 1.0, 4096)
    assert [tool["function"]["name"] for tool in body["tools"]] == ["computer"]
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    system = body["messages"][0]["content"]
    assert "320 pixels wide and 480 pixels high" in system
    assert not re.search(r"\{\w+\}", system)
    assert server.requests[0].images == [frame.read_bytes()]
    asked_text = server.requests[0].user_text
    assert "Press {it}." in asked_text  # braces of an instruction are no placeholders
    assert "1. tap at (5, 6) (the field)\n2. type '{instruction}'\n" in asked_text
    assert server.requests[0].turn == 3


def test_first_turn_names_no_action(frame: Path) -> None:
    _, server = plan(frame, tool_call(TAP))
    assert "none yet" in server.requests[0].user_text


def test_evidence_of_a_good_reply(frame: Path) -> None:
    planned, _ = plan(frame, tool_call(TAP, content="said", model="m-2026-10-01"))
    assert planned.plan == "I see a button."
    assert planned.response_text == "I see a button.\n\ntap at (10, 20) (OK)"
    evidence = dict(planned.evidence)
    (attempt,) = evidence.pop("planner_attempts")
    assert evidence == {
        "plan": planned.plan,
        "semantic_action": planned.action.semantic(WIDTH, HEIGHT),
        "formatted_response": planned.response_text,
    }
    assert attempt.pop("seconds") >= 0
    assert attempt == {
        "attempt": 1,
        "tool_calls": [{"id": "call_0", "name": "computer", "arguments": json.dumps(TAP)}],
        "content": "said",
        "reasoning": None,
        "refusal": None,
        "finish_reason": "tool_calls",
        "requested_model": "m",
        "response_model": "m-2026-10-01",
        "validation_error": None,
        "notes": [],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
        "status": 200,
        "waited_s": 0.0,
    }


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ({"action": "long_press", "coordinate": [1.4, 2.6]}, Action("long_press", 1, 3)),
        ({"action": "tap", "x": [3, 4]}, Action("tap", 3, 4)),
        ({"action": "tap", "x": 3, "y": 4}, Action("tap", 3, 4)),
        ({"action": "scroll", "coordinate": [3, 4], "direction": "up"}, Action("scroll", 3, 4, "up")),
        ({"action": "type_text", "text": ""}, Action("type_text", text="")),
        ({"action": "type_text", "text": "half \ud83d"}, Action("type_text", text="half ?")),
        ({"action": "navigate_home"}, Action("navigate_home")),
        ({"action": "navigate_back", "coordinate": [1, 2]}, Action("navigate_back")),
        ({"action": "open_app", "app_name": "Clock"}, Action("open_app", app_name="Clock")),
        ({"action": "wait", "thinking": 5}, Action("wait")),
        ({"action": "terminate", "status": "failure"}, Action("terminate", status="failure")),
        ({"action": "answer", "answer_text": "42"}, Action("answer", text="42")),
    ],
)
def test_every_action_is_read(frame: Path, arguments: dict[str, Any], action: Action) -> None:
    planned, _ = plan(frame, tool_call(arguments))
    assert planned.action == action
    assert planned.evidence["planner_attempts"][0]["notes"] == []


@pytest.mark.parametrize(
    ("point", "clamped"),
    [([-5, 20], (0, 20)), ([320, 20], (319, 20)), ([10, 1e9], (10, 479)), ([1e300, -1e300], (319, 0))],
)
def test_points_outside_the_frame_are_moved_and_recorded(
    frame: Path, point: list[float], clamped: tuple[int, int]
) -> None:
    for arguments in (
        {**TAP, "coordinate": point},
        {"action": "tap", "x": point},
        {"action": "tap", "x": point[0], "y": point[1]},
    ):
        planned, _ = plan(frame, tool_call(arguments))
        assert (planned.action.x, planned.action.y) == clamped
        (note,) = planned.evidence["planner_attempts"][0]["notes"]
        assert "outside the 320×480 frame" in note


# --- vision: replies that are no action -------------------------------------------------------------------------------

MALFORMED: dict[str, tuple[Response, str]] = {
    "no tool call": (text("I would tap the button."), "no_tool_call"),
    "null message": (completion({"content": None, "tool_calls": None}), "no_tool_call"),
    "empty choices": (Response(body={"choices": [], "model": "m"}), "empty_choices"),
    "no choices": (Response(body={"object": "chat.completion"}), "empty_choices"),
    "refusal": (completion({"content": None, "refusal": "I cannot help."}), "refusal"),
    "length": (completion({"content": None}, "length"), "length"),
    "length in a call": (tool_call('{"action": "type_text", "te', finish_reason="length"), "length"),
    "length after a call": (tool_call(TAP, finish_reason="length"), "length"),
    "content filter": (completion({"content": None}, "content_filter"), "content_filter"),
    "other tool": (tool_call(TAP, name="browser"), "unknown_tool"),
    "not JSON": (tool_call("tap 10 20"), "arguments_not_json"),
    "empty": (tool_call(""), "arguments_not_json"),
    "deep": (tool_call("[" * 100_000), "arguments_not_json"),
    "JSON list": (tool_call([TAP]), "bad_value"),
    "JSON string": (tool_call('"tap"'), "bad_value"),
    "JSON null": (tool_call("null"), "bad_value"),
    "NaN": (tool_call('{"action": "tap", "coordinate": [NaN, 1]}'), "arguments_not_json"),
    "Infinity": (tool_call('{"action": "tap", "coordinate": [1, Infinity]}'), "arguments_not_json"),
    "infinite": (tool_call('{"action": "tap", "coordinate": [1, 1e999]}'), "bad_value"),
    "string point": (tool_call({"action": "tap", "coordinate": ["10", "20"]}), "bad_value"),
    "one string point": (tool_call({"action": "tap", "coordinate": "10,20"}), "bad_value"),
    "boolean point": (tool_call({"action": "tap", "coordinate": [True, False]}), "bad_value"),
    "short point": (tool_call({"action": "tap", "coordinate": [10]}), "bad_value"),
    "no point": (tool_call({"action": "tap"}), "missing_field"),
    "no y": (tool_call({"action": "tap", "x": 3}), "bad_value"),
    "no action": (tool_call({"coordinate": [1, 2]}), "missing_field"),
    "unknown action": (tool_call({"action": "double_tap", "coordinate": [1, 2]}), "unknown_type"),
    "list as action": (tool_call({"action": ["tap"], "coordinate": [1, 2]}), "missing_field"),
    "bad direction": (tool_call({"action": "scroll", "coordinate": [1, 2], "direction": "north"}), "bad_value"),
    "no direction": (tool_call({"action": "scroll", "coordinate": [1, 2]}), "missing_field"),
    "numeric text": (tool_call({"action": "type_text", "text": 5}), "bad_value"),
    "no status": (tool_call({"action": "terminate"}), "missing_field"),
    "no answer": (tool_call({"action": "answer"}), "missing_field"),
    "blank app": (tool_call({"action": "open_app", "app_name": " "}), "bad_value"),
}


@pytest.mark.parametrize(("reply", "code"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_replies_are_asked_for_again(frame: Path, reply: Response, code: str) -> None:
    planned, server = plan(frame, reply, tool_call(TAP))
    assert planned.action == Action("tap", 10, 20, target="OK")
    bad, good = planned.evidence["planner_attempts"]
    assert bad["validation_error"].startswith(f"{code}: ")
    assert (good["attempt"], good["validation_error"]) == (2, None)
    assert "failure" not in planned.evidence  # an earlier bad attempt does not make the step look failed
    first, second = (request.body for request in server.requests)
    assert first.pop("seed") != second.pop("seed")
    assert first == second


def test_invalid_plans_use_up_the_budget(frame: Path) -> None:
    found = fail(frame, text("one"), tool_call("two"), text("three"))
    assert found.code == "planner_invalid_reply"
    assert [attempt["attempt"] for attempt in found.detail["planner_attempts"]] == [1, 2, 3]
    assert "'three'" in found.message


def test_errors_and_invalid_plans_share_the_budget(frame: Path) -> None:
    planned, _ = plan(frame, error(503), text("no"), tool_call(TAP))
    failed, bad, good = planned.evidence["planner_attempts"]
    assert failed["error"]["code"] == "endpoint_server_error"
    assert bad["validation_error"].startswith("no_tool_call")
    assert (good["attempt"], good["validation_error"]) == (3, None)

    found = fail(frame, text("no"), error(503), error(429))
    assert found.code == "endpoint_rate_limited"
    assert [attempt["attempt"] for attempt in found.detail["planner_attempts"]] == [1, 2, 3]
    assert found.detail["planner_attempts"][1]["error"]["status"] == 503


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_lasting_errors_end_it_at_once(frame: Path, status: int) -> None:
    found = fail(frame, error(status))
    assert found.detail["status"] == status
    assert len(found.detail["planner_attempts"]) == 1


def test_of_several_calls_the_first_is_taken(frame: Path) -> None:
    planned, _ = plan(frame, tool_call(TAP, {"action": "wait"}))
    assert planned.action.type == "tap"
    (attempt,) = planned.evidence["planner_attempts"]
    assert len(attempt["tool_calls"]) == 2
    assert attempt["notes"] == ["2 tool calls, the first was taken"]


@pytest.mark.parametrize(
    ("model", "same"),
    [(None, True), ("m", True), ("m-2026-10", True), ("m-20261001", True), ("m-mini", False), ("n", False)],
)
def test_another_model_is_recorded_or_refused(frame: Path, model: str | None, same: bool) -> None:
    reply = tool_call(TAP, model=model)
    planned, _ = plan(frame, reply)
    (attempt,) = planned.evidence["planner_attempts"]
    assert attempt["response_model"] == model
    assert attempt["notes"] == ([] if same else [f"asked for m, answered by {model}"])
    if same:
        plan(frame, reply, strict_model=True)
    else:
        found = fail(frame, reply, strict_model=True)
        assert found.code == "planner_wrong_model"
        assert found.detail["planner_attempts"][0]["response_model"] == model


# --- vision: identity, key, prompts -----------------------------------------------------------------------------------


def test_identity_has_what_changes_a_decision(frame: Path) -> None:
    def identity(**settings: Any) -> str:
        return digest(VisionPlanner(OpenAIPlanner(**settings)).step_identity(a_task(frame), 0))

    same = [
        {"base_url": "http://localhost:1/v1"},
        {"api_key_env": "OTHER"},
        {"timeout_s": 5},
        {"max_attempts": 2},
        {"strict_model": True},
    ]
    assert {identity(**settings) for settings in same} == {identity()}
    other: list[dict[str, Any]] = [
        {"model": "x"},
        {"temperature": 0.5},
        {"max_tokens": 5},
        {"extra_body": {"top_p": 1}},
    ]
    assert len({identity(), *(identity(**settings) for settings in other)}) == len(other) + 1


def test_changed_prompts_change_the_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = VisionPlanner(OpenAIPlanner()).identity()
    for name in ("planner_system.md", "planner_user.md"):
        (tmp_path / name).write_text((vision.PROMPTS / name).read_text() + "More.\n")
    monkeypatch.setattr(vision, "PROMPTS", tmp_path)
    after = VisionPlanner(OpenAIPlanner()).identity()
    assert {name for name in before if before[name] != after[name]} == {"system_prompt", "user_prompt"}


def test_unknown_placeholder_and_missing_prompt(tmp_path: Path, frame: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "PROMPTS", tmp_path / "config" / "prompts")
    vision.PROMPTS.mkdir(parents=True)
    with pytest.raises(InvalidInput, match=r"planner_system\.md"):
        VisionPlanner(OpenAIPlanner()).identity()
    (vision.PROMPTS / "planner_system.md").write_text("{widht}")
    (vision.PROMPTS / "planner_user.md").write_text("{instruction}")
    with FakeOpenAI() as server, pytest.raises(InvalidInput, match=r"\{widht\}"):
        planner(server).act(asked(frame))


def test_key_stays_inside(frame: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("FAKE_KEY", KEY)
    leaks = [error(500, f"bad {KEY}"), text(f"my key is {KEY}"), tool_call({"action": "type_text", "text": KEY})]
    planned, server = plan(frame, *leaks, api_key_env="FAKE_KEY")
    found = fail(frame, text(KEY), error(401, f"wrong {KEY}"), api_key_env="FAKE_KEY")
    assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {KEY}"}
    shown = [json.dumps(planned.evidence), repr(planned), repr(found), json.dumps(found.record()), caplog.text]
    assert not [seen for seen in shown if KEY in seen]
    assert planned.action.text == "[redacted]"


def test_preflight_names_the_missing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAKE_KEY", raising=False)
    with FakeOpenAI() as server:
        (problem,) = planner(server, api_key_env="FAKE_KEY").preflight()
        assert "FAKE_KEY" in problem
        assert planner(server).preflight() == []


def test_unreadable_frame(tmp_path: Path, frame: Path) -> None:
    request = asked(frame)
    frame.unlink()
    with FakeOpenAI() as server, pytest.raises(InfrastructureFailure):
        planner(server).act(request)


# --- the fake server as a process -------------------------------------------------------------------------------------


def test_server_process(tmp_path: Path, frame: Path) -> None:
    log = tmp_path / "requests.jsonl"
    command = [sys.executable, "-m", "tests.servers.fake_openai", "--script", "walk", "--turns", "3", "--log", str(log)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("listening on ").strip()
        walker = VisionPlanner(OpenAIPlanner(model="m", base_url=url, api_key_env=None))

        def episode() -> list[Action]:
            past: tuple[Action, ...] = ()
            while not past or not past[-1].terminal:
                past = (*past, walker.act(asked(frame, past)).action)
            return list(past)

        first = episode()
        assert [action.type for action in first][-1] == "answer"
        assert len(first) == 3
        assert episode() == first
        with urllib.request.urlopen(url.replace("/v1", "/health")) as reply:
            assert reply.status == 200
    finally:
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        process.stdout.close()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["turn"] for line in lines] == [1, 2, 3, 1, 2, 3]
    assert lines[0]["images"] == [bytes_digest(frame.read_bytes())]


def test_image_edits_are_a_function_of_the_request(frame: Path) -> None:
    import openai

    def edit(client: openai.OpenAI, prompt: str, **settings: Any) -> str | None:
        result = client.images.edit(image=("a.png", frame.read_bytes()), prompt=prompt, model="m", **settings)
        return result.data[0].b64_json if result.data else None

    with FakeOpenAI() as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0)
        same, again, other = edit(client, "tap"), edit(client, "tap"), edit(client, "wait")
        assert edit(client, "tap", size="1024x1024") not in (same, other)
    assert same is not None
    assert same == again != other


def test_forms_keep_bytes() -> None:
    data = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n\r\n\x00\xff\r\n\r\n--x--\r\n'
    assert form(data, "multipart/form-data; boundary=x") == {"image": [b"\r\n\x00\xff\r\n"]}


def test_pages_are_a_function_of_the_request(frame: Path) -> None:
    def page(prompt: str) -> str | None:
        with FakeOpenAI(lambda request: NAMED["walk"](request, 3)) as server:
            talker = ChatClient(server.base_url, "m", None)
            parts = [text_part(prompt), image_part(frame.read_bytes())]
            return talker.complete([{"role": "user", "content": parts}], max_tokens=99).content

    written = page("tap")
    assert written is not None
    assert "width:320px;height:480px" in written
    assert page("tap") == written != page("wait")
