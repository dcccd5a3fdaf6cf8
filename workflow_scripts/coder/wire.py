"""What travels between the coder's server and its clients: OpenEnv's typed action, observation and state.

Needs the optional extra ``server`` (PyPI `openenv`). Pictures are PNG in base64. No message ever holds the reference's
source.
"""

# Types are checked without the optional extra, too, when its classes are Any.
# mypy: disable-error-code="misc"

from __future__ import annotations

import base64
from typing import Any

from openenv.core.env_server.types import Action, State
from openenv.core.env_server.types import Observation as WireObservation
from pydantic import Field

from .environment import Observation


class HtmlAction(Action):
    """A draft: a whole HTML document, or a model's reply that holds one."""

    html: str = Field(max_length=1_000_000, description="an HTML document, or a reply that holds one")


class HtmlObservation(WireObservation):
    """`environment.Observation` as a message; `reward` and `done` are OpenEnv's own fields."""

    task_id: str = Field(description="the task; reset(task_id=…) starts it again")
    level: str = Field(description="easy, medium or hard")
    width: int = Field(description="viewport width in CSS pixels")
    height: int = Field(description="viewport height in CSS pixels")
    turn: int = Field(ge=0, description="drafts taken so far")
    max_turns: int = Field(ge=1, description="drafts in an episode")
    reason: str | None = Field(default=None, description="why the episode is over: max_turns or success")
    draft: float | None = Field(default=None, description="what this draft alone is worth, 0 to 1")
    best: float = Field(default=0.0, description="the best draft of the episode, 0 to 1")
    parts: dict[str, float] = Field(default_factory=dict, description="the reward's parts, each 0 to 1")
    failure: dict[str, Any] | None = Field(default=None, description="why the draft is worth 0, if it is to blame")
    reference_png: str | None = Field(default=None, description="base64 PNG to reproduce; after a reset only")
    render_png: str | None = Field(default=None, description="base64 PNG of the draft; after a step only")


class HtmlState(State):
    """Where an episode stands."""

    task_id: str | None = None
    max_turns: int | None = None
    best: float = 0.0


def encoded(png: bytes | None) -> str | None:
    """PNG bytes in base64."""
    return None if png is None else base64.b64encode(png).decode()


def observation_message(observation: Observation) -> HtmlObservation:
    """The message that tells an observation."""
    return HtmlObservation(
        done=observation.done,
        reward=observation.reward,
        task_id=observation.task_id,
        level=observation.level,
        width=observation.width,
        height=observation.height,
        turn=observation.turn,
        max_turns=observation.max_turns,
        reason=observation.reason,
        draft=observation.draft,
        best=observation.best,
        parts=observation.parts,
        failure=observation.failure,
        reference_png=encoded(observation.reference) if observation.turn == 0 else None,
        render_png=encoded(observation.render),
    )
