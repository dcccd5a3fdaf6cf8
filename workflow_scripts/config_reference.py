"""Writes docs/configuration.md from the typed models, so that it cannot drift.

``python -m workflow_scripts.config_reference`` writes, ``--check`` only compares. The words are the models' own
descriptions.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from .coder.train.config import Phase
from .config import Config, OpenAIPlanner, ReferencePlanner, Setting
from .records import write_bytes
from .train_rows import RunRow, WarmStart
from .worlds.registry import FAMILIES

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD = """# Configuration

<!-- Written by `python -m workflow_scripts.config_reference`; edit the models in workflow_scripts/, not this page. -->

What is run comes from `config/config.yaml` and `config/models.yaml` (the defaults), then from files given with
`--configfile`, then from `--config key=value`. Mappings are merged key by key, everything else is replaced. Unknown
keys are refused. How it is run (cores, executor, retries) stands in `profiles/`.

Lists can be given as `a,b`: `--config model=browser,copy_last setting=nohist`.
"""


def page() -> bytes:
    """The whole page."""
    parts = [HEAD, *_table("config.yaml", Config)]
    for key, field in Config.model_fields.items():
        if isinstance(field.default, BaseModel):
            parts += _block(key, type(field.default))
    parts += _table("A setting (`settings.NAME`)", Setting)
    parts += _table("A planner of recorded actions (`planners.NAME`)", ReferencePlanner)
    parts += _table("A planner behind an OpenAI-compatible endpoint (`planners.NAME`)", OpenAIPlanner)
    parts.append("\n# Training runs\n\nA run under `runs:`, for `snakemake train` (docs/training.md).\n")
    parts += _block("runs.NAME", RunRow)
    parts += _table("`runs.NAME.warm_start`", WarmStart)
    parts += _table("An entry of `runs.NAME.schedule`", Phase)
    parts.append("\n# World models\n\nA row of `config/models.yaml`, or of `models:` in your own file, by `family`.\n")
    for name, family in FAMILIES.items():
        parts += _table(f"`family: {name}`", family.row)
    return "".join(parts).encode()


def _table(title: str, model: type[BaseModel]) -> Iterable[str]:
    lead = (model.__doc__ or "").strip()
    yield f"\n## {title}\n\n{lead}\n\n| key | default | |\n|---|---|---|\n"
    for key, field in model.model_fields.items():
        yield f"| `{key}` | {_default(field)} | {field.description or ''} |\n"


def _block(path: str, model: type[BaseModel]) -> Iterable[str]:
    """The table of a block of config.yaml and of the blocks in it."""
    yield from _table(f"`{path}`", model)
    shown: set[type[BaseModel]] = set()
    for key, field in model.model_fields.items():
        inner = type(field.default)
        if isinstance(field.default, BaseModel) and inner not in shown:
            shown.add(inner)
            yield from _block(f"{path}.{key}", inner)


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return ""
    if isinstance(value, BaseModel):
        return "see below"
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`" if text else ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args(arguments).check:
        return 0 if PAGE.is_file() and PAGE.read_bytes() == page() else 1
    write_bytes(PAGE, page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
