"""Our numbers are TRL's: inputs, log-probs, advantages, value and gradient of every loss, with images."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("workflow_scripts.coder.train.libraries")
pytest.importorskip("trl", reason="trl is the reference of these tests")

from workflow_scripts.coder.train.advantages import CreditRule, Member, group_credit  # noqa: E402
from workflow_scripts.coder.train.losses import LOSSES, LossRule, policy_loss, row_weights  # noqa: E402
from workflow_scripts.coder.train.rows import ImageStore, Row  # noqa: E402
from workflow_scripts.coder.train.update import as_table, log_probs_of, update  # noqa: E402

from .world import picture  # noqa: E402

if TYPE_CHECKING:
    from workflow_scripts.coder.train.model import Policy

TEMPERATURE = 0.7
REWARDS = [0.1, 0.7, 0.4, 0.9, 0.2, 0.3]
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, policy_of: Callable[..., Policy]) -> Any:
    """TRL's trainer around our policy's very model, and the inputs it made for two prompts of three completions."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    tmp_path = tmp_path_factory.mktemp("trl")
    policy = policy_of(activation_checkpointing=False)
    policy.forbidden = policy.forbidden[:0]  # TRL normalises over the whole vocabulary
    policy.model.set_adapter("developer")
    store = ImageStore(tmp_path / "images")
    examples = []
    for number in range(2):
        pictures = [policy_image(store, number, i) for i in range(1 + number)]
        prompt = [{"role": "user", "content": "Write the page." + " Now." * number}]
        examples += [{"prompt": prompt, "images": pictures}] * 3
    args = GRPOConfig(
        output_dir=str(tmp_path / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        per_device_train_batch_size=6,
        num_generations=3,
        max_completion_length=9,
        temperature=TEMPERATURE,
        top_p=1.0,
        top_k=0,
        seed=3,
    )
    policy.hf.generation_config.update(eos_token_id=list(policy.ends), pad_token_id=policy.pad)
    policy.hf.generation_config.suppress_tokens = policy.processor.tokenizer.convert_tokens_to_ids(
        ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
    )
    trainer = GRPOTrainer(
        model=policy.model,
        reward_funcs=lambda completions, **_: REWARDS[: len(completions)],
        args=args,
        train_dataset=Dataset.from_list([{"prompt": e["prompt"]} for e in examples]),
        processing_class=policy.processor,
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    inputs = trainer._generate_and_score_completions(examples)
    return trainer, policy, store, inputs


def policy_image(store: ImageStore, number: int, i: int) -> Any:
    from PIL import Image

    png = picture(f"trl/{number}/{i}", (64, 96))
    store.put(png)
    return Image.open(io.BytesIO(png)).convert("RGB")


@pytest.fixture(scope="module")
def rows(reference: Any) -> list[Row]:
    """TRL's rows as ours, cut to various lengths; TRL's masks are cut alike."""
    _, _, store, inputs = reference
    lengths = [9, 4, 7, 1, 8, 5]
    mask = torch.arange(9)[None] < torch.tensor(lengths)[:, None]
    inputs["completion_mask"] = mask.long()
    inputs["num_items_in_batch"] = mask.sum()
    names = [[hash_of(store, n, i) for i in range(1 + n)] for n in (0, 0, 0, 1, 1, 1)]
    made = []
    for i, length in enumerate(lengths):
        prompt = inputs["prompt_ids"][i][inputs["prompt_mask"][i].bool()].tolist()
        completion = inputs["completion_ids"][i, :length].tolist()
        advantage = float(inputs["advantages"][i])
        made.append(
            Row(
                f"row_{i}",
                "developer",
                tuple(prompt),
                tuple(completion),
                (0.0,) * length,
                tuple(names[i]),
                "stop",
                advantage,
            )
        )
    return made


def hash_of(store: ImageStore, number: int, i: int) -> str:
    return store.put(picture(f"trl/{number}/{i}", (64, 96)))


def trl_log_probs(trainer: Any, inputs: dict[str, Any]) -> Any:
    """(B, T), 0 beyond the mask."""
    with torch.no_grad():
        values, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
            inputs["completion_ids"].shape[1],
            pixel_values=inputs["pixel_values"],
            image_grid_thw=inputs["image_grid_thw"],
            num_images=inputs["num_images"],
            mm_token_type_ids=inputs["mm_token_type_ids"],
        )
    return values * inputs["completion_mask"]


def test_inputs_and_log_probs(reference: Any, rows: list[Row]) -> None:
    trainer, policy, store, inputs = reference
    batch = policy.batch(rows, store)
    assert torch.equal(batch.inputs["pixel_values"], inputs["pixel_values"])
    assert torch.equal(batch.inputs["image_grid_thw"], inputs["image_grid_thw"])
    with policy.sampling("developer"):
        ours = as_table(log_probs_of(policy, batch, TEMPERATURE)[0], batch.mask)
        torch.testing.assert_close(ours, trl_log_probs(trainer, inputs), rtol=0, atol=TOLERANCE)


def test_advantages(reference: Any, rows: list[Row]) -> None:
    _, _, _, inputs = reference
    for group in (slice(0, 3), slice(3, 6)):
        credit = group_credit([Member((r,), 0) for r in REWARDS[group]], CreditRule(shaping=0.0))
        ours = torch.tensor([float(a[0]) for a in credit.developer])
        torch.testing.assert_close(ours, inputs["advantages"][group], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("beta", [0.0, 0.05])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient(reference: Any, rows: list[Row], name: str, beta: float) -> None:
    trainer, policy, store, inputs = reference
    now = trl_log_probs(trainer, inputs)
    noise = torch.Generator().manual_seed(1)
    old = now + 0.3 * torch.randn(now.shape, generator=noise)
    base = now + 0.2 * torch.randn(now.shape, generator=noise)
    rule = LossRule(name, clip_low=0.2, clip_high=0.28, cispo_cap=1.1, kl=beta)  # type: ignore[arg-type]

    trainer.loss_type = {"gspo": "grpo"}.get(name, name)
    trainer.importance_sampling_level = "sequence" if name == "gspo" else "token"
    trainer.beta = beta
    trainer.epsilon_low, trainer.epsilon_high = 0.2, rule.cispo_cap if name == "cispo" else 0.28
    trainer.args.use_bias_correction_kl = True
    with policy.training("developer") as parameters:
        policy.model.zero_grad()
        expected = trainer._compute_loss(
            trainer.model, {**inputs, "old_per_token_logps": old, "ref_per_token_logps": base}
        )
        expected.backward()
        gradients = {key: p.grad.clone() for key, p in parameters.items()}
        policy.model.zero_grad()
        weights = row_weights(name, [len(row.completion_ids) for row in rows], max_tokens=9)  # type: ignore[arg-type]
        total = 0.0
        for part in ([4, 0, 2], [1, 5], [3]):  # micro-batches, whose sum is the loss
            batch = policy.batch([rows[i] for i in part], store)
            width = batch.mask.shape[1]
            loss = policy_loss(
                rule,
                as_table(log_probs_of(policy, batch, TEMPERATURE, logit_rows=4)[0], batch.mask),
                old[part, :width],
                torch.tensor([rows[i].advantage for i in part]),
                batch.mask,
                torch.tensor([weights[i] for i in part]),
                reference=base[part, :width],
            ).loss
            loss.backward()
            total += float(loss.detach())
        assert abs(total - float(expected)) <= TOLERANCE
        largest = max(float(g.abs().max()) for g in gradients.values())
        assert largest > 1e-3, "a comparison of zeros shows nothing"
        for key, parameter in parameters.items():
            torch.testing.assert_close(
                parameter.grad, gradients[key], rtol=0, atol=TOLERANCE, msg=lambda m, k=key: f"{k}: {m}"
            )
        policy.model.zero_grad()


def test_a_whole_update_is_a_step_along_trls_gradient(reference: Any, rows: list[Row], config_of: Any) -> None:
    """The update's own path (micro-batches, weights, the first step's old = now) against TRL's loss without old."""
    trainer, policy, store, inputs = reference
    trainer.loss_type, trainer.importance_sampling_level, trainer.beta = "dapo", "token", 0.0
    with policy.training("developer") as parameters:
        policy.model.zero_grad()
        trainer._compute_loss(trainer.model, inputs).backward()
        wanted = {key: p.detach() - p.grad for key, p in parameters.items()}
        policy.model.zero_grad()
    kept = {key: p.detach().clone() for key, p in policy.parameters("developer").items()}
    config = config_of(update={"clip_norm": 1e9, "micro_batch_tokens": 120, "learning_rate": 1.0})
    optimizer = torch.optim.SGD(list(policy.parameters("developer").values()), lr=1.0)
    rule = LossRule("dapo", importance_cap=None)
    result = update(policy, "developer", optimizer, rows, store, rule, config.update, config.sampling)
    assert result.steps == 1
    try:
        for key, parameter in policy.parameters("developer").items():
            torch.testing.assert_close(parameter.detach(), wanted[key], rtol=0, atol=TOLERANCE)
    finally:
        with torch.no_grad():
            for key, parameter in policy.parameters("developer").items():
                parameter.copy_(kept[key])


def test_trls_correction_for_another_engine_is_ours(reference: Any, rows: list[Row]) -> None:
    """With the same weights min(exp(old - sampled), cap), the losses are equal."""
    trainer, policy, _, inputs = reference
    trainer.loss_type, trainer.importance_sampling_level, trainer.beta = "grpo", "token", 0.0
    trainer.epsilon_low = trainer.epsilon_high = 0.2
    now = trl_log_probs(trainer, inputs)
    noise = torch.Generator().manual_seed(2)
    old, sampled = (now + 0.5 * torch.randn(now.shape, generator=noise) for _ in range(2))
    mask = inputs["completion_mask"].bool()
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    try:
        weights = (old - sampled).exp().clamp(max=2.0)
        with policy.sampling("developer"):
            expected = trainer._compute_loss(
                trainer.model, {**inputs, "old_per_token_logps": old, "importance_sampling_ratio": weights}
            )
    finally:
        trainer.use_vllm = trainer.vllm_importance_sampling_correction = False
    ours = policy_loss(
        LossRule("grpo", importance_cap=2.0),
        now,
        old,
        inputs["advantages"],
        mask,
        torch.tensor(row_weights("grpo", mask.sum(1).tolist(), 9)),
        sampled=sampled,
    )
    assert abs(float(ours.loss) - float(expected)) <= TOLERANCE
    assert ours.importance_capped > 0
