"""Identity: a hash over what changes a result, and over nothing that does not.

Rules carry these hashes in ``params:`` and every record names the one that made it, so a changed prompt or setting
reruns exactly what depends on it. Hosts, ports, devices, shard counts, core counts, time-outs and keys never enter.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def canonical(value: Any) -> str:
    """`value` as JSON with sorted keys and no spaces; NaN and infinities are refused (ValueError)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 (64 hex digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def bytes_digest(data: bytes) -> str:
    """SHA-256 (64 hex digits) of `data`."""
    return hashlib.sha256(data).hexdigest()


def file_digest(path: str | Path) -> str:
    """SHA-256 (64 hex digits) of a file's content."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def seed_of(*parts: str | int) -> int:
    """A seed in [0, 2**31) from the parts that name a piece of work, e.g. ``seed_of(task_id, step, 42)``."""
    return int.from_bytes(hashlib.sha256(canonical(list(parts)).encode()).digest()[:4], "big") >> 1
