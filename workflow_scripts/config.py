"""The configuration as typed models, and the errors that a wrong one gets.

Order of precedence: ``config/models.yaml`` and ``config/config.yaml`` (documented defaults), then ``--configfile``,
then ``--config key=value``; mappings are merged key by key, everything else is replaced. Unknown keys are refused.
Importable without Snakemake. Left out: knobs of the run itself (cores, executor, rerun triggers), which live in
``profiles/``.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from .estimate import Expect
from .failures import InvalidInput
from .records import write_bytes
from .scoring.rows import JudgeRow, Metrics
from .slurm import Slurm
from .tasks import Track
from .worlds.registry import FAMILIES
from .worlds.rows import WorldRow

if TYPE_CHECKING:
    from .train_rows import RunRow

SOURCE = "config (config/*.yaml, --configfile, --config)"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._]*")
"""Names of models, settings and planners: parts of paths. No hyphen: it separates a setting from its repeat."""


def _split(value: Any) -> Any:
    """``a,b`` from the command line, a single value, or a list: always a list of strings."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return [str(value)]
    if isinstance(value, (list, tuple)):
        return [str(part) if isinstance(part, (int, float)) and not isinstance(part, bool) else part for part in value]
    return value


M = TypeVar("M", bound=BaseModel)

Names = Annotated[list[str], BeforeValidator(_split)]


class Strict(BaseModel):
    """Base of all blocks: unknown keys and silent conversions are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ReferencePlanner(Strict):
    """Carries out the recorded actions of the offline track."""

    kind: Literal["reference"] = Field("reference", description="Recorded actions.")

    @property
    def track(self) -> Track:
        return "offline"


class OpenAIPlanner(Strict):
    """A vision-language model behind an OpenAI-compatible chat endpoint; the online track."""

    kind: Literal["openai"] = Field("openai", description="A VLM called through the OpenAI API.")
    model: str = Field("gpt-5.5", description="Model name sent to the endpoint.")
    base_url: str = Field("https://api.openai.com/v1", description="Endpoint; not part of any identity.")
    api_key_env: str | None = Field(
        "OPENAI_API_KEY", description="Environment variable that holds the key; null for an endpoint without keys."
    )
    temperature: float = Field(1.0, ge=0, le=2, strict=False, description="Sampling temperature.")
    max_tokens: int = Field(4096, ge=1, description="Largest length of a reply in tokens.")
    timeout_s: float = Field(120, gt=0, strict=False, description="Time-out of one request in seconds.")
    max_attempts: int = Field(15, ge=1, le=100, description="Requests per step, for bad replies and passing errors.")
    strict_model: bool = Field(False, description="Refuse replies that name another model.")
    extra_body: dict[str, Any] = Field({}, description="Further fields of the request body.")

    @property
    def track(self) -> Track:
        return "online"


PlannerRow = Annotated[ReferencePlanner | OpenAIPlanner, Field(discriminator="kind")]


class Setting(Strict):
    """One way of running a model: how much history it sees, and optionally another planner."""

    history: int = Field(0, ge=0, le=50, description="Earlier (screen, action) pairs the world model is shown.")
    planner: str | None = Field(None, description="Planner of this setting; null takes the top-level one.")


class Config(Strict):
    """Everything in config/config.yaml."""

    model: Names = Field(["browser"], min_length=1, description="World models, rows of config/models.yaml.")
    setting: Names = Field(["nohist"], min_length=1, description="Settings, keys of `settings`.")
    planner: str = Field("reference", description="Who acts, a key of `planners`.")
    tasks: str = Field("data/miniwob", description="Folder of a task set in GUI-CC's layout.")
    task_ids: Names | None = Field(None, description="Only these tasks.")
    subset: int | None = Field(None, ge=1, description="An evenly spaced subset of this many tasks.")
    shard: str | None = Field(None, description="i/n: the i-th of n parts of the selection, for sharding by hand.")
    shards: int | None = Field(
        None, ge=1, le=1000, description="Roll each model out in this many jobs; null: in the process that plans."
    )
    expect: Expect = Field(Expect.model_validate({}), description="What a step takes, until it was measured here.")
    slurm: Slurm = Field(Slurm.model_validate({}), description="Resources of the jobs that are queued on a cluster.")
    seed: int = Field(0, ge=0, description="Enters the seed of every step beside task and step.")
    seeds: int = Field(1, ge=1, le=100, description="Repeats of every row; repeat r lies in `{setting}-r{r}`.")
    tasks_in_flight: int = Field(8, ge=1, le=1000, description="Tasks that wait for a reply at the same time.")
    settings: dict[str, Setting] = Field({}, description="Settings by name.")
    planners: dict[str, PlannerRow] = Field({}, description="Planners by name.")
    judge: Names = Field([], description="Judges that score, keys of `judges`; none: local metrics only.")
    judges: dict[str, JudgeRow] = Field({}, description="Judges by name.")
    metrics: Metrics = Field(Metrics.model_validate({}), description="What is measured without a judge.")
    run: Names | None = Field(None, description="Training runs, keys of `runs`, for `train` and `export`.")
    runs: dict[str, dict[str, Any]] = Field({}, description="Training runs by name; see docs/training.md.")
    models: dict[str, dict[str, Any]] = Field({}, description="World models by name; see docs/configuration.md.")

    @field_validator("shard")
    @classmethod
    def _shard(cls, value: str | None) -> str | None:
        parse_shard(value)
        return value

    @model_validator(mode="after")
    def _one_division(self) -> Config:
        if self.shard is not None and self.shards is not None:
            raise ValueError("shard: null (a run with shards divides the tasks itself)")
        return self

    def world_row(self, name: str) -> WorldRow:
        """The typed row of a world model. Raises InvalidInput."""
        rows = self.models
        if name not in rows:
            raise _unknown_name("model", name, rows)
        fields = rows[name]
        family = fields.get("family")
        if family not in FAMILIES:
            near = difflib.get_close_matches(str(family), FAMILIES, 1, 0) or list(FAMILIES)
            expected = "one of " + ", ".join(FAMILIES)
            raise InvalidInput(SOURCE, f"models.{name}.family", expected, family, f"family: {near[0]}")
        return validated(FAMILIES[family].row, fields, ("models", name))

    def planner_row(self, name: str) -> ReferencePlanner | OpenAIPlanner:
        """The typed row of a planner. Raises InvalidInput."""
        if name not in self.planners:
            raise _unknown_name("planner", name, self.planners)
        return self.planners[name]

    def judge_row(self, name: str) -> JudgeRow:
        """The typed row of a judge. Raises InvalidInput."""
        if name not in self.judges:
            raise _unknown_name("judge", name, self.judges)
        return self.judges[name]

    def train_row(self, name: str) -> RunRow:
        """The typed row of a training run. Raises InvalidInput."""
        from .train_rows import RunRow  # which imports this module

        if name not in self.runs:
            raise _unknown_name("run", name, self.runs)
        return validated(RunRow, self.runs[name], ("runs", name))

    def setting_row(self, name: str) -> Setting:
        """The typed row of a setting. Raises InvalidInput."""
        if name not in self.settings:
            raise _unknown_name("setting", name, self.settings)
        return self.settings[name]


def parse_shard(value: str | None) -> tuple[int, int] | None:
    """``"2/8"`` as (2, 8); counts from 1. Raises ValueError."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", value.strip())
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError("i/n with 1 <= i <= n, e.g. 1/8")
    return int(match[1]), int(match[2])


def load(raw: Mapping[str, Any], models: Mapping[str, Any]) -> Config:
    """The configuration from Snakemake's merged mapping and the rows of config/models.yaml. Raises InvalidInput."""
    merged = dict(raw)
    own = merged.get("models") or {}
    if not isinstance(own, Mapping):
        raise InvalidInput(SOURCE, "models", "a mapping of names to rows", own, "models: {my_model: {family: html}}")
    rows: dict[str, Any] = {name: dict(row) for name, row in models.items()}
    for name, row in own.items():
        if not isinstance(row, Mapping):
            raise InvalidInput(SOURCE, f"models.{name}", "a mapping with 'family'", row, f"{name}: {{family: html}}")
        rows[name] = {**rows.get(name, {}), **row}
    merged["models"] = rows
    config = validated(Config, merged, ())
    for key in ("models", "settings", "planners", "judges", "runs"):
        names: Mapping[str, Any] = getattr(config, key)
        for name in names:
            if not NAME.fullmatch(name):
                expected = "letters, digits, dot and underscore, beginning with a letter or digit"
                fixed = re.sub(r"[^A-Za-z0-9._]+", "_", name).lstrip("._") or "name"
                raise InvalidInput(SOURCE, f"{key}.{name}", expected, name, f"{fixed}: …")
    for key, chosen in (("model", config.model), ("setting", config.setting), ("run", config.run or [])):
        if len(set(chosen)) < len(chosen):
            raise InvalidInput(SOURCE, key, "each name once", chosen, f"{key}: {','.join(dict.fromkeys(chosen))}")
    return config


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A YAML file that holds a mapping. Raises InvalidInput with file and line for a tab, a stray colon …"""
    import yaml

    try:
        value = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line_number = mark.line + 1 if mark else 1
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        line = lines[line_number - 1] if line_number <= len(lines) else ""
        what = f"{getattr(error, 'problem', error)}: {line!r}"
        fix = line.replace("\t", "  ") if "\t" in line else "key: value"
        expected = "YAML (spaces, never tabs, for indentation)"
        raise InvalidInput(f"{path}:{line_number}", "(syntax)", expected, what, fix) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(str(path), "(encoding)", "UTF-8", str(error), f"iconv -t UTF-8 {path}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(str(path), "(whole file)", "keys and values", type(value).__name__, "model: browser")
    return value


def validated(cls: type[M], fields: Mapping[str, Any], path: tuple[str, ...]) -> M:
    """`fields` as `cls`; the first fault becomes an InvalidInput that names the key and shows the corrected line."""
    try:
        return cls.model_validate(dict(fields))
    except ValidationError as error:
        raise _explained(cls, error, path) from error


def _explained(cls: type[BaseModel], error: ValidationError, path: tuple[str, ...]) -> InvalidInput:
    fault = error.errors(include_url=False)[0]
    location = [str(part) for part in fault["loc"]]
    if location[:1] == ["planners"] and len(location) > 2:
        del location[2]  # the union's tag, which is no key of the file
    if fault["type"] in ("union_tag_invalid", "union_tag_not_found"):
        location.append("kind")
    key = ".".join([*path, *location])
    name = location[-1] if location else "…"
    owner, field = _owner(cls, location)
    if fault["type"] == "extra_forbidden":
        known = list(owner.model_fields) if owner else []
        near = difflib.get_close_matches(name, known, 1, 0.4)
        expected = f"a known key ({', '.join(known)})" if known else "a known key"
        fix = f"{near[0]}: {_yaml(fault['input'])}" if near else f"# remove {name}"
        return InvalidInput(SOURCE, key, expected, f"the unknown key {name!r}", fix)
    message = re.sub(r"^(Value error, |Input should be )", "", fault["msg"])
    found = "nothing" if fault["type"] == "missing" else fault["input"]
    if name == "kind" and isinstance(found, dict):
        return InvalidInput(SOURCE, key, "one of reference, openai", found.get("kind", "nothing"), "kind: openai")
    default = field.get_default(call_default_factory=True) if field is not None and not field.is_required() else "…"
    return InvalidInput(SOURCE, key, message, found, f"{name}: {_yaml(default)}")


def _owner(cls: type[BaseModel], location: list[str]) -> tuple[type[BaseModel] | None, Any]:
    """The model class whose field `location` names, and that field's description."""
    owner: type[BaseModel] | None = cls
    field = None
    for part in location:
        if owner is None or part not in owner.model_fields:
            nested: list[type[BaseModel]] = _models_in(field.annotation) if field is not None else []
            match = [c for c in nested if part in c.model_fields]
            if match:
                owner, field = match[0], match[0].model_fields[part]
                continue
            if nested:
                owner, field = nested[-1], None
            continue
        field = owner.model_fields[part]
    return owner, field


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]


def _unknown_name(key: str, name: str, known: Mapping[str, Any]) -> InvalidInput:
    near = difflib.get_close_matches(name, known, 1, 0.3) or list(known)[:1] or ["…"]
    return InvalidInput(SOURCE, key, "one of " + ", ".join(known), name, f"{key}: {near[0]}")


def _yaml(value: Any) -> str:
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z0-9_./-]+", value):
        return json.dumps(value, ensure_ascii=False)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def schema() -> dict[str, Any]:
    """JSON schema of config.yaml with the rows of all families, for editors (yaml-language-server)."""
    whole = Config.model_json_schema()
    rows = [family.row.model_json_schema() for family in FAMILIES.values()]
    for row in rows:
        whole["$defs"].update(row.pop("$defs", {}))
    whole["properties"]["models"]["additionalProperties"] = {"anyOf": rows}
    from .train_rows import RunRow

    run = RunRow.model_json_schema()
    whole["$defs"].update(run.pop("$defs", {}))
    whole["properties"]["runs"]["additionalProperties"] = run
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole}


def schema_bytes() -> bytes:
    """The file config/schemas/config.schema.json."""
    return (json.dumps(schema(), indent=1, sort_keys=True) + "\n").encode()


def main(arguments: list[str] | None = None) -> int:
    """``python -m workflow_scripts.config`` writes the schema; ``--check`` only compares."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--check", action="store_true")
    path = Path(__file__).parents[1] / "config/schemas/config.schema.json"
    if parser.parse_args(arguments).check:
        same = path.is_file() and path.read_bytes() == schema_bytes()
        print("up to date" if same else f"{path} is out of date: python -m workflow_scripts.config", file=sys.stderr)
        return 0 if same else 1
    write_bytes(path, schema_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
