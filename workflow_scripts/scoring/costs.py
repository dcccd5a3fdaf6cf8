"""What a row cost: calls, tokens, wall time and GPU time, added up from the evidence that was recorded anyway.

Three parts: ``planner`` (``agent_evidence.json``), ``world`` (``prediction.json``) and ``judge`` (one file per call).
Every attempt counts, refused and failed ones too: they were paid for. Left out: prices, which change faster than code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..failures import InfrastructureFailure
from ..records import read_json

ATTEMPTS = ("planner_attempts", "attempts")
TOKEN_NAMES = {
    "input": ("prompt_tokens", "input_tokens", "promptTokenCount"),
    "output": ("completion_tokens", "output_tokens", "candidatesTokenCount"),
}
"""What servers call the two counts: chat completions, images and responses API, Gemini."""


@dataclass
class Cost:
    """Sums over records.

    Attributes:
        records: steps or judge calls.
        calls: requests sent, attempts that failed included.
        input_tokens, output_tokens: as the servers reported them; replies without a report count 0.
        unreported: answered calls of models that reported no tokens.
        seconds: wall time of the records, waiting included. Steps run side by side, so that a row is faster than that.
        gpu_seconds: time on a GPU, where evidence has it.
    """

    records: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    unreported: int = 0
    seconds: float = 0.0
    gpu_seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        mine, its = asdict(self), asdict(other)
        return Cost(**{name: mine[name] + its[name] for name in mine})

    def count(self, evidence: Any) -> None:
        """Adds the calls, tokens and GPU seconds that stand anywhere in `evidence`."""
        for usage in _calls(evidence):
            self.calls += 1
            tokens = {name: _first_number(usage, keys) for name, keys in TOKEN_NAMES.items()}
            self.input_tokens += int(tokens["input"] or 0)
            self.output_tokens += int(tokens["output"] or 0)
            self.unreported += tokens["input"] is None and tokens["output"] is None
        self.gpu_seconds += sum(_numbers_named(evidence, "gpu_seconds"))


def row_costs(rollouts: Path, scores: Path | None = None) -> dict[str, Cost]:
    """Costs of one row: {"planner", "world", "judge", "total"}.

    Args:
        rollouts: ``results/rollouts/{model}/{setting}``.
        scores: ``results/scores/{model}/{setting}``, if it was judged.

    Raises InfrastructureFailure (``unreadable_record``) for a record that is no JSON.
    """
    planner, world, judge = Cost(), Cost(), Cost()
    for path in sorted(rollouts.glob("*/step_*/agent_evidence.json")):
        planner.records += 1
        planner.count(_read(path))
        planner.seconds += _seconds(path.with_name("action.json"))
    for path in sorted(rollouts.glob("*/step_*/prediction.json")):
        record = _read(path)
        if record.get("status") == "skipped":
            continue
        world.records += 1
        world.count([record.get("evidence"), record.get("failure")])
        world.seconds += _timing(record)
    for path in sorted(scores.glob("*/judge/*/*.json")) if scores else ():
        record = _read(path)
        judge.records += 1
        judge.count({"attempts": record.get("attempts", [])})
        judge.seconds += sum(_numbers_named(record.get("attempts"), "seconds"))
    return {"planner": planner, "world": world, "judge": judge, "total": planner + world + judge}


def _calls(value: Any) -> Iterator[Mapping[str, Any]]:
    """One usage report (maybe empty) per request in a piece of evidence.

    A list of attempts has one request per entry; where none of them reports, the usage beside the list is the last
    one's. A usage without attempts beside it is one request.
    """
    if isinstance(value, list):
        for item in value:
            yield from _calls(item)
    if not isinstance(value, Mapping):
        return
    attempts = next((value[name] for name in ATTEMPTS if isinstance(value.get(name), list)), None)
    beside = value.get("usage") if isinstance(value.get("usage"), Mapping) else None
    if attempts is not None:
        entries = [entry for entry in attempts if isinstance(entry, Mapping)]
        reports = [entry["usage"] if isinstance(entry.get("usage"), Mapping) else {} for entry in entries]
        if reports and beside and not any(reports):
            reports[-1] = beside
        yield from reports
        for entry in entries:
            extra = entry.get("requests")
            yield from ({} for _ in range(extra - 1 if isinstance(extra, int) else 0))
    elif beside is not None:
        yield beside
    for key, item in value.items():
        if key != "usage" and key not in ATTEMPTS:
            yield from _calls(item)


def _first_number(usage: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    for name in names:
        value = usage.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf"):
            return value
    return None


def _numbers_named(value: Any, name: str) -> Iterator[float]:
    if isinstance(value, list):
        for item in value:
            yield from _numbers_named(item, name)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key == name and isinstance(item, (int, float)) and not isinstance(item, bool):
                yield float(item)
            else:
                yield from _numbers_named(item, name)


def _seconds(path: Path) -> float:
    return _timing(_read(path)) if path.is_file() else 0.0


def _timing(record: Mapping[str, Any]) -> float:
    timing = record.get("timing")
    seconds = timing.get("seconds") if isinstance(timing, Mapping) else None
    return float(seconds) if isinstance(seconds, (int, float)) else 0.0


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise InfrastructureFailure("unreadable_record", str(error), path=str(path)) from error
