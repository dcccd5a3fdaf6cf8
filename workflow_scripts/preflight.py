"""Rule `preflight`: what this node lacks for what is asked, each with the line that mends it, in seconds.

Every run checks what costs nothing before its first job (`Run.start`). This rule also asks each endpoint one real
question, which costs one call each: a planner must answer with a tool call, a world model with a screen. Left out: what
only the node of a job can say (GPU, browser of a shard); there the inner run checks it before its first step.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from .actions import Action
from .estimate import size_text
from .failures import Failure, InvalidInput
from .identity import seed_of
from .planners.base import PlannerRequest
from .planners.registry import make_planner
from .shard import is_served_elsewhere
from .worlds.base import StepRequest
from .worlds.registry import make_world

if TYPE_CHECKING:
    from .config import Config
    from .plan import Row

ANSWER_S = 60.0
"""Longest wait for an endpoint's answer."""
MIN_MEMORY = 1_000_000_000
"""Free main memory below which no run should begin, in bytes."""


def local_faults(row: Row) -> list[str]:
    """What keeps a row's planner and world model from working in this process; costs nothing."""
    return [*row.planner.preflight(), *row.world.preflight()]


def weights_faults(config: Config, row: Row) -> list[str]:
    """What is missing of a row's weights, for rows whose shards run on other nodes of the same file system."""
    from .serving.spec import missing_weights

    world = config.world_row(row.model)
    weights = getattr(world, "weights", None)
    if weights is None or is_served_elsewhere(world):
        return []
    return missing_weights(weights, getattr(world, "revision", None))


def machine_faults(needed: int, folder: Path) -> list[str]:
    """Whether disk (`needed` bytes in `folder`) and main memory suffice."""
    import psutil

    faults = []
    existing = next(parent for parent in [folder, *folder.absolute().parents] if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        faults.append(
            f"disk: {size_text(free)} are free for {folder}/ and the run is expected to write {size_text(needed)}; "
            "make room, or link results/ to a larger disk (ln -s /large/disk results)"
        )
    memory = psutil.virtual_memory().available
    if memory < MIN_MEMORY:
        faults.append(f"memory: {size_text(memory)} are free; end other programs, or ask for a larger node")
    return faults


def endpoint_faults(config: Config, rows: Sequence[Row]) -> list[str]:
    """Asks every endpoint in use one question; what is wrong with the answers."""
    questions: dict[str, Callable[[], str | None]] = {}
    for row in rows:
        if row.planner_name not in questions and row.track == "online":
            questions[row.planner_name] = lambda row=row: _ask_planner(config, row)  # type: ignore[misc]
        if is_served_elsewhere(config.world_row(row.model)):
            questions.setdefault(row.model, lambda row=row: _ask_world(config, row))  # type: ignore[misc]
    with ThreadPoolExecutor(max(1, len(questions))) as pool:
        return [answer for answer in pool.map(lambda ask: ask(), questions.values()) if answer]


def _ask_planner(config: Config, row: Row) -> str | None:
    settings = config.planner_row(row.planner_name)
    once = {"max_attempts": 1, "timeout_s": min(ANSWER_S, getattr(settings, "timeout_s", ANSWER_S))}
    task = row.tasks[0]
    request = PlannerRequest(
        task=task,
        step=0,
        frame=task.image,
        width=task.width,
        height=task.height,
        past=(),
        seed=seed_of("preflight", task.task_id),
    )
    try:
        make_planner(settings.model_copy(update=once)).act(request)
    except (Failure, InvalidInput) as error:
        return (
            f"planner {row.planner_name}: {_said(error)}; it must be a vision model that calls tools "
            f"(planners.{row.planner_name}: base_url, model, api_key_env)"
        )
    return None


def _ask_world(config: Config, row: Row) -> str | None:
    settings = config.world_row(row.model)
    once = {"max_attempts": 1, "timeout_s": min(ANSWER_S, getattr(settings, "timeout_s", ANSWER_S))}
    task = row.tasks[0]
    action = Action(type="tap", x=task.width // 2, y=task.height // 2)
    request = StepRequest(
        task=task,
        step=0,
        frame=task.image,
        action=action,
        history=(),
        actions=(action,),
        seed=seed_of("preflight", task.task_id),
    )
    try:
        make_world(settings.model_copy(update=once)).predict(request)
    except (Failure, InvalidInput) as error:
        return f"model {row.model}: {_said(error)}; see models.{row.model}: endpoint, model, api_key_env"
    return None


def _said(error: Failure | InvalidInput) -> str:
    return f"{error.code}: {error.message}" if isinstance(error, Failure) else " ".join(str(error).split())
