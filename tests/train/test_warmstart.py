"""The warm start teaches a tiny model a page, as adapter or as base, and a run goes on from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts.coder.train.config import TrainConfig
from workflow_scripts.coder.train.rows import ImageStore

from .world import picture, short_prompts

torch = pytest.importorskip("torch")

PAGES = ("<h1>Title</h1>", "<p>Some text</p>")


def source(index: int) -> Any:
    from workflow_scripts.coder.train.warmstart import Example

    return Example(picture(f"page {index % 2}", (64, 64)), 64, PAGES[index % 2])


def said(policy: Any, store: ImageStore, adapter: str | None) -> list[str]:
    """What the policy says to the two pages, almost greedily."""
    from workflow_scripts.coder.train.sampler import Request, Sample, TransformersSampler

    requests = []
    for i in range(2):
        reference = store.put(source(i).png)
        requests.append(Request(short_prompts().developer(reference, 64, None, None), adapter, i, 24))
    samples = TransformersSampler(policy, store, 0.05).sample(requests)
    return [s.text for s in samples if isinstance(s, Sample)]


@pytest.mark.parametrize(("mode", "floor"), [("lora", 5.0), ("full", 0.5)])
def test_it_learns_to_tell_two_pages_apart(
    config_of: Callable[..., TrainConfig], store: ImageStore, tmp_path: Path, mode: str, floor: float
) -> None:
    from workflow_scripts.coder.train.model import load_policy
    from workflow_scripts.coder.train.trainer import open_run
    from workflow_scripts.coder.train.warmstart import WarmStart, save_start, warm_start

    config = config_of(model={"lora": {"rank": 16, "alpha": 32, "vision": True}})
    policy = load_policy(config.model, 0)
    rule = WarmStart(mode=mode, steps=40, batch=2, learning_rate=5e-3)  # type: ignore[arg-type]
    log = warm_start(policy, source, store, short_prompts(), rule, seed=0)
    # Adapters cannot make the logits of this tiny base larger than its tied, random embeddings allow.
    assert log[-1]["loss"] < floor < log[0]["loss"]
    assert said(policy, store, "developer" if mode == "lora" else None) == list(PAGES)
    folder = save_start(policy, rule, tmp_path / "start")
    if mode == "lora":
        run = open_run(tmp_path / "run", config, warm_start=folder, prompts=short_prompts())
    else:
        started = config_of(model={"base": str(folder)})
        run = open_run(tmp_path / "run", started, prompts=short_prompts())
        assert run.policy.ends == policy.ends
    assert said(run.policy, store, "developer") == list(PAGES)


def test_steps_are_repeatable(config_of: Callable[..., TrainConfig], store: ImageStore) -> None:
    from workflow_scripts.coder.train.model import load_policy
    from workflow_scripts.coder.train.warmstart import WarmStart, warm_start

    rule = WarmStart(steps=3, batch=2, learning_rate=1e-2, max_row_tokens=60)
    logs = []
    for _ in range(2):
        policy = load_policy(config_of().model, 0)
        logs.append(warm_start(policy, source, store, short_prompts(), rule, seed=1))
    assert logs[0] == logs[1]


def test_pages_come_from_the_train_split() -> None:
    from workflow_scripts.coder.train.warmstart import page_source

    asked = []

    def render(html: str, width: int, height: int) -> bytes:
        asked.append((html, width, height))
        return picture(html)

    pages = page_source(render, ["easy", "hard"], seed=3)
    first, second, again = pages(0), pages(1), pages(0)
    assert first == again != second
    assert all("<html" in html.lower() for html, _, _ in asked)
