"""A finished rollout as scoring sees it, built from GUI-CC's rollout record, and everything that can be wrong with one.

`build` applies every rule by which GUI-CC's evaluator accepts a record (`build_trajectory`, `validate_rollouts`) and
names each breach; ours and other people's records pass through the same code. Left out: whole rows (`gui_cc_import`)
and where true screens come from online (the caller replays the actions in the real page and adds them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from ..actions import TERMINAL_TYPES
from ..failures import InfrastructureFailure
from ..tasks import Task

MAX_FRAMES = 25
"""Most frames of one episode that GUI-CC's judge takes, the first screen included. A longer one can be measured, not
judged: `gui_cc_import` and judge calls refuse it, `build` does not."""
FAILURE_CLASSES = ("model", "infrastructure")


@dataclass(frozen=True)
class Problem:
    """One breach of an acceptance rule.

    Attributes:
        code: stable snake_case name of the rule.
        where: file, and the field in it.
        message: what was expected and what is there.
    """

    code: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.where}: {self.message}"


@dataclass(frozen=True)
class Episode:
    """One rollout of one task.

    Attributes:
        frames: predicted screens, the task's first screen first; one more than `actions`.
        actions: semantic actions of the transitions in between, terminal ones left out.
        true: true screens beside `frames`, as many; empty where there are none.
        failure: {"kind", "code", …} of the failure that ended it, or None.
        terminated: whether a terminal action ended it.
        end_reason: terminated, answered, budget_used, actions_used, model_failure; empty if the record does not say.
    """

    task: Task
    frames: tuple[Path, ...]
    actions: tuple[Mapping[str, Any], ...]
    true: tuple[Path, ...] = ()
    failure: Mapping[str, Any] | None = None
    terminated: bool = False
    end_reason: str = ""

    @property
    def transitions(self) -> tuple[int, ...]:
        """Positions in `actions` that are scored: a terminal action that its record does not mark as such is not."""
        return tuple(step for step, action in enumerate(self.actions) if action["type"] not in TERMINAL_TYPES)

    def with_true(self, frames: Sequence[Path]) -> Episode:
        """The episode beside its true screens, as many as it has frames (ValueError otherwise)."""
        if len(frames) != len(self.frames):
            raise ValueError(f"{self.task.task_id}: {len(frames)} true screens for {len(self.frames)} frames")
        return replace(self, true=tuple(frames))


def build(folder: Path, task: Task, record: Any, run_sha256: str | None = None) -> tuple[Episode | None, list[Problem]]:
    """The episode of a rollout record, and every breach of an acceptance rule; None where nothing can be built.

    Args:
        folder: the row's folder, which the paths in the record are relative to.
        record: what stands in trajectory.json or under the task's id in rollout_results.json.
        run_sha256: of the row's ``_RUN``; not compared if None.

    A record of a failed rollout (``complete`` is not True or ``error`` is set) needs only name its failure class; its
    episode holds what was reached before the failure. On the offline track the true screens are taken from the task.
    """
    where = f"{folder / task.task_id}"
    if not isinstance(record, Mapping):
        return None, [Problem("record_not_an_object", where, f"expected an object, found {type(record).__name__}")]
    checks = _Checks(folder, task, record, where)
    checks.head(run_sha256)
    failed = record.get("complete") is not True or bool(record.get("error"))
    if failed:
        checks.failed_head()
    episode = checks.failed_episode() if failed else checks.complete_episode()
    if episode is not None and task.true_images:
        episode = episode.with_true(task.true_images[: len(episode.frames)])
    return episode, checks.problems


def read_episode(folder: Path, task: Task, record: Any, run_sha256: str | None = None) -> Episode:
    """`build`, or InfrastructureFailure (``invalid_rollout``) that lists the problems."""
    episode, problems = build(folder, task, record, run_sha256)
    if problems or episode is None:
        listed = "\n  ".join(map(str, problems[:20]))
        raise InfrastructureFailure(
            "invalid_rollout",
            f"{folder / task.task_id} cannot be scored:\n  {listed}",
            problems=[problem.code for problem in problems],
        )
    return episode


class _Checks:
    """Walks one record and collects problems."""

    def __init__(self, folder: Path, task: Task, record: Mapping[str, Any], where: str) -> None:
        self.folder, self.task, self.record, self.where = folder, task, record, where
        self.problems: list[Problem] = []

    def add(self, code: str, field: str, message: str) -> None:
        self.problems.append(Problem(code, f"{self.where}: {field}", message))

    def head(self, run_sha256: str | None) -> None:
        task, record = self.task, self.record
        if record.get("task_id", task.task_id) != task.task_id:
            self.add("task_id_mismatch", "task_id", f"expected {task.task_id!r}, found {record.get('task_id')!r}")
        if run_sha256 is not None and record.get("run_sha256") != run_sha256:
            found = record.get("run_sha256")
            self.add("run_mismatch", "run_sha256", f"expected _RUN's {run_sha256!r}, found {found!r}")

    def failed_head(self) -> None:
        record = self.record
        if record.get("complete") is not False:
            self.add("complete_not_false", "complete", f"a failed rollout says false, found {record.get('complete')!r}")
        if not isinstance(record.get("error"), str) or not record["error"]:
            self.add("error_missing", "error", f"a failed rollout names its error, found {record.get('error')!r}")
        if record.get("failure_class") not in FAILURE_CLASSES:
            found = record.get("failure_class")
            self.add("failure_class_unknown", "failure_class", f"expected model or infrastructure, found {found!r}")

    def failed_episode(self) -> Episode:
        """What was reached: entries up to the first one without a frame or with an error."""
        record = self.record
        frames: list[Path] = []
        actions: list[Mapping[str, Any]] = []
        entries = record.get("trajectory")
        for entry in entries if isinstance(entries, list) else []:
            frame = entry.get("frame") if isinstance(entry, Mapping) else None
            if not isinstance(frame, str) or not _inside(frame) or not (self.folder / frame).is_file():
                break
            frames.append(self.folder / frame)
            if entry.get("error") or entry.get("wm_error") or not isinstance(entry.get("semantic_action"), Mapping):
                break
            actions.append(entry["semantic_action"])
        given = record.get("failure")
        failure = dict(given) if isinstance(given, Mapping) else {}
        known = record.get("failure_class")
        failure["kind"] = known if known in FAILURE_CLASSES else "infrastructure"  # GUI-CC's reading of no class
        failure.setdefault("code", str(record.get("error") or "unknown"))
        reached = max(len(frames) - 1, 0)
        return Episode(
            self.task,
            tuple(frames) or (self.task.image,),
            tuple(actions[:reached]),
            failure=failure,
            end_reason=str(record.get("end_reason") or f"{failure['kind']}_failure"),
        )

    def complete_episode(self) -> Episode | None:
        task, record = self.task, self.record
        if record.get("step_budget") != task.step_budget:
            found = record.get("step_budget")
            self.add("step_budget_mismatch", "step_budget", f"the task says {task.step_budget}, found {found!r}")
        entries = record.get("trajectory")
        if not isinstance(entries, list) or not entries:
            self.add("trajectory_empty", "trajectory", "expected a list of at least one entry")
            return None
        before = len(self.problems)
        frames: list[Path] = []
        actions: list[Mapping[str, Any]] = []
        terminated = False
        for step, entry in enumerate(entries):
            field = f"trajectory[{step}]"
            if not isinstance(entry, Mapping):
                self.add("entry_not_an_object", field, f"found {type(entry).__name__}")
                continue
            if entry.get("step") != step or isinstance(entry.get("step"), bool):
                self.add("step_not_consecutive", f"{field}.step", f"expected {step}, found {entry.get('step')!r}")
            frame = self.frame(entry.get("frame"), f"{field}.frame")
            if frame is not None:
                frames.append(frame)
            action = entry.get("semantic_action")
            if not isinstance(action, Mapping) or not isinstance(action.get("type"), str):
                self.add("action_missing", f"{field}.semantic_action", "expected an object with a string 'type'")
                continue
            if entry.get("terminated"):
                terminated = True
                if step != len(entries) - 1:
                    self.add("terminated_early", f"{field}.terminated", "only the last entry may be terminated")
                if action["type"] not in TERMINAL_TYPES:
                    message = f"expected terminate or answer, found {action['type']!r}"
                    self.add("terminated_without_terminal_action", f"{field}.semantic_action.type", message)
                continue
            actions.append(action)
        if not terminated:
            last = self.frame(f"{task.task_id}/final_frame.png", "final_frame.png")
            if last is not None:
                frames.append(last)
        if len(self.problems) == before and len(frames) != len(actions) + 1:
            self.add("frames_not_aligned", "trajectory", f"{len(frames)} frames for {len(actions)} actions")
        if len(actions) > task.step_budget:
            message = f"{len(actions)} actions, the budget is {task.step_budget}"
            self.add("budget_exceeded", "trajectory", message)
        if len(self.problems) > before:
            return None
        reason = str(record.get("end_reason") or ("terminated" if terminated else ""))
        return Episode(task, tuple(frames), tuple(actions), terminated=terminated, end_reason=reason)

    def frame(self, given: Any, field: str) -> Path | None:
        """A frame that a record names: relative, inside the row's folder, existing, decodable."""
        if not isinstance(given, str) or not given.strip():
            self.add("frame_missing", field, f"expected a path, found {given!r}")
            return None
        if not _inside(given):
            self.add("frame_not_relative", field, f"expected a path inside the row's folder, found {given!r}")
            return None
        path = self.folder / given
        if not path.is_file():
            self.add("frame_missing", field, f"no file {path}")
            return None
        reason = undecodable(path)
        if reason:
            self.add("frame_unreadable", field, f"{path}: {reason}")
            return None
        return path


def _inside(given: str) -> bool:
    pure = PurePosixPath(given)
    return not pure.is_absolute() and ".." not in pure.parts


def undecodable(path: Path) -> str:
    """Why a file is no PNG that can be decoded; empty if it is one."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            if image.format != "PNG":
                return f"a {image.format}, not a PNG"
            image.load()
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and struct.error for broken files
        return f"{type(error).__name__}: {error}"
    return ""
