"""Rule `measure`: the local metrics of one rollout, each transition against the true next screen where there is one.

True screens: on the offline track the recorded ones; on the online track, for tasks with a page, the page itself is
replayed with the actions the agent took, and its screens are kept beside the scores. Where there is neither, the record
says so and holds no transitions. S_sig and S_dino are added where weights are configured. Left out: judged metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chain import content_digest, read_record, to_frame
from .identity import digest
from .records import SCHEMA_VERSION, write_bytes, write_json
from .scoring.episodes import Episode, read_episode
from .scoring.features import FeatureModel, FeatureSettings, Kind
from .worlds.registry import make_world
from .worlds.rows import BrowserRow

if TYPE_CHECKING:
    from .plan import Row
    from .scoring.rows import Metrics
    from .tasks import Task

BACKBONES: tuple[Kind, ...] = ("siglip", "dinov2")


@dataclass
class Measures:
    """What is measured, and the loaded models that it takes (once per process)."""

    settings: Metrics

    def __post_init__(self) -> None:
        self.features: list[FeatureModel] = []
        for kind in BACKBONES:
            backbone = getattr(self.settings, kind)
            if backbone is not None:
                options = FeatureSettings(kind, backbone.source, backbone.revision, backbone.device)
                self.features.append(FeatureModel(options))
        self._ocr: Any = None

    @property
    def ocr(self) -> Any:
        """The text reader, or None."""
        if self.settings.ocr and self._ocr is None:
            from .scoring.metrics import Ocr

            self._ocr = Ocr("results/.cache/ocr")
        return self._ocr

    def identity(self) -> dict[str, Any]:
        """What changes a measured score."""
        from .scoring import metrics

        features = [model.settings.identity() for model in self.features]
        ocr = metrics.Ocr.version() if self.settings.ocr else None
        return {"version": metrics.VERSION, "ocr": ocr, "features": features}


def identity(row: Row, task: Task, measures: Mapping[str, Any]) -> str:
    """Identity of measured.json, the rollout aside (which stands in its inputs)."""
    from .browser.fonts import renderer_identity

    oracle = renderer_identity() if task.track == "online" and task.environment else None
    # Their sizes stand for the recorded screens: hashing gigabytes at every plan would cost more than it guards.
    true = [path.stat().st_size for path in task.true_images]
    return digest({"measures": dict(measures), "task": task.content(), "oracle": oracle, "true": true})


def content(trajectory: Mapping[str, Any]) -> str:
    """Digest of what a trajectory says, times aside."""
    return content_digest({key: value for key, value in trajectory.items() if key != "total_time_s"})


def main(row: Row, task: Task, measures: Measures, made_identity: str, output: Path) -> str:
    """Makes `output`: results/scores/{model}/{setting}/{task}/measured.json."""
    from .scoring.measure import measure

    trajectory = read_record(row.folder / task.task_id / "trajectory.json")
    episode = read_episode(row.folder, task, trajectory, row.run_sha256)
    if not episode.true and task.environment:
        episode = episode.with_true(oracle_screens(episode, output.parent))
    record = {
        "schema": SCHEMA_VERSION,
        "record": "measured",
        "identity": made_identity,
        "inputs": {"content": content(trajectory)},
        "task_id": task.task_id,
        "true": [_shown(path, output.parent) for path in episode.true],
        "true_screens": bool(episode.true),
        "transitions": measure(episode, measures.ocr, measures.features)["transitions"] if episode.true else [],
    }
    write_json(output, record)
    return f"{len(record['transitions'])} transitions"


def oracle_screens(episode: Episode, folder: Path) -> list[Path]:
    """The real page's screens under the actions of `episode`, kept as ``true_000.png`` … in `folder`."""
    from .actions import Action
    from .identity import seed_of
    from .worlds.base import StepRequest

    task = episode.task
    world = make_world(BrowserRow.model_validate({"family": "browser"}))
    size = (task.width, task.height)
    actions = tuple(Action.from_semantic(action, *size) for action in episode.actions)
    screens = [to_frame(task.image.read_bytes(), size)[0]]
    for step, action in enumerate(actions):
        seed = seed_of("oracle", task.task_id, step)
        request = StepRequest(task, step, task.image, action, (), actions[: step + 1], seed)
        screens.append(to_frame(world.predict(request).png, size)[0])
    paths = [folder / f"true_{number:03d}.png" for number in range(len(screens))]
    for path, screen in zip(paths, screens, strict=True):
        write_bytes(path, screen)
    return paths


def _shown(path: Path, folder: Path) -> str:
    """A true screen's path: beside the record where it was made there, else as given."""
    return path.name if path.parent == folder else str(path)
