"""A trained coder as files that others read: adapters in PEFT's layout, and one merged model per role.

    <export>/adapters/<name>/      adapter_model.safetensors, adapter_config.json
    <export>/<role>/               merged weights, processor, generation config: an ordinary transformers folder
    <export>/README.md             model card: data, configuration, evaluation, identity

Merging is checked: merged and adapter logits on a real prompt must agree, else nothing is left behind. The generation
config says what the policy was sampled with (temperature, no top-p, no top-k, no vision tokens). Left out:
quantisation, uploading.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ...failures import InfrastructureFailure
from ...identity import file_digest
from ...records import write_bytes
from . import checkpoint
from .config import ROLES, Role, TrainConfig
from .libraries import torch, transformers
from .model import Policy, load_base, load_policy
from .trainer import iteration_path, last_iteration

TOLERANCE = {"float32": 1e-4, "bfloat16": 0.25, "float16": 0.05}
"""Largest difference of logits that rounding the merged weights to the base's type explains."""


def export(
    run: str | Path,
    config: TrainConfig,
    target: str | Path,
    iteration: int | None = None,
    evaluation: Mapping[str, Any] | None = None,
) -> Path:
    """Writes iteration `iteration` (the last by default) of a run to `target`, which must not exist.

    Args:
        evaluation: the run's evaluation, shown in the model card as it is.

    Raises InvalidInput as `checkpoint.check`, FileExistsError, and InfrastructureFailure("merge_differs").
    """
    number = last_iteration(run) if iteration is None else iteration
    source = iteration_path(run, number or 0)
    manifest = checkpoint.check(source, config)
    target = Path(target)
    if target.exists():
        raise FileExistsError(f"{target} exists; remove it or choose another folder")
    work = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        policy = load_policy(config.model, config.seed, source / "adapters")
        for name in policy.adapters:
            shutil.copytree(source / "adapters" / name, work / "adapters" / name)
        wanted = {name: _logits(policy, name) for name in policy.adapters}
        processor, generation = policy.processor, generation_config(policy, config)
        del policy  # a 9B base need not be in memory twice
        differences = {}
        for role, name in _exported(config):
            differences[role] = _merge(config, source / "adapters" / name, wanted[name], work / role)
            processor.save_pretrained(work / role)
            generation.save_pretrained(work / role)
        card = model_card(config, manifest, differences, evaluation, work)
        write_bytes(work / "README.md", card.encode())
        work.rename(target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return target


def _exported(config: TrainConfig) -> list[tuple[str, str]]:
    """Folder and adapter of each merged model."""
    if config.model.adapters == "shared":
        return [("coder", "shared")]
    roles: tuple[Role, ...] = ROLES if config.episodes.critic else ("developer",)
    return [(role, role) for role in roles]


def _probe(processor: Any) -> dict[str, Any]:
    """A prompt with a picture, as model inputs."""
    from PIL import Image

    picture = Image.linear_gradient("L").resize((96, 64)).convert("RGB")
    message = {
        "role": "user",
        "content": [{"type": "image", "image": picture}, {"type": "text", "text": "Write the page."}],
    }
    text = processor.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    return dict(processor(text=[text], images=[picture], return_tensors="pt"))


def _logits(policy: Policy, adapter: str) -> torch.Tensor:
    inputs = _on(_probe(policy.processor), policy.hf)
    with policy.sampling(adapter):
        policy.hf.base_model.rope_deltas = None
        return policy.model(**inputs, use_cache=False).logits.float().cpu()


def _on(inputs: dict[str, Any], hf: Any) -> dict[str, Any]:
    moved = {name: value.to(hf.device) for name, value in inputs.items()}
    return {n: v.to(hf.dtype) if v.is_floating_point() else v for n, v in moved.items()}


def _merge(config: TrainConfig, adapter: Path, wanted: torch.Tensor, target: Path) -> float:
    """Writes base + adapter as one model and returns how far its reloaded logits are from the adapter's."""
    from .libraries import peft
    from .model import load_processor

    base = load_base(config.model)
    original = base.generation_config
    merged = peft.PeftModel.from_pretrained(base, str(adapter)).merge_and_unload(safe_merge=True)
    merged.generation_config = original
    merged.save_pretrained(target)
    del merged, base
    again = load_base(config.model.model_copy(update={"base": str(target), "revision": None}))
    with torch.no_grad():
        logits = again(**_on(_probe(load_processor(config.model)), again), use_cache=False).logits.float().cpu()
    difference = float((logits - wanted).abs().max())
    if not difference <= TOLERANCE[config.model.dtype]:
        message = f"merged logits of {target.name} differ from the adapter's by {difference:.2g}"
        raise InfrastructureFailure("merge_differs", message, tolerance=TOLERANCE[config.model.dtype])
    return difference


def generation_config(policy: Policy, config: TrainConfig) -> transformers.GenerationConfig:
    """The sampling that the policy was trained for, in place of the base's defaults."""
    generation = copy.deepcopy(policy.generation_config)
    known = policy.processor.tokenizer.get_vocab().values()
    vision = [int(i) for i in policy.forbidden.tolist() if i in set(known)]
    generation.update(
        do_sample=True,
        temperature=config.sampling.temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=config.sampling.developer_tokens,
        eos_token_id=list(policy.ends),
        pad_token_id=policy.pad,
        suppress_tokens=vision,
    )
    return generation


def model_card(
    config: TrainConfig,
    manifest: Mapping[str, Any],
    differences: Mapping[str, float],
    evaluation: Mapping[str, Any] | None,
    folder: Path,
) -> str:
    """README.md of an export: front matter that model hubs read, then what a user needs to know."""
    base = config.model.base
    front = yaml.safe_dump(
        {
            "base_model": base,
            "library_name": "transformers",
            "pipeline_tag": "image-text-to-text",
            "tags": ["grpo", "screenshot-to-code"],
        }
    )
    coverage = manifest["coverage"]
    files = sorted(path for path in folder.rglob("*.safetensors"))
    digests = "\n".join(f"| `{path.relative_to(folder)}` | `{file_digest(path)}` |" for path in files)
    agreement = "\n".join(
        f"- `{name}`: largest difference of logits {value:.2g}" for name, value in differences.items()
    )
    measured = yaml.safe_dump(dict(evaluation), sort_keys=False) if evaluation else "not evaluated"
    return f"""---
{front}---

# Visual coder, iteration {manifest["iteration"]}

Screenshot to HTML. The `developer` writes a page for a screenshot and revises it; the `critic` says what still differs.
Both are LoRA adapters on `{base}`, trained with multi-turn GRPO against a real browser.

## Use

`AutoModelForImageTextToText.from_pretrained("developer")` with `AutoProcessor.from_pretrained("developer")`, or serve
the folder with vLLM or `transformers serve`. The prompts are those in `config/prompts/coder`; sampling is in
`generation_config.json` (temperature {config.sampling.temperature}, no top-p, no top-k).

## Data

Procedural pages of the levels {", ".join(dict.fromkeys(config.episodes.levels))}, split `train`; evaluation pages have
other seeds and other brand names.

## Evaluation

```yaml
{measured.rstrip()}
```

## Training

{coverage["parameters"]:,} weights ({100 * coverage["share"]:.2f} % of the base) in {coverage["layers"]} of
{coverage["all_layers"]} layers per adapter.

```yaml
{yaml.safe_dump(config.model_dump(), sort_keys=False).rstrip()}
```

Merged against adapter weights, on a prompt with a picture:

{agreement}

## Identity

Base `{manifest["base"]["fingerprint"]}`, configuration `{manifest["config"]}`.

| file | sha256 |
|---|---|
{digests}
"""
