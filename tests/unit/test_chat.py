"""The chat client against a real local HTTP server: what is tried again, what is recorded, and that no key gets out."""

from __future__ import annotations

import email.utils
import json
import logging
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.servers.fake_openai import FakeOpenAI, Request, Response, completion, error, text, tool_call
from workflow_scripts import chat
from workflow_scripts.chat import ChatClient, image_part, text_part, without_images
from workflow_scripts.failures import InfrastructureFailure, InvalidInput
from workflow_scripts.identity import bytes_digest

MESSAGES = [{"role": "user", "content": "hello"}]
KEY = "sk-proj-0123456789+/abcdefDEADBEEF"


def client(server: FakeOpenAI, **settings: Any) -> ChatClient:
    defaults = {"api_key_env": None, "timeout_s": 5.0, "max_attempts": 3, "backoff_s": 0.01}
    return ChatClient(server.base_url, "m", **{**defaults, **settings})


def ask(server: FakeOpenAI, *, max_tokens: int = 9, **settings: Any) -> chat.Reply:
    return client(server, **settings).complete(MESSAGES, max_tokens=max_tokens)


def failure(server: FakeOpenAI, **settings: Any) -> InfrastructureFailure:
    with pytest.raises(InfrastructureFailure) as caught:
        ask(server, **settings)
    json.dumps(caught.value.record(), allow_nan=False)
    return caught.value


def test_reply_and_request() -> None:
    with FakeOpenAI([tool_call({"action": "wait"}, content="thinking", model="other")]) as server:
        reply = client(server).complete(
            MESSAGES,
            max_tokens=9,
            temperature=0.5,
            tools=[{"type": "function", "function": {"name": "computer"}}],
            tool_choice="auto",
            seed=3,
            extra_body={"top_k": 1, "temperature": 0.25},
            headers={"X-Extra": "1"},
        )
        request = server.requests[0]
    assert request.body == {
        "model": "m",
        "messages": MESSAGES,
        "max_tokens": 9,
        "temperature": 0.25,
        "tools": [{"type": "function", "function": {"name": "computer"}}],
        "tool_choice": "auto",
        "seed": 3,
        "top_k": 1,
    }
    assert request.headers["x-extra"] == "1"
    assert "authorization" not in request.headers  # the endpoint needs no key
    assert reply.content == "thinking"
    assert [(call.name, json.loads(call.arguments)) for call in reply.tool_calls] == [("computer", {"action": "wait"})]
    assert (reply.finish_reason, reply.model, reply.choices) == ("tool_calls", "other", 1)
    assert reply.usage == {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    (attempt,) = reply.attempts
    assert attempt["status"] == 200
    assert attempt["error"] is None
    assert attempt["usage"] == reply.usage
    assert attempt["seconds"] == pytest.approx(reply.request_seconds, abs=0.001)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_passing_statuses_are_tried_again(status: int) -> None:
    with FakeOpenAI([error(status), error(status), text("ok")]) as server:
        reply = ask(server)
        assert len(server.requests) == 3
    assert reply.content == "ok"
    assert [attempt["status"] for attempt in reply.attempts] == [status, status, 200]
    assert [attempt["attempt"] for attempt in reply.attempts] == [1, 2, 3]
    assert reply.attempts[0]["error"]["status"] == status
    assert reply.attempts[0]["error"]["retried"] is True
    assert reply.attempts[1]["waited_s"] > 0


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "endpoint_rejected_request"),
        (401, "endpoint_refused_key"),
        (403, "endpoint_refused_key"),
        (404, "endpoint_rejected_request"),
        (405, "endpoint_rejected_request"),
        (413, "endpoint_rejected_request"),
        (422, "endpoint_rejected_request"),
    ],
)
def test_lasting_statuses_are_not(status: int, code: str) -> None:
    with FakeOpenAI([error(status, "no", code="some_code"), text("never seen")]) as server:
        found = failure(server)
        assert len(server.requests) == 1
    assert found.code == code
    assert (found.detail["status"], found.detail["error_code"]) == (status, "some_code")
    assert found.detail["attempts"][0]["error"]["retried"] is False


@pytest.mark.parametrize(
    ("status", "code"), [(429, "endpoint_rate_limited"), (503, "endpoint_server_error"), (408, "endpoint_timeout")]
)
def test_attempts_run_out(status: int, code: str) -> None:
    with FakeOpenAI([error(status)] * 9) as server:
        found = failure(server)
        assert len(server.requests) == 3
        with pytest.raises(InfrastructureFailure):
            client(server).complete(MESSAGES, max_tokens=9, max_attempts=1)
        assert len(server.requests) == 4
    assert found.code == code
    assert [attempt["error"]["retried"] for attempt in found.detail["attempts"]] == [True, True, False]


def test_used_up_quota_is_told_by_its_code_and_not_waited_for() -> None:
    with FakeOpenAI([error(429, code="insufficient_quota")]) as server:
        assert failure(server).code == "endpoint_quota_used_up"
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "broken",
    [
        Response(drop="before"),
        Response(body=text("x").body, drop="midway"),
        Response(body="<html>a proxy's page</html>"),
        Response(body="[1, 2]"),
        Response(body='{"choices": [], "x": NaN}'),
        Response(body={"choices": "none"}),
        Response(body="[" * 100_000),
        Response(body={"error": {"message": "upstream", "code": 502}}),
        Response(body={"error": {"message": "upstream", "code": "odd"}}),
    ],
    ids=["dropped", "dropped midway", "html", "list", "nan", "choices", "deep", "embedded 502", "embedded odd"],
)
def test_broken_replies_are_tried_again(broken: Response) -> None:
    with FakeOpenAI([broken, text("ok")]) as server:
        reply = ask(server)
        assert len(server.requests) == 2
    assert reply.content == "ok"
    assert reply.attempts[0]["error"]["code"] in ("endpoint_unreachable", "endpoint_bad_reply", "endpoint_server_error")


def test_embedded_lasting_error_is_not() -> None:
    with FakeOpenAI([Response(body={"error": {"message": "policy", "code": 403}})]) as server:
        assert failure(server).code == "endpoint_refused_key"


def test_nobody_listens() -> None:
    with FakeOpenAI() as server:
        pass
    found = failure(server, max_attempts=2)
    assert found.code == "endpoint_unreachable"
    assert len(found.detail["attempts"]) == 2


@pytest.mark.parametrize("slow", [Response(body=text("x").body, delay_s=0.5), Response(body="x" * 99, drip_s=0.02)])
def test_timeout_covers_the_whole_reply(slow: Response) -> None:
    with FakeOpenAI([slow, text("ok")]) as server:
        reply = ask(server, timeout_s=0.2)
    assert reply.content == "ok"
    assert reply.attempts[0]["error"]["code"] == "endpoint_timeout"


@pytest.mark.parametrize(
    ("value", "low", "high"), [("0.2", 0.2, 0.22), ("soon", 0, 0.01), ("-1", 0, 0.01), ("0", 0, 0.01)]
)
def test_retry_after_replaces_our_own_pause(value: str, low: float, high: float) -> None:
    with FakeOpenAI([error(429, headers={"Retry-After": value}), text("ok")]) as server:
        waited = ask(server).attempts[1]["waited_s"]
    assert low <= waited <= high


def test_retry_after_may_be_a_date() -> None:
    def seconds(ahead: float) -> float | None:
        return chat._retry_after({"retry-after": email.utils.formatdate(time.time() + ahead, usegmt=True)})

    assert seconds(-60) is None
    assert seconds(3600) == pytest.approx(3600, abs=60)


@pytest.mark.parametrize("value", ["86400", email.utils.formatdate(time.time() + 86400, usegmt=True)])
def test_retry_after_is_capped(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr(chat, "MAX_RETRY_AFTER_S", 0.05)
    with FakeOpenAI([error(503, headers={"Retry-After": value}), text("ok")]) as server:
        waited = ask(server).attempts[1]["waited_s"]
    assert 0.05 <= waited <= 0.055


def test_pauses_grow_and_are_seeded() -> None:
    settings = {"max_attempts": 4, "backoff_s": 0.02}

    def pauses(*seed: str) -> list[float]:
        with FakeOpenAI([error(500)] * 3 + [text("ok")]) as server:
            reply = client(server, **settings).complete(MESSAGES, max_tokens=9, retry_seed=seed)
        return [attempt["waited_s"] for attempt in reply.attempts]

    first = pauses("task", "1")
    assert first == pauses("task", "1")
    assert first != pauses("task", "2")
    for position, pause in enumerate(first[1:]):
        assert 0.01 * 2**position <= pause <= 0.02 * 2**position + 0.001


def test_refused_parameters_are_learnt_once() -> None:
    def script(request: Request) -> Response:
        for name in ("max_tokens", "seed"):
            if name in request.body:
                return error(400, "unsupported", code="unsupported_parameter", param=name)
        return text(str(request.body["max_completion_tokens"]))

    with FakeOpenAI(script) as server:
        talker = client(server, max_attempts=1)
        first = talker.complete(MESSAGES, max_tokens=9, seed=1)
        assert len(server.requests) == 3
        second = talker.complete(MESSAGES, max_tokens=8, seed=1)
        assert len(server.requests) == 4
    assert (first.content, second.content) == ("9", "8")
    assert [attempt["status"] for attempt in first.attempts] == [400, 400, 200]


def test_other_refused_parameters_are_failures() -> None:
    with FakeOpenAI([error(400, code="unsupported_parameter", param="temperature")]) as server:
        assert failure(server).detail["error_code"] == "unsupported_parameter"


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_finish_reasons_are_reported(reason: str) -> None:
    with FakeOpenAI([text("half", finish_reason=reason)]) as server:
        reply = ask(server)
    assert (reply.content, reply.finish_reason) == ("half", reason)
    assert reply.attempts[0]["finish_reason"] == reason


def test_odd_replies_are_read() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    native = {"function": {"name": "f", "arguments": {"a": 1}}}
    odd = {"tool_calls": [native, "no call"], "content": parts, "reasoning": "why"}
    nothing: dict[str, Any] = {"content": None, "tool_calls": None, "refusal": "I will not"}
    with FakeOpenAI(
        [
            Response(body={"choices": []}),
            Response(body={"choices": [None]}),
            completion(odd),
            completion(nothing, usage=None),
            Response(body='{"choices": [{"message": {"content": "half a \\ud83d smile"}}], "usage": {"cost": 1e999}}'),
        ]
    ) as server:
        empty, null, read, refused, half = (ask(server) for _ in range(5))
    assert (empty.choices, empty.content, empty.tool_calls) == (0, None, ())
    assert (null.choices, null.content) == (1, None)
    assert (read.content, read.reasoning) == ("ab", "why")
    assert [json.loads(call.arguments) for call in read.tool_calls] == [{"a": 1}]
    assert (refused.refusal, refused.usage, refused.tool_calls) == ("I will not", None, ())
    assert half.content == "half a ? smile"
    json.dumps(half.usage, allow_nan=False)


def test_key_is_sent_and_stays_inside(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("FAKE_KEY", f" {KEY}\n")
    caplog.set_level(logging.DEBUG)
    echo = {"X-Request-Id": KEY, "X-Echo": KEY}
    script = [
        error(500, f"Authorization: Bearer {KEY}", code=KEY, param=KEY, headers=echo),
        Response(500, f"your key {KEY} and sk-proj-****BEEF", headers=echo),
        Response(body=f"no JSON but {KEY}"),
        tool_call({"action": KEY}, content=f"the key is {KEY}", model=KEY, finish_reason=KEY),
        error(401, f"Incorrect API key provided: {KEY}. sk-proj-01234***BEEF", headers=echo),
    ]
    with FakeOpenAI(script) as server:
        talker = client(server, api_key_env="FAKE_KEY", max_attempts=5)
        reply = talker.complete(MESSAGES, max_tokens=9)
        with pytest.raises(InfrastructureFailure) as caught:
            talker.complete(MESSAGES, max_tokens=9)
        assert [request.headers["authorization"] for request in server.requests] == [f"Bearer {KEY}"] * 5
    found = caught.value
    assert found.code == "endpoint_refused_key"
    shown = "".join(traceback.format_exception(found))
    assert found.__cause__ is None
    assert found.__context__ is None
    for seen in (repr(reply), repr(talker), str(found), repr(found), json.dumps(found.record()), shown, caplog.text):
        assert KEY not in seen
        assert "BEEF" not in seen
    assert "[redacted]" in str(found)
    assert reply.content == "the key is [redacted]"


def test_missing_and_impossible_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAKE_KEY", raising=False)
    with FakeOpenAI() as server:
        talker = client(server, api_key_env="FAKE_KEY")
        assert talker.missing_key() == "FAKE_KEY"
        with pytest.raises(InvalidInput, match="FAKE_KEY"):
            talker.complete(MESSAGES, max_tokens=9)
        monkeypatch.setenv("FAKE_KEY", "two\nlines-of-secret")
        assert talker.missing_key() is None
        with pytest.raises(InvalidInput, match="FAKE_KEY") as caught:
            talker.complete(MESSAGES, max_tokens=9)
        assert "lines-of-secret" not in str(caught.value)
        assert not server.requests


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://x/v1", "http://", "https://user:secret@x/v1", "http://x/v1?key=secret"]
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ChatClient(url, "m", None)
    assert "secret" not in str(caught.value)


def test_eight_parallel_calls_share_one_client() -> None:
    together = threading.Barrier(8)  # passes only if all eight are being answered at the same time

    def script(request: Request) -> Response:
        together.wait(timeout=20)
        return text(request.user_text)

    with FakeOpenAI(script) as server, ThreadPoolExecutor(8) as pool:

        def call(number: int) -> str | None:
            message = {"role": "user", "content": str(number)}
            return client(server, timeout_s=20).complete([message], max_tokens=9).content

        assert list(pool.map(call, range(24))) == [str(number) for number in range(24)]
        assert server.most_in_flight == 8
        assert len(chat._endpoint(server.base_url).clients) == 1


def test_limit_of_requests_in_flight_is_shared() -> None:
    slow = Response(body=text("ok").body, delay_s=0.02)
    with FakeOpenAI([slow] * 12) as server, ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda _: ask(server, max_in_flight=2), range(12)))
        assert server.most_in_flight <= 2
    assert max(reply.attempts[0]["slot_wait_s"] for reply in replies) > 0


def test_evidence_has_digests_for_images() -> None:
    data = b"\x89PNG" * 1000
    message = {"role": "user", "content": [text_part("look"), image_part(data)]}
    with FakeOpenAI([text("ok")]) as server:
        client(server).complete([message], max_tokens=9)
        assert server.requests[0].images == [data]
    short = without_images([message])
    assert short[0]["content"][0] == {"type": "text", "text": "look"}
    assert short[0]["content"][1]["image_url"]["url"] == f"image/png, 4000 bytes, sha256 {bytes_digest(data)}"


def test_import_is_thin() -> None:
    code = (
        "import sys, workflow_scripts.chat, workflow_scripts.planners.openai, workflow_scripts.planners.registry; "
        "print(sorted({'openai', 'httpx2', 'torch', 'PIL', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
