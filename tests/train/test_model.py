"""The policy on a tiny real model: what is adapted, images count, sampler and trainer agree, modes and refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from workflow_scripts.coder.train.config import TrainConfig
from workflow_scripts.coder.train.rows import ImageStore
from workflow_scripts.failures import InfrastructureFailure, InvalidInput

from .conftest import conversation, log_probs, sampled_rows

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from workflow_scripts.coder.train.model import Policy


@pytest.fixture(scope="module")
def policy(policy_of: Callable[..., Policy]) -> Policy:
    return policy_of()


def test_every_layer_is_adapted_linear_attention_included(policy: Policy) -> None:
    coverage = policy.coverage
    assert coverage.layers == coverage.all_layers == 4
    mixers = {"in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"}
    assert {name: coverage.modules[name] for name in mixers} == dict.fromkeys(mixers, 3)
    assert {name: coverage.modules[name] for name in ("q_proj", "k_proj", "v_proj", "o_proj")} == dict.fromkeys(
        ("q_proj", "k_proj", "v_proj", "o_proj"), 1
    )
    assert "lm_head" not in coverage.modules
    assert not [n for n in policy.parameters("developer") if "visual" in n]


def test_targets_are_checked(config_of: Callable[..., TrainConfig]) -> None:
    from workflow_scripts.coder.train.model import load_policy

    only = load_policy(config_of(model={"lora": {"targets": ["q_proj", "out_proj"]}}).model, 0)
    assert set(only.coverage.modules) == {"q_proj", "out_proj"}
    with pytest.raises(InvalidInput) as error:
        load_policy(config_of(model={"lora": {"targets": ["q_proj", "qkv_project"]}}).model, 0)
    assert error.value.found == ["qkv_project"]
    assert "in_proj_qkv" in error.value.expected
    seeing = load_policy(config_of(model={"lora": {"vision": True}}).model, 0)
    assert [n for n in seeing.parameters("critic") if "visual" in n]


def test_new_adapters_equal_the_base_and_are_seeded(config_of: Callable[..., TrainConfig], store: ImageStore) -> None:
    from workflow_scripts.coder.train.model import adapter_tensors, load_policy

    first, second = (load_policy(config_of().model, seed) for seed in (0, 0))
    other = load_policy(config_of().model, 1)
    rows = sampled_rows(first, store, 2)
    with first.sampling("developer"):
        adapted = log_probs(first, rows, store)
    with first.bare():
        assert torch.equal(adapted, log_probs(first, rows, store))
    for name in first.adapters:
        a, b, c = (adapter_tensors(p.model, name) for p in (first, second, other))
        assert all(torch.equal(a[key], b[key]) for key in a)
        assert any(not torch.equal(a[key], c[key]) for key in a)


def test_log_probs_of_sampled_ids_are_the_samplers(policy: Policy, store: ImageStore) -> None:
    """Cached, left-padded, mixed-batch generation against full, right-padded training passes."""
    for role in ("developer", "critic"):
        rows = sampled_rows(policy, store, 5, role=role)  # type: ignore[arg-type]
        sampled = torch.tensor([value for row in rows for value in row.log_probs])
        with policy.sampling(policy.adapter(role)):  # type: ignore[arg-type]
            again = log_probs(policy, rows, store)
        torch.testing.assert_close(again, sampled, rtol=0, atol=1e-5)
        with policy.bare():
            assert (log_probs(policy, rows, store) - sampled).abs().max() > 1e-2, "the adapter made no difference"


def test_images_matter(policy: Policy, store: ImageStore) -> None:
    """A pass without images, with swapped ones, or with one replaced gives other log-probs; the first is refused."""
    rows = sampled_rows(policy, store, 2)
    one = rows[1]
    assert len(one.images) == 2
    with policy.sampling("developer"):
        right = log_probs(policy, [one], store)
        swapped = log_probs(policy, [replace(one, images=one.images[::-1])], store)
        other = log_probs(policy, [replace(one, images=(one.images[0], rows[0].images[0]))], store)
        assert (right - swapped).abs().max() > 1e-4
        assert (right - other).abs().max() > 1e-4
        with pytest.raises(InfrastructureFailure, match="image_mismatch"):
            policy.batch([replace(one, images=one.images[:1])], store)
        # What transformers does when the pixels are left out: no error, another model.
        batch = policy.batch([one], store)
        text_only = {k: v for k, v in batch.inputs.items() if k not in ("pixel_values", "image_grid_thw")}
        blind = replace(batch, inputs={**text_only, "mm_token_type_ids": torch.zeros_like(batch.inputs["input_ids"])})
        from workflow_scripts.coder.train.update import log_probs_of

        assert (right - log_probs_of(policy, blind, 0.7)[0]).abs().max() > 1e-4


def test_a_row_does_not_depend_on_its_batch(policy: Policy, store: ImageStore) -> None:
    rows = sampled_rows(policy, store, 4)
    with policy.sampling("developer"):
        together = log_probs(policy, rows, store)
        alone = torch.cat([log_probs(policy, [row], store) for row in rows])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_modes(policy: Policy, store: ImageStore) -> None:
    rows = sampled_rows(policy, store, 1)
    assert not policy.model.training
    assert not any(p.requires_grad for p in policy.model.parameters())
    with policy.training("critic") as parameters:
        assert policy.hf.training
        grads = {name for name, p in policy.model.named_parameters() if p.requires_grad}
        assert grads == set(parameters)
        assert all(".critic." in name for name in grads)
        with policy.bare():
            pass
        assert {name for name, p in policy.model.named_parameters() if p.requires_grad} >= grads
    assert not policy.model.training
    with pytest.raises(ZeroDivisionError), policy.training("developer"):
        raise ZeroDivisionError
    assert not any(p.requires_grad for p in policy.model.parameters())
    assert rows


@pytest.mark.parametrize("on", [True, False])
def test_activation_checkpointing_is_really_on(policy_of: Callable[..., Policy], store: ImageStore, on: bool) -> None:
    """With it every decoder layer's MLP runs twice: in the forward pass and again in the backward pass."""
    from workflow_scripts.coder.train.update import log_probs_of

    policy = policy_of(activation_checkpointing=on)
    rows = sampled_rows(policy, store, 1)
    calls = []
    for layer in policy.hf.get_decoder().layers:
        layer.mlp.register_forward_pre_hook(lambda *_: calls.append(1))  # recomputation may stop inside
    with policy.training("developer") as parameters:
        log_probs_of(policy, policy.batch(rows, store), 0.7)[0].sum().backward()
        assert len(calls) == (8 if on else 4)
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in parameters.values())


def test_checkpointing_changes_no_gradient(policy_of: Callable[..., Policy], store: ImageStore) -> None:
    from workflow_scripts.coder.train.update import log_probs_of

    gradients = []
    for on in (True, False):
        policy = policy_of(activation_checkpointing=on)
        rows = sampled_rows(policy, store, 2)
        with policy.training("developer") as parameters:
            log_probs_of(policy, policy.batch(rows, store), 0.7, logit_rows=5)[0].sum().backward()
            gradients.append({name: p.grad.clone() for name, p in parameters.items()})
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


def test_a_checkpoint_that_lacks_weights_is_refused(
    base: Path, tmp_path: Path, config_of: Callable[..., TrainConfig]
) -> None:
    from safetensors.torch import load_file, save_file

    from workflow_scripts.coder.train.model import load_base

    folder = tmp_path / "holes"
    shutil.copytree(base, folder)
    weights = load_file(folder / "model.safetensors")
    del weights[next(key for key in weights if key.endswith("up_proj.weight"))]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidInput, match="all weights"):
        load_base(config_of(model={"base": str(folder)}).model)
    with pytest.raises(InvalidInput, match="transformers reads"):
        load_base(config_of(model={"base": str(tmp_path / "nowhere")}).model)


def test_a_base_with_dropout_is_refused(base: Path, tmp_path: Path, config_of: Callable[..., TrainConfig]) -> None:
    from workflow_scripts.coder.train.model import load_policy

    folder = tmp_path / "dropout"
    shutil.copytree(base, folder)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config["text_config"]["attention_dropout"] = 0.1
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidInput, match="without dropout"):
        load_policy(config_of(model={"base": str(folder)}).model, 0)


def test_prompts_with_images_have_as_many_placeholders(policy: Policy, store: ImageStore) -> None:
    encoded = policy.encode(conversation(store, 0, 2, (64, 96)), store)
    assert sum(token == policy.image_token for token in encoded.ids) == 2 * 2 * 3  # 64 x 96 px in cells of 32 px
    assert len(encoded.images) == 2
