"""Every local family end to end: row of configuration, server started by the first request, HTTP, picture."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

pytest.importorskip("diffusers")

from tests.serving.conftest import CPU, screen
from workflow_scripts.actions import Action
from workflow_scripts.failures import InfrastructureFailure
from workflow_scripts.records import png_bytes
from workflow_scripts.serving.client import Endpoint, Patience, edit, get_json
from workflow_scripts.serving.launcher import ensure_server
from workflow_scripts.serving.spec import ServerSpec
from workflow_scripts.worlds import images
from workflow_scripts.worlds.base import StepRequest
from workflow_scripts.worlds.image_rows import IMAGE_FAMILIES, LocalImageRow
from workflow_scripts.worlds.images import LocalImageWorld

QUICK = Patience(timeout_s=60, attempts=1)


@pytest.fixture(autouse=True)
def _logs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "LOG_FOLDER", tmp_path_factory.getbasetemp() / "logs")


def world_of(weights: Callable[[str], Path], family: str, pipeline: str, **fields: Any) -> LocalImageWorld:
    """A world of the tiny pipeline, as its row in config/models.yaml would make it."""
    common = {
        "family": family,
        "pipeline": pipeline,
        "weights": str(weights(pipeline)),
        "dtype": "float32",
        "device": "cpu",
        "steps": 2,
        "max_pixels": 128 * 256,
        "reference_pixels": 128 * 256,
    }
    row = IMAGE_FAMILIES[family].model_validate({**common, **fields})
    assert isinstance(row, LocalImageRow)
    return LocalImageWorld(row)


def pixels(data: bytes) -> Any:
    return numpy.asarray(Image.open(io.BytesIO(data)).convert("RGB"), int)


def send(endpoint: Endpoint, seed: int, **changes: Any) -> bytes:
    """One request to a server that takes one picture or more."""
    extra = {"task": f"t{seed}", "steps": 2, "guidance": 1.0, **changes}
    fields = {"size": "128x256", "seed": str(seed), "extra": json.dumps(extra)}
    return edit(endpoint, prompt=f"tap {seed}", images=[png_bytes(screen(seed))], fields=fields, patience=QUICK).data


@pytest.mark.parametrize(
    ("family", "pipeline", "history_as"),
    [
        ("flux2", "flux2", "images"),
        ("flux2", "flux2_klein", "images"),
        ("flux2", "kontext", "text"),
        ("qwen_image_edit", "qwen_image_edit", "images"),
        ("mobileworld_diffusion", "pix2pix", "text"),
    ],
)
def test_a_family_predicts_through_its_server(
    weights: Callable[[str], Path],
    request_of: Callable[..., StepRequest],
    family: str,
    pipeline: str,
    history_as: str,
) -> None:
    world = world_of(weights, family, pipeline, history_as=history_as)
    assert world.preflight() == []
    requests = [request_of(number) for number in range(4)]
    singles = [world.predict(request) for request in requests]
    assert pixels(singles[0].png).shape == (256, 128, 3)
    assert singles[0].evidence["served_by"]["diffusers"]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(world.predict, requests))
    differences = [abs(pixels(a.png) - pixels(b.png)).max() for a, b in zip(singles, together, strict=True)]
    assert max(differences) <= 1
    with_history = world.predict(request_of(5, history=2))
    assert len(with_history.evidence["images"]) == (3 if history_as == "images" else 1)
    assert "step 0" in with_history.evidence["prompt"]
    assert "step 1" in with_history.evidence["prompt"]


def test_health_metrics_and_refusals(spec: Callable[..., ServerSpec], tmp_path: Path) -> None:
    endpoint = ensure_server(spec("kontext"), CPU, log_folder=tmp_path)
    status, health = get_json(endpoint, "/health", 5)
    assert (status, health["status"], health["pipeline"]) == (200, "ready", "FluxKontextPipeline")
    send(endpoint, 1)
    metrics = get_json(endpoint, "/metrics", 5)[1]
    assert "guiloop_server_answered_total" in metrics
    assert get_json(Endpoint(endpoint.base_url, "wrong", endpoint.socket), "/health", 5)[0] == 401
    assert Path(endpoint.socket or "").stat().st_mode & 0o077 == 0
    for fields in (
        {"size": "100x256", "seed": "1", "extra": '{"steps": 2, "guidance": 1}'},
        {"size": "128x256", "extra": '{"steps": 2, "guidance": 1}'},
        {"size": "128x256", "seed": "1", "extra": "{}"},
        {"size": "128x256", "seed": "x", "extra": '{"steps": 2, "guidance": 1}'},
    ):
        with pytest.raises(InfrastructureFailure) as caught:
            edit(endpoint, prompt="p", images=[png_bytes(screen(0))], fields=fields, patience=QUICK)
        assert caught.value.code == "bad_request"
    for pictures in ([b"no picture"], [png_bytes(screen(0))] * 2, []):
        good = {"size": "128x256", "seed": "1", "extra": '{"steps": 2, "guidance": 1}'}
        with pytest.raises(InfrastructureFailure) as caught:
            edit(endpoint, prompt="p", images=pictures, fields=good, patience=QUICK)
        assert caught.value.code == "bad_request"


def test_a_full_queue_is_waited_for_and_nobody_is_lost(spec: Callable[..., ServerSpec], tmp_path: Path) -> None:
    endpoint = ensure_server(spec("kontext", max_queue=4, reference_pixels=64 * 64), CPU, log_folder=tmp_path)
    with ThreadPoolExecutor(16) as pool:
        pictures = list(pool.map(lambda seed: send(endpoint, seed), range(16)))
    assert len(set(pictures)) == 16
    assert "guiloop_server_queue_full_total" in get_json(endpoint, "/metrics", 5)[1]


def test_the_action_reaches_the_picture(weights: Callable[[str], Path], request_of: Callable[..., StepRequest]) -> None:
    world = world_of(weights, "flux2", "kontext", history_as="text")
    tap = world.predict(request_of(1, Action("tap", x=20, y=30, target="the switch")))
    typed = world.predict(request_of(1, Action("type_text", text="hello")))
    assert abs(pixels(tap.png) - pixels(typed.png)).max() > 1
    assert "(0.156, 0.117)" in tap.evidence["prompt"]
    assert "hello" in typed.evidence["prompt"]
    assert tap.evidence["images"][0]["sha256"] != typed.evidence["images"][0]["sha256"]
