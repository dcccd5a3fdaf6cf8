"""Which roles an iteration trains, and on which tasks: a pure function of the configuration and the iteration's number.

Iterations count from 1 through the whole run, so that no phase overwrites another's files and the cycle of difficulties
goes on where the phase before left it. `alternate` starts with the Developer. Left out: schedules that depend on
results.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...failures import InvalidInput
from ...identity import digest, seed_of
from .config import Role, TrainConfig


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One group: K episodes of `task_id` with environment seed `seed`; `number` counts the run's groups from 0."""

    number: int
    task_id: str
    level: str
    seed: int


@dataclass(frozen=True, slots=True)
class IterationPlan:
    """One update: `index` from 1, the phase it belongs to, the roles it trains and the groups it learns from."""

    index: int
    phase: str
    roles: tuple[Role, ...]
    groups: tuple[GroupPlan, ...]


def total_iterations(config: TrainConfig) -> int:
    """Number of iterations of the run."""
    return sum(phase.iterations for phase in config.schedule)


def plan(config: TrainConfig, index: int) -> IterationPlan:
    """The plan of iteration `index`, 1 … `total_iterations`. Raises InvalidInput outside."""
    before = index - 1
    for phase in config.schedule:
        if 0 <= before < phase.iterations:
            return IterationPlan(index, phase.phase, _roles(phase.phase, phase.every, before), _groups(config, index))
        before -= phase.iterations
    last = total_iterations(config)
    raise InvalidInput("schedule", "iteration", f"1 … {last}", index, f"iterations: {max(index, 1)}")


def _roles(phase: str, every: int | None, position: int) -> tuple[Role, ...]:
    if phase == "combined":
        return ("developer", "critic")
    if phase == "alternate":
        return ("developer",) if position // (every or 1) % 2 == 0 else ("critic",)
    return ("developer",) if phase == "developer" else ("critic",)


def _groups(config: TrainConfig, index: int) -> tuple[GroupPlan, ...]:
    levels, count = config.episodes.levels, config.episodes.groups
    groups = []
    for number in range((index - 1) * count, index * count):
        cycle, place = divmod(number, len(levels))
        level = levels[place]
        page = cycle * levels.count(level) + levels[:place].count(level)  # the next page of this level
        groups.append(
            GroupPlan(number, f"procedural/{level}/train/{page}", level, seed_of("group", config.seed, number))
        )
    return tuple(groups)


def waves(config: TrainConfig, index: int) -> list[tuple[GroupPlan, ...]]:
    """The groups of an iteration as they are played: so many side by side as fill a batch. A shard is some of these."""
    groups = plan(config, index).groups
    size = max(1, config.sampling.batch_rows // config.episodes.group_size)
    return [groups[start : start + size] for start in range(0, len(groups), size)]


def past_digest(config: TrainConfig, index: int) -> str:
    """Digest of the plans of iterations 1 … `index`: a schedule may be extended under a run, not changed behind it."""
    plans = [plan(config, i) for i in range(1, index + 1)]
    return digest([[p.phase, p.roles, [[g.task_id, g.seed] for g in p.groups]] for p in plans])
