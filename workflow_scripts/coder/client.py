"""A thin client of the OpenEnv server: one WebSocket, one episode at a time. Needs the optional extra ``server``.

    with CoderClient(base_url="http://127.0.0.1:8000").sync() as env:
        start = env.reset(task_id="procedural/easy/train/0").observation
        result = env.step(HtmlAction(html="<!DOCTYPE html>…"))

Without a server: `environment.Environment`.
"""

# Types are checked without the optional extra, too, when its classes are Any.
# mypy: disable-error-code="misc, no-any-return"

from __future__ import annotations

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult

from .wire import HtmlAction, HtmlObservation, HtmlState


class CoderClient(EnvClient[HtmlAction, HtmlObservation, HtmlState]):
    """Typed client; asynchronous, or synchronous through ``.sync()``."""

    def _step_payload(self, action: HtmlAction) -> dict[str, Any]:
        return action.model_dump(exclude={"metadata"})

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[HtmlObservation]:
        reward, done = payload.get("reward"), bool(payload.get("done"))
        observation = HtmlObservation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=observation, reward=reward, done=done, metadata=payload.get("metadata"))

    def _parse_state(self, payload: dict[str, Any]) -> HtmlState:
        return HtmlState(**payload)
