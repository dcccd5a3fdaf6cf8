"""Image worlds without weights: rows, prompts, cues, canvases, hosted models over real HTTP."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import yaml
from PIL import Image
from pydantic import ValidationError

from tests.serving.conftest import screen
from tests.serving.test_client import Images, gemini, picture
from workflow_scripts.actions import Action
from workflow_scripts.failures import InfrastructureFailure, InvalidInput
from workflow_scripts.identity import digest
from workflow_scripts.records import png_bytes
from workflow_scripts.worlds.base import StepRequest
from workflow_scripts.worlds.cues import draw_cue
from workflow_scripts.worlds.image_prompts import FOLDER, Prompt, action_phrase, step_prompt
from workflow_scripts.worlds.image_rows import IMAGE_FAMILIES, IMAGE_MAKERS, LocalImageRow
from workflow_scripts.worlds.images import Canvas, HostedImageWorld, LocalImageWorld, server_faults

ROOT = Path(__file__).parents[2]
ACTIONS = [
    Action("tap", x=10, y=20),
    Action("long_press", x=10, y=20, target="the photo"),
    Action("scroll", x=64, y=128, direction="up"),
    Action("type_text", text='say "hi" for $5'),
    Action("navigate_home"),
    Action("navigate_back"),
    Action("open_app", app_name="Clock"),
    Action("wait"),
]


def row(family: str, **fields: Any) -> Any:
    return IMAGE_FAMILIES[family].model_validate({"family": family, **fields})


def shipped() -> dict[str, dict[str, Any]]:
    files = (ROOT / "config" / name for name in ("models.yaml", "models_images.yaml"))
    rows: dict[str, dict[str, Any]] = {}
    for file in files:
        rows |= yaml.safe_load(file.read_text()) if file.is_file() else {}
    return {name: fields for name, fields in rows.items() if fields["family"] in IMAGE_FAMILIES}


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_row_is_valid_and_has_an_identity(name: str) -> None:
    parsed = row(**shipped()[name])
    world = LocalImageWorld(parsed) if isinstance(parsed, LocalImageRow) else HostedImageWorld(parsed)
    digest(world.identity())
    assert parsed.family in IMAGE_MAKERS


@pytest.mark.parametrize("family", IMAGE_FAMILIES)
def test_every_field_is_described(family: str) -> None:
    undescribed = [n for n, f in IMAGE_FAMILIES[family].model_fields.items() if n != "family" and not f.description]
    # A field that a family only gives another default keeps the description of its base.
    bases = [
        n
        for base in IMAGE_FAMILIES[family].__mro__[1:]
        for n, f in getattr(base, "model_fields", {}).items()
        if f.description
    ]
    assert set(undescribed) <= set(bases)


@pytest.mark.parametrize(
    "fields",
    [
        {"family": "flux2", "weights": "a/b", "stepz": 3},
        {"family": "flux2", "weights": "a/b", "steps": 0},
        {"family": "flux2", "weights": "a/b", "pipeline": "kontext"},
        {"family": "flux2", "weights": "a/b", "device": "tpu"},
        {"family": "gpt_image2", "sizes": ["large"]},
        {"family": "images_api", "model": "m"},
    ],
)
def test_bad_rows_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        row(**fields)


@pytest.mark.parametrize("name", ["flux2", "mobileworld_diffusion", "qwen_image_edit", "vimo", "hosted_image"])
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.type)
def test_every_prompt_fits_every_action(name: str, action: Action, request_of: Callable[..., StepRequest]) -> None:
    request = request_of(0, action, history=4)
    for history in ("text", "none") if name == "vimo" else ("images", "text", "none"):
        text = step_prompt(Prompt.load(name), request, cue=True, history=history)
        assert "$" not in text.replace("$5", "")
        assert "  " not in text
        assert not re.search(r"[.!?][A-Z]", text)
        assert text.endswith(".")


def test_qwen_gets_one_sentence_without_coordinates(request_of: Callable[..., StepRequest]) -> None:
    text = step_prompt(Prompt.load("qwen_image_edit"), request_of(), cue=False, history="none")
    assert text == "Turn this phone screenshot into the screen that appears after the user taps the button."
    assert not row("qwen_image_edit", weights="a/b").cue


def test_history_beyond_three_steps_is_told_in_order(request_of: Callable[..., StepRequest]) -> None:
    text = step_prompt(Prompt.load("flux2"), request_of(history=5), cue=True, history="images")
    assert [text.index(f"image {n} is the earlier screen of step {n - 2}") for n in range(2, 7)] == sorted(
        text.index(f"image {n} is the earlier screen of step {n - 2}") for n in range(2, 7)
    )


def test_a_recorded_instruction_is_used_as_it_is() -> None:
    action = Action("tap", x=1, y=2, target="x", instruction="Open the settings.")
    assert action_phrase(action, "the screen") == "does this: Open the settings"


def test_a_changed_prompt_changes_the_identity(tmp_path: Path) -> None:
    changed = tmp_path / "mine.md"
    changed.write_text((FOLDER / "flux2.md").read_text().replace("sharp", "crisp"))
    one = LocalImageWorld(row("flux2", weights="a/b")).identity()
    other = LocalImageWorld(row("flux2", weights="a/b", prompt=str(changed))).identity()
    assert digest(one) != digest(other)


def test_a_prompt_with_an_unknown_placeholder_is_refused(
    tmp_path: Path, request_of: Callable[..., StepRequest]
) -> None:
    bad = tmp_path / "bad.md"
    bad.write_text("## prompt\nDo $acton.\n")
    with pytest.raises(InvalidInput, match="acton"):
        step_prompt(Prompt.load(str(bad)), request_of(), cue=False, history="none")


def test_identity_ignores_where_and_how_fast() -> None:
    one = LocalImageWorld(row("flux2", weights="a/b")).identity()
    other = {"device": "cpu", "batch_size": 1, "offload": "model", "idle_s": 5, "endpoint": "http://x/v1"}
    assert one == LocalImageWorld(row("flux2", weights="a/b", **other)).identity()
    assert one != LocalImageWorld(row("flux2", weights="a/b", steps=5)).identity()


def test_the_circle() -> None:
    grey = Image.new("RGB", (200, 300), (128, 128, 128))
    marked = numpy.asarray(draw_cue(grey, Action("tap", x=100, y=150)), int)
    red = (marked != 128).any(axis=2)
    rows, columns = numpy.nonzero(red)
    assert (columns.min(), columns.max(), rows.min(), rows.max()) == (60, 140, 110, 190)
    assert tuple(marked[150, 62]) == (255, 0, 0)  # outline
    assert marked[150, 100, 1] not in (0, 128)  # translucent inside


def test_the_arrow_points_where_the_finger_goes() -> None:
    grey = Image.new("RGB", (600, 1000), (128, 128, 128))
    up = numpy.asarray(draw_cue(grey, Action("scroll", x=300, y=500, direction="up")), int)
    red = (up != 128).any(axis=2)
    rows, _ = numpy.nonzero(red)
    assert (rows.min(), rows.max()) == (350, 650)
    assert red[645].sum() == pytest.approx(15, abs=1)  # the shaft, at the start below
    assert red[398].sum() == pytest.approx(50, abs=3)  # the head, just above its base


@pytest.mark.parametrize("action", ACTIONS[3:], ids=lambda action: action.type)
def test_other_actions_have_no_cue(action: Action) -> None:
    assert draw_cue(screen(1), action).tobytes() == screen(1).tobytes()


def test_a_cue_at_the_very_edge_stays_on_the_picture() -> None:
    assert draw_cue(screen(1), Action("tap", x=0, y=255)).size == screen(1).size


@pytest.mark.parametrize("size", [(1080, 2400), (480, 480), (1280, 720)])
def test_a_padded_frame_comes_back_whole(size: tuple[int, int]) -> None:
    canvas = Canvas.of(*size, ["1024x1536", "1024x1024", "1536x1024"], 10**7, 0)
    frame = screen(3, size)
    sent = canvas.put(frame)
    assert sent.size == (canvas.width, canvas.height)
    doubled = sent.resize((2 * canvas.width, 2 * canvas.height))
    for answer in (sent, doubled):
        back = Image.open(io.BytesIO(canvas.take(png_bytes(answer))))
        assert back.width / back.height == pytest.approx(size[0] / size[1], rel=0.01)
        difference = numpy.asarray(back.resize((8, 8)), int) - numpy.asarray(frame.resize((8, 8)), int)
        assert abs(difference).mean() < 12


def test_a_hosted_model_is_sent_the_marked_screen_and_the_history(request_of: Callable[..., StepRequest]) -> None:
    with Images([picture()]) as server:
        world = HostedImageWorld(
            row("gpt_image2", endpoint=server.base_url, api_key_env=None, extra={"quality": "low"}, min_pixels=0)
        )
        answer = world.predict(request_of(history=2))
    (sent,) = server.requests
    assert (sent.body["model"], sent.body["size"], sent.body["quality"]) == ([b"gpt-image-2"], [b"128x256"], [b"low"])
    assert len(sent.body["image[]"]) == 3
    assert "seed" not in sent.body
    assert b"(0.500, 0.500)" in sent.body["prompt"][0]
    assert answer.evidence["usage"] == {"total_tokens": 5}
    assert Image.open(io.BytesIO(answer.png)).size == (64, 64)


def test_gemini_is_sent_the_nearest_shape(request_of: Callable[..., StepRequest]) -> None:
    import base64

    inline = {
        "inlineData": {"mimeType": "image/png", "data": base64.b64encode(png_bytes(screen(1, (768, 1376)))).decode()}
    }
    with Images([gemini(inline)]) as server:
        world = HostedImageWorld(row("gemini_image", endpoint=server.base_url, api_key_env=None))
        answer = world.predict(request_of())
    assert server.requests[0].body["generationConfig"]["imageConfig"] == {"aspectRatio": "9:16"}
    width, height = Image.open(io.BytesIO(answer.png)).size
    assert width / height == pytest.approx(0.5, rel=0.01)


def test_a_missing_key_is_said_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, request_of: Callable[..., StepRequest]
) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    world = HostedImageWorld(row("gpt_image2", api_key_env="SOME_KEY"))
    assert "SOME_KEY" in world.preflight()[0]
    with pytest.raises(InfrastructureFailure) as caught:
        world.predict(request_of())
    assert caught.value.code == "no_api_key"


def test_preflight_names_every_gap_and_its_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    parsed = row("flux2", weights=str(tmp_path / "none"), python="/no/such/python")
    text = "\n".join(server_faults(parsed.server_spec(), None))
    for setting in ("`weights:`", "python:", "`device: cpu`"):
        assert setting in text
