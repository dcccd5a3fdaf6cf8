"""Hostile and broken documents, seeded: each must give a reward or the model's failure, and never hang, crash or leak.

    python -m workflow_scripts.coder.fuzz --count 2000

prints how many of each kind ended how, the slowest, and what memory and processes were left. Scripts are not among the
dangers here: they are off. Endless layout, deep trees, broken encodings and huge sizes are.
"""

# ruff: noqa: E501  (markup is read by the line)

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..failures import ModelFailure
from .blocks import Camera
from .pages import LEVELS, procedural_page
from .reward import reward

_TAGS = "div p span b i a table tr td th ul li form input button select option textarea svg rect text math mi frameset frame iframe object details summary dialog marquee plaintext template style title head body html base meta fieldset legend ruby rt video canvas".split()  # noqa: SIM905
_PROPERTIES = "width height margin padding font-size line-height letter-spacing text-indent top left border-width outline-width border-radius column-width gap z-index zoom order".split()  # noqa: SIM905
_VALUES = (
    "1e9px",
    "-1e9px",
    "1e38px",
    "0",
    "NaN",
    "100000%",
    "calc(1px*1e30)",
    "2147483648px",
    "-0.0001em",
    "50vw",
    "999rem",
)


def _page(rng: random.Random) -> str:
    return procedural_page(rng.choice(LEVELS), "train", rng.randrange(1000)).html


def _truncated(rng: random.Random) -> str:
    html = _page(rng)
    return html[: rng.randrange(len(html))]


def _noise(rng: random.Random) -> str:
    html = list(_page(rng))
    for _ in range(rng.randrange(1, 200)):
        html[rng.randrange(len(html))] = rng.choice("<>\"'=/&;{}\x00\ufffd\u202e\ud800")
    return "".join(html)


def _deep(rng: random.Random) -> str:
    tag = rng.choice(
        ("div", "span", "b", "table", "ul><li", "svg", "font", "p", "div style=display:flex", "div style=padding:1px")
    )
    return f"<{tag}>" * rng.choice((500, 2000, 10_000)) + "deep"


def _encoding(rng: random.Random) -> str:
    junk = (
        "\ud83d",
        "\x00",
        "\ufeff",
        "\u202e",
        "\u0300" * 500,
        "\uffff",
        "\x1b[2J",
        "+ADw-script+AD4-",
        "\U0001f600" * 50,
        "\x80\x81",
    )
    body = " ".join(rng.choice((*junk, "word")) for _ in range(rng.randrange(1, 100)))
    return f'<meta charset="{rng.choice(("utf-7", "utf-16", "koi8-r", "", "x"))}">' + body


def _sizes(rng: random.Random) -> str:
    rules = "".join(f"{rng.choice(_TAGS)}{{{rng.choice(_PROPERTIES)}:{rng.choice(_VALUES)}}}" for _ in range(30))
    return _page(rng).replace("</style>", rules + "</style>")


def _css(rng: random.Random) -> str:
    kind = rng.randrange(6)
    if kind == 0:
        css = "".join(f".c{i} div:nth-child({i % 9}n+1) > p:not(.d){{color:#{i % 4096:03x}}}" for i in range(1500))
    elif kind == 1:
        css = (
            ":root{--a0:x x"
            + "".join(f";--a{i}:var(--a{i - 1}) var(--a{i - 1})" for i in range(1, 40))
            + "}p::before{content:var(--a39)}"
        )
    elif kind == 2:
        css = "*{box-shadow:" + ",".join(f"{i}px {i}px 40px #{i % 4096:03x}" for i in range(1500)) + "}"
    elif kind == 3:
        css = f"*{{filter:blur({rng.choice((5, 200, 5000))}px) drop-shadow(0 0 50px red)}}"
    elif kind == 4:
        css = "*:has(*:has(*:has(p))) ~ *{color:red}" * 300
    else:
        css = "@media (min-width:1px){" * 3000 + "p{color:red"
    return _page(rng).replace("</style>", css + "</style>")


def _many(rng: random.Random) -> str:
    kind, count = rng.randrange(6), rng.choice((2000, 8000, 20_000))
    if kind == 0:
        return "<i>x</i>" * (count // 2)
    if kind == 1:
        return "<table>" + "<tr><td>a<td>b" * (count // 4)
    if kind == 2:
        return "word " * count
    if kind == 3:
        return "w" * count
    if kind == 4:
        return "<p " + " ".join(f"a{i}=1" for i in range(count // 2)) + ">x"
    return "<select>" + "<option>o" * (count // 2) + "</select>" + "<input value=v>" * 500


def _layout(rng: random.Random) -> str:
    kind, depth = rng.randrange(5), rng.choice((10, 40, 150))
    if kind == 0:
        return "<div style='display:grid;grid:auto/repeat(auto-fit,minmax(min-content,1fr))'>" * depth + "grid"
    if kind == 1:
        return "<div style='display:flex;flex-wrap:wrap;width:min-content'>" * depth + "flex"
    if kind == 2:
        return "<div style='columns:40;column-gap:0'>" * min(depth, 40) + "columns " * 200
    if kind == 3:
        return "<table><tr><td>" * depth + "nested"
    return (
        f"<div style='transform:scale(1e6) rotate(1deg) perspective(1px);writing-mode:vertical-rl'>{'t ' * 500}</div>"
    )


def _soup(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randrange(5, 400)):
        tag = rng.choice(_TAGS)
        style = f" style='{rng.choice(_PROPERTIES)}:{rng.choice(_VALUES)};position:{rng.choice(('fixed', 'sticky', 'absolute', 'static'))}'"
        name = f" name={rng.choice(('body', 'style', 'documentElement', 'tagName', 'x'))}"
        parts.append(
            f"<{'/' if rng.random() < 0.3 else ''}{tag}{style if rng.random() < 0.4 else ''}{name if rng.random() < 0.2 else ''}>"
        )
        if rng.random() < 0.6:
            parts.append(rng.choice(("text", "&amp", "&#x110000;", "<!--", "-->", "<![CDATA[", "]]>", "<", "日本語")))
    return "".join(parts)


def _special(rng: random.Random) -> str:
    return rng.choice(
        (
            "",
            " ",
            "\x00",
            "<frameset><frame src=x></frameset>",
            "<svg xmlns='http://www.w3.org/2000/svg'><filter id=f><feTurbulence baseFrequency=.5 numOctaves=100 /></filter><rect width=9999 height=9999 filter=url(#f) /></svg>",
            "<svg><g id=a><use href=#b /><use href=#b /></g><g id=b><use href=#a /></g><use href=#a /></svg>",
            "<svg>"
            + "".join(f"<g id=g{i}>" + f"<use href=#g{i + 1} />" * 10 + "</g>" for i in range(9))
            + "<rect id=g9 width=9 height=9 /></svg>",
            "<plaintext>" + "<p>" * 1000,
            "<meta http-equiv=refresh content='0;url=http://example.com/'>x",
            "<meta http-equiv=refresh content=0>loop",
            "<base href='http://example.com/'><a href=x>x</a>",
            "<iframe srcdoc='" + "<iframe srcdoc=&quot;x&quot;>" * 200 + "'></iframe>",
            "<div><template shadowrootmode=closed><p>in the shade</template></div>",
            "<style>@import 'http://example.com/x.css';@font-face{font-family:x;src:url(http://example.com/x)}p{font-family:x}</style><p>x",
            "<body style='height:1e9px'>tall<p style='position:absolute;top:1e8px'>far",
            "<style>body{animation:a 1ms infinite}@keyframes a{50%{transform:scale(9)}}</style><p>restless",
            "<dialog open style='width:1e6px'>dialog</dialog><marquee scrollamount=1e9>run</marquee>",
            "<p style='font-size:100000px'>X",
            "<style>*{display:contents}</style><p>contents",
            "x" * 150_000,
        )
    )


KINDS: dict[str, Callable[[random.Random], str]] = {
    "truncated": _truncated,
    "noise": _noise,
    "deep": _deep,
    "encoding": _encoding,
    "sizes": _sizes,
    "css": _css,
    "many": _many,
    "layout": _layout,
    "soup": _soup,
    "special": _special,
}


def documents(count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """(kind, document), the same `count` for a seed; the kinds take turns."""
    names = list(KINDS)
    for i in range(count):
        kind = names[i % len(names)]
        yield kind, KINDS[kind](random.Random(f"fuzz:{seed}:{i}"))


@dataclass(frozen=True, slots=True)
class Ending:
    """How a document ended: ``scored`` with its reward, or the code of the model's failure; and after how many seconds."""

    kind: str
    outcome: str
    reward: float
    seconds: float


def endings(camera: Camera, count: int, seed: int = 0, threads: int = 2) -> list[Ending]:
    """Scores `count` documents. InfrastructureFailure and every other exception comes out: that is what is looked for."""
    task = procedural_page("medium", "train", 0)
    reference = camera.look(task.html, task.width, task.height)

    def one(item: tuple[str, str]) -> Ending:
        kind, html = item
        started = time.monotonic()
        try:
            total = reward(reference, camera.look(html, task.width, task.height)).total
        except ModelFailure as failure:
            return Ending(kind, failure.code, 0.0, time.monotonic() - started)
        if not 0 <= total <= 1:
            raise AssertionError(f"reward {total} for a {kind} document")
        return Ending(kind, "scored", total, time.monotonic() - started)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, documents(count, seed)))


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    import psutil

    from ..browser.pool import BrowserPool

    parser = argparse.ArgumentParser(
        prog="python -m workflow_scripts.coder.fuzz", description="Score hostile documents."
    )
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    started, me = time.monotonic(), psutil.Process()
    with BrowserPool() as pool:
        camera = Camera(pool, timeout_s=5.0)
        endings(camera, 20, options.seed)
        before = me.memory_info().rss
        found = endings(camera, options.count, options.seed)
        after = me.memory_info().rss
        outcomes = Counter((e.kind, e.outcome) for e in found)
    for (kind, outcome), number in sorted(outcomes.items()):
        print(f"{kind:10} {outcome:16} {number}")
    print(
        "slowest:",
        *(f"{e.kind} {e.seconds:.1f} s {e.outcome}" for e in sorted(found, key=lambda e: -e.seconds)[:5]),
        sep="\n  ",
    )
    print(
        f"{len(found)} documents in {time.monotonic() - started:.0f} s; best reward {max(e.reward for e in found if e.kind not in ('truncated', 'noise', 'sizes')):.3f}"
    )
    print(f"own memory {before >> 20} -> {after >> 20} MiB; processes left {len(me.children(recursive=True))}")


if __name__ == "__main__":
    main()
