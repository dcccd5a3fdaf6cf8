"""The images API (`POST /v1/images/edits`) spoken to our own server or to a hosted one, with typed failures.

Whose fault a failure is follows from exception types, HTTP status and the `code` field of the error body: a refusal by
content policy and an empty or undecodable picture are the model's; connection, time-out, 429, 5xx, wrong keys and
malformed requests are infrastructure. Only what may pass by itself is tried again.
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
from ..failures import InfrastructureFailure, ModelFailure

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

REFUSALS = frozenset({"content_policy_violation", "moderation_blocked", "content_filter", "content_filtered", "contentFilter"})
"""Values of the error body's `code` that say: the provider refuses this content."""
EXHAUSTED = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Codes of a 429 that waiting does not mend."""
PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses that may pass by themselves."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the images API is spoken.

    Attributes:
        base_url: up to and including `/v1`.
        key: bearer token; in no repr, record or message.
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
        first_wait_s, longest_wait_s: exponential back-off between them, with a jitter of up to a quarter; a Retry-After
            header of the reply goes before it.
        queue_s: how long a full queue (503 `queue_full`, `not_ready`) is waited for on top, without counting as attempts.
    """

    timeout_s: float = 300.0
    attempts: int = 6
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    queue_s: float = 3600.0


def edit(
    endpoint: Endpoint,
    *,
    prompt: str,
    images: Sequence[bytes],
    fields: Mapping[str, str],
    patience: Patience,
) -> bytes:
    """One edited picture, as the bytes of a decodable image file.

    Args:
        images: PNG files; the first is the picture to edit.
        fields: the other form fields (model, size, seed, extra …).

    Raises ModelFailure (content_refused, empty_image, undecodable_image, or what our server blames on the pipeline) and
    InfrastructureFailure (all else; `server_lost` where our own server died).
    """
    files = [("image[]", (f"image_{i}.png", data, "image/png")) for i, data in enumerate(images)]
    form = {"prompt": prompt, **fields}
    jitter = random.Random(identity.digest([form, [identity.bytes_digest(image) for image in images]]))
    return _picture(_post(endpoint, form, files, patience, jitter), endpoint, patience)


def get_json(endpoint: Endpoint, path: str, timeout_s: float) -> tuple[int, Any]:
    """Status and parsed body of a GET relative to the host, e.g. `/health`. Raises httpx.TransportError, ValueError."""
    headers = {"Authorization": f"Bearer {endpoint.key}"}
    reply = _client(endpoint.socket).get(_root(endpoint) + path, headers=headers, timeout=timeout_s)
    return reply.status_code, reply.json() if "json" in reply.headers.get("content-type", "") else reply.text


def post_empty(endpoint: Endpoint, path: str, timeout_s: float) -> int:
    """Status of a POST without a body. Raises httpx.TransportError."""
    headers = {"Authorization": f"Bearer {endpoint.key}"}
    return _client(endpoint.socket).post(_root(endpoint) + path, headers=headers, timeout=timeout_s).status_code


def _root(endpoint: Endpoint) -> str:
    return endpoint.base_url.removesuffix("/").removesuffix("/v1")


@functools.lru_cache(maxsize=64)
def _client(socket: str | None) -> httpx.Client:
    """One client (thread-safe, with its connection pool) per server."""
    import httpx

    logging.getLogger("httpx").setLevel(logging.WARNING)  # it reports every request at INFO
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=4.0)
    if socket is None:
        return httpx.Client(limits=limits, follow_redirects=False)
    # No TLS on a Unix socket; loading the certificates takes longer than a request.
    return httpx.Client(transport=httpx.HTTPTransport(uds=socket, verify=False, limits=limits), verify=False)


def _post(
    endpoint: Endpoint, form: dict[str, str], files: Any, patience: Patience, jitter: random.Random
) -> dict[str, Any]:
    """The parsed body of a 200 reply, after as many attempts as `patience` grants."""
    import httpx

    client, url = _client(endpoint.socket), endpoint.base_url.rstrip("/") + "/images/edits"
    headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    timeout = httpx.Timeout(patience.timeout_s, connect=min(30.0, patience.timeout_s))
    queue_until, attempt = time.monotonic() + patience.queue_s, 0
    while True:
        attempt += 1
        try:
            reply = client.post(url, data=form, files=files, headers=headers, timeout=timeout)
        except httpx.TimeoutException as error:
            failure = _infrastructure("timeout", f"no reply within {patience.timeout_s:.0f} s", url, error, attempt)
            wait: float | None = None
        except httpx.TransportError as error:
            if endpoint.socket is not None:
                raise _infrastructure("server_lost", "the model server went away", url, error, attempt) from error
            failure, wait = _infrastructure("connection", "the connection failed", url, error, attempt), None
        else:
            if reply.status_code == 200:
                return _body(reply, url)
            failure, wait = _refused(reply, url, attempt), _retry_after(reply)
            if failure.code in ("queue_full", "not_ready") and time.monotonic() < queue_until:
                attempt -= 1
                time.sleep((wait or 1.0) * jitter.uniform(0.5, 1.0))
                continue
        if attempt >= patience.attempts:
            raise failure
        backoff = min(patience.longest_wait_s, patience.first_wait_s * 2 ** (attempt - 1)) * jitter.uniform(0.75, 1.0)
        pause = backoff if wait is None else min(wait, 10 * patience.longest_wait_s)
        log.warning("attempt %d of %d: %s; again in %.1f s", attempt, patience.attempts, failure, pause)
        time.sleep(pause)


def _infrastructure(code: str, what: str, url: str, error: Exception, attempt: int) -> InfrastructureFailure:
    return InfrastructureFailure(code, f"{url}: {what} ({type(error).__name__}: {error})", attempts=attempt)


def _refused(reply: httpx.Response, url: str, attempt: int) -> InfrastructureFailure:
    """The failure that a non-200 reply stands for: raised where another attempt is useless, else returned."""
    error = _error_fields(reply)
    code, message = error.get("code"), str(error.get("message") or reply.text)[:500]
    status = reply.status_code
    detail = {"status": status, "error_code": code, "attempts": attempt}
    if code in REFUSALS:
        raise ModelFailure("content_refused", message, **detail)
    if error.get("type") == "model":  # our own server, about its pipeline
        raise ModelFailure(str(code), message, **detail)
    if code in EXHAUSTED:
        raise InfrastructureFailure("quota_exhausted", f"{url}: {message}", **detail)
    if error.get("type") == "infrastructure":  # our own server, about itself
        failure = InfrastructureFailure(str(code), message, **detail)
        if status == 503:
            return failure
        raise failure
    names = {401: "unauthorized", 403: "unauthorized", 404: "not_found", 413: "too_large", 429: "rate_limited"}
    name = names.get(status, "server_error" if status >= 500 else "bad_request")
    failure = InfrastructureFailure(name, f"{url} answered {status}: {message}", **detail)
    if status in PASSING:
        return failure
    raise failure


def _error_fields(reply: httpx.Response) -> dict[str, Any]:
    try:
        error = reply.json()["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {"message": error}


def _retry_after(reply: httpx.Response) -> float | None:
    """Seconds from a Retry-After header (a number or a date), None without one."""
    value = reply.headers.get("retry-after", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _body(reply: httpx.Response, url: str) -> dict[str, Any]:
    try:
        body = reply.json()
    except ValueError as error:
        message = f"{url} answered 200 with {reply.headers.get('content-type')}, not JSON"
        raise InfrastructureFailure("bad_reply", message, start=reply.text[:200]) from error
    if not isinstance(body, dict):
        raise InfrastructureFailure("bad_reply", f"{url} answered 200 with a {type(body).__name__}, not an object")
    return body


def _picture(body: dict[str, Any], endpoint: Endpoint, patience: Patience) -> bytes:
    """The first picture of a reply, checked to be decodable."""
    from PIL import Image

    entries = body.get("data")
    entry = entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}
    if entry.get("b64_json"):
        try:
            data = base64.b64decode(entry["b64_json"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise ModelFailure("undecodable_image", f"the reply's b64_json is no base64: {error}") from error
    elif entry.get("url"):
        data = _fetched(str(entry["url"]), patience)
    else:
        shown = json.dumps(body)[:300]
        raise ModelFailure("empty_image", "the reply holds no picture", reply=shown)
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error for broken files
        raise ModelFailure("undecodable_image", f"{type(error).__name__}: {error}", size=len(data)) from error
    return data


def _fetched(url: str, patience: Patience) -> bytes:
    """A picture that the provider stored instead of sending it; the key does not travel there."""
    import httpx

    try:
        reply = _client(None).get(url, timeout=patience.timeout_s)
        reply.raise_for_status()
    except httpx.HTTPError as error:
        raise InfrastructureFailure("connection", f"the picture's address failed: {type(error).__name__}") from error
    return reply.content
