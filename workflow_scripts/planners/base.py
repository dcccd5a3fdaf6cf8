"""What every planner is to the loop: the current screen and what was done in, one action out.

A planner keeps no state between steps, so that any step can be run alone, in any process, in any order. It sees only
the current screen; earlier ones reach it as one-line summaries of the actions taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..actions import Action
from ..tasks import Task


@dataclass(frozen=True)
class PlannerRequest:
    """One decision asked for.

    Attributes:
        task: the task; its instruction, never its milestones or budget, is for the planner.
        step: 0-based number of the action.
        frame: PNG of the current screen, `width` × `height` pixels.
        past: the actions 0 … step-1, oldest first.
        seed: seed of this step for planners that sample.
    """

    task: Task
    step: int
    frame: Path
    width: int
    height: int
    past: tuple[Action, ...]
    seed: int


@dataclass(frozen=True)
class Planned:
    """What a planner decided.

    Attributes:
        action: the action, its point inside the frame.
        plan: the planner's own words on what it is about to do; may be empty.
        response_text: the decision as text, for agent_response.txt.
        evidence: what agent_evidence.json holds (GUI-CC's form): planner_attempts, plan, semantic_action,
            formatted_response. JSON-able; no key and no base64 in it.
    """

    action: Action
    plan: str
    response_text: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


class Planner(Protocol):
    """Who acts. Made by `registry.make_planner`; making one is cheap and touches neither key nor network."""

    def identity(self) -> dict[str, Any]:
        """What changes this planner's decisions in general (JSON-able): model, prompts, settings; no host, no key."""
        ...

    def step_identity(self, task: Task, step: int) -> dict[str, Any]:
        """What changes its decision at one step of a task, beside the screen and the actions before it."""
        ...

    def act(self, request: PlannerRequest) -> Planned:
        """The next action. Called from many threads at once. Raises InfrastructureFailure, never ModelFailure."""
        ...

    def preflight(self) -> list[str]:
        """What would keep this planner from working here, one sentence each; empty if nothing."""
        ...
