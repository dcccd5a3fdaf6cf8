"""Makes the built-in tasks: ``python -m workflow_scripts.worlds.make_builtin_tasks data/miniwob``.

For every page and seed of `miniwob_experts.TEMPLATES` the expert is recorded, its actions are replayed through the
`browser` world, and the replay must end with the page's own reward of 1.0 on the very pixels that were recorded. Writes
both tracks in GUI-CC's layout, the same ids in each; a second run gives the same files byte for byte. Left out: the
licence and README beside the data, which are written by hand.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..actions import Action
from ..browser.pool import shared_pool
from ..identity import bytes_digest
from ..records import write_bytes
from ..tasks import Task
from .base import StepRequest
from .browser import BrowserWorld
from .miniwob import DEFAULT_SCALE, Environment, episode
from .miniwob_experts import TEMPLATES, Expert, Template
from .rows import BrowserRow

STEPS = range(2, 11)
MILESTONES = range(2, 6)
SPARE_STEPS = 5
"""How many actions more than the expert's a planner may use."""
RECORDING_S = 120.0


@dataclass(frozen=True)
class Recording:
    """An expert's episode: first screen, actions with the screens after them, milestones. Screens are PNG bytes."""

    template: Template
    environment: Environment
    instruction: str
    initial: bytes
    actions: tuple[Action, ...]
    screens: tuple[bytes, ...]
    milestones: tuple[Mapping[str, Any], ...]

    @property
    def task_id(self) -> str:
        return f"{self.environment.page}-s{self.environment.seed}"

    def online(self) -> dict[str, Any]:
        """The line of online_samples.jsonl."""
        return {
            "task_id": self.task_id,
            "source_task_name": self.environment.page,
            "template_id": self.environment.page,
            "category": self.template.category,
            "apps": [self.template.app],
            "step_budget": len(self.actions) + SPARE_STEPS,
            "instruction": self.instruction,
            "initial_state": self.template.screen,
            "milestones": list(self.milestones),
            "environment": self.environment.record(),
        }

    def offline(self) -> dict[str, Any]:
        """The line of offline_samples.jsonl."""
        return {
            "sample_id": self.task_id,
            "task_instruction": self.instruction,
            "task_meta": {"initial_state": self.template.screen},
            "n_steps": len(self.actions),
            "source_dataset": f"MiniWoB++ {version('miniwob')}",
            "source_episode_id": self.task_id,
            "source_category": self.template.category,
            "source_apps": [self.template.app],
            "environment": self.environment.record(),
        }

    def reference(self) -> list[dict[str, Any]]:
        """The lines of reference_trajectory.jsonl."""
        side = self.environment.side
        return [{"step_id": k, "semantic_action": a.semantic(side, side)} for k, a in enumerate(self.actions)]


def record(template: Template, seed: int) -> Recording:
    """Lets the template's expert play. Raises ValueError if that gives no task: wrong reward, length or milestones."""
    environment = Environment(template.page, seed, DEFAULT_SCALE)

    async def play() -> tuple[Expert, bytes, dict[str, Any]]:
        async with episode(shared_pool(), environment) as running:
            expert = Expert(running)
            initial = await running.frame()
            await template.expert(expert)
            return expert, initial, await running.state()

    expert, initial, state = shared_pool().run(play, RECORDING_S)
    name = f"{template.page}, seed {seed}"
    if not state["done"] or state["reward"] != 1.0:
        raise ValueError(f"{name}: the expert ended with {state}")
    if len(expert.steps) not in STEPS or len(expert.milestones) not in MILESTONES:
        raise ValueError(f"{name}: {len(expert.steps)} actions, {len(expert.milestones)} milestones")
    if "terminal_success" not in expert.milestones[-1]["type"]:
        raise ValueError(f"{name}: the last milestone is not terminal_success")
    return Recording(
        template=template,
        environment=environment,
        instruction=expert.goal,
        initial=_compact(initial),
        actions=tuple(step.action for step in expert.steps),
        screens=tuple(_compact(step.png) for step in expert.steps),
        milestones=tuple(expert.milestones),
    )


def verify(recording: Recording, image: Path) -> None:
    """Replays the actions as the loop would. Raises ValueError unless reward and last screen are the recorded ones."""
    side, last = recording.environment.side, len(recording.actions) - 1
    # Through the file's form and back: what is replayed is what a reader of the data set gets.
    actions = tuple(Action.from_semantic(line["semantic_action"], side, side) for line in recording.reference())
    task = Task(
        task_id=recording.task_id,
        track="offline",
        instruction=recording.instruction,
        step_budget=len(actions),
        image=image,
        width=side,
        height=side,
        image_sha256=bytes_digest(recording.initial),
        actions=actions,
        environment=recording.environment.record(),
    )
    request = StepRequest(task, last, image, actions[-1], (), actions, 0)
    prediction = BrowserWorld(BrowserRow(family="browser")).predict(request)
    if prediction.page != {"reward": 1.0, "done": True}:
        raise ValueError(f"{recording.task_id}: the replay ended with {prediction.page}")
    if _compact(prediction.png) != recording.screens[-1]:
        raise ValueError(f"{recording.task_id}: the replay ended on another screen than the recording")


def write(recordings: Sequence[Recording], folder: Path) -> None:
    """Writes both tracks; what an earlier run left in their folders goes first."""
    for track in ("online", "offline"):
        shutil.rmtree(folder / f"{track}_data", ignore_errors=True)
    for recording in recordings:
        online = folder / "online_data" / recording.task_id
        offline = folder / "offline_data" / recording.task_id
        write_bytes(online / "initial.png", recording.initial)
        write_bytes(offline / "initial.png", recording.initial)
        write_bytes(offline / "reference_trajectory.jsonl", _lines(recording.reference()))
        for step, png in enumerate(recording.screens):
            write_bytes(offline / f"step_{step:03d}_after.png", png)
    write_bytes(folder / "online_samples.jsonl", _lines([r.online() for r in recordings]))
    write_bytes(folder / "offline_samples.jsonl", _lines([r.offline() for r in recordings]))


def _lines(records: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def _compact(png: bytes) -> bytes:
    """The same pixels as a smaller RGB PNG."""
    from PIL import Image

    stream = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").save(stream, format="PNG", optimize=True)
    return stream.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workflow_scripts.worlds.make_builtin_tasks", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the data set is written, e.g. data/miniwob")
    folder: Path = parser.parse_args().folder
    recordings = []
    for template in TEMPLATES:
        for seed in template.seeds:
            recording = record(template, seed)
            verify(recording, folder / "online_data" / recording.task_id / "initial.png")
            print(f"{recording.task_id}: {len(recording.actions)} actions, {len(recording.milestones)} milestones")
            recordings.append(recording)
    write(recordings, folder)
    pages = {recording.environment.page for recording in recordings}
    print(f"{len(recordings)} tasks over {len(pages)} pages in {folder}")


if __name__ == "__main__":
    main()
