"""A local server with the two endpoints of the OpenAI API that guiloop uses, whose behaviour a test decides.

    POST /v1/chat/completions     what the script says
    POST /v1/images/edits         the sent image with a rectangle on it, both a function of the request
    GET  /health  /v1/models

Inside a test it runs in a thread; `script` is a list of `Response`s, one a request, or a function of the request:

    with FakeOpenAI([error(503), tool_call({"action": "wait"})]) as server:
        ChatClient(server.base_url, "m", None).complete(...)
        assert len(server.requests) == 2

As a process of its own it answers by a named script, a function of each request alone: reruns get equal replies.

    python -m tests.servers.fake_openai --port 0 --script tap-center --turns 3 --latency 0.5 --log requests.jsonl

It prints ``listening on http://127.0.0.1:PORT/v1`` once it answers. Left out: streaming, checks of a request's schema.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal


@dataclass
class Request:
    """One request as it came in; header names are in lower case. `body` is the parsed JSON, or the fields of a form."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: Any
    in_flight: int = 1

    @property
    def user_text(self) -> str:
        """Text of the last user message."""
        for message in reversed(self.body.get("messages", [])):
            if message["role"] == "user":
                content = message["content"]
                parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
                return "\n".join(part["text"] for part in parts if part["type"] == "text")
        return ""

    @property
    def images(self) -> list[bytes]:
        """The images of all messages, in order."""
        parts = [p for m in self.body.get("messages", []) if isinstance(m["content"], list) for p in m["content"]]
        urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
        return [base64.b64decode(url.partition(";base64,")[2]) for url in urls]

    @property
    def turn(self) -> int:
        """The planner's turn, counted from 1, as its prompt names it."""
        match = re.search(r"\bturn (\d+)\b", self.user_text)
        return int(match[1]) if match else 1


@dataclass
class Response:
    """What to answer.

    Attributes:
        body: JSON value, or text or bytes sent as they are.
        delay_s: pause before the answer.
        drop: close the connection without an answer, or in the middle of it.
        drip_s: pause between single bytes of the body.
    """

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    drop: Literal["", "before", "midway"] = ""
    drip_s: float = 0.0


Script = Callable[[Request], Response] | Sequence[Response]
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def completion(message: dict[str, Any], finish_reason: str = "stop", model: str = "", **more: Any) -> Response:
    """A chat completion with one choice; an empty `model` names the one asked for."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    body = {
        "id": "fake",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [choice],
        "usage": USAGE,
    }
    return Response(body={**body, **more})


def text(content: str, **more: Any) -> Response:
    """A completion that is text."""
    return completion({"content": content}, **more)


def tool_call(*arguments: Any, name: str = "computer", content: str | None = None, **more: Any) -> Response:
    """A completion with one tool call for each of `arguments`; a string is sent as it is, anything else as JSON."""
    calls = []
    for position, value in enumerate(arguments):
        written = value if isinstance(value, str) else json.dumps(value)
        function = {"name": name, "arguments": written}
        calls.append({"id": f"call_{position}", "type": "function", "function": function})
    return completion({"content": content, "tool_calls": calls}, **{"finish_reason": "tool_calls", **more})


def error(status: int, message: str = "", code: str | None = None, param: str | None = None, **more: Any) -> Response:
    """An error in OpenAI's form."""
    fields = {"message": message or f"status {status}", "type": "error", "code": code, "param": param}
    return Response(status, {"error": fields}, **more)


class FakeOpenAI:
    """The server. A context manager; `base_url` is valid inside.

    Attributes:
        requests: all requests so far, in order of arrival; `authorization` headers are in them.
        most_in_flight: the largest number of requests that were being answered at one time.
    """

    def __init__(
        self,
        script: Script = (),
        *,
        latency_s: float = 0.0,
        log: str | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self.requests: list[Request] = []
        self.most_in_flight = 0
        self._script, self._latency_s, self._log = script, latency_s, log
        self._in_flight = 0
        self._lock = threading.Lock()
        server = self

        class Handler(_Handler):
            fake = server

        self._http = _Server((host, port), Handler)
        self.base_url = f"http://{host}:{self._http.server_address[1]}/v1"

    def __enter__(self) -> FakeOpenAI:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    def serve(self) -> None:
        """Serves in this thread until the process gets SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: threading.Thread(target=self._http.shutdown).start())
        self._http.serve_forever(0.05)
        self._http.server_close()

    def begin(self, method: str, path: str, headers: dict[str, str], body: Any) -> Request:
        with self._lock:
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            request = Request(len(self.requests) + 1, method, path, headers, body, self._in_flight)
            self.requests.append(request)
        if self._log:
            line = json.dumps(_log_record(request), ensure_ascii=False) + "\n"
            with open(self._log, "ab") as stream:  # one append each, so that a kill leaves whole lines
                stream.write(line.encode())
        return request

    def end(self) -> None:
        with self._lock:
            self._in_flight -= 1

    def answer(self, request: Request) -> Response:
        if self._latency_s:
            time.sleep(self._latency_s)
        if request.path.endswith("/images/edits"):
            return edited(request)
        if not request.path.endswith("/chat/completions"):
            return error(404, f"no such path: {request.path}")
        if callable(self._script):
            response = self._script(request)
        elif request.number <= len(self._script):
            response = self._script[request.number - 1]
        else:
            response = error(400, f"the script has {len(self._script)} responses, this is request {request.number}")
        if isinstance(response.body, dict) and response.body.get("model") == "":
            response.body["model"] = request.body.get("model")
        return response


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is part of the tests; everything else is shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    fake: FakeOpenAI
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        found = {"/health": {"status": "ok"}, "/v1/models": {"object": "list", "data": [{"id": "fake"}]}}.get(self.path)
        self._send(Response(200, found) if found else error(404))

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        kind = headers.get("content-type", "")
        body = form(data, kind) if kind.startswith("multipart/form-data") else json.loads(data)
        request = self.fake.begin("POST", self.path, headers, body)
        try:
            self._send(self.fake.answer(request))
        finally:
            self.fake.end()

    def _send(self, response: Response) -> None:
        time.sleep(response.delay_s)
        body = response.body
        data = (
            body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        )
        if response.drop == "before":
            self._hang_up()
            return
        self.send_response(response.status)
        for name, value in {"Content-Type": "application/json", **response.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if response.drop == "midway":
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self._hang_up()
        elif response.drip_s:
            for byte in data:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(response.drip_s)
        else:
            self.wfile.write(data)
            self.wfile.flush()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: `--log` has what is worth knowing."""


def form(data: bytes, content_type: str) -> dict[str, list[bytes]]:
    """The fields of a multipart form (RFC 7578); files and texts alike as bytes."""
    boundary = re.search(r'boundary="?([^";]+)', content_type)
    if boundary is None:
        raise ValueError(f"no boundary in {content_type!r}")
    fields: dict[str, list[bytes]] = {}
    for part in data.split(b"--" + boundary[1].encode())[1:-1]:
        head, _, value = part.partition(b"\r\n\r\n")
        name = re.search(rb'name="([^"]*)"', head)
        if name:
            fields.setdefault(name[1].decode(), []).append(value.removesuffix(b"\r\n"))
    return fields


def edited(request: Request) -> Response:
    """Answers an image edit: the first image with a rectangle whose place and colour follow from image and prompt.

    The first image in ``image`` or ``image[]`` is edited; ``size`` (``WxH``) resizes it first.
    """
    from PIL import Image, ImageDraw

    fields = request.body
    sent = (fields.get("image") or fields.get("image[]") or [b""])[0]
    prompt = fields.get("prompt", [b""])[0]
    key = hashlib.sha256(hashlib.sha256(sent).digest() + prompt).digest()
    with Image.open(io.BytesIO(sent)) as opened:
        image = opened.convert("RGB")
    size = re.fullmatch(rb"(\d+)x(\d+)", fields.get("size", [b""])[0])
    if size:
        image = image.resize((int(size[1]), int(size[2])))
    width, height = image.size
    left, top = key[0] * width // 512, key[1] * height // 512
    box = (left, top, left + width // 3, top + height // 3)
    ImageDraw.Draw(image).rectangle(box, fill=(key[2], key[3], key[4]), outline=(0, 0, 0))
    stream = io.BytesIO()
    image.save(stream, format="PNG")
    return Response(body={"created": 0, "data": [{"b64_json": base64.b64encode(stream.getvalue()).decode()}]})


# --- named scripts: functions of one request --------------------------------------------------------------------------


def tap_center(request: Request, turns: int) -> Response:
    """Taps the middle of the screen; ends with success at turn `turns`. Without tools in the request: `page`."""
    if "tools" not in request.body:
        return page(request)
    if request.turn >= turns:
        return tool_call({"thinking": "It is done.", "action": "terminate", "status": "success"})
    width, height = png_size(request.images[-1])
    return tool_call({"thinking": f"Turn {request.turn}.", "action": "tap", "coordinate": [width // 2, height // 2]})


def walk(request: Request, turns: int) -> Response:
    """Does something else every turn, a function of instruction and turn; ends with an answer at turn `turns`."""
    if "tools" not in request.body:
        return page(request)
    if request.turn >= turns:
        return tool_call({"thinking": "Enough.", "action": "answer", "answer_text": f"after {turns} turns"})
    width, height = png_size(request.images[-1])
    instruction = request.user_text.partition("Actions so far")[0]
    key = hashlib.sha256(f"{instruction} {request.turn}".encode()).digest()
    point = [key[0] * width // 256, key[1] * height // 256]
    actions: list[dict[str, Any]] = [
        {"action": "tap", "coordinate": point, "target": "something"},
        {"action": "scroll", "coordinate": point, "direction": ("up", "down", "left", "right")[key[2] % 4]},
        {"action": "type_text", "text": f"text {key[3]}"},
        {"action": "long_press", "coordinate": point},
        {"action": "wait"},
    ]
    return tool_call({"thinking": f"Turn {request.turn}.", **actions[key[4] % len(actions)]})


def page(request: Request) -> Response:
    """An HTML page whose colours follow from the request's texts and images, as an HTML world model would write one."""
    seen = json.dumps(request.body.get("messages"), sort_keys=True)
    key = hashlib.sha256(seen.encode()).hexdigest()
    width, height = png_size(request.images[-1]) if request.images else (320, 480)
    style = f"position:relative;width:{width}px;height:{height}px;overflow:hidden;background:#{key[:6]}"
    html = f"""<!DOCTYPE html>
<html><body style="margin:0">
<div id="render-target" style="{style}">
<h1 style="color:#{key[6:12]}">Screen {key[:8]}</h1><button>OK</button></div>
</body></html>"""
    return text(f"```html\n{html}\n```")


NAMED: dict[str, Callable[[Request, int], Response]] = {
    "tap-center": tap_center,
    "walk": walk,
    "page": lambda request, turns: page(request),
}


def png_size(data: bytes) -> tuple[int, int]:
    """Width and height in pixels from a PNG's header."""
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def _log_record(request: Request) -> dict[str, Any]:
    """One line of the log: what was asked, by digest where it is long. No headers: a key may be in them."""
    record = {"n": request.number, "time": round(time.time(), 3), "path": request.path, "in_flight": request.in_flight}
    if "messages" in request.body:
        text = request.user_text
        images = [hashlib.sha256(image).hexdigest() for image in request.images]
        digest = hashlib.sha256(json.dumps(request.body, sort_keys=True).encode()).hexdigest()
        record.update(model=request.body.get("model"), turn=request.turn, user_text=text, images=images, sha256=digest)
    elif isinstance(request.body.get("prompt"), list):
        record.update(prompt=request.body["prompt"][0].decode("utf-8", "replace"))
    return record


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A local stand-in for the OpenAI API.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--script", choices=sorted(NAMED), default="tap-center")
    parser.add_argument("--turns", type=int, default=3, help="at which turn planners end the task")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before every reply")
    parser.add_argument("--fail-every", type=int, default=0, help="every n-th request gets --fail-status")
    parser.add_argument("--fail-status", type=int, default=503)
    parser.add_argument("--log", help="file that gets one JSON line for every request")
    options = parser.parse_args(arguments)

    def script(request: Request) -> Response:
        if options.fail_every and request.number % options.fail_every == 0:
            return error(options.fail_status)
        return NAMED[options.script](request, options.turns)

    server = FakeOpenAI(script, latency_s=options.latency, log=options.log, port=options.port)
    print(f"listening on {server.base_url}", flush=True)
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
