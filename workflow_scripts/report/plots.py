"""Numbers into the geometry of two plots and of the marks that show an action.

A template draws them as inline SVG, coloured by the page's style sheet.

A plot is `WIDTH` units wide, which is about its width in CSS pixels, so that its text is readable on a phone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .data import Mark

WIDTH = 380
LABELS = 132
"""Room for the names of rows, left of a dot plot."""
RIGHT = 56
LINE = 22
"""Height of a row of a dot plot."""


@dataclass(frozen=True)
class Dot:
    """One line of a dot plot: a score with its interval, and what copying would have scored; x and y in units."""

    label: str
    color: str
    y: float
    x: float
    low: float | None
    high: float | None
    reference: float | None
    shown: str


@dataclass(frozen=True)
class DotPlot:
    """Scores of all rows in one metric."""

    title: str
    note: str
    dots: tuple[Dot, ...]
    ticks: tuple[tuple[float, str], ...]
    height: float
    bottom: float


@dataclass(frozen=True)
class Curve:
    """One stepped line: SVG path, and where it ends."""

    label: str
    color: str
    path: str
    end: float


@dataclass(frozen=True)
class CurvePlot:
    """Survival of all rows."""

    title: str
    note: str
    curves: tuple[Curve, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    height: float
    bottom: float


def dot_plot(title: str, note: str, lines: Sequence[Mapping[str, object]]) -> DotPlot:
    """`lines` have label, color, and value, low, high, reference in 0 … 100 (or None)."""

    def x(value: object) -> float | None:
        if not isinstance(value, (int, float)):
            return None
        return round(LABELS + min(max(value, 0), 100) / 100 * (WIDTH - LABELS - RIGHT), 1)

    dots = []
    for number, line in enumerate(lines):
        at = x(line["value"])
        if at is not None:
            y = 14 + LINE * number
            spread = x(line["low"]), x(line["high"]), x(line["reference"])
            dots.append(Dot(str(line["label"]), str(line["color"]), y, at, *spread, f"{line['value']:.1f}"))
    bottom = 14 + LINE * len(lines) - 6
    ticks = tuple((x(value) or 0.0, str(value)) for value in (0, 25, 50, 75, 100))
    return DotPlot(title, note, tuple(dots), ticks, bottom + 22, bottom)


def curve_plot(title: str, note: str, curves: Sequence[tuple[str, str, Sequence[float]]]) -> CurvePlot:
    """`curves` are (label, colour class, share that survives 0, 1, 2 … transitions)."""
    left, top, bottom, right = 36, 12, 196, 12
    horizon = max([len(shares) - 1 for _, _, shares in curves] or [1]) or 1

    def x(step: float) -> float:
        return round(left + step / horizon * (WIDTH - left - right), 1)

    def y(share: float) -> float:
        return round(bottom - share * (bottom - top), 1)

    drawn = []
    for label, color, shares in curves:
        path = f"M{x(0)} {y(shares[0])}" if shares else ""
        for step, share in enumerate(shares[1:], 1):
            path += f"H{x(step)}V{y(share)}"
        drawn.append(Curve(label, color, path, shares[-1] if shares else 0.0))
    every = max(1, -(-horizon // 8))
    x_ticks = tuple((x(step), str(step)) for step in range(0, horizon + 1, every))
    y_ticks = tuple((y(share), f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1))
    return CurvePlot(title, note, tuple(drawn), x_ticks, y_ticks, bottom + 40, bottom)


def sparkline(values: Sequence[float | None], failed: bool) -> str:
    """An episode's course, one character a step: 0 … 9, a for scores of 0 … 1, ``-`` unknown, ``x`` the failure."""
    letters = ["-" if value is None else "0123456789a"[round(min(max(value, 0), 1) * 10)] for value in values]
    return "".join(letters) + ("x" if failed else "")


@dataclass(frozen=True)
class Drawing:
    """An action as it is drawn on a frame: circles (x, y, r) and a path in pixels of the frame, or a caption."""

    stroke: float = 0.0
    circles: tuple[tuple[float, float, float], ...] = ()
    path: str = ""
    caption: str = ""
    text: str = ""


CAPTIONS = {
    "type_text": "type",
    "navigate_home": "home",
    "navigate_back": "back",
    "open_app": "open",
    "terminate": "end",
}


def drawing(mark: Mark, width: int, height: int) -> Drawing:
    """Tap: a ring with a dot; long press: two rings; scroll: the finger's way as an arrow; all else: its words."""
    unit = min(width, height) / 100
    stroke = round(1.2 * unit, 2)
    if mark.path is not None:
        x0, y0, x1, y1 = mark.path
        dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
        head = 4 * unit
        ends = [(x1 - dx * head + side * dy * head, y1 - dy * head + side * dx * head) for side in (1, -1)]
        tip = "".join(f"M{x:.1f} {y:.1f}L{x1} {y1}" for x, y in ends)
        return Drawing(stroke, ((x0, y0, round(1.8 * unit, 1)),), f"M{x0} {y0}L{x1} {y1}{tip}")
    if mark.x is not None and mark.y is not None:
        rings = (0.7, 4.2, 6.8) if mark.kind == "long_press" else (0.7, 4.2)
        return Drawing(stroke, tuple((mark.x, mark.y, round(ring * unit, 1)) for ring in rings))
    return Drawing(caption=CAPTIONS.get(mark.kind, mark.kind), text=mark.text or "")
