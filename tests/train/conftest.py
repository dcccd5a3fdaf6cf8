"""A tiny real vision-language model, rows sampled from it, and a tiny environment; skipped where torch is missing."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: two threads on shared cores are slower than one
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # child processes import transformers; let them keep its bytecode

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from workflow_scripts.coder.train.config import Role, TrainConfig, train_config
from workflow_scripts.coder.train.rows import ImageStore, Row

from .world import picture

if TYPE_CHECKING:
    from workflow_scripts.coder.train.model import Policy


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny base model."""
    pytest.importorskip("torch")
    pytest.importorskip("workflow_scripts.coder.train.libraries")
    from tests.tiny.vlm import build

    return build(tmp_path_factory.mktemp("vlm") / "base")


@pytest.fixture(scope="session")
def config_of(base: Path) -> Callable[..., TrainConfig]:
    """`config_of(**blocks)`: a small run on the CPU; blocks are merged key by key."""

    def of(**blocks: Any) -> TrainConfig:
        fields: dict[str, Any] = {
            "model": {"base": str(base), "dtype": "float32", "device": "cpu", "lora": {"rank": 4, "alpha": 8}},
            "sampling": {"developer_tokens": 10, "critic_tokens": 6},
            "episodes": {"turns": 2, "group_size": 2},
            "update": {"learning_rate": 1e-2},
            "schedule": [{"phase": "combined", "iterations": 3}],
        }
        for name, block in blocks.items():
            fields[name] = {**fields.get(name, {}), **block} if isinstance(block, dict) else block
        return train_config(fields)

    return of


@pytest.fixture(scope="session")
def policy_of(config_of: Callable[..., TrainConfig]) -> Callable[..., Policy]:
    """`policy_of(**model)`: a policy whose adapters differ from the base and from each other."""

    def of(**model: Any) -> Policy:
        import torch

        from workflow_scripts.coder.train.model import load_policy

        torch.set_num_threads(1)
        policy = load_policy(config_of(model=model).model, seed=0)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name in policy.adapters:
                for parameter in policy.parameters(name).values():
                    parameter.normal_(0, 0.05, generator=generator)
        return policy

    return of


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


def conversation(store: ImageStore, number: int, images: int, size: tuple[int, int] = (64, 96)) -> list[dict[str, Any]]:
    """A user's message with some pictures; different numbers, different lengths."""
    pictures = [{"type": "image", "image": store.put(picture(f"{number}/{i}", size))} for i in range(images)]
    text = {"type": "text", "text": "Write the page. " + "Mind the title. " * (number % 3)}
    return [{"role": "user", "content": [*pictures, text]}]


def sampled_rows(
    policy: Policy,
    store: ImageStore,
    count: int,
    *,
    role: Role = "developer",
    tokens: int = 12,
    temperature: float = 0.7,
) -> list[Row]:
    """Rows sampled by the role's adapter with one or two images each and advantages of both signs."""
    from workflow_scripts.coder.train.sampler import Request, Sample, TransformersSampler

    requests = [
        Request(conversation(store, i, 1 + i % 2), policy.adapter(role), seed=i, max_tokens=tokens - i % 4)
        for i in range(count)
    ]
    rows = []
    for i, sample in enumerate(TransformersSampler(policy, store, temperature).sample(requests)):
        assert isinstance(sample, Sample)
        row = Row(
            f"row_{i}",
            role,
            sample.prompt_ids,
            sample.completion_ids,
            sample.log_probs,
            sample.images,
            sample.finish,
            (-1) ** i * (0.5 + 0.25 * i),
        )
        rows.append(row)
    return rows


def log_probs(policy: Policy, rows: Sequence[Row], store: ImageStore, temperature: float = 0.7) -> Any:
    """(n,) log-probs of the rows' completion tokens under the active adapter, without gradient."""
    import torch

    from workflow_scripts.coder.train.update import log_probs_of

    with torch.no_grad():
        return log_probs_of(policy, policy.batch(rows, store), temperature)[0]
