"""The in-process engine: batched generation with the model that is trained, exact ids and log-probs included.

A token is drawn by inverting the distribution function of softmax(logits / T) at a uniform number that belongs to the
row (its seed) and the position, in float64. There is no top-p, top-k or penalty. So a row's tokens depend on its own
seed and logits alone, not on a global generator or on who shares its batch; the limit is arithmetic: in another batch
shape the logits differ by rounding (1e-7 in float32, up to 1e-2 in bfloat16), which moves a draw only where the uniform
number falls within that distance of a boundary. Records therefore keep what was sampled instead of sampling it again.

Rows of several adapters run in one batch (PEFT's mixed batches). Left out: continuous batching, speculative decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...failures import ModelFailure
from .libraries import torch, transformers
from .model import Encoded, Policy
from .rows import ImageStore

BASE = "__base__"
"""PEFT's name for rows without an adapter."""


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to sample.

    Attributes:
        messages: the conversation; images as hashes, see `Policy.encode`.
        adapter: name of the adapter that speaks, or None for the base model.
        seed: seed of this row's draws.
        max_tokens: longest completion.
    """

    messages: Sequence[Mapping[str, Any]]
    adapter: str | None
    seed: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What was fed and what came out; see `rows.Row`. `text` is without special tokens."""

    prompt_ids: tuple[int, ...]
    images: tuple[str, ...]
    completion_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish: str
    text: str


class TransformersSampler:
    """Samples requests with a policy. Not for use from several threads.

    Args:
        policy: model, adapters, processor.
        store: where the images of the requests are.
        temperature: T > 0 of softmax(logits / T).
        batch_rows: rows generated at the same time.
        prompt_tokens: a longer prompt is refused with ModelFailure("prompt_too_long") in place of its sample.
    """

    def __init__(
        self, policy: Policy, store: ImageStore, temperature: float, batch_rows: int = 16, prompt_tokens: int = 16384
    ) -> None:
        self.policy, self.store = policy, store
        self.temperature, self.batch_rows, self.prompt_tokens = temperature, batch_rows, prompt_tokens

    def sample(self, requests: Sequence[Request]) -> list[Sample | ModelFailure]:
        """A sample, or the reason for none, per request, in their order."""
        results: list[Sample | ModelFailure | None] = [None] * len(requests)
        encoded: list[tuple[int, Request, Encoded]] = []
        for i, request in enumerate(requests):
            prompt = self.policy.encode(request.messages, self.store)
            if len(prompt.ids) > self.prompt_tokens:
                message = f"a prompt of {len(prompt.ids)} tokens is longer than {self.prompt_tokens}"
                results[i] = ModelFailure("prompt_too_long", message, tokens=len(prompt.ids))
            else:
                encoded.append((i, request, prompt))
        for part in self._batches(encoded):
            for (i, _, _), sample in zip(part, self._generate([p[1:] for p in part]), strict=True):
                results[i] = sample
        return [result for result in results if result is not None]

    def _batches(self, encoded: list[tuple[int, Request, Encoded]]) -> Iterator[list[tuple[int, Request, Encoded]]]:
        """Rows of like length and limit together: less padding, and short completions do not wait for long ones."""
        # A vision tower sees the images of all rows as one sequence, so its adapter cannot differ from row to row.
        apart = self.policy.config.lora.vision
        kinds = sorted({request.adapter or BASE for _, request, _ in encoded}) if apart else [None]
        for kind in kinds:
            rows = [item for item in encoded if kind is None or (item[1].adapter or BASE) == kind]
            rows.sort(key=lambda item: (item[1].max_tokens, len(item[2].ids), item[0]))
            for start in range(0, len(rows), self.batch_rows):
                yield rows[start : start + self.batch_rows]

    def _generate(self, rows: Sequence[tuple[Request, Encoded]]) -> list[Sample]:
        policy = self.policy
        length = max(len(prompt.ids) for _, prompt in rows)
        ids = torch.full((len(rows), length), policy.pad, dtype=torch.int64)
        attention = torch.zeros_like(ids)
        for i, (_, prompt) in enumerate(rows):
            ids[i, length - len(prompt.ids) :] = torch.tensor(prompt.ids)
            attention[i, length - len(prompt.ids) :] = 1
        inputs = {
            "input_ids": ids,
            "attention_mask": attention,
            "mm_token_type_ids": (ids == policy.image_token).long(),
        }
        inputs = {name: value.to(policy.device) for name, value in inputs.items()}
        inputs |= policy.pixels([name for _, prompt in rows for name in prompt.images], self.store)
        policy.check_placeholders(ids, inputs, "prompt")
        draw = _Draw([request for request, _ in rows], self.temperature, policy)
        config = transformers.GenerationConfig(
            do_sample=False,
            max_new_tokens=draw.longest,
            eos_token_id=list(policy.ends),
            pad_token_id=policy.pad,
            use_cache=True,
        )
        processors = transformers.LogitsProcessorList([draw])
        names = [request.adapter for request, _ in rows]
        mixed = len(set(names)) > 1
        speaking = self.policy.sampling() if mixed else self.policy.speaking(names[0])
        extra = {"adapter_names": [name or BASE for name in names]} if mixed else {}
        with speaking:
            policy.model.generate(**inputs, generation_config=config, logits_processor=processors, **extra)
        samples = []
        for (_, prompt), (tokens, log_probs) in zip(rows, draw.completions(), strict=True):
            finish = "stop" if tokens[-1] in policy.ends else "length"
            samples.append(Sample(prompt.ids, prompt.images, tokens, log_probs, finish, policy.decode(tokens)))
        return samples


class _Draw(transformers.LogitsProcessor):  # type: ignore[misc]
    """Chooses each row's next token and leaves `generate` no other: its greedy choice is the token drawn here."""

    def __init__(self, requests: Sequence[Request], temperature: float, policy: Policy) -> None:
        self.limits = [request.max_tokens for request in requests]
        self.longest = max(self.limits)
        self.temperature, self.policy = temperature, policy
        uniform = np.zeros((len(requests), self.longest))
        for row, request in zip(uniform, requests, strict=True):
            row[: request.max_tokens] = np.random.default_rng(request.seed).random(request.max_tokens)
        self.uniform = torch.from_numpy(uniform).to(policy.device)
        self.limit = torch.tensor(self.limits, device=policy.device)
        self.tokens: list[torch.Tensor] = []
        self.log_probs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """scores (B, V) of the next token -> 0 at the token drawn, -inf elsewhere."""
        position = len(self.tokens)
        scaled = (scores.float() / self.temperature).index_fill(-1, self.policy.forbidden, float("-inf"))
        cumulated = scaled.double().softmax(-1).cumsum(-1)
        point = self.uniform[:, position : position + 1] * cumulated[:, -1:]
        # The first token whose cumulated probability exceeds the point; a forbidden one adds nothing and is never it.
        drawn = torch.searchsorted(cumulated, point, right=True).clamp(max=scores.shape[-1] - 1)
        self.tokens.append(drawn[:, 0])
        self.log_probs.append(scaled.gather(-1, drawn)[:, 0] - scaled.logsumexp(-1))  # as losses.token_log_probs
        # A row at its own limit is ended, so that `generate` stops when all are.
        given = torch.where(self.limit > position, drawn[:, 0], self.policy.ends[0])
        return torch.full_like(scores, float("-inf")).scatter_(-1, given[:, None], 0.0)

    def completions(self) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Per row its tokens, up to and with the first end token or up to its limit, and their log-probs."""
        tokens = torch.stack(self.tokens, 1).tolist()
        log_probs = torch.stack(self.log_probs, 1).tolist()
        rows = []
        for limit, row, values in zip(self.limits, tokens, log_probs, strict=True):
            end = next((i + 1 for i, token in enumerate(row[:limit]) if token in self.policy.ends), limit)
            rows.append((tuple(row[:end]), tuple(values[:end])))
        return rows
