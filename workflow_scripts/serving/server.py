"""One model server: a pipeline behind the images API on a Unix socket. Started by `launcher`, never by hand in a run.

    python -m workflow_scripts.serving.server FOLDER      (FOLDER holds spec.json)

- `POST /v1/images/edits`: multipart `image[]` (or `image`), `prompt`, `size` ("WxH"), `seed`, `extra` (JSON: task,
  steps, guidance, true_cfg, negative_prompt, image_guidance); answers `{"data": [{"b64_json": PNG}]}`.
- `GET /health`: 200 once a warm-up generation has succeeded, 503 with the phase before; names what is loaded.
- `GET /metrics`: Prometheus text.
- `POST /quit`: goes, if nothing waits or runs.

Every request carries the token that server.json holds (mode 0600). Threads: the event loop answers HTTP; one thread
loads the pipeline and is the only one ever to call it; one watches over leases (who still needs the server), idle
time and a call that got stuck. The process goes by `os._exit`, because a CUDA call in progress cannot be interrupted.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import os
import secrets
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..failures import Failure, InfrastructureFailure, ModelFailure
from ..records import png_bytes, write_bytes, write_json
from . import leases
from .batcher import Batcher, QueueFull, Ticket
from .spec import ONE_IMAGE, ServerSpec

if TYPE_CHECKING:
    from PIL.Image import Image

    from .pipelines import Edit, EditPipeline

log = logging.getLogger("guiloop.server")

LEASE_GRACE_S = 5.0
"""Seconds without any living user before the server goes; bridges the gap between two jobs of a run."""
QUIT_IDLE_S = 3.0
"""A server that has been idle for less does not make room for another model: its next request is on its way."""
MAX_UPLOAD = 128 << 20
MAX_SIDE = 8192


class BadRequest(ValueError):
    """A request that no retry mends (HTTP 400)."""


class Server:
    """State shared by the three threads; every attribute is written by one of them only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        start = json.loads((folder / "spec.json").read_text())
        self.slot: str = start["slot"]
        self.spec = ServerSpec(**start["spec"])
        self.batcher = Batcher(self.spec.batch_size, self.spec.max_queue)
        self.token = secrets.token_urlsafe(24)
        self.phase = "importing"
        self.loaded: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.started = self.last_request = self.ready_since = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last request came or was answered, or since the server became ready."""
        return time.monotonic() - max(self.last_request, self.ready_since)

    # ------------------------------------------------------------------ the pipeline's thread

    def work(self) -> None:
        """Loads, warms up, then runs batches for ever. Goes with status 3 where loading fails."""
        try:
            pipeline = self._load()
        except Exception as error:
            self._give_up(error)
        self.ready_since = time.monotonic()
        self.phase = "ready"
        log.info("ready after %.1f s: %s", time.monotonic() - self.started, self.loaded)
        while True:
            batch = self.batcher.take(1.0)
            if batch:
                self._run(pipeline, batch)

    def _load(self) -> EditPipeline:
        from . import pipelines

        log.info("loading %s (%s) on %s", self.spec.weights, self.spec.pipeline, self.slot)
        self.phase = "loading"
        pipelines.check_device(self.spec)
        pipeline = pipelines.EditPipeline(self.spec)
        self.phase = "warming up"
        pipeline.warm_up()
        self.loaded = pipeline.identity()
        return pipeline

    def _give_up(self, error: Exception) -> None:
        failure: Failure = InfrastructureFailure("load_failed", f"{type(error).__name__}: {error}")
        if isinstance(error, Failure):
            failure = error
        elif isinstance(error, ImportError):
            failure = InfrastructureFailure("missing_package", f"{error}; install the extra `images`")
        elif self.phase != "importing":
            from .pipelines import is_out_of_memory

            if is_out_of_memory(error):
                failure = InfrastructureFailure("device_memory", f"out of memory while {self.phase}: {error}")
        log.error("cannot serve: %s", failure, exc_info=error)
        write_json(self.folder / "failure.json", failure.record())
        self.leave(failure.code, 3)

    def _run(self, pipeline: EditPipeline, batch: list[Ticket]) -> None:
        """Runs one batch, in smaller parts where memory or a single row's error asks for it."""
        from . import pipelines

        begun = time.monotonic()
        group, parts = batch[0].group, [batch]
        while parts:
            part = parts.pop(0)
            limit = self.batcher.limit(group)
            if len(part) > limit:
                parts[:0] = [part[:limit], part[limit:]]
                continue
            error: Exception | None = None
            try:
                images = pipeline.generate([ticket.payload for ticket in part])
            except Exception as caught:
                error = caught.with_traceback(None) if pipelines.is_out_of_memory(caught) else caught
            self.counts["calls"] += 1
            self.counts["rows"] += len(part)
            if error is None:
                for ticket, image in zip(part, images, strict=True):
                    self._resolve(ticket, image)
            elif pipelines.is_device_fault(error):
                log.critical("the device is lost: %s", error)
                self.leave("device_lost", 4)
            elif len(part) > 1:
                if pipelines.is_out_of_memory(error):
                    self.counts["out_of_memory"] += 1
                    limit = self.batcher.out_of_memory(group, len(part))
                    log.warning("out of memory with %d rows; from now on at most %d for %s", len(part), limit, group)
                    error = None
                    pipelines.free_memory()
                    parts.insert(0, part)
                else:  # one row may be at fault: its batch-mates shall not pay for it
                    log.warning("a call of %d rows failed, running them one by one: %s", len(part), error)
                    parts[:0] = [[ticket] for ticket in part]
            else:
                self._resolve(part[0], self._failure(error))
        self.batcher.done(len(batch), time.monotonic() - begun)
        self.counts["busy_ms"] += int(1000 * (time.monotonic() - begun))

    def _failure(self, error: Exception) -> Failure:
        from . import pipelines

        if isinstance(error, Failure):
            return error
        if pipelines.is_out_of_memory(error):
            self.counts["out_of_memory"] += 1
            pipelines.free_memory()
            hint = "set `offload: model`, a smaller `max_pixels`, or use a larger device"
            return InfrastructureFailure("out_of_memory", f"one image alone does not fit into memory; {hint}")
        log.error("a call failed", exc_info=error)
        return InfrastructureFailure("generation_failed", f"{type(error).__name__}: {error}")

    @staticmethod
    def _resolve(ticket: Ticket, result: Image | Failure) -> None:
        if ticket.future.set_running_or_notify_cancel():
            ticket.future.set_result(result)

    # ------------------------------------------------------------------ HTTP

    async def edits(self, request: Request) -> Response:
        """POST /v1/images/edits."""
        if self.phase != "ready":
            return _error(503, "infrastructure", "not_ready", f"the server is {self.phase}", retry_after_s=2)
        self.counts["requests"] += 1
        self.last_request = time.monotonic()
        try:
            if int(request.headers.get("content-length", 0)) > MAX_UPLOAD:
                raise BadRequest(f"more than {MAX_UPLOAD >> 20} MB")
            async with request.form(max_files=32, max_part_size=MAX_UPLOAD) as form:
                task, edit = await self._edit(form)
            ticket = self.batcher.submit(task, edit.group, edit)
        except BadRequest as error:
            self.counts["refused"] += 1
            return _error(400, "infrastructure", "bad_request", str(error))
        except QueueFull as error:
            self.counts["queue_full"] += 1
            return _error(503, "infrastructure", "queue_full", str(error), retry_after_s=error.retry_after_s)
        result = await self._wait(request, ticket)
        self.last_request = time.monotonic()
        if isinstance(result, Failure):
            self.counts["failed"] += 1
            return _error(422 if isinstance(result, ModelFailure) else 500, result.kind, result.code, result.message)
        png = await asyncio.to_thread(png_bytes, result)
        self.counts["answered"] += 1
        data = [{"b64_json": base64.b64encode(png).decode()}]
        return JSONResponse({"created": int(time.time()), "data": data, "served_by": self.loaded})

    async def _edit(self, form: FormData) -> tuple[str, Edit]:
        """The request as a row. Raises BadRequest."""
        from .pipelines import Edit

        files = [v for k, v in form.multi_items() if k in ("image[]", "image") and isinstance(v, UploadFile)]
        if not files:
            raise BadRequest("no image[]")
        if self.spec.pipeline in ONE_IMAGE and len(files) > 1:
            raise BadRequest(f"{self.spec.pipeline} takes one image, not {len(files)}")
        data = [await file.read() for file in files]
        images = tuple(await asyncio.gather(*(asyncio.to_thread(_decoded, part) for part in data)))
        try:
            width, height = (int(side) for side in str(form["size"]).split("x"))
            extra = json.loads(str(form.get("extra") or "{}"))
            edit = Edit(
                prompt=str(form["prompt"]),
                images=images,
                width=width,
                height=height,
                seed=int(str(form["seed"])),
                steps=int(extra["steps"]),
                guidance=float(extra["guidance"]),
                true_cfg=float(extra.get("true_cfg", 1.0)),
                negative_prompt=str(extra.get("negative_prompt", "")),
                image_guidance=float(extra.get("image_guidance", 1.5)),
            )
        except KeyError as error:
            raise BadRequest(f"the field {error} is missing") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise BadRequest(f"a field has the wrong form: {error}") from error
        if not all(64 <= side <= MAX_SIDE and side % 16 == 0 for side in (width, height)):
            raise BadRequest(f"size {width}x{height}: sides must be multiples of 16 from 64 to {MAX_SIDE}")
        if edit.steps < 1 or not edit.prompt.strip():
            raise BadRequest("steps must be at least 1, prompt must not be blank")
        return str(extra.get("task", "")), edit

    async def _wait(self, request: Request, ticket: Ticket) -> Image | Failure:
        """The row's result; takes the request out of line when its client has gone."""
        future = asyncio.wrap_future(ticket.future)
        while True:
            done, _ = await asyncio.wait([future], timeout=2.0)
            if done:
                break
            if await request.is_disconnected():
                self.batcher.cancel(ticket)
                self.counts["abandoned"] += 1
                return InfrastructureFailure("client_gone", "the client has gone")
        result: Image | Failure = future.result()
        return result

    async def health(self, request: Request) -> Response:
        """GET /health."""
        body = {
            "status": self.phase,
            "slot": self.slot,
            "pending": self.batcher.pending,
            "seconds": round(time.monotonic() - self.started, 1),
            "weights": {"weights": self.spec.weights, "revision": self.spec.revision},
            **self.loaded,
        }
        return JSONResponse(body, 200 if self.phase == "ready" else 503)

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        lines = [f"guiloop_server_{name}_total {value}" for name, value in sorted(self.counts.items())]
        lines.append(f"guiloop_server_pending {self.batcher.pending}")
        lines.append(f"guiloop_server_ready {int(self.phase == 'ready')}")
        lines.append(f"guiloop_server_max_rows {self.batcher.max_rows}")
        for group, limit in self.batcher.limits.items():
            lines.append(f'guiloop_server_row_limit{{group="{group}"}} {limit}'.replace("'", ""))
        return PlainTextResponse("\n".join(lines) + "\n")

    async def quit(self, request: Request) -> Response:
        """POST /quit: makes room for another model on this slot."""
        if self.phase != "ready" or self.batcher.pending or self.idle_s < QUIT_IDLE_S:
            return _error(409, "infrastructure", "busy", "requests wait or run")
        threading.Timer(0.1, self.leave, ("asked to make room", 0)).start()
        return JSONResponse({"status": "leaving"})

    async def guarded(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application: checks the token, then routes."""
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
            if not secrets.compare_digest(given, f"Bearer {self.token}"):
                await _error(401, "infrastructure", "unauthorized", "wrong token")(scope, receive, send)
                return
        await self._routes(scope, receive, send)

    def serve(self) -> None:
        """Binds the socket, starts the threads, announces itself, serves for ever."""
        self._routes = Starlette(
            routes=[
                Route("/v1/images/edits", self.edits, methods=["POST"]),
                Route("/health", self.health),
                Route("/metrics", self.metrics),
                Route("/quit", self.quit, methods=["POST"]),
            ]
        )
        socket = self.folder / "socket"
        socket.unlink(missing_ok=True)
        config = uvicorn.Config(
            self.guarded,
            uds=str(socket),
            interface="asgi3",
            log_level="warning",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        threading.Thread(target=self.watch, name="watch", daemon=True).start()
        threading.Thread(target=self.work, name="pipeline", daemon=True).start()
        threading.Thread(target=self._announce, args=(server,), name="announce", daemon=True).start()
        server.run()
        self.leave("the HTTP server ended", 0)

    def _announce(self, server: uvicorn.Server) -> None:
        while not server.started:
            time.sleep(0.01)
        socket = self.folder / "socket"
        socket.chmod(0o600)
        record = {**leases.own_process(), "slot": self.slot, "token": self.token, "socket": str(socket)}
        path = self.folder / "server.json"
        path.unlink(missing_ok=True)
        mask = os.umask(0o077)
        write_bytes(path, json.dumps(record).encode())
        os.umask(mask)

    # ------------------------------------------------------------------ the watch

    def watch(self) -> None:
        """Goes when nobody needs the server any more, when it is idle, or when a call is stuck."""
        alone_since: float | None = None
        while True:
            time.sleep(1.0)
            now = time.monotonic()
            if leases.living(self.folder):
                alone_since = None
            elif alone_since is None:
                alone_since = now
            elif now - alone_since > LEASE_GRACE_S:
                self.leave("nobody is left who uses it", 0)
            if self.phase == "ready" and not self.batcher.pending and self.idle_s > self.spec.idle_s:
                self.leave(f"idle for {self.spec.idle_s:.0f} s", 0)
            if self.batcher.running_s > self.spec.timeout_s:
                self.leave(f"a call has run for more than {self.spec.timeout_s:.0f} s", 5)

    def leave(self, why: str, status: int) -> None:
        """Ends the process at once; its memory on the device is free when it is gone."""
        log.info("leaving: %s", why)
        for name in ("server.json", "socket"):
            (self.folder / name).unlink(missing_ok=True)
        logging.shutdown()
        os._exit(status)


def _decoded(data: bytes) -> Image:
    """A picture as RGB; transparent parts turn white. Raises BadRequest."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            if max(image.size) > MAX_SIDE:
                raise BadRequest(f"an image of {image.width}x{image.height} pixels; at most {MAX_SIDE} a side")
            if image.mode in ("RGBA", "LA", "PA"):
                white = Image.new("RGBA", image.size, "white")
                return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
            return image.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise BadRequest(f"an image that cannot be decoded: {error}") from error


def _error(status: int, kind: str, code: str, message: str, retry_after_s: float | None = None) -> Response:
    headers = {"Retry-After": str(max(1, round(retry_after_s)))} if retry_after_s else None
    body = {"error": {"message": message, "type": kind, "code": code}}
    return JSONResponse(body, status, headers=headers)


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(threadName)s: %(message)s"
    )
    Server(Path(sys.argv[1])).serve()
