"""Who still needs a server: one small file per process, named by pid, valid while that very process lives.

A lease holds pid and start time, so a reused pid does not count, and a killed process needs no farewell. Works on one
node (the folder is node-local) and within one pid namespace.
"""

from __future__ import annotations

import atexit
import json
import os
from pathlib import Path
from typing import Any

from ..records import write_json

_held: set[Path] = set()


def own_process() -> dict[str, Any]:
    """This process as a lease names it."""
    return process(os.getpid())


def process(pid: int) -> dict[str, Any]:
    """The process `pid` as a lease names it. Raises psutil.NoSuchProcess."""
    import psutil

    return {"pid": pid, "born": psutil.Process(pid).create_time()}


def lives(record: dict[str, Any]) -> bool:
    """Whether that very process still runs; a zombie does not."""
    import psutil

    try:
        found = psutil.Process(int(record["pid"]))
        alive: bool = abs(found.create_time() - float(record["born"])) < 1.0 and found.status() != psutil.STATUS_ZOMBIE
        return alive
    except (psutil.NoSuchProcess, KeyError, TypeError, ValueError):
        return False


def hold(folder: Path, pid: int | None = None) -> None:
    """Leases the server of `folder` for `pid` (default: this process); this process's own leases end at its exit."""
    path = folder / "leases" / str(pid or os.getpid())
    if path in _held and path.exists():
        return
    write_json(path, process(pid or os.getpid()))
    if pid is None or pid == os.getpid():
        if not _held:
            atexit.register(_release, os.getpid())
        _held.add(path)


def _release(pid: int) -> None:
    if pid == os.getpid():  # not in a forked child
        for path in _held:
            path.unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any] | None:
    """A small record, None where there is none."""
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return value


def living(folder: Path) -> int:
    """Number of living lease holders; clears away the leases of the dead."""
    count = 0
    for path in (folder / "leases").glob("[0-9]*"):
        record = read(path)
        if record and lives(record):
            count += 1
        else:
            path.unlink(missing_ok=True)
    return count
