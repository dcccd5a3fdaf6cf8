"""The closed set of GUI actions, in GUI-CC's vocabulary.

An `Action` validates itself: whoever holds one holds a legal one. Coordinates are pixels of the frame the action was
decided on, origin top-left. `direction` is the motion of the *finger*: scrolling up moves the content up and brings
later content into view (AndroidWorld names the motion of the content instead). Left out: AndroidWorld's double tap,
free swipe, keyboard enter and clear-text, which GUI-CC's action space does not have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

TERMINAL_TYPES = ("terminate", "answer")
ACTION_TYPES = (
    "tap",
    "long_press",
    "scroll",
    "type_text",
    "navigate_home",
    "navigate_back",
    "open_app",
    "wait",
    *TERMINAL_TYPES,
)
POINTED_TYPES = ("tap", "long_press", "scroll")
DIRECTIONS = ("up", "down", "left", "right")
STATUSES = ("success", "failure")
SCROLL_SPAN = 300
"""Length of a scroll in thousandths of the frame's height (up, down) or width (left, right)."""


class InvalidAction(ValueError):
    """A reply that is no legal action; `code` is one of ``unknown_type``, ``missing_field``, ``bad_value``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Action:
    """One action. Fields that a type does not use are None.

    Attributes:
        type: one of ACTION_TYPES.
        x, y: pixels of the frame (tap, long_press, scroll).
        direction: finger motion (scroll).
        text: what is typed (type_text, may be empty) or answered (answer).
        app_name: which app is opened (open_app).
        status: success or failure (terminate).
        target: free text naming what is acted on.
        instruction: one-line low-level instruction of a recorded action; empty for planned ones.
    """

    type: str
    x: int | None = None
    y: int | None = None
    direction: str | None = None
    text: str | None = None
    app_name: str | None = None
    status: str | None = None
    target: str = ""
    instruction: str = ""

    def __post_init__(self) -> None:
        if self.type not in ACTION_TYPES:
            raise InvalidAction("unknown_type", f"action type {self.type!r} is not one of {', '.join(ACTION_TYPES)}")
        pointed = self.type in POINTED_TYPES
        if pointed != (self.x is not None) or pointed != (self.y is not None):
            raise InvalidAction("missing_field", f"{self.type} {'needs' if pointed else 'takes no'} x and y")
        needs = {"scroll": "direction", "type_text": "text", "answer": "text", "open_app": "app_name"}
        needs["terminate"] = "status"
        for field in ("direction", "text", "app_name", "status"):
            if (needs.get(self.type) == field) != (getattr(self, field) is not None):
                verb = "needs" if needs.get(self.type) == field else "takes no"
                raise InvalidAction("missing_field", f"{self.type} {verb} {field}")
        if self.direction is not None and self.direction not in DIRECTIONS:
            raise InvalidAction("bad_value", f"direction {self.direction!r} is not one of {', '.join(DIRECTIONS)}")
        if self.status is not None and self.status not in STATUSES:
            raise InvalidAction("bad_value", f"status {self.status!r} is not one of {', '.join(STATUSES)}")
        if self.type == "open_app" and not (self.app_name or "").strip():
            raise InvalidAction("bad_value", "open_app needs a name that is not blank")

    @property
    def terminal(self) -> bool:
        """Whether the episode ends with this action."""
        return self.type in TERMINAL_TYPES

    def scroll_path(self, width: int, height: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Start and end of the finger in thousandths of the frame, each clamped into it.

        The path is centred on the point and spans SCROLL_SPAN along its direction (GUI-CC's rule).
        """
        if self.x is None or self.y is None or self.direction is None:
            raise ValueError(f"{self.type} has no path")
        x, y = _permille(self.x, width), _permille(self.y, height)
        dx, dy = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}[self.direction]
        half = SCROLL_SPAN // 2

        def point(sign: int) -> tuple[int, int]:
            return (min(max(x + sign * dx * half, 0), 1000), min(max(y + sign * dy * half, 0), 1000))

        return point(-1), point(1)

    def summary(self) -> str:
        """One line for a person and for the planner's list of past actions."""
        if self.instruction:
            return self.instruction
        target = f" ({self.target})" if self.target else ""
        match self.type:
            case "tap":
                return f"tap at ({self.x}, {self.y}){target}"
            case "long_press":
                return f"long press at ({self.x}, {self.y}){target}"
            case "scroll":
                return f"scroll {self.direction} from ({self.x}, {self.y}){target}"
            case "type_text":
                return f"type {self.text!r}{target}"
            case "open_app":
                return f"open the app {self.app_name!r}"
            case "terminate":
                return f"end the task with status {self.status}"
            case "answer":
                return f"answer {self.text!r}"
            case _:
                return {"navigate_home": "go to the home screen", "navigate_back": "go back", "wait": "wait"}[self.type]

    def semantic(self, width: int, height: int) -> dict[str, Any]:
        """GUI-CC's ``semantic_action`` for a frame of `width` × `height` pixels."""
        record: dict[str, Any] = {"type": self.type}
        record["target"] = self.target
        record["low_level_instruction"] = self.summary()
        if self.x is not None and self.y is not None:
            record["source_coord"] = [self.x, self.y]
            record["source_coord_norm"] = [_permille(self.x, width), _permille(self.y, height)]
        if self.type == "scroll":
            start, end = self.scroll_path(width, height)
            record.update(direction=self.direction, start_norm=list(start), end_norm=list(end))
        if self.text is not None:
            record["text"] = self.text
        if self.app_name is not None:
            record["app_name"] = self.app_name
        if self.status is not None:
            record["value"] = self.status
        return record

    @classmethod
    def from_semantic(cls, record: Mapping[str, Any], width: int, height: int) -> Action:
        """Reads a ``semantic_action``, recorded by us or by GUI-CC. Raises InvalidAction.

        A point is taken from ``source_coord`` (pixels), else from ``source_coord_norm`` or, for scrolls, the middle of
        ``start_norm`` and ``end_norm`` (thousandths).
        """
        kind = record.get("type")
        if not isinstance(kind, str):
            raise InvalidAction("missing_field", f"semantic_action needs a string 'type', found {kind!r}")
        x = y = None
        if kind in POINTED_TYPES:
            if record.get("source_coord") is not None:
                x, y = _point(record["source_coord"], "source_coord")
            elif record.get("source_coord_norm") is not None:
                nx, ny = _point(record["source_coord_norm"], "source_coord_norm")
                x, y = nx * width / 1000, ny * height / 1000
            elif kind == "scroll" and record.get("start_norm") is not None and record.get("end_norm") is not None:
                (x0, y0), (x1, y1) = _point(record["start_norm"], "start_norm"), _point(record["end_norm"], "end_norm")
                x, y = (x0 + x1) / 2 * width / 1000, (y0 + y1) / 2 * height / 1000
            else:
                raise InvalidAction("missing_field", f"{kind} needs source_coord or source_coord_norm")
        action = cls(
            type=kind,
            x=None if x is None else _clamp(x, width),
            y=None if y is None else _clamp(y, height),
            direction=record.get("direction") if kind == "scroll" else None,
            text=record.get("text") if kind in ("type_text", "answer") else None,
            app_name=record.get("app_name") if kind == "open_app" else None,
            status=record.get("value") if kind == "terminate" else None,
            target=str(record.get("target") or ""),
        )
        instruction = str(record.get("low_level_instruction") or "")
        # What `semantic` derives itself is no recorded instruction: its pixels would reach world models as text.
        return action if instruction == action.summary() else replace(action, instruction=instruction)

    @classmethod
    def from_call(cls, arguments: Any, width: int, height: int) -> Action:
        """Reads the arguments of the planner's tool call. Raises InvalidAction.

        Points outside the frame are clamped into it; a point that is no pair of finite numbers is refused, and so is a
        point given as strings. ``[x, y]`` is taken from ``coordinate``, or from an array in ``x`` (models do that).
        """
        if not isinstance(arguments, Mapping):
            raise InvalidAction("bad_value", f"the arguments are a {type(arguments).__name__}, not an object")
        kind = arguments.get("action", arguments.get("type"))
        if not isinstance(kind, str):
            raise InvalidAction("missing_field", "the call has no string 'action'")
        x = y = None
        if kind in POINTED_TYPES:
            given = arguments.get("coordinate")
            if given is None:
                given = arguments.get("x")
                if given is not None and not isinstance(given, (list, tuple)):
                    given = [given, arguments.get("y")]
            if given is None:
                raise InvalidAction("missing_field", f"{kind} needs coordinate: [x, y]")
            x, y = _point(given, "coordinate")

        def string(key: str) -> str | None:
            value = arguments.get(key)
            if value is not None and not isinstance(value, str):
                raise InvalidAction("bad_value", f"{key} is a {type(value).__name__}, not a string")
            return value

        answer = string("answer_text") if arguments.get("answer_text") is not None else string("text")
        return cls(
            type=kind,
            x=None if x is None else _clamp(x, width),
            y=None if y is None else _clamp(y, height),
            direction=string("direction") if kind == "scroll" else None,
            text=answer if kind == "answer" else string("text") if kind == "type_text" else None,
            app_name=string("app_name") if kind == "open_app" else None,
            status=string("status") if kind == "terminate" else None,
            target=string("target") or "",
        )


def _point(value: Any, name: str) -> tuple[float, float]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise InvalidAction("bad_value", f"{name} is {value!r}, not [x, y]")
    for number in value:
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not abs(number) < math.inf:
            raise InvalidAction("bad_value", f"{name} is {value!r}, not two finite numbers")
    # Far outside any frame is all the same; an integer beyond a float's range would raise.
    x, y = (max(min(number, 10**9), -(10**9)) for number in value)
    return float(x), float(y)


def _clamp(value: float, size: int) -> int:
    return min(max(round(value), 0), size - 1)


def _permille(value: int, size: int) -> int:
    return round(value * 1000 / size)
