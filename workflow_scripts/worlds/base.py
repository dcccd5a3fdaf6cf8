"""What every world model is to the loop: one request in, one predicted screen out.

A world keeps no state between steps: whatever it may look at is in the request, so that any step can be run alone, in
any process, in any order. Left out: how a family talks to its model (one module each) and which rows exist (`registry`,
`rows`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..actions import Action
from ..tasks import Task


@dataclass(frozen=True)
class Past:
    """An earlier step: the screen as it was before `action`."""

    step: int
    frame: Path
    action: Action


@dataclass(frozen=True)
class StepRequest:
    """One prediction asked for.

    Attributes:
        task: the task; its instruction is for the planner, a world model is not shown it.
        step: 0-based number of the action.
        frame: PNG of the current screen, task.width × task.height pixels.
        action: the action taken on `frame`; never a terminal one.
        history: earlier steps that the setting lets the model see, oldest first.
        actions: all actions 0 … step, for worlds that replay.
        seed: seed of this step for worlds that sample.
    """

    task: Task
    step: int
    frame: Path
    action: Action
    history: tuple[Past, ...]
    actions: tuple[Action, ...]
    seed: int


@dataclass(frozen=True)
class Prediction:
    """What a world answers.

    Attributes:
        png: the predicted screen, any size; the loop resizes it to the task's.
        html: the page it was rendered from, if there is one.
        raw: the model's reply as it came, if there is one.
        evidence: JSON-able facts for the step's record (versions, attempts, token counts).
        supported: False if this world cannot carry out this kind of action; the screen is then unchanged.
        page: the real page's own verdict (`browser` only): {"reward": float, "done": bool}.
    """

    png: bytes
    html: str | None = None
    raw: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    supported: bool = True
    page: Mapping[str, Any] | None = None


class World(Protocol):
    """A world model. Made by `registry.make_world`; making one is cheap and touches neither network nor browser."""

    def identity(self) -> Mapping[str, Any]:
        """What changes this world's predictions (JSON-able): versions, settings, prompts; no host, port or device."""
        ...

    def predict(self, request: StepRequest) -> Prediction:
        """The next screen. Called from many threads at once. Raises ModelFailure or InfrastructureFailure."""
        ...

    def preflight(self) -> list[str]:
        """What would keep this world from working here, one sentence each; empty if nothing."""
        ...
