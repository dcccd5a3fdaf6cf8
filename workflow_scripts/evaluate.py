"""Rule `evaluate`: held-out pages drawn before and after training, in pairs, with intervals.

    python -m workflow_scripts.evaluate results/train/NAME

Each checkpoint plays the same pages with the same seeds: `start` (iteration 0: the base model, or what a warm start
made of it), `last`, and `best` where validation pages chose one. An episode's first draft is asked for exactly as in a
single-turn episode, so one set of episodes gives both: single-turn is the first draft, multi-turn the last, and the
best draft of an episode is given beside it. A task's repeats are averaged, differences are taken task by task, and
intervals are bootstrapped over tasks (scoring/aggregate.py).

Beside the trained reward stands an independent score, the eight-part reward of coder/original.py (or ours, where that
one was trained on; Design2Code's own metrics are left out: their blocks need colour renders that are not made here). A
reward that rises while the independent score does not is marked `reward_alone`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from . import worker
from .failures import InvalidInput
from .identity import digest, file_digest, seed_of
from .records import SCHEMA_VERSION, read_json, write_json
from .scoring.aggregate import interval, paired
from .train_rows import MANIFEST, RunRow, finished, iteration_folder, resolved

if TYPE_CHECKING:
    from .coder.train.trainer import Run
    from .update import Coached

Episode = Mapping[str, Any]
DRAFTS: dict[str, Callable[[Sequence[float]], float]] = {
    "single_turn": lambda rewards: rewards[0],
    "multi_turn": lambda rewards: rewards[-1],
    "best_draft": max,
}
"""How an episode's drafts become its value."""


def main(folder: Path) -> str:
    """Writes evaluation.json; returns a summary. Raises worker.Stopped and what playing episodes raises."""
    from .coder.train.trainer import open_run
    from .update import environment_maker

    name, row = resolved(folder)
    config, make = row.train(folder), environment_maker(folder, row)
    iterations = chosen(folder, row)
    episodes: dict[str, list[dict[str, Any]]] = {}
    for number in sorted(set(iterations.values())):
        run = open_run(folder, config, iteration=number)
        records = play(run, row, make, folder / "evaluation" / f"iteration_{number:05d}", None)
        episodes |= {policy: records for policy, i in iterations.items() if i == number}
        if number == 0 and row.warm_start is not None and row.warm_start.mode == "lora":
            episodes["base"] = play(run, row, make, folder / "evaluation" / "base", "base")
        del run
    independent = {}
    if row.evaluation.independent:
        by_folder = {id(records): independent_scores(records, row.reward) for records in episodes.values()}
        independent = {policy: by_folder[id(records)] for policy, records in episodes.items()}
    seed = seed_of("bootstrap", row.evaluation.seed)
    record = {
        "schema_version": SCHEMA_VERSION,
        "record": "evaluation",
        "run": name,
        "identity": row.evaluation_identity(),
        "inputs": {policy: file_digest(iteration_folder(folder, i) / MANIFEST) for policy, i in iterations.items()},
        "iterations": iterations,
        "pages": {"split": "heldout", "per_level": row.evaluation.pages, "repeats": row.evaluation.repeats},
        "sampling": {"temperature": row.sampling.temperature},
        "rewards": {"trained": row.reward, "independent": "original" if row.reward == "visible" else "visible"},
        **compare(episodes, independent, seed),
    }
    write_json(folder / "evaluation.json", record)
    return f"{len(episodes['start'])} episodes of each of {', '.join(episodes)}"


def chosen(folder: Path, row: RunRow) -> dict[str, int]:
    """Iterations by role in the comparison: start, last and, where validation pages were drawn, best.

    Raises InvalidInput if the run has no finished iteration.
    """
    done = finished(folder)
    if not done:
        raise InvalidInput(str(folder), "iterations", "a trained run", "none", "snakemake --cores 8 train")
    best = best_iteration(folder)
    return {"start": 0, "last": done[-1], **({"best": best} if best is not None else {})}


def best_iteration(folder: Path) -> int | None:
    """The iteration with the highest reward on validation pages (the earliest of equals); None without any."""
    rewards = {
        int(path.parent.name.removeprefix("iteration_")): float(read_json(path)["multi_turn"])
        for path in folder.glob("iteration_*/validation.json")
    }
    return min(rewards, key=lambda i: (-rewards[i], i), default=None)


# --- episodes ---------------------------------------------------------------------------------------------------------


def play(
    run: Run,
    row: RunRow,
    make: Callable[[], Coached],
    folder: Path,
    speaker: Literal["base"] | None,
    *,
    validation: bool = False,
) -> list[dict[str, Any]]:
    """The held-out episodes of a checkpoint, those on disk included.

    Args:
        folder: where they lie, in ``episodes/``.
        speaker: ``base`` lets the base model speak for both roles instead of the run's adapters.
    """
    from .coder.train import checkpoint
    from .coder.train.config import ROLES, Role
    from .coder.train.episodes import Collection, collect
    from .coder.train.schedule import GroupPlan
    from .coder.train.trainer import engine

    files = checkpoint.read_manifest(run.path(run.iteration))["files"]
    names = [] if speaker == "base" else run.policy.adapters
    silent: dict[Role, str | None] = dict.fromkeys(ROLES, None)
    actors = {
        "adapters": {name: files[f"adapters/{name}/adapter_model.safetensors"] for name in names},
        "base": run.policy.base["fingerprint"],
        "prompts": run.prompts.identity(),
        "sampling": run.config.sampling.model_dump(exclude={"batch_rows"}),
        "episodes": run.config.episodes.model_dump(exclude={"group_size", "groups", "attempts", "levels"}),
        "seed": row.evaluation.seed,
    }
    special = [token for token in run.policy.processor.tokenizer.all_special_tokens if not token.startswith("<|")]
    setup = Collection(
        make,
        engine(run, silent if speaker == "base" else None),
        run.store,
        run.prompts,
        run.config.episodes.model_copy(update={"group_size": row.evaluation.repeats}),
        run.config.sampling,
        seed_of("evaluation", row.evaluation.seed),
        actors,
        tuple(special),
    )
    groups = [GroupPlan(**fields) for fields in row.page_groups(validation)]
    # A few batches at a time, so that a kill loses little.
    size = max(1, 2 * run.config.sampling.batch_rows // row.evaluation.repeats)
    records = []
    for start in range(0, len(groups), size):
        for group in collect(setup, groups[start : start + size], folder):
            records += group
        print(f"{folder.name}: {min(start + size, len(groups))} of {len(groups)} pages", flush=True)
    return records


def summary(records: Iterable[Episode]) -> dict[str, Any]:
    """Mean rewards of some episodes, single-turn and multi-turn, in all and by level (``multi_turn/easy``)."""
    records = list(records)
    values: dict[str, Any] = {"episodes": len(records)}
    for name, value in DRAFTS.items():
        values[name] = fmean(value(record["rewards"]) for record in records)
        for level in sorted({record["level"] for record in records}):
            values[f"{name}/{level}"] = fmean(value(r["rewards"]) for r in records if r["level"] == level)
    return values


def independent_scores(records: Sequence[Episode], trained: str) -> list[tuple[float, float]]:
    """Each episode's first and last draft under the reward that was not trained on. Raises InfrastructureFailure."""
    from .coder.pages import procedural_task
    from .coder.scorers import make_scorer

    scorer = make_scorer("original" if trained == "visible" else "visible")

    def score(record: Episode) -> tuple[float, float]:
        if worker.stopping():
            raise worker.Stopped("was told to end while scoring drafts; all episodes are kept", True)
        task = procedural_task(record["task_id"])
        texts = [turn["text"] for turn in record["turns"] if turn["role"] == "developer"]
        first = scorer.score(task, texts[0]).total
        return first, first if len(texts) == 1 else scorer.score(task, texts[-1]).total

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(score, records))


# --- numbers ----------------------------------------------------------------------------------------------------------


def compare(
    episodes: Mapping[str, Sequence[Episode]], independent: Mapping[str, Sequence[tuple[float, float]]], seed: int
) -> dict[str, Any]:
    """`policies` (means with intervals), `differences` to `start` (paired, with intervals and p) and `notes`.

    Both by scope (``all`` and each level), then by measure: ``single_turn``, ``multi_turn`` and ``best_draft`` of the
    reward, ``independent/single_turn`` and ``independent/multi_turn``; and ``parts/NAME``, the reward's parts in last
    drafts, as means without intervals.
    """
    tables = {policy: _measures(records, independent.get(policy)) for policy, records in episodes.items()}
    levels = {policy: {r["task_id"]: r["level"] for r in records} for policy, records in episodes.items()}
    scopes = ["all", *sorted({level for found in levels.values() for level in found.values()})]

    def within(policy: str, measure: str, scope: str) -> dict[str, list[float]]:
        values = tables[policy][measure]
        return {task: v for task, v in values.items() if scope in ("all", levels[policy][task])}

    policies = {
        policy: {
            scope: {
                **{measure: asdict(interval(within(policy, measure, scope), seed)) for measure in table},
                **{f"parts/{k}": v for k, v in _parts(episodes[policy], scope).items()},
                "drafts": fmean(len(r["rewards"]) for r in episodes[policy] if scope in ("all", r["level"])),
            }
            for scope in scopes
        }
        for policy, table in tables.items()
    }
    differences: dict[str, Any] = {
        policy: {
            scope: {
                measure: asdict(paired(within(policy, measure, scope), within("start", measure, scope), seed))
                for measure in tables[policy]
            }
            for scope in scopes
        }
        for policy in tables
        if policy not in ("start", "base")
    }
    notes = []
    for policy, found in differences.items():
        alone = _alone(found["all"])
        found["reward_alone"] = alone
        if alone:
            notes.append(f"{policy}: the reward rose and the independent score did not: do not read it as better pages")
    return {"policies": policies, "differences": differences, "notes": notes}


def _measures(
    records: Sequence[Episode], independent: Sequence[tuple[float, float]] | None
) -> dict[str, dict[str, list[float]]]:
    """{measure: {task: one value per repeat}}."""
    table: dict[str, dict[str, list[float]]] = {}

    def add(measure: str, task: str, value: float) -> None:
        table.setdefault(measure, {}).setdefault(task, []).append(value)

    for record in records:
        for name, value in DRAFTS.items():
            add(name, record["task_id"], float(value(record["rewards"])))
    for record, scores in zip(records, independent or [], strict=independent is not None):
        for name, score in zip(("single_turn", "multi_turn"), scores, strict=True):
            add(f"independent/{name}", record["task_id"], score)
    return table


def _parts(records: Sequence[Episode], scope: str) -> dict[str, float]:
    """Mean of each part of the reward over last drafts; a failed draft has none and counts 0."""
    last = [
        [turn for turn in record["turns"] if turn["role"] == "developer"][-1]["parts"]
        for record in records
        if scope in ("all", record["level"])
    ]
    return {name: fmean(parts.get(name, 0.0) for parts in last) for name in sorted({k for p in last for k in p})}


def _alone(found: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the reward's interval is above 0 and the independent score's is not, in last drafts."""

    def rose(measure: str) -> bool:
        low = found[measure]["low"]
        return low is not None and low > 0

    return "independent/multi_turn" in found and rose("multi_turn") and not rose("independent/multi_turn")


def headline(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a model card shows of evaluation.json: rewards and differences over all pages and by level."""

    def shown(values: Mapping[str, Any]) -> dict[str, Any]:
        kept = {k: v for k, v in values.items() if isinstance(v, Mapping)}
        return {
            k: {n: round(v[n], 4) if isinstance(v[n], float) else v[n] for n in v if n not in ("count", "left_out")}
            for k, v in kept.items()
        }

    return {
        "identity": digest(record),
        "iterations": record["iterations"],
        "pages": record["pages"],
        "policies": {p: {s: shown(v) for s, v in scopes.items()} for p, scopes in record["policies"].items()},
        "differences": {
            p: {s: shown(v) for s, v in scopes.items() if isinstance(v, Mapping)}
            for p, scopes in record["differences"].items()
        },
        "notes": record["notes"],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    sys.exit(worker.serve(lambda: main(options.folder)))
