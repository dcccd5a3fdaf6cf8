"""World models that write the next screen as an HTML page, over chat completions.

A step is one request: the current screen (with the action's cue, if the style has one), a text about the action, and
before them the earlier screens that the setting shows, each with a line naming its step and action. The page in the
reply is rendered by the sandboxed browser. Four styles differ in their prompts and in `html_rows.STYLES`: code2world,
gworld, mobileworld and generic (GUI-CC's closed_html). The history window may have any length.

Layout: the page is laid out in a viewport as wide as the canvas that its model was asked to fill and shaped like the
frame, and pictured at frame width / canvas width device pixels per CSS pixel. So the picture has the frame's size at
once and nothing is stretched: a canvas longer than the frame is cut at the bottom, a shorter one is followed by the
page's own background (white if it has none), and so is every other overflow. Widths rule because what the next action
needs (texts, sizes of controls, distances from the top) keeps its proportions then, whereas fitting a canvas of another
shape into the frame distorts all of them, and growing the viewport with the content, as GUI-CC does, shrinks them.

Left out: streaming, asking again after a bad reply (a bad reply is a result), fragments that are no whole document,
style sheets and scripts from elsewhere (the browser has no network).
"""

from __future__ import annotations

import io
import json
import math
import re
import socket
import urllib.parse
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from ..actions import Action
from ..browser.fonts import renderer_identity
from ..browser.pool import shared_pool
from ..chat import ChatClient, Reply, image_part, text_part, without_images
from ..failures import InfrastructureFailure, InvalidInput, ModelFailure, from_os_error
from ..records import png_bytes
from ..tasks import Task
from .base import Prediction, StepRequest
from .cues import draw_cue, has_cue
from .html_rows import HtmlRow
from .image_prompts import Prompt

VERSION = 1
"""Part of the identity: raised when the make-up of a request, the reading of a reply or the layout changes."""
SCALES = (0.1, 8.0)
"""Device pixels per CSS pixel that the browser can do."""


class HtmlWorld:
    """Asks the model of one row. Stateless; used from many threads."""

    def __init__(self, row: HtmlRow) -> None:
        self._row = row
        self._shown = row.shown
        self._chat = ChatClient(row.endpoint, row.model, row.api_key_env, row.timeout_s, row.max_attempts)

    @cached_property
    def _prompts(self) -> tuple[Prompt, Prompt]:
        """The style's own, and the phrases for actions that all styles share."""
        return Prompt.load(f"html_{self._row.style}", lines=True), Prompt.load("html_actions", lines=True)

    def identity(self) -> dict[str, Any]:
        """What is asked, of whom, and how the answer is rendered; not the endpoint, key, time-outs and attempts."""
        row = self._row
        style, actions = self._prompts
        fields = {"style", "model", "revision", "max_tokens", "temperature", "seed", "extra_body", "javascript"}
        return {
            "world": "html",
            "version": VERSION,
            **row.model_dump(include=fields),
            **self._shown._asdict(),
            "prompts": {"style": style.digest, "actions": actions.digest},
            "renderer": renderer_identity(),
        }

    def check_task(self, task: Task) -> None:
        """Raises InvalidInput where the row's canvas is out of all proportion to the task's frames."""
        width, _ = canvas_size(self._shown.canvas, task.width, task.height)
        low, high = SCALES
        if not low <= task.width / width <= high:
            least, most = math.ceil(task.width / high), math.floor(task.width / low)
            expected = f"a width from {least} to {most} for task {task.task_id}"
            raise InvalidInput("config", "models.….canvas", expected, self._shown.canvas, "canvas: frame")

    def preflight(self) -> list[str]:
        from ..browser.find import find_browser

        problems = []
        if name := self._chat.missing_key():
            problems.append(f"the environment variable {name} (key of {self._row.model}) is not set: export {name}=…")
        if not _answers(self._row.endpoint):
            problems.append(
                f"nothing answers at {self._row.endpoint}: start the server of {self._row.model} there, or set "
                "`endpoint:` of its row"
            )
        try:
            find_browser()
        except InfrastructureFailure as failure:
            problems.append(failure.message)
        return problems

    def predict(self, request: StepRequest) -> Prediction:
        """The next screen.

        Raises InvalidInput (no key), InfrastructureFailure (see `ChatClient.complete` and `BrowserPool.render`) and
        ModelFailure: the codes of `read_page` and those of `BrowserPool.render`.
        """
        row, task = self._row, request.task
        messages = self.messages(request)
        reply = self._chat.complete(
            messages,
            max_tokens=row.max_tokens,
            temperature=row.temperature,
            seed=request.seed if row.seed == "step" else row.seed,
            extra_body=row.extra_body,
            retry_seed=("html", task.task_id, request.step),
        )
        evidence = _evidence(messages, reply)
        scale = scale_of(self._shown.canvas, task.width, task.height)
        html = None
        try:
            html = read_page(reply.content, reply.finish_reason, reply.refusal)
            rendered = shared_pool().render(
                html,
                task.width,
                task.height,
                scale=scale,
                javascript=row.javascript,
                timeout_s=row.render_timeout_s,
            )
        except ModelFailure as failure:
            if html is not None:
                evidence["render"] = {**renderer_identity(), "browser": shared_pool().version}
            failure.detail.update(evidence=evidence, raw=reply.content)
            raise
        evidence["render"] = {**rendered.evidence, "scale": scale}
        return Prediction(png=rendered.png, html=html, raw=reply.content, evidence=evidence)

    def messages(self, request: StepRequest) -> list[dict[str, Any]]:
        """The request's chat messages."""
        style, _ = self._prompts
        width, height = canvas_size(self._shown.canvas, request.task.width, request.task.height)
        marked = self._shown.cue and has_cue(request.action)
        common = {
            "width": width,
            "height": height,
            "cue": style.fill("cue") if self._shown.cue else "",
            "history": style.fill("history") if request.history else "",
        }
        content: list[dict[str, Any]] = []
        for past in request.history:
            known = self._action(past.action, request.task, marked=False)
            content.append(text_part(_tidy(style.fill("past", step=past.step, **known))))
            content.append(image_part(_read(past.frame)))
        if request.history:
            content.append(text_part(_tidy(style.fill("current", step=request.step))))
        screen = _read(request.frame)
        content.append(image_part(_marked(screen, request.action) if marked else screen))
        known = self._action(request.action, request.task, marked=marked)
        details = self._details(request.action, request.task)
        content.append(text_part(_tidy(style.fill("user", details=details, **known, **common))))
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if system := _tidy(style.fill("system", **common)):
            if common["history"]:
                system = f"{system}\n\n{common['history']}"
            messages.insert(0, {"role": "system", "content": system})
        return messages

    def _action(self, action: Action, task: Task, *, marked: bool) -> dict[str, str]:
        """The action as a sentence and as JSON."""
        _, phrases = self._prompts
        if action.instruction and action.type in ("tap", "long_press"):
            sentence = phrases.fill("instructed", instruction=action.instruction.rstrip("."))
        else:
            nameless = phrases.fill("nameless_marked" if marked else "nameless")
            sentence = phrases.fill(
                action.type,
                target=action.target or nameless,
                direction=action.direction,
                text=action.text,
                app_name=action.app_name,
            )
        return {"action": sentence, "action_json": json.dumps(self._fields(action, task), ensure_ascii=False)}

    def _fields(self, action: Action, task: Task) -> dict[str, Any]:
        """The action in gWorld's form; scrolls, system buttons and apps, which it leaves open, in its manner."""
        fields: dict[str, Any] = {"action_type": "TYPE" if action.type == "type_text" else action.type.upper()}
        if point := self._point(action, task):
            fields["coordinates"] = list(point)
        optional = {"direction": action.direction, "text": action.text, "app_name": action.app_name}
        return {**fields, **{name: value for name, value in optional.items() if value is not None}}

    def _details(self, action: Action, task: Task) -> str:
        """The lines about target and place, where the style has them and the action too."""
        style, phrases = self._prompts
        lines = [style.fill("target", target=action.target)] if action.target else []
        if point := self._point(action, task):
            digits = 3 if self._shown.coordinates == "relative" else 0
            x, y = (f"{value:.{digits}f}" for value in point)
            lines.append(style.fill("location", x=x, y=y, scale=phrases.fill(self._shown.coordinates)))
        return "\n".join(line for line in lines if line)

    def _point(self, action: Action, task: Task) -> tuple[float, float] | None:
        """Where the action lands, in the row's coordinates."""
        if action.x is None or action.y is None or self._shown.coordinates == "none":
            return None
        x, y = action.x / task.width, action.y / task.height
        if self._shown.coordinates == "permille":
            return round(x * 1000), round(y * 1000)
        return round(x, 3), round(y, 3)


# --- layout -----------------------------------------------------------------------------------------------------------


def canvas_size(canvas: str, width: int, height: int) -> tuple[int, int]:
    """Width and height in CSS pixels that the model is asked to fill, for a frame of `width` × `height` pixels."""
    if canvas == "frame":
        return width, height
    across, _, down = canvas.partition("x")
    return int(across), int(down) if down else max(1, round(int(across) * height / width))


def scale_of(canvas: str, width: int, height: int) -> float:
    """Device pixels per CSS pixel at which the canvas is as wide as the frame."""
    across, _ = canvas_size(canvas, width, height)
    scale = width / across
    # The quotient of the quotient may lie a hair above the whole number, and viewports are rounded up.
    return scale if math.ceil(width / scale) == across else math.nextafter(scale, math.inf)


# --- replies ----------------------------------------------------------------------------------------------------------

_THOUGHT = re.compile(r"<(think|thinking)>.*?</\1>", re.IGNORECASE | re.DOTALL)
_THOUGHT_END = re.compile(r".*</think(?:ing)?>", re.IGNORECASE | re.DOTALL)
_THOUGHT_START = re.compile(r"<think(?:ing)?>.*", re.IGNORECASE | re.DOTALL)
_FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)
_DOCTYPE = re.compile(r"<!doctype\s+html", re.IGNORECASE)
_START = re.compile(r"<!doctype\s+html|<html[\s>]", re.IGNORECASE)
_END = re.compile(r"</html\s*>", re.IGNORECASE)


def read_page(content: str | None, finish_reason: str | None = None, refusal: str | None = None) -> str:
    """The HTML document in a reply: fenced or bare, after any thoughts, from its doctype or ``<html`` to ``</html>``.

    Of several documents the last one that is whole counts: earlier ones are drafts. Raises ModelFailure:
    ``content_filtered``, ``refused``, ``empty_reply``, ``cut_off`` (at max_tokens), ``cut_off_html`` (the document has
    no end, though the model said that it was done), ``no_html``.
    """
    if finish_reason == "content_filter":
        raise ModelFailure("content_filtered", "the reply was filtered")
    if refusal:
        raise ModelFailure("refused", f"the model refused: {refusal[:200]}")
    answer = without_thoughts(content or "")
    begun = False
    for candidate in _documents(answer):
        begun = True
        if ends := list(_END.finditer(candidate)):
            return candidate[: ends[-1].end()]
    if finish_reason == "length":
        raise ModelFailure("cut_off", "the reply was cut off at max_tokens")
    if not (content or "").strip():
        raise ModelFailure("empty_reply", "the reply is empty")
    if begun:
        raise ModelFailure("cut_off_html", "the page in the reply has no </html>")
    raise ModelFailure("no_html", f"no HTML document in the reply: {answer.strip()[:200]!r}")


def without_thoughts(text: str) -> str:
    """`text` without think-blocks. A block that a chat template opened has only its end in the reply, one that was cut
    off only its beginning."""
    text = _THOUGHT.sub("", text)
    return _THOUGHT_START.sub("", _THOUGHT_END.sub("", text, count=1), count=1)


def _documents(text: str) -> Iterator[str]:
    """Where documents begin, the likeliest first, each with all that follows in its fence or in the text."""
    for block in reversed(_FENCED.findall(text)):
        if start := _START.search(block):
            yield block[start.start() :]
    doctypes = list(_DOCTYPE.finditer(text))
    if start := doctypes[-1] if doctypes else _START.search(text):
        yield text[start.start() :]


def _evidence(messages: list[dict[str, Any]], reply: Reply) -> dict[str, Any]:
    return {
        "messages": without_images(messages),
        "response_model": reply.model,
        "finish_reason": reply.finish_reason,
        "usage": reply.usage,
        "reasoning": reply.reasoning,
        "seconds": round(reply.request_seconds, 3),
        "attempts": [dict(attempt) for attempt in reply.attempts],
    }


# --- small things -----------------------------------------------------------------------------------------------------


def _tidy(text: str) -> str:
    """`text` without the gaps that empty placeholders leave."""
    return re.sub(r"[ \t]*\n(?:[ \t]*\n)+", "\n\n", text).strip()


def _read(frame: Path) -> bytes:
    try:
        return frame.read_bytes()
    except OSError as error:
        raise from_os_error(error, f"cannot read {frame}") from error


def _marked(png: bytes, action: Action) -> bytes:
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        return png_bytes(draw_cue(image, action))


def _answers(endpoint: str) -> bool:
    """Whether something listens at an endpoint on this machine; others may lie behind a proxy and are not tried."""
    url = urllib.parse.urlsplit(endpoint)
    host = url.hostname or ""
    if not (host in ("localhost", "::1") or host.startswith("127.")):
        return True
    try:
        socket.create_connection((host, url.port or (443 if url.scheme == "https" else 80)), timeout=3).close()
    except OSError:
        return False
    return True
