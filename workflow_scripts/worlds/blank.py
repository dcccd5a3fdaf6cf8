"""The floor: an empty screen of one colour after every action."""

from __future__ import annotations

from typing import Any

from ..records import png_bytes
from .base import Prediction, StepRequest
from .rows import BlankRow


class BlankWorld:
    """Predicts a screen of one colour, of the task's size."""

    near_constant_ok = True
    """Read by the loop: elsewhere a near-constant frame ends the rollout as a model failure; here it is the point."""

    def __init__(self, row: BlankRow) -> None:
        self._color = row.color.lower()

    def identity(self) -> dict[str, Any]:
        return {"world": "blank", "version": 1, "color": self._color}

    def predict(self, request: StepRequest) -> Prediction:
        from PIL import Image

        return Prediction(png=png_bytes(Image.new("RGB", (request.task.width, request.task.height), self._color)))

    def preflight(self) -> list[str]:
        return []
