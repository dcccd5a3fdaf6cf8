"""Supervised warm start: the base, or the Developer's adapter, learns to write pages before GRPO.

Examples are the first turn of an episode: the Developer's own prompt with the reference's screenshot, and the page's
source as the reply. Without it a base that never wrote HTML gets reward 0 in every episode, and GRPO has nothing to
compare. Tokens of the reply alone are trained, each with the same weight. Steps are seeded by their number.
Left out: packing, several epochs over stored data (pages are made on demand), the Critic (there is no truth to
imitate).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from ...identity import seed_of
from ...records import write_bytes
from .libraries import torch
from .losses import head_log_probs
from .model import Policy, adapter_tensors
from .prompts import Prompts
from .rows import ImageStore, Row
from .update import micro_batches


@dataclass(frozen=True, slots=True)
class Example:
    """A page: its screenshot (PNG) at `width` CSS pixels, and the document to write."""

    png: bytes
    width: int
    html: str


class Source(Protocol):
    """Example number `index` >= 0, the same for ever."""

    def __call__(self, index: int) -> Example: ...


@dataclass(frozen=True, slots=True)
class WarmStart:
    """How the warm start goes.

    Attributes:
        mode: `lora` trains the Developer's adapter; `full` all weights of the language model and the vision tower.
        steps, batch: optimizer steps and examples in each; example number k is `source(k mod examples)`.
        examples: number of different examples.
        learning_rate: peak of a linear warm-up over a tenth of the steps and a cosine decay to a tenth of the peak.
        clip_norm: largest norm of the gradient.
        micro_batch_tokens: tokens of a micro-batch, padding included.
        max_row_tokens: longer examples are skipped.
    """

    mode: Literal["lora", "full"] = "lora"
    steps: int = 200
    batch: int = 8
    examples: int = 1_000_000
    learning_rate: float = 1e-4
    clip_norm: float = 1.0
    micro_batch_tokens: int = 8192
    max_row_tokens: int = 20480


def warm_start(
    policy: Policy,
    source: Source,
    store: ImageStore,
    prompts: Prompts,
    rule: WarmStart,
    seed: int,
    report: Callable[[dict[str, float]], None] = lambda row: None,
) -> list[dict[str, float]]:
    """Trains in place; returns a row per step: loss (nats per token), gradient norm, rate, skipped examples."""
    end = policy.processor.tokenizer.eos_token_id
    log = []
    with _trainable(policy, rule) as parameters:
        optimizer = torch.optim.AdamW(parameters, lr=rule.learning_rate, weight_decay=0.0)
        for step in range(rule.steps):
            torch.manual_seed(seed_of("warm start", seed, step))
            numbers = [(step * rule.batch + i) % rule.examples for i in range(rule.batch)]
            rows = [row_of_example(policy, source(n), store, prompts, end, n) for n in numbers]
            rows = [row for row in rows if len(row) <= rule.max_row_tokens]
            optimizer.zero_grad(set_to_none=True)
            loss = _backward(policy, rows, store, rule)
            norm = float(torch.nn.utils.clip_grad_norm_(parameters, rule.clip_norm))
            rate = _rate(rule, step)
            optimizer.param_groups[0]["lr"] = rate
            if rows:
                optimizer.step()
            row = {
                "step": step + 1,
                "loss": loss,
                "gradient_norm": norm,
                "learning_rate": rate,
                "skipped": rule.batch - len(rows),
            }
            log.append(row)
            report(row)
        optimizer.zero_grad(set_to_none=True)
    return log


def row_of_example(
    policy: Policy, example: Example, store: ImageStore, prompts: Prompts, end: int, number: int = 0
) -> Row:
    """The Developer's first turn with the page's own source as the reply."""
    reference = store.put(example.png)
    prompt = policy.encode(prompts.developer(reference, example.width, None, None), store)
    reply = policy.processor.tokenizer(example.html, add_special_tokens=False)["input_ids"]
    ids = (*(int(i) for i in reply), int(end))
    return Row(f"example_{number}", "developer", prompt.ids, ids, (0.0,) * len(ids), prompt.images, "stop")


def save_start(policy: Policy, rule: WarmStart, folder: str | Path) -> Path:
    """Writes what was trained: adapters for `open_run(warm_start=…)`, or (`full`) a base folder for `model.base`."""
    from safetensors.torch import save as serialise

    folder = Path(folder)
    if rule.mode == "lora":
        for name in policy.adapters:
            data = serialise(adapter_tensors(policy.model, name), metadata={"format": "pt"})
            write_bytes(folder / name / "adapter_model.safetensors", data)
        return folder
    base = policy.model.unload()  # fresh adapters change nothing
    base.generation_config = policy.generation_config
    base.save_pretrained(folder)
    policy.processor.save_pretrained(folder)
    return folder


@contextmanager
def _trainable(policy: Policy, rule: WarmStart) -> Iterator[list[torch.nn.Parameter]]:
    with policy.training("developer") as parameters:
        if rule.mode == "lora":
            yield list(parameters.values())
            return
        for parameter in parameters.values():
            parameter.requires_grad_(False)
        base = [p for name, p in policy.model.named_parameters() if "lora_" not in name]
        for parameter in base:
            parameter.requires_grad_(True)
        with policy.model.disable_adapter():
            for parameter in parameters.values():
                parameter.requires_grad_(False)
            yield base


def _backward(policy: Policy, rows: Sequence[Row], store: ImageStore, rule: WarmStart) -> float:
    total = sum(len(row.completion_ids) for row in rows)
    loss = 0.0
    for part in micro_batches(rows, rule.micro_batch_tokens):
        batch = policy.batch([rows[i] for i in part], store)
        log_probs, _ = head_log_probs(policy.head, policy.hidden(batch), batch.ids, 1.0)
        value = -log_probs.sum() / total
        value.backward()
        loss += float(value.detach())
    return loss


def _rate(rule: WarmStart, step: int) -> float:
    warm = max(1, rule.steps // 10)
    if step < warm:
        return rule.learning_rate * (step + 1) / warm
    progress = (step - warm) / max(1, rule.steps - warm)
    return rule.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


def page_source(render: Callable[[str, int, int], bytes], levels: Sequence[str], seed: int) -> Source:
    """Procedural train pages in a seeded order, with screenshots from `render(html, width, height) -> PNG`.

    The pages are the ones that GRPO sees too (split `train`); held-out pages stay unseen.
    """
    from ..pages import procedural_page

    def example(index: int) -> Example:
        rng = np.random.default_rng(seed_of("warm page", seed, index))
        page = procedural_page(levels[index % len(levels)], "train", int(rng.integers(1_000_000)))
        return Example(render(page.html, page.width, page.height), page.width, page.html)

    return example
