"""From a planner's row of the configuration to the planner. A kind's module is imported when such a row is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..config import OpenAIPlanner, ReferencePlanner
    from .base import Planner

MAKERS: dict[str, str] = {
    "reference": "reference:RecordedPlanner",
    "openai": "openai:VisionPlanner",
}
"""Kind → module and class in this package; the class is called with the row."""


def make_planner(row: ReferencePlanner | OpenAIPlanner) -> Planner:
    """The planner of a row. Cheap: no key is read and nothing connected to. Raises InvalidInput (base_url)."""
    module, name = MAKERS[row.kind].split(":")
    maker = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    planner: Planner = maker(row)
    return planner
