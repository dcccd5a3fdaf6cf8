"""Every class of answer an image API can give, over real HTTP, and whose fault it is."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from email.utils import formatdate

import pytest

from tests.servers.fake_openai import FakeOpenAI, Request, Response, error
from tests.serving.conftest import screen
from workflow_scripts.failures import InfrastructureFailure, ModelFailure
from workflow_scripts.records import png_bytes
from workflow_scripts.serving.client import Endpoint, Patience, edit, edit_gemini

PNG = png_bytes(screen(0, (64, 64)))
QUICK = Patience(timeout_s=10, attempts=3, first_wait_s=0.01)
KEY = "sk-secret-0123456789"


class Images(FakeOpenAI):
    """Answers image requests from a list, one after the other."""

    def __init__(self, answers: Sequence[Response]) -> None:
        super().__init__()
        self._answers = list(answers)

    def answer(self, request: Request) -> Response:
        return self._answers[min(request.number, len(self._answers)) - 1]


def picture(data: bytes = PNG) -> Response:
    body = {"data": [{"b64_json": base64.b64encode(data).decode()}], "usage": {"total_tokens": 5}}
    return Response(body=body)


def ask(server: FakeOpenAI, patience: Patience = QUICK) -> bytes:
    endpoint = Endpoint(server.base_url, KEY)
    return edit(endpoint, prompt="p", images=[PNG], fields={"model": "m"}, patience=patience).data


def test_the_request_is_a_multipart_form_with_the_key_in_its_header() -> None:
    with Images([picture()]) as server:
        assert ask(server) == PNG
    (request,) = server.requests
    assert request.path == "/v1/images/edits"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body == {"prompt": [b"p"], "model": [b"m"], "image[]": [PNG]}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (error(400, code="moderation_blocked"), "content_refused"),
        (error(400, code="content_policy_violation"), "content_refused"),
        (Response(body={"data": []}), "empty_image"),
        (Response(body={"data": [{"b64_json": ""}]}), "empty_image"),
        (Response(body={}), "empty_image"),
        (Response(body={"data": [{"b64_json": "%%%"}]}), "undecodable_image"),
        (picture(b"not a picture"), "undecodable_image"),
        (picture(PNG[:200]), "undecodable_image"),
    ],
)
def test_what_the_model_is_to_blame_for_is_not_tried_again(answer: Response, code: str) -> None:
    with Images([answer]) as server, pytest.raises(ModelFailure) as caught:
        ask(server)
    assert caught.value.code == code
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "code", "requests"),
    [
        (error(401), "endpoint_refused_key", 1),
        (error(403), "endpoint_refused_key", 1),
        (error(404), "endpoint_rejected_request", 1),
        (error(400, message="connection timeout out of memory content policy"), "endpoint_rejected_request", 1),
        (error(429), "endpoint_rate_limited", 3),
        (error(429, code="insufficient_quota"), "endpoint_quota_used_up", 1),
        (error(500), "endpoint_server_error", 3),
        (error(503), "endpoint_server_error", 3),
        (Response(502, "<html>bad gateway</html>"), "endpoint_server_error", 3),
        (Response(200, "<html>a proxy</html>", {"Content-Type": "text/html"}), "endpoint_bad_reply", 1),
        (Response(200, []), "endpoint_bad_reply", 1),
        (Response(drop="before"), "endpoint_unreachable", 3),
    ],
)
def test_what_the_provider_or_we_are_to_blame_for(answer: Response, code: str, requests: int) -> None:
    with Images([answer]) as server, pytest.raises(InfrastructureFailure) as caught:
        ask(server)
    assert caught.value.code == code
    assert len(server.requests) == requests


def test_a_reply_broken_off_in_the_middle_is_asked_for_again() -> None:
    broken = picture()
    broken.drop = "midway"
    with Images([broken, picture()]) as server:
        assert ask(server) == PNG


def test_an_error_that_passes_is_outlived() -> None:
    with Images([error(503), error(429), picture()]) as server:
        assert ask(server) == PNG


def test_no_reply_in_time() -> None:
    with Images([Response(body={}, delay_s=2.0)]) as server, pytest.raises(InfrastructureFailure) as caught:
        ask(server, Patience(timeout_s=0.2, attempts=2, first_wait_s=0.01))
    assert caught.value.code == "endpoint_timeout"


def test_nobody_listens() -> None:
    with Images([]) as server:
        pass
    with pytest.raises(InfrastructureFailure) as caught:
        ask(server)
    assert caught.value.code == "endpoint_unreachable"


@pytest.mark.parametrize("header", ["1", "date"])
def test_retry_after_is_honoured(header: str) -> None:
    value = formatdate(time.time() + 2, usegmt=True) if header == "date" else header
    with Images([error(429, headers={"Retry-After": value}), picture()]) as server:
        begun = time.monotonic()
        assert ask(server) == PNG
        assert time.monotonic() - begun >= 0.9


def test_the_key_is_in_no_message() -> None:
    with Images([error(401, message=f"wrong key {KEY}")]) as server, pytest.raises(InfrastructureFailure) as caught:
        ask(server)
    assert KEY not in str(caught.value)
    assert KEY not in repr(caught.value.record())
    assert KEY not in repr(Endpoint(server.base_url, KEY))


def test_a_picture_by_address_is_fetched_without_the_key() -> None:
    class Stored(Images):
        def answer(self, request: Request) -> Response:
            return Response(body={"data": [{"url": self.base_url.replace("/v1", "/picture.png")}]})

    with Stored([]) as server, pytest.raises(InfrastructureFailure) as caught:
        ask(server)  # the local server has no such file: the address is asked, its failure is typed
    assert caught.value.code == "endpoint_unreachable"


def gemini(*parts: dict[str, object], finish: str = "STOP", **more: object) -> Response:
    return Response(body={"candidates": [{"content": {"parts": list(parts)}, "finishReason": finish}], **more})


def ask_gemini(server: FakeOpenAI) -> bytes:
    endpoint = Endpoint(server.base_url, KEY)
    config = {"imageConfig": {"aspectRatio": "9:16"}}
    return edit_gemini(endpoint, model="g", prompt="p", images=[PNG], config=config, patience=QUICK).data


def test_gemini_gets_pictures_and_text_as_parts() -> None:
    inline = {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()}}
    with Images([gemini({"text": "Here."}, inline)]) as server:
        assert ask_gemini(server) == PNG
    (request,) = server.requests
    assert request.path == "/v1/models/g:generateContent"
    assert request.headers["x-goog-api-key"] == KEY
    assert "authorization" not in request.headers
    assert [list(part) for part in request.body["contents"][0]["parts"]] == [["inline_data"], ["text"]]
    assert request.body["generationConfig"]["imageConfig"] == {"aspectRatio": "9:16"}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (gemini({"text": "I cannot."}), "empty_image"),
        (gemini(finish="IMAGE_SAFETY"), "content_refused"),
        (Response(body={"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}), "content_refused"),
        (Response(body={"candidates": []}), "empty_image"),
    ],
)
def test_gemini_refusals(answer: Response, code: str) -> None:
    with Images([answer]) as server, pytest.raises(ModelFailure) as caught:
        ask_gemini(server)
    assert caught.value.code == code
