"""A training run as a folder: open it where it stands, collect an iteration's episodes, learn from them.

    <run>/iteration_00000/        the state before the first update (new adapters, or a warm start's)
    <run>/iteration_<i>/          episodes/*.json and the checkpoint after update i (see checkpoint.py)
    <run>/images/<hash>.png       what the roles saw, each content once

An iteration is a function of the checkpoint before it, the configuration and its number; nothing else is carried over.
So a run may be stopped anywhere, and continued by another process, with the same result. Left out: which job runs what
(rules), evaluation, plots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ...failures import InvalidInput, ModelFailure
from ...identity import seed_of
from ...records import write_json
from . import checkpoint
from .advantages import CreditRule, group_credit
from .config import ROLES, Role, TrainConfig
from .episodes import Ask, Collection, Environment, collect, document_of, member_of, rows_of
from .libraries import torch
from .losses import LossRule
from .model import Policy, load_policy
from .prompts import Prompts
from .rows import ImageStore, Row
from .sampler import Request, Sample, TransformersSampler
from .schedule import plan, waves
from .update import make_optimizer, update


@dataclass
class Run:
    """An open run: everything of its last finished iteration, in memory."""

    folder: Path
    config: TrainConfig
    policy: Policy
    optimizers: dict[str, torch.optim.AdamW]
    iteration: int
    store: ImageStore
    prompts: Prompts

    def path(self, iteration: int) -> Path:
        return iteration_path(self.folder, iteration)


def iteration_path(folder: str | Path, iteration: int) -> Path:
    """Folder of an iteration."""
    return Path(folder) / f"iteration_{iteration:05d}"


def last_iteration(folder: str | Path) -> int | None:
    """Number of the last whole checkpoint in a run's folder, or None."""
    numbers = [int(p.parent.name[len("iteration_") :]) for p in Path(folder).glob(f"iteration_*/{checkpoint.MANIFEST}")]
    return max(numbers, default=None)


def open_run(
    folder: str | Path,
    config: TrainConfig,
    iteration: int | None = None,
    warm_start: str | Path | None = None,
    prompts: Prompts | None = None,
) -> Run:
    """Opens a run at `iteration`, by default its last one; a new one is begun with iteration 0.

    Args:
        warm_start: folder with one folder per adapter to begin with, in place of new ones.
        prompts: other prompts than those in config/prompts/coder.

    Raises InvalidInput, before any weights are loaded, for a checkpoint of another base, configuration, prompts or
    schedule, and
    for damaged files.
    """
    folder = Path(folder)
    last = last_iteration(folder) if iteration is None else iteration
    store, prompts = ImageStore(folder / "images"), prompts or Prompts()
    if last is not None:
        here = iteration_path(folder, last)
        checkpoint.check(here, config, prompts.identity())
        policy = load_policy(config.model, config.seed, here / "adapters")
        optimizers = checkpoint.load_optimizers(here, policy, config)
        checkpoint.load_generators(here)
        return Run(folder, config, policy, optimizers, last, store, prompts)
    policy = load_policy(config.model, config.seed, Path(warm_start) if warm_start else None)
    torch.manual_seed(seed_of("run", config.seed))
    optimizers = {name: make_optimizer(policy, name, config.update) for name in policy.adapters}
    run = Run(folder, config, policy, optimizers, 0, store, prompts)
    checkpoint.save(run.path(0), policy, optimizers, config, 0, prompts.identity(), {"iteration": 0})
    return run


def engine(
    run: Run, adapters: dict[Role, str | None] | None = None
) -> Callable[[Sequence[Ask]], list[Sample | ModelFailure]]:
    """The in-process engine of a run. `adapters` overrides who speaks for a role (None: the base model)."""
    sampling = run.config.sampling
    speakers = adapters or {role: run.policy.adapter(role) for role in ROLES}
    sampler = TransformersSampler(
        run.policy, run.store, sampling.temperature, sampling.batch_rows, sampling.prompt_tokens
    )

    def sample(asks: Sequence[Ask]) -> list[Sample | ModelFailure]:
        return sampler.sample([Request(ask.messages, speakers[ask.role], ask.seed, ask.max_tokens) for ask in asks])

    return sample


def collect_iteration(
    run: Run,
    index: int,
    environment: Callable[[], Environment],
    only: Sequence[int] | None = None,
    document: Callable[[str], str] = document_of,
) -> list[list[dict[str, Any]]]:
    """Plays the episodes of iteration `index` that are not on disk yet, with the state before it.

    Args:
        only: numbers of the waves to play (`schedule.waves`, from 0), for sharding; all by default.
        document: see `episodes.Collection`.

    Raises InvalidInput if the run stands elsewhere, and what `episodes.collect` raises.
    """
    _stands_before(run, index)
    files = checkpoint.read_manifest(run.path(run.iteration))["files"]
    actors = {
        "adapters": {name: files[f"adapters/{name}/adapter_model.safetensors"] for name in run.policy.adapters},
        "base": run.policy.base["fingerprint"],
        "prompts": run.prompts.identity(),
        "config": run.config.identity(),
    }
    special = [token for token in run.policy.processor.tokenizer.all_special_tokens if not token.startswith("<|")]
    setup = Collection(
        environment,
        engine(run),
        run.store,
        run.prompts,
        run.config.episodes,
        run.config.sampling,
        run.config.seed,
        actors,
        tuple(special),
        document=document,
        replay=run.policy.device.type == "cpu",
    )
    parts = waves(run.config, index)
    chosen = range(len(parts)) if only is None else only
    return [records for wave in chosen for records in collect(setup, parts[wave], run.path(index))]


def learn(run: Run, index: int, groups: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Takes iteration `index`'s update from its episodes, writes its checkpoint, and returns its log row."""
    _stands_before(run, index)
    here, config = plan(run.config, index), run.config
    torch.manual_seed(seed_of("iteration", config.seed, index))
    credit = CreditRule(**config.credit.model_dump())
    metrics: dict[str, Any] = {
        "iteration": index,
        "phase": here.phase,
        "roles": list(here.roles),
        **_summary(run, groups),
    }
    rows: dict[Role, list[Row]] = {role: [] for role in ROLES}
    skipped = dict.fromkeys(ROLES, 0)
    for records in groups:
        credits = group_credit([member_of(record) for record in records], credit)
        for role in ROLES:
            skipped[role] += role in credits.skipped
            if role in credits.skipped:
                continue
            advantages = credits.developer if role == "developer" else credits.critic
            for record, values in zip(records, advantages, strict=True):
                rows[role] += [row.credited(a) for row, a in zip(rows_of(record, role), values, strict=True)]
    started = time.monotonic()
    for role in ROLES:
        metrics[f"{role}/zero_variance"] = skipped[role] / len(groups)
        if role in here.roles:
            optimizer = run.optimizers[run.policy.adapter(role)]
            rule = LossRule(**config.loss.model_dump())
            result = update(run.policy, role, optimizer, rows[role], run.store, rule, config.update, config.sampling)
            metrics |= {f"{role}/{key}": value for key, value in result.record().items()}
    write_json(run.path(index) / "timing.json", {"update_s": round(time.monotonic() - started, 3)})
    previous, prompts = run.path(run.iteration), run.prompts.identity()
    checkpoint.save(run.path(index), run.policy, run.optimizers, config, index, prompts, metrics, previous)
    run.iteration = index
    return metrics


def train(
    run: Run,
    until: int,
    environment: Callable[[], Environment],
    stop: Callable[[], bool] = lambda: False,
    document: Callable[[str], str] = document_of,
) -> list[dict[str, Any]]:
    """Iterations up to `until` in this process; `stop` is asked before each. Returns their log rows."""
    rows = []
    while run.iteration < until and not stop():
        index = run.iteration + 1
        rows.append(learn(run, index, collect_iteration(run, index, environment, document=document)))
    return rows


def _stands_before(run: Run, index: int) -> None:
    if run.iteration != index - 1:
        expected = f"a run that stands at iteration {index - 1}"
        raise InvalidInput(
            str(run.folder), "iteration", expected, run.iteration, "open it there, or finish the one before"
        )


def _summary(run: Run, groups: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """What the episodes were like: mean rewards (first, last, best draft), turns, verdicts, failures."""
    records = [record for group in groups for record in group]
    values: dict[str, Any] = {
        "episodes": len(records),
        "given_up": len(groups) * run.config.episodes.group_size - len(records),
        "retried": sum(record["attempts"] > 1 for record in records),
        "reward": fmean(record["rewards"][-1] for record in records),
        "reward_first": fmean(record["rewards"][0] for record in records),
        "reward_best": fmean(max(record["rewards"]) for record in records),
        "drafts": fmean(len(record["rewards"]) for record in records),
    }
    for level in sorted({record["level"] for record in records}):
        values[f"reward/{level}"] = fmean(r["rewards"][-1] for r in records if r["level"] == level)
    turns = [turn for record in records for turn in record["turns"]]
    for role in ROLES:
        own = [turn for turn in turns if turn["role"] == role]
        values[f"{role}/completion_tokens"] = fmean(len(t["completion_ids"]) for t in own) if own else 0.0
        values[f"{role}/truncated"] = fmean(t["finish"] == "length" for t in own) if own else 0.0
    developers = [turn for turn in turns if turn["role"] == "developer"]
    values["failed_drafts"] = fmean(turn["failure"] is not None for turn in developers)
    critics = [turn["verdict"] for turn in turns if turn["role"] == "critic"]
    for decision in ("done", "unparsed"):
        values[f"critic/{decision}"] = critics.count(decision) / len(critics) if critics else 0.0
    return values
