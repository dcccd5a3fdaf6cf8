"""Tasks in GUI-CC's schema and layout, checked whole before anything runs, and the selections over them.

    <path>/online_samples.jsonl   <path>/online_data/<id>/initial.png
    <path>/offline_samples.jsonl  <path>/offline_data/<id>/{initial.png, reference_trajectory.jsonl, step_XXX_after.png}

One line is one task; the order of the lines is the order of the tasks. Beyond GUI-CC's fields a line may carry
``environment`` (which real page the task is made from, for the `browser` world) and ``initial_image`` (a path inside
the data folder). Left out: GUI-CC's cap of 24 steps, which belongs to its judge, not to a rollout.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from .actions import Action, InvalidAction
from .failures import InvalidInput
from .identity import bytes_digest, digest

Track = Literal["online", "offline"]
TRACKS: tuple[Track, ...] = ("online", "offline")
MILESTONE_TYPES = ("progress", "memory_persistence", "terminal_success")
TASK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MIN_SIDE = 32
"""Smallest side of a first screen, in pixels: anything less is no screen but a mistake."""
MAX_BUDGET = 300
"""Snakemake plans a task as one chain of two jobs a step by recursion, which ends near 720 jobs."""


@dataclass(frozen=True)
class Milestone:
    """One thing that must come true, in order. `type` holds values of MILESTONE_TYPES."""

    id: str
    type: tuple[str, ...]
    assertion: str


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        task_id: unique in its file; letters, digits, dot, underscore and hyphen.
        track: online (a planner decides) or offline (the recorded `actions` are carried out).
        instruction: what the agent is asked to do.
        step_budget: largest number of actions; on the offline track the number of recorded ones.
        image: PNG of the first screen; `width` × `height` pixels.
        image_sha256: digest of that file's bytes.
        milestones: online only, may be empty.
        actions: the recorded actions; empty on the online track.
        environment: what the `browser` world needs to open the real page, or None.
        meta: all other fields of the line, as they are.
    """

    task_id: str
    track: Track
    instruction: str
    step_budget: int
    image: Path
    width: int
    height: int
    image_sha256: str
    milestones: tuple[Milestone, ...] = ()
    actions: tuple[Action, ...] = ()
    environment: Mapping[str, Any] | None = None
    category: str = ""
    apps: tuple[str, ...] = ()
    template_id: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """What of the task can change a step of its rollout (JSON-able). The budget cannot, nor can milestones."""
        return {
            "task_id": self.task_id,
            "track": self.track,
            "instruction": self.instruction,
            "image": self.image_sha256,
            "environment": dict(self.environment) if self.environment else None,
        }

    @property
    def identity(self) -> str:
        """Digest of `content`."""
        return digest(self.content())

    def after_image(self, step: int) -> Path:
        """Where the true screen after recorded action `step` lies (offline track)."""
        return self.image.parent / f"step_{step:03d}_after.png"

    @property
    def true_images(self) -> tuple[Path, ...]:
        """The true screens, the first one included; empty where the set has none. Offline track; all or none exist."""
        if self.track == "online" or not self.after_image(0).is_file():
            return ()
        return (self.image, *(self.after_image(step) for step in range(self.step_budget)))


def load_tasks(path: str | Path, track: Track) -> list[Task]:
    """Reads and checks all tasks of one track. Raises InvalidInput naming file, line and field."""
    root = Path(path)
    samples = root / f"{track}_samples.jsonl"
    if not samples.is_file():
        present = [t for t in TRACKS if (root / f"{t}_samples.jsonl").is_file()]
        hint = f" (that folder has the {present[0]} track only)" if present else ""
        raise InvalidInput(
            "config", "tasks", f"a folder with {track}_samples.jsonl{hint}", str(root), "tasks: data/miniwob"
        )
    tasks: list[Task] = []
    first_line: dict[str, int] = {}
    for number, line in enumerate(_lines(samples), 1):
        if not line.strip():
            continue
        reader = _Reader(f"{samples}:{number}", _object(line, f"{samples}:{number}"))
        task = _online(reader, root) if track == "online" else _offline(reader, root)
        if task.task_id in first_line:
            key = _id_key(track)
            raise reader.error(key, f"an id not used on line {first_line[task.task_id]}", task.task_id, "another id")
        first_line[task.task_id] = number
        tasks.append(task)
    if not tasks:
        raise InvalidInput(
            str(samples), "(whole file)", "at least one task, one JSON object per line", "no line", "{…}"
        )
    return tasks


def select(
    tasks: Sequence[Task],
    *,
    task_ids: Sequence[str] | None = None,
    subset: int | None = None,
    shard: tuple[int, int] | None = None,
) -> list[Task]:
    """The asked-for tasks, in file order. Unknown ids and empty selections are errors, never 'everything'.

    Args:
        task_ids: exactly these.
        subset: this many, evenly spaced: positions ``i * total // subset``. Integer arithmetic makes subsets nest:
            where `n` divides `m`, subset `n` lies in subset `m`, for every total.
        shard: (i, n) with 1 <= i <= n: of what the other two leave, every n-th task starting at the i-th.
    """
    if task_ids is not None and subset is not None:
        raise InvalidInput("config", "task_ids, subset", "one of the two", "both", "subset: null")
    chosen = list(tasks)
    if task_ids is not None:
        chosen = _by_id(tasks, task_ids)
    if subset is not None:
        if not 1 <= subset <= len(tasks):
            raise InvalidInput(
                "config", "subset", f"1 to {len(tasks)} (the number of tasks)", subset, f"subset: {min(10, len(tasks))}"
            )
        chosen = [tasks[position] for position in subset_positions(len(tasks), subset)]
    if shard is not None:
        index, count = shard
        chosen = chosen[index - 1 :: count]
        if not chosen:
            raise InvalidInput(
                "config",
                "shard",
                f"a shard that holds a task (there are fewer than {count})",
                f"{index}/{count}",
                "shard: 1/1",
            )
    return chosen


def subset_positions(total: int, count: int) -> list[int]:
    """Positions of the evenly spaced subset: ``i * total // count`` for i in 0 … count-1, exact."""
    return [i * total // count for i in range(count)]


def _by_id(tasks: Sequence[Task], wanted: Sequence[str]) -> list[Task]:
    if not wanted:
        raise InvalidInput("config", "task_ids", "at least one id, or null for all", "an empty list", "task_ids: null")
    known = {task.task_id: task for task in tasks}
    # A bare 001 reaches us from the command line as the number 1.
    unpadded: dict[str, list[str]] = {}
    for name in known:
        unpadded.setdefault(name.lstrip("0") or "0", []).append(name)
    chosen: set[str] = set()
    for name in wanted:
        candidates = [name] if name in known else unpadded.get(name, [])
        if len(candidates) != 1:
            near = difflib.get_close_matches(name, known, 1, 0.5) or [next(iter(known))]
            raise InvalidInput("config", "task_ids", "ids of the task file", name, f"task_ids: {near[0]}")
        chosen.add(candidates[0])
    return [task for task in tasks if task.task_id in chosen]


class _Reader:
    """Typed access to the fields of one line, with errors that name line and field."""

    def __init__(self, where: str, fields: dict[str, Any]) -> None:
        self.where, self.fields = where, fields

    def error(self, key: str, expected: str, found: object, fix: str) -> InvalidInput:
        return InvalidInput(self.where, key, expected, found, f'"{key}": {fix}')

    def get(self, key: str, check: Callable[[Any], bool], expected: str, fix: str, default: Any = ...) -> Any:
        if key not in self.fields:
            if default is not ...:
                return default
            raise self.error(key, expected, "no such field", fix)
        value = self.fields[key]
        if not check(value):
            raise self.error(key, expected, value, fix)
        return value

    def string(self, key: str, default: Any = ...) -> str:
        return str(
            self.get(key, lambda v: isinstance(v, str) and bool(v.strip()), "a string with text", '"…"', default)
        )


def _online(reader: _Reader, root: Path) -> Task:
    task_id = _task_id(reader, "task_id")
    budget = reader.get("step_budget", _is_budget, f"a whole number from 1 to {MAX_BUDGET}", "15")
    image = _image(reader, root, "online", task_id)
    given = reader.get("milestones", lambda v: isinstance(v, list), "a list", "[]", [])
    milestones = tuple(_milestone(reader, position, item) for position, item in enumerate(given))
    names = [milestone.id for milestone in milestones]
    if len(set(names)) < len(names):
        raise reader.error("milestones", "ids that differ", names, '[{"id": "m1", …}, {"id": "m2", …}]')
    used = ("task_id", "instruction", "step_budget", "milestones")
    return Task(
        task_id=task_id,
        track="online",
        instruction=reader.string("instruction"),
        step_budget=budget,
        milestones=milestones,
        category=reader.string("category", ""),
        **image,
        **_common(reader, used),
    )


def _offline(reader: _Reader, root: Path) -> Task:
    task_id = _task_id(reader, "sample_id")
    image = _image(reader, root, "offline", task_id)
    instruction = reader.string("task_instruction")
    reference = root / "offline_data" / task_id / "reference_trajectory.jsonl"
    if not reference.is_file():
        raise reader.error("sample_id", f"the recorded actions in {reference}", "no such file", f'"{task_id}"')
    actions = tuple(_recorded(reference, image["width"], image["height"]))
    if not 1 <= len(actions) <= MAX_BUDGET:
        raise InvalidInput(str(reference), "(whole file)", f"1 to {MAX_BUDGET} recorded actions", len(actions), "{…}")
    steps = reader.get("n_steps", _is_budget, "the number of recorded actions", str(len(actions)), len(actions))
    if steps != len(actions):
        raise reader.error("n_steps", f"{len(actions)}, the lines of {reference}", steps, str(len(actions)))
    folder = image["image"].parent
    after = [folder / f"step_{step:03d}_after.png" for step in range(len(actions))]
    missing = [path for path in after if not path.is_file()]
    for path in after if not missing else []:
        if (size := _png_header(path)) != (image["width"], image["height"]):
            shown = f"{size[0]}×{size[1]}" if size else "no PNG"
            expected = f"a PNG of {image['width']}×{image['height']} at {path}, as large as the first screen"
            raise reader.error("sample_id", expected, shown, f'"{task_id}"')
    if missing and len(missing) < len(after):
        found = f"{len(after) - len(missing)} of {len(after)}; {missing[0]} is missing"
        raise reader.error("sample_id", "a true screen after every action, or none at all", found, f'"{task_id}"')
    apps = reader.fields.get("source_apps")
    return Task(
        task_id=task_id,
        track="offline",
        instruction=instruction,
        step_budget=len(actions),
        actions=actions,
        category=reader.string("source_category", ""),
        **image,
        **_common(reader, ("sample_id", "task_instruction", "n_steps"), apps),
    )


def _common(reader: _Reader, used: Sequence[str], apps: Any = None) -> dict[str, Any]:
    environment = reader.get(
        "environment",
        lambda v: v is None or (isinstance(v, dict) and isinstance(v.get("kind"), str)),
        "an object with a string 'kind', or null",
        '{"kind": "miniwob", "page": "login-user", "seed": 0}',
        None,
    )
    apps = apps if apps is not None else reader.fields.get("apps") or []
    named = [apps] if isinstance(apps, str) else apps
    template = reader.fields.get("template_id")
    return {
        "environment": environment,
        "apps": tuple(str(app) for app in named),
        "template_id": "" if template is None else str(template),
        "meta": {key: value for key, value in reader.fields.items() if key not in used},
    }


def _recorded(path: Path, width: int, height: int) -> Iterator[Action]:
    expected_step = 0
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        reader = _Reader(f"{path}:{number}", _object(line, f"{path}:{number}"))
        if reader.fields.get("step_id") != expected_step:
            found = reader.fields.get("step_id", "no such field")
            raise reader.error("step_id", f"{expected_step} (steps count from 0)", found, str(expected_step))
        record = reader.get("semantic_action", lambda v: isinstance(v, dict), "an object", '{"type": "tap", …}')
        try:
            action = Action.from_semantic(record, width, height)
        except InvalidAction as error:
            raise reader.error("semantic_action", "a legal action", str(error), '{"type": "tap", …}') from error
        expected_step += 1
        yield action


def _milestone(reader: _Reader, position: int, item: Any) -> Milestone:
    key = f"milestones[{position}]"
    example = '{"id": "m1", "type": ["progress"], "assertion": "…"}'
    if not isinstance(item, dict):
        raise reader.error(key, "an object", item, example)
    types = item.get("type")
    types = [types] if isinstance(types, str) else types
    if not isinstance(types, list) or not types or any(t not in MILESTONE_TYPES for t in types):
        raise reader.error(f"{key}.type", f"a list of {', '.join(MILESTONE_TYPES)}", item.get("type"), '["progress"]')
    for name in ("id", "assertion"):
        if not isinstance(item.get(name), str) or not item[name].strip():
            raise reader.error(f"{key}.{name}", "a string with text", item.get(name, "no such field"), '"…"')
    return Milestone(item["id"], tuple(types), item["assertion"])


def _image(reader: _Reader, root: Path, track: Track, task_id: str) -> dict[str, Any]:
    relative = reader.string("initial_image", f"{track}_data/{task_id}/initial.png")
    pure = PurePosixPath(relative)
    # Compared by name, not by resolved path: a hub's cache keeps the real files elsewhere, behind links.
    if pure.is_absolute() or ".." in pure.parts:
        fix = f'"{track}_data/{task_id}/initial.png"'
        raise reader.error("initial_image", "a path inside the data folder", relative, fix)
    path = root / pure
    key = "initial_image"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise reader.error(key, f"a readable first screen at {path}", error.strerror or str(error), "…") from error
    width, height = _png_size(data, reader, key, path)
    return {"image": path, "width": width, "height": height, "image_sha256": bytes_digest(data)}


def _png_header(path: Path) -> tuple[int, int] | None:
    """Width and height from a PNG's first bytes (a set may hold gigabytes of pictures); None if it is none."""
    with open(path, "rb") as stream:
        head = stream.read(24)
    if len(head) < 24 or head[:8] != b"\x89PNG\r\n\x1a\n":
        return None
    return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])


def _png_size(data: bytes, reader: _Reader, key: str, path: Path) -> tuple[int, int]:
    import io

    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.format != "PNG":
                raise reader.error(key, f"a PNG at {path}", f"a {image.format} file", "…")
            size = image.size
            image.verify()  # walks all chunks and their checksums without decoding the pixels
    except InvalidInput:
        raise
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and struct.error for broken files
        raise reader.error(key, f"a whole PNG at {path}", f"{type(error).__name__}: {error}", "…") from error
    if min(size) < MIN_SIDE:
        expected = f"a screen of at least {MIN_SIDE}×{MIN_SIDE} pixels at {path}"
        raise reader.error(key, expected, f"{size[0]}×{size[1]}", "…")
    return size


def _task_id(reader: _Reader, key: str) -> str:
    task_id = reader.string(key)
    if not TASK_ID.fullmatch(task_id):
        fix = re.sub(r"[^A-Za-z0-9._-]+", "-", task_id).lstrip("._-")[:100] or "task-1"
        expected = "up to 100 of A-Z a-z 0-9 . _ - beginning with a letter or digit (it becomes a folder's name)"
        raise reader.error(key, expected, task_id, f'"{fix}"')
    return task_id


def _id_key(track: Track) -> str:
    return "task_id" if track == "online" else "sample_id"


def _is_budget(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_BUDGET


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise InvalidInput(f"{path}:{line}", "(encoding)", "UTF-8", error.reason, f"iconv -t UTF-8 {path}") from error


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair parses, and can be written nowhere
    except ValueError as error:
        raise InvalidInput(
            where, "(whole line)", "one JSON object", f"{error}: {line[:80]}", '{"task_id": …}'
        ) from error
    if not isinstance(value, dict):
        raise InvalidInput(where, "(whole line)", "one JSON object", line[:80], '{"task_id": …}')
    return value
