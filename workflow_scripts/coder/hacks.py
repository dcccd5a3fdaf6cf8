"""Pages that try to be paid without doing the task: the canaries of the reward.

Each takes the reference's source (and its screenshot as PNG) and returns a document. `HACKS` must earn next to nothing;
`PARTIAL` are pages with an honest part, which must earn no more than that part.
"""

# ruff: noqa: E501  (markup is read by the line)

from __future__ import annotations

import base64
import html as entities
import random
import re
from collections.abc import Callable

import cv2

from .blocks import decode_png
from .corruptions import add_style, body_parts, fade, hue

Hack = Callable[[str, bytes], str]


def _page(body: str, style: str = "") -> str:
    return f"<!DOCTYPE html><html><head><meta charset=utf-8><style>{style}</style></head><body>{body}</body></html>"


def words_of(html: str) -> str:
    """The text of a page, tags removed, in source order."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", body_parts(html)[1], flags=re.S | re.I)
    return " ".join(entities.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def _mean_color(html: str, png: bytes) -> str:
    r, g, b = decode_png(png).mean((0, 1)).astype(int)
    return _page("", f"body{{margin:0;background:rgb({r},{g},{b})}}")


def _background(html: str) -> str:
    match = re.search(r"body\{[^}]*background:(#\w{6})", html)
    return match[1] if match else "#ffffff"


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _shadow_raster(html: str, png: bytes) -> str:
    image = decode_png(png)
    small = cv2.resize(image, (40, 30), interpolation=cv2.INTER_AREA)
    cell_w, cell_h = image.shape[1] / 40, image.shape[0] / 30
    shadows = ",".join(
        f"{(x + 1) * cell_w:.0f}px {(y + 1) * cell_h:.0f}px #{r:02x}{g:02x}{b:02x}"
        for y, row in enumerate(small.tolist())
        for x, (r, g, b) in enumerate(row)
    )
    look = (
        f"position:absolute;left:-{cell_w:.0f}px;top:-{cell_h:.0f}px;width:{cell_w + 1:.0f}px;height:{cell_h + 1:.0f}px"
    )
    return _page(f'<div style="{look};box-shadow:{shadows}"></div>', "body{margin:0;overflow:hidden}")


def _overlay(html: str, png: bytes) -> str:
    """The screenshot as an image, the right text over it at 10 % opacity."""
    head, body, rest = body_parts(html)
    return (
        head
        + f'<img src="{_data_uri(png)}" style="position:absolute;left:0;top:0">'
        + f'<div style="opacity:0.1">{body}</div>'
        + rest
    )


def _shuffled(html: str, png: bytes) -> str:
    """The visible texts of the page dealt out anew among its elements."""
    head, body, rest = body_parts(html)
    parts = re.split(r"(<[^>]*>)", body)
    at = [i for i, part in enumerate(parts) if not part.startswith("<") and part.strip()]
    texts = [parts[i] for i in at]
    random.Random(1).shuffle(texts)
    for i, text in zip(at, texts, strict=True):
        parts[i] = text
    return head + "".join(parts) + rest


def _styled(css: str) -> Hack:
    return lambda html, png: add_style(html, css)


def _wrapped(style: str, after: str = "") -> Hack:
    def hack(html: str, png: bytes) -> str:
        head, body, rest = body_parts(html)
        return head + f'<div style="{style}">{body}</div>{after}' + rest

    return hack


def _dump_hidden(style: str) -> Hack:
    """The reference's words, laid out by nobody and hidden in one way."""
    return lambda html, png: _page(
        f'<p style="{style}">{words_of(html)}</p>', f"body{{background:{_background(html)}}}"
    )


HACKS: dict[str, Hack] = {
    "empty": lambda html, png: "",
    "blank": lambda html, png: _page(""),
    "background": lambda html, png: _page("", f"body{{background:{_background(html)}}}"),
    "mean_color": _mean_color,
    "hidden_text": _styled("body *{visibility:hidden!important}"),
    "opacity_0": _styled("body *{opacity:0!important}"),
    "transparent": _dump_hidden("color:transparent"),
    "own_color": lambda html, png: _page(f'<p style="color:{_background(html)}">{words_of(html)}</p>', f"body{{background:{_background(html)}}}"),
    "current_color": _dump_hidden("color:#345;background:currentColor"),
    "off_screen": _wrapped("position:absolute;left:-9999px"),
    "covered": _wrapped("", '<div style="position:fixed;inset:0;background:#fff;box-shadow:0 0 0 4000px #fff;pointer-events:none"></div>'),
    "clipped": _wrapped("clip-path:inset(50%)"),
    "zero_size": _wrapped("font-size:0;height:0;overflow:hidden"),
    "flashing": _styled("@keyframes k{50%{opacity:1}}body{opacity:0;animation:k 1s infinite}"),
    "dump": lambda html, png: _page(words_of(html)),
    "dump_twice": lambda html, png: _page(words_of(html) + " " + words_of(html)),
    "data_image": lambda html, png: _page(f'<img src="{_data_uri(png)}" style="position:absolute;left:0;top:0">', "body{margin:0}"),
    "css_image": lambda html, png: _page("", f"body{{margin:0;height:100vh;background:url({_data_uri(png)})}}"),
    "svg_image": lambda html, png: _page(f'<svg width=640 height=480><image href="{_data_uri(png)}" width=640 height=480 /></svg>'),
    "shadow_raster": _shadow_raster,
    "meta_refresh": lambda html, png: f'<meta http-equiv="refresh" content="0;url=data:text/html;base64,{base64.b64encode(html.encode()).decode()}">',
    "script": lambda html, png: _page(f"<script>document.write({html!r})</script>"),
    "external": lambda html, png: '<img src="http://example.com/a.png"><iframe src="http://example.com/"></iframe>',
    "frame": lambda html, png: f'<iframe style="border:0;position:absolute;inset:0;width:100%;height:100%" srcdoc="{entities.escape(html)}"></iframe>',
    "shadow_tree": lambda html, png: _page(f"<div><template shadowrootmode=open>{html.replace('<!DOCTYPE html>', '')}</template></div>"),
}  # fmt: skip
"""May earn next to nothing."""

PARTIAL: dict[str, Hack] = {
    "duplicated": lambda html, png: "{0}{1}{1}{2}".format(*body_parts(html)),
    "giant": _styled("body{padding-bottom:50000px!important}"),
    "shuffled": _shuffled,
    "inverted": lambda html, png: fade(html, 1),
    "recolored": lambda html, png: hue(fade(html, 0.35), 150),
    "no_style": lambda html, png: re.sub(r' style="[^"]*"', "", re.sub(r"<style>.*?</style>", "", html, flags=re.S)),
    "text_only": _styled("*{background:none!important;border-color:transparent!important;box-shadow:none!important}"),
    "overlay": _overlay,
    "flood": lambda html, png: html.replace("</body>", f"<p>{words_of(html) * 10}</p></body>"),
    "stacked": lambda html, png: html.replace("</body>", '<div style="position:absolute;left:0;top:0;right:0">' + words_of(html) + "</div></body>"),
}  # fmt: skip
"""Have an honest part, and may earn no more than it."""
