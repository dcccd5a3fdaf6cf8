"""Where tasks come from: the page generator, folders of HTML, and Design2Code- or WebSight-style sets on disk.

A set answers three questions: which tasks it has, the task of an id, and the task of a seed. Nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..failures import InvalidInput
from ..identity import bytes_digest, seed_of
from .blocks import MAX_CHARS
from .pages import DESKTOP, LEVELS, SPLITS, PageTask, procedural_page, procedural_task

HELDOUT_PERCENT = 20


class TaskSet(Protocol):
    """A source of screenshot -> HTML tasks."""

    def get(self, task_id: str) -> PageTask:
        """The task of an id. Raises KeyError."""

    def pick(self, seed: int, level: str, split: str) -> PageTask:
        """The task that a seed >= 0 stands for, the same for ever; `level` may be ``mixed``. Raises ValueError."""


class ProceduralSet:
    """The page generator: as many tasks as there are seeds."""

    def get(self, task_id: str) -> PageTask:
        """See `TaskSet`."""
        try:
            return procedural_task(task_id)
        except ValueError as error:
            raise KeyError(str(error)) from error

    def pick(self, seed: int, level: str, split: str) -> PageTask:
        """See `TaskSet`. Mixed takes the levels in turn."""
        if level == "mixed":
            return procedural_page(LEVELS[seed % 3], split, seed // 3)
        return procedural_page(level, split, seed)


class DiskSet:
    """Tasks read from disk, split into train and held-out by a hash of their content."""

    def __init__(self, tasks: Sequence[PageTask], where: str) -> None:
        if not tasks:
            raise InvalidInput(where, "tasks", "at least one page", "none", "a folder with .html files")
        self._tasks = {task.id: task for task in tasks}
        self.where = where

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[PageTask]:
        return iter(self._tasks.values())

    def get(self, task_id: str) -> PageTask:
        """See `TaskSet`."""
        return self._tasks[task_id]

    def pick(self, seed: int, level: str, split: str) -> PageTask:
        """See `TaskSet`. Levels are the thirds of the set by length."""
        if level not in (*LEVELS, "mixed") or split not in SPLITS:
            raise ValueError(f"level {level!r} or split {split!r}: expected {(*LEVELS, 'mixed')} and {SPLITS}")
        fitting = [t for t in self if t.split == split and level in (t.level, "mixed")]
        if not fitting:
            raise ValueError(f"{self.where} has no {level} page in split {split}")
        return fitting[seed % len(fitting)]


def load_folder(folder: str | Path, viewport: tuple[int, int] = DESKTOP) -> DiskSet:
    """Each ``*.html`` below `folder`, Design2Code's layout (``7.html`` beside ``7.png``) included; no picture is read.

    The reference's screenshot is always made by our renderer, since a reward compares renders of one path only.

    Raises:
        InvalidInput: no folder, no page, or a page that is empty, too long or not UTF-8.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InvalidInput(str(folder), "task set", "a folder of .html files", "no such folder", "path/to/pages")
    pages = [
        (path.relative_to(folder).with_suffix("").as_posix(), _read(path)) for path in sorted(folder.rglob("*.html"))
    ]
    return DiskSet(_tasks(folder.name, pages, viewport), str(folder))


def load_table(path: str | Path, column: str = "text", viewport: tuple[int, int] = DESKTOP) -> DiskSet:
    """A WebSight-style table: one page per row of a ``.jsonl`` or ``.parquet`` file, its HTML in `column`.

    Raises:
        InvalidInput: no such file or kind of file, a row without the column, or a page that is empty or too long.
    """
    path = Path(path)
    if not path.is_file():
        raise InvalidInput(str(path), "task set", "a .jsonl or .parquet file", "no such file", "path/to/pages.jsonl")
    pages = []
    for number, row in enumerate(_rows(path, column), 1):
        html = row.get(column)
        where = f"{path}, row {number}"
        if not isinstance(html, str):
            raise InvalidInput(where, column, "a string of HTML", html, f'{{"{column}": "<!DOCTYPE html>..."}}')
        pages.append((str(row.get("id", number)), _checked(where, html)))
    return DiskSet(_tasks(path.stem, pages, viewport), str(path))


def _rows(path: Path, column: str) -> Iterator[dict[str, Any]]:
    if path.suffix == ".jsonl":
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InvalidInput(
                    f"{path}, line {number}", column, "a JSON object", str(error), '{"text": "<p>"}'
                ) from error
            yield row if isinstance(row, dict) else {}
    elif path.suffix == ".parquet":
        import pandas as pd

        table = pd.read_parquet(path)
        if column not in table.columns:
            raise InvalidInput(
                str(path), column, f"one of the columns {list(table.columns)}", column, f"column: {table.columns[0]}"
            )
        names = [name for name in (column, "id") if name in table.columns]
        yield from ({str(key): value for key, value in line.items()} for line in table[names].to_dict("records"))
    else:
        raise InvalidInput(
            str(path), "task set", "a folder, .jsonl or .parquet", path.suffix or "no suffix", f"{path.stem}.jsonl"
        )


def _read(path: Path) -> str:
    try:
        return _checked(str(path), path.read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidInput(str(path), "encoding", "UTF-8", str(error), f"iconv -t utf-8 {path.name}") from error


def _checked(where: str, html: str) -> str:
    if not html.strip():
        raise InvalidInput(where, "html", "a page", "nothing", "<!DOCTYPE html><html>...</html>")
    if len(html) > MAX_CHARS:
        raise InvalidInput(
            where, "html", f"at most {MAX_CHARS} characters", f"{len(html)}", "remove the page from the set"
        )
    return html


def _tasks(name: str, pages: Sequence[tuple[str, str]], viewport: tuple[int, int]) -> list[PageTask]:
    """Tasks with a level (third by length) and a split; equal pages always land in one split."""
    ranks = {key: rank for rank, (key, html) in enumerate(sorted(pages, key=lambda page: len(page[1])))}
    return [
        PageTask(
            id=f"{name}/{key}",
            level=LEVELS[3 * ranks[key] // len(pages)],
            split="heldout" if seed_of("split", bytes_digest(html.encode())) % 100 < HELDOUT_PERCENT else "train",
            seed=0,
            html=html,
            width=viewport[0],
            height=viewport[1],
        )
        for key, html in pages
    ]
