"""The objectives of policy-gradient training on sampled tokens, as sums over rows: micro-batches add up exactly.

With lp the current log-prob of a token, old the one before the first step on this batch, A its row's advantage,
r = exp(lp - old), every objective is  loss = sum_rows w_row sum_tokens l  with per-token term l and row weight w:

    name     l                                              w (N rows, n_row tokens, of the whole update)
    grpo     -min(r A, clip(r, 1-lo, 1+hi) A)               1 / (N n_row)          mean of row means (Shao et al. 2024)
    dr_grpo  the same                                       1 / (N max_tokens)     constant divisor (Liu et al. 2025)
    dapo     the same                                       1 / sum_rows n_row     every token alike (Yu et al. 2025)
    gspo     the same with r_row = exp(mean (lp - old))     1 / (N n_row)          ratio of a row (Zheng et al. 2025)
    cispo    -stop_grad(min(r, cap)) A lp                   1 / sum_rows n_row     (MiniMax-M1, 2025)

plus beta k3 with k3 = exp(ref - lp) - (ref - lp) - 1 (Schulman), times r where `kl_by_ratio` (TRL's default since
1.12). Where the sampler computes log-probs another way than the trainer (cached decoding, another engine, half
precision), l is multiplied by min(exp(old - sampled), importance_cap), without gradient (truncated importance
sampling). Values and gradients equal TRL 1.16's. Left out: value losses, entropy bonus, sequence-level masks of stale
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch.utils.checkpoint import checkpoint

LossName = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"]
LOSSES: tuple[LossName, ...] = ("grpo", "dr_grpo", "dapo", "gspo", "cispo")


@dataclass(frozen=True, slots=True)
class LossRule:
    """The objective.

    Attributes:
        name: one of `LOSSES`.
        clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high] (not in cispo).
        cispo_cap: largest ratio of cispo.
        kl: beta, weight of the k3 estimate of KL(policy || base); 0 leaves the base model's forward pass out.
        kl_by_ratio: weigh k3 by r, which makes its gradient that of the KL off policy too.
        importance_cap: cap of the importance weight; None switches the correction off.
    """

    name: LossName = "dapo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    cispo_cap: float = 5.0
    kl: float = 0.0
    kl_by_ratio: bool = True
    importance_cap: float | None = 2.0


@dataclass(frozen=True, slots=True)
class LossParts:
    """Loss of some rows (a scalar with gradient) and sums over their tokens for the log (no gradient)."""

    loss: torch.Tensor
    tokens: int
    clipped: float
    kl: float
    importance_capped: float


def row_weights(name: LossName, tokens: Sequence[int], max_tokens: int) -> list[float]:
    """Weight of each row of the whole update (table above).

    Args:
        tokens: number of trained tokens per row, all > 0.
        max_tokens: longest completion that may be sampled (dr_grpo's divisor).
    """
    if not tokens or min(tokens) < 1:
        raise ValueError("every row of an update needs at least one trained token")
    rows = len(tokens)
    if name in ("grpo", "gspo"):
        return [1 / (rows * n) for n in tokens]
    if name == "dr_grpo":
        return [1 / (rows * max_tokens)] * rows
    return [1 / sum(tokens)] * rows


def token_log_probs(
    logits: torch.Tensor, ids: torch.Tensor, temperature: float, forbidden: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of `ids`, and entropies, under softmax(logits / temperature) over the allowed tokens, in fp32.

    Args:
        logits: (N, V), any float dtype.
        ids: (N,) int64.
        forbidden: int64 ids that the sampler never draws; they get probability 0 here too.

    Returns: (N,) float32 log-probs with gradient, (N,) float32 entropies (nats) without.
    """
    scaled = logits.float() / temperature
    if forbidden is not None and forbidden.numel():
        scaled = scaled.index_fill(-1, forbidden, float("-inf"))
    chosen = scaled.gather(-1, ids[:, None])[:, 0]
    normaliser = scaled.logsumexp(-1)
    with torch.no_grad():
        probabilities = (scaled - normaliser[:, None]).exp()
        entropy = normaliser - (probabilities * scaled.nan_to_num(neginf=0.0)).sum(-1)
    return chosen - normaliser, entropy


def head_log_probs(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    ids: torch.Tensor,
    temperature: float,
    forbidden: torch.Tensor | None = None,
    chunk: int = 512,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`token_log_probs` of hidden states (N, H), with at most `chunk` rows of logits alive at any time.

    With a vocabulary of 248k, 2,048 fp32 rows are 2 GB, and as much again for their gradient; chunks are recomputed in
    the backward pass.
    """

    def part(states: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return token_log_probs(head(states), tokens, temperature, forbidden)

    parts = []
    for start in range(0, len(ids), chunk):
        states, tokens = hidden[start : start + chunk], ids[start : start + chunk]
        if torch.is_grad_enabled() and hidden.requires_grad:
            parts.append(checkpoint(part, states, tokens, use_reentrant=False))
        else:
            parts.append(part(states, tokens))
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def policy_loss(
    rule: LossRule,
    log_probs: torch.Tensor,
    old: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    weights: torch.Tensor,
    *,
    sampled: torch.Tensor | None = None,
    reference: torch.Tensor | None = None,
) -> LossParts:
    """The loss of B rows of at most T tokens.

    Args:
        log_probs: (B, T) float32 with gradient; log-probs of the sampled tokens now.
        old: (B, T) those before the first optimizer step on this batch.
        advantages: (B,), or (B, T) except for gspo.
        mask: (B, T) bool; True on trained tokens, at least one per row. Other entries may hold anything finite.
        weights: (B,) row weights of the whole update, from `row_weights`.
        sampled: (B, T) log-probs that the sampler returned, for the importance correction.
        reference: (B, T) log-probs under the base model, needed where rule.kl > 0.
    """
    keep = mask.to(log_probs.dtype)
    advantage = advantages[:, None] if advantages.ndim == 1 else advantages
    difference = (log_probs - old) * keep
    if rule.name == "gspo":
        difference = (difference.sum(1) / keep.sum(1))[:, None].expand_as(difference)
    ratio = difference.exp()
    if rule.name == "cispo":
        clipped = ratio.detach() > rule.cispo_cap
        term = -ratio.detach().clamp(max=rule.cispo_cap) * advantage * log_probs
    else:
        low, high = 1 - rule.clip_low, 1 + rule.clip_high
        # Only these clips stop a gradient: a ratio outside on the other side is not the minimum.
        clipped = ((ratio < low) & (advantage < 0)) | ((ratio > high) & (advantage > 0))
        term = -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    capped = torch.zeros_like(mask)
    if sampled is not None and rule.importance_cap is not None:
        importance = ((old - sampled) * keep).exp().detach()
        capped = importance > rule.importance_cap
        term = term * importance.clamp(max=rule.importance_cap)
    kl = torch.zeros_like(log_probs)
    if rule.kl:
        if reference is None:
            raise ValueError("a KL term needs the base model's log-probs")
        gap = (reference - log_probs) * keep
        kl = gap.exp() - gap - 1
        term = term + rule.kl * (kl * ratio if rule.kl_by_ratio else kl)
    loss = ((term * keep).sum(1) * weights).sum()
    return LossParts(
        loss,
        int(mask.sum()),
        float((clipped & mask).sum()),
        float((kl.detach() * keep).sum()),
        float((capped & mask).sum()),
    )
