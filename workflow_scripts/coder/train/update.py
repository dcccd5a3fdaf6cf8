"""One role's optimizer steps on the credited rows of an iteration.

Rows go through in micro-batches of bounded size, each with its own backward pass; the row weights are those of the
whole update, so the gradients add up to exactly that of one large batch while memory depends on the micro-batch alone,
not on the group size or the number of turns. The whole prompt and completion are fed; a row over the limit is refused
and counted, never cut. With `epochs` > 1 the first pass's log-probs are the "old" ones of the later passes.
Left out: learning-rate schedules beyond a linear warm-up, more than one device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...failures import InfrastructureFailure, InvalidInput
from .config import Role, SamplingConfig, UpdateConfig
from .losses import LossRule, head_log_probs, policy_loss, row_weights
from .model import Batch, Policy
from .rows import ImageStore, Row


def make_optimizer(policy: Policy, adapter: str, config: UpdateConfig) -> torch.optim.AdamW:
    """AdamW over one adapter's weights, in the order of `Policy.parameters`."""
    parameters = list(policy.parameters(adapter).values())
    return torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)


@dataclass
class Tally:
    """Sums over the tokens of one pass."""

    loss: float = 0.0
    tokens: int = 0
    clipped: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    capped: float = 0.0
    mismatch: float = 0.0
    mismatch_max: float = 0.0
    mismatch_kl: float = 0.0


@dataclass(frozen=True)
class UpdateResult:
    """What an update did; `record` is what the log shows.

    Attributes:
        rows, refused, masked: rows trained on, over the length limit, left out because cut (`truncated: mask`).
        tokens: trained tokens of one pass; `steps`: optimizer steps taken, 0 where no row was left.
        values: means over tokens of the first pass (entropy in nats, mismatch between trainer and sampler) and of the
            last (loss, clipped share, KL to the base), the gradient norm before clipping, and the learning rate.
    """

    rows: int
    refused: int
    masked: int
    tokens: int
    steps: int
    values: dict[str, float] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        counts = {"rows": self.rows, "refused": self.refused, "masked": self.masked, "tokens": self.tokens}
        return {**counts, "steps": self.steps, **self.values}


def select(rows: Sequence[Row], config: UpdateConfig) -> tuple[list[Row], int, int]:
    """Rows to train on, the number refused for their length, and the number masked for being cut.

    Raises InvalidInput for an advantage that is no number.
    """
    for row in rows:
        if not math.isfinite(row.advantage):
            raise InvalidInput(row.key, "advantage", "a finite number", row.advantage, "rerun this episode")
    fitting = [row for row in rows if len(row) <= config.max_row_tokens]
    kept = [row for row in fitting if config.truncated == "keep" or row.finish != "length"]
    return kept, len(rows) - len(fitting), len(fitting) - len(kept)


def micro_batches(rows: Sequence[Row], tokens: int) -> list[list[int]]:
    """Indices of rows in batches of at most `tokens` tokens with padding (or one row), longest first."""
    batches: list[list[int]] = []
    room = 0
    for i in sorted(range(len(rows)), key=lambda i: (-len(rows[i]), i)):
        if batches and (len(batches[-1]) + 1) * room <= tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
            room = len(rows[i])
    return batches


def update(
    policy: Policy,
    role: Role,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[Row],
    store: ImageStore,
    rule: LossRule,
    config: UpdateConfig,
    sampling: SamplingConfig,
) -> UpdateResult:
    """Takes `config.epochs` optimizer steps of the role's adapter on its credited rows.

    Raises InvalidInput for rows of another role or without a finite advantage, InfrastructureFailure for a gradient
    that is no number (nothing is changed then).
    """
    if strange := [row.key for row in rows if row.role != role]:
        raise InvalidInput(strange[0], "role", role, "another role", "rows of one role only")
    kept, refused, masked = select(rows, config)
    if not kept:
        return UpdateResult(0, refused, masked, 0, 0)
    weights = row_weights(rule.name, [len(row.completion_ids) for row in kept], sampling.tokens(role))
    parts = micro_batches(kept, config.micro_batch_tokens)
    old: dict[int, torch.Tensor] = {}
    first, tally, norm = None, Tally(), 0.0
    with policy.training(role) as parameters:
        trained = list(parameters.values())
        for _ in range(config.epochs):
            tally = Tally()
            optimizer.zero_grad(set_to_none=True)
            for part in parts:
                batch = policy.batch([kept[i] for i in part], store)
                chosen = [(kept[i], weights[i], old.get(i)) for i in part]
                log_probs = _backward(policy, batch, chosen, rule, config, sampling.temperature, tally)
                for i, values in zip(part, log_probs, strict=True):
                    old.setdefault(i, values[: len(kept[i].completion_ids)])
            norm = float(torch.nn.utils.clip_grad_norm_(trained, config.clip_norm))
            if not math.isfinite(norm):
                optimizer.zero_grad(set_to_none=True)
                message = f"the gradient of adapter {policy.adapter(role)!r} has norm {norm}"
                raise InfrastructureFailure("bad_gradient", message, rows=[row.key for row in kept[:20]])
            rate = _set_rate(optimizer, config)
            optimizer.step()
            first = first or tally
        optimizer.zero_grad(set_to_none=True)
    assert first is not None
    n = first.tokens
    values = {
        "loss": tally.loss,
        "clipped": tally.clipped / n,
        "kl": tally.kl / n,
        "entropy": first.entropy / n,
        "importance_capped": first.capped / n,
        "mismatch": first.mismatch / n,
        "mismatch_max": first.mismatch_max,
        "mismatch_kl": first.mismatch_kl / n,
        "gradient_norm": norm,
        "learning_rate": rate,
    }
    return UpdateResult(len(kept), refused, masked, n, config.epochs, values)


def _backward(
    policy: Policy,
    batch: Batch,
    rows: Sequence[tuple[Row, float, torch.Tensor | None]],
    rule: LossRule,
    config: UpdateConfig,
    temperature: float,
    tally: Tally,
) -> torch.Tensor:
    """Forward and backward of one micro-batch; returns its log-probs (B, T), detached."""
    flat, entropy = log_probs_of(policy, batch, temperature, config.logit_rows)
    now = as_table(flat, batch.mask)
    device = now.device
    sampled = _pad([torch.tensor(row.log_probs) for row, _, _ in rows], batch.mask)
    before = [o for _, _, o in rows if o is not None]
    old = _pad(before, batch.mask) if before else now.detach()
    reference = None
    if rule.kl:
        with policy.bare():
            reference = as_table(log_probs_of(policy, batch, temperature, config.logit_rows)[0], batch.mask)
    parts = policy_loss(
        rule,
        now,
        old,
        torch.tensor([row.advantage for row, _, _ in rows], dtype=torch.float32, device=device),
        batch.mask,
        torch.tensor([weight for _, weight, _ in rows], dtype=torch.float32, device=device),
        sampled=sampled,
        reference=reference,
    )
    parts.loss.backward()
    tally.loss += float(parts.loss.detach())
    tally.tokens += parts.tokens
    tally.clipped += parts.clipped
    tally.kl += parts.kl
    tally.capped += parts.importance_capped
    tally.entropy += float(entropy.sum())
    gap = (now.detach() - sampled)[batch.mask]
    tally.mismatch += float(gap.abs().sum())
    tally.mismatch_max = max(tally.mismatch_max, float(gap.abs().max()))
    tally.mismatch_kl += float((gap.exp() - gap - 1).sum())
    return now.detach()


def log_probs_of(
    policy: Policy, batch: Batch, temperature: float, logit_rows: int = 512
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies (n,) of a batch's completion tokens, under the active adapter."""
    return head_log_probs(policy.head, policy.hidden(batch), batch.ids, temperature, policy.forbidden, logit_rows)


def as_table(flat: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(n,) values of the completion tokens as (B, T), 0 where masked; differentiable."""
    return torch.zeros(mask.shape, dtype=flat.dtype, device=flat.device).masked_scatter(mask, flat)


def _pad(rows: Sequence[torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
    return as_table(torch.cat([row.to(mask.device, torch.float32) for row in rows]), mask)


def _set_rate(optimizer: torch.optim.Optimizer, config: UpdateConfig) -> float:
    """Learning rate of the step about to be taken; the optimizer's own step count is the only state."""
    group = optimizer.param_groups[0]
    state = optimizer.state.get(group["params"][0], {})
    taken = int(state["step"]) if state else 0
    rate = config.learning_rate * min(1.0, (taken + 1) / (config.warmup_steps + 1))
    group["lr"] = rate
    return rate
