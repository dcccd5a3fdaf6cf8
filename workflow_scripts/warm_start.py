"""Rule `warm_start`: supervised steps before a run's first update (coder/train/warmstart.py).

    python -m workflow_scripts.warm_start results/train/NAME

Makes ``warm_start/{adapter}/`` (`mode: lora`) or ``warm_start/base/`` (`mode: full`), then ``warm_start/log.json`` with
the loss of every step. Stopped or killed, it begins again: the same steps give the same weights.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import worker
from .records import SCHEMA_VERSION, write_json
from .train_rows import resolved


def main(folder: Path) -> str:
    """Trains and writes; returns a summary."""
    from .browser.pool import shared_pool
    from .coder.blocks import Camera
    from .coder.train import warmstart
    from .coder.train.config import ModelConfig
    from .coder.train.model import load_policy
    from .coder.train.prompts import Prompts
    from .coder.train.rows import ImageStore

    name, row = resolved(folder)
    rules = row.warm_start
    assert rules is not None, f"{name} has no warm start"
    model = ModelConfig.model_validate(row.model.model_dump())
    camera = Camera(shared_pool())
    policy = load_policy(model, row.seed)
    source = warmstart.page_source(lambda html, w, h: camera.look(html, w, h).png, rules.levels, row.seed)
    rule = warmstart.WarmStart(**rules.model_dump(exclude={"levels"}))

    def report(step: dict[str, float]) -> None:
        if worker.stopping():
            raise worker.Stopped("was told to end; a warm start begins again", False)
        print(f"step {step['step']:.0f} of {rule.steps}: loss {step['loss']:.4f}", flush=True)

    store = ImageStore(folder / "warm_start" / "images")
    log = warmstart.warm_start(policy, source, store, Prompts(), rule, row.seed, report)
    target = folder / "warm_start"
    warmstart.save_start(policy, rule, target / "base" if rules.mode == "full" else target)
    record = {"schema_version": SCHEMA_VERSION, "record": "warm_start", "identity": row.warm_start_identity()}
    write_json(target / "log.json", {**record, "steps": log})
    return f"{rule.steps} steps, loss {log[0]['loss']:.3f} → {log[-1]['loss']:.3f} nats per token"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    sys.exit(worker.serve(lambda: main(options.folder)))
