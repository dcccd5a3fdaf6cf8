"""Rule `predict`: the world model predicts the screen after the action.

Writes ``prediction.png`` as the model gave it (as PNG), ``prediction.html`` where there is one, and, last,
``prediction.json``. A model failure is written down as a result; an infrastructure failure writes nothing and raises.
"""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .actions import Action
from .chain import (
    Ended,
    actions_until,
    base_record,
    clear,
    content_digest,
    picture,
    predict_identity,
    read_picture,
    read_record,
    step_folder,
    to_frame,
)
from .failures import ModelFailure
from .identity import bytes_digest, seed_of
from .records import png_bytes, write_bytes, write_json
from .worlds.base import Past, Prediction, StepRequest

if TYPE_CHECKING:
    from .plan import Row
    from .tasks import Task

NEAR_CONSTANT_STD = 0.5
"""Online, a frame whose values (0–255, all pixels and channels taken together) have a smaller standard deviation than
this is a model failure: GUI-CC's formula, by which one saturated colour is no failure, grey, white and black are."""


def main(row: Row, task: Task, step: int, output: Path) -> str:
    """Makes `output` (prediction.json of this step); returns its status: predicted, failed or skipped."""
    started = time.time()
    task_folder = row.folder / task.task_id
    folder = output.parent
    clear(folder, "prediction.json", "prediction.png", "prediction.html", "prediction.txt")
    acted = read_record(folder / "action.json")
    record = base_record("prediction", task, step, predict_identity(row, task), {"content": content_digest(acted)})
    if acted["status"] == "skipped":
        write_json(output, {**record, "status": "skipped", "ended": acted["ended"]})
        return "skipped"
    read_picture(folder, acted["frame"])  # the frame must still be the one the planner saw
    actions = actions_until(task_folder, task, step)
    action = actions[-1]
    if action.terminal:
        reason = {"terminate": "terminated", "answer": "answered"}[action.type]
        write_json(output, {**record, "status": "skipped", "ended": Ended(reason, step)._asdict()})
        return "skipped"
    request = StepRequest(
        task=task,
        step=step,
        frame=folder / "frame.png",
        action=action,
        history=_history(task_folder, actions, row.history),
        actions=actions,
        seed=seed_of("predict", task.task_id, step, row.seed, row.repeat),
    )
    prediction: Prediction | None = None
    try:
        prediction = row.world.predict(request)
        _write_prediction(record, prediction, row, task, folder)
        record["status"] = "predicted"
    except ModelFailure as failure:
        record.update(status="failed", failure=failure.record(), ended=Ended("model_failure", step)._asdict())
        if failure.detail.get("evidence"):
            record["evidence"] = failure.detail.pop("evidence")
    if prediction is not None:
        record["evidence"] = prediction.evidence
        if prediction.raw is not None:
            write_bytes(folder / "prediction.txt", prediction.raw.encode())
    record["timing"] = {"started": started, "seconds": round(time.time() - started, 3)}
    write_json(output, record)
    return str(record["status"])


def _history(task_folder: Path, actions: tuple[Action, ...], window: int) -> tuple[Past, ...]:
    step = len(actions) - 1
    return tuple(
        Past(k, step_folder(task_folder, k) / "frame.png", actions[k]) for k in range(max(0, step - window), step)
    )


def _write_prediction(record: dict[str, Any], prediction: Prediction, row: Row, task: Task, folder: Path) -> None:
    """Writes the pictures and names them in `record`. Raises ModelFailure for what is no usable screen."""
    import numpy
    from PIL import Image

    if prediction.html is not None:
        html = prediction.html.encode()
        write_bytes(folder / "prediction.html", html)
        record["html"] = {"path": "prediction.html", "sha256": bytes_digest(html), "bytes": len(html)}
    png = prediction.png
    try:
        frame, own_size, resized = to_frame(png, (task.width, task.height))
        if not png.startswith(b"\x89PNG"):
            with Image.open(io.BytesIO(png)) as image:
                png = png_bytes(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ModelFailure("undecodable_image", f"the prediction is no picture: {error}") from error
    write_bytes(folder / "prediction.png", png)
    record["prediction"] = picture("prediction.png", png, own_size)
    record.update(resized=resized, supported=prediction.supported)
    if prediction.page is not None:
        record["page"] = prediction.page
    with Image.open(io.BytesIO(frame)) as image:
        deviation = float(numpy.asarray(image).std())
    record["near_constant"] = deviation < NEAR_CONSTANT_STD
    if record["near_constant"] and task.track == "online" and not getattr(row.world, "near_constant_ok", False):
        raise ModelFailure("near_constant_image", f"the predicted screen is one colour (deviation {deviation:.3f})")
