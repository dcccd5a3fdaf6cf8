"""Kills the browsers of a process that has ended. Started by `processes.Guard`; standard library only, no package.

Standard input brings one JSON line per change: ``{"kill": [pid], "await": [pid], "folders": [path]}``; the last one
holds.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import time
from typing import Any

POLL_S = 1.0
GRACE_S = 2.0


def until_owner_ends() -> dict[str, list[Any]]:
    """Follows the owner's messages; returns the last state when the owner is gone."""
    owner = os.getppid()
    state: dict[str, list[Any]] = {}
    pending = b""
    while os.getppid() == owner:
        if not select.select([0], [], [], POLL_S)[0]:
            continue
        data = os.read(0, 1 << 16)
        if not data:
            break
        *lines, pending = (pending + data).split(b"\n")
        if lines:
            state = json.loads(lines[-1])
    return state


def alive(pid: int) -> bool:
    """Whether a process exists."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def main() -> None:
    """Waits for the owner's end, then kills and removes what it left."""
    state = until_owner_ends()
    for pid in state.get("kill", []):
        with contextlib.suppress(OSError):
            # A browser leads its own group, in which all its children are.
            os.killpg(pid, signal.SIGKILL)
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and any(alive(pid) for pid in state.get("await", [])):
        time.sleep(0.05)
    for pid in state.get("await", []):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for folder in state.get("folders", []):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
