"""Rule `judge`: all calls of one judge on one rollout, one file per call; and rule `judge_call`: one of them by name.

A call's file is kept while its identity holds (prompt, judge, exact images, task), so a lost or deleted file costs one
call. ``judged.json`` lists the calls that count. Left out: what is asked and how answers are read (`scoring.judges`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chain import read_record
from .failures import InvalidInput
from .identity import digest, file_digest
from .measure import content
from .records import SCHEMA_VERSION, write_json
from .scoring.episodes import Episode, read_episode
from .scoring.judges import (
    PROMPTS,
    PROTOCOL_VERSION,
    JudgeCall,
    JudgeSettings,
    call_path,
    episode_calls,
    judge_episode,
    judge_to_file,
    next_ordered,
    read_call,
    step_calls,
)

if TYPE_CHECKING:
    from .chat import ChatClient
    from .plan import Row
    from .scoring.rows import JudgeRow
    from .tasks import Task


def settings(name: str, row: JudgeRow) -> JudgeSettings:
    """A judge of the configuration as the scoring package takes it."""
    return JudgeSettings(
        name=name,
        model=row.model,
        temperature=row.temperature,
        max_tokens=row.max_tokens,
        extra_body=row.extra_body,
        answers_as=tuple(row.answers_as),
        attempts=row.answers,
    )


def client(row: JudgeRow) -> ChatClient:
    """The judge's connection; shared by all tasks, so that its limit of requests in flight holds for all of them."""
    from .chat import ChatClient

    return ChatClient(
        row.base_url,
        row.model,
        row.api_key_env,
        timeout_s=row.timeout_s,
        max_attempts=row.max_attempts,
        max_in_flight=row.in_flight,
    )


def identity(judge: JudgeSettings, task: Task) -> str:
    """Identity of judged.json, the rollout aside (which stands in its inputs)."""
    prompts = {path.name: file_digest(path) for path in sorted(PROMPTS.glob("*.md"))}
    milestones = [[m.id, list(m.type), m.assertion] for m in task.milestones]
    return digest(
        {
            "protocol": PROTOCOL_VERSION,
            "judge": judge.identity(),
            "prompts": prompts,
            "task": task.content(),
            "milestones": milestones,
        }
    )


def episode_of(row: Row, task: Task) -> tuple[Episode, dict[str, Any]]:
    """The rollout as scoring sees it, and its trajectory record."""
    trajectory = read_record(row.folder / task.task_id / "trajectory.json")
    return read_episode(row.folder, task, trajectory, row.run_sha256), trajectory


def main(row: Row, task: Task, judge: JudgeSettings, chat: ChatClient, scores: Path, output: Path) -> str:
    """Makes `output`: {scores}/{task}/judge/{judge}/judged.json. `scores` is ``results/scores/{model}/{setting}``."""
    episode, trajectory = episode_of(row, task)
    records = judge_episode(episode, judge, chat, scores)
    write_json(
        output,
        {
            "schema": SCHEMA_VERSION,
            "record": "judged",
            "identity": identity(judge, task),
            "inputs": {"content": content(trajectory)},
            "task_id": task.task_id,
            "judge": judge.name,
            "calls": {name: record["identity"] for name, record in records.items()},
        },
    )
    return f"{len(records)} calls"


def holds(judged: dict[str, Any], scores: Path) -> bool:
    """Whether every call that a judged.json lists is there with the identity it had."""
    paths = {name: call_path(scores, judged["task_id"], judged["judge"], name) for name in judged["calls"]}
    return all(read_call(path, judged["calls"][name]) is not None for name, path in paths.items())


def one_call(row: Row, task: Task, judge: JudgeSettings, chat: ChatClient, scores: Path, name: str) -> str:
    """Makes one call's file by name; an ordered metric's call needs those before it, which are kept or made."""
    episode, _ = episode_of(row, task)
    work = (*scores.parts[-2:], task.task_id)

    def make(call: JudgeCall) -> dict[str, Any]:
        return judge_to_file(call, judge, chat, call_path(scores, task.task_id, judge.name, call.name), work)

    known: list[str] = []
    if episode.failure is None:
        calls = [call for step in episode.transitions for call in step_calls(episode, step)] + episode_calls(episode)
        known = [call.name for call in calls]
        if name in known:
            make(calls[known.index(name)])
            return name
        results: list[dict[str, Any]] = []
        while (ordered := next_ordered(episode, results)) is not None and name.startswith(f"{ordered.metric}_step_"):
            results.append(make(ordered)["result"])
            if ordered.name == name:
                return name
    expected = f"a call of this rollout ({', '.join(known) or 'none: it ended in a model failure'})"
    raise InvalidInput("target", "call", expected, name, known[0] if known else "…")
