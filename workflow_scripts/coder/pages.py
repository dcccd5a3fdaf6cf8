"""Procedural pages for the screenshot -> HTML task: seeded, realistic, in three levels.

A page is a pure function of (level, split, index). The splits cannot share a page: train pages have even seeds and
held-out pages odd ones, and every page shows a brand name from a list that belongs to its split alone.
Left out: pictures (references and candidates are rendered without images), scripts, hover states, languages other than
English. Fonts are named from the families bundled with the renderer, so a page looks the same on every machine.
"""

# ruff: noqa: E501, SIM905  (markup is read by the line, word lists by the word)

from __future__ import annotations

import colorsys
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape

LEVELS = ("easy", "medium", "hard")
SPLITS = ("train", "heldout")
DESKTOP = (640, 480)
PHONE = (360, 640)

_BRANDS = {
    "train": "Northwind Lumen Fabrica Oakline Brightly Cobalt Tidewater Marlow Quanta Harbor Pinecone Velora Atlas Rivet "
    "Sundial Mosaic Kestrel Fernway Ironwood Bluebird".split(),
    "heldout": "Zephyr Copperleaf Nimbus Wavelet Juniper Parallax Saffron Driftwood Monolith Peregrine Larkspur Onyx "
    "Meridian Foxglove Graphite Solstice Canopy Tamarind Whistler Emberly".split(),
}
_NOUNS = (
    "report project invoice team budget order release account schedule design review plan session payment market garden "
    "kitchen journey recipe library camera notebook delivery workshop season forecast message ticket archive dataset "
    "course lesson harbour station museum festival climate engine network sensor battery signal folder customer visit "
    "contract shipment warehouse profile summary draft proposal survey backup alert device window"
).split()
_ADJECTIVES = (
    "quick weekly quiet modern shared global simple annual hidden steady bright careful local open secure flexible "
    "seasonal honest compact central reliable recent detailed public early final lasting smart fresh gentle"
).split()
_VERBS = (
    "build share review explore compare track plan send collect update manage discover deliver measure improve publish "
    "organise protect connect record schedule restore invite approve"
).split()
_FIRST = "Ada Bruno Clara Dmitri Elena Farid Grace Hana Ivan Julia Kofi Lena Mateo Nora Omar Priya Quinn Rosa Sven Tara".split()
_LAST = "Abbott Bianchi Castro Dahl Eriksen Fischer Greco Holm Ito Jansen Khan Lopez Meyer Novak Okafor Petrov Reyes Silva".split()
_NAV = "Home Products Pricing About Blog Docs Contact Support Careers Features Team Shop News Events".split()
_ICONS = "◆ ● ■ ▲ ★ ✓ ♦ ○ □ △".split()
_FONTS = (
    '"Liberation Sans", Arial, sans-serif',
    '"DejaVu Sans", sans-serif',
    "Arial, sans-serif",
    "Georgia, serif",
    '"Liberation Serif", serif',
)


@dataclass(frozen=True, slots=True)
class PageTask:
    """One screenshot -> HTML task.

    Attributes:
        id: unique name, e.g. ``procedural/medium/heldout/12``; `procedural_task` takes it back.
        level: easy, medium or hard.
        split: train or heldout.
        seed: what the page was made from (0 for pages from disk).
        html: the reference document; never shown to a policy.
        width, height: viewport in CSS pixels; the screenshot is the whole page at that width.
    """

    id: str
    level: str
    split: str
    seed: int
    html: str = field(repr=False)
    width: int = DESKTOP[0]
    height: int = DESKTOP[1]


@dataclass(frozen=True, slots=True)
class _Theme:
    """Colours (#rrggbb), font and measures (px) of one page."""

    page: str
    surface: str
    soft: str
    line: str
    ink: str
    muted: str
    accent: str
    on_accent: str
    second: str
    bar: str
    on_bar: str
    font: str
    size: int
    gap: int
    radius: int
    shadow: str


def procedural_page(level: str, split: str, index: int) -> PageTask:
    """Page number `index` >= 0 of a level and split. ValueError for anything else."""
    if level not in LEVELS or split not in SPLITS or index < 0:
        raise ValueError(f"no page {level!r}/{split!r}/{index}: levels {LEVELS}, splits {SPLITS}, index >= 0")
    seed = 2 * index + SPLITS.index(split)
    rng = random.Random(f"page:{level}:{seed}")
    make, (width, height) = rng.choice(_PAGES[level])
    page = _Page(rng, split, width)
    body = make(page)
    return PageTask(f"procedural/{level}/{split}/{index}", level, split, seed, page.document(body), width, height)


def procedural_task(task_id: str) -> PageTask:
    """The page that `PageTask.id` names. ValueError if it names none."""
    match = re.fullmatch(r"procedural/(\w+)/(\w+)/(\d+)", task_id)
    if not match:
        raise ValueError(f"{task_id!r} is no procedural task; write procedural/<level>/<split>/<index>")
    return procedural_page(match[1], match[2], int(match[3]))


def procedural_set(level: str, split: str, count: int, start: int = 0) -> Iterator[PageTask]:
    """Pages `start` … `start + count - 1` of a level and split."""
    return (procedural_page(level, split, i) for i in range(start, start + count))


def _hex(hue: float, lightness: float, saturation: float) -> str:
    r, g, b = (round(255 * c) for c in colorsys.hls_to_rgb(hue % 1, lightness, saturation))
    return f"#{r:02x}{g:02x}{b:02x}"


def _theme(rng: random.Random) -> _Theme:
    hue, dark, sat = rng.random(), rng.random() < 0.25, rng.uniform(0.05, 0.3)
    other = hue + rng.choice((0.08, 0.33, 0.5, -0.15))
    accent = _hex(hue, rng.uniform(0.34, 0.5), rng.uniform(0.5, 0.9))
    coloured_bar = rng.random() < 0.4
    if dark:
        page, surface, soft, line = (_hex(hue, v, sat) for v in (0.09, 0.15, 0.21, 0.28))
        ink, muted = _hex(hue, 0.93, 0.1), _hex(hue, 0.66, 0.12)
    else:
        page, surface, soft, line = (
            _hex(hue, rng.uniform(0.93, 0.98), sat),
            "#ffffff",
            _hex(hue, 0.92, 0.35),
            _hex(hue, 0.84, sat),
        )
        ink, muted = _hex(hue, rng.uniform(0.1, 0.2), sat), _hex(hue, rng.uniform(0.4, 0.5), 0.12)
    return _Theme(
        page, surface, soft, line, ink, muted, accent, "#ffffff", _hex(other, 0.42, 0.6),
        bar=accent if coloured_bar else surface,
        on_bar="#ffffff" if coloured_bar else ink,
        font=rng.choice(_FONTS),
        size=rng.choice((13, 14, 14, 15)),
        gap=rng.choice((8, 10, 12, 14)),
        radius=rng.choice((0, 3, 6, 8, 12)),
        shadow=rng.choice(("none", "none", "0 1px 4px rgba(0,0,0,0.18)", "0 3px 10px rgba(0,0,0,0.12)")),
    )  # fmt: skip


class _Page:
    """Builds one page: a theme, a vocabulary and the components. Every method returns HTML."""

    def __init__(self, rng: random.Random, split: str, width: int) -> None:
        self.rng, self.t, self.width = rng, _theme(rng), width
        self.brand = rng.choice(_BRANDS[split])

    # -- words ----------------------------------------------------------------------------------------------------
    def noun(self) -> str:
        return self.rng.choice(_NOUNS)

    def title(self) -> str:
        return f"{self.rng.choice(_ADJECTIVES)} {self.noun()}".capitalize()

    def label(self) -> str:
        return f"{self.rng.choice(_VERBS)} {self.noun()}".capitalize()

    def verb(self) -> str:
        return self.rng.choice(_VERBS).capitalize()

    def name(self) -> str:
        return f"{self.rng.choice(_FIRST)} {self.rng.choice(_LAST)}"

    def money(self) -> str:
        return f"${self.rng.randint(3, 990)}.{self.rng.choice(('00', '50', '99', '25'))}"

    def number(self) -> str:
        return self.rng.choice(
            (f"{self.rng.randint(2, 99)}%", f"{self.rng.randint(1000, 99999):,}", f"{self.rng.uniform(1, 60):.1f}k")
        )

    def date(self) -> str:
        return f"{self.rng.randint(1, 28)} {self.rng.choice('Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec'.split())}"

    def sentence(self) -> str:
        r = self.rng
        kind = r.randrange(3)
        if kind == 0:
            text = f"{r.choice(_VERBS)} your {self.noun()} with a {r.choice(_ADJECTIVES)} {self.noun()}"
        elif kind == 1:
            text = f"the {r.choice(_ADJECTIVES)} {self.noun()} helps every {self.noun()} {r.choice(_VERBS)} a {self.noun()}"
        else:
            text = f"{r.choice(_VERBS)}, {r.choice(_VERBS)} and {r.choice(_VERBS)} each {r.choice(_ADJECTIVES)} {self.noun()}"
        return text.capitalize() + "."

    def paragraph(self, low: int = 1, high: int = 3) -> str:
        return " ".join(self.sentence() for _ in range(self.rng.randint(low, high)))

    def some(self, make: Callable[[], str], low: int, high: int) -> list[str]:
        return [make() for _ in range(self.rng.randint(low, high))]

    # -- document -------------------------------------------------------------------------------------------------
    def document(self, body: str) -> str:
        t, g = self.t, self.t.gap
        rules = {
            "*": "box-sizing:border-box",
            "body": f"margin:0;background:{t.page};color:{t.ink};font:{t.size}px/1.45 {t.font}",
            "h1,h2,h3,p,ul": "margin:0;padding:0",
            "h1": f"font-size:{t.size + self.rng.choice((8, 12, 16))}px;line-height:1.2;margin-bottom:{g}px",
            "h2": f"font-size:{t.size + 4}px;margin-bottom:{g // 2}px",
            "h3": f"font-size:{t.size + 1}px;margin-bottom:{g // 3}px",
            "a": f"color:{t.accent};text-decoration:none",
            ".row": f"display:flex;gap:{g}px;align-items:center",
            ".between": "justify-content:space-between",
            ".wrap": f"max-width:{self.rng.choice((560, 600, 640))}px;margin:0 auto;padding:{g * 2}px {g + 4}px",
            ".card": f"background:{t.surface};border:1px solid {t.line};border-radius:{t.radius}px;padding:{g + 4}px;box-shadow:{t.shadow}",
            ".muted": f"color:{t.muted};font-size:{t.size - 1}px",
            ".btn": f"display:inline-block;background:{t.accent};color:{t.on_accent};border-radius:{t.radius}px;padding:{g // 2 + 2}px {g + 6}px;font-weight:bold",
            ".ghost": f"background:{t.surface};color:{t.accent};border:1px solid {t.accent}",
            ".grid": f"display:grid;gap:{g}px",
            ".bar": f"display:flex;justify-content:space-between;align-items:center;background:{t.bar};color:{t.on_bar};padding:{g}px {g + 6}px;border-bottom:1px solid {t.line}",
            ".bar a": f"color:{t.on_bar};margin-left:{g + 4}px",
            ".brand": f"font-weight:bold;font-size:{t.size + 3}px",
            ".tag": f"display:inline-block;background:{t.soft};color:{t.accent};border-radius:{t.radius + 4}px;padding:1px 8px;font-size:{t.size - 2}px",
            ".icon": f"width:30px;height:30px;border-radius:{t.radius}px;background:{t.second};color:#ffffff;text-align:center;line-height:30px",
            ".pic": f"height:{self.rng.choice((56, 70, 84))}px;border-radius:{t.radius}px;background:{t.soft};margin-bottom:{g // 2}px",
            ".avatar": f"width:32px;height:32px;flex:none;border-radius:50%;background:{t.second};color:#ffffff;text-align:center;line-height:32px;font-size:{t.size - 2}px",
            "label": f"display:block;font-size:{t.size - 1}px;margin:{g // 2}px 0 3px",
            "input,textarea,select": f"display:block;width:100%;font:inherit;color:{t.ink};background:{t.page};border:1px solid {t.line};border-radius:{t.radius // 2}px;padding:{g // 2}px {g // 2 + 2}px",
            "table": "width:100%;border-collapse:collapse",
            "th": f"text-align:left;background:{t.soft};font-size:{t.size - 1}px;padding:{g // 2}px {g // 2 + 4}px",
            "td": f"border-top:1px solid {t.line};padding:{g // 2}px {g // 2 + 4}px",
            "li": "list-style:none",
            ".item": f"display:flex;align-items:center;gap:{g}px;padding:{g // 2 + 3}px 0;border-bottom:1px solid {t.line}",
            ".grow": "flex:1;min-width:0",
            ".toggle": f"width:36px;height:20px;border-radius:10px;background:{t.accent};flex:none;padding:2px",
            ".toggle i": "display:block;width:16px;height:16px;border-radius:50%;background:#ffffff;margin-left:16px",
            ".off": f"background:{t.muted}",
            ".off i": "margin-left:0",
            ".big": f"font-size:{t.size + 8}px;font-weight:bold",
            ".side": f"background:{t.surface};border-right:1px solid {t.line};padding:{g + 4}px {g}px;flex:none;width:{self.rng.choice((124, 140, 152))}px",
            ".side a": f"display:block;color:{t.ink};padding:{g // 2 + 1}px {g // 2 + 2}px;border-radius:{t.radius // 2}px",
            ".side .on": f"background:{t.accent};color:#ffffff",
            ".track": f"height:8px;border-radius:4px;background:{t.soft}",
            ".track i": f"display:block;height:8px;border-radius:4px;background:{t.second}",
        }
        used = (
            set(re.findall(r"<(\w+)", body))
            | set(" ".join(re.findall(r'class="([^"]*)"', body)).split())
            | {"*", "body"}
        )
        css = "\n".join(
            f"{selector}{{{rule}}}"
            for selector, rule in rules.items()
            if any(n in used for n in re.findall(r"[\w*]+", selector))
        )
        return (
            f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(self.brand)}</title>\n'
            f"<style>\n{css}\n</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
        )

    # -- components -----------------------------------------------------------------------------------------------
    def nav(self) -> str:
        links = "".join(
            f'<a href="#">{n}</a>' for n in self.rng.sample(_NAV, 3 if self.width < 500 else self.rng.randint(3, 5))
        )
        extra = f'<span class="tag">{self.verb()}</span>' if self.rng.random() < 0.3 and self.width > 500 else ""
        return f'<div class="bar"><div class="brand">{self.brand}</div><div>{links}{extra}</div></div>'

    def buttons(self) -> str:
        second = f'<span class="btn ghost">{self.verb()}</span>' if self.rng.random() < 0.6 else ""
        return f'<div class="row"><span class="btn">{self.label()}</span>{second}</div>'

    def hero(self) -> str:
        t, centre = self.t, self.rng.random() < 0.5
        background = self.rng.choice((t.soft, t.surface, f"linear-gradient(90deg,{t.soft},{t.surface})"))
        align = "text-align:center" if centre else "text-align:left"
        buttons = self.buttons().replace('"row"', '"row" style="justify-content:center"') if centre else self.buttons()
        pad = t.gap * self.rng.choice((2, 3))
        return (
            f'<div style="background:{background};padding:{pad}px {t.gap + 8}px;{align}"><h1>{self.label()} with {self.brand}</h1>'
            f'<p class="muted" style="margin-bottom:{t.gap + 4}px">{self.paragraph(1, 2)}</p>{buttons}</div>'
        )

    def card(self) -> str:
        kind = self.rng.randrange(3)
        top = (
            '<div class="pic"></div>',
            f'<div class="icon">{self.rng.choice(_ICONS)}</div>',
            f'<span class="tag">{self.noun()}</span>',
        )[kind]
        return f'<div class="card">{top}<h3>{self.title()}</h3><p class="muted">{self.sentence()}</p></div>'

    def grid(self, cells: list[str], columns: int) -> str:
        return f'<div class="grid" style="grid-template-columns:repeat({columns},minmax(0,1fr))">{"".join(cells)}</div>'

    def cards(self, columns: int | None = None, rows: int = 1) -> str:
        columns = columns or self.rng.choice((2, 3))
        return self.grid([self.card() for _ in range(columns * rows)], columns)

    def inputs(self, low: int = 2, high: int = 4) -> str:
        fields = self.rng.sample(
            ("Email", "Password", "Full name", "Company", "Phone", "Subject", "City", "Postcode"),
            self.rng.randint(low, high),
        )
        html = []
        for name in fields:
            value = f'value="{self.name()}"' if self.rng.random() < 0.4 else f'placeholder="{self.label()}"'
            html.append(f'<label>{name}</label><input type="text" {value}>')
        if self.rng.random() < 0.3:
            html.append(f"<label>Message</label><textarea rows=3>{self.sentence()}</textarea>")
        return "".join(html)

    def form(self) -> str:
        gap = self.t.gap
        return (
            f'<div class="card"><h2>{self.label()}</h2><p class="muted">{self.sentence()}</p>{self.inputs()}'
            f'<div style="margin-top:{gap}px"><span class="btn">{self.verb()}</span></div></div>'
        )

    def table(self, low: int = 3, high: int = 6) -> str:
        heads = self.rng.sample(("Name", "Date", "Amount", "Status", "Owner", "Progress"), self.rng.randint(3, 4))
        cell: dict[str, Callable[[], str]] = {
            "Name": self.title, "Date": self.date, "Amount": self.money, "Owner": self.name, "Progress": self.number,
            "Status": lambda: f'<span class="tag">{self.rng.choice(("Open", "Paid", "Late", "Draft", "Done"))}</span>',
        }  # fmt: skip
        rows = self.some(lambda: "<tr>" + "".join(f"<td>{cell[h]()}</td>" for h in heads) + "</tr>", low, high)
        return f"<table><tr>{''.join(f'<th>{h}</th>' for h in heads)}</tr>{''.join(rows)}</table>"

    def person(self) -> str:
        name = self.name()
        mark = "".join(p[0] for p in name.split())
        return (
            f'<div class="item"><div class="avatar">{mark}</div><div class="grow"><b>{name}</b>'
            f'<div class="muted">{self.title()}</div></div><span class="muted">{self.date()}</span></div>'
        )

    def people(self, low: int = 3, high: int = 5) -> str:
        return "".join(self.some(self.person, low, high))

    def setting(self) -> str:
        kind = self.rng.randrange(3)
        off = " off" if self.rng.random() < 0.5 else ""
        right = (
            f'<div class="toggle{off}"><i></i></div>',
            f'<span class="muted">{self.title()}</span>',
            '<span class="muted">›</span>',
        )[kind]
        note = f'<div class="muted">{self.label()}</div>' if self.rng.random() < 0.5 else ""
        icon = f'<div class="icon">{self.rng.choice(_ICONS)}</div>' if self.rng.random() < 0.5 else ""
        return f'<div class="item">{icon}<div class="grow">{self.title()}{note}</div>{right}</div>'

    def settings(self, low: int = 4, high: int = 6) -> str:
        return (
            f'<div class="card"><h3>{self.noun().capitalize()}</h3>{"".join(self.some(self.setting, low, high))}</div>'
        )

    def stat(self) -> str:
        return f'<div class="card"><div class="muted">{self.title()}</div><div class="big">{self.number()}</div></div>'

    def progress(self) -> str:
        rows = self.some(
            lambda: f'<div class="row between muted"><span>{self.title()}</span><span>{self.number()}</span></div>'
            f'<div class="track"><i style="width:{self.rng.randint(12, 95)}%"></i></div>', 2, 4,
        )  # fmt: skip
        return f'<div class="card"><h3>{self.title()}</h3>{"".join(rows)}</div>'

    def chart(self) -> str:
        t = self.t
        bars = "".join(
            f'<div style="flex:1;height:{self.rng.randint(12, 84)}px;background:{self.rng.choice((t.accent, t.accent, t.second))}"></div>'
            for _ in range(self.rng.randint(6, 10))
        )
        return (
            f'<div class="card"><div class="row between"><h3>{self.title()}</h3><span class="tag">{self.date()}</span></div>'
            f'<div style="display:flex;align-items:flex-end;gap:6px;height:88px;border-bottom:1px solid {t.line}">{bars}</div></div>'
        )

    def price(self) -> str:
        items = "".join(f"<li>✓ {self.title()}</li>" for _ in range(self.rng.randint(2, 4)))
        return (
            f'<div class="card"><h3>{self.title()}</h3><div class="big">{self.money()}</div>'
            f'<ul class="muted" style="margin:{self.t.gap}px 0">{items}</ul><span class="btn">{self.verb()}</span></div>'
        )

    def product(self) -> str:
        return (
            f'<div class="card"><div class="pic"></div><b>{self.title()}</b><div class="row between">'
            f'<span>{self.money()}</span><span class="tag">{self.verb()}</span></div></div>'
        )

    def article(self, low: int = 2, high: int = 3) -> str:
        t = self.t
        parts = [f"<h1>{self.title()}: {self.title()}</h1>", f'<p class="muted">{self.name()} · {self.date()}</p>']
        for _ in range(self.rng.randint(low, high)):
            parts.append(f'<p style="margin-top:{t.gap}px">{self.paragraph(2, 3)}</p>')
        if self.rng.random() < 0.5:
            quote = f"border-left:4px solid {t.accent};background:{t.surface};padding:{t.gap}px;margin-top:{t.gap}px"
            parts.insert(-1, f'<div style="{quote}">{self.sentence()}</div>')
        if self.rng.random() < 0.5:
            parts.append(
                f'<ul style="margin-top:{t.gap}px">{"".join(f"<li>• {self.title()}</li>" for _ in range(3))}</ul>'
            )
        return "".join(parts)

    def side(self, low: int = 4, high: int = 7) -> str:
        links = self.some(lambda: self.noun().capitalize(), low, high)
        on = self.rng.randrange(len(links))
        body = "".join(f'<a href="#"{" class=on" if i == on else ""}>{name}</a>' for i, name in enumerate(links))
        return f'<div class="side"><div class="brand" style="margin-bottom:{self.t.gap}px">{self.brand}</div>{body}</div>'.replace(
            "class=on", 'class="on"'
        )

    def footer(self) -> str:
        links = " · ".join(self.rng.sample(_NAV, 3))
        return f'<div class="bar muted" style="background:{self.t.soft};color:{self.t.muted}"><span>{self.brand} 2026</span><span>{links}</span></div>'

    def wrap(self, *parts: str) -> str:
        gap = f'<div style="height:{self.t.gap + 2}px"></div>'
        return f'<div class="wrap">{gap.join(parts)}</div>'

    def column(self) -> str:
        cards = self.some(
            lambda: f'<div class="card" style="padding:{self.t.gap}px;margin-bottom:{self.t.gap}px"><b>{self.title()}</b>'
            f'<div class="muted">{self.label()}</div><span class="tag">{self.noun()}</span></div>', 2, 3,
        )  # fmt: skip
        return f'<div style="background:{self.t.soft};border-radius:{self.t.radius}px;padding:{self.t.gap}px"><h3>{self.noun().capitalize()}</h3>{"".join(cards)}</div>'

    def chat(self) -> str:
        t, rows = self.t, []
        for i in range(self.rng.randint(4, 6)):
            mine = i % 2
            look = (
                f"background:{t.accent};color:#ffffff;margin-left:auto"
                if mine
                else f"background:{t.surface};border:1px solid {t.line}"
            )
            rows.append(
                f'<div style="width:70%;{look};border-radius:{t.radius + 4}px;padding:{t.gap - 2}px;margin-bottom:{t.gap}px">{self.sentence()}</div>'
            )
        return "".join(rows)


def _with_side(page: _Page, *parts: str) -> str:
    gap = page.t.gap
    body = f'<div style="height:{gap}px"></div>'.join(parts)
    return f'<div style="display:flex;min-height:480px">{page.side()}<div class="grow" style="padding:{gap + 4}px">{body}</div></div>'


def _dashboard(page: _Page) -> str:
    stats = page.grid([page.stat() for _ in range(3)], 3)
    middle = page.grid([page.chart(), page.progress()], 2) if page.rng.random() < 0.6 else page.chart()
    return _with_side(page, f"<h1>{page.title()}</h1>", stats, middle, f'<div class="card">{page.table(4, 6)}</div>')


def _kanban(page: _Page) -> str:
    head = f'<div class="row between"><h1>{page.title()}</h1><span class="btn">{page.label()}</span></div>'
    return page.nav() + page.wrap(head, page.grid([page.column() for _ in range(3)], 3))


def _shop(page: _Page) -> str:
    filters = f'<div class="card" style="width:140px;flex:none"><h3>{page.title()}</h3>{"".join(f"<div>□ {page.noun()}</div>" for _ in range(6))}</div>'
    goods = (
        f'<div class="grow">{page.grid([page.product() for _ in range(6)], 2 if page.rng.random() < 0.4 else 3)}</div>'
    )
    return (
        page.nav()
        + page.wrap(f'<div class="row" style="align-items:flex-start">{filters}{goods}</div>')
        + page.footer()
    )


def _inbox(page: _Page) -> str:
    rows = "".join(
        f'<div class="item"><div class="avatar">{n[0]}</div><div class="grow"><b>{n}</b><div class="muted">{page.sentence()}</div></div>'
        f'<span class="muted">{page.date()}</span></div>'
        for n in page.some(page.name, 5, 7)
    )
    return _with_side(
        page,
        f'<div class="row between"><h2>{page.noun().capitalize()}</h2><span class="btn">{page.verb()}</span></div>',
        f'<div class="card">{rows}</div>',
    )


def _docs(page: _Page) -> str:
    code = f"<div style=\"background:#1e2430;color:#d6e2f0;font-family:'Liberation Mono',monospace;padding:{page.t.gap}px;border-radius:{page.t.radius}px\">{page.noun()}.{page.rng.choice(_VERBS)}({page.rng.randint(1, 99)})<br>return {page.noun()}</div>"
    return _with_side(page, page.article(2, 2), code, page.table(2, 4))


_Recipe = Callable[[_Page], str]
_PAGES: dict[str, tuple[tuple[_Recipe, tuple[int, int]], ...]] = {
    "easy": (
        (lambda p: f'<div style="max-width:{p.rng.choice((300, 340, 380))}px;margin:{p.rng.choice((24, 40, 60))}px auto">{p.form()}</div>', DESKTOP),
        (lambda p: p.nav() + p.hero(), DESKTOP),
        (lambda p: p.wrap(p.article(1, 2)), DESKTOP),
        (lambda p: p.wrap(f'<div class="card"><h2>{p.title()}</h2>{p.people(3, 4)}</div>'), DESKTOP),
        (lambda p: p.nav() + p.wrap(f"<h2>{p.label()}</h2>", p.cards(2)), DESKTOP),
        (lambda p: f'<div class="bar"><span class="brand">{p.brand}</span></div>' + p.wrap(p.settings(3, 5)), PHONE),
    ),
    "medium": (
        (lambda p: p.nav() + p.hero() + p.wrap(p.cards(3)), DESKTOP),
        (lambda p: p.nav() + p.wrap(f"<h1>{p.label()}</h1>", p.grid([p.price() for _ in range(3)], 3)) + p.footer(), DESKTOP),
        (lambda p: p.nav() + p.wrap(f'<div class="row between"><h2>{p.title()}</h2><span class="btn">{p.verb()}</span></div>', p.table(5, 8)), DESKTOP),
        (lambda p: p.nav() + p.wrap(f"<h1>{p.title()}</h1>", p.grid([f'<div class="card">{p.people(3, 4)}</div>', p.form()], 2)), DESKTOP),
        (lambda p: p.nav() + p.wrap(f'<div class="grid" style="grid-template-columns:2fr 1fr"><div>{p.article(2, 2)}</div><div>{p.card()}</div></div>'), DESKTOP),
        (lambda p: f'<div class="bar"><span class="brand">{p.brand}</span><span>⋮</span></div>' + p.wrap(p.settings(3, 4), p.settings(2, 3)), PHONE),
        (lambda p: f'<div class="bar"><span class="brand">{p.brand}</span></div>' + p.wrap(p.chat()), PHONE),
        (lambda p: p.nav() + p.wrap(p.grid([p.stat() for _ in range(3)], 3), p.progress()), DESKTOP),
    ),
    "hard": ((_dashboard, DESKTOP), (_dashboard, DESKTOP), (_kanban, DESKTOP), (_shop, DESKTOP), (_inbox, DESKTOP), (_docs, DESKTOP)),
}  # fmt: skip
