"""Rule `update`: iterations of a training run up to a given one, in a process that loads the base model once.

    python -m workflow_scripts.update results/train/NAME --until 20

An iteration is: play its episodes (those on disk are kept), learn from them, write the checkpoint; then, where
`evaluation.every` asks for it, draw the validation pages. It stops cleanly between iterations and between batches of
episodes. With `collectors`, groups of episodes are claimed one after the other, so that other jobs can take some
(`collect.py`). `log.csv` is made again from the iterations' own files after each.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import worker
from .curves import write_log
from .failures import InfrastructureFailure, InvalidInput
from .identity import digest
from .locks import TargetLocks
from .records import read_json, write_json
from .train_rows import RunRow, finished, iteration_folder, resolved

if TYPE_CHECKING:
    from .coder.environment import Observation
    from .coder.train.trainer import Run


class Coached:
    """The coder's environment as the trainer sees it: stops where the worker is asked to, refuses a NaN as reward."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def reset(self, task_id: str, seed: int, *, max_turns: int) -> Observation:
        """See `coder.environment.Environment`."""
        _stop_here()
        observation: Observation = self._environment.reset(task_id, seed, max_turns=max_turns)
        return observation

    def step(self, html: str) -> Observation:
        """See `coder.environment.Environment`. Raises InfrastructureFailure("bad_reward") for NaN."""
        _stop_here()
        observation: Observation = self._environment.step(html)
        if observation.draft is not None and not 0 <= observation.draft <= 1:
            raise InfrastructureFailure("bad_reward", f"a reward of {observation.draft} for {observation.task_id}")
        return observation


def _stop_here() -> None:
    if worker.stopping():
        raise worker.Stopped("was told to end")


def environment_maker(folder: Path, row: RunRow) -> Callable[[], Coached]:
    """Makes environments that share one scorer, hence one browser pool and one store of references.

    Raises InvalidInput if the run's rewards so far were made by another reward or renderer.
    """
    from .coder.environment import Environment
    from .coder.scorers import make_scorer

    scorer = make_scorer(row.reward)
    here = Environment(scorer=scorer).record()
    path = folder / "environment.json"
    if not path.is_file():
        write_json(path, here)
    elif (there := read_json(path)) != here:
        differ = ", ".join(f"{key}: {there.get(key)} → {here.get(key)}" for key in here if there.get(key) != here[key])
        fix = f"the old renderer and weights, another run name, or (to go on with the new rewards) rm {path}"
        raise InvalidInput(str(path), "reward", "the reward that this run was trained with", differ, fix)
    return lambda: Coached(Environment(scorer=scorer))


def main(folder: Path, until: int) -> str:
    """Trains up to iteration `until`; returns a summary. Raises worker.Stopped and what the trainer raises."""
    from .coder.train import trainer

    name, row = resolved(folder)
    locks = TargetLocks(folder / ".lock")
    locks.acquire([f"update of {name}"])
    config = row.train(folder)
    make = environment_maker(folder, row)
    start = max((i for i in finished(folder) if i <= until), default=None)
    warm = folder / "warm_start" if row.warm_start is not None and row.warm_start.mode == "lora" else None
    run = trainer.open_run(folder, config, iteration=start, warm_start=warm)
    if start is None and until > 0:
        print(f"begun: {run.policy.coverage.record()}", flush=True)
    begun, made = run.iteration, _made(run)
    try:
        while True:
            _validate(run, row, make)
            if run.iteration >= until:
                break
            _stop_here()
            _iterate(run, row, run.iteration + 1, make)
            write_log(folder)
    except worker.Stopped as stop:
        message = f"was told to end after iteration {run.iteration} of {until}; the next job goes on there"
        raise worker.Stopped(message, _made(run) != made) from stop
    locks.release()
    return f"iterations {begun + 1} … {until}" if until > begun else f"iteration {until}"


def _made(run: Run) -> tuple[int, int]:
    """What there is: finished iterations, and episodes of the next one."""
    return run.iteration, sum(1 for _ in (run.path(run.iteration + 1) / "episodes").glob("*.json"))


def _iterate(run: Run, row: RunRow, index: int, make: Callable[[], Coached]) -> None:
    from .coder.train import trainer

    before = _sampled_tokens(run.path(index))
    started = time.monotonic()
    if row.collectors:
        from .collect import play_shared

        groups = play_shared(run, index, make)
    else:
        groups = trainer.collect_iteration(run, index, make)
    seconds = time.monotonic() - started
    tokens = _sampled_tokens(run.path(index)) - before
    metrics = trainer.learn(run, index, groups)
    timing = read_json(run.path(index) / "timing.json")
    rate = round(tokens / seconds, 2) if seconds > 0 and tokens else None
    timing |= {"collect_s": round(seconds, 3), "sampled_tokens": tokens, "sampled_tokens_per_s": rate}
    write_json(run.path(index) / "timing.json", timing)
    print(f"iteration {index}: reward {metrics['reward']:.4f}, {tokens} tokens in {seconds:.1f} s", flush=True)


def _sampled_tokens(folder: Path) -> int:
    episodes = (read_json(path) for path in (folder / "episodes").glob("*.json"))
    return sum(len(turn["completion_ids"]) for episode in episodes for turn in episode["turns"])


def _validate(run: Run, row: RunRow, make: Callable[[], Coached]) -> None:
    """Draws the validation pages with the checkpoint the run stands at, if it is due and not done."""
    every = row.evaluation.every
    path = run.path(run.iteration) / "validation.json"
    if every is None or run.iteration % every or path.exists():
        return
    from .evaluate import play, summary

    records = play(run, row, make, iteration_folder(run.folder, run.iteration) / "validation", None, validation=True)
    write_json(path, {"pages": digest(row.page_groups(validation=True)), **summary(records)})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--until", type=int, required=True)
    options = parser.parse_args()
    sys.exit(worker.serve(lambda: main(options.folder, options.until)))
