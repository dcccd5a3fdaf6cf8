"""Exports reload in plain transformers and give the adapters' logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from workflow_scripts.coder.train.config import TrainConfig
from workflow_scripts.failures import InfrastructureFailure
from workflow_scripts.records import read_json

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from workflow_scripts.coder.train.model import Policy


@pytest.fixture(scope="module")
def policy(policy_of: Callable[..., Policy]) -> Policy:
    return policy_of()


@pytest.fixture(scope="module")
def config(config_of: Callable[..., TrainConfig]) -> TrainConfig:
    return config_of()


@pytest.fixture(scope="module")
def run(policy: Policy, config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stands at iteration 2 with adapters that differ from the base."""
    from workflow_scripts.coder.train import checkpoint
    from workflow_scripts.coder.train.trainer import iteration_path
    from workflow_scripts.coder.train.update import make_optimizer

    folder = tmp_path_factory.mktemp("export") / "run"
    optimizers = {name: make_optimizer(policy, name, config.update) for name in policy.adapters}
    checkpoint.save(iteration_path(folder, 2), policy, optimizers, config, 2, "prompts", {"iteration": 2})
    return folder


def test_export_reloads_and_agrees(run: Path, policy: Policy, config: TrainConfig, tmp_path: Path) -> None:
    import transformers

    from workflow_scripts.coder.train.export import _probe, export

    target = export(run, config, tmp_path / "out", evaluation={"reward": {"base": 0.25, "trained": 0.5}})
    assert sorted(p.name for p in target.iterdir()) == ["README.md", "adapters", "critic", "developer"]
    for role in ("developer", "critic"):
        kept = run / "iteration_00002" / "adapters" / role / "adapter_model.safetensors"
        assert (target / "adapters" / role / "adapter_model.safetensors").read_bytes() == kept.read_bytes()
        processor = transformers.AutoProcessor.from_pretrained(target / role)
        model = transformers.AutoModelForImageTextToText.from_pretrained(target / role, dtype="float32").eval()
        assert not [name for name, _ in model.named_modules() if "lora" in name]
        inputs = _probe(processor)
        with torch.no_grad(), policy.sampling(role):
            merged = model(**inputs).logits
            policy.hf.base_model.rope_deltas = None
            adapted = policy.model(**inputs).logits
        torch.testing.assert_close(merged, adapted, rtol=0, atol=1e-5)
        with torch.no_grad(), policy.bare():
            policy.hf.base_model.rope_deltas = None
            assert (policy.hf(**inputs).logits - merged).abs().max() > 1e-2
        generation = read_json(target / role / "generation_config.json")
        assert (generation["temperature"], generation["top_k"], generation["top_p"]) == (0.7, 0, 1.0)
        text = model.generate(**inputs, max_new_tokens=4)
        assert text.shape[1] > inputs["input_ids"].shape[1]
    card = (target / "README.md").read_text()
    for expected in (
        "base_model:",
        "trained: 0.5",
        "learning_rate: 0.01",
        policy.base["fingerprint"],
        "in 4 of\n4 layers",
    ):
        assert expected in card
    with pytest.raises(FileExistsError):
        export(run, config, target)


def test_adapters_load_in_plain_peft(run: Path, policy: Policy, config: TrainConfig) -> None:
    from workflow_scripts.coder.train.export import _probe
    from workflow_scripts.coder.train.libraries import peft, transformers

    base = transformers.AutoModelForImageTextToText.from_pretrained(config.model.base, dtype="float32")
    model = peft.PeftModel.from_pretrained(base, str(run / "iteration_00002" / "adapters" / "critic")).eval()
    inputs = _probe(policy.processor)
    with torch.no_grad(), policy.sampling("critic"):
        policy.hf.base_model.rope_deltas = None
        torch.testing.assert_close(model(**inputs).logits, policy.model(**inputs).logits, rtol=0, atol=1e-5)


def test_a_merge_that_differs_leaves_nothing_behind(
    run: Path, config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workflow_scripts.coder.train import export as module

    monkeypatch.setitem(module.TOLERANCE, "float32", -1.0)
    with pytest.raises(InfrastructureFailure, match="merge_differs"):
        module.export(run, config, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
