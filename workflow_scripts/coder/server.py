"""The environment as an OpenEnv server, and the routes of the project it comes from.

    python -m workflow_scripts.coder.server --port 8000 [--reward original] [--best-so-far] [--sessions 64]

OpenEnv's way: WebSocket ``/ws`` (one episode a connection), ``/health /metadata /schema /state``, the task API, and a
stateless HTTP ``/reset`` and ``/step {"action": …}``. The original's way: ``POST /reset?difficulty=``, ``POST /step
{html, session_id}``, ``POST /render {html}``, answered by the same two paths where a request has the original's shape.
All share one renderer and one cache of references. Needs the optional extra ``server``. No authentication: bind it to
localhost or put it behind something that has some.
"""

# Types are checked without the optional extra, too, when its classes are Any.
# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

import argparse
import base64
import functools
from typing import Any

import cv2
import uvicorn
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from openenv.core.env_server import Environment as OpenEnvEnvironment
from openenv.core.env_server import create_app
from openenv.core.env_server.types import ConcurrencyConfig, EnvironmentMetadata, ResetRequest, StepRequest
from pydantic import BaseModel, Field

from ..failures import Failure, InfrastructureFailure, InvalidInput, ModelFailure
from .blocks import Camera, decode_png
from .environment import (
    Environment,
    EnvironmentConfig,
    EpisodeDone,
    NoEpisode,
    Observation,
    Sessions,
    TooManySessions,
)
from .pages import DESKTOP, SPLITS
from .scorers import Scorer, extract_html, make_scorer
from .tasksets import ProceduralSet, TaskSet
from .wire import HtmlAction, HtmlObservation, HtmlState, encoded, observation_message

NAME = "visual_coder"
LISTED = 100
TASKS_PER_SPLIT = 30_000
PROMPT = "Write one self-contained HTML document that looks like the screenshot. Scripts and pictures are not rendered."


class CoderEnvironment(OpenEnvEnvironment[HtmlAction, HtmlObservation, HtmlState]):
    """OpenEnv's face of `environment.Environment`; also a TaskProvider over the generator's splits."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, config: EnvironmentConfig, scorer: Scorer, tasks: TaskSet) -> None:
        super().__init__()
        self._environment = Environment(config, scorer, tasks)
        self._tasks = tasks
        self._episode_id: str | None = None

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        *,
        task_id: str | None = None,
        level: str | None = None,
        split: str | None = None,
        index: int | None = None,
        max_turns: int | None = None,
        **_: Any,
    ) -> HtmlObservation:
        """Starts an episode of `task_id`, of task `index` of `split`, or of the task that `seed` picks."""
        observation = self._environment.reset(task_id, seed if index is None else index, level, split, max_turns)
        self._episode_id = episode_id or f"{observation.task_id}#{seed if seed is not None else ''}"
        return observation_message(observation)

    def step(self, action: HtmlAction, timeout_s: float | None = None, **_: Any) -> HtmlObservation:
        """Scores a draft. `timeout_s` is not used: a page's time is the renderer's, the same for everybody."""
        return observation_message(self._environment.step(action.html))

    @property
    def state(self) -> HtmlState:
        """Where the episode stands."""
        seen = self._environment.observation
        if seen is None:
            return HtmlState()
        return HtmlState(
            episode_id=self._episode_id,
            step_count=seen.turn,
            task_id=seen.task_id,
            max_turns=seen.max_turns,
            best=seen.best,
        )

    def get_metadata(self) -> EnvironmentMetadata:
        """Name, description and version."""
        return EnvironmentMetadata(
            name=NAME, description=f"Screenshot to HTML in a real browser. {PROMPT}", version="1"
        )

    # -- OpenEnv's TaskProvider --
    def list_splits(self) -> list[dict[str, str]]:
        """The splits; the held-out one is for tests."""
        return [{"name": "train", "type": "train"}, {"name": "heldout", "type": "test"}]

    def num_tasks(self, split: str) -> int:
        """How many tasks a split is said to have (the generator has no end)."""
        _known(split)
        return TASKS_PER_SPLIT

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """Task `index` of a split, without its source."""
        _known(split)
        if not 0 <= index < TASKS_PER_SPLIT:
            raise IndexError(index)
        task = self._tasks.pick(index, "mixed", split)
        return {
            "id": task.id,
            "index": index,
            "split": split,
            "level": task.level,
            "width": task.width,
            "height": task.height,
        }

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """Tasks `start` … `stop` - 1 of a split, at most LISTED of them."""
        numbers = range(*slice(start, stop).indices(self.num_tasks(split)))[:LISTED]
        return [self.get_task(split, index) for index in numbers]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """The first tasks of a split."""
        return self.get_task_range(split)


def _known(split: str) -> None:
    if split not in SPLITS:
        raise IndexError(f"split {split!r}: expected {SPLITS}")


class OriginalStep(BaseModel):
    """The original's step request."""

    html: str
    session_id: str | None = Field(default=None, description="may be left out while there is one session only")


class RenderRequest(BaseModel):
    """The original's render request."""

    html: str


def make_app(
    config: EnvironmentConfig | None = None,
    scorer: Scorer | None = None,
    tasks: TaskSet | None = None,
    max_sessions: int = 64,
    session_timeout_s: float = 1800.0,
) -> FastAPI:
    """The server. Scorer and tasks are shared by all sessions."""
    config = config or EnvironmentConfig()
    scorer, tasks = scorer or make_scorer("visible"), tasks or ProceduralSet()
    app: FastAPI = create_app(
        functools.partial(CoderEnvironment, config, scorer, tasks),
        HtmlAction,
        HtmlObservation,
        env_name=NAME,
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=max_sessions, session_timeout=session_timeout_s),
        state_cls=HtmlState,
    )
    sessions = Sessions(lambda: Environment(config, scorer, tasks), max_sessions, session_timeout_s)
    camera = scorer.camera if hasattr(scorer, "camera") else Camera()
    for kind, status in _STATUS.items():
        app.add_exception_handler(kind, functools.partial(_refuse, status))
    _original_routes(app, sessions, camera)
    return app


_STATUS: dict[type[Exception], int] = {
    EpisodeDone: 409,
    NoEpisode: 404,
    TooManySessions: 503,
    ModelFailure: 422,
    InvalidInput: 422,
    InfrastructureFailure: 503,
}


def _refuse(status: int, request: Request, error: Exception) -> JSONResponse:
    record = error.record() if isinstance(error, Failure) else {"message": str(error)}
    return JSONResponse({"detail": record}, status_code=status)


def _original_routes(app: FastAPI, sessions: Sessions, camera: Camera) -> None:
    """Puts the original's requests in front of OpenEnv's `/reset` and `/step`, and adds `/render` and `/close`."""
    openenv = {route.path: route.endpoint for route in app.routes if isinstance(route, APIRoute)}
    paths = {"/reset", "/step"} & openenv.keys()  # production mode has neither
    app.router.routes[:] = [r for r in app.router.routes if not (isinstance(r, APIRoute) and r.path in paths)]

    if "/reset" in paths:

        @app.post("/reset", tags=["Environment Control"])
        async def reset(
            request: ResetRequest | None = None,
            difficulty: str | None = Query(
                None, description="easy, medium, hard or mixed: answers as the original did"
            ),
            max_steps: int | None = Query(None, ge=1),
        ) -> Any:
            """OpenEnv's stateless reset, or with ``?difficulty=`` a session of the original's kind."""
            if difficulty is None and max_steps is None:
                return await openenv["/reset"](request or ResetRequest())
            if difficulty not in (None, "easy", "medium", "hard", "mixed"):
                raise HTTPException(422, f"difficulty {difficulty!r}: expected easy, medium, hard or mixed")
            return _original(await run_in_threadpool(sessions.reset, level=difficulty, max_turns=max_steps))

    if "/step" in paths:

        @app.post("/step", tags=["Environment Control"])
        async def step(request: OriginalStep | StepRequest) -> Any:
            """OpenEnv's stateless step ``{"action": {"html": …}}``, or ``{"html": …, "session_id": …}``."""
            if isinstance(request, StepRequest):
                return await openenv["/step"](request)
            session = request.session_id or sessions.only()
            return _original(await run_in_threadpool(sessions.step, session, request.html))

    @app.post("/render", tags=["Original"])
    async def render(request: RenderRequest) -> dict[str, str | None]:
        """The picture of a page, and the same at half size; no reward."""
        seen = await run_in_threadpool(camera.look, extract_html(request.html), *DESKTOP)
        return {"image_b64": encoded(seen.png), "image_low_b64": _half(seen.png)}

    @app.delete("/close", status_code=204, tags=["Original"])
    async def close(session_id: str | None = None) -> Response:
        """Ends a session of the original's kind."""
        if session_id:
            sessions.close(session_id)
        return Response(status_code=204)


def _original(seen: Observation) -> dict[str, Any]:
    """An observation in the original's shape; renders keep their size."""
    return {
        "done": seen.done,
        "reward": seen.reward,
        "session_id": seen.session_id,
        "prompt": PROMPT,
        "screenshot_b64": encoded(seen.reference) if seen.turn == 0 else None,
        "render_full": encoded(seen.render),
        "render_low": _half(seen.render) if seen.render else None,
        "metadata": {
            "session_id": seen.session_id,
            "episode_id": seen.session_id,
            "task_id": seen.task_id,
            "step_count": seen.turn,
            "max_steps": seen.max_turns,
            "difficulty": seen.level,
            "failure": seen.failure,
            "rewards": {**seen.parts, "total": seen.draft} if seen.turn else {},
        },
    }


def _half(png: bytes) -> str:
    image = decode_png(png)
    small = cv2.resize(image, (image.shape[1] // 2, image.shape[0] // 2), interpolation=cv2.INTER_AREA)
    return base64.b64encode(cv2.imencode(".png", small[:, :, ::-1])[1].tobytes()).decode()


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m workflow_scripts.coder.server", description="Serve the environment."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--reward", choices=("visible", "original"), default="visible")
    parser.add_argument("--level", choices=("easy", "medium", "hard", "mixed"), default="mixed")
    parser.add_argument("--split", choices=SPLITS, default="train")
    parser.add_argument("--max-turns", type=int, default=5)
    parser.add_argument("--best-so-far", action="store_true", help="a turn earns the best reward of the episode so far")
    parser.add_argument("--sessions", type=int, default=64, help="how many at a time")
    parser.add_argument("--session-timeout", type=float, default=1800.0, help="seconds a session may be unused")
    options = parser.parse_args(arguments)
    config = EnvironmentConfig(options.level, options.split, options.max_turns, best_so_far=options.best_so_far)
    app = make_app(config, make_scorer(options.reward), None, options.sessions, options.session_timeout)
    uvicorn.run(app, host=options.host, port=options.port, ws_max_size=100 * 2**20)


if __name__ == "__main__":
    main()
