"""A draft in, a score out: the rewards behind one interface, with the features of references kept.

What the coder got wrong (`ModelFailure`: too long, never done, crashes the page) is a score of 0 with the reason. What
we got wrong (`InfrastructureFailure`) is raised: it is nobody's score.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ..failures import InvalidInput, ModelFailure
from ..identity import bytes_digest
from . import original
from .blocks import Camera, Snapshot
from .pages import PageTask
from .reward import Reward, RewardConfig, config_record, reward

T = TypeVar("T")
DEFAULT = RewardConfig()


@dataclass(frozen=True)
class Score:
    """What a draft is worth.

    Attributes:
        total: in [0, 1].
        parts: every part by name, each in [0, 1]; empty after a failure.
        png: the draft's render; None after a failure.
        failure: ``{"kind": "model", "code": …, "message": …}`` or None.
        candidate, detail: what was seen and matched, for a viewer (the visible reward only).
    """

    total: float
    parts: dict[str, float] = field(default_factory=dict)
    png: bytes | None = field(default=None, repr=False)
    failure: dict[str, Any] | None = None
    candidate: Snapshot | None = field(default=None, repr=False)
    detail: Reward | None = field(default=None, repr=False)


class Scorer(Protocol):
    """Scores drafts of tasks; used from many threads."""

    def reference_png(self, task: PageTask) -> bytes:
        """The screenshot that a policy sees."""

    def score(self, task: PageTask, reply: str) -> Score:
        """The score of a model's reply. Raises InfrastructureFailure, or InvalidInput for a task that is no page."""

    def record(self) -> dict[str, Any]:
        """What changes a score; part of identities."""


class Cache(Generic[T]):
    """The last `size` values by key; one value per key is made at a time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[str, T] = OrderedDict()
        self._making: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """The value of `key`, made by ``make()`` if it is not there; exceptions are not kept."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if key in self._values:
                    self._values.move_to_end(key)
                    return self._values[key]
            value = make()
            with self._lock:
                self._values[key] = value
                while len(self._values) > self._size:
                    old, _ = self._values.popitem(last=False)
                    self._making.pop(old, None)
            return value


def extract_html(reply: str) -> str:
    """The document in a model's reply: thoughts and prose around it removed.

    ``<think>`` blocks go first (an unclosed one swallows the rest: nothing of it was meant to be shown); then the last
    fenced block that holds a tag wins, else everything from the first ``<!DOCTYPE`` or ``<html`` on, else the reply.
    """
    text = re.sub(r"<think>.*?(</think>|\Z)", "", reply, flags=re.S | re.I)
    fences = [body for body in re.findall(r"```[a-z]*[ \t]*\n(.*?)(?:```|\Z)", text, re.S | re.I) if "<" in body]
    if fences:
        return str(fences[-1]).strip()
    start = re.search(r"<!doctype|<html", text, re.I)
    end = text.lower().rfind("</html>")
    if start:
        return text[start.start() : end + len("</html>") if end > start.start() else None].strip()
    return text.strip()


class VisibleScorer:
    """The reward of `reward`, over what can be seen."""

    def __init__(self, config: RewardConfig = DEFAULT, camera: Camera | None = None, references: int = 64) -> None:
        self.config, self.camera = config, camera or Camera()
        self._references: Cache[Snapshot] = Cache(references)

    def reference(self, task: PageTask) -> Snapshot:
        """What can be seen of the task's own page. Raises InvalidInput if that is nothing, or it cannot be rendered."""

        def look() -> Snapshot:
            try:
                seen = self.camera.look(task.html, task.width, task.height)
            except ModelFailure as failure:
                raise _bad(task, str(failure)) from failure
            if not (seen.text or len(seen.boxes)):
                raise _bad(task, "a page without a visible word or box")
            return seen

        return self._references.get(_key(task), look)

    def reference_png(self, task: PageTask) -> bytes:
        """See `Scorer`."""
        return self.reference(task).png

    def score(self, task: PageTask, reply: str) -> Score:
        """See `Scorer`."""
        reference = self.reference(task)
        try:
            seen = self.camera.look(extract_html(reply), task.width, task.height)
        except ModelFailure as failure:
            return Score(0.0, failure=failure.record())
        detail = reward(reference, seen, self.config)
        return Score(detail.total, detail.parts(), seen.png, _gate(detail), seen, detail)

    def record(self) -> dict[str, Any]:
        """See `Scorer`."""
        return {"reward": "visible", "weights": config_record(self.config), "camera": self.camera.record()}


class OriginalScorer:
    """The eight-part reward of `original`."""

    def __init__(self, camera: Camera | None = None, references: int = 64) -> None:
        self.camera = camera or Camera()
        self._references: Cache[original.OriginalPage] = Cache(references)

    def _look(self, html: str, task: PageTask, reply: str | None = None) -> original.OriginalPage:
        options = {"timeout_s": self.camera.timeout_s, "max_chars": self.camera.max_chars}
        return original.look(self.camera.pool, html, task.width, task.height, reply=reply, **options)

    def _reference(self, task: PageTask) -> original.OriginalPage:
        def look() -> original.OriginalPage:
            try:
                return self._look(task.html, task)
            except ModelFailure as failure:
                raise _bad(task, str(failure)) from failure

        return self._references.get(_key(task), look)

    def reference_png(self, task: PageTask) -> bytes:
        """See `Scorer`."""
        return self._reference(task).png

    def score(self, task: PageTask, reply: str) -> Score:
        """See `Scorer`."""
        reference = self._reference(task)
        try:
            page = self._look(extract_html(reply), task, reply)
        except ModelFailure as failure:
            return Score(0.0, failure=failure.record())
        parts = original.original_reward(reference, page)
        return Score(parts.pop("total"), parts, page.png)

    def record(self) -> dict[str, Any]:
        """See `Scorer`."""
        return {"reward": "original", "weights": original.WEIGHTS, "camera": self.camera.record()}


def make_scorer(name: str, config: RewardConfig = DEFAULT, camera: Camera | None = None) -> Scorer:
    """The scorer of a name: ``visible`` or ``original``. ValueError for others."""
    if name == "visible":
        return VisibleScorer(config, camera)
    if name == "original":
        return OriginalScorer(camera)
    raise ValueError(f"reward {name!r}: expected visible or original")


def _bad(task: PageTask, found: str) -> InvalidInput:
    return InvalidInput(task.id, "html", "a page that can be rendered and seen", found, "remove the page from the set")


def _key(task: PageTask) -> str:
    return bytes_digest(f"{task.width}x{task.height}\n{task.html}".encode())


def _gate(detail: Reward) -> dict[str, Any] | None:
    if detail.gate is None:
        return None
    return ModelFailure(f"reward_{detail.gate}", "nothing can be seen on the page").record()
