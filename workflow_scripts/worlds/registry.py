"""From a typed row to the world it describes. A family's module is imported when one of its rows is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .rows import WorldRow

if TYPE_CHECKING:
    from .base import World

MAKERS: dict[str, str] = {
    "browser": "browser:BrowserWorld",
    "copy_last": "copy_last:CopyLastWorld",
    "blank": "blank:BlankWorld",
}
"""Family → module and class in this package; the class is called with the row."""


def make_world(row: WorldRow) -> World:
    """The world of a row. Cheap: nothing is loaded, started or connected to."""
    module, name = MAKERS[row.family].split(":")
    maker = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    world: World = maker(row)
    return world
