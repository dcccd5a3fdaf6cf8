"""Files written so that a kill at any moment leaves either the old file, the new one, or none.

Every output of the workflow goes through `write_bytes`: a temporary name in the same folder, fsync, rename. A file that
exists is therefore whole, which is why the default profile tells Snakemake not to distrust files of a killed run.
"""

from __future__ import annotations

import io
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .failures import from_os_error

if TYPE_CHECKING:
    from PIL.Image import Image

SCHEMA_VERSION = 1


def write_bytes(path: str | Path, data: bytes) -> None:
    """Atomically writes `data` to `path`, making its folder. Raises InfrastructureFailure (disk full, read-only …)."""
    path = Path(path)
    # The name says whose it is (process and thread), so that two writers never share a temporary file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise from_os_error(error, f"cannot write {path}") from error


def write_json(path: str | Path, value: Any) -> None:
    """Atomically writes `value` as indented JSON; NaN and infinities are refused (ValueError)."""
    write_bytes(path, dump_json(value))


def dump_json(value: Any) -> bytes:
    """The bytes that `write_json` writes."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_json(path: str | Path) -> Any:
    """Parses a JSON file. Raises OSError or ValueError (with the path in it)."""
    data = Path(path).read_bytes()
    try:
        return json.loads(data)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error


def png_bytes(image: Image) -> bytes:
    """`image` as PNG bytes without metadata, so that equal pixels give equal files."""
    stream = io.BytesIO()
    image.save(stream, format="PNG", compress_level=6)
    return stream.getvalue()
