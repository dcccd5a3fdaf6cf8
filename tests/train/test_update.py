"""The update on a tiny real model: what is trained, what is refused, how much memory it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from workflow_scripts.coder.train.config import TrainConfig
from workflow_scripts.coder.train.rows import ImageStore, Row
from workflow_scripts.failures import InfrastructureFailure, InvalidInput

from .conftest import log_probs, sampled_rows

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from workflow_scripts.coder.train.model import Policy
    from workflow_scripts.coder.train.update import UpdateResult


def run_update(
    policy: Policy, config: TrainConfig, rows: Sequence[Row], store: ImageStore, **rule: Any
) -> UpdateResult:
    from workflow_scripts.coder.train.losses import LossRule
    from workflow_scripts.coder.train.update import make_optimizer, update

    role = rows[0].role
    optimizer = make_optimizer(policy, policy.adapter(role), config.update)
    return update(policy, role, optimizer, rows, store, LossRule(**rule), config.update, config.sampling)


def weights(policy: Policy, adapter: str) -> dict[str, Any]:
    return {name: p.detach().clone() for name, p in policy.parameters(adapter).items()}


def test_likelihood_follows_the_advantages(
    policy_of: Callable[..., Policy], config_of: Callable[..., TrainConfig], store: ImageStore
) -> None:
    """Rows with positive advantages become likelier, the others less so; the other role is untouched."""
    policy = policy_of()
    rows = [row.credited((-1) ** i) for i, row in enumerate(sampled_rows(policy, store, 4))]
    critic = weights(policy, "critic")
    result = run_update(policy, config_of(update={"learning_rate": 1e-3}), rows, store)
    assert (result.rows, result.steps) == (4, 1)
    assert result.values["mismatch_max"] < 1e-5
    assert abs(result.values["clipped"]) == 0
    with policy.sampling("developer"):
        for row in rows:
            gain = float((log_probs(policy, [row], store) - torch.tensor(row.log_probs)).sum())
            assert gain * row.advantage > 0, row.key
    assert all(torch.equal(value, critic[name]) for name, value in policy.parameters("critic").items())


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "gspo", "cispo"])
def test_micro_batches_add_up(
    policy_of: Callable[..., Policy], config_of: Callable[..., TrainConfig], store: ImageStore, name: str
) -> None:
    """One micro-batch of all rows, or one of each: the same step up to rounding, a KL term and two epochs included."""
    ends = []
    for tokens in (100_000, 1):
        policy = policy_of()
        rows = sampled_rows(policy, store, 4)
        config = config_of(update={"micro_batch_tokens": tokens, "epochs": 2, "learning_rate": 1e-3})
        result = run_update(policy, config, rows, store, name=name, kl=0.1)
        assert result.values["kl"] > 0
        ends.append((result, weights(policy, "developer")))
    (one, a), (many, b) = ends
    for key, value in one.values.items():
        assert many.values[key] == pytest.approx(value, abs=2e-4), key
    close = [float((a[key] - b[key]).abs().max()) for key in a]
    # Adam divides by the gradient's size, so a weight with next to no gradient may differ by more than rounding.
    assert sorted(close)[len(close) // 2] < 1e-5


class Saved:
    """Counts the bytes that autograd keeps for the backward pass, and their peak."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def pack(self, tensor: Any) -> Any:
        return _Held(self, tensor)

    @staticmethod
    def unpack(held: Any) -> Any:
        return held.tensor


class _Held:
    def __init__(self, count: Saved, tensor: Any) -> None:
        self.count, self.tensor, self.size = count, tensor, tensor.numel() * tensor.element_size()
        count.now += self.size
        count.peak = max(count.peak, count.now)

    def __del__(self) -> None:
        self.count.now -= self.size


def test_memory_depends_on_neither_group_size_nor_turns(
    policy_of: Callable[..., Policy], config_of: Callable[..., TrainConfig], store: ImageStore
) -> None:
    peaks = {}
    for count in (2, 16):
        policy = policy_of()
        row = sampled_rows(policy, store, 1)[0]
        rows = [replace(row, key=f"{i}", advantage=(-1.0) ** i) for i in range(count)]
        saved = Saved()
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
            run_update(policy, config_of(update={"micro_batch_tokens": 2 * len(row)}), rows, store)
        assert saved.now == 0, "a graph outlived its backward pass"
        peaks[count] = saved.peak
    assert peaks[2] == peaks[16] > 0


def test_refused_masked_and_empty(
    policy_of: Callable[..., Policy], config_of: Callable[..., TrainConfig], store: ImageStore
) -> None:
    policy = policy_of()
    before = weights(policy, "developer")
    rows = sampled_rows(policy, store, 4)
    limit = sorted(len(row) for row in rows)[1]
    config = config_of(update={"max_row_tokens": limit, "truncated": "mask"})
    rows = [replace(row, finish="length" if i == 0 else "stop") for i, row in enumerate(rows)]
    result = run_update(policy, config, rows, store)
    fitting = [row for row in rows if len(row) <= limit]
    assert result.refused == len(rows) - len(fitting) > 0
    assert result.masked == sum(row.finish == "length" for row in fitting)
    assert result.rows == len(rows) - result.refused - result.masked
    after = weights(policy, "developer")
    nothing = run_update(policy, config_of(update={"max_row_tokens": 2}), rows, store)
    assert (nothing.rows, nothing.steps, nothing.refused) == (0, 0, 4)
    assert all(torch.equal(after[key], value) for key, value in weights(policy, "developer").items())
    assert any(not torch.equal(after[key], before[key]) for key in after)


def test_what_is_no_number_stops_before_a_step(
    policy_of: Callable[..., Policy], config_of: Callable[..., TrainConfig], store: ImageStore
) -> None:
    policy = policy_of()
    rows = sampled_rows(policy, store, 2)
    with pytest.raises(InvalidInput, match="finite"):
        run_update(policy, config_of(), [rows[0].credited(float("nan")), rows[1]], store)
    with pytest.raises(InvalidInput, match="one role"):
        run_update(policy, config_of(), [rows[0], replace(rows[1], role="critic")], store)
    name, parameter = next(iter(policy.parameters("developer").items()))
    with torch.no_grad():
        parameter.fill_(float("inf"))
    before = weights(policy, "developer")
    with pytest.raises(InfrastructureFailure, match="bad_gradient"):
        run_update(policy, config_of(), rows, store)
    after = weights(policy, "developer")
    assert all(torch.equal(before[key], after[key]) for key in before if key != name)


def test_warm_up_and_shared_adapter(
    policy_of: Callable[..., Policy], config_of: Callable[..., TrainConfig], store: ImageStore
) -> None:
    from workflow_scripts.coder.train.losses import LossRule
    from workflow_scripts.coder.train.update import make_optimizer, update

    policy = policy_of(adapters="shared")
    assert policy.adapters == ("shared",)
    config = config_of(update={"warmup_steps": 3, "learning_rate": 0.01})
    optimizer = make_optimizer(policy, "shared", config.update)
    rates = []
    for role in ("developer", "critic", "developer", "critic", "developer"):
        rows = sampled_rows(policy, store, 2, role=role)  # type: ignore[arg-type]
        result = update(policy, role, optimizer, rows, store, LossRule(), config.update, config.sampling)  # type: ignore[arg-type]
        rates.append(result.values["learning_rate"])
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01])


def test_micro_batches_respect_their_size() -> None:
    from workflow_scripts.coder.train.update import micro_batches

    rows = [Row(str(i), "developer", (1,) * n, (1,), (0.0,), (), "stop") for i, n in enumerate((3, 9, 5, 1, 30, 5))]
    batches = micro_batches(rows, 20)
    assert sorted(i for batch in batches for i in batch) == list(range(6))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(len(rows[i]) for i in batch) <= 20
    assert batches == micro_batches(rows, 20)
