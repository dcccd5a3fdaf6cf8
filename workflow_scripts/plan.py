"""From the configuration to what is to be made: rows (model × setting × repeat), each with its tasks.

Reads task files and hashes prompts; starts, loads and connects to nothing, so that a dry run needs no GPU, key or
network.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import SOURCE, Config, parse_shard
from .failures import InvalidInput
from .identity import bytes_digest
from .planners.registry import make_planner
from .tasks import Task, Track, load_tasks, select
from .worlds.registry import make_world

if TYPE_CHECKING:
    from .planners.base import Planner
    from .worlds.base import World

ROLLOUTS = Path("results/rollouts")
HISTORY_NAMES = {False: "WM-NoHist", True: "WM-FullHist"}


@dataclass(frozen=True)
class Row:
    """One row of the tables.

    Attributes:
        model: key of config/models.yaml.
        setting: as it stands in paths: the setting's name, with ``-r{repeat}`` from the second repeat on.
        history: earlier (screen, action) pairs the world model is shown.
        seed, repeat: enter the seed of every step.
        tasks: the selection, in file order.
        all_tasks: the whole task set by id; a file of any of them can be asked for by name.
    """

    model: str
    family: str
    setting: str
    history: int
    seed: int
    repeat: int
    world: World
    planner: Planner
    planner_name: str
    track: Track
    tasks: tuple[Task, ...]
    all_tasks: Mapping[str, Task]
    tasks_path: str

    @property
    def folder(self) -> Path:
        """``results/rollouts/{model}/{setting}``."""
        return ROLLOUTS / self.model / self.setting

    @property
    def total_tasks(self) -> int:
        """How many tasks the set has."""
        return len(self.all_tasks)

    def task(self, task_id: str) -> Task:
        """A task of the set, selected or not. Raises InvalidInput."""
        if task_id not in self.all_tasks:
            near = difflib.get_close_matches(task_id, self.all_tasks, 1, 0.3) or list(self.all_tasks)[:1]
            raise InvalidInput("target", "task", f"a task of {self.tasks_path}", task_id, near[0])
        return self.all_tasks[task_id]

    @property
    def partial(self) -> bool:
        """Whether the selection leaves tasks out."""
        return len(self.tasks) < self.total_tasks

    @cached_property
    def world_identity(self) -> Mapping[str, Any]:
        """What of the world model changes a prediction."""
        return self.world.identity()

    @cached_property
    def tasks_by_id(self) -> dict[str, Task]:
        return {task.task_id: task for task in self.tasks}

    @cached_property
    def run(self) -> dict[str, Any]:
        """GUI-CC's ``_RUN`` block of rollout_results.json, with our additions under ``guiloop``."""
        model = {
            "model_id": self.model,
            "adapter": self.family,
            "history_setting": HISTORY_NAMES[self.history > 0],
            "history_window": self.history,
            "seed": self.seed,
            "repeat": self.repeat,
            "generation": dict(self.world_identity),
        }
        planner = {"name": self.planner_name, **self.planner.identity()}
        # GUI-CC's own formula for run_sha256; unlike GUI-CC we keep end points and devices out of both blocks.
        text = json.dumps({"model": model, "planner": planner}, sort_keys=True, ensure_ascii=False)
        return {
            "schema": "gui_cc_online_rollout",
            "tasks_file": f"{self.tasks_path}/{self.track}_samples.jsonl",
            "model": model,
            "planner": planner,
            "run_sha256": bytes_digest(text.encode()),
            "guiloop": {
                "track": self.track,
                "setting": self.setting,
                "tasks": len(self.tasks),
                "total_tasks": self.total_tasks,
                "partial": self.partial,
            },
        }

    @property
    def run_sha256(self) -> str:
        """Identity of the row's model and planner."""
        return str(self.run["run_sha256"])


class Rows:
    """The rows that a configuration asks for (iterate), and any other row by name (`get`), made when first needed.

    Args:
        config: the checked configuration.
        tasks: folder of the task set.

    Attributes:
        notes: combinations left out, for a person. A setting with history is left out for a model that does not look at
            history: its row would carry a wrong name.

    Raises InvalidInput for unknown names, faulty tasks, and where no row is left.
    """

    def __init__(self, config: Config, tasks: Path) -> None:
        self.config = config
        self.path = tasks
        self.notes: list[str] = []
        self._rows: dict[tuple[str, str], Row] = {}
        self._tasks: dict[Track, list[Task]] = {}
        self._worlds: dict[str, World] = {}
        self._asked: list[Row] = []
        for model in config.model:
            for setting in config.setting:
                if config.setting_row(setting).history and not config.world_row(model).uses_history:
                    self.notes.append(f"{model} × {setting} is left out: {model} does not look at earlier screens")
                    continue
                for repeat in range(config.seeds):
                    self._asked.append(self.get(model, setting if repeat == 0 else f"{setting}-r{repeat}"))
        if not self._asked:
            expected = f"a setting without history: {config.model[0]} does not look at earlier screens"
            raise InvalidInput(SOURCE, "setting", expected, ",".join(config.setting), "setting: nohist")

    def __iter__(self) -> Iterator[Row]:
        return iter(self._asked)

    def get(self, model: str, setting: str) -> Row:
        """The row of a path's {model} and {setting}, whether or not the configuration asks for it."""
        key = (model, setting)
        if key not in self._rows:
            self._rows[key] = self._make(model, setting)
        return self._rows[key]

    def _make(self, model: str, setting: str) -> Row:
        name, _, repeat = setting.partition("-r")
        chosen = self.config.setting_row(name)
        planner_name = chosen.planner or self.config.planner
        planner_row = self.config.planner_row(planner_name)
        track = planner_row.track
        if track not in self._tasks:
            self._tasks[track] = load_tasks(self.path, track)
        everything = self._tasks[track]
        config = self.config
        shard = parse_shard(config.shard)
        tasks = select(everything, task_ids=config.task_ids, subset=config.subset, shard=shard)
        if model not in self._worlds:
            self._worlds[model] = make_world(config.world_row(model))
        world = self._worlds[model]
        for task in tasks:
            if hasattr(world, "check_task"):
                world.check_task(task)
        return Row(
            model=model,
            family=config.world_row(model).family,
            setting=setting,
            history=chosen.history,
            seed=config.seed,
            repeat=int(repeat or 0),
            world=world,
            planner=make_planner(planner_row),
            planner_name=planner_name,
            track=track,
            tasks=tuple(tasks),
            all_tasks={task.task_id: task for task in everything},
            tasks_path=config.tasks,
        )
