"""The house's one client of OpenAI-compatible chat completions, for the planner, HTML world models and judges.

It sends one request until it is answered, and keeps evidence of every attempt. What is worth another attempt follows
from the class of the error, never from its wording:

    connection, time-out, HTTP 408, 409, 425, 429, 5xx, a body that is no completion     again, after a pause
    every other HTTP status; 429 whose error code says that the quota is used up         at once a failure

The pause doubles from `backoff_s` up to MAX_BACKOFF_S, with jitter seeded by what is asked for; a ``Retry-After``
header (seconds or date) replaces it and is honoured up to MAX_RETRY_AFTER_S. Every failure here is an
InfrastructureFailure: no answer says nothing about a model. An answer that is refused, filtered or cut off is an answer
(`Reply.refusal`, `Reply.finish_reason`); what it means is for the caller to say.

The key comes from the environment alone. It stands in no record, log, exception or repr; where a server echoes it, it
is blotted out. Left out: streaming, audio, several choices, the Responses API. `openai` is imported on first use.
"""

from __future__ import annotations

import base64
import email.utils
import json
import logging
import math
import os
import random
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .failures import InfrastructureFailure, InvalidInput
from .identity import bytes_digest, seed_of

if TYPE_CHECKING:
    from openai import APIError, OpenAI

log = logging.getLogger(__name__)

MAX_BACKOFF_S = 60.0
"""Longest pause that we choose ourselves."""
MAX_RETRY_AFTER_S = 300.0
"""Longest pause that a server may ask for; a longer wish is cut to this, and the next attempt asks again."""
MAX_BODY_BYTES = 64 * 2**20
"""A longer reply is no completion of ours."""
RETRIED_STATUSES = (408, 409, 425, 429)
"""Besides 5xx."""
QUOTA_CODES = ("insufficient_quota",)
"""Error codes of a 429 that no waiting mends."""
REFUSED_PARAMETER_CODES = ("unsupported_parameter", "unknown_parameter")
REPLACED_PARAMETERS = {"max_tokens": "max_completion_tokens", "seed": None}
"""What stands in for a parameter that a model was found to refuse; None leaves it out."""
MIN_SECRET = 8
"""Shorter keys are dummies ("EMPTY", "none") that local servers ask for; blotting them out would spoil replies."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of a reply; `arguments` is the text as the model wrote it, meant to be JSON."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answered request.

    Attributes:
        content: the text, or None.
        tool_calls: in the order of the reply.
        finish_reason: as the server says it: stop, tool_calls, length, content_filter …; None if it says nothing.
        refusal: the model's words of refusal, if it used that field.
        reasoning: reasoning text, where a server returns it apart.
        choices: how many there were; 0 means that the reply holds nothing at all.
        model: the model that says it answered.
        usage: token counts as the server reports them.
        request_seconds: duration of the answered request alone.
        attempts: evidence of all attempts, the answered one last (see `ChatClient.complete`).
    """

    content: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None
    refusal: str | None
    reasoning: str | None
    choices: int
    model: str | None
    usage: Mapping[str, Any] | None
    request_seconds: float
    attempts: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class ChatClient:
    """A model at an endpoint. Cheap to make: reads no key and connects to nothing before the first request.

    Safe to use from many threads. All clients of one `base_url` share their connections, and those with the same
    `max_in_flight` its slots.

    Args:
        base_url: up to and including ``/v1``. Raises InvalidInput if it is no http(s) URL or has a password in it.
        model: name sent to the endpoint.
        api_key_env: environment variable that holds the key; None for an endpoint without keys.
        timeout_s: longest a request may take, from sending it to the last byte of its reply.
        max_attempts: requests for one completion, the first included.
        max_in_flight: most requests of this process at this endpoint at the same time; None sets no limit.
        backoff_s: first pause after an error; doubles from error to error.
    """

    base_url: str
    model: str
    api_key_env: str | None
    timeout_s: float = 120.0
    max_attempts: int = 6
    max_in_flight: int | None = None
    backoff_s: float = 1.0

    def __post_init__(self) -> None:
        url = urllib.parse.urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise InvalidInput(
                "config", "base_url", "an http(s) URL", self.base_url, "base_url: http://localhost:8000/v1"
            )
        if url.username or url.password or url.query:
            without = f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"
            expected = "a URL without name, password and query (keys come from the variable in api_key_env)"
            raise InvalidInput(
                "config", "base_url", expected, f"a URL with more than {without}", f"base_url: {without}"
            )

    def missing_key(self) -> str | None:
        """The name of the environment variable that should hold the key and does not, or None."""
        if self.api_key_env and not os.environ.get(self.api_key_env, "").strip():
            return self.api_key_env
        return None

    def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        temperature: float | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = None,
        seed: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        retry_seed: Sequence[str | int] = (),
        max_attempts: int | None = None,
    ) -> Reply:
        """Sends the request until it is answered.

        `temperature` and `seed` are left out of the body when None; fields of `extra_body` win over ours. `retry_seed`
        names the work (task, step …) and seeds the jitter. `max_attempts` overrides the client's.

        A model that refuses ``max_tokens`` or ``seed`` by error code gets ``max_completion_tokens`` or no seed from
        then on; finding that out costs a request (which stands in the evidence) but no attempt.

        One attempt's evidence: ``{attempt, status, seconds, waited_s, error, response_model, finish_reason, usage,
        request_id, slot_wait_s}``; `error` is None or ``{code, class, status, message, error_code, retried}``.

        Raises:
            InvalidInput: the key is not in the environment.
            InfrastructureFailure: no answer. Its code is one of endpoint_unreachable, endpoint_timeout,
                endpoint_rate_limited, endpoint_quota_used_up, endpoint_server_error, endpoint_bad_reply,
                endpoint_refused_key, endpoint_rejected_request; its detail holds ``attempts``, ``status``,
                ``error_code`` and ``endpoint``.
        """
        key = self._key()
        endpoint = _endpoint(self.base_url)
        body: dict[str, Any] = {"model": self.model, "messages": list(messages), "max_tokens": max_tokens}
        optional = {"temperature": temperature, "tools": tools, "tool_choice": tool_choice, "seed": seed}
        body.update({name: value for name, value in optional.items() if value is not None})
        body.update(extra_body or {})

        budget = self.max_attempts if max_attempts is None else max_attempts
        attempts: list[dict[str, Any]] = []
        waited = 0.0
        tried = 0
        while True:
            sent = endpoint.adapted(self.model, body)
            with endpoint.slot(self.max_in_flight) as slot_wait:
                outcome = self._send(endpoint, key, sent, headers)
            tried += 1
            fault = outcome.fault
            adapts = fault is not None and endpoint.learn(self.model, fault, sent)
            again = fault is not None and (adapts or (fault.retryable and tried < budget))
            if adapts:
                tried -= 1
            attempts.append(outcome.evidence(len(attempts) + 1, waited, slot_wait, again))
            if fault is None:
                return _reply(outcome.body, outcome.seconds, tuple(attempts))
            if not again:
                break
            waited = 0.0 if adapts else self._pause(fault, tried, retry_seed)
            if waited:
                log.warning("%s, attempt %d of %d: %s; again in %.1f s", self.model, tried, budget, fault, waited)
                time.sleep(waited)
        many = f" after {len(attempts)} attempts" if len(attempts) > 1 else ""
        raise InfrastructureFailure(
            fault.code,
            f"{self.model} at {self.base_url}: {fault.message}{many}",
            attempts=attempts,
            status=fault.status,
            error_code=fault.error_code,
            endpoint=self.base_url,
        )

    def _key(self) -> str | None:
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        where = "environment"
        if not key:
            expected = f"the key of {self.base_url} (api_key_env: null if it needs none)"
            raise InvalidInput(where, self.api_key_env, expected, "no such variable", f"export {self.api_key_env}=…")
        if not re.fullmatch(r"[!-~]+", key):
            # Otherwise the HTTP library refuses the header with an exception that quotes it.
            expected = "a key of visible ASCII characters"
            found = "other characters (not shown)"
            raise InvalidInput(where, self.api_key_env, expected, found, f"export {self.api_key_env}=…")
        return key

    def _send(
        self, endpoint: _Endpoint, key: str | None, body: Mapping[str, Any], headers: Mapping[str, str] | None
    ) -> _Outcome:
        import httpx2
        import openai

        scrub = _Scrubber(key)
        client = endpoint.client(key)
        known = (
            "model",
            "messages",
            "max_tokens",
            "max_completion_tokens",
            "temperature",
            "seed",
            "tools",
            "tool_choice",
        )
        arguments = {name: body[name] for name in known if name in body}
        extra = {name: value for name, value in body.items() if name not in known}
        # The library's time-out is one between two bytes; a server that drips bytes would hold us for ever.
        timeout = httpx2.Timeout(self.timeout_s, connect=min(self.timeout_s, 30.0))
        sent_headers: dict[str, Any] = {**({} if key else {"Authorization": openai.Omit()}), **(headers or {})}
        started = time.monotonic()

        def outcome(
            body: Any = None, fault: _Fault | None = None, status: int | None = None, rid: Any = None
        ) -> _Outcome:
            return _Outcome(body, fault, status, time.monotonic() - started, scrub(rid))

        try:
            with client.chat.completions.with_streaming_response.create(
                **arguments, extra_body=extra or None, extra_headers=sent_headers, timeout=timeout
            ) as response:
                status, request_id = response.status_code, response.headers.get("x-request-id")
                data = bytearray()
                for chunk in response.iter_bytes():
                    data += chunk
                    if time.monotonic() - started > self.timeout_s:
                        raise openai.APITimeoutError(response.http_request)
                    if len(data) > MAX_BODY_BYTES:
                        raise _BadBody(f"the reply is longer than {MAX_BODY_BYTES} bytes")
            completion = _completion(bytes(data))
        except openai.APIStatusError as error:
            request_id = error.response.headers.get("x-request-id")
            return outcome(fault=_status_fault(error, scrub), status=error.status_code, rid=request_id)
        except (openai.APITimeoutError, httpx2.TimeoutException) as error:
            message = f"no complete reply within {self.timeout_s:g} s"
            return outcome(fault=_Fault("endpoint_timeout", type(error).__name__, message, True))
        except (openai.APIConnectionError, httpx2.RequestError) as error:
            cause = error.__cause__ or error
            message = scrub.error(f"no connection, or it broke: {type(cause).__name__}: {cause}")
            return outcome(fault=_Fault("endpoint_unreachable", type(error).__name__, message, True))
        except _BadBody as error:
            fault = _Fault("endpoint_bad_reply", "BadBody", scrub.error(str(error)), True, status)
            return outcome(fault=fault, status=status, rid=request_id)
        embedded = _embedded_fault(completion, status, scrub)
        return outcome(scrub(completion), embedded, status, request_id)

    def _pause(self, fault: _Fault, tried: int, retry_seed: Sequence[str | int]) -> float:
        """Seconds before the next attempt, `tried` requests into this completion."""
        chance = random.Random(seed_of("chat", *retry_seed, tried)).random()
        if fault.retry_after_s:
            # A little later than asked, so that many waiting threads do not come back in the same instant.
            asked = min(fault.retry_after_s, MAX_RETRY_AFTER_S)
            return asked + chance * min(1.0, asked / 10)
        full = min(MAX_BACKOFF_S, self.backoff_s * 2.0 ** min(tried - 1, 30))
        return full * (0.5 + 0.5 * chance)


# --- messages ---------------------------------------------------------------------------------------------------------


def image_part(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    """An image file's bytes as a part of a user message."""
    url = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def text_part(text: str) -> dict[str, Any]:
    """Text as a part of a user message."""
    return {"type": "text", "text": text}


def without_images(value: Any) -> Any:
    """A copy of messages (or a part of them) with a digest in place of every image's base64, for evidence."""
    if isinstance(value, Mapping):
        return {key: without_images(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_images(item) for item in value]
    match = re.match(r"data:([\w/+.-]+);base64,", value) if isinstance(value, str) else None
    if match is None:
        return value
    data = base64.b64decode(value[match.end() :])
    return f"{match[1]}, {len(data)} bytes, sha256 {bytes_digest(data)}"


def plain_text(value: str) -> str:
    """`value` with lone surrogates (half a character, which JSON can spell and UTF-8 cannot) replaced by ``?``."""
    return value.encode("utf-8", "replace").decode("utf-8")


# --- errors -----------------------------------------------------------------------------------------------------------


class _BadBody(ValueError):
    """A reply with a good status that is no chat completion."""


@dataclass(frozen=True)
class _Fault:
    """Why an attempt brought no answer; all texts are scrubbed."""

    code: str
    error_class: str
    message: str
    retryable: bool
    status: int | None = None
    error_code: str | None = None
    parameter: str | None = None
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True)
class _Outcome:
    """One request and what came of it."""

    body: Any
    fault: _Fault | None
    status: int | None
    seconds: float
    request_id: Any

    def evidence(self, attempt: int, waited_s: float, slot_wait_s: float, retried: bool) -> dict[str, Any]:
        """See `ChatClient.complete`."""
        body = self.body if isinstance(self.body, dict) else {}
        fault = self.fault
        return {
            "attempt": attempt,
            "status": self.status,
            "seconds": round(self.seconds, 3),
            "waited_s": round(waited_s, 3),
            "slot_wait_s": round(slot_wait_s, 3),
            "error": None
            if fault is None
            else {
                "code": fault.code,
                "class": fault.error_class,
                "status": fault.status,
                "message": fault.message,
                "error_code": fault.error_code,
                "retried": retried,
            },
            "response_model": _string(body.get("model")),
            "finish_reason": _string(_first_choice(body).get("finish_reason")),
            "usage": _usage(body),
            "request_id": self.request_id,
        }


def _status_fault(error: APIError, scrub: _Scrubber) -> _Fault:
    response = getattr(error, "response")  # noqa: B009  # APIStatusError has it; the type is not imported at run time
    text = response.text
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    return _http_fault(response.status_code, body, text, type(error).__name__, response.headers, scrub)


def _embedded_fault(body: Mapping[str, Any], status: int, scrub: _Scrubber) -> _Fault | None:
    """The fault in a reply of status 200 that carries an ``error`` in place of choices, as some gateways send it."""
    error = body.get("error")
    if body.get("choices") or not error:
        return None
    inner = error.get("code") if isinstance(error, dict) else None
    if isinstance(inner, int) and 400 <= inner < 600:
        return _http_fault(inner, body, "", "ErrorInReply", {}, scrub)
    message = scrub.error(_error_message(body, ""))
    return _Fault(
        "endpoint_bad_reply", "ErrorInReply", message, True, status, error_code=_error_field(body, "code", scrub)
    )


def _http_fault(
    status: int, body: Any, text: str, error_class: str, headers: Mapping[str, str], scrub: _Scrubber
) -> _Fault:
    error_code = _error_field(body, "code", scrub)
    retryable = status in RETRIED_STATUSES or status >= 500
    if status == 429 and error_code in QUOTA_CODES:
        code, retryable = "endpoint_quota_used_up", False
    elif status == 429:
        code = "endpoint_rate_limited"
    elif status in (401, 403):
        code = "endpoint_refused_key"
    elif status == 408:
        code = "endpoint_timeout"
    elif retryable:
        code = "endpoint_server_error"
    else:
        code = "endpoint_rejected_request"
    message = f"HTTP {status}: {scrub.error(_error_message(body, text)) or 'no message'}"
    retry_after = _retry_after(headers)
    parameter = _error_field(body, "param", scrub)
    return _Fault(code, error_class, message, retryable, status, error_code, parameter, retry_after)


def _error_message(body: Any, text: str) -> str:
    error = body.get("error", body) if isinstance(body, dict) else None
    message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return message if isinstance(message, str) else text or (json.dumps(message) if message else "")


def _error_field(body: Any, name: str, scrub: _Scrubber) -> str | None:
    error = body.get("error", body) if isinstance(body, dict) else None
    value = error.get(name) if isinstance(error, dict) else None
    return None if value is None or isinstance(value, (dict, list)) else scrub.error(str(value))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks us to wait (RFC 9110, 10.2.3: a number or a date), or None."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


class _Scrubber:
    """Blots a key out of whatever a server sent back, and makes that storable as JSON."""

    def __init__(self, key: str | None) -> None:
        self._forms = []
        if key and len(key) >= MIN_SECRET:
            self._forms = sorted({key, urllib.parse.quote(key, safe=""), json.dumps(key)[1:-1]}, key=len, reverse=True)

    def __call__(self, value: Any) -> Any:
        """A copy of a JSON value without the key, lone surrogates and numbers that JSON cannot spell."""
        if isinstance(value, str):
            for form in self._forms:
                value = value.replace(form, "[redacted]")
            return plain_text(value)
        if isinstance(value, dict):
            return {self(key): self(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self(item) for item in value]
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    def error(self, text: str) -> str:
        """An error's text, shortened; also without half-masked keys, as OpenAI quotes a wrong one."""
        text = re.sub(r"(?<![A-Za-z0-9])(sk-|Bearer\s+)[\w*.~+/=-]{4,}", "[redacted]", self(text))
        text = " ".join(text.split())
        return text if len(text) <= 500 else text[:500] + " …"


# --- replies ----------------------------------------------------------------------------------------------------------


def _completion(data: bytes) -> dict[str, Any]:
    def refuse(name: str) -> Any:
        raise _BadBody(f"the reply has {name} in it")

    try:
        body = json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise _BadBody(f"the reply is no JSON: {data[:200].decode('utf-8', 'replace')}") from error
    if not isinstance(body, dict) or not isinstance(body.get("choices") or [], list):
        raise _BadBody(f"the reply is no chat completion: {data[:200].decode('utf-8', 'replace')}")
    return body


def _reply(body: Mapping[str, Any], seconds: float, attempts: tuple[Mapping[str, Any], ...]) -> Reply:
    choice = _first_choice(body)
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    calls = message.get("tool_calls")
    return Reply(
        content=_content(message.get("content")),
        tool_calls=tuple(_tool_call(call) for call in calls if isinstance(call, dict))
        if isinstance(calls, list)
        else (),
        finish_reason=_string(choice.get("finish_reason")),
        refusal=_string(message.get("refusal")),
        reasoning=_string(message.get("reasoning_content")) or _string(message.get("reasoning")),
        choices=len(body.get("choices") or []),
        model=_string(body.get("model")),
        usage=_usage(body),
        request_seconds=seconds,
        attempts=attempts,
    )


def _first_choice(body: Mapping[str, Any]) -> dict[str, Any]:
    choices = body.get("choices") or [None]
    return choices[0] if isinstance(choices, list) and isinstance(choices[0], dict) else {}


def _content(value: Any) -> str | None:
    """Text of a message; a few servers send a list of parts."""
    if isinstance(value, list):
        return "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
    return _string(value)


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    # The interface wants a string; some servers send the object itself.
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall(_string(function.get("name")) or "", text, _string(call.get("id")) or "")


def _usage(body: Mapping[str, Any]) -> dict[str, Any] | None:
    usage = body.get("usage")
    return usage if isinstance(usage, dict) else None


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# --- what the clients of one endpoint share ---------------------------------------------------------------------------


@dataclass
class _Endpoint:
    """Connections, slots, and which parameters each model of a base URL was found to refuse."""

    base_url: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    clients: dict[str | None, OpenAI] = field(default_factory=dict)
    slots: dict[int, threading.BoundedSemaphore] = field(default_factory=dict)
    refused: set[tuple[str, str]] = field(default_factory=set)

    def client(self, key: str | None) -> OpenAI:
        with self.lock:
            name = bytes_digest(key.encode()) if key else None
            if name not in self.clients:
                self.clients[name] = _make_client(self.base_url, key)
            return self.clients[name]

    @contextmanager
    def slot(self, limit: int | None) -> Iterator[float]:
        """Holds one of `limit` slots; gives the seconds that were spent waiting for it."""
        started = time.monotonic()
        with self.lock:
            slots = nullcontext() if limit is None else self.slots.setdefault(limit, threading.BoundedSemaphore(limit))
        with slots:
            yield time.monotonic() - started

    def adapted(self, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """`body` with the parameters that the model takes."""
        sent = dict(body)
        for name, other in REPLACED_PARAMETERS.items():
            if name in sent and (model, name) in self.refused:
                value = sent.pop(name)
                if other is not None:
                    sent.setdefault(other, value)
        return sent

    def learn(self, model: str, fault: _Fault, sent: Mapping[str, Any]) -> bool:
        """Whether the fault is a refused parameter that we sent and can do without; remembers it if so."""
        name = fault.parameter
        if fault.status != 400 or fault.error_code not in REFUSED_PARAMETER_CODES:
            return False
        if name not in REPLACED_PARAMETERS or name not in sent:
            return False
        self.refused.add((model, name))
        return True


_endpoints: dict[str, _Endpoint] = {}
_endpoints_lock = threading.Lock()


def _endpoint(base_url: str) -> _Endpoint:
    with _endpoints_lock:
        return _endpoints.setdefault(base_url, _Endpoint(base_url))


def _make_client(base_url: str, key: str | None) -> OpenAI:
    import openai

    # At DEBUG these log headers of replies, in which a server may echo the key; httpx logs every request at INFO.
    for name, level in (("openai", logging.INFO), ("httpcore2", logging.INFO), ("httpx2", logging.WARNING)):
        logging.getLogger(name).setLevel(level)
    host = urllib.parse.urlsplit(base_url).hostname
    local = host == "localhost" or host == "::1" or str(host).startswith("127.")
    return openai.OpenAI(
        base_url=base_url,
        api_key=key or "none",
        max_retries=0,
        # A server on this machine is not to be looked for behind a cluster's proxy.
        http_client=openai.DefaultHttpxClient(trust_env=False) if local else None,
    )
