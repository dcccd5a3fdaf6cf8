"""Training rows (one per sampled turn) and the images they refer to by hash. No torch.

A row keeps the exact ids that were fed and sampled: text is never tokenised again, because decoding and encoding again
changes ids. Its images are kept once per content and turned into pixels when the row is used.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...failures import InfrastructureFailure, InvalidInput
from ...identity import bytes_digest
from ...records import write_bytes
from .config import Role

if TYPE_CHECKING:
    from PIL.Image import Image

MIN_SIDE = 16
"""Pixels; a smaller image is less than one patch and says nothing."""
MAX_RATIO = 100
"""Longest side over shortest; image processors refuse more than 200."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sampled turn.

    Attributes:
        key: unique name, e.g. ``group_00003/member_1/developer_2``.
        role: who spoke; it decides which adapter is trained.
        prompt_ids: token ids of the prompt with image placeholders expanded.
        completion_ids: sampled ids, the end token included if it was sampled.
        log_probs: of the sampled ids under the sampler (float32 values), as long as completion_ids.
        images: hashes in an `ImageStore`, in the order of their placeholders.
        finish: ``stop`` or ``length`` (cut at the limit).
        advantage: from `advantages.group_credit`.
    """

    key: str
    role: Role
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    images: tuple[str, ...]
    finish: str
    advantage: float = 0.0

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)

    def credited(self, advantage: float) -> Row:
        return replace(self, advantage=float(advantage))


def row_of_turn(key: str, turn: dict[str, Any]) -> Row:
    """A row from a turn of an episode file. Raises InvalidInput where the record contradicts itself."""
    row = Row(
        key,
        turn["role"],
        tuple(turn["prompt_ids"]),
        tuple(turn["completion_ids"]),
        tuple(turn["log_probs"]),
        tuple(turn["images"]),
        turn["finish"],
    )
    again = "delete this episode file and run again"
    if not row.completion_ids or len(row.completion_ids) != len(row.log_probs):
        expected = f"one per sampled token ({len(row.completion_ids)}, at least 1)"
        raise InvalidInput(key, "log_probs", expected, len(row.log_probs), again)
    if not all(-1e4 < value <= 1e-4 for value in row.log_probs):  # NaN compares false
        raise InvalidInput(key, "log_probs", "finite numbers <= 0", min(row.log_probs), again)
    return row


class ImageStore:
    """Images of a run as ``<folder>/<hash>.png``, each content once."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.get = lru_cache(maxsize=64)(self._decode)
        """The image of a hash as RGB. Raises InfrastructureFailure if it is missing or was changed."""

    def put(self, png: bytes) -> str:
        """Stores a PNG and returns its hash. Raises InvalidInput for no image, or one too small or too narrow."""
        name = bytes_digest(png)
        path = self.folder / f"{name}.png"
        if not path.exists():
            check_image(png, name)
            write_bytes(path, png)
        return name

    def png(self, name: str) -> bytes:
        """The stored file. Raises InfrastructureFailure if it is missing or was changed."""
        path = self.folder / f"{name}.png"
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InfrastructureFailure(
                "image_missing", f"an episode refers to an image that is gone: {path}"
            ) from error
        if bytes_digest(data) != name:
            raise InfrastructureFailure("image_changed", f"the content of {path} is not what its name says")
        return data

    def _decode(self, name: str) -> Image:
        from PIL import Image as images

        return images.open(io.BytesIO(self.png(name))).convert("RGB")


def check_image(png: bytes, name: str) -> None:
    """Raises InvalidInput unless `png` is an image that a vision tower can take."""
    from PIL import Image as images
    from PIL import UnidentifiedImageError

    try:
        width, height = images.open(io.BytesIO(png)).size
    except (UnidentifiedImageError, OSError) as error:
        raise InvalidInput(name, "image", "a PNG", png[:16], "a screenshot as PNG") from error
    short, long = sorted((width, height))
    if short < MIN_SIDE or long > MAX_RATIO * short:
        expected = f"sides of at least {MIN_SIDE} px and a ratio of at most {MAX_RATIO}"
        raise InvalidInput(name, "image size", expected, f"{width} x {height}", "a larger screenshot")


def image_hashes(rows: Sequence[Row]) -> list[str]:
    """Hashes of all images of some rows, in the order in which a batch of them wants its pixels."""
    return [name for row in rows for name in row.images]
