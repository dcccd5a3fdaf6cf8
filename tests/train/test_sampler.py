"""Sampling: the distribution, seeds, mixed adapters, limits and end tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from workflow_scripts.coder.train.rows import ImageStore
from workflow_scripts.failures import ModelFailure

from .conftest import conversation

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from workflow_scripts.coder.train.model import Policy
    from workflow_scripts.coder.train.sampler import Sample


@pytest.fixture(scope="module")
def policy(policy_of: Callable[..., Policy]) -> Policy:
    return policy_of()


def sample(
    policy: Policy, store: ImageStore, asks: list[tuple[int, str | None, int, int]], **options: int
) -> list[Sample]:
    """asks: (conversation, adapter, seed, max_tokens) each."""
    from workflow_scripts.coder.train.sampler import Request, Sample, TransformersSampler

    requests = [Request(conversation(store, n, n % 3), adapter, seed, limit) for n, adapter, seed, limit in asks]
    made = TransformersSampler(policy, store, 0.7, **options).sample(requests)
    assert all(isinstance(s, Sample) for s in made)
    return made  # type: ignore[return-value]


def test_alone_or_in_company_the_same(policy: Policy, store: ImageStore) -> None:
    asks = [(i, ("developer", "critic", None)[i % 3], 10 + i, 6 + i) for i in range(6)]
    together = sample(policy, store, asks)
    backwards = sample(policy, store, asks[::-1], batch_rows=4)[::-1]
    alone = [sample(policy, store, [ask])[0] for ask in asks]
    for a, b, c, (_, _, _, limit) in zip(together, backwards, alone, asks, strict=True):
        assert a.completion_ids == b.completion_ids == c.completion_ids
        np.testing.assert_allclose(a.log_probs, c.log_probs, atol=1e-5)
        assert len(a.completion_ids) <= limit
        assert a.finish == ("stop" if a.completion_ids[-1] in policy.ends else "length")


def test_seed_and_adapter_decide(policy: Policy, store: ImageStore) -> None:
    same, again, seed, adapter, base = sample(
        policy,
        store,
        [
            (1, "developer", 1, 12),
            (1, "developer", 1, 12),
            (1, "developer", 2, 12),
            (1, "critic", 1, 12),
            (1, None, 1, 12),
        ],
    )
    assert same == again
    assert len({same.completion_ids, seed.completion_ids}) == 2
    assert same.log_probs[0] != adapter.log_probs[0] != base.log_probs[0]


def test_first_tokens_have_the_policys_distribution(policy: Policy, store: ImageStore) -> None:
    """600 draws against softmax(logits / T): no top-k of 20, as the model's folder asks, and no top-p."""
    from workflow_scripts.coder.train.losses import token_log_probs

    draws = sample(policy, store, [(0, "developer", seed, 1) for seed in range(600)], batch_rows=100)
    prompt = torch.tensor([draws[0].prompt_ids])
    with policy.sampling("developer"):
        logits = policy.hf(input_ids=prompt).logits[0, -1]
    size = logits.shape[0]
    expected = token_log_probs(logits.expand(size, -1), torch.arange(size), 0.7, policy.forbidden)[0].exp()
    assert abs(float(expected.sum()) - 1) < 1e-4
    drawn = np.bincount([d.completion_ids[0] for d in draws], minlength=size)
    assert drawn[policy.forbidden.numpy()].sum() == 0
    assert (drawn > 0).sum() > 60  # top-k would leave 20
    # Chi-squared over eight bins of neighbouring ids, about equally likely each.
    bins = np.minimum((np.cumsum(expected.numpy()) * 8).astype(int), 7)
    wanted = np.bincount(bins, weights=expected.numpy(), minlength=8) * len(draws)
    found = np.bincount(bins, weights=drawn, minlength=8)
    assert ((found - wanted) ** 2 / wanted).sum() < 24.3  # 0.1 % point of 7 degrees of freedom


def test_too_long_prompts_are_the_coders_failure(policy: Policy, store: ImageStore) -> None:
    from workflow_scripts.coder.train.sampler import Request, TransformersSampler

    short, long = (Request(conversation(store, n, n), "developer", 0, 4) for n in (0, 2))
    fits, refused = TransformersSampler(policy, store, 0.7, prompt_tokens=40).sample([short, long])
    assert not isinstance(fits, ModelFailure)
    assert isinstance(refused, ModelFailure)
    assert refused.code == "prompt_too_long"
    assert refused.detail["tokens"] > 40


def test_an_end_token_ends_a_row(policy: Policy, store: ImageStore) -> None:
    """With every fourth token an end token, rows stop at various places and keep what they drew."""
    ends, policy.ends = policy.ends, tuple(range(0, 392, 4))
    try:
        rows = sample(policy, store, [(i % 3, "developer", i, 12) for i in range(12)])
    finally:
        policy.ends = ends
    lengths = {len(row.completion_ids) for row in rows}
    assert len(lengths) > 2
    for row in rows:
        assert len(row.completion_ids) == len(row.log_probs)
        assert not any(token % 4 == 0 for token in row.completion_ids[:-1] if token < 392)
        assert (row.finish == "stop") == (row.completion_ids[-1] % 4 == 0 and row.completion_ids[-1] < 392)
