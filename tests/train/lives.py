"""A training run in a process that kills itself with SIGKILL at a chosen point.

    python -m tests.train.lives RUN_FOLDER CONFIG_JSON UNTIL        a whole life, without a kill

Points are counted calls of real functions: a point `("backward", 3)` dies in place of the fourth backward pass.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workflow_scripts.coder.train.config import TrainConfig, train_config

from .world import World, short_prompts

Point = tuple[str, int]


def _deadly(function: Callable[..., Any], at: int, after: bool = False) -> Callable[..., Any]:
    """`function`, but its call number `at` kills the process: before it does anything, or after it did all."""
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls - 1 == at and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **kwargs)
        if calls - 1 == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return wrapped


def live(folder: Path, config: TrainConfig, until: int, die: Point | None = None) -> None:
    """Trains up to iteration `until`, or dies on the way."""
    import torch

    from workflow_scripts.coder.train import checkpoint, episodes, sampler, trainer, update

    torch.set_num_threads(1)
    if die:
        name, at = die
        places: dict[str, tuple[Any, str, bool]] = {
            "episode": (episodes, "_write", False),
            "generation": (sampler.TransformersSampler, "_generate", True),
            "backward": (update, "_backward", True),
            "step": (torch.optim.AdamW, "step", False),
            "stepped": (torch.optim.AdamW, "step", True),
            "file": (checkpoint, "write_bytes", False),
            "link": (checkpoint, "_link", True),
        }
        owner, attribute, after = places[name]
        setattr(owner, attribute, _deadly(getattr(owner, attribute), at, after))
    run = trainer.open_run(folder, config, prompts=short_prompts())
    trainer.train(run, until, World, document=str.strip)


def fork(folder: Path, config: TrainConfig, until: int, die: Point) -> int:
    """A life in a forked process; the signal that ended it, 0 if none did."""
    pid = os.fork()
    if pid == 0:
        try:
            live(folder, config, until, die)
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    live(Path(sys.argv[1]), train_config(json.loads(sys.argv[2])), int(sys.argv[3]))
