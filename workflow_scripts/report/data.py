"""What the pages show, read from the records of rollouts and scores. Paths stay paths; `render` makes them links.

Left out: any choice of layout, and tables, which are read as rule `tables` wrote them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..actions import Action, InvalidAction
from ..chain import read_record, step_folder
from ..failures import InfrastructureFailure
from ..records import read_json
from ..scoring.aggregate import METRICS
from ..scoring.judges import call_path, read_call

if TYPE_CHECKING:
    from ..plan import Row
    from ..tasks import Task

LOCAL = ("change_aware", "changed_iou", "ssim", "ms_ssim", "edges", "stay", "text", "text_change", "S_sig", "S_dino")
"""Local metrics in the order in which a step lists them."""
TEXTS = ("model", "setting", "scope", "a", "b", "metric")
"""Columns of the tables that hold words, also where these look like numbers."""
MAX_TEXT = 200_000
"""Characters of a model's reply that a page shows."""
STEP_CALLS = ("S_ele_lay", "S_ad", "S_id", "S_use", "S_rap")
"""Judge calls that belong to a transition."""


@dataclass(frozen=True)
class Mark:
    """Where an action is drawn, in pixels of the frame; `path` is the finger's way of a scroll, (x0, y0, x1, y1)."""

    kind: str
    x: int | None = None
    y: int | None = None
    path: tuple[float, float, float, float] | None = None
    text: str | None = None


@dataclass(frozen=True)
class Verdict:
    """What one judge answered to one call.

    Attributes:
        scores: {metric: score in [0, 1]}.
        facts: what led to them in short: criteria that are not met, the class inferred, reasons of failure.
        words: the judge's reasoning.
    """

    judge: str
    name: str
    scores: Mapping[str, float]
    facts: tuple[str, ...]
    words: str


@dataclass(frozen=True)
class Step:
    """One transition: the screen before, the action, what was predicted and what the true screen is.

    Attributes:
        status: predicted, failed or skipped (the action ended the episode).
        true: the true screen after the action, where there is one; `before_true` the one before it.
        words: what the planner said; `response` the decision as text.
        html, raw: a page's source, and a model's raw reply; at most MAX_TEXT characters, None where there is none.
        failure: {code, message, detail} where the prediction failed.
        scores, copy, blank: local metrics of the prediction, of a copy of the true screen before, of an empty screen.
        cost: what the evidence says in short.
    """

    number: int
    frame: Path
    mark: Mark
    summary: str
    status: str
    predicted: Path | None
    true: Path | None
    words: str
    response: str
    html: str | None
    raw: str | None
    failure: Mapping[str, Any] | None
    changed: bool | None
    scores: Mapping[str, float]
    copy: Mapping[str, float]
    blank: Mapping[str, float]
    verdicts: tuple[Verdict, ...]
    cost: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Episode:
    """One rollout of one task by one row, with everything its page shows."""

    task: Task
    record: Mapping[str, Any]
    scored: Mapping[str, Any]
    steps: tuple[Step, ...]
    last: Path
    verdicts: tuple[Verdict, ...]

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """Of a model failure, its record."""
        found: Mapping[str, Any] | None = self.record["failure"]
        return found

    @property
    def outcome(self) -> str:
        """Code of the failure, else why the episode ended."""
        return str(self.record["error"] or self.record["end_reason"])


@dataclass(frozen=True)
class RowData:
    """A row's folders and its scores.json."""

    row: Row
    scores: Path
    record: Mapping[str, Any] = field(repr=False)

    @property
    def label(self) -> str:
        return f"{self.row.model} / {self.row.setting}"

    @property
    def key(self) -> str:
        """``{model}/{setting}``: the row's name in paths, links and data."""
        return f"{self.row.model}/{self.row.setting}"

    @cached_property
    def judges(self) -> list[str]:
        return list(self.record["official"])

    @cached_property
    def guide(self) -> str | None:
        """The course by which a step is called consistent: local where there are true screens, else a judge's S_ad."""
        return next(iter(self.record["courses"]), None)

    @property
    def threshold(self) -> float | None:
        """From which score on, by `guide`, a step is consistent."""
        return None if self.guide is None else float(self.record["courses"][self.guide]["threshold"])

    def values(self, task_id: str) -> dict[str, float]:
        """The task's scores by the name that filters and tables use; a local metric of a model failure is 0."""
        task = self.record["tasks"][task_id]
        failed = task["failure"] is not None
        found = {}
        for name in ("change_aware", "ssim"):
            value = task["local"].get(name)
            if value is not None or (failed and self.record["local"].get(name) is not None):
                found[name] = 0.0 if failed else value
        for judge in self.judges:
            given = task["judged"][judge]["metrics"]
            for metric in METRICS[self.row.track]:
                if given.get(metric) is not None:
                    found[f"{metric} ({judge})"] = given[metric]
        return found

    def course(self, task_id: str) -> list[float | None]:
        """`guide` per transition."""
        task = self.record["tasks"][task_id]
        if self.guide is None:
            return [None] * task["steps"]
        metric, _, judge = self.guide.partition(":")
        steps = task["judged"][judge]["steps"] if judge else task["transitions"]
        return list(steps.get(metric) or [None] * task["steps"])


def read_rows(rows: Sequence[Row], scores: Path) -> list[RowData]:
    """The rows with their scores.json. Raises InfrastructureFailure where one is missing."""
    found = []
    for row in rows:
        folder = scores / row.model / row.setting
        found.append(RowData(row, folder, read_record(folder / "scores.json")))
    return found


def true_screens(data: RowData, task: Task) -> list[Path]:
    """The true screens beside a rollout's frames; empty where there are none."""
    folder = data.scores / task.task_id
    names = read_record(folder / "measured.json")["true"]
    return [folder / name if "/" not in name else Path(name) for name in names]


def read_episode(data: RowData, task: Task, *, texts: bool = True) -> Episode:
    """One rollout.

    Args:
        texts: also read words, sources, verdicts and costs; without them only pictures, actions and scores.
    """
    folder = data.row.folder
    record = read_record(folder / task.task_id / "trajectory.json")
    true = true_screens(data, task)
    measured = {item["step"]: item for item in read_record(data.scores / task.task_id / "measured.json")["transitions"]}
    verdicts = _verdicts(data, task) if texts else {}
    frames = record["frames"]
    steps = []
    for entry in record["trajectory"]:
        number = entry["step"]
        status = "skipped" if entry.get("terminated") else "failed" if "wm_error" in entry else "predicted"
        predicted = folder / frames[number + 1]["path"] if status == "predicted" else None
        where = step_folder(folder / task.task_id, number)
        acted = read_record(where / "action.json") if texts else {}
        made = read_record(where / "prediction.json") if texts else {}
        values = measured.get(number, {})
        mark, summary = _mark(entry["semantic_action"], task)
        steps.append(
            Step(
                number=number,
                frame=folder / entry["frame"],
                mark=mark,
                summary=summary,
                status=status,
                predicted=predicted,
                true=true[number + 1] if number + 1 < len(true) else None,
                words=acted.get("plan", ""),
                response=entry.get("agent_response", ""),
                html=_text(where / made["html"]["path"]) if "html" in made else None,
                raw=_text(where / "prediction.txt") if texts else None,
                failure=made.get("failure") or ({"code": entry["wm_error"]} if status == "failed" else None),
                changed=values.get("changed"),
                scores=_known(values.get("scores", {})),
                copy=_known(values.get("copy", {})),
                blank=_known(values.get("blank", {})),
                verdicts=tuple(verdicts.get(number, ())),
                cost=tuple(_cost(acted, made)),
            )
        )
    last = folder / task.task_id / "final_frame.png"
    scored = data.record["tasks"][task.task_id]
    return Episode(task, record, scored, tuple(steps), last, tuple(verdicts.get(None, ())))


def _mark(action: Mapping[str, Any], task: Task) -> tuple[Mark, str]:
    """How an action is drawn, and its line of text; one that is no legal action is named and not drawn."""
    try:
        read = Action.from_semantic(action, task.width, task.height)
    except InvalidAction as error:
        return Mark("invalid", text=str(error)), str(error)
    path = None
    if read.type == "scroll":
        (x0, y0), (x1, y1) = read.scroll_path(task.width, task.height)
        wide, high = task.width / 1000, task.height / 1000
        path = (round(x0 * wide, 1), round(y0 * high, 1), round(x1 * wide, 1), round(y1 * high, 1))
    return Mark(read.type, read.x, read.y, path, read.text or read.app_name or read.status), read.summary()


def _verdicts(data: RowData, task: Task) -> dict[int | None, list[Verdict]]:
    """Every judge's verdicts by transition; those on the whole episode under None."""
    found: dict[int | None, list[Verdict]] = {}
    for judge in data.judges:
        judged = read_record(data.scores / task.task_id / "judge" / judge / "judged.json")
        for name, identity in judged["calls"].items():
            record = read_call(call_path(data.scores, task.task_id, judge, name), identity)
            if record is not None:
                step = record["index"] if record["metric"] in STEP_CALLS else None
                found.setdefault(step, []).append(_verdict(judge, record, task))
    return found


def _verdict(judge: str, record: Mapping[str, Any], task: Task) -> Verdict:
    result, metric = record["result"], str(record["metric"])
    answer = result["answer"]
    facts: list[str] = []
    name = metric.replace("S_ele_lay", "S_ele, S_lay")
    if metric == "S_id":
        facts.append(f"inferred {result['inferred']}, was {result['expected']}")
    if metric == "S_mp":
        milestone = task.milestones[record["index"]]
        name = f"S_mp {milestone.id}"
        facts.append(milestone.assertion)
        if result["passed"]:
            facts.append(f"from screen {result['first_satisfied_frame']} on")
    criteria = result.get("criteria", {})
    facts += [f"not met: {criterion}" for criterion, met in criteria.items() if not met]
    facts += [str(mode) for mode in answer.get("failure_modes") or ()]
    if answer.get("failure_reason") not in (None, "none"):
        facts.append(str(answer["failure_reason"]))
    words = str(answer.get("reasoning") or answer.get("evidence") or "")
    return Verdict(judge, name, result["scores"], tuple(facts), words)


def _cost(acted: Mapping[str, Any], made: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, record in (("planner", acted), ("world model", made)):
        seconds = record.get("timing", {}).get("seconds")
        if seconds is not None:
            yield f"{name}, seconds", f"{seconds:.1f}"
    evidence = made.get("evidence")
    for key, value in evidence.items() if isinstance(evidence, Mapping) else ():
        if isinstance(value, (str, int, float)) and not isinstance(value, bool) and value != "":
            yield str(key).replace("_", " "), str(value)[:200]
        elif key == "usage" and isinstance(value, Mapping):
            yield from ((str(k).replace("_", " "), str(v)) for k, v in value.items() if isinstance(v, int))


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name in LOCAL if (value := values.get(name)) is not None}


def _text(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InfrastructureFailure("unreadable_record", f"{path}: {error}") from error
    return (
        text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}\n… and {len(text) - MAX_TEXT} more characters in {path}"
    )


# --- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """One track's table as rule `tables` wrote it: lines of cells, numbers as numbers and empty cells as None."""

    track: str
    lines: list[dict[str, Any]]
    pairs: list[dict[str, Any]]
    about: Mapping[str, Any]
    files: dict[str, Path]


def read_table(folder: Path, track: str) -> Table:
    """`results/tables/{track}.*`."""
    names = {"CSV": f"{track}.csv", "Parquet": f"{track}.parquet", "Markdown": f"{track}.md", "LaTeX": f"{track}.tex"}
    files = {name: folder / file for name, file in names.items()}
    about = read_json(folder / f"{track}.json")
    return Table(track, _csv(files["CSV"]), _csv(folder / f"{track}_pairs.csv"), about, files)


def _csv(path: Path) -> list[dict[str, Any]]:
    with open(path, encoding="utf-8", newline="") as stream:
        return [{key: _cell(key, value) for key, value in line.items()} for line in csv.DictReader(stream)]


def _cell(column: str, value: str) -> Any:
    if value == "" or column in TEXTS:
        return value or None
    try:
        return float(value)
    except ValueError:
        return value
