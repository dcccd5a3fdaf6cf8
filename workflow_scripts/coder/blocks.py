"""What can be seen on a page: its screenshot, its words and its painted boxes, with colours measured from pixels.

One path for references and candidates: the house's browser pool, scripts off, images blocked, the task's layout
viewport, the whole page in the picture. The page is photographed twice, the second time with its text transparent. A
word counts only if its pixels change between the two (so hidden, transparent, white-on-white, covered and off-screen
text do not), a box only if the picture without text has an edge where the box claims to end.

Words rather than DOM nodes are the units of text, so that ``<p>a <b>b</b></p>`` equals ``<p>a b</p>``.
Left out: text in shadow trees, iframes and generated content, and pictures: they are pixels, not elements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import cv2
import numpy as np
import numpy.typing as npt

from ..browser.fonts import renderer_identity
from ..browser.page import HermeticPage
from ..browser.pool import BrowserPool, shared_pool
from ..failures import InfrastructureFailure

Floats = npt.NDArray[np.float32]
Image = npt.NDArray[np.uint8]

_SCRIPT = Path(__file__).with_name("extract.js").read_text("utf-8")
READER_VERSION = 1
"""To be raised by hand whenever a change here can change a snapshot of an unchanged page."""
MAX_CHARS = 100_000
"""Longest document rendered: far above a real page, below what a raster of coloured shadows needs."""
INK = 16  # a pixel is text if removing the text changes a channel by more than this
EDGE = 3  # a box has an edge where inside and outside differ by more than this in a channel


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what is read of one page; whatever lies beyond counts as pixels only.

    Attributes:
        height: pixels of page height in the picture (the full height is reported beside it).
        words, boxes, elements: how many of each, in document order.
    """

    height: int = 4096
    words: int = 1500
    boxes: int = 400
    elements: int = 6000

    def record(self) -> dict[str, int]:
        return {"height": self.height, "words": self.words, "boxes": self.boxes, "elements": self.elements}


class RawPage(TypedDict):
    """What the page's reader returns; rectangles are [x, y, w, h] in CSS pixels of the document."""

    words: list[tuple[str, float, float, float, float, int]]
    boxes: list[tuple[float, float, float, float, float]]
    pageHeight: float
    pictureHeight: float


@dataclass(frozen=True)
class Snapshot:
    """The visible content of one page.

    Attributes:
        image: (H, W, 3) uint8 RGB, the whole page at the viewport's width, H <= `Limits.height`.
        png: the same as PNG bytes, as the browser encoded it.
        text: lower-cased visible words, n of them.
        rects: (n, 4) float32, x y w h of each word in pixels.
        ink, ground: (n, 3) float32 RGB in 0..255, colour of each word's letters and of what lies behind them.
        shown: (n,) float32 in 0..1, share of the word's columns that hold ink (1 = not clipped).
        boxes: (m, 4) float32, x y w h of the painted boxes.
        fill, edge: (m, 3) float32 RGB in 0..255, colour inside a box and at its rim.
        page_height: CSS pixels of the whole document, which may exceed H.
        hidden: number of words in the DOM that cannot be seen.
    """

    image: Image
    png: bytes = field(repr=False)
    text: list[str]
    rects: Floats
    ink: Floats
    ground: Floats
    shown: Floats
    boxes: Floats
    fill: Floats
    edge: Floats
    page_height: int
    hidden: int

    @property
    def width(self) -> int:
        return int(self.image.shape[1])

    @property
    def height(self) -> int:
        return int(self.image.shape[0])

    @cached_property
    def memo(self) -> dict[int, Any]:
        """Features of the picture's top n rows, by n (the reference of a task is compared many times)."""
        return {}


class Camera:
    """Takes snapshots of untrusted pages in a browser pool, from any thread.

    Args:
        pool: the house's pool by default.
        limits: what of a page is read.
        max_chars: longest document taken.
        timeout_s: seconds a page may take.
    """

    def __init__(
        self,
        pool: BrowserPool | None = None,
        limits: Limits = Limits(),
        max_chars: int = MAX_CHARS,
        timeout_s: float = 10.0,
    ) -> None:
        self._pool, self.limits, self.max_chars, self.timeout_s = pool, limits, max_chars, timeout_s

    @property
    def pool(self) -> BrowserPool:
        """The pool that renders; started on first use."""
        return self._pool or shared_pool()

    def look(self, html: str, width: int, height: int) -> Snapshot:
        """What can be seen of `html`, laid out in a viewport of `width` x `height` CSS pixels, scripts and images off.

        Raises:
            ModelFailure: the page cannot be rendered in time, memory or length, or navigates away (codes of the pool).
            InfrastructureFailure: the browser is at fault.
        """

        async def work(page: HermeticPage) -> tuple[RawPage, bytes, bytes]:
            return await photograph(page, self.limits)

        shots = self.pool.visit(
            html, width, height, work, allow_images=False, timeout_s=self.timeout_s, max_chars=self.max_chars
        )
        return snapshot(*shots)

    def record(self) -> dict[str, Any]:
        """What of the camera changes a snapshot; part of identities."""
        return {
            **renderer_identity(),
            "limits": self.limits.record(),
            "max_chars": self.max_chars,
            "reader": READER_VERSION,
        }


async def photograph(page: HermeticPage, limits: Limits) -> tuple[RawPage, bytes, bytes]:
    """The words and boxes that the DOM claims, the page's picture, and the picture without the text (PNG bytes).

    Awaited in the pool's loop. Raises ModelFailure('render_script') for a document that cannot be read.
    """
    raw: RawPage = await page.evaluate(
        f"limits => {{ globalThis.reader = {_SCRIPT}; return globalThis.reader.read(limits); }}", limits.record()
    )
    height = max(page.height, round(raw["pictureHeight"]))
    picture = await page.screenshot(fast=True, height=height)
    await page.evaluate("() => globalThis.reader.hide()")
    return raw, picture, await page.screenshot(fast=True, height=height)


def snapshot(raw: RawPage, png: bytes, png_without_text: bytes) -> Snapshot:
    """Keeps of `raw` what the two pictures bear out, and measures its colours. Pure."""
    image, bare = decode_png(png), decode_png(png_without_text)
    difference = np.asarray(cv2.absdiff(image, bare), np.uint8)
    # Twenty times as fast as max(axis=2).
    change = np.maximum(np.maximum(difference[..., 0], difference[..., 1]), difference[..., 2])
    words = raw["words"]
    rects = np.array([w[1:5] for w in words], np.float32).reshape(-1, 4)
    hit = np.array([w[5] for w in words], bool)
    shown, ink = _ink(rects, image, change)
    # Where two words lie on one another, the one under a cover is not seen; if both are on top, neither can be read.
    seen = shown >= 0.25
    crossed = _crossed(rects, seen)
    seen &= hit | (crossed < 0.4)
    crossed = _crossed(rects, seen)
    text = [w[0].lower() if c < 0.4 else "" for w, c, keep in zip(words, crossed, seen, strict=True) if keep]
    boxes = np.array(raw["boxes"], np.float32).reshape(-1, 5)
    kept, fill, edge = _visible_boxes(boxes, bare)
    return Snapshot(
        image=image,
        png=png,
        text=text,
        rects=rects[seen],
        ink=ink[seen],
        ground=_ground(rects[seen], bare),
        shown=np.minimum(shown[seen] / 0.7, 1).astype(np.float32),
        boxes=kept,
        fill=fill,
        edge=edge,
        page_height=round(raw["pageHeight"]),
        hidden=int((~seen).sum()),
    )


def decode_png(png: bytes) -> Image:
    """(H, W, 3) uint8 RGB of a PNG. InfrastructureFailure('browser_broken') for other bytes."""
    image = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise InfrastructureFailure("browser_broken", "the browser's screenshot cannot be decoded")
    return np.ascontiguousarray(image[:, :, ::-1], np.uint8)


def _spans(rects: Floats, height: int, width: int) -> npt.NDArray[np.int32]:
    """(n, 4) x0 y0 x1 y1 of each rectangle's pixels, clipped to the picture."""
    low = np.floor(rects[:, :2])
    high = np.ceil(rects[:, :2] + rects[:, 2:])
    spans: npt.NDArray[np.int32] = np.clip(np.concatenate([low, high], 1), 0, [width, height, width, height]).astype(
        np.int32
    )
    return spans


def _ink(rects: Floats, image: Image, change: Image) -> tuple[Floats, Floats]:
    """Share of each word's columns that hold text pixels, and the mean colour of its strongest ones."""
    shown, ink = np.zeros(len(rects), np.float32), np.zeros((len(rects), 3), np.float32)
    for i, (x0, y0, x1, y1) in enumerate(_spans(rects, *change.shape)):
        part = change[y0:y1, x0:x1]
        if part.size == 0:
            continue
        columns = part.max(axis=0)
        strongest = int(columns.max())
        if strongest <= INK:
            continue
        # Columns outside the picture hold no ink, and count.
        shown[i] = np.count_nonzero(columns > INK) / max(rects[i, 2], 1)
        ink[i] = image[y0:y1, x0:x1][part >= 0.75 * strongest].mean(axis=0)
    return np.minimum(shown, 1), ink


def _crossed(rects: Floats, seen: npt.NDArray[np.bool_]) -> Floats:
    """Share of each word's middle band that other seen words cover (line boxes may touch: only the middle counts)."""
    crossed = np.zeros(len(rects), np.float32)
    if not seen.any():
        return crossed
    middle = rects + rects[:, [3, 3, 3, 3]] * np.array([0, 0.25, 0, -0.5], np.float32)
    height, width = (
        int(np.ceil((rects[:, 1] + rects[:, 3]).max())) + 1,
        int(np.ceil((rects[:, 0] + rects[:, 2]).max())) + 1,
    )
    spans = _spans(middle, min(height, 8192), min(width, 8192))
    count = np.zeros((min(height, 8192), min(width, 8192)), np.uint16)
    for i in np.flatnonzero(seen):
        x0, y0, x1, y1 = spans[i]
        count[y0:y1, x0 + 1 : x1 - 1] += 1
    for i in np.flatnonzero(seen):
        x0, y0, x1, y1 = spans[i]
        part = count[y0:y1, x0 + 1 : x1 - 1]
        crossed[i] = np.count_nonzero(part > 1) / part.size if part.size else 0
    return crossed


def _ground(rects: Floats, bare: Image) -> Floats:
    """Median colour under each word, from five points of the picture without text."""
    at = np.array([[0.5, 0.5], [0.1, 0.25], [0.9, 0.25], [0.1, 0.75], [0.9, 0.75]], np.float32)
    points = rects[:, None, :2] + rects[:, None, 2:] * at
    return np.median(_sample(bare, points), axis=1).astype(np.float32)


def _sample(image: Image, points: Floats) -> Floats:
    """Colours (…, 3) at points (…, 2) given as x, y; points outside take the nearest pixel."""
    height, width = image.shape[:2]
    x = np.clip(np.floor(points[..., 0]), 0, width - 1).astype(np.int32)
    y = np.clip(np.floor(points[..., 1]), 0, height - 1).astype(np.int32)
    return image[y, x].astype(np.float32)


_ALONG = np.linspace(0.15, 0.85, 9, dtype=np.float32)


def _ring(boxes: Floats, inset: Floats) -> Floats:
    """Points (m, 4 sides, 9, 2) on the four sides, `inset` (m,) pixels inside the outline (negative: outside)."""
    x, y, w, h = boxes[:, 0, None], boxes[:, 1, None], boxes[:, 2, None], boxes[:, 3, None]
    d = np.minimum(inset[:, None], np.minimum(w, h) / 2)
    across, down = x + w * _ALONG, y + h * _ALONG
    ones = np.ones_like(_ALONG)
    top, bottom = (y + d) * ones, (y + h - d) * ones
    left, right = (x + d) * ones, (x + w - d) * ones
    sides = [(across, top), (right, down), (across, bottom), (left, down)]
    return np.stack([np.stack(s, -1) for s in sides], 1).astype(np.float32)


def _visible_boxes(boxes: Floats, bare: Image) -> tuple[Floats, Floats, Floats]:
    """The boxes whose outline shows in the picture without text: rectangles (m, 4), fill (m, 3), rim (m, 3)."""
    nothing = np.zeros((0, 4), np.float32), np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)
    if len(boxes) == 0:
        return nothing
    height, width = bare.shape[:2]
    # The browser paints boxes on whole pixels.
    low = np.maximum(np.round(boxes[:, :2]), 0)
    high = np.minimum(np.round(boxes[:, :2] + boxes[:, 2:4]), np.array([width, height], np.float32))
    rects = np.concatenate([low, high - low], 1)
    border = boxes[:, 4]
    ok = (rects[:, 2] >= 1) & (rects[:, 3] >= 1) & ((rects[:, 2] >= 6) | (rects[:, 3] >= 6))
    rects, border = rects[ok], border[ok]
    if len(rects) == 0:
        return nothing
    zero = np.zeros(len(rects), np.float32)
    outer = _sample(bare, _ring(rects, zero - 0.5))
    rim = _sample(bare, _ring(rects, zero + 0.5))
    inner = _sample(bare, _ring(rects, border + 1.5))
    contrast = np.abs(rim - outer).max(-1) > EDGE
    # A side on the picture's own edge has no outside; it neither proves nor disproves the box.
    at_edge = np.stack(
        [
            rects[:, 1] < 1,
            rects[:, 0] + rects[:, 2] > width - 1,
            rects[:, 1] + rects[:, 3] > height - 1,
            rects[:, 0] < 1,
        ],
        1,
    )
    free = ~at_edge
    shown = contrast.mean(-1) >= 0.5
    visible = (shown & free).sum(1) * 2 > free.sum(1)
    rects, rim, inner = rects[visible], rim[visible], inner[visible]
    fill = np.median(inner.reshape(len(rects), -1, 3), axis=1) if len(rects) else np.zeros((0, 3))
    edge = np.median(rim.reshape(len(rects), -1, 3), axis=1) if len(rects) else np.zeros((0, 3))
    single = _distinct(rects)
    return rects[single], fill[single].astype(np.float32), edge[single].astype(np.float32)


def _distinct(rects: Floats) -> npt.NDArray[np.int64]:
    """Indices of the rectangles that repeat no earlier one to within 2 pixels (wrappers around one painted box)."""
    kept: dict[tuple[int, ...], int] = {}
    for i, corners in enumerate(np.concatenate([rects[:, :2], rects[:, :2] + rects[:, 2:]], 1)):
        kept.setdefault(tuple(np.round(corners / 2).astype(int)), i)
    return np.array(sorted(kept.values()), np.int64)
