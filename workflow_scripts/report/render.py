"""Pages from data: one per row and episode (`write_row`), one per task and the index (`write_index`).

    results/report/index.html                                      self-contained but for pictures and links
    results/report/rows/{model}/{setting}/index.html               a row
    results/report/rows/{model}/{setting}/{task}.html              an episode
    results/report/tasks/{track}/{task}.html                       a task under two rows, side by side
    results/report/assets/{report.css,report.js}

Links are relative, so that results/ can be moved as a whole. A page whose text has not changed is not written again,
and pages of tasks that are asked for no longer are removed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..records import write_bytes
from . import plots
from .data import Episode, RowData, Step, Table, read_episode

if TYPE_CHECKING:
    from jinja2 import Environment

    from ..tasks import Task

VERSION = 1
"""Counts changes of the pages; part of the identity by which rule `report` decides to run again."""
HERE = Path(__file__).parent
COLORS = 8
NAMES = {
    "change_aware": "change-aware",
    "changed_iou": "changed region",
    "ssim": "SSIM",
    "ms_ssim": "MS-SSIM",
    "edges": "edges",
    "stay": "stay",
    "text": "text",
    "text_change": "text change",
}
"""Local metrics as the pages name them."""
COURSES = {"consistent": "change-aware, or stay where nothing changes"}
"""What survival is judged by, where that is no judge."""
HELP = {
    "change_aware": "Is what should change changed, and the rest kept? A copy of the last screen scores 0.",
    "changed_iou": "Overlap of the region that changes with the one that should.",
    "ssim": "Structural similarity of whole screens; copying scores high.",
    "ms_ssim": "Structural similarity over several scales; copying scores high.",
    "edges": "Edges that lie where they should; copying scores high.",
    "text": "Words on the screen that are the right ones; copying scores high.",
    "stay": "How well a screen that should not change was kept.",
}
COST_NAMES = {
    "calls": "Calls",
    "input_tokens": "Tokens in",
    "output_tokens": "Tokens out",
    "seconds": "Seconds",
    "gpu_seconds": "GPU seconds",
}
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d|index)(\..*)?")


def page_name(task_id: str) -> str:
    """The file name of a task's page: its id, where that is a safe name on every file system and for every id.

    Upper case (two ids may differ in it alone), a final dot and names that Windows or we reserve get a digest.
    """
    if re.fullmatch(r"[a-z0-9][a-z0-9._-]*[a-z0-9_-]|[a-z0-9]", task_id) and not RESERVED.fullmatch(task_id):
        return f"{task_id}.html"
    slug = re.sub(r"[^a-z0-9_-]+", "-", task_id.lower()).strip("-") or "task"
    return f"{slug[:80]}~{hashlib.sha256(task_id.encode()).hexdigest()[:10]}.html"


def row_folder(report: Path, data: RowData) -> Path:
    """``rows/{model}/{setting}``."""
    return report / "rows" / data.row.model / data.row.setting


def task_page(report: Path, task: Task) -> Path:
    """``tasks/{track}/{task}.html``."""
    return report / "tasks" / task.track / page_name(task.task_id)


# --- pages ------------------------------------------------------------------------------------------------------------


def write_row(report: Path, data: RowData) -> str:
    """Makes the pages of one row. `report` is ``results/report``."""
    _write_assets(report)
    folder = row_folder(report, data)
    tasks = data.row.tasks
    pages = [folder / page_name(task.task_id) for task in tasks]
    for number, task in enumerate(tasks):
        before = pages[number - 1] if number else None
        after = pages[number + 1] if number + 1 < len(tasks) else None
        _write_episode(report, pages[number], data, read_episode(data, task), before, after)
    record = data.record
    facts = [
        ("Track", record["track"]),
        ("Tasks", _tasks_of(record)),
        ("Model failures", str(sum(record["model_failures"].values()))),
    ]
    facts += [(label, value) for label, value in _row_scores(data)]
    page = folder / "index.html"
    run = json.dumps(data.row.run, indent=1, ensure_ascii=False)
    found = _episode_list([data], page, report)
    _page(page, report, "row", label=data.label, facts=facts, curves=_curves([data]), run=run, **found)
    _remove_others(folder, {page, *pages})
    return f"{len(pages)} episodes"


def write_index(report: Path, rows: Sequence[RowData], tables: Sequence[Table]) -> str:
    """Makes the index, the tasks' pages and the files they share."""
    _write_assets(report)
    by_task: dict[tuple[str, str], list[RowData]] = {}
    tasks: dict[tuple[str, str], Task] = {}
    for data in rows:
        for task in data.row.tasks:
            by_task.setdefault((task.track, task.task_id), []).append(data)
            tasks[task.track, task.task_id] = task
    pages = {key: task_page(report, task) for key, task in tasks.items()}
    keys = list(pages)
    for number, key in enumerate(keys):
        before = pages[keys[number - 1]] if number else None
        after = pages[keys[number + 1]] if number + 1 < len(keys) else None
        _write_task(report, pages[key], tasks[key], by_task[key], before, after)
    for track in {task.track for task in tasks.values()}:
        _remove_others(report / "tasks" / track, set(pages.values()))
    page = report / "index.html"
    colors = _colors(rows)
    _page(
        page,
        report,
        "index",
        inline=True,
        heading="How well the predicted worlds hold",
        facts=_facts(rows),
        tracks=[_track(table, rows, colors, report) for table in tables],
        cost_names=list(COST_NAMES.values()),
        identities=[_identity(data) for data in rows],
        packages=tables[0].about["packages"] if tables else {},
        **_episode_list(rows, page, report),
    )  # fmt: skip
    return f"{len(rows)} rows, {len(pages)} tasks"


def _write_episode(
    report: Path, page: Path, data: RowData, episode: Episode, before: Path | None, after: Path | None
) -> None:
    task = episode.task
    course = data.course(task.task_id)

    def guide_value(step: Step) -> float | None:
        return course[step.number] if step.number < len(course) else None

    def step_ok(step: Step) -> bool | None:
        value = guide_value(step)
        return None if value is None or data.threshold is None else value >= data.threshold

    _page(
        page,
        report,
        "episode",
        task=task,
        label=data.label,
        row_page=page.parent / "index.html",
        task_page=task_page(report, task),
        before=before,
        after=after,
        outcome=episode.outcome.replace("_", " "),
        failure=episode.failure,
        scores=[(NAMES.get(name, name), value) for name, value in data.values(task.task_id).items()],
        steps=episode.steps,
        last=episode.last,
        whole=episode.verdicts,
        guide_value=guide_value,
        step_ok=step_ok,
        draw=lambda mark: plots.drawing(mark, task.width, task.height),
        names=NAMES,
    )


def _write_task(
    report: Path, page: Path, task: Task, rows: Sequence[RowData], before: Path | None, after: Path | None
) -> None:
    lines: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    for data in rows:
        episode = read_episode(data, task, texts=False)
        own = row_folder(report, data) / page_name(task.task_id)
        scores = {NAMES.get(name, name): value for name, value in data.values(task.task_id).items()}
        outcome = episode.outcome.replace("_", " ")
        failed = episode.failure is not None
        steps = len(episode.steps)
        lines.append(
            {"label": data.label, "page": own, "outcome": outcome, "failed": failed, "steps": steps, "scores": scores}
        )
        base = data.row.folder / task.task_id
        frames = [step.frame for step in episode.steps]
        if episode.steps and episode.steps[-1].predicted:
            frames.append(episode.steps[-1].predicted)
        true = [step.true for step in episode.steps if step.true]
        if true:
            true.insert(0, task.image)
        shown.append(
            {
                "label": data.label,
                "page": link(own, page),
                "base": link(base, page) + "/",
                "frames": [quote(os.path.relpath(frame, base)) for frame in frames],
                "true": [link(path, page) for path in true],
                "drawings": [asdict(plots.drawing(step.mark, task.width, task.height)) for step in episode.steps],
                "acts": [step.summary for step in episode.steps],
                "course": [None if value is None else round(value, 3) for value in data.course(task.task_id)],
                "threshold": data.threshold,
                "end": outcome,
                "failed": str(episode.failure["code"]) if episode.failure else "",
            }
        )
    data_block = {"width": task.width, "height": task.height, "shared": task.track == "offline", "rows": shown}
    metrics = list(dict.fromkeys(name for line in lines for name in line["scores"]))
    _page(
        page,
        report,
        "task",
        task=task,
        before=before,
        after=after,
        lines=lines,
        metrics=metrics,
        data=json_block(data_block),
    )


# --- what the index says ----------------------------------------------------------------------------------------------


def _facts(rows: Sequence[RowData]) -> list[tuple[str, str]]:
    if not rows:
        return [("Rows", "none")]
    tasks = {(data.row.track, task): None for data in rows for task in data.record["requested"]}
    steps = sum(task["steps"] for data in rows for task in data.record["tasks"].values())
    judges = sorted({judge for data in rows for judge in data.judges})
    scope = _tasks_of(rows[0].record) if len({_tasks_of(data.record) for data in rows}) == 1 else str(len(tasks))
    failures = sum(sum(data.record["model_failures"].values()) for data in rows)
    facts = [("Rows", str(len(rows))), ("Tasks", scope), ("Transitions", f"{steps:,}")]
    return [*facts, ("Model failures", str(failures)), ("Judges", ", ".join(judges) or "none")]


def _tasks_of(record: Mapping[str, Any]) -> str:
    count = len(record["requested"])
    return f"{count} of {record['total_tasks']} (partial)" if record["partial"] else str(count)


def _track(table: Table, all_rows: Sequence[RowData], colors: Mapping[str, str], report: Path) -> dict[str, Any]:
    rows = [data for data in all_rows if data.row.track == table.track]
    present = list(dict.fromkeys(key for line in table.lines for key in line))
    columns = _columns(present, table.lines)
    by_key: dict[str, list[RowData]] = {}
    for data in rows:
        by_key.setdefault(f"{data.row.model}/{data.row.setting.split('-r')[0]}", []).append(data)
    lines: list[dict[str, Any]] = []
    for line in table.lines:
        repeats = by_key[f"{line['model']}/{line['setting']}"]
        pages = []
        for number, data in enumerate(repeats):
            label = f"r{data.row.repeat}" if number else data.label
            pages.append({"label": label, "page": row_folder(report, data) / "index.html"})
        lines.append(
            {"color": colors[repeats[0].key], "pages": pages, "cells": [_table_cell(line, c) for c in columns]}
        )
    dots = _dots(table, columns, by_key, colors)
    first: Mapping[str, Any] = rows[0].record if rows else {}
    acting = "A planner acts" if table.track == "online" else "Recorded actions are carried out"
    lead = f"{acting} on the screens that a world model predicts."
    if first.get("partial"):
        lead += f" A selection of {len(first['requested'])} of {first['total_tasks']} tasks: no Overall is given."
    return {
        "name": table.track,
        "lead": lead,
        "columns": columns,
        "lines": lines,
        "any_interval": any(cell["spread"] for line in lines for cell in line["cells"]),
        "any_reference": any(cell["reference"] for line in lines for cell in line["cells"]),
        "curves": _curves(rows, colors),
        "dots": dots[:4],
        "more_dots": dots[4:],
        "files": table.files,
        "pairs": table.pairs,
        "failures": _failures(rows),
        "agreement": _agreement(rows),
        "costs": [
            {"label": data.label, "part": part, "values": [cost[name] for name in COST_NAMES]}
            for data in rows
            for part, cost in data.record["costs"].items()
            if cost["records"] and part != "total"
        ],
    }


def _columns(present: Sequence[str], lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Columns of the short table: judged metrics, then local ones; each {key, title, scale, help}."""
    columns: list[dict[str, Any]] = []
    for key, title in (("tasks", "Tasks"), ("model_failures", "Failures")):
        columns.append({"key": key, "title": title, "scale": 1, "help": ""})
    for key in present:
        if re.fullmatch(r"(S_\w+|Overall) \(.+\)", key) and any(line.get(key) is not None for line in lines):
            columns.append({"key": key, "title": key, "scale": 1, "help": ""})
    for key in ("change_aware", "changed_iou", "ssim", "ms_ssim", "edges", "text", "stay"):
        if key in present:
            columns.append({"key": key, "title": NAMES[key], "scale": 100, "help": HELP.get(key, "")})
    for key in present:
        if key.startswith("partial credit "):
            source = key.removeprefix("partial credit ")
            title = "partial credit" if source in COURSES else f"partial credit ({source.replace(':', ' of ')})"
            columns.append({"key": key, "title": title, "scale": 100, "help": "Sum of scores over planned steps."})
    return columns


def _table_cell(line: Mapping[str, Any], column: Mapping[str, Any]) -> dict[str, Any]:
    key, scale = column["key"], column["scale"]

    def of(suffix: str) -> float | None:
        value = line.get(f"{key} {suffix}")
        return None if value is None else value * scale

    value = line.get(key)
    if isinstance(value, float) and key not in ("tasks", "model_failures"):
        value = f"{value * scale:.1f}"
    low, high, copy = of("low"), of("high"), of("of copy_last")
    spread = f"{low:.1f} … {high:.1f}" if low is not None and high is not None else ""
    return {"value": value, "spread": spread, "reference": "" if copy is None else f"copy {copy:.1f}"}


def _dots(
    table: Table,
    columns: Sequence[dict[str, Any]],
    by_key: Mapping[str, Sequence[RowData]],
    colors: Mapping[str, str],
) -> list[plots.DotPlot]:
    found = []
    # Overall first, then the local metric that copying does not fool, then the others in the table's order.
    ranked = sorted(columns, key=lambda c: (not c["key"].startswith("Overall"), c["key"] != "change_aware"))
    for column in ranked:
        key, scale = column["key"], column["scale"]
        if key in ("tasks", "model_failures") or key.startswith("partial credit"):
            continue
        lines = []
        for line in table.lines:
            name = f"{line['model']}/{line['setting']}"
            numbers = {
                part: None if (value := line.get(f"{key}{suffix}")) is None else value * scale
                for part, suffix in (("value", ""), ("low", " low"), ("high", " high"), ("reference", " of copy_last"))
            }
            lines.append(
                {"label": f"{line['model']} / {line['setting']}", "color": colors[by_key[name][0].key], **numbers}
            )
        copied = any(line["reference"] is not None for line in lines)
        note = " ".join(filter(None, (column["help"], "Bar: a copy of the last screen." if copied else "")))
        found.append(plots.dot_plot(column["title"], note, lines))
    return found


def _curves(rows: Sequence[RowData], colors: Mapping[str, str] | None = None) -> list[plots.CurvePlot]:
    labels = dict.fromkeys(label for data in rows for label in data.record["courses"])
    colors = colors or _colors(rows)
    found = []
    for label in labels:
        curves = []
        threshold = None
        for data in rows:
            course = data.record["courses"].get(label)
            if course:
                threshold = course["threshold"]
                curves.append((data.label, colors[data.key], [point["share"] for point in course["survival"]]))
        metric = COURSES.get(label, label.replace(":", " of judge "))
        note = f"Share of tasks whose first transitions all score {100 * (threshold or 0):.0f} or more ({metric})"
        found.append(plots.curve_plot("Survival", note, curves))
    return found


def _colors(rows: Sequence[RowData]) -> dict[str, str]:
    """A colour class per row; the two baselines are grey, repeats share a colour."""
    known: dict[str, str] = {}
    found = {}
    for data in rows:
        name = f"{data.row.model}/{data.row.setting.split('-r')[0]}"
        plain = {"copy_last": "copy", "blank": "blank"}.get(data.row.family)
        if name not in known:
            used = sum(color.startswith("c") and color != "copy" for color in known.values())
            known[name] = plain or f"c{used % COLORS}"
        found[data.key] = known[name]
    return found


def _row_scores(data: RowData) -> list[tuple[str, str]]:
    found = []
    for judge, official in data.record["official"].items():
        if official["overall"] is not None:
            found.append((f"Overall ({judge})", f"{100 * official['overall']:.1f}"))
        found += [
            (f"{metric} ({judge})", f"{100 * value:.1f}")
            for metric, value in official["metrics"].items()
            if value is not None
        ]
    for name in ("change_aware", "ssim"):
        value = data.record["local"].get(name, {}).get("value")
        if value is not None:
            found.append((NAMES[name], f"{100 * value:.1f}"))
    return found


def _failures(rows: Sequence[RowData]) -> dict[str, Any] | None:
    codes: Counter[str] = Counter()
    for data in rows:
        codes.update(data.record["model_failures"])
    if not codes:
        return None
    counts = {code: [data.record["model_failures"].get(code, 0) for data in rows] for code, _ in codes.most_common()}
    return {"labels": [data.label for data in rows], "codes": counts}


def _agreement(rows: Sequence[RowData]) -> list[dict[str, Any]]:
    def shown(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"

    return [
        {
            "label": data.label,
            "level": level,
            "kappa": shown(found["cohen_kappa"]),
            "alpha": shown(found["krippendorff_alpha"]),
            **{key: found[key] for key in ("judges", "items", "exact")},
        }
        for data in rows
        for level, found in data.record["agreement"].items()
    ]


def _identity(data: RowData) -> dict[str, str]:
    record = data.record
    versions = json.dumps(record["versions"], ensure_ascii=False)
    return {
        "label": data.label,
        "track": record["track"],
        "run": record["run_sha256"][:16],
        "identity": record["identity"][:16],
        "versions": versions,
    }


def _episode_list(rows: Sequence[RowData], page: Path, report: Path) -> dict[str, Any]:
    """The list of episodes as compact JSON (see report.js), and how many there are."""
    tasks: dict[tuple[str, str], int] = {}
    task_lines: list[list[Any]] = []
    outcomes: dict[str, int] = {}
    outcome_lines: list[list[Any]] = []
    metrics: list[str] = list(dict.fromkeys(
        name for data in rows for task in data.row.tasks for name in data.values(task.task_id)
    ))  # fmt: skip
    lines: list[list[Any]] = []
    for number, data in enumerate(rows):
        for task in data.row.tasks:
            key = (task.track, task.task_id)
            if key not in tasks:
                tasks[key] = len(tasks)
                compared = link(task_page(report, task), page)
                name = quote(page_name(task.task_id))
                task_lines.append([task.task_id, name, task.instruction, list(task.apps), compared])
            scored = data.record["tasks"][task.task_id]
            failed = scored["failure"] is not None
            outcome = str(scored["failure"] or scored["end_reason"])
            if outcome not in outcomes:
                outcomes[outcome] = len(outcomes)
                outcome_lines.append([outcome, int(failed)])
            values = data.values(task.task_id)
            thousandths = [None if name not in values else round(1000 * values[name]) for name in metrics]
            spark = plots.sparkline(data.course(task.task_id), failed)
            lines.append([number, tasks[key], outcomes[outcome], spark, thousandths])
    block = {
        "rows": [[data.label, link(row_folder(report, data), page) + "/", data.threshold] for data in rows],
        "tasks": task_lines,
        "metrics": [NAMES.get(name, name) for name in metrics],
        "outcomes": outcome_lines,
        "episodes": lines,
    }
    return {"data": json_block(block), "count": len(lines)}


# --- writing ----------------------------------------------------------------------------------------------------------


def link(target: Path, page: Path) -> str:
    """A relative link from a page to a file, percent-encoded: never a scheme, whatever the file's name."""
    relative = os.path.relpath(target, page.parent)
    quoted = quote(Path(relative).as_posix())
    return quoted if quoted.startswith(".") else f"./{quoted}"


def json_block(value: Any) -> Any:
    """JSON for a ``<script type="application/json">``: without any character that markup could begin or end with."""
    from markupsafe import Markup

    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # nothing left in it that HTML would read


@cache
def _environment() -> Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=1, ensure_ascii=False, default=str)
    return environment


@cache
def _static(name: str) -> bytes:
    return (HERE / "static" / name).read_bytes()


@cache
def _policy(inline: bool) -> str:
    """Content-Security-Policy: pictures, and the report's own style and script, as files or, inline, by digest."""
    # A page from disk has no origin, so that 'self' alone would not always name the files beside it.
    own = {"script": "'self' file:", "style": "'self' file:"}
    if inline:
        for kind, name in (("script", "report.js"), ("style", "report.css")):
            own[kind] = f"'sha256-{base64.b64encode(hashlib.sha256(_static(name)).digest()).decode()}'"
    return (
        f"default-src 'none'; img-src 'self' file: data:; style-src {own['style']}; script-src {own['script']}; "
        "base-uri 'none'; form-action 'none'"
    )


def _page(page: Path, report: Path, template: str, *, inline: bool = False, **values: Any) -> None:
    from markupsafe import Markup

    values.update(
        url=lambda path: link(Path(path), page),
        policy=_policy(inline),
        inline=inline,
        style=Markup(_static("report.css").decode()) if inline else None,
        script=Markup(_static("report.js").decode()) if inline else None,
        assets=report / "assets",
        index=report / "index.html",
    )
    _write(page, _environment().get_template(f"{template}.html.j2").render(values).encode())


def _write(path: Path, data: bytes) -> None:
    """Writes a page unless it says the same already; an index always: its time tells Snakemake that it is new."""
    if path.name != "index.html" and path.is_file() and path.read_bytes() == data:
        return
    write_bytes(path, data)


def _write_assets(report: Path) -> None:
    for name in ("report.css", "report.js"):
        _write(report / "assets" / name, _static(name))


def _remove_others(folder: Path, pages: set[Path]) -> None:
    for path in folder.glob("*.html"):
        if path not in pages:
            path.unlink()
