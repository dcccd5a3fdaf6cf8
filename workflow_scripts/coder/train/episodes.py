"""Rollout collection: the episodes of some groups, played against the environment side by side.

An episode: the Developer drafts; while turns are left, the Critic comments (or says DONE) and the Developer drafts
again, seeing the reference, its last render and document, and the critique. All members of all groups advance together,
so one batch holds the Developer rows and Critic rows that are due. Every random draw is seeded by run, group, member,
turn and role: an episode that is rerun alone, or after a crash, has the seeds it had.

A draft that does not render is the Developer's failure and scores 0. A failure of the environment is nobody's: the
episode is played again from its start, up to `attempts` times, then given up and counted; a group that is left with
fewer than two episodes fails as a whole. Left out: engines in other processes, episodes that span iterations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ...failures import InfrastructureFailure, InvalidInput, ModelFailure
from ...identity import seed_of
from ...records import SCHEMA_VERSION, read_json, write_bytes
from .advantages import Member
from .config import EpisodeConfig, Role, SamplingConfig
from .prompts import Draft, Prompts, neutral, verdict
from .rows import ImageStore, Row, row_of_turn
from .schedule import GroupPlan


class Observation(Protocol):
    """What is read of `coder.environment.Observation`."""

    @property
    def width(self) -> int: ...
    @property
    def done(self) -> bool: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def draft(self) -> float | None: ...
    @property
    def parts(self) -> dict[str, float]: ...
    @property
    def failure(self) -> dict[str, Any] | None: ...
    @property
    def reference(self) -> bytes: ...
    @property
    def render(self) -> bytes | None: ...


class Environment(Protocol):
    """One episode at a time, as `coder.environment.Environment`. Both calls may raise InfrastructureFailure."""

    def reset(self, task_id: str, seed: int, *, max_turns: int) -> Observation: ...
    def step(self, html: str) -> Observation: ...


class Sampled(Protocol):
    """What is read of `sampler.Sample`."""

    @property
    def prompt_ids(self) -> tuple[int, ...]: ...
    @property
    def images(self) -> tuple[str, ...]: ...
    @property
    def completion_ids(self) -> tuple[int, ...]: ...
    @property
    def log_probs(self) -> tuple[float, ...]: ...
    @property
    def finish(self) -> str: ...
    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Ask:
    """A completion that an episode waits for."""

    role: Role
    messages: Sequence[Mapping[str, Any]]
    seed: int
    max_tokens: int


Engine = Callable[[Sequence[Ask]], Sequence[Sampled | ModelFailure]]
"""Samples a batch; see `trainer.engine` for the in-process one."""


def document_of(reply: str) -> str:
    from ..scorers import extract_html  # the scorers' libraries are heavy, and this is all that is needed of them

    return extract_html(reply)


@dataclass(frozen=True, slots=True)
class Collection:
    """How episodes are played.

    Attributes:
        environment: makes one environment per episode.
        engine: samples completions.
        store: where images go.
        seed: the run's.
        actors: what identifies who acts (digests of the adapters, prompts, sampling); goes into the records.
        special: tokens of the tokenizer that texts must not contain.
        workers: episodes that wait for the environment at the same time.
        document: the document in a reply, as the scorer reads it; it is what the roles are shown of a draft.
        replay: when an episode is missing, play those on disk too, for their place in its batches: log-probs differ in
            their last bits from one batch shape to another. Worth its time only where arithmetic repeats itself (CPU).
    """

    environment: Callable[[], Environment]
    engine: Engine
    store: ImageStore
    prompts: Prompts
    episodes: EpisodeConfig
    sampling: SamplingConfig
    seed: int
    actors: dict[str, Any] = field(default_factory=dict)
    special: tuple[str, ...] = ()
    workers: int = 8
    document: Callable[[str], str] = document_of
    replay: bool = False


@dataclass
class _Player:
    """One episode on its way: its coroutine, what it waits for, and the attempt it is in."""

    group: GroupPlan
    member: int
    attempt: int = 0
    play: Generator[Ask, Sampled | ModelFailure, dict[str, Any]] | None = None
    ask: Ask | None = None
    answer: Sampled | ModelFailure | None = None
    record: dict[str, Any] | None = None
    failure: InfrastructureFailure | None = None

    @property
    def over(self) -> bool:
        return self.record is not None or self.failure is not None


def episode_path(folder: str | Path, group: GroupPlan, member: int) -> Path:
    """Where the episode of a member lies in an iteration's folder."""
    return Path(folder) / "episodes" / f"group_{group.number:05d}_member_{member:02d}.json"


def collect(setup: Collection, groups: Sequence[GroupPlan], folder: str | Path) -> list[list[dict[str, Any]]]:
    """The episodes of some groups, those on disk included; per group its members' records, without the given-up ones.

    Each record is written as soon as its episode is over, and a record on disk stays. Raises
    InfrastructureFailure("group_failed") if a group has fewer than two episodes, and ("reference_differs") if its
    members saw different references.
    """
    size = setup.episodes.group_size
    records: dict[tuple[int, int], dict[str, Any]] = {}
    for group in groups:
        for member in range(size):
            path = episode_path(folder, group, member)
            if path.exists():
                records[group.number, member] = _read(path, setup)
    everyone = [(group, member) for group in groups for member in range(size)]
    missing = [(group, member) for group, member in everyone if (group.number, member) not in records]
    players = [_Player(group, member) for group, member in (everyone if setup.replay and missing else missing)]
    with ThreadPoolExecutor(setup.workers, thread_name_prefix="episode") as threads:
        while waiting := [player for player in players if not player.over]:
            list(threads.map(lambda player: _advance(setup, player), waiting))
            for player in waiting:
                key = (player.group.number, player.member)
                if player.record is not None and key not in records:
                    _write(episode_path(folder, player.group, player.member), player.record)
                    records[key] = player.record
            asking = [player for player in waiting if player.ask is not None]
            if asking:
                answers = setup.engine([player.ask for player in asking if player.ask is not None])
                for player, answer in zip(asking, answers, strict=True):
                    player.answer = answer
    failures = {(p.group.number, p.member): p.failure for p in players if p.failure is not None}
    collected = []
    for group in groups:
        found = [records[group.number, m] for m in range(size) if (group.number, m) in records]
        if len(found) < 2:
            reasons = [failure.record() for (number, _), failure in failures.items() if number == group.number]
            message = f"group {group.number} ({group.task_id}) has {len(found)} of {size} episodes"
            raise InfrastructureFailure("group_failed", message, failures=reasons)
        check_group(found)
        collected.append(found)
    return collected


def _write(path: Path, record: dict[str, Any]) -> None:
    # Not write_json: with thousands of ids and log-probs, one number a line makes a file that nobody reads.
    write_bytes(path, (json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n").encode())


def _read(path: Path, setup: Collection) -> dict[str, Any]:
    """An episode on disk. Raises InvalidInput if it is no JSON, or was played by others than this iteration's roles."""
    fix = f"delete {path.name} and run again"
    try:
        record: dict[str, Any] = read_json(path)
        actors = record["actors"]
    except (OSError, ValueError, KeyError) as error:
        raise InvalidInput(str(path), "episode", "an episode record", str(error), fix) from error
    if actors != setup.actors:
        raise InvalidInput(str(path), "actors", f"an episode of {setup.actors}", actors, fix)
    return record


def check_group(records: Sequence[Mapping[str, Any]]) -> None:
    """Raises InfrastructureFailure unless all episodes have the same task, seed and reference."""
    for key in ("task_id", "seed", "reference"):
        if len(values := {record[key] for record in records}) > 1:
            message = f"the members of a group differ in {key}: {sorted(map(str, values))}"
            raise InfrastructureFailure("reference_differs", message)


def _advance(setup: Collection, player: _Player) -> None:
    """Takes one episode to its next question or its end. An infrastructure failure starts it again or ends it."""
    try:
        if player.play is None:
            player.play = _play(setup, player.group, player.member, player.attempt)
            player.ask = next(player.play)
        else:
            assert player.answer is not None
            player.ask = player.play.send(player.answer)
    except StopIteration as end:
        player.record, player.ask = end.value, None
    except InfrastructureFailure as failure:
        player.attempt += 1
        player.play = player.ask = None
        if player.attempt >= setup.episodes.attempts:
            player.failure = failure


def _play(
    setup: Collection, group: GroupPlan, member: int, attempt: int
) -> Generator[Ask, Sampled | ModelFailure, dict[str, Any]]:
    """One episode: yields questions, is sent answers, returns the record."""
    rules, environment = setup.episodes, setup.environment()
    seen = environment.reset(group.task_id, group.seed, max_turns=rules.turns)
    reference = setup.store.put(seen.reference)
    turns: list[dict[str, Any]] = []
    rewards: list[float] = []
    drafts: list[Draft] = []
    critique, ended = None, "max_turns"

    def ask(role: Role, turn: int, messages: Sequence[Mapping[str, Any]]) -> Ask:
        seed = seed_of("turn", setup.seed, group.number, member, turn, role)
        return Ask(role, messages, seed, setup.sampling.tokens(role))

    for turn in range(1, rules.turns + 1):
        shown = _shown(drafts, rewards, rules)
        answer = yield ask("developer", turn, setup.prompts.developer(reference, seen.width, shown, critique))
        if isinstance(answer, ModelFailure):
            if not drafts:
                tokens = answer.detail.get("tokens")
                raise InvalidInput(
                    "sampling", "prompt_tokens", "room for a first prompt", answer.message, f"prompt_tokens: {tokens}"
                )
            ended = answer.code
            break
        seen = environment.step(answer.text)
        if seen.draft is None:
            raise InfrastructureFailure("no_reward", "the environment returned no reward for a draft")
        render = setup.store.put(seen.render) if seen.render else None
        reason = (seen.failure or {}).get("code")
        rewards.append(float(seen.draft))
        drafts.append(Draft(neutral(setup.document(answer.text), setup.special), render, reason))
        outcome = {"reward": rewards[-1], "parts": seen.parts, "render": render, "failure": seen.failure}
        turns.append(_turn("developer", turn, answer, **outcome))
        if seen.done:
            ended = seen.reason or "environment"
            break
        if turn == rules.turns:
            break
        critique = None
        if rules.critic:
            previous = drafts[-2] if len(drafts) > 1 else None
            answer = yield ask("critic", turn, setup.prompts.critic(reference, seen.width, previous, drafts[-1]))
            if isinstance(answer, ModelFailure):
                ended = answer.code
                break
            decision, critique = verdict(neutral(answer.text, setup.special))
            turns.append(_turn("critic", turn, answer, verdict=decision))
            if decision == "done" and turn >= rules.min_turns:
                ended = "done"
                break
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "episode",
        "group": group.number,
        "member": member,
        "task_id": group.task_id,
        "level": group.level,
        "seed": group.seed,
        "reference": reference,
        "actors": setup.actors,
        "attempts": attempt + 1,
        "ended": ended,
        "rewards": rewards,
        "turns": turns,
    }


def _shown(drafts: Sequence[Draft], rewards: Sequence[float], rules: EpisodeConfig) -> Draft | None:
    """The draft that the Developer revises."""
    if not drafts:
        return None
    return drafts[rewards.index(max(rewards))] if rules.revise_from == "best" else drafts[-1]


def _turn(role: Role, turn: int, sample: Sampled, **outcome: Any) -> dict[str, Any]:
    return {
        "role": role,
        "turn": turn,
        "prompt_ids": list(sample.prompt_ids),
        "completion_ids": list(sample.completion_ids),
        "log_probs": list(sample.log_probs),
        "images": list(sample.images),
        "finish": sample.finish,
        "text": sample.text,
        **outcome,
    }


def member_of(record: Mapping[str, Any]) -> Member:
    """An episode as credit assignment sees it."""
    return Member(tuple(record["rewards"]), sum(turn["role"] == "critic" for turn in _credited(record)))


def _credited(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The turns that had an effect: all but a critique whose next draft was never asked for (its prompt was too long).

    A DONE that `min_turns` overruled is a critique like any other.
    """
    drafts = len(record["rewards"])
    done = record["ended"] == "done"
    return [turn for turn in record["turns"] if turn["role"] == "developer" or turn["turn"] < drafts or done]


def rows_of(record: Mapping[str, Any], role: Role) -> list[Row]:
    """The training rows of one role in an episode, one per credited turn. Raises InvalidInput."""
    name = f"group_{record['group']:05d}/member_{record['member']}"
    turns = [turn for turn in _credited(record) if turn["role"] == role]
    return [row_of_turn(f"{name}/{role}_{turn['turn']}", turn) for turn in turns]
