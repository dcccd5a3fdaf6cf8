"""Who is working on what: advisory locks that the kernel drops when their owner dies.

Every target has one byte in a lock file, at an offset hashed from its name; a run locks the bytes of all it is going
to make (POSIX record locks, ``fcntl``). Disjoint runs share a working directory, overlapping ones are refused, and
after kill -9 nothing is left to unlock. This is why the default profile switches Snakemake's own locks off (they
outlive their owner and need ``--unlock``). Limits: POSIX only; on network file systems it is as good as their record
locks.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from .failures import InvalidInput
from .identity import bytes_digest

# struct flock of Linux on 64 bit: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


class TargetLocks:
    """The locks of this process. `path` is the lock file, shared by all runs of one working directory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._descriptor: int | None = None

    def acquire(self, names: Iterable[str]) -> None:
        """Locks all names or none. Raises InvalidInput naming a target that another live run holds, and its process."""
        if self._descriptor is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Opened once and kept: closing any descriptor of the file would drop all locks of the process.
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        for name in names:
            start = _offset(name)
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, start)
            except OSError:
                owner = self._owner(start)
                self.release()
                raise InvalidInput(
                    str(self.path),
                    name,
                    "a target that no other live run is making",
                    f"in the making by {owner}",
                    "wait for that run, or give this one other targets (another model, other task_ids, another shard)",
                ) from None

    def release(self) -> None:
        """Drops all locks."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _owner(self, start: int) -> str:
        assert self._descriptor is not None
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, 1, 0)
        pid = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, query))[4]
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            command = "on another machine"
        return f"process {pid} ({command[:200]})"


def _offset(name: str) -> int:
    return int(bytes_digest(name.encode())[:15], 16)  # 60 bits, within a file offset
