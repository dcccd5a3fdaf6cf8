"""A tiny environment: the reference and every render are pictures that depend on a text, the reward on its letters.

No browser: what is tested here is the trainer. Its interface is that of `coder.environment.Environment`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from workflow_scripts.coder.train.prompts import Prompts
from workflow_scripts.failures import InfrastructureFailure
from workflow_scripts.records import png_bytes

SIZE = (64, 64)
SHORT = {
    "developer_system": "{width}",
    "developer_first": "Write.",
    "developer_revise": "{render_note} {html} {critique_note}",
    "critic_system": "{width}",
    "critic_user": "{render_note} {html}",
}


def picture(text: str, size: tuple[int, int] = SIZE) -> bytes:
    """A PNG of random blocks, a function of `text`."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    blocks = np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    return png_bytes(Image.fromarray(blocks).resize(size, Image.Resampling.NEAREST))


def short_prompts() -> Prompts:
    """Prompts of a few words: on a tiny model, most of the time goes into long ones."""
    prompts = Prompts()
    prompts.texts = dict(SHORT)
    return prompts


def letters(html: str) -> float:
    """Share of characters that are ASCII letters."""
    return sum(c.isascii() and c.isalpha() for c in html) / max(1, len(html))


@dataclass(frozen=True)
class Seen:
    """An observation; see `episodes.Observation`."""

    width: int
    reference: bytes
    done: bool = False
    reason: str | None = None
    draft: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    failure: dict[str, Any] | None = None
    render: bytes | None = None


class World:
    """One episode at a time."""

    def reset(self, task_id: str, seed: int, *, max_turns: int) -> Seen:
        self.reference, self.left = picture(f"{task_id} {seed}"), max_turns
        return Seen(SIZE[0], self.reference)

    def step(self, html: str) -> Seen:
        self.left -= 1
        over = self.left == 0
        reward = letters(html)
        failure = {"code": "no_html"} if "!" in html else None
        render = None if failure else picture(html)
        draft = 0.0 if failure else reward
        return Seen(
            SIZE[0], self.reference, over, "max_turns" if over else None, draft, {"letters": reward}, failure, render
        )


class Breaking(World):
    """Fails with an infrastructure failure at the calls of `step` numbered in `at` (counted over all episodes)."""

    at: frozenset[int] = frozenset()
    calls = 0

    def step(self, html: str) -> Seen:
        cls = type(self)
        cls.calls += 1
        if cls.calls - 1 in cls.at:
            raise InfrastructureFailure("browser_gone", "the browser went away")
        return super().step(html)
