"""A training run as the configuration describes it: the trainer's own fields, and how the workflow carries it out.

Importable without torch. Identities say what changes a result: how many iterations share a job, how many jobs help to
play episodes and how the run is evaluated do not change what is trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from .coder.train.config import Level, Number, TrainConfig
from .coder.train.schedule import total_iterations
from .config import Strict
from .failures import InvalidInput
from .identity import digest, seed_of
from .records import SCHEMA_VERSION, read_json, write_json

TRAIN = Path("results/train")
EXPORT = Path("results/export")
MAX_DEPTH = 240
"""Jobs in a row at most: Snakemake plans by recursion and overflows at about 720."""
RESOLVED = "config.resolved.json"
MANIFEST = "checkpoint.json"
"""Written last of an iteration's files (coder/train/checkpoint.py): without it the iteration is not finished."""


class WarmStart(Strict):
    """Supervised steps on procedural pages before the first update; see coder/train/warmstart.py."""

    mode: Literal["lora", "full"] = Field("lora", description="Train the Developer's adapter, or the whole model.")
    steps: int = Field(200, ge=1, description="Optimizer steps.")
    batch: int = Field(8, ge=1, description="Examples of a step.")
    examples: int = Field(1_000_000, ge=1, description="Different examples.")
    learning_rate: Number = Field(1e-4, gt=0, description="Peak; linear warm-up, then a cosine to a tenth.")
    clip_norm: Number = Field(1.0, gt=0, description="Largest norm of the gradient.")
    micro_batch_tokens: int = Field(8192, ge=1, description="Tokens of a micro-batch, padding included.")
    max_row_tokens: int = Field(20480, ge=2, description="Longer examples are skipped.")
    levels: list[Level] = Field(["easy", "medium", "hard"], min_length=1, description="Difficulties, cycled.")


class Evaluation(Strict):
    """Held-out pages that are drawn before and after training, in pairs."""

    pages: int = Field(20, ge=2, description="Held-out pages of each level.")
    repeats: int = Field(2, ge=2, description="Episodes of each page.")
    seed: int = Field(0, ge=0, description="Of the sampled tokens and the bootstrap; the same for every checkpoint.")
    independent: bool = Field(True, description="Also score first and last drafts with the other reward.")
    every: int | None = Field(
        None, ge=1, description="Iterations between looks at validation pages, which choose the best checkpoint."
    )
    validation_pages: int = Field(4, ge=1, description="Held-out pages of each level for that; none of `pages`.")


class RunRow(TrainConfig):
    """A training run (`runs.NAME`)."""

    reward: Literal["visible", "original"] = Field(
        "visible", description="What a draft is worth: what can be seen, or the eight-part reward, for comparison."
    )
    iterations_per_job: int = Field(10, ge=1, description="Iterations of one job: the base model is loaded once.")
    collectors: int = Field(0, ge=0, le=64, description="Further jobs, on other devices, that play episodes as well.")
    warm_start: WarmStart | None = Field(None, description="Supervised steps before the first update; null: none.")
    evaluation: Evaluation = Field(Evaluation.model_validate({}), description="Held-out evaluation.")
    export_iteration: Literal["last", "best"] | int = Field("last", description="Which iteration is exported.")

    @model_validator(mode="after")
    def _best(self) -> RunRow:
        if self.export_iteration == "best" and self.evaluation.every is None:
            raise ValueError("export_iteration: last (best is chosen on validation pages: set evaluation.every)")
        return self

    def train(self, folder: Path) -> TrainConfig:
        """What the trainer is given: with a whole warm start, its base is the one made in `folder`."""
        fields = self.model_dump(include=set(TrainConfig.model_fields))
        if self.warm_start is not None and self.warm_start.mode == "full":
            fields["model"]["base"] = str(folder / "warm_start" / "base")
            fields["model"]["revision"] = None
        return TrainConfig.model_validate(fields)

    @property
    def total(self) -> int:
        """Iterations of the whole schedule."""
        return total_iterations(self)

    def ends(self) -> list[int]:
        """The last iteration of every job, in order: multiples of a job's size, and the run's end.

        A schedule that grows keeps the ends that lie behind.
        """
        size = max(self.iterations_per_job, -(-self.total // MAX_DEPTH))
        return [*range(size, self.total, size), self.total]

    def end_before(self, iteration: int) -> int | None:
        """The end of the job before the one that makes `iteration`; None for the first."""
        return max((end for end in self.ends() if end < iteration), default=None)

    def warm_start_identity(self) -> str:
        """Digest of what changes the warm start."""
        assert self.warm_start is not None
        effort = {"model": {"device"}, "warm_start": {"micro_batch_tokens"}}
        fields = self.model_dump(include={"model", "warm_start", "seed"})
        return digest({k: _without(v, effort.get(k, set())) for k, v in fields.items()})

    def evaluation_identity(self) -> str:
        """Digest of what changes an evaluation of given checkpoints."""
        return digest(self.evaluation.model_dump(exclude={"every", "validation_pages"}))

    def page_groups(self, validation: bool = False) -> list[dict[str, Any]]:
        """Fields of the evaluation's groups (`schedule.GroupPlan`); validation pages follow after the test pages."""
        rules = self.evaluation
        first, count = (rules.pages, rules.validation_pages) if validation else (0, rules.pages)
        levels = list(dict.fromkeys(self.episodes.levels))
        pages = [(level, index) for level in levels for index in range(first, first + count)]
        return [
            {
                "number": number,
                "task_id": f"procedural/{level}/heldout/{index}",
                "level": level,
                "seed": seed_of("evaluation", rules.seed, level, index),
            }
            for number, (level, index) in enumerate(pages)
        ]


def _without(value: Any, names: set[str]) -> Any:
    return {k: v for k, v in value.items() if k not in names} if isinstance(value, dict) else value


def iteration_folder(folder: Path, iteration: int) -> Path:
    """Folder of an iteration."""
    return folder / f"iteration_{iteration:05d}"


def finished(folder: Path) -> list[int]:
    """Numbers of the finished iterations of a run, sorted."""
    return sorted(int(path.parent.name.removeprefix("iteration_")) for path in folder.glob(f"iteration_*/{MANIFEST}"))


def resolve(name: str, row: RunRow, folder: Path) -> None:
    """Writes config.resolved.json, from which the run's jobs read what to do. Raises InvalidInput as `refuse_other`."""
    refuse_other(name, row, folder)
    record = {
        "schema_version": SCHEMA_VERSION,
        "record": "training_run",
        "run": name,
        "identity": row.train(folder).identity(),
        "row": row.model_dump(mode="json"),
    }
    path = folder / RESOLVED
    if not path.is_file() or read_json(path) != record:
        write_json(path, record)


def resolved(folder: Path) -> tuple[str, RunRow]:
    """Name and row of the run in a folder, as `resolve` wrote them. Raises InvalidInput."""
    path = folder / RESOLVED
    try:
        record = read_json(path)
        return record["run"], RunRow.model_validate(record["row"])
    except (OSError, ValueError, KeyError) as error:
        fix = "snakemake --cores 8 train --config run=NAME"
        raise InvalidInput(str(path), "row", "a training run's configuration", str(error), fix) from error


def refuse_other(name: str, row: RunRow, folder: Path) -> None:
    """Raises InvalidInput if the folder holds iterations of another configuration."""
    done = finished(folder)
    if not done:
        return
    path = iteration_folder(folder, done[-1]) / MANIFEST
    try:
        found = read_json(path)["config"]
    except (OSError, ValueError, KeyError) as error:
        fix = f"delete {path} and run again: the iteration is made again"
        raise InvalidInput(str(path), "checkpoint", "a record of a finished iteration", str(error), fix) from error
    environment = folder / "environment.json"
    if environment.is_file() and (reward := read_json(environment)["reward"]) != row.reward:
        expected = f"the reward that {folder} was trained with"
        raise InvalidInput("config", f"runs.{name}.reward", expected, row.reward, f"reward: {reward}")
    if found != row.train(folder).identity():
        there = folder / RESOLVED
        changed = _changed(row, there)
        expected = f"the configuration that {folder} was trained with ({there})"
        what = f"another: {', '.join(changed)}" if changed else "another"
        raise InvalidInput("config", f"runs.{name}", expected, what, f"the old values, or another name than {name}")


def _changed(row: RunRow, path: Path) -> list[str]:
    """Keys of the trainer in which `row` differs from what the folder was made with, with both values."""
    try:
        before = read_json(path)["row"]
    except (OSError, ValueError, KeyError):
        return []
    old, new = (
        _flat({k: v for k, v in r.items() if k in TrainConfig.model_fields and k != "schedule"})
        for r in (before, row.model_dump(mode="json"))
    )
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return [f"{key} {old.get(key)!r} → {new.get(key)!r}" for key in keys]


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {path: value}
    return {k: v for key, inner in value.items() for k, v in _flat(inner, f"{path}.{key}" if path else key).items()}
