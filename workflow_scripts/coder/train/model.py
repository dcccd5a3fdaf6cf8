"""The policy: a vision-language base model with named LoRA adapters, loaded so that nothing is silently wrong.

- Weights that a checkpoint lacks are an error (transformers would draw them at random and warn).
- LoRA targets are found by looking at the modules; a target that matches nothing is an error, and `Coverage` says what
  is adapted. Qwen3.5 has linear-attention mixers in three of four layers, which the usual list of names misses.
- The model folder's generation config is set aside: `generate` fills every unset option from it (top-k, top-p,
  repetition penalty), which would sample from another distribution than the one that is trained.
- Modes are explicit: `sampling` is eval, `training` is train with one role's adapter alone requiring gradients.
  `from_pretrained` leaves a model in eval, where activation checkpointing does nothing.

The policy's distribution is softmax(logits / T) over the tokens that may be sampled: image placeholders, which would
break the next forward pass, and ids without a token are forbidden in sampling and in training alike.
Left out: quantised bases, several devices.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...failures import InfrastructureFailure, InvalidInput
from ...identity import digest, file_digest, seed_of
from .config import ROLES, ModelConfig, Role
from .libraries import peft, torch, transformers
from .rows import ImageStore, Row, image_hashes

VISION_TOKENS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")


@dataclass(frozen=True, slots=True)
class Coverage:
    """What one adapter touches.

    Attributes:
        modules: number of adapted modules by leaf name.
        layers, all_layers: decoder layers with at least one adapted module, and all of them.
        parameters: trainable weights; `share` of the base's weights.
    """

    modules: dict[str, int]
    layers: int
    all_layers: int
    parameters: int
    share: float

    def record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt ready for the model: ids with placeholders expanded, and the hashes of its images."""

    ids: tuple[int, ...]
    images: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """B right-padded rows of prompt + completion on the model's device.

    Attributes:
        inputs: keyword arguments of the model: input_ids, attention_mask, mm_token_type_ids (B, L) int64, and with
            images pixel_values, image_grid_thw.
        mask: (B, T) bool, True on completion tokens; T is the longest completion.
        ids: (n,) int64, the n completion tokens of all rows, row by row (the order of `tensor[mask]`).
        positions: (n, 2) int64 (row, position) whose hidden states predict them.
    """

    inputs: dict[str, torch.Tensor]
    mask: torch.Tensor
    ids: torch.Tensor
    positions: torch.Tensor


class Policy:
    """Base model, adapters, processor. Not for use from several threads: the model keeps positions between calls."""

    def __init__(self, model: peft.PeftModel, processor: Any, config: ModelConfig, base: dict[str, Any]) -> None:
        self.model = model
        self.processor = processor
        self.config = config
        self.base = base
        self.coverage = coverage(model)
        self.generation_config = self.hf.generation_config
        self.hf.generation_config = transformers.GenerationConfig()
        tokenizer = processor.tokenizer
        self.image_token = int(processor.image_token_id)
        self.merged = int(processor.image_processor.merge_size) ** 2
        ends = self.generation_config.eos_token_id
        ends = [*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id]
        self.ends = tuple(dict.fromkeys(int(i) for i in ends if i is not None))
        self.pad = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.ends[0])
        self.forbidden = self._forbidden()
        self._rest()

    @property
    def hf(self) -> Any:
        """The transformers model; its linear layers carry the adapters."""
        return self.model.get_base_model()

    @property
    def head(self) -> torch.nn.Module:
        """Hidden states -> logits."""
        return self.hf.get_output_embeddings()

    @property
    def device(self) -> torch.device:
        return torch.device(self.hf.device)

    # ---- adapters and modes

    @property
    def adapters(self) -> tuple[str, ...]:
        """All adapter names."""
        return adapter_names(self.config)

    def adapter(self, role: Role) -> str:
        """Name of the adapter that acts for `role`."""
        return role if self.config.adapters == "per_role" else "shared"

    def parameters(self, adapter: str) -> dict[str, torch.nn.Parameter]:
        """The weights of one adapter by name, in a fixed order."""
        return {name: p for name, p in self.model.named_parameters() if "lora_" in name and f".{adapter}." in name}

    def _rest(self) -> None:
        self.model.eval()
        self.model.requires_grad_(False)

    @contextmanager
    def sampling(self, adapter: str | None = None) -> Iterator[None]:
        """Eval mode without gradients; with a name, that adapter is the active one."""
        self.model.eval()
        if adapter is not None:
            self.model.set_adapter(adapter)
            self.model.requires_grad_(False)
        with torch.no_grad():
            yield

    @contextmanager
    def speaking(self, adapter: str | None) -> Iterator[None]:
        """Eval mode without gradients as the named adapter, or as the base model for None."""
        with self.sampling(adapter):
            if adapter is None:
                with self.bare():
                    yield
            else:
                yield

    @contextmanager
    def training(self, role: Role) -> Iterator[dict[str, torch.nn.Parameter]]:
        """Train mode with the role's adapter active and alone requiring gradients; yields its parameters."""
        name = self.adapter(role)
        self.model.set_adapter(name)
        self.model.requires_grad_(False)
        parameters = self.parameters(name)
        if not parameters:
            raise InfrastructureFailure("nothing_to_train", f"adapter {name!r} has no weights")
        for parameter in parameters.values():
            parameter.requires_grad_(True)
        self.model.train()
        try:
            yield parameters
        finally:
            self._rest()

    @contextmanager
    def bare(self) -> Iterator[None]:
        """The base model without adapters, without gradients; may be entered while training."""
        with torch.no_grad(), self.model.disable_adapter():
            yield

    # ---- inputs

    def _forbidden(self) -> torch.Tensor:
        tokenizer = self.processor.tokenizer
        known = tokenizer.get_vocab()
        ids = {known[token] for token in VISION_TOKENS if token in known}
        # Embeddings are padded to a round number: ids beyond the tokenizer decode to nothing.
        ids |= set(range(len(tokenizer), self.head.weight.shape[0]))
        return torch.tensor(sorted(ids), dtype=torch.int64, device=self.device)

    def encode(self, messages: Sequence[Mapping[str, Any]], store: ImageStore) -> Encoded:
        """A conversation as ids. An image part is ``{"type": "image", "image": <hash>}``."""
        parts = [p for m in messages if not isinstance(m["content"], str) for p in m["content"]]
        images = tuple(p["image"] for p in parts if p["type"] == "image")
        text = self.processor.apply_chat_template(
            [dict(m) for m in messages], tokenize=False, add_generation_prompt=True, **self.config.template
        )
        made = self.processor(text=[text], images=[store.get(name) for name in images] or None)
        return Encoded(tuple(int(i) for i in made["input_ids"][0]), images)

    def pixels(self, names: Sequence[str], store: ImageStore) -> dict[str, torch.Tensor]:
        """pixel_values and image_grid_thw of images, concatenated as the model wants them; empty without images."""
        if not names:
            return {}
        made = self.processor.image_processor(images=[store.get(name) for name in names], return_tensors="pt")
        pixels = made["pixel_values"].to(self.device, self.hf.dtype)
        return {"pixel_values": pixels, "image_grid_thw": made["image_grid_thw"].to(self.device)}

    def check_placeholders(self, ids: torch.Tensor, pixels: Mapping[str, torch.Tensor], what: str) -> None:
        """Raises InfrastructureFailure unless `ids` hold as many placeholders as the images have features.

        Without this a row whose images are missing runs through and gives the log-probs of another input.
        """
        placeholders = int((ids == self.image_token).sum())
        grid = pixels.get("image_grid_thw")
        features = 0 if grid is None else int(grid.prod(-1).sum()) // self.merged
        if placeholders != features:
            message = f"{what}: {placeholders} image placeholders but {features} image features"
            raise InfrastructureFailure("image_mismatch", message)

    def batch(self, rows: Sequence[Row], store: ImageStore) -> Batch:
        """Rows padded on the right: padding on the left would pass through the recurrent state of linear attention."""
        length = max(len(row) for row in rows)
        widest = max(len(row.completion_ids) for row in rows)
        ids = torch.full((len(rows), length), self.pad, dtype=torch.int64)
        attention = torch.zeros_like(ids)
        mask = torch.zeros((len(rows), widest), dtype=torch.bool)
        positions = []
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row.prompt_ids + row.completion_ids)
            attention[i, : len(row)] = 1
            mask[i, : len(row.completion_ids)] = True
            positions += [(i, len(row.prompt_ids) + t - 1) for t in range(len(row.completion_ids))]
        tokens = torch.tensor([token for row in rows for token in row.completion_ids])
        inputs = {"input_ids": ids, "attention_mask": attention, "mm_token_type_ids": (ids == self.image_token).long()}
        inputs = {name: value.to(self.device) for name, value in inputs.items()}
        inputs |= self.pixels(image_hashes(rows), store)
        self.check_placeholders(ids, inputs, rows[0].key)
        return Batch(inputs, mask.to(self.device), tokens.to(self.device), torch.tensor(positions, device=self.device))

    def hidden(self, batch: Batch) -> torch.Tensor:
        """(n, H) last hidden states at `batch.positions`; logits are made from these alone."""
        self.hf.base_model.rope_deltas = None  # left by the last generation
        states = self.hf.base_model(**batch.inputs, use_cache=False).last_hidden_state
        return states[batch.positions[:, 0], batch.positions[:, 1]]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids without special tokens."""
        return str(self.processor.tokenizer.decode(list(ids), skip_special_tokens=True))


def adapter_names(config: ModelConfig) -> tuple[str, ...]:
    """Names of the adapters of a run."""
    return ROLES if config.adapters == "per_role" else ("shared",)


def load_policy(config: ModelConfig, seed: int, adapters: Path | None = None) -> Policy:
    """Loads the base and its adapters: from ``adapters/<name>/`` if given, else new ones (equal to the base, seeded).

    Raises InvalidInput for a base that cannot be read whole, LoRA targets that match nothing, or adapters that are
    missing, corrupt or of another shape.
    """
    hf = load_base(config)
    settings = peft.LoraConfig(
        r=config.lora.rank,
        lora_alpha=config.lora.alpha,
        lora_dropout=0.0,
        target_modules=lora_targets(hf, config),
        task_type="CAUSAL_LM",
        base_model_name_or_path=config.base,
    )
    first, *others = adapter_names(config)
    with _seeded("adapter", seed, first):
        model = peft.get_peft_model(hf, settings, adapter_name=first)
    for name in others:
        with _seeded("adapter", seed, name):
            model.add_adapter(name, settings)
    if adapters is not None:
        for name in adapter_names(config):
            load_adapter(model, name, adapters / name)
    _forbid_dropout(model)
    if config.activation_checkpointing:
        hf.activation_checkpointing_enable({"use_reentrant": False})
        hf.disable_input_require_grads()  # only the reentrant kind needs inputs with gradients
    return Policy(model, load_processor(config), config, base_identity(config))


@contextmanager
def _seeded(*parts: str | int) -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(seed_of(*parts))
        yield


def load_base(config: ModelConfig) -> Any:
    """The base model in eval mode on its device. Raises InvalidInput if it lacks weights or is no such model."""
    try:
        hf, info = transformers.AutoModelForImageTextToText.from_pretrained(
            config.base,
            revision=config.revision,
            dtype=getattr(torch, config.dtype),
            attn_implementation=config.attention,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError) as error:
        expected = "a vision-language model that transformers reads"
        raise InvalidInput("model", "base", expected, f"{config.base}: {error}", "base: Qwen/Qwen3.5-9B") from error
    lacking = {name: sorted(map(str, info[name])) for name in ("missing_keys", "mismatched_keys") if info.get(name)}
    if lacking:
        raise InvalidInput("model", "base", "a checkpoint with all weights of the model", lacking, "base: a whole one")
    return hf.to(config.device).eval()


def load_processor(config: ModelConfig) -> Any:
    """The model's own processor with the configured image size."""
    processor = transformers.AutoProcessor.from_pretrained(
        config.base, revision=config.revision, trust_remote_code=False
    )
    for name, value in (("shortest_edge", config.min_pixels), ("longest_edge", config.max_pixels)):
        if value is not None:
            processor.image_processor.size[name] = value  # Qwen processors: areas in pixels
    return processor


def lora_targets(hf: Any, config: ModelConfig) -> str:
    """A regular expression for the full names of the modules to adapt, found by looking at the model.

    Raises InvalidInput if a named target is no linear layer of the language model (or of the vision tower, with
    `lora.vision`).
    """
    towers = [hf.get_decoder(), *([_vision(hf)] if config.lora.vision else [])]
    inside = {id(module) for tower in towers for module in tower.modules() if isinstance(module, torch.nn.Linear)}
    linear = [name for name, module in hf.named_modules() if id(module) in inside]
    leaves = {name.rsplit(".", 1)[-1] for name in linear}
    wanted = leaves if config.lora.targets == "auto" else set(config.lora.targets)
    if unknown := sorted(wanted - leaves):
        expected = "names of linear layers: " + ", ".join(sorted(leaves))
        fix = f"targets: [{', '.join(sorted(wanted & leaves))}]" if wanted & leaves else "targets: auto"
        raise InvalidInput("model", "lora.targets", expected, unknown, fix)
    # Whole paths with the layer's number left open: a leaf name alone (`proj`) may also be that of a convolution.
    paths = {re.sub(r"\\\.\d+\\\.", r"\\.\\d+\\.", re.escape(n)) for n in linear if n.rsplit(".", 1)[-1] in wanted}
    return "|".join(sorted(paths))


def _vision(hf: Any) -> torch.nn.Module:
    for name in ("visual", "vision_tower", "vision_model"):
        if (tower := getattr(hf.base_model, name, None)) is not None:
            return tower
    raise InvalidInput(
        "model", "lora.vision", "a model whose vision tower is found", type(hf).__name__, "vision: false"
    )


def coverage(model: peft.PeftModel) -> Coverage:
    """What the adapters of `model` touch, counted for the first one."""
    adapted = [name for name, module in model.named_modules() if hasattr(module, "lora_A")]
    decoder = model.get_base_model().get_decoder()
    mark = next(name for name, module in model.named_modules() if module is decoder) + ".layers."
    layers = {name[len(mark) :].split(".")[0] for name in adapted if name.startswith(mark)}
    first = next(iter(model.peft_config))
    trainable = sum(p.numel() for n, p in model.named_parameters() if "lora_" in n and f".{first}." in n)
    total = sum(p.numel() for n, p in model.named_parameters() if "lora_" not in n)
    leaves = Counter(name.rsplit(".", 1)[-1] for name in adapted)
    return Coverage(dict(sorted(leaves.items())), len(layers), len(decoder.layers), trainable, trainable / total)


def load_adapter(model: peft.PeftModel, name: str, folder: Path) -> None:
    """Overwrites adapter `name` with the weights in `folder`.

    Raises InvalidInput if they are missing, corrupt or of another base, rank or set of targets.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / "adapter_model.safetensors"
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        fix = "restore the file, or delete this iteration and run again"
        raise InvalidInput(str(path), name, "a readable adapter file", str(error), fix) from error
    shapes = {
        key: tuple(value.shape) for key, value in peft.get_peft_model_state_dict(model, adapter_name=name).items()
    }
    found = {key: tuple(value.shape) for key, value in weights.items()}
    if differ := sorted(key for key in shapes.keys() | found.keys() if shapes.get(key) != found.get(key)):
        expected = f"{len(shapes)} tensors that fit this base, rank and targets"
        what = f"{differ[0]}: {found.get(differ[0], 'missing')} instead of {shapes.get(differ[0], 'none')}"
        raise InvalidInput(str(path), name, expected, what, "the model block that the run was started with")
    peft.set_peft_model_state_dict(model, weights, adapter_name=name)


def adapter_tensors(model: peft.PeftModel, name: str) -> dict[str, torch.Tensor]:
    """The weights of adapter `name` on the CPU, under PEFT's file names."""
    tensors = peft.get_peft_model_state_dict(model, adapter_name=name)
    return {key: tensors[key].detach().cpu().contiguous() for key in sorted(tensors)}


def _forbid_dropout(model: peft.PeftModel) -> None:
    live = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Dropout) and module.p > 0]
    attention = getattr(model.get_base_model().config.get_text_config(), "attention_dropout", 0)
    if live or attention:
        expected = "a base without dropout (a mask changes the policy between sampling and update)"
        raise InvalidInput(
            "model", "base", expected, live[:3] or f"attention_dropout {attention}", "attention_dropout: 0"
        )


def base_identity(config: ModelConfig) -> dict[str, Any]:
    """What the base model is, from its files: architecture, and a fingerprint of configuration and weights.

    Weight files enter by size and their first and last 64 kB (a safetensors header lists every tensor), so that a 19 GB
    base is known in milliseconds; a change within a file that keeps its size and ends goes unnoticed.
    """
    folder = Path(config.base)
    if not folder.is_dir():
        folder = Path(transformers.utils.cached_file(config.base, "config.json", revision=config.revision)).parent
    small = (
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "preprocessor_config.json",
        "processor_config.json",
    )
    prints = {name: file_digest(folder / name) for name in small if (folder / name).exists()}
    prints |= {path.name: _ends_digest(path) for path in sorted(folder.glob("*.safetensors"))}
    architectures = json.loads((folder / "config.json").read_text()).get("architectures")
    return {"name": config.base, "architectures": architectures, "fingerprint": digest(prints)}


def _ends_digest(path: Path, span: int = 65536) -> str:
    size = path.stat().st_size
    with open(path, "rb") as stream:
        head = stream.read(span)
        stream.seek(max(0, size - span))
        return hashlib.sha256(str(size).encode() + head + stream.read(span)).hexdigest()
