"""The screenshot -> HTML environment in plain Python: reset, draft, look at the render, draft again.

`Environment` is one episode at a time; `Sessions` keeps many for a server, with time-out and eviction. No HTTP here,
and no prompts: what a policy is told is the trainer's business.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..failures import InfrastructureFailure
from .pages import LEVELS, SPLITS, PageTask
from .scorers import Score, Scorer, VisibleScorer
from .tasksets import ProceduralSet, TaskSet


class EpisodeDone(RuntimeError):
    """A step after the end of an episode (HTTP 409)."""


class NoEpisode(RuntimeError):
    """A step before any reset, or in a session that is gone (HTTP 404)."""


class TooManySessions(RuntimeError):
    """All sessions are in use (HTTP 503)."""


@dataclass(frozen=True, slots=True)
class EnvironmentConfig:
    """How episodes run.

    Attributes:
        level: easy, medium, hard or mixed; used where a reset names none.
        split: train or heldout; used where a reset names none.
        max_turns: drafts in an episode.
        success: reward at which an episode ends early.
        best_so_far: a turn's reward is the best of the episode up to then, so that a failed revision costs nothing.
    """

    level: str = "mixed"
    split: str = "train"
    max_turns: int = 5
    success: float = 0.995
    best_so_far: bool = False

    def __post_init__(self) -> None:
        if self.level not in (*LEVELS, "mixed") or self.split not in SPLITS or self.max_turns < 1:
            raise ValueError(f"{self}: level {(*LEVELS, 'mixed')}, split {SPLITS}, max_turns >= 1")


@dataclass(frozen=True)
class Observation:
    """What a reset or a step tells.

    Attributes:
        task_id, level, width, height: the task and its viewport in CSS pixels.
        turn: drafts taken so far; `max_turns` their limit.
        done, reason: whether the episode is over, and why (``max_turns``, ``success``).
        reward: of this turn, in [0, 1]; None after a reset.
        draft: what this draft alone is worth; differs from `reward` with `best_so_far`.
        best: best draft of the episode.
        parts: the reward's parts, each in [0, 1].
        failure: why the draft is worth 0, if the draft is to blame.
        reference: the screenshot to reproduce (PNG); `render`: the draft's (PNG), None after a reset or a failure.
    """

    task_id: str
    level: str
    width: int
    height: int
    turn: int
    max_turns: int
    done: bool
    reference: bytes = field(repr=False)
    reason: str | None = None
    reward: float | None = None
    draft: float | None = None
    best: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    failure: dict[str, Any] | None = None
    render: bytes | None = field(default=None, repr=False)
    session_id: str | None = None


class Environment:
    """One episode at a time; not for use from several threads at once.

    A step whose renderer fails (`InfrastructureFailure`) raises, is counted, takes no turn and can be repeated.

    Attributes:
        task, last: the task and the last score, for a viewer or a trainer; not for a policy.
        infrastructure_failures: how many steps failed by our fault.
    """

    def __init__(
        self,
        config: EnvironmentConfig = EnvironmentConfig(),
        scorer: Scorer | None = None,
        tasks: TaskSet | None = None,
    ) -> None:
        self.config = config
        self.scorer: Scorer = scorer or VisibleScorer()
        self.tasks: TaskSet = tasks or ProceduralSet()
        self.task: PageTask | None = None
        self.last: Score | None = None
        self.infrastructure_failures = 0
        self._seeds = itertools.count()
        self._observation: Observation | None = None

    def reset(
        self,
        task_id: str | None = None,
        seed: int | None = None,
        level: str | None = None,
        split: str | None = None,
        max_turns: int | None = None,
    ) -> Observation:
        """Starts an episode: of `task_id`, else of the task that `seed` picks, else of the next of a running count.

        Raises:
            KeyError: no such task. ValueError: no such level or split, or max_turns < 1. InvalidInput: a bad page.
            InfrastructureFailure: the renderer is at fault; nothing has changed.
        """
        if max_turns is not None and max_turns < 1:
            raise ValueError(f"max_turns {max_turns}: expected at least 1")
        if task_id is not None:
            task = self.tasks.get(task_id)
        else:
            seed = next(self._seeds) if seed is None else seed
            task = self.tasks.pick(seed, level or self.config.level, split or self.config.split)
        reference = self.scorer.reference_png(task)
        self.task, self.last = task, None
        turns = max_turns or self.config.max_turns
        self._observation = Observation(task.id, task.level, task.width, task.height, 0, turns, False, reference)
        return self._observation

    def step(self, html: str) -> Observation:
        """Scores a draft: HTML, or a reply that holds it. Raises NoEpisode, EpisodeDone, InfrastructureFailure."""
        before = self._observation
        if before is None or self.task is None:
            raise NoEpisode("no episode: call reset first")
        if before.done:
            raise EpisodeDone(f"the episode is over ({before.reason}); call reset")
        try:
            score = self.scorer.score(self.task, html)
        except InfrastructureFailure:
            self.infrastructure_failures += 1
            raise
        self.last = score
        best, turn = max(before.best, score.total), before.turn + 1
        reason = "success" if score.total >= self.config.success else "max_turns" if turn >= before.max_turns else None
        self._observation = replace(
            before,
            turn=turn,
            done=reason is not None,
            reason=reason,
            reward=best if self.config.best_so_far else score.total,
            draft=score.total,
            best=best,
            parts=score.parts,
            failure=score.failure,
            render=score.png,
        )
        return self._observation

    @property
    def observation(self) -> Observation | None:
        """The last observation."""
        return self._observation

    def record(self) -> dict[str, Any]:
        """What changes an episode's rewards; part of identities."""
        return {"best_so_far": self.config.best_so_far, "success": self.config.success, **self.scorer.record()}


@dataclass
class _Session:
    environment: Environment
    used: float
    lock: threading.Lock = field(default_factory=threading.Lock)


class Sessions:
    """Many environments by session id, for servers; used from many threads.

    A session unused for `timeout_s` is forgotten. When all `limit` are taken, a finished one makes room, else a new one
    is refused.
    """

    def __init__(
        self,
        make: Callable[[], Environment],
        limit: int = 64,
        timeout_s: float = 1800.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._limit, self._timeout_s, self._clock = make, limit, timeout_s, clock
        self._sessions: dict[str, _Session] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sessions)

    def reset(self, **choice: Any) -> Observation:
        """A new session, started by ``Environment.reset(**choice)``. Raises TooManySessions and what that raises."""
        environment = self._make()
        with self._lock:
            self._expire()
            if len(self._sessions) >= self._limit and not self._drop_finished():
                raise TooManySessions(f"{self._limit} sessions are in use")
            name = uuid.uuid4().hex
            session = self._sessions[name] = _Session(environment, self._clock())
        try:
            with session.lock:
                return replace(environment.reset(**choice), session_id=name)
        except BaseException:
            self.close(name)
            raise

    def step(self, session_id: str, html: str) -> Observation:
        """A step of a session. Raises NoEpisode if it is unknown or gone, and what ``Environment.step`` raises."""
        with self._lock:
            self._expire()
            session = self._sessions.get(session_id)
            if session is None:
                raise NoEpisode(f"no session {session_id!r}: it was never there, or unused for {self._timeout_s:g} s")
            session.used = self._clock()
        with session.lock:
            observation = session.environment.step(html)
            session.used = self._clock()
        return replace(observation, session_id=session_id)

    def only(self) -> str:
        """The id of the one session there is. Raises NoEpisode if there are none or several."""
        with self._lock:
            self._expire()
            if len(self._sessions) != 1:
                raise NoEpisode(f"there are {len(self._sessions)} sessions: name one")
            return next(iter(self._sessions))

    def close(self, session_id: str) -> None:
        """Forgets a session; unknown ones are no error."""
        with self._lock:
            self._sessions.pop(session_id, None)

    def _expire(self) -> None:
        now = self._clock()
        for name, session in list(self._sessions.items()):
            if now - session.used > self._timeout_s and not session.lock.locked():
                del self._sessions[name]

    def _drop_finished(self) -> bool:
        """Forgets the finished session that was used longest ago; whether there was one."""
        finished = []
        for name, session in self._sessions.items():
            observation = session.environment.observation
            if observation is not None and observation.done:
                finished.append((session.used, name))
        if finished:
            del self._sessions[min(finished)[1]]
        return bool(finished)
