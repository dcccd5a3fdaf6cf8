"""The baseline that predicts no change: the next screen is the current one, byte for byte.

Most of a screen survives an action, so similarity scores rate this prediction high; a model's score means something
only beside it.
"""

from __future__ import annotations

from typing import Any

from .base import Prediction, StepRequest
from .rows import CopyLastRow


class CopyLastWorld:
    """Predicts the current screen."""

    def __init__(self, row: CopyLastRow) -> None:
        self._row = row

    def identity(self) -> dict[str, Any]:
        return {"world": "copy_last", "version": 1}

    def predict(self, request: StepRequest) -> Prediction:
        return Prediction(png=request.frame.read_bytes())

    def preflight(self) -> list[str]:
        return []
