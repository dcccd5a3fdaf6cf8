"""Rule `tables`: one table per track, a row per model × setting, as CSV, Parquet, Markdown and LaTeX, and comparisons.

Columns keep their order: who, how many tasks, scope, failures; official metrics (× 100) of each judge; local metrics
with what a copy of the last screen and an empty screen score on the same transitions, and the share of the way from
copy to the true page that a model covers (``skill``); partial credit. Repeats of a row (``seeds: n``) are
pooled: tasks are the clusters of the bootstrap. Pairs of models are compared on their common tasks in a table of their
own.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chain import read_record
from .identity import seed_of
from .records import SCHEMA_VERSION, write_bytes, write_json
from .row_scores import official_metrics
from .scoring.aggregate import METRICS, interval, overall, paired, percent

if TYPE_CHECKING:
    from .tasks import Track

LOCAL_COLUMNS = ("change_aware", "changed_iou", "ssim", "ms_ssim", "edges", "text", "text_change", "stay")
COMPARED = "change_aware"
"""Local metric that models are compared in pairs by, beside each judge's official ones."""
PAIR_COLUMNS = ("a", "b", "metric", "a minus b", "low", "high", "p", "tasks", "left out")
FORMATS = ("csv", "parquet", "md", "tex")


def main(records: Sequence[Path], outputs: Mapping[str, Path]) -> str:
    """Makes the tables of one track from its rows' scores.json.

    `outputs` names csv, parquet, md, tex, pairs, costs, about.
    """
    rows = [read_record(path) for path in records]
    pooled = pool(rows)
    lines = [line(repeats) for repeats in pooled.values()]
    pairs = compare(pooled)
    _write(lines, outputs)
    _write_csv(pairs, outputs["pairs"], PAIR_COLUMNS)
    spent = costs(pooled)
    _write_csv(spent, outputs["costs"], list(spent[0]))
    about = {
        "schema": SCHEMA_VERSION,
        "record": "table",
        "rows": [{key: row[key] for key in ("model", "setting", "run_sha256", "identity", "versions")} for row in rows],
        "packages": {name: version(name) for name in ("snakemake", "numpy", "opencv-python-headless", "scipy")},
    }
    write_json(outputs["about"], about)
    return f"{len(lines)} rows"


def pool(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Repeats of a row together: {(model, setting): records}, in the order given."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["model"], row["setting"].split("-r")[0]), []).append(row)
    return found


def line(repeats: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One line of the table."""
    first = repeats[0]
    cells: dict[str, Any] = {
        "model": first["model"],
        "setting": first["setting"],
        "repeats": len(repeats),
        "tasks": len(first["requested"]),
        "scope": "partial" if first["partial"] else "full",
        "model_failures": sum(sum(row["model_failures"].values()) for row in repeats),
    }
    for judge in first["official"]:
        for metric in official_metrics(first["track"]):
            given = [_official(row, judge, metric) for row in repeats]
            known = [value for value in given if value is not None]
            whole = len(known) == len(given)
            name = f"{metric} ({judge})"
            cells[name] = percent(sum(known) / len(known)) if whole else None
            values = values_of(repeats, metric, judge) if whole else {}
            spread = interval(values, seed_of("table", first["model"], first["setting"], name)) if values else None
            cells[f"{name} low"] = percent(spread.low) if spread else None
            cells[f"{name} high"] = percent(spread.high) if spread else None
    for metric in LOCAL_COLUMNS:
        values = values_of(repeats, metric)
        if not values:
            continue
        spread = interval(values, seed_of("table", first["model"], first["setting"], metric))
        cells[metric] = _round(spread.mean)
        cells[f"{metric} low"] = _round(spread.low)
        cells[f"{metric} high"] = _round(spread.high)
        copy, blank = (_mean_local(repeats, f"{metric}_{name}") for name in ("copy", "blank"))
        cells[f"{metric} of copy_last"], cells[f"{metric} of blank"] = _round(copy), _round(blank)
        if metric != "stay" and copy is not None and copy < 1:
            # The true page scores 1 in every one of these metrics.
            cells[f"{metric} skill"] = _round((spread.mean - copy) / (1 - copy))
    for label in first["courses"]:
        courses = [row["courses"][label] for row in repeats]
        credits = [course["partial_credit"] for course in courses]
        cells[f"partial credit {label}"] = _round(sum(credits) / len(credits))
        ends = [end for course in courses for end in course["first_failure"].values() if end is not None]
        cells[f"first failure {label}"] = _round(sum(ends) / len(ends)) if ends else None
    return cells


def costs(pooled: Mapping[tuple[str, str], Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What each row cost, by part. A table of its own: times differ between equal results, scores must not."""
    return [
        {"model": model, "setting": setting, "part": part, **_sum([row["costs"][part] for row in repeats])}
        for (model, setting), repeats in pooled.items()
        for part in repeats[0]["costs"]
    ]


def _sum(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: round(sum(part[key] for part in parts), 1) for key in parts[0]}


def values_of(repeats: Sequence[dict[str, Any]], metric: str, judge: str | None = None) -> dict[str, list[float]]:
    """{task: one value per repeat}, for intervals and pairs; tasks without the metric are left out.

    Model failures are 0.
    """
    found: dict[str, list[float]] = {}
    for row in repeats:
        for name, task in row["tasks"].items():
            value = _judged(task["judged"][judge], metric, row["track"]) if judge else task["local"].get(metric)
            if judge is None and task["failure"] is not None:
                value = 0.0
            if value is not None:
                found.setdefault(name, []).append(value)
    # A metric that no transition of the row defines (no true screens) is not made of failures alone.
    defined = judge or any(task["local"].get(metric) is not None for row in repeats for task in row["tasks"].values())
    return found if defined else {}


def _judged(judged: Mapping[str, Any], metric: str, track: Track) -> float | None:
    """A task's official metric; its Overall is the mean of them all, where it defines them all."""
    if metric != "Overall":
        value: float | None = judged["metrics"].get(metric)
        return value
    return overall({name: judged["metrics"].get(name) for name in METRICS[track]})


def compare(pooled: Mapping[tuple[str, str], Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Every pair of rows on their common tasks, by each judge's metrics and by COMPARED."""
    lines = []
    for (a, first), (b, second) in itertools.combinations(pooled.items(), 2):
        judges = [judge for judge in first[0]["official"] if judge in second[0]["official"]]
        wanted: list[tuple[str, str | None]] = [(COMPARED, None)]
        wanted += [(metric, judge) for judge in judges for metric in official_metrics(first[0]["track"])[:-1]]
        for metric, judge in wanted:
            values = values_of(first, metric, judge), values_of(second, metric, judge)
            if not set(values[0]) & set(values[1]):
                continue
            found = paired(*values, seed_of("pair", *a, *b, metric))
            lines.append(
                {
                    "a": "/".join(a),
                    "b": "/".join(b),
                    "metric": metric if judge is None else f"{metric} ({judge})",
                    "a minus b": _round(found.difference),
                    "low": _round(found.low),
                    "high": _round(found.high),
                    "p": _round(found.p),
                    "tasks": found.tasks,
                    "left out": found.left_out,
                }
            )
    return lines


def _official(row: dict[str, Any], judge: str, metric: str) -> float | None:
    found = row["official"][judge]
    value: float | None = found["overall"] if metric == "Overall" else found["metrics"][metric]
    return value


def _mean_local(repeats: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [row["local"][name]["value"] for row in repeats if name in row["local"]]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _write(lines: Sequence[Mapping[str, Any]], outputs: Mapping[str, Path]) -> None:
    import pandas

    columns = list(dict.fromkeys(key for cells in lines for key in cells))
    frame = pandas.DataFrame([{key: cells.get(key) for key in columns} for cells in lines], columns=columns)
    write_bytes(outputs["csv"], frame.to_csv(index=False).encode())
    stream = io.BytesIO()
    frame.to_parquet(stream, index=False)
    write_bytes(outputs["parquet"], stream.getvalue())
    short = frame[[column for column in columns if not column.endswith((" low", " high"))]]
    texts = [["" if value is None or value != value else str(value) for value in row] for row in short.values.tolist()]
    write_bytes(outputs["md"], _markdown(list(short.columns), texts).encode())
    write_bytes(outputs["tex"], _latex(list(short.columns), texts).encode())


def _write_csv(lines: Sequence[Mapping[str, Any]], path: Path, columns: Sequence[str]) -> None:
    import pandas

    write_bytes(path, pandas.DataFrame(lines, columns=list(columns)).to_csv(index=False).encode())


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _latex(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def escaped(text: str) -> str:
        for character in "&%$#_{}":
            text = text.replace(character, "\\" + character)
        return text

    body = [" & ".join(map(escaped, row)) + r" \\" for row in (columns, *rows)]
    rules = [r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule"]
    return "\n".join([rf"\begin{{tabular}}{{{'l' * 2 + 'r' * (len(columns) - 2)}}}", *rules, r"\end{tabular}"]) + "\n"
