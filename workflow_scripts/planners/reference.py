"""The planner that carries out a task's recorded actions: GUI-CC's reference-action track."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..failures import InfrastructureFailure
from .base import Planned, PlannerRequest

if TYPE_CHECKING:
    from ..config import ReferencePlanner
    from ..tasks import Task

VERSION = 1


class RecordedPlanner:
    """Answers step k with recorded action k; an offline task's budget is the length of its recording."""

    def __init__(self, row: ReferencePlanner) -> None:
        self._row = row

    def identity(self) -> dict[str, Any]:
        return {"kind": self._row.kind, "version": VERSION}

    def step_identity(self, task: Task, step: int) -> dict[str, Any]:
        """The recorded action is the whole decision: changing one reruns its step and what follows, no earlier step."""
        recorded = task.actions[step].semantic(task.width, task.height) if step < len(task.actions) else None
        return {**self.identity(), "action": recorded}

    def act(self, request: PlannerRequest) -> Planned:
        actions = request.task.actions
        if request.step >= len(actions):
            task = request.task.task_id
            message = f"{task} has {len(actions)} recorded actions, step {request.step} needs one more"
            raise InfrastructureFailure("recording_over", message)
        action = actions[request.step]
        text = action.summary()
        evidence = {
            "planner_attempts": [],
            "plan": "",
            "semantic_action": action.semantic(request.width, request.height),
            "formatted_response": text,
        }
        return Planned(action, "", text, evidence)

    def preflight(self) -> list[str]:
        return []
