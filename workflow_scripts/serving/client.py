"""Image editing over HTTP: the images API of our own server and of hosted ones, and Gemini's own API; typed failures.

Whose fault a failure is follows from exception types, HTTP status and code fields of the reply: a refusal by content
policy and an empty or undecodable picture are the model's; connection, time-out, 429, 5xx, wrong keys and malformed
requests are infrastructure. Only what may pass by itself is tried again, after a pause that doubles, or the one that
`Retry-After` asks for. Codes are those of `chat`; our own server's failures come with its own. Left out: masks, several
pictures per request, streaming of partial pictures.
"""

from __future__ import annotations

import base64
import binascii
import functools
import io
import json
import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from .. import identity
from ..failures import Failure, InfrastructureFailure, ModelFailure

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger(__name__)

REFUSALS = frozenset(
    {"content_policy_violation", "moderation_blocked", "content_filter", "content_filtered", "contentFilter"}
)
"""`error.code` of the images API: the provider refuses this content."""
QUOTA_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""`error.code` of a 429 that no waiting mends."""
GEMINI_REFUSALS = frozenset(
    {
        "SAFETY",
        "IMAGE_SAFETY",
        "PROHIBITED_CONTENT",
        "IMAGE_PROHIBITED_CONTENT",
        "BLOCKLIST",
        "RECITATION",
        "IMAGE_RECITATION",
        "SPII",
    }
)
"""`finishReason` and `blockReason` of Gemini: refused."""
PASSING = frozenset({408, 409, 425, 429})
"""Statuses besides 5xx that may pass by themselves."""
MAX_RETRY_AFTER_S = 300.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the API is spoken.

    Attributes:
        base_url: up to and including the version (`…/v1`).
        key: in no repr, record or message.
        socket: Unix socket of our own server, None over the network.
    """

    base_url: str
    key: str = field(default="", repr=False)
    socket: str | None = None


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often a request is tried.

    Attributes:
        timeout_s: of one attempt, waiting in the server's queue included.
        attempts: most attempts at failures that may pass.
        first_wait_s, longest_wait_s: the pause between them, doubling, with seeded jitter.
        queue_s: how long our own server's full queue is waited for on top, without counting as attempts.
    """

    timeout_s: float = 300.0
    attempts: int = 6
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    queue_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class Edited:
    """A picture as it came (a decodable image file), and the reply's other facts: usage, served_by, attempts."""

    data: bytes
    facts: dict[str, Any]


def edit(
    endpoint: Endpoint, *, prompt: str, images: Sequence[bytes], fields: Mapping[str, str], patience: Patience
) -> Edited:
    """One picture from `POST {base_url}/images/edits`.

    Args:
        images: PNG files; the first is the picture to edit.
        fields: the other form fields (model, size, seed, extra …).

    Raises ModelFailure (content_refused, empty_image, undecodable_image, or what our server blames on the pipeline) and
    InfrastructureFailure (all else; `server_lost` where our own server died).
    """
    files = [("image[]", (f"image_{i}.png", data, "image/png")) for i, data in enumerate(images)]
    form = {"prompt": prompt, **fields}
    content = {"data": form, "files": files}
    jitter = _jitter(form, images)
    body, attempts = _post(endpoint, "/images/edits", content, patience, jitter)
    entries = body.get("data")
    entry = entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}
    if entry.get("b64_json"):
        data = _decoded_base64(entry["b64_json"])
    elif entry.get("url"):
        data = _fetched(str(entry["url"]), patience)
    else:
        raise ModelFailure("empty_image", "the reply holds no picture", reply=json.dumps(body)[:300])
    facts = {key: body[key] for key in ("usage", "served_by") if isinstance(body.get(key), dict)}
    return Edited(_checked(data), {**facts, "attempts": attempts})


def edit_gemini(
    endpoint: Endpoint,
    *,
    model: str,
    prompt: str,
    images: Sequence[bytes],
    config: Mapping[str, Any],
    patience: Patience,
) -> Edited:
    """One picture from Gemini's `models/{model}:generateContent`; `config` becomes its generationConfig.

    Raises like `edit`.
    """
    parts: list[dict[str, Any]] = [
        {"inline_data": {"mime_type": "image/png", "data": base64.b64encode(data).decode()}} for data in images
    ]
    body = {
        "contents": [{"role": "user", "parts": [*parts, {"text": prompt}]}],
        "generationConfig": {"responseModalities": ["TEXT", "IMAGE"], **config},
    }
    jitter = _jitter({"model": model, "prompt": prompt}, images)
    reply, attempts = _post(endpoint, f"/models/{model}:generateContent", {"json": body}, patience, jitter, True)
    blocked = (reply.get("promptFeedback") or {}).get("blockReason")
    if blocked:
        raise ModelFailure("content_refused", f"the request was refused: {blocked}", attempts=attempts)
    candidates = reply.get("candidates") or [{}]
    finish = candidates[0].get("finishReason")
    answer = (candidates[0].get("content") or {}).get("parts") or []
    pictures = [part.get("inlineData") or part.get("inline_data") for part in answer if not part.get("thought")]
    pictures = [picture for picture in pictures if picture and picture.get("data")]
    if not pictures:
        if finish in GEMINI_REFUSALS:
            raise ModelFailure("content_refused", f"the picture was refused: {finish}", attempts=attempts)
        raise ModelFailure("empty_image", f"the reply holds no picture (finishReason {finish})", attempts=attempts)
    facts = {"usage": reply["usageMetadata"]} if isinstance(reply.get("usageMetadata"), dict) else {}
    return Edited(_checked(_decoded_base64(pictures[-1]["data"])), {**facts, "attempts": attempts})


def get_json(endpoint: Endpoint, path: str, timeout_s: float) -> tuple[int, Any]:
    """Status and parsed body (text, if it is no JSON) of a GET relative to the host, e.g. `/health`.

    Raises httpx2.TransportError, ValueError.
    """
    headers = {"Authorization": f"Bearer {endpoint.key}"}
    reply = _client(endpoint.socket).get(_root(endpoint) + path, headers=headers, timeout=timeout_s)
    return reply.status_code, reply.json() if "json" in reply.headers.get("content-type", "") else reply.text


def post_empty(endpoint: Endpoint, path: str, timeout_s: float) -> int:
    """Status of a POST without a body. Raises httpx2.TransportError."""
    headers = {"Authorization": f"Bearer {endpoint.key}"}
    return _client(endpoint.socket).post(_root(endpoint) + path, headers=headers, timeout=timeout_s).status_code


def _root(endpoint: Endpoint) -> str:
    return endpoint.base_url.removesuffix("/").removesuffix("/v1")


def _jitter(form: Mapping[str, str], images: Sequence[bytes]) -> random.Random:
    return random.Random(identity.digest([form, [identity.bytes_digest(image) for image in images]]))


@functools.lru_cache(maxsize=64)
def _client(socket: str | None) -> httpx2.Client:
    """One client (thread-safe, with its connection pool) per server."""
    import httpx2

    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it reports every request at INFO
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=4.0)
    if socket is None:
        return httpx2.Client(limits=limits)
    # No TLS on a Unix socket; loading the certificates takes longer than a request.
    return httpx2.Client(transport=httpx2.HTTPTransport(uds=socket, verify=False, limits=limits), verify=False)


def _post(
    endpoint: Endpoint,
    path: str,
    content: dict[str, Any],
    patience: Patience,
    jitter: random.Random,
    gemini: bool = False,
) -> tuple[dict[str, Any], int]:
    """The parsed body of a 200 reply and the number of attempts it took."""
    import httpx2

    client, url = _client(endpoint.socket), endpoint.base_url.rstrip("/") + path
    headers = {}
    if endpoint.key:
        headers = {"x-goog-api-key": endpoint.key} if gemini else {"Authorization": f"Bearer {endpoint.key}"}
    timeout = httpx2.Timeout(patience.timeout_s, connect=min(30.0, patience.timeout_s))
    queue_until, attempt = time.monotonic() + patience.queue_s, 0
    while True:
        attempt += 1
        asked: float | None = None
        try:
            reply = client.post(url, headers=headers, timeout=timeout, **content)
        except httpx2.TimeoutException as error:
            message = f"{url}: no reply within {patience.timeout_s:.0f} s ({type(error).__name__})"
            failure: Failure = InfrastructureFailure("endpoint_timeout", message, attempts=attempt)
        except httpx2.TransportError as error:
            message = f"{url}: no connection, or it broke ({type(error).__name__}: {error})"
            if endpoint.socket is not None:
                raise InfrastructureFailure("server_lost", "the model server went away: " + message) from error
            failure = InfrastructureFailure("endpoint_unreachable", message, attempts=attempt)
        else:
            if reply.status_code == 200:
                return _body(reply, url), attempt
            failure, passes = _refusal(reply, url, endpoint.key, attempt)
            asked = _retry_after(reply)
            if not passes:
                raise failure
            if failure.code in ("queue_full", "not_ready") and time.monotonic() < queue_until:
                attempt -= 1
                time.sleep((asked or 1.0) * jitter.uniform(0.5, 1.0))
                continue
        if attempt >= patience.attempts:
            raise failure
        pause = min(patience.longest_wait_s, patience.first_wait_s * 2.0 ** (attempt - 1)) * jitter.uniform(0.5, 1.0)
        if asked is not None:
            pause = min(asked, MAX_RETRY_AFTER_S) + jitter.uniform(0, 1)
        log.warning("attempt %d of %d: %s; again in %.1f s", attempt, patience.attempts, failure, pause)
        time.sleep(pause)


def _refusal(reply: httpx2.Response, url: str, key: str, attempt: int) -> tuple[Failure, bool]:
    """The failure that a reply other than 200 stands for, and whether another attempt may help."""
    error = _error_fields(reply)
    code, status = error.get("code"), reply.status_code
    message = str(error.get("message") or reply.text)[:500]
    if len(key) >= 8:
        message = message.replace(key, "…")
    detail = {"status": status, "error_code": code, "attempts": attempt}
    if code in REFUSALS:
        return ModelFailure("content_refused", message, **detail), False
    if error.get("type") == "model":  # our own server, about its pipeline
        return ModelFailure(str(code), message, **detail), False
    if error.get("type") == "infrastructure":  # our own server, about itself
        return InfrastructureFailure(str(code), message, **detail), status == 503
    names = {401: "endpoint_refused_key", 403: "endpoint_refused_key", 429: "endpoint_rate_limited"}
    name = names.get(status, "endpoint_server_error" if status >= 500 else "endpoint_rejected_request")
    if code in QUOTA_CODES:
        name = "endpoint_quota_used_up"
    passes = (status >= 500 or status in PASSING) and code not in QUOTA_CODES
    return InfrastructureFailure(name, f"{url} answered {status}: {message}", **detail), passes


def _error_fields(reply: httpx2.Response) -> dict[str, Any]:
    try:
        error = reply.json()["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {"message": error}


def _retry_after(reply: httpx2.Response) -> float | None:
    """Seconds from a Retry-After header (a number or a date), None without one."""
    value = reply.headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        except (ValueError, TypeError):
            return None


def _body(reply: httpx2.Response, url: str) -> dict[str, Any]:
    try:
        body = reply.json()
    except ValueError as error:
        message = f"{url} answered 200 with {reply.headers.get('content-type')}, not JSON"
        raise InfrastructureFailure("endpoint_bad_reply", message, start=reply.text[:200]) from error
    if not isinstance(body, dict):
        message = f"{url} answered 200 with a {type(body).__name__}, not an object"
        raise InfrastructureFailure("endpoint_bad_reply", message)
    return body


def _decoded_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ModelFailure("undecodable_image", f"the picture is no base64: {error}") from error


def _fetched(url: str, patience: Patience) -> bytes:
    """A picture that the provider stored instead of sending it; the key does not travel there."""
    import httpx2

    try:
        reply = _client(None).get(url, timeout=patience.timeout_s)
        reply.raise_for_status()
    except httpx2.HTTPError as error:
        message = f"the picture's own address failed: {type(error).__name__}"
        raise InfrastructureFailure("endpoint_unreachable", message) from error
    return reply.content


def _checked(data: bytes) -> bytes:
    """`data`, if it is a picture that decodes. Raises ModelFailure."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error for broken files
        raise ModelFailure("undecodable_image", f"{type(error).__name__}: {error}", bytes=len(data)) from error
    return data
