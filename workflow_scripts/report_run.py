"""Rules `report_row` and `report`: the pages of one row with all its episodes; the index and one page per task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .identity import bytes_digest, digest

if TYPE_CHECKING:
    from .plan import Row

REPORT = Path("results/report")


def identity() -> str:
    """What changes the pages beside what they show: their templates, style and script, and the code's version."""
    from .report.render import HERE, VERSION

    files = sorted(path for name in ("templates", "static") for path in (HERE / name).iterdir())
    return digest({"version": VERSION, "files": {path.name: bytes_digest(path.read_bytes()) for path in files}})


def row(row: Row, scores: Path) -> str:
    """Makes results/report/rows/{model}/{setting}/."""
    from .report.data import read_rows
    from .report.render import write_row

    return write_row(REPORT, read_rows([row], scores)[0])


def index(rows: Sequence[Row], scores: Path, tables: Path) -> str:
    """Makes results/report/index.html and the pages of the tasks."""
    from .report.data import read_rows, read_table
    from .report.render import write_index

    tracks = list(dict.fromkeys(row.track for row in rows))
    return write_index(REPORT, read_rows(rows, scores), [read_table(tables, track) for track in tracks])
