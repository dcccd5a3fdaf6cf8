"""SigLIP and DINOv2 similarity of screens (GUI-CC's S_sig and S_dino), from whatever weights are configured.

    S_sig   cosine of SigLIP's pooled vision features, cut to [0, 1]       GUI-CC: google/siglip-so400m-patch14-384
    S_dino  cosine of DINOv2's class token, cut to [0, 1]                  GUI-CC: facebook/dinov2-giant

Images go through the checkpoint's own processor. DINOv2's usually crops a tall screen to its middle square, so that
status and navigation bars are not seen; that is GUI-CC's number, kept as it is. Needs torch and transformers, imported
on first use. Left out: fine-tuning, other backbones, text towers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..failures import InfrastructureFailure
from ..identity import bytes_digest, file_digest
from .metrics import load_frame

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Kind = Literal["siglip", "dinov2"]
METRIC_OF: dict[Kind, str] = {"siglip": "S_sig", "dinov2": "S_dino"}
VERSION = 1
REMEMBERED = 4096
"""Screens whose features are kept in memory: true screens and copies come again and again."""


@dataclass(frozen=True)
class FeatureSettings:
    """Which weights.

    Attributes:
        kind: siglip or dinov2.
        source: a folder, or the name of a repository on a hub.
        revision: commit of that repository; enters the identity, None leaves it open.
        device: cpu, cuda, cuda:1 …; not part of the identity. None takes cuda where there is one.
        batch: screens per forward pass.
    """

    kind: Kind
    source: str
    revision: str | None = None
    device: str | None = None
    batch: int = 16

    def identity(self) -> dict[str, Any]:
        """What changes a score: for a folder, the digest of its weights and settings; else name and revision."""
        folder = Path(self.source)
        if folder.is_dir():
            files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors", ".bin"))
            weights = bytes_digest("\n".join(f"{path.name} {file_digest(path)}" for path in files).encode())
            return {"kind": self.kind, "version": VERSION, "weights": weights}
        return {"kind": self.kind, "version": VERSION, "source": self.source, "revision": self.revision}


@dataclass
class FeatureModel:
    """A loaded backbone. Loads on first use; safe to use from many threads, one of which computes at a time."""

    settings: FeatureSettings
    _loaded: Any = None
    _known: OrderedDict[str, NDArray[np.float32]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def similarities(self, true: Sequence[Path], others: Sequence[Path]) -> list[float]:
        """Cosines of the features of ``true[i]`` and ``others[i]``, cut to [0, 1].

        Raises InfrastructureFailure: ``features_missing`` (no torch or transformers), ``features_unloadable`` (no such
        weights, or of another architecture), ``frame_missing``, ``frame_unreadable``.
        """
        if len(true) != len(others):
            raise ValueError(f"{len(true)} true screens for {len(others)} others")
        left, right = self.features(true), self.features(others)
        return [min(max(float(a @ b), 0.0), 1.0) for a, b in zip(left, right, strict=True)]

    def features(self, frames: Sequence[Path]) -> list[NDArray[np.float32]]:
        """Features of PNG files, each a float32 vector of length 1 (L2)."""
        with self._lock:
            keys = [_digest(frame) for frame in frames]
            new = dict.fromkeys(key for key in keys if key not in self._known)
            first = {key: frame for key, frame in reversed(list(zip(keys, frames, strict=True))) if key in new}
            pending = list(new)
            for start in range(0, len(pending), self.settings.batch):
                chosen = pending[start : start + self.settings.batch]
                for key, vector in zip(chosen, self._compute([first[key] for key in chosen]), strict=True):
                    self._known[key] = vector
            found = [self._known[key] for key in keys]
            for key in keys:
                self._known.move_to_end(key)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
            return found

    def _compute(self, frames: Sequence[Path]) -> list[NDArray[np.float32]]:
        from PIL import Image

        processor, model, torch = self._load()
        images = [Image.fromarray(load_frame(frame)) for frame in frames]
        with torch.inference_mode():
            output = model(**processor(images=images, return_tensors="pt").to(model.device))
            pooled = output.pooler_output if self.settings.kind == "siglip" else output.last_hidden_state[:, 0]
            unit = torch.nn.functional.normalize(pooled.float(), dim=-1, eps=1e-8)
        return list(unit.cpu().numpy())

    def _load(self) -> Any:
        if self._loaded is None:
            try:
                import torch

                from ..serving.pipelines import declare_torchvision_operators

                declare_torchvision_operators()
                from transformers import AutoImageProcessor, Dinov2Model, SiglipVisionModel
            except ImportError as error:
                message = f"S_sig and S_dino need torch and transformers: {error}"
                raise InfrastructureFailure("features_missing", message) from error
            settings = self.settings
            device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
            kind = SiglipVisionModel if settings.kind == "siglip" else Dinov2Model
            try:
                processor = AutoImageProcessor.from_pretrained(settings.source, revision=settings.revision)
                model, report = kind.from_pretrained(
                    settings.source, revision=settings.revision, output_loading_info=True
                )
            except (OSError, ValueError, RuntimeError) as error:
                message = f"cannot load {settings.kind} from {settings.source}: {error}"
                raise InfrastructureFailure("features_unloadable", message, source=settings.source) from error
            if report["missing_keys"]:
                # transformers fills missing weights at random and only warns: the scores would be noise.
                message = f"{settings.source} lacks {len(report['missing_keys'])} weights of a {settings.kind} model"
                raise InfrastructureFailure("features_unloadable", message, source=settings.source)
            self._loaded = (processor, model.to(device).eval(), torch)
        return self._loaded


def _digest(frame: Path) -> str:
    try:
        return file_digest(frame)
    except OSError as error:
        raise InfrastructureFailure("frame_missing", f"cannot read {frame}: {error.strerror}") from error
