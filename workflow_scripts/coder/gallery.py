"""One HTML file that shows what the reward saw: reference and draft side by side, matched elements drawn, all parts.

    python -m workflow_scripts.coder.gallery results/coder/gallery.html [pages/ drafts/]

With two folders, every ``drafts/NAME.html`` is shown against ``pages/NAME.html``; without, held-out pages of the
generator are shown with some typical damage and hacks. The file needs no other file and no script.
"""

# ruff: noqa: E501  (style sheets are read by the rule)

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from ..failures import InvalidInput
from ..records import write_bytes
from .blocks import Floats, Snapshot
from .corruptions import SERIES
from .hacks import HACKS, PARTIAL
from .pages import LEVELS, PageTask, procedural_page
from .scorers import Score, VisibleScorer
from .tasksets import load_folder

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--soft:#8881;--bad:#d33;--good:#2a2;--box:#38f}
body{font:14px/1.45 system-ui,sans-serif;margin:0 auto;max-width:1360px;padding:16px}
h1{font-size:22px}h2{font-size:16px;margin:0}section{border-top:1px solid var(--line);padding:16px 0}
.head{display:flex;gap:12px;align-items:baseline;margin-bottom:8px}.total{font-size:20px;font-weight:bold}
.pair{display:grid;grid-template-columns:1fr 1fr 230px;gap:12px;align-items:start}@media(max-width:900px){.pair{grid-template-columns:1fr}}
figure{margin:0}figcaption{opacity:.7;font-size:12px}.shot{position:relative;border:1px solid var(--line);line-height:0}
.shot img{width:100%}.shot svg{position:absolute;inset:0;width:100%;height:100%}
rect{fill:none;stroke-width:1.5;vector-effect:non-scaling-stroke}.m{stroke:var(--good)}.u{stroke:var(--bad)}.b{stroke:var(--box);stroke-dasharray:4 3}
.none{padding:40px;text-align:center;line-height:1.4;background:var(--soft)}
table{border-collapse:collapse;width:100%;font-size:12px}td{padding:1px 4px}td:last-child{text-align:right;font-variant-numeric:tabular-nums}
.bar{background:linear-gradient(90deg,#38f6 var(--v),transparent var(--v))}
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A draft to show: a title, the task, and the draft's source."""

    title: str
    task: PageTask
    draft: str


def examples() -> Iterator[Entry]:
    """Held-out pages of each level: the truth, some damage, some hacks."""
    scorer = VisibleScorer()
    for level in LEVELS:
        task = procedural_page(level, "heldout", 3)
        png = scorer.reference_png(task)
        yield Entry(f"{level}: the page itself", task, task.html)
        for series, strength in (("shift", 8.0), ("hue", 60.0), ("delete", 0.3), ("letters", 0.2)):
            yield Entry(f"{level}: {series} {strength:g}", task, SERIES[series][0](task.html, strength, 0))
        for name in ("no_style", "shuffled"):
            yield Entry(f"{level}: {name.replace('_', ' ')}", task, PARTIAL[name](task.html, png))
        for name in ("dump", "data_image"):
            yield Entry(f"{level}: hack {name.replace('_', ' ')}", task, HACKS[name](task.html, png))


def folder_entries(pages: str | Path, drafts: str | Path) -> list[Entry]:
    """Drafts against pages of the same name. Raises InvalidInput if a draft has no page."""
    tasks = {task.id.split("/", 1)[1]: task for task in load_folder(pages)}
    entries = []
    for draft in load_folder(drafts):
        name = draft.id.split("/", 1)[1]
        if name not in tasks:
            raise InvalidInput(str(drafts), name, f"a page of that name in {pages}", "none", f"rm {drafts}/{name}.html")
        entries.append(Entry(name, tasks[name], draft.html))
    return entries


def gallery(entries: Iterable[Entry], scorer: VisibleScorer | None = None) -> str:
    """The page. Raises InfrastructureFailure as the renderer does."""
    scorer = scorer or VisibleScorer()
    sections = [
        _section(entry, scorer.reference(entry.task), scorer.score(entry.task, entry.draft)) for entry in entries
    ]
    legend = (
        "Words: green found a partner, red did not (left: missing, right: invented). "
        "Blue, dashed: boxes with a partner. The reward is size · elements<sup>a</sup> · look<sup>1-a</sup>."
    )
    return (
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>What the reward saw</title><style>{_STYLE}</style><h1>What the reward saw</h1><p>{legend}</p>"
        f"{''.join(sections)}</html>\n"
    )


def _section(entry: Entry, reference: Snapshot, score: Score) -> str:
    pairs = score.detail.pairs if score.detail else []
    boxes = score.detail.box_pairs if score.detail else []
    left = _shot("reference", reference, [i for i, _ in pairs], [i for i, _ in boxes])
    if score.candidate is not None:
        right = _shot("draft", score.candidate, [j for _, j in pairs], [j for _, j in boxes])
    else:
        right = '<figure><div class="none">no render</div></figure>'
    reason = f"{score.failure['code']}: {score.failure['message']}" if score.failure else ""
    rows = "".join(
        f'<tr class="bar" style="--v:{100 * value:.0f}%"><td>{name}</td><td>{value:.3f}</td></tr>'
        for name, value in score.parts.items()
    )
    return (
        f'<section><div class="head"><span class="total">{score.total:.3f}</span><h2>{escape(entry.title)}</h2>'
        f"<code>{escape(entry.task.id)}</code><span>{escape(reason)}</span></div>"
        f'<div class="pair">{left}{right}<table>{rows}</table></div></section>'
    )


def _shot(caption: str, seen: Snapshot, matched: list[int], boxes: list[int]) -> str:
    unmatched = sorted(set(range(len(seen.text))) - set(matched))
    marks = _rects(seen.rects[matched], "m") + _rects(seen.rects[unmatched], "u") + _rects(seen.boxes[boxes], "b")
    source = base64.b64encode(seen.png).decode()
    note = f"{caption} · {len(seen.text)} words, {len(seen.boxes)} boxes, {seen.page_height} px high"
    return (
        f'<figure><div class="shot"><img alt="{caption}" src="data:image/png;base64,{source}">'
        f'<svg viewBox="0 0 {seen.width} {seen.height}" preserveAspectRatio="none">{marks}</svg></div>'
        f"<figcaption>{note}</figcaption></figure>"
    )


def _rects(rects: Floats, name: str) -> str:
    shapes = np.round(rects, 1).tolist()
    return "".join(f'<rect class="{name}" x="{x}" y="{y}" width="{w}" height="{h}"/>' for x, y, w, h in shapes)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m workflow_scripts.coder.gallery", description="Show what is rewarded."
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("pages", nargs="?", type=Path, help="folder of reference pages")
    parser.add_argument("drafts", nargs="?", type=Path, help="folder of drafts with the same names")
    options = parser.parse_args(arguments)
    if options.pages is not None and options.drafts is None:
        parser.error("give both folders or none")
    entries = examples() if options.pages is None else folder_entries(options.pages, options.drafts)
    write_bytes(options.output, gallery(entries).encode())


if __name__ == "__main__":
    main()
