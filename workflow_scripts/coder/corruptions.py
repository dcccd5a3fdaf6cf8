"""Damage of known strength, done to a page's source: what the reward is tuned and judged with.

Every series is graded, and a stronger step contains the weaker one: what is deleted at 10 % is among what is deleted at
30 %. The rank correlation of the reward with these strengths is *corruption ranking*; it is no human agreement.
"""

from __future__ import annotations

import colorsys
import random
import re
from collections.abc import Callable

Corruption = Callable[[str, float, int], str]


def add_style(html: str, css: str) -> str:
    """`html` with a style sheet at the end of its head (or in front, if it has none)."""
    sheet = f"<style>{css}</style>"
    return html.replace("</head>", sheet + "</head>", 1) if "</head>" in html else sheet + html


def shift(html: str, pixels: float, seed: int = 0) -> str:
    """The whole page moved right and down by `pixels`."""
    return add_style(html, f"body{{position:relative;left:{pixels:g}px;top:{pixels:g}px}}") if pixels else html


def _recolor(html: str, change: Callable[[float, float, float], tuple[float, float, float]]) -> str:
    """Every #rrggbb of the source through `change`, which maps (r, g, b) in [0, 1]."""

    def new(match: re.Match[str]) -> str:
        r, g, b = (int(match[1][k : k + 2], 16) / 255 for k in (0, 2, 4))
        return "#" + "".join(f"{round(255 * c):02x}" for c in change(r, g, b))

    return re.sub(r"#([0-9a-fA-F]{6})\b", new, html)


def hue(html: str, degrees: float, seed: int = 0) -> str:
    """Every colour's hue turned by `degrees` (0..180)."""

    def turn(r: float, g: float, b: float) -> tuple[float, float, float]:
        h, lightness, s = colorsys.rgb_to_hls(r, g, b)
        return colorsys.hls_to_rgb((h + degrees / 360) % 1, lightness, s)

    return _recolor(html, turn)


def fade(html: str, share: float, seed: int = 0) -> str:
    """Every colour moved by `share` (0..1) of the way to its negative; 1 inverts the page."""
    return _recolor(html, lambda r, g, b: (r + share * (1 - 2 * r), g + share * (1 - 2 * g), b + share * (1 - 2 * b)))


_LEAF = re.compile(r"<(?!style|title|script|option)([a-z]\w*)((?:\s[^<>]*)?)>([^<>]*\S[^<>]*)(?=<)", re.I)


def delete(html: str, share: float, seed: int = 0) -> str:
    """`share` (0..1) of the elements that hold text made invisible, without moving the others."""
    head, body, rest = body_parts(html)
    leaves = list(_LEAF.finditer(body))
    order = random.Random(seed).sample(range(len(leaves)), len(leaves))
    gone = sorted((leaves[i] for i in order[: round(share * len(leaves))]), key=lambda m: -m.start())
    for match in gone:
        # A second style attribute would be ignored, so an existing one is extended.
        attributes = match[2]
        if 'style="' in attributes:
            attributes = attributes.replace('style="', 'style="visibility:hidden;', 1)
        else:
            attributes += ' style="visibility:hidden"'
        body = body[: match.start()] + f"<{match[1]}{attributes}>" + match[3] + body[match.end() :]
    return head + body + rest


def letters(html: str, share: float, seed: int = 0) -> str:
    """`share` (0..1) of the letters of the visible text replaced by others."""
    head, body, rest = body_parts(html)
    out, rng = [], random.Random(seed)
    for piece in re.split(r"(<[^>]*>|&\w+;)", body):
        if piece.startswith(("<", "&")):
            out.append(piece)
            continue
        for c in piece:
            # Drawn for every letter alike, so that a stronger step changes the same letters and more.
            chance, other = rng.random(), rng.choice("abcdefghijklmnopqrstuvwxyz")
            out.append(other if c.isalnum() and chance < share else c)
    return head + "".join(out) + rest


def body_parts(html: str) -> tuple[str, str, str]:
    """`html` split into what comes before the body's content, the content, and the rest."""
    start, end = re.search(r"<body[^>]*>", html), html.rfind("</body>")
    if not start or end < 0:
        return "", html, ""
    return html[: start.end()], html[start.end() : end], html[end:]


SERIES: dict[str, tuple[Corruption, tuple[float, ...]]] = {
    "shift": (shift, (0, 1, 2, 4, 8, 16, 32, 64)),
    "hue": (hue, (0, 10, 20, 40, 60, 90)),
    "fade": (fade, (0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1)),
    "delete": (delete, (0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)),
    "letters": (letters, (0, 0.05, 0.1, 0.2, 0.4, 0.7, 1)),
}
