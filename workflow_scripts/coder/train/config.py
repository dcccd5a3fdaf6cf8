"""The configuration of a training run as typed models; importable without torch.

Defaults are those of the trainer this one succeeds (Qwen3.5-9B, LoRA r 16 alpha 32, AdamW 2e-5, K = 4, five turns,
lambda = 0.2, T = 0.7, 2,048 and 512 tokens, difficulties cycled), save where it was wrong: dropout is 0, because a mask
that differs between sampling and update changes the policy. Unknown keys are refused, and so are keys that a schedule
entry's mode does not read.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from ...config import Strict
from ...failures import InvalidInput
from ...identity import digest

Role = Literal["developer", "critic"]
ROLES: tuple[Role, ...] = ("developer", "critic")
Level = Literal["easy", "medium", "hard"]
Number = Annotated[float, Field(strict=False)]


class LoraConfig(Strict):
    """Size and place of the adapters."""

    rank: int = Field(16, ge=1, description="LoRA rank r.")
    alpha: int = Field(32, ge=1, description="LoRA alpha; the update is scaled by alpha / r.")
    targets: Literal["auto"] | list[str] = Field(
        "auto", description="Leaf names of linear layers, or auto: every linear layer of the language model."
    )
    vision: bool = Field(False, description="Also adapt the vision tower (vLLM does not serve such adapters).")


class ModelConfig(Strict):
    """The base model and how it is loaded."""

    base: str = Field("Qwen/Qwen3.5-9B", min_length=1, description="Model id or folder of a vision-language model.")
    revision: str | None = Field(None, description="Commit of the model on the hub; null takes the default branch.")
    dtype: Literal["bfloat16", "float32", "float16"] = Field("bfloat16", description="Of the frozen base weights.")
    device: str = Field("cuda", description="cuda, cuda:1 or cpu; no part of any identity.")
    attention: Literal["sdpa", "eager", "flash_attention_2"] = Field("sdpa", description="Attention implementation.")
    adapters: Literal["per_role", "shared"] = Field("per_role", description="One adapter a role, or one for both.")
    lora: LoraConfig = Field(LoraConfig(), description="The adapters.")
    activation_checkpointing: bool = Field(True, description="Recompute activations in the backward pass.")
    template: dict[str, Any] = Field(
        {"enable_thinking": False}, description="Further variables of the model's chat template."
    )
    min_pixels: int | None = Field(None, ge=1, description="Images are enlarged to this area; null: the processor's.")
    max_pixels: int | None = Field(None, ge=1, description="Images are reduced to this area; null: the processor's.")


class SamplingConfig(Strict):
    """How both roles are sampled; there is no top-p, top-k or repetition penalty."""

    temperature: Number = Field(0.7, gt=0, le=2, description="T of softmax(logits / T), in sampling and in training.")
    developer_tokens: int = Field(2048, ge=1, description="Longest completion of the Developer.")
    critic_tokens: int = Field(512, ge=1, description="Longest completion of the Critic.")
    batch_rows: int = Field(16, ge=1, description="Rows generated at the same time.")
    prompt_tokens: int = Field(16384, ge=1, description="Longest prompt; a longer one is the coder's failure.")

    def tokens(self, role: Role) -> int:
        return self.developer_tokens if role == "developer" else self.critic_tokens


class EpisodeConfig(Strict):
    """One episode and its group."""

    group_size: int = Field(4, ge=2, description="K, episodes of one group.")
    groups: int = Field(1, ge=1, description="Groups per update.")
    turns: int = Field(5, ge=1, description="Drafts of an episode at most.")
    critic: bool = Field(True, description="Whether a Critic comments between drafts.")
    min_turns: int = Field(1, ge=1, description="Drafts before a DONE may end the episode.")
    revise_from: Literal["last", "best"] = Field("last", description="The draft that is shown for revision.")
    attempts: int = Field(3, ge=1, description="Tries of an episode that failed for reasons not its own.")
    levels: list[Level] = Field(["easy", "medium", "hard"], min_length=1, description="Difficulties, cycled by group.")

    @model_validator(mode="after")
    def _turns(self) -> EpisodeConfig:
        if self.min_turns > self.turns:
            raise ValueError("min_turns <= turns")
        return self


class CreditConfig(Strict):
    """Credit assignment; see advantages.py."""

    kind: Literal["own_delta", "original"] = Field("own_delta", description="Formula.")
    shaping: Number = Field(0.2, ge=0, description="lambda.")
    outcome: Literal["last", "best"] = Field("last", description="An episode is worth its last or its best draft.")
    scale: Literal["group", "none"] = Field("group", description="Divide by the group's standard deviation, or not.")
    min_range: Number = Field(1e-3, ge=0, description="Groups whose credits span less are skipped.")
    done_headroom: Number = Field(0.1, ge=0, le=1, description="Share of 1 - reward that a DONE forgoes.")
    turn_cost: Number = Field(0.0, ge=0, description="Cost of asking for another draft.")


class LossConfig(Strict):
    """The objective; see losses.py."""

    name: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"] = Field("dapo", description="Objective.")
    clip_low: Number = Field(0.2, gt=0, lt=1, description="Lower clip of the ratio.")
    clip_high: Number = Field(0.2, gt=0, description="Upper clip of the ratio.")
    cispo_cap: Number = Field(5.0, gt=0, description="Largest ratio of cispo.")
    kl: Number = Field(0.0, ge=0, description="Weight of KL to the base model.")
    kl_by_ratio: bool = Field(True, description="Weigh the KL estimate by the ratio.")
    importance_cap: Number | None = Field(2.0, gt=0, description="Cap of the engine correction; null: none.")


class UpdateConfig(Strict):
    """The optimizer step."""

    learning_rate: Number = Field(2e-5, gt=0, description="Of AdamW, after the warm-up.")
    warmup_steps: int = Field(0, ge=0, description="Linear warm-up, in optimizer steps of the role.")
    weight_decay: Number = Field(0.01, ge=0, description="Of AdamW.")
    clip_norm: Number = Field(1.0, gt=0, description="Largest norm of the gradient.")
    epochs: int = Field(1, ge=1, description="Optimizer steps on the same rows.")
    micro_batch_tokens: int = Field(8192, ge=1, description="Tokens of a micro-batch, padding included.")
    logit_rows: int = Field(512, ge=1, description="Positions whose logits are alive at the same time.")
    max_row_tokens: int = Field(20480, ge=2, description="Longer rows are refused and counted.")
    truncated: Literal["keep", "mask"] = Field("keep", description="What becomes of completions cut at their limit.")


class Phase(Strict):
    """A stretch of the schedule."""

    phase: Literal["developer", "critic", "alternate", "combined"] = Field(description="Who is trained.")
    iterations: int = Field(ge=1, description="Updates of this stretch.")
    every: int | None = Field(default=None, ge=1, description="alternate only: updates before the other role's turn.")

    @model_validator(mode="after")
    def _reads(self) -> Phase:
        if self.every is not None and self.phase != "alternate":
            raise ValueError("`every` only with phase: alternate")
        return self


class TrainConfig(Strict):
    """One training run."""

    model: ModelConfig = Field(ModelConfig(), description="The base model.")
    sampling: SamplingConfig = Field(SamplingConfig(), description="Sampling.")
    episodes: EpisodeConfig = Field(EpisodeConfig(), description="Episodes and groups.")
    credit: CreditConfig = Field(CreditConfig(), description="Credit assignment.")
    loss: LossConfig = Field(LossConfig(), description="Objective.")
    update: UpdateConfig = Field(UpdateConfig(), description="Optimizer step.")
    schedule: list[Phase] = Field(
        [Phase(phase="developer", iterations=20, every=None)], min_length=1, description="Phases."
    )
    seed: int = Field(0, ge=0, description="Enters the seed of every adapter, task and sampled token.")

    @model_validator(mode="after")
    def _roles(self) -> TrainConfig:
        needs_critic = [p.phase for p in self.schedule if p.phase != "developer"]
        if needs_critic and (not self.episodes.critic or self.episodes.turns < 2):
            raise ValueError(f"phase {needs_critic[0]} needs episodes.critic: true and episodes.turns >= 2")
        return self

    def identity(self) -> str:
        """Digest of what changes an iteration's result: all but device, batch sizes, retries and the schedule.

        The schedule may be extended under a run; `schedule.past_digest` guards what lies behind.
        """
        fields = self.model_dump(exclude={"schedule"})
        for block, names in _EFFORT.items():
            for name in names:
                del fields[block][name]
        return digest(fields)


_EFFORT = {"model": ("device",), "sampling": ("batch_rows",), "episodes": ("attempts",), "update": ("logit_rows",)}


def train_config(fields: dict[str, Any], where: str = "train config") -> TrainConfig:
    """`fields` as a checked configuration. Raises InvalidInput naming the first wrong key."""
    try:
        return TrainConfig.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "train"
        leaf = key.rsplit(".", 1)[-1]
        fix = f"remove {leaf}" if first["type"] == "extra_forbidden" else f"{leaf}: … ({first['msg']})"
        raise InvalidInput(where, key, first["msg"], first.get("input"), fix) from error
