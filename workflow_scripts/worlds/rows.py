"""Typed rows of config/models.yaml: what all have, and the worlds that need no model.

Importable without any model library: a row says what a world is, `registry.make_world` makes it. Rows of the other
families stand in `html_rows` and `image_rows`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class WorldRow(BaseModel):
    """What every row has."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    family: str
    uses_history: bool = Field(True, description="False refuses settings that show the model earlier screens.")


class BrowserRow(WorldRow):
    """The real page in a real browser: the oracle."""

    family: Literal["browser"]
    uses_history: bool = False


class CopyLastRow(WorldRow):
    """Predicts that nothing changes: the baseline that similarity metrics must be compared with."""

    family: Literal["copy_last"]
    uses_history: bool = False


class BlankRow(WorldRow):
    """Predicts an empty screen: the floor."""

    family: Literal["blank"]
    uses_history: bool = False
    color: str = Field("#ffffff", pattern=r"^#[0-9a-fA-F]{6}$", description="Colour of the empty screen.")
