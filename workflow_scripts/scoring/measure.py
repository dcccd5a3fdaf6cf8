"""All measured (not judged) scores of one episode against its true screens, as one record.

Per transition k the predicted frame k + 1 is compared with the true one, and what changed is what changed between the
true frames k and k + 1. A copy is the *true* frame k: what a model would have scored that returned the last screen.
Left out: episodes without true screens (online tasks that are made from no real page).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..failures import InfrastructureFailure
from ..identity import digest, file_digest
from ..records import SCHEMA_VERSION
from . import metrics
from .aggregate import Steps
from .episodes import Episode
from .features import METRIC_OF, FeatureModel
from .metrics import Ocr, compare, load_frame


def measure_identity(episode: Episode, ocr: Ocr | None, features: Sequence[FeatureModel]) -> str:
    """Digest of the metrics' version, the reader's, the backbones', and of the bytes of all screens."""
    try:
        screens = [[file_digest(path) for path in paths] for paths in (episode.frames, episode.true)]
    except OSError as error:
        raise InfrastructureFailure("frame_missing", f"cannot read {error.filename}: {error.strerror}") from error
    return digest(
        {
            "version": metrics.VERSION,
            "ocr": ocr.version() if ocr else None,
            "features": [model.settings.identity() for model in features],
            "screens": screens,
        }
    )


def measure(episode: Episode, ocr: Ocr | None = None, features: Sequence[FeatureModel] = ()) -> dict[str, Any]:
    """Scores every transition that the episode reached.

    Returns:
        ``{schema, record: "measured", identity, task_id, transitions: [{step, changed, changed_area, copies_previous,
        resized, scores, copy, blank}, …]}``, the last three as `metrics.compare` gives them, with S_sig and S_dino
        beside `scores` and `copy` where `features` has their backbones.

    Raises InfrastructureFailure: ``no_true_screens``, ``frame_missing``, ``frame_unreadable``, ``frame_size``, and what
    reader and backbones raise.
    """
    if not episode.true:
        message = f"{episode.task.task_id} has no true screens to compare with"
        raise InfrastructureFailure("no_true_screens", message)
    identity = measure_identity(episode, ocr, features)
    transitions: list[dict[str, Any]] = []
    true = load_frame(episode.true[0])
    for step in episode.transitions:
        previous = true if transitions and transitions[-1]["step"] == step - 1 else load_frame(episode.true[step])
        true = load_frame(episode.true[step + 1])
        found = compare(previous, true, load_frame(episode.frames[step + 1]), ocr)
        transitions.append({"step": step, **found})
    after = [step + 1 for step in episode.transitions]
    for model in features:
        truth = [episode.true[k] for k in after]
        predicted = model.similarities(truth, [episode.frames[k] for k in after])
        copied = model.similarities(truth, [episode.true[k - 1] for k in after])
        for transition, score, copy in zip(transitions, predicted, copied, strict=True):
            transition["scores"][METRIC_OF[model.settings.kind]] = score
            transition["copy"][METRIC_OF[model.settings.kind]] = copy
    return {
        "schema": SCHEMA_VERSION,
        "record": "measured",
        "identity": identity,
        "task_id": episode.task.task_id,
        "transitions": transitions,
    }


def steps_of(record: Mapping[str, Any]) -> Steps:
    """The scores of a record of `measure` per metric, for `aggregate.score_episode`.

    Beside each metric stand ``{metric}_copy`` and ``{metric}_blank``, what these scored. ``consistent`` is change_aware
    where something changed and stay where nothing did: the course that survival curves are drawn from.
    """
    transitions = record["transitions"]
    steps: dict[str, list[float | None]] = {}
    for side, suffix in (("scores", ""), ("copy", "_copy"), ("blank", "_blank")):
        for metric in dict.fromkeys(name for transition in transitions for name in transition[side]):
            steps[metric + suffix] = [transition[side].get(metric) for transition in transitions]
    steps["consistent"] = [
        transition["scores"]["change_aware" if transition["changed"] else "stay"] for transition in transitions
    ]
    return steps
