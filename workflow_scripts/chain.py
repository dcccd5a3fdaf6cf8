"""The closed loop of one task as a chain of records on disk, and the question which of them still hold.

    frame 0 ─act─► action 0 ─predict─► prediction 0 ─act─► frame 1, action 1 ─predict─► … up to the step budget

Each step leaves ``action.json`` and ``prediction.json``, written last and atomically, so that a record which exists
vouches for the pictures it names. After the end (a terminal action, a model failure) the remaining steps leave tiny
``skipped`` records. A record names its inputs by *content*: the digest of what the record before it says, times and
evidence aside. `first_stale` walks a chain by these digests and by identities; file times decide nothing. Left out:
pixels are not hashed again here (a picture must exist with its recorded size in bytes); `verify_row` does that.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .actions import Action
from .failures import InfrastructureFailure
from .identity import bytes_digest, digest, file_digest
from .records import SCHEMA_VERSION, png_bytes, read_json

if TYPE_CHECKING:
    from PIL.Image import Image

    from .plan import Row
    from .tasks import Task

LOOP_VERSION = 1
"""Part of every identity: raised when the loop itself (resizing, pass-through, what a record says) changes results."""
VOLATILE = ("timing", "evidence", "made_by")
"""Keys of a record that say how it was made and may differ between two equal results."""


class Ended(NamedTuple):
    """Why and at which step a chain ended before its budget. Reasons: terminated, answered, model_failure."""

    reason: str
    step: int


def step_folder(task_folder: Path, step: int) -> Path:
    """``step_007`` of a task."""
    return task_folder / f"step_{step:03d}"


def content_digest(record: Mapping[str, Any]) -> str:
    """Digest of what a record says, without VOLATILE keys."""
    return digest({key: value for key, value in record.items() if key not in VOLATILE})


def act_identity(row: Row, task: Task, step: int) -> str:
    """Identity of `action.json`: planner, task, seed, and nothing of where it ran."""
    return digest(
        {
            "loop": LOOP_VERSION,
            "planner": row.planner.step_identity(task, step),
            "task": task.content(),
            "seed": [row.seed, row.repeat],
        }
    )


def predict_identity(row: Row, task: Task) -> str:
    """Identity of `prediction.json`: world model, history window, task, seed."""
    return digest(
        {
            "loop": LOOP_VERSION,
            "world": dict(row.world_identity),
            "history": row.history,
            "task": task.content(),
            "seed": [row.seed, row.repeat],
        }
    )


def trajectory_identity(row: Row, task: Task) -> str:
    """Identity of `trajectory.json`: the row and what the record repeats of the task."""
    return digest({"row": row.run_sha256, "task": task.content(), "budget": task.step_budget})


def base_record(kind: str, task: Task, step: int, identity: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The head of every step record."""
    return {
        "schema": SCHEMA_VERSION,
        "record": kind,
        "task_id": task.task_id,
        "step": step,
        "identity": identity,
        "inputs": dict(inputs),
    }


def picture(name: str, data: bytes, size: tuple[int, int]) -> dict[str, Any]:
    """How a record names a picture beside it; `size` is (width, height) in pixels."""
    return {"path": name, "sha256": bytes_digest(data), "bytes": len(data), "size": list(size)}


def read_record(path: Path) -> dict[str, Any]:
    """A step record written earlier. Raises InfrastructureFailure where it is missing, broken or of another schema."""
    try:
        record = read_json(path)
    except (OSError, ValueError) as error:
        raise InfrastructureFailure("unreadable_record", f"{path}: {error}") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA_VERSION:
        found = record.get("schema") if isinstance(record, dict) else type(record).__name__
        raise InfrastructureFailure(
            "unknown_schema",
            f"{path} has schema {found!r}, this version reads {SCHEMA_VERSION}; delete the file to have it made again",
        )
    return record


def read_picture(folder: Path, named: Mapping[str, Any]) -> bytes:
    """The bytes of a picture that a record names. Raises InfrastructureFailure where they are not those recorded."""
    path = folder / named["path"]
    try:
        data: bytes = path.read_bytes()
    except OSError as error:
        raise InfrastructureFailure("missing_picture", f"{path}: {error}; delete the record beside it") from error
    if bytes_digest(data) != named["sha256"]:
        raise InfrastructureFailure(
            "changed_picture",
            f"{path} is not the picture that its record names; delete that record to have it made again",
        )
    return data


def to_frame(data: bytes, size: tuple[int, int]) -> tuple[bytes, tuple[int, int], bool]:
    """A picture as the loop's frame: PNG, 8-bit RGB, `size` (width, height) pixels.

    Returns the PNG bytes, the picture's own size and whether it was resized (Lanczos, GUI-CC's rule). A picture that is
    a frame already passes byte for byte. Transparent pixels are laid on white. Raises OSError or ValueError for bytes
    that are no picture.
    """
    from PIL import Image

    with Image.open(io.BytesIO(data)) as opened:
        own = opened.size
        if opened.format == "PNG" and opened.mode == "RGB" and own == size and not opened.info.get("transparency"):
            opened.load()  # decodes, so that a broken picture is found here and not a step later
            return data, own, False
        image = to_rgb(opened)
    resized = own != size
    if resized:
        image = image.resize(size, Image.Resampling.LANCZOS)
    return png_bytes(image), own, resized


def to_rgb(image: Image) -> Image:
    """8-bit RGB of any picture: 16-bit grey is scaled (not clipped), transparency is laid on white."""
    from PIL import Image as module

    if image.mode.startswith("I;16") or image.mode == "I":
        image = image.point(lambda value: value / 257).convert("L")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = module.new("RGBA", rgba.size, "white")
        return module.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def actions_until(task_folder: Path, task: Task, step: int) -> tuple[Action, ...]:
    """The actions of steps 0 … `step`, read back from their records."""
    size = task.width, task.height
    records = (read_record(step_folder(task_folder, k) / "action.json") for k in range(step + 1))
    return tuple(Action.from_semantic(record["semantic_action"], *size) for record in records)


# --- which records still hold -----------------------------------------------------------------------------------------


def positions(budget: int) -> Iterator[tuple[int, str, int]]:
    """The chain in order: (position, record file, step). The trajectory is position ``2 * budget``."""
    for step in range(budget):
        yield 2 * step, "action.json", step
        yield 2 * step + 1, "prediction.json", step


def first_stale(row: Row, task: Task) -> int | None:
    """Position of the first record of the chain that is missing or no longer holds, or None when all hold.

    A record holds when it is readable, carries the identity asked for, was made from what the record before it says,
    and its pictures exist with their recorded size in bytes.
    """
    folder = row.folder / task.task_id
    before = task.image_sha256
    predicted = predict_identity(row, task)
    contents: list[str] = []
    for position, name, step in positions(task.step_budget):
        where = step_folder(folder, step)
        record = _quiet(where / name)
        acting = name == "action.json"
        identity = act_identity(row, task, step) if acting else predicted
        if record is None or record.get("identity") != identity or record.get("inputs") != {"content": before}:
            return position
        if not all(_present(where, record.get(key)) for key in ("frame", "prediction", "html")):
            return position
        before = content_digest(record)
        contents.append(before)
    trajectory = _quiet(folder / "trajectory.json")
    holds = (
        trajectory is not None
        and trajectory.get("identity") == trajectory_identity(row, task)
        and trajectory.get("inputs") == {"content": digest(contents)}
        and (folder / "final_frame.png").is_file()
    )
    return None if holds else 2 * task.step_budget


def results_hold(row: Row) -> bool:
    """Whether rollout_results.json says what the row's trajectories say. Call when those hold."""
    try:
        results = read_json(row.folder / "rollout_results.json")
        if results["_RUN"] != row.run or list(results) != ["_RUN", *row.tasks_by_id]:
            return False
        return all(
            results[name][key] == read_record(row.folder / name / "trajectory.json")[key]
            for name in row.tasks_by_id
            for key in ("identity", "inputs")
        )
    except (OSError, ValueError, KeyError, TypeError, InfrastructureFailure):
        return False


def clear(folder: Path, *names: str) -> None:
    """Removes what an earlier run of a job left in its folder: no old picture outlives a new record, and nothing stays
    of a file that a killed run was writing."""
    for name in names:
        (folder / name).unlink(missing_ok=True)
        for unfinished in folder.glob(f".{name}.*.tmp"):
            unfinished.unlink(missing_ok=True)


def _quiet(path: Path) -> dict[str, Any] | None:
    try:
        return read_record(path)
    except InfrastructureFailure:
        return None


def _present(folder: Path, named: Any) -> bool:
    if named is None:
        return True
    try:
        return bool(os.stat(folder / named["path"]).st_size == named["bytes"])
    except (OSError, KeyError, TypeError):
        return False


def verify_row(row: Row) -> list[str]:
    """Hashes every picture of a row again; one line per fault. Slow on purpose: for archives, not for planning."""
    faults = []
    for task in row.tasks:
        position = first_stale(row, task)
        if position is not None:
            faults.append(f"{row.folder / task.task_id}: incomplete or stale from {position_name(task, position)}")
        for _, name, step in positions(task.step_budget):
            where = step_folder(row.folder / task.task_id, step)
            record = _quiet(where / name) or {}
            for key in ("frame", "prediction", "html"):
                named = record.get(key)
                if (
                    named
                    and (where / named["path"]).is_file()
                    and file_digest(where / named["path"]) != named["sha256"]
                ):
                    faults.append(f"{where / named['path']}: not the bytes that {name} names")
    return faults


def position_name(task: Task, position: int) -> str:
    """The file at a position, relative to the task's folder."""
    if position >= 2 * task.step_budget:
        return "trajectory.json"
    return f"step_{position // 2:03d}/{'prediction' if position % 2 else 'action'}.json"
