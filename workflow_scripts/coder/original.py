"""The eight-part reward of the project this coder comes from, for comparison only: `reward: original`.

    total = (.5 format + .5 validity + .5 structural + 3 text_block + 1 position + 1.5 color + 2.5 clip + 1.5 ssim) / 11

The formulas are those of amaljoe/vision-coder-openenv at 611b2aa, holes included: hidden text counts, extra elements
are free, an empty page matches an empty page. Three departures, so that the comparison is about the formulas: both
pages are rendered by our pool at one viewport with scripts and network off; a failed render is worth 0 instead of a
white page's score; and `clip` is that code's own fallback without weights, 1 - mean absolute pixel difference, as no
CLIP weights are shipped here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from html.parser import HTMLParser
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from skimage.color import deltaE_ciede2000, rgb2lab
from skimage.metrics import structural_similarity

from ..browser.page import HermeticPage
from ..browser.pool import BrowserPool
from .blocks import Image, decode_png

WEIGHTS = {
    "format": 0.5,
    "validity": 0.5,
    "structural": 0.5,
    "text_block": 3.0,
    "position": 1.0,
    "color": 1.5,
    "clip": 2.5,
    "ssim": 1.5,
}
_DIAGONAL = float(np.hypot(640, 480))
MAX_BLOCKS = 500
MAX_TAGS = 2000
"""Bounds on what takes quadratic time; real pages stay far below."""

# Every element with text of its own, hidden or not: its rectangle only has to be of some size and not above or left.
_BLOCKS = """limit => {
  const out = [];
  for (const e of Document.prototype.querySelectorAll.call(document, 'body *')) {
    const text = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).filter(Boolean).join(' ');
    if (!text || /^(SCRIPT|STYLE)$/.test(e.tagName)) continue;
    const r = Element.prototype.getBoundingClientRect.call(e);
    if (r.width > 0 && r.height > 0 && r.top >= 0 && r.left >= 0)
      out.push([text.slice(0, 1000), r.left, r.top, r.width, r.height]);
    if (out.length >= limit) break;
  }
  return out;
}"""


@dataclass(frozen=True)
class OriginalPage:
    """What the original reward looks at.

    Attributes:
        source: the document, or the reply it was taken from (`format` looks for a fence).
        image: (H, W, 3) uint8 RGB screenshot of the whole page; `png` the same encoded.
        blocks: [text, x, y, w, h] in CSS pixels of elements that have text of their own.
    """

    source: str
    image: Image
    png: bytes
    blocks: list[tuple[str, float, float, float, float]]


def look(
    pool: BrowserPool, html: str, width: int, height: int, *, reply: str | None = None, **options: Any
) -> OriginalPage:
    """Renders `html` for `original_reward`. Raises ModelFailure and InfrastructureFailure as the pool does."""

    async def work(page: HermeticPage) -> tuple[bytes, Any]:
        tall = min((await page.content_size())[1], 4096)
        return await page.screenshot(fast=True, height=max(tall, height)), await page.evaluate(_BLOCKS, MAX_BLOCKS)

    png, blocks = pool.visit(html, width, height, work, allow_images=False, **options)
    return OriginalPage(reply if reply is not None else html, decode_png(png), png, [tuple(b) for b in blocks])


def original_reward(reference: OriginalPage, candidate: OriginalPage) -> dict[str, float]:
    """The eight parts and their weighted mean ``total``, all in [0, 1]. Pure."""
    parts = {
        "format": _format(candidate.source),
        "validity": _validity(candidate.source),
        "structural": _structural(reference.source, candidate.source),
        "text_block": _text_block(reference, candidate),
        "position": _position(reference, candidate),
        "color": _color(reference.image, candidate.image),
        "clip": _pixels(reference.image, candidate.image),
        "ssim": _ssim(reference.image, candidate.image),
    }
    total = sum(WEIGHTS[name] * value for name, value in parts.items()) / sum(WEIGHTS.values())
    return {**parts, "total": total}


class _Tags(HTMLParser):
    """Tag names in order, class names, and property names of style attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.classes: set[str] = set()
        self.properties: set[str] = set()
        self.feed(html)
        del self.names[MAX_TAGS:]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        for key, value in attrs:
            if key == "class":
                self.classes.update((value or "").split())
            elif key == "style":
                self.properties.update(p.split(":")[0].strip() for p in (value or "").split(";") if ":" in p)


def _format(source: str) -> float:
    fenced = re.search(r"```html\s.*```", source, re.S | re.I) is not None
    document = re.search(r"<!doctype|<html", source, re.I) is not None
    return 0.5 * fenced + 0.5 * document


def _validity(source: str) -> float:
    names = set(_Tags(source).names)
    return 0.5 * len(names & {"html", "head", "body"}) / 3 + 0.5 * min(len(names) / 8, 1)


def _structural(reference: str, candidate: str) -> float:
    a, b = _Tags(reference), _Tags(candidate)
    ratio = SequenceMatcher(None, a.names, b.names, autojunk=False).ratio()
    if a.classes:
        recall = len(a.classes & b.classes) / len(a.classes)
    elif a.properties:
        recall = len(a.properties & b.properties) / len(a.properties)
    else:
        recall = 1.0
    return 0.5 * ratio + 0.5 * recall


def _rects(page: OriginalPage) -> npt.NDArray[np.float64]:
    return np.array([b[1:] for b in page.blocks], float).reshape(-1, 4)


def _text_block(reference: OriginalPage, candidate: OriginalPage) -> float:
    """Half the matched share, half the texts' similarity over matches, by an assignment on 1 - IoU with IoU > 0.1."""
    a, b = _rects(reference), _rects(candidate)
    if not len(a) or not len(b):
        return float(len(a) == len(b))
    low, high = (
        np.maximum(a[:, None, :2], b[None, :, :2]),
        np.minimum((a[:, :2] + a[:, 2:])[:, None], b[:, :2] + b[:, 2:]),
    )
    shared = np.clip(high - low, 0, None).prod(-1)
    iou = shared / (a[:, 2:].prod(1)[:, None] + b[:, 2:].prod(1)[None] - shared)
    pairs = [(i, j) for i, j in zip(*linear_sum_assignment(1 - iou), strict=True) if iou[i, j] > 0.1]
    similar = sum(SequenceMatcher(None, reference.blocks[i][0], candidate.blocks[j][0]).ratio() for i, j in pairs)
    return 0.5 * len(pairs) / len(a) + 0.5 * similar / len(a)


def _position(reference: OriginalPage, candidate: OriginalPage) -> float:
    """Mean of 1 - distance / diagonal over reference blocks, partners assigned by distance whatever their text."""
    a, b = _rects(reference), _rects(candidate)
    if not len(a) or not len(b):
        return float(len(a) == len(b))
    ca, cb = a[:, :2] + a[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2
    distance = np.minimum(np.linalg.norm(ca[:, None] - cb[None], axis=-1) / _DIAGONAL, 1)
    i, j = linear_sum_assignment(distance)
    return float((1 - distance[i, j]).sum() / len(a))


def _resized(image: Image, width: int, height: int) -> Image:
    return np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


def _color(reference: Image, candidate: Image) -> float:
    """1 - mean CIEDE2000 / 50 over the reference's pixels that are not white, at 128 x 128."""
    a, b = _resized(reference, 128, 128), _resized(candidate, 128, 128)
    colored = (a < 240).any(-1)
    where = colored if colored.mean() >= 0.02 else np.ones((128, 128), bool)
    difference = deltaE_ciede2000(rgb2lab(a[where]), rgb2lab(b[where]))
    return float(1 - min(difference.mean() / 50, 1))


def _pixels(reference: Image, candidate: Image) -> float:
    a, b = _resized(reference, 224, 224), _resized(candidate, 224, 224)
    return float(1 - np.abs(a.astype(float) - b).mean() / 255)


def _ssim(reference: Image, candidate: Image) -> float:
    a, b = _resized(reference, 320, 240), _resized(candidate, 320, 240)
    return float(np.clip(structural_similarity(a, b, channel_axis=2), 0, 1))
