"""The two kinds of failure, and the refusal of bad input.

A *model failure* is a result: it is written down, scored 0 and never rolled again. An *infrastructure failure* is
nobody's result: nothing is written, the job fails with this message and the next run resumes there. Which one it is
follows from exception types, HTTP status and finish reasons where the failure is raised, never from words in a message.
"""

from __future__ import annotations

import errno
from typing import Any, ClassVar


class Failure(Exception):
    """Base of both kinds.

    Args:
        code: stable snake_case identifier, e.g. ``"no_html"``; tables count failures by it.
        message: one sentence for a person.
        detail: JSON-able facts (attempts, status, tail of a log).
    """

    kind: ClassVar[str]

    def __init__(self, code: str, message: str, **detail: Any) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.detail = detail

    def record(self) -> dict[str, Any]:
        """The failure as it stands in a step record."""
        return {"kind": self.kind, "code": self.code, "message": self.message, "detail": self.detail}


class ModelFailure(Failure):
    """The world model (or the coder) produced nothing usable. Data."""

    kind = "model"


class InfrastructureFailure(Failure):
    """Our machinery, the planner, the network, the GPU or the disk failed. Stops and resumes."""

    kind = "infrastructure"


class InvalidInput(ValueError):
    """Something a user wrote is wrong; raised before GPU time or API money is spent.

    Args:
        where: file and line, or the command-line option.
        key: path of the key or field, e.g. ``planner.openai.temperature``.
        expected: what would have been right.
        found: what is there.
        fix: the corrected line, ready to paste.
    """

    def __init__(self, where: str, key: str, expected: str, found: object, fix: str) -> None:
        self.where, self.key, self.expected, self.found, self.fix = where, key, expected, found, fix
        super().__init__(
            f"{where}: {key}\n  expected: {expected}\n  found:    {_shown(found)}\n  write:    {fix}",
        )


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else text[:200] + " …"


def from_os_error(error: OSError, doing: str) -> InfrastructureFailure:
    """An operating-system error (disk full, read-only, no permission) as an infrastructure failure."""
    codes = {
        errno.ENOSPC: "disk_full",
        errno.EDQUOT: "disk_quota",
        errno.EROFS: "read_only",
        errno.EACCES: "permission_denied",
        errno.EMFILE: "too_many_open_files",
    }
    code = codes.get(error.errno or 0, "os_error")
    return InfrastructureFailure(code, f"{doing}: {error}", errno=error.errno, path=str(error.filename or ""))
