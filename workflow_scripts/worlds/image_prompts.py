"""The sentences that image world models are given, from files under config/prompts/worlds/.

A file has sections, each under a `## name` heading; what stands before the first is for the reader. `prompt` is the
whole text with `$placeholders`; the others are its parts. `$location`, `$cue` and `$history` come with a space before
them, or are empty. The phrases for actions are shared (image_actions.md). A file's digest is part of the world's
identity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from string import Template

from .. import identity
from ..actions import Action
from ..failures import InvalidInput
from .base import StepRequest

FOLDER = Path(__file__).parents[2] / "config" / "prompts" / "worlds"
ACTIONS = "image_actions"


@dataclass(frozen=True)
class Prompt:
    """A parsed prompt file."""

    path: Path
    sections: Mapping[str, Template]
    digest: str

    @classmethod
    def load(cls, name: str, *, lines: bool = False) -> Prompt:
        """The prompt file `name` (in the prompts' folder without .md, or a path). Raises InvalidInput.

        `lines` keeps the file's line breaks in its sections.
        """
        path = FOLDER / f"{name}.md"
        if "/" in name or name.endswith(".md"):
            path = Path(name)
        return _read(path, lines)

    def fill(self, section: str, **values: object) -> str:
        """A section with its placeholders filled, "" where there is no such section. Raises InvalidInput."""
        template = self.sections.get(section)
        if template is None:
            return ""
        try:
            return template.substitute(values)
        except (KeyError, ValueError) as error:
            known = ", ".join(f"${name}" for name in values)
            raise InvalidInput(
                str(self.path), f"## {section}", f"the placeholders {known}", str(error), "$$ for a dollar sign"
            ) from error


@lru_cache(maxsize=64)
def _read(path: Path, lines: bool) -> Prompt:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        expected = f"a prompt file ({', '.join(sorted(p.stem for p in FOLDER.glob('*.md')))})"
        raise InvalidInput("config", "prompt", expected, str(path), "prompt: flux2") from error
    parts = re.split(r"^## +(\w+) *$", text, flags=re.MULTILINE)
    # Unless asked for, line breaks of a file are for its reader; those in a placeholder's value are kept.
    bodies = (body.strip() if lines else " ".join(body.split()) for body in parts[2::2])
    sections = {name: Template(body) for name, body in zip(parts[1::2], bodies, strict=True)}
    return Prompt(path, sections, identity.bytes_digest(text.encode()))


def action_phrase(action: Action, nameless: str) -> str:
    """What the user does, without coordinates; `nameless` stands for a target that has no name."""
    phrases = Prompt.load(ACTIONS)
    if action.instruction and action.type in ("tap", "long_press"):
        return phrases.fill("instructed", instruction=action.instruction.rstrip("."))
    return phrases.fill(
        action.type,
        target=action.target or nameless,
        direction=action.direction,
        text=action.text,
        app_name=action.app_name,
    )


def step_prompt(
    prompt: Prompt, request: StepRequest, *, cue: bool, history: str, section: str = "prompt", **more: object
) -> str:
    """The text of `section` for one step.

    Args:
        cue: whether the screenshot carries a mark for this action.
        history: `images` (the earlier screens are sent as well), `text` or `none`.
        more: values of further placeholders.
    """
    nameless = prompt.fill("nameless_marked" if cue else "nameless") or prompt.fill("nameless")
    action, task = request.action, request.task
    location = ""
    if action.x is not None and action.y is not None:
        location = prompt.fill("location", x=f"{action.x / task.width:.3f}", y=f"{action.y / task.height:.3f}")
    past = ""
    if request.history and history != "none":
        lines = [
            prompt.fill(
                "past_image" if history == "images" else "past_text",
                number=number,
                step=item.step,
                action=action_phrase(item.action, prompt.fill("nameless")),
            )
            for number, item in enumerate(request.history, start=2)
        ]
        past = prompt.fill("history", count=len(lines), past=" ".join(lines))
    pieces = {"location": location, "cue": prompt.fill("cue") if cue else "", "history": past}
    spaced = {name: f" {text}" if text else "" for name, text in pieces.items()}
    return prompt.fill(section, action=action_phrase(action, nameless), **spaced, **more)
