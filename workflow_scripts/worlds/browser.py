"""The oracle: the real page in a real browser.

Prediction k opens the task's page anew from its seed, carries out the actions 0 … k and takes the screen: no state is
kept between steps, so a step can be rerun alone and the steps of a task need not run in one process. The browser is the
process's shared one. Today the only kind of environment is ``miniwob``.
"""

from __future__ import annotations

from typing import Any

from ..browser.fonts import renderer_identity
from ..browser.pool import shared_pool
from ..failures import InfrastructureFailure
from ..tasks import Task
from . import miniwob
from .base import Prediction, StepRequest
from .rows import BrowserRow

TIMEOUT_S = 120.0
"""For one replay: 0.3 s and 0.1 s an action on an idle machine, and waiting for its turn in the browser."""


class BrowserWorld:
    """Predicts by doing."""

    def __init__(self, row: BrowserRow) -> None:
        self._row = row

    def identity(self) -> dict[str, Any]:
        driver = {"version": miniwob.DRIVER_VERSION, "pages": miniwob.files_digest()}
        return {"world": "browser", "driver": driver, "renderer": renderer_identity()}

    def check_task(self, task: Task) -> None:
        """Raises InvalidInput if the task has no page this world can open, or one that gives frames of another size."""
        environment = self._environment(task)
        if (task.width, task.height) != (environment.side, environment.side):
            raise miniwob.wrong_scale(_where(task), environment, task.width, task.height)

    def predict(self, request: StepRequest) -> Prediction:
        from playwright.async_api import Error

        environment = self._environment(request.task)

        async def replay() -> Prediction:
            async with miniwob.episode(shared_pool(), environment) as episode:
                supported = True
                for action in request.actions:
                    supported = await episode.perform(action)
                png, state = await episode.frame(), await episode.state()
            evidence = {"browser": episode.browser_version, "replayed": len(request.actions), "state": state}
            page = {"reward": float(state["reward"]), "done": bool(state["done"])}
            return Prediction(png=png, evidence=evidence, supported=supported, page=page)

        try:
            return shared_pool().run(replay, TIMEOUT_S)
        except Error as error:
            # The pages are known to work: what fails here is the browser or the machine.
            message = f"replaying {len(request.actions)} actions on {environment.page} failed: {error.message}"
            raise InfrastructureFailure("oracle_failed", message, page=environment.page) from error

    def preflight(self) -> list[str]:
        from ..browser.find import check_driver, find_browser

        problems = []
        for check in (miniwob.served_files, check_driver, find_browser):
            try:
                check()
            except InfrastructureFailure as failure:
                problems.append(failure.message)
        return problems

    def _environment(self, task: Task) -> miniwob.Environment:
        return miniwob.Environment.of(task.environment, _where(task))


def _where(task: Task) -> str:
    return f"task {task.task_id}"
