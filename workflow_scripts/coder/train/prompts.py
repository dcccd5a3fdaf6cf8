"""What the Developer and the Critic are told, from config/prompts/coder/*.md: one source for training and use.

Messages are in the chat format of the processors; an image part names its image by hash. Text that a model wrote is
shown whole, but no special token in it survives: `<|image_pad|>` inside an HTML draft would become a placeholder
without an image. Left out: few-shot examples, earlier drafts than the last two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...failures import InvalidInput
from ...identity import digest

FOLDER = Path(__file__).parents[3] / "config" / "prompts" / "coder"
FIELDS = {
    "developer_system": ("width",),
    "developer_first": (),
    "developer_revise": ("render_note", "html", "critique_note"),
    "critic_system": ("width",),
    "critic_user": ("render_note", "html"),
}
Verdict = Literal["done", "continue", "unparsed"]
_VERDICT = re.compile(r"VERDICT: (DONE|CONTINUE)")
Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft as the roles see it: its document, the hash of its render or None, and why there is none."""

    html: str
    render: str | None
    failure: str | None = None


class Prompts:
    """The five prompt files of `folder`. Raises InvalidInput if one is missing or lacks a field."""

    def __init__(self, folder: str | Path = FOLDER) -> None:
        self.texts: dict[str, str] = {}
        for name, fields in FIELDS.items():
            path = Path(folder) / f"{name}.md"
            try:
                self.texts[name] = path.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise InvalidInput(str(path), name, "a prompt file", str(error), "restore the file") from error
            for field in fields:
                if "{" + field + "}" not in self.texts[name]:
                    raise InvalidInput(str(path), field, f"{{{field}}} in the text", "none", f"… {{{field}}} …")

    def identity(self) -> str:
        return digest(self.texts)

    def _fill(self, name: str, **fields: object) -> str:
        # Not str.format: HTML and CSS are full of braces.
        return re.sub(r"\{(\w+)\}", lambda match: str(fields.get(match[1], match[0])), self.texts[name])

    def developer(self, reference: str, width: int, last: Draft | None, critique: str | None) -> Messages:
        """A first draft, or a revision of `last` (its render, its document, the critique if there is one)."""
        if last is None:
            return self._conversation("developer", width, [reference], self._fill("developer_first"))
        note = "The second picture is how your last draft looks." if last.render else _no_picture(last)
        remarks = f"This is what a reviewer says about it:\n\n{critique}" if critique else ""
        text = self._fill("developer_revise", render_note=note, html=last.html, critique_note=remarks)
        return self._conversation("developer", width, [reference, last.render], text)

    def critic(self, reference: str, width: int, previous: Draft | None, current: Draft) -> Messages:
        """A critique of `current`, with the draft before it for comparison."""
        before = previous.render if previous else None
        places = ["second", "third"] if before else ["second"]
        notes = [f"The {places[0]} is the draft before the latest."] if before else []
        notes += [f"The {places[-1]} is the latest draft."] if current.render else [_no_picture(current)]
        text = self._fill("critic_user", render_note=" ".join(notes), html=current.html)
        return self._conversation("critic", width, [reference, before, current.render], text)

    def _conversation(self, role: str, width: int, images: Sequence[str | None], text: str) -> Messages:
        parts: list[dict[str, Any]] = [{"type": "image", "image": name} for name in images if name]
        return [
            {"role": "system", "content": self._fill(f"{role}_system", width=width)},
            {"role": "user", "content": [*parts, {"type": "text", "text": text}]},
        ]


def _no_picture(draft: Draft) -> str:
    return f"The latest draft could not be shown ({draft.failure or 'no picture'}) and is worth nothing."


def neutral(text: str, special: Sequence[str] = ()) -> str:
    """`text` with every special token spelled so that a tokenizer reads it as text.

    Args:
        special: further tokens than those of the form ``<|…|>``.
    """
    text = re.sub(r"<\|(?=[\w]+\|>)", "< |", text)
    for token in special:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def verdict(critique: str) -> tuple[Verdict, str]:
    """The verdict of a critique, and the remarks before it.

    Only a last line that reads exactly ``VERDICT: DONE`` or ``VERDICT: CONTINUE`` counts; "not DONE" in a sentence does
    not. Anything else is `unparsed`, and the whole text are the remarks.
    """
    lines = critique.strip().splitlines()
    match = _VERDICT.fullmatch(lines[-1].strip()) if lines else None
    if not match:
        return "unparsed", critique.strip()
    remarks = "\n".join(lines[:-1]).strip()
    return ("done" if match[1] == "DONE" else "continue"), remarks
