"""The state of a run after an iteration, as files: adapters, optimizers, generator states, log row; and back.

    <iteration folder>/adapters/<name>/adapter_model.safetensors, adapter_config.json     PEFT's layout
    <iteration folder>/optimizer/<name>.safetensors                                       AdamW's moments by weight
    <iteration folder>/generator.safetensors                                              torch's generators
    <iteration folder>/metrics.json                                                       the log row
    <iteration folder>/checkpoint.json                                                    written last

`checkpoint.json` names every other file with its hash, the base model and the configuration. A folder without it is no
checkpoint, whatever else lies there, so a kill at any moment leaves the last whole one, and the iteration is done again
from that: on a CPU in float32 with the same bits. A file that did not change since the previous checkpoint (the adapter
of a role that was not trained) is a hard link to it. Left out: deleting old checkpoints.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...failures import InvalidInput
from ...identity import bytes_digest, file_digest
from ...records import SCHEMA_VERSION, dump_json, read_json, write_bytes
from .config import TrainConfig
from .libraries import torch
from .model import Policy, adapter_names, adapter_tensors, base_identity
from .schedule import past_digest
from .update import make_optimizer

MANIFEST = "checkpoint.json"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save(
    folder: str | Path,
    policy: Policy,
    optimizers: Mapping[str, torch.optim.Optimizer],
    config: TrainConfig,
    iteration: int,
    prompts: str,
    metrics: Mapping[str, Any],
    previous: str | Path | None = None,
) -> None:
    """Writes the checkpoint of `iteration` (0: before the first update) into `folder`.

    Args:
        optimizers: AdamW by adapter name.
        prompts: identity of the prompts.
        metrics: the iteration's log row, JSON without NaN; no times or hosts, which would differ after a resume.
        previous: folder of an earlier checkpoint, whose equal files are linked.
    """
    from safetensors.torch import save as serialise

    folder = Path(folder)
    (folder / MANIFEST).unlink(missing_ok=True)
    files: dict[str, bytes] = {"metrics.json": dump_json(dict(metrics))}
    for name in policy.adapters:
        settings = policy.model.peft_config[name].to_dict()
        settings = {k: sorted(v) if isinstance(v, set) else v for k, v in settings.items()}
        files[f"adapters/{name}/adapter_config.json"] = dump_json({**settings, "inference_mode": True})
        tensors = adapter_tensors(policy.model, name)
        files[f"adapters/{name}/adapter_model.safetensors"] = serialise(tensors, metadata={"format": "pt"})
        files[f"optimizer/{name}.safetensors"] = serialise(_moments(policy, name, optimizers[name]))
    files["generator.safetensors"] = serialise(_generators())
    digests = {name: bytes_digest(data) for name, data in files.items()}
    earlier = read_manifest(previous)["files"] if previous is not None else {}
    for name, data in files.items():
        same = earlier.get(name) == digests[name]
        if not (same and previous is not None and _link(Path(previous) / name, folder / name)):
            write_bytes(folder / name, data)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "iteration": iteration,
        "config": config.identity(),
        "prompts": prompts,
        "past": past_digest(config, iteration),
        "base": policy.base,
        "adapters": list(policy.adapters),
        "coverage": policy.coverage.record(),
        "files": digests,
    }
    write_bytes(folder / MANIFEST, dump_json(manifest))


def _link(source: Path, target: Path) -> bool:
    """Makes `target` a hard link to `source`; False where the file system has none, or the source is gone."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
        os.link(source, temporary)
        os.replace(temporary, target)
        return True
    return False


def exists(folder: str | Path) -> bool:
    """Whether `folder` holds a whole checkpoint."""
    return (Path(folder) / MANIFEST).exists()


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """`checkpoint.json`. Raises InvalidInput if it is missing or no JSON."""
    path = Path(folder) / MANIFEST
    try:
        manifest: dict[str, Any] = read_json(path)
    except (OSError, ValueError) as error:
        fix = "a folder of a finished iteration"
        raise InvalidInput(str(path), "checkpoint", "a finished iteration", str(error), fix) from error
    return manifest


def check(folder: str | Path, config: TrainConfig, prompts: str | None = None) -> dict[str, Any]:
    """The manifest, after everything was found to fit; reads no weights into memory and no base model.

    Raises InvalidInput for a checkpoint of another base model, configuration or prompts, a schedule changed behind it,
    and a file that is missing or not what was written.
    """
    folder = Path(folder)
    manifest, where = read_manifest(folder), str(folder / MANIFEST)
    base = base_identity(config.model)
    found = manifest["base"]
    if found["fingerprint"] != base["fingerprint"]:
        what = f"one of {found['name']} ({found['fingerprint'][:12]})"
        raise InvalidInput(
            where,
            "model.base",
            f"a checkpoint of {base['name']} ({base['fingerprint'][:12]})",
            what,
            f"base: {found['name']}, or another run name",
        )
    if manifest["adapters"] != list(adapter_names(config.model)) or manifest["config"] != config.identity():
        expected = "the configuration that this run was started with"
        raise InvalidInput(where, "config", expected, "another", "the old configuration, or another run name")
    if prompts is not None and manifest["prompts"] != prompts:
        expected = "the prompts that this run was started with"
        raise InvalidInput(where, "config/prompts/coder", expected, "others", "the old texts, or another run name")
    if manifest["past"] != past_digest(config, manifest["iteration"]):
        expected = f"the schedule that iterations 1 … {manifest['iteration']} were trained with"
        raise InvalidInput(where, "schedule", expected, "another", "append phases, or take another run name")
    for name, expected in manifest["files"].items():
        path = folder / name
        try:
            found = file_digest(path)
        except OSError as error:
            fix = "restore it, or delete this iteration's checkpoint.json and run again"
            raise InvalidInput(str(path), "file", "a file of the checkpoint", str(error), fix) from error
        if found != expected:
            fix = "restore it, or delete this iteration's checkpoint.json and run again"
            raise InvalidInput(str(path), "content", f"sha256 {expected[:12]}…", f"{found[:12]}…", fix)
    return manifest


def load_optimizers(folder: str | Path, policy: Policy, config: TrainConfig) -> dict[str, torch.optim.AdamW]:
    """AdamW by adapter name with the saved moments. Raises InvalidInput for moments that do not fit the adapters."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    optimizers = {}
    for name in policy.adapters:
        path = Path(folder) / "optimizer" / f"{name}.safetensors"
        fix = "restore it, or delete this iteration's checkpoint.json and run again"
        try:
            saved = load_file(path)
        except (OSError, SafetensorError) as error:
            raise InvalidInput(str(path), name, "a readable optimizer state", str(error), fix) from error
        optimizer = optimizers[name] = make_optimizer(policy, name, config.update)
        parameters = policy.parameters(name)
        wanted = {f"{moment}|{key}" for key in parameters for moment in MOMENTS} if saved else set()
        fits = set(saved) == wanted and all(
            saved[f"{moment}|{key}"].shape == p.shape
            for key, p in parameters.items()
            for moment in MOMENTS[:2]
            if saved
        )
        if not fits:
            raise InvalidInput(str(path), name, f"moments of {len(parameters)} weights", f"{len(saved)} tensors", fix)
        for key, parameter in parameters.items():
            if saved:
                state = {moment: saved[f"{moment}|{key}"] for moment in MOMENTS}
                optimizer.state[parameter] = {
                    moment: value if moment == "step" else value.to(parameter.device) for moment, value in state.items()
                }
    return optimizers


def load_generators(folder: str | Path) -> None:
    """Puts torch's generators into the saved state (a device's only where it was saved and is here)."""
    from safetensors.torch import load_file

    states = load_file(Path(folder) / "generator.safetensors")
    torch.set_rng_state(states["cpu"])
    for i in range(torch.cuda.device_count()):
        if f"cuda.{i}" in states:
            torch.cuda.set_rng_state(states[f"cuda.{i}"], i)


def _generators() -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states |= {f"cuda.{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def _moments(policy: Policy, adapter: str, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    moments = {}
    for key, parameter in policy.parameters(adapter).items():
        for moment, value in optimizer.state.get(parameter, {}).items():
            moments[f"{moment}|{key}"] = value.detach().cpu().contiguous()
    return moments
