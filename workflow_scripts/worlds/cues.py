"""The visual cue: where an action lands, drawn on the screenshot that a world model is shown (GUI-CC's convention).

Tap and long press: a circle of 40 px radius, translucent red, with a 5 px outline. Scroll: an arrow along the finger's
path, 15 px wide with a 50 px head. Other actions have no cue. The sizes are pixels of the frame at every resolution, so
the cue is drawn before any scaling.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..actions import Action

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

RADIUS = 40
OUTLINE = 5
ARROW_WIDTH = 15
ARROW_HEAD = 50
FILL = (255, 0, 0, 96)
LINE = (255, 0, 0, 255)


def has_cue(action: Action) -> bool:
    """Whether the action has a place on the screen that is marked."""
    return action.type in ("tap", "long_press", "scroll")


def draw_cue(image: Image, action: Action) -> Image:
    """A copy of `image` (RGB, the frame's own size) with the action's cue; an equal copy where it has none."""
    from PIL import Image as images
    from PIL import ImageDraw

    if not has_cue(action):
        return image.convert("RGB")
    layer = images.new("RGBA", image.size, (0, 0, 0, 0))
    draw = ImageDraw.Draw(layer)
    if action.type == "scroll":
        _arrow(draw, *_pixels(action, *image.size))
    else:
        x, y = float(action.x or 0), float(action.y or 0)
        draw.ellipse((x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS), fill=FILL, outline=LINE, width=OUTLINE)
    return images.alpha_composite(image.convert("RGBA"), layer).convert("RGB")


def _pixels(action: Action, width: int, height: int) -> tuple[tuple[float, float], tuple[float, float]]:
    (x0, y0), (x1, y1) = action.scroll_path(width, height)
    return (x0 * width / 1000, y0 * height / 1000), (x1 * width / 1000, y1 * height / 1000)


def _arrow(draw: ImageDraw, start: tuple[float, float], end: tuple[float, float]) -> None:
    """A shaft from `start` to the head's base, and a triangle whose tip is `end`."""
    length = math.hypot(end[0] - start[0], end[1] - start[1])
    if length == 0:
        return
    along = ((end[0] - start[0]) / length, (end[1] - start[1]) / length)
    across = (-along[1], along[0])
    head = min(ARROW_HEAD, length)
    base = (end[0] - head * along[0], end[1] - head * along[1])
    if length > head:
        draw.line((start, base), fill=LINE, width=ARROW_WIDTH)
    wing = ARROW_HEAD / 2
    corners = [(base[0] + side * wing * across[0], base[1] + side * wing * across[1]) for side in (-1, 1)]
    draw.polygon([end, *corners], fill=LINE)
