"""The families of world models: which row class describes one and which class makes it.

A new model of a known family is one row of YAML; a new family is one module and one line in FAMILIES. A family's module
is imported when one of its rows is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

from .html_rows import HtmlRow
from .image_rows import IMAGE_FAMILIES, IMAGE_MAKERS
from .rows import BlankRow, BrowserRow, CopyLastRow, WorldRow

if TYPE_CHECKING:
    from .base import World


class Family(NamedTuple):
    """`maker` is module and class in this package; the class is called with a row."""

    row: type[WorldRow]
    maker: str


FAMILIES: dict[str, Family] = {
    "browser": Family(BrowserRow, "browser:BrowserWorld"),
    "copy_last": Family(CopyLastRow, "copy_last:CopyLastWorld"),
    "blank": Family(BlankRow, "blank:BlankWorld"),
    "html": Family(HtmlRow, "html:HtmlWorld"),
    **{name: Family(row, IMAGE_MAKERS[name]) for name, row in IMAGE_FAMILIES.items()},
}


def make_world(row: WorldRow) -> World:
    """The world of a row. Cheap: nothing is loaded, started or connected to."""
    module, name = FAMILIES[row.family].maker.split(":")
    maker = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    world: World = maker(row)
    return world
