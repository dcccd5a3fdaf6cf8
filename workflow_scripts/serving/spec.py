"""What a model server serves: pipeline, weights, memory. Free of torch, so that a client can plan without a GPU.

Left out: downloading. Weights lie in a folder or in the Hugging Face cache before a run starts; `missing_weights` says
what is not there and which command fetches it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from .. import identity

Pipeline = Literal["flux2", "flux2_klein", "qwen_image_edit", "kontext", "pix2pix"]
Dtype = Literal["bfloat16", "float16", "float32"]
Offload = Literal["none", "model", "sequential"]

SIZE_MULTIPLE = 16
"""Generated widths and heights are multiples of this: 8 for the VAE times 2 for the transformer's patches."""

ONE_IMAGE = ("kontext", "pix2pix")
"""Pipelines that take exactly one input image."""

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server's content.

    Attributes:
        pipeline: which diffusers pipeline family the folder holds.
        weights: hub id or folder in diffusers layout.
        revision: commit, tag or branch of the hub id; None for its default branch. Not used for a folder.
        dtype: of weights and activations.
        offload: `none` keeps all on the device, `model` moves one component at a time, `sequential` one layer at a
            time.
        device: `cuda` or `cpu`.
        split: spread one pipeline over all devices of the slot.
        reference_pixels: area that Qwen-Image-Edit scales its input images to; None keeps the pipeline's own (1024 ×
            1024).
        max_pixels: largest area of a generated image; the warm-up on CUDA runs at it.
        batch_size: most rows in one call.
        max_queue: most requests that wait; beyond it the server answers 503.
        idle_s: seconds without a request after which the server goes.
        timeout_s: seconds one call may take before the server takes itself for stuck and goes.
        python: interpreter that has torch and diffusers; None for the one that runs the workflow.
    """

    pipeline: Pipeline
    weights: str
    revision: str | None = None
    dtype: Dtype = "bfloat16"
    offload: Offload = "none"
    device: Literal["cuda", "cpu"] = "cuda"
    split: bool = False
    reference_pixels: int | None = None
    max_pixels: int = 1024 * 1024
    batch_size: int = 4
    max_queue: int = 64
    idle_s: float = 600.0
    timeout_s: float = 1800.0
    python: str | None = None

    @property
    def key(self) -> str:
        """Digest of what makes two servers interchangeable. Queue, idle time and time-outs do not enter."""
        fields = asdict(self)
        for name in ("batch_size", "max_queue", "idle_s", "timeout_s"):
            del fields[name]
        return identity.digest([fields, _code_digest()])

    def as_json(self) -> dict[str, Any]:
        """JSON-able fields; `ServerSpec(**fields)` reads them."""
        return asdict(self)


@cache
def _code_digest() -> str:
    """Digest of the server's own sources: after an update no run is served by a process of the old code."""
    folder = Path(__file__).parent
    return identity.digest(
        [identity.file_digest(folder / f"{n}.py") for n in ("server", "batcher", "pipelines", "spec")]
    )


def generation_size(width: int, height: int, max_pixels: int, min_pixels: int = 0) -> tuple[int, int]:
    """Size to generate a `width` × `height` frame at: same shape, multiples of 16, sides of at least 64.

    The area is scaled into `min_pixels` … `max_pixels` first and the sides rounded after (down under the upper bound,
    up over the lower one), which keeps the shape closer than GUI-CC's order (floor to 16, then scale).
    """
    scale = min(1.0, math.sqrt(max_pixels / (width * height)))
    up = width * height * scale**2 < min_pixels
    if up:
        scale = math.sqrt(min_pixels / (width * height))

    def side(length: int) -> int:
        multiples = length * scale / SIZE_MULTIPLE
        return max(64, SIZE_MULTIPLE * (math.ceil(multiples - 1e-9) if up else int(multiples + 1e-9)))

    return side(width), side(height)


def folder_of(weights: str, revision: str | None) -> Path | None:
    """Where the weights lie on this machine: the folder itself or the hub cache's snapshot, None if neither exists."""
    path = Path(weights).expanduser()
    if path.is_dir():
        return path
    if _is_path(weights):
        return None
    home = Path(os.environ.get("HF_HOME", Path("~/.cache/huggingface").expanduser()))
    store = Path(os.environ.get("HF_HUB_CACHE", home / "hub")) / ("models--" + weights.replace("/", "--"))
    reference = store / "refs" / (revision or "main")
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshot = store / "snapshots" / (commit or "")
    return snapshot if commit and snapshot.is_dir() else None


def _is_path(weights: str) -> bool:
    return weights.startswith((".", "/", "~")) or weights.count("/") != 1


def missing_weights(weights: str, revision: str | None) -> list[str]:
    """Sentences saying what of the weights is not on this machine and what mends it; empty if all is there."""
    folder = folder_of(weights, revision)
    if folder is None:
        if _is_path(weights):
            return [
                f"weights: there is no folder {weights}; set `weights:` to a folder in diffusers layout or a hub id"
            ]
        pin = f" --revision {revision}" if revision else ""
        mend = f"run `hf download {weights}{pin}` or set `weights:` to a folder that holds it"
        return [
            f"weights: {weights}{pin and f' at {revision}'} is not in the Hugging Face cache of this machine; {mend}"
        ]
    index = folder / "model_index.json"
    if not index.is_file():
        return [f"weights: {folder} has no model_index.json; set `weights:` to a folder in diffusers layout"]
    absent = [part for part in _components(index) if not (folder / part).is_dir()]
    for part in _components(index):
        if (folder / part / "config.json").is_file() and not any((folder / part).glob("*.safetensors")):
            absent.append(f"{part}/*.safetensors")
        for shards in (folder / part).glob("*.safetensors.index.json"):
            names = set(json.loads(shards.read_text())["weight_map"].values())
            absent += [f"{part}/{name}" for name in sorted(names) if not (folder / part / name).is_file()]
    if absent:
        return [
            f"weights: {folder} lacks {', '.join(absent[:5])}{' …' if len(absent) > 5 else ''}; fetch the rest of it"
        ]
    return []


def _components(index: Path) -> list[str]:
    """Names of the sub-folders that a model_index.json asks for."""
    entries = json.loads(index.read_text())
    return [k for k, v in entries.items() if isinstance(v, list) and len(v) == 2 and v[0] is not None]


def _safetensors(folder: Path) -> Iterator[tuple[str, Path]]:
    for part in _components(folder / "model_index.json"):
        for file in sorted((folder / part).glob("*.safetensors")):
            yield part, file


def _header(file: Path) -> bytes:
    """The JSON header of a safetensors file (8 bytes of length, then the header)."""
    with open(file, "rb") as stream:
        return stream.read(int.from_bytes(stream.read(8), "little"))


def memory_needed(folder: Path, dtype: str, offload: str) -> int:
    """Bytes of device memory that the weights take, from the files' headers alone; activations come on top."""
    parts: dict[str, int] = {}
    for part, file in _safetensors(folder):
        tensors = json.loads(_header(file))
        values = sum(math.prod(t["shape"]) for name, t in tensors.items() if name != "__metadata__")
        parts[part] = parts.get(part, 0) + values * BYTES[dtype]
    if not parts or offload == "sequential":
        return 0
    return sum(parts.values()) if offload == "none" else max(parts.values())


def fingerprint(folder: Path) -> str:
    """Digest that tells two model folders apart without reading tens of gigabytes.

    Small files whole; of a weight file its size, its header and 64 kB at five places. A change of a few weights between
    those places would escape it; a training step or another checkpoint does not.
    """
    entries: list[Any] = []
    for file in sorted(p for p in folder.rglob("*") if p.is_file() and not any(x[0] == "." for x in p.parts[-2:])):
        size = file.stat().st_size
        if size <= 1 << 20:
            part = identity.file_digest(file)
        else:
            with open(file, "rb") as stream:
                pieces = [stream.read(1 << 16)]
                for place in (1, 2, 3, 4):
                    stream.seek(max(0, size * place // 4 - (1 << 16)))
                    pieces.append(stream.read(1 << 16))
            part = identity.bytes_digest(b"".join(pieces))
        entries.append([file.relative_to(folder).as_posix(), size, part])
    return identity.digest(entries)


def weights_identity(weights: str, revision: str | None) -> dict[str, str]:
    """What of the weights enters a result's identity; never where they lie.

    A hub id stands for itself with its revision. A folder with a `revision:` stands for that label, so that its results
    keep their identity on a machine without the weights; without one it stands for its content.
    """
    folder = Path(weights).expanduser()
    if not _is_path(weights) and not folder.is_dir():
        return {"weights": weights, "revision": revision or "main"}
    if revision is not None:
        return {"revision": revision}
    return {"fingerprint": fingerprint(folder) if folder.is_dir() else "missing"}
