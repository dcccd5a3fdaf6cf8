"""ViMo's stages: texts found by real OCR, placeholders, their way back, the chat stage over real HTTP."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from PIL import Image, ImageDraw

from tests.servers.fake_openai import FakeOpenAI, Request, Response, completion, text
from workflow_scripts.failures import ModelFailure
from workflow_scripts.worlds import images
from workflow_scripts.worlds.base import StepRequest
from workflow_scripts.worlds.image_rows import VimoRow
from workflow_scripts.worlds.vimo import (
    FONT,
    VimoWorld,
    _font,
    fill_placeholders,
    find_placeholders,
    parse_texts,
    read_texts,
    with_numbers,
    with_placeholders,
)

WORDS = ("Settings", "Airplane mode", "Bluetooth")


def phone(words: tuple[str, ...] = WORDS) -> Image.Image:
    """A made-up settings screen with one line of text per word."""
    image = Image.new("RGB", (480, 640), (235, 240, 250))
    draw = ImageDraw.Draw(image)
    for number, word in enumerate(words):
        draw.text((40, 80 + 120 * number), word, fill=(20, 20, 30), font=_font(36))
    return image


def test_the_font_is_there() -> None:
    assert FONT.is_file()


def test_texts_are_found_and_replaced_by_placeholders_that_are_found_again() -> None:
    pytest.importorskip("rapidocr")
    screen = phone()
    found = read_texts(screen)
    assert [text.text for text in found] == list(WORDS)
    graphic = with_placeholders(screen, [text.box for text in found])
    assert read_texts(graphic) == []
    boxes = find_placeholders(graphic)
    assert len(boxes) == 3
    for text_found, box in zip(found, boxes, strict=True):
        assert all(abs(a - b) <= 16 for a, b in zip(text_found.box, box, strict=True))


def test_placeholders_survive_the_square_and_the_way_back() -> None:
    pytest.importorskip("cv2")
    graphic = with_placeholders(phone(), [(40, 80, 240, 120), (40, 200, 360, 240)])
    squeezed = graphic.resize((512, 512), Image.Resampling.LANCZOS).resize(graphic.size, Image.Resampling.LANCZOS)
    assert len(find_placeholders(squeezed)) == 2


def test_bright_panels_without_a_border_are_no_placeholders() -> None:
    pytest.importorskip("cv2")
    image = Image.new("RGB", (480, 640), (180, 180, 190))
    ImageDraw.Draw(image).rectangle((40, 80, 240, 120), fill="white")
    assert find_placeholders(image) == []


def test_boxes_are_written_copied_and_emptied() -> None:
    current = phone()
    boxes = [(30, 70, 300, 130), (30, 190, 360, 250), (30, 310, 300, 370)]
    predicted = with_placeholders(Image.new("RGB", current.size, (10, 10, 40)), boxes)
    result = fill_placeholders(current, predicted, boxes, ["Wi-Fi is on", None, ""])
    pixels = numpy.asarray(result, int)
    written = pixels[75:125, 35:295]
    assert tuple(written[0, 0]) in {(0, 0, 0), (10, 10, 40)}  # the surroundings' color
    assert (written.min(axis=2) > 200).any()  # bright letters on a dark screen
    assert result.crop(boxes[1]).tobytes() == current.crop(boxes[1]).tobytes()
    assert (pixels[315:365, 35:295].max(axis=2) < 60).all()
    assert with_numbers(predicted, boxes).size == predicted.size


def test_letters_that_were_written_are_readable() -> None:
    pytest.importorskip("rapidocr")
    box = (30, 70, 420, 130)
    predicted = with_placeholders(Image.new("RGB", (480, 640), (240, 240, 240)), [box])
    result = fill_placeholders(phone(), predicted, [box], ["Wi-Fi is connected"])
    assert [found.text for found in read_texts(result)] == ["Wi-Fi is connected"]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ('{"1": {"text": "On"}, "2": {"same": true}}', ["On", None]),
        ('Sure:\n```json\n{"1": "On", "2": {"same": false, "text": "Off"}}\n```', ["On", "Off"]),
        ('{"1": {"text": 7}}', ["7", ""]),
    ],
)
def test_replies_that_can_be_read(reply: str, words: list[str | None]) -> None:
    assert parse_texts(reply, 2) == words


@pytest.mark.parametrize("reply", ["", "I would rather not.", "{", "{'1': 2}", '{"9": "x"}', '{"1": [1]}'])
def test_replies_that_cannot(reply: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_texts(reply, 2)


@pytest.fixture
def world_with(
    weights: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], VimoWorld]:
    """`world_with(address)`: ViMo on the tiny pipeline, its text stage at that address."""
    pytest.importorskip("rapidocr")
    monkeypatch.setattr(images, "LOG_FOLDER", tmp_path)

    def of(address: str) -> VimoWorld:
        fields = {
            "family": "vimo",
            "weights": str(weights("pix2pix")),
            "dtype": "float32",
            "device": "cpu",
            "steps": 1,
            "canvas": 128,
            "max_pixels": 128 * 256,
            "reference_pixels": 128 * 256,
            "text_endpoint": address,
            "text_api_key_env": None,
        }
        return VimoWorld(VimoRow.model_validate(fields))

    return of


def test_all_stages_on_a_random_model(
    world_with: Callable[[str], VimoWorld], request_of: Callable[..., StepRequest]
) -> None:
    """Random weights draw no boxes, so the text stage has nothing to say; the picture still has the frame's size."""
    with FakeOpenAI() as server:
        world = world_with(server.base_url)
        assert world.preflight() == []
        request = request_of()
        request.frame.write_bytes(_png(phone()))
        answer = world.predict(request)
    assert Image.open(io.BytesIO(answer.png)).size == (480, 640)
    assert answer.evidence["placeholders"] == 0
    assert server.requests == []


def test_the_text_stage_sees_both_screens_and_fills_the_boxes(
    world_with: Callable[[str], VimoWorld], request_of: Callable[..., StepRequest]
) -> None:
    boxes = [(30, 70, 300, 130), (30, 190, 360, 250)]
    predicted = with_placeholders(phone(()), boxes)

    def answer(request: Request) -> Response:
        return text(json.dumps({"1": {"text": "On"}, "2": {"same": True}}))

    with FakeOpenAI(answer) as server:
        world = world_with(server.base_url)
        reply, sentence = world._ask(request_of(), phone(), predicted, [], find_placeholders(predicted))
        words = world._words(reply, 2, {})
    assert words == ["On", None]
    (sent,) = server.requests
    assert [Image.open(io.BytesIO(data)).size for data in sent.images] == [(480, 640), (480, 640)]
    assert "taps the button" in sentence
    assert '"1": [' in sentence
    assert "480 x 640" in sentence


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (text("no json"), "no_texts"),
        (text(""), "empty_reply"),
        (text('{"1": "On"', finish_reason="length"), "reply_cut_off"),
        (text("", finish_reason="content_filter"), "content_refused"),
        (completion({"content": None, "refusal": "No."}), "content_refused"),
    ],
)
def test_a_bad_reply_of_the_text_stage_is_the_models(
    world_with: Callable[[str], VimoWorld], request_of: Callable[..., StepRequest], answer: Response, code: str
) -> None:
    with FakeOpenAI([answer]) as server:
        world = world_with(server.base_url)
        reply, _ = world._ask(request_of(), phone(), phone(), [], [(30, 70, 300, 130)])
        with pytest.raises(ModelFailure) as caught:
            world._words(reply, 1, {"prompt": "p"})
    assert caught.value.code == code
    assert caught.value.detail["evidence"] == {"prompt": "p"}


def _png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
