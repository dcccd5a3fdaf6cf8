"""ViMo (arXiv 2504.13936): a graphic with text placeholders, predicted by InstructPix2Pix, then filled by a chat model.

1. OCR finds the texts of the current screen; each becomes a white box with a black border (the symbolic text
   representation). 2. The pipeline predicts the next such graphic, squeezed into the square it was trained on.
3. The predicted boxes are found again as bright rectangles inside a dark border. 4. A chat model sees the current
screen
   and the numbered boxes and says, for each, that the current text stays or what the new one is. 5. Boxes that stay are
   copied from the current screen, the others are painted over with their surroundings' color and written.

Simplified against the paper: its separate filter for keyboards and clock faces and its separate pass over semantic
roles are left to the one chat call.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from PIL import Image as images
from PIL import ImageDraw, ImageFont
from PIL.Image import Image

from ..chat import ChatClient, Reply, image_part, text_part
from ..failures import InfrastructureFailure, ModelFailure
from ..records import png_bytes
from .base import Prediction, StepRequest
from .cues import draw_cue, has_cue
from .image_prompts import Prompt, step_prompt
from .image_rows import VimoRow
from .images import LocalImageWorld, evidence, missing_key, opened, scaled

Box = tuple[int, int, int, int]
"""left, top, right, bottom in pixels; right and bottom exclusive."""

PADDING = 5
BORDER = 10
"""Pixels around a text, and of its box's border, at the frame's size (the released code's numbers)."""
MIN_INSIDE = 10
MIN_FILL = 0.88
"""A box's bright inside: its least side in pixels and the least part of its rectangle; a letter's counter has less."""
FONT = Path(__file__).parents[1] / "browser" / "fonts" / "DejaVuSans.ttf"


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text on a screen."""

    text: str
    box: Box


class VimoWorld(LocalImageWorld):
    """The three stages of ViMo as one world."""

    def __init__(self, row: VimoRow) -> None:
        super().__init__(row)
        self._vimo = row
        self._chat = ChatClient(
            base_url=row.text_endpoint,
            model=row.text_model,
            api_key_env=row.text_api_key_env,
            timeout_s=row.text_timeout_s,
            max_attempts=row.max_attempts,
        )

    @cached_property
    def _text_prompt(self) -> Prompt:
        return Prompt.load(self._vimo.text_prompt)

    def identity(self) -> dict[str, Any]:
        row = self._vimo
        text = {
            "model": row.text_model,
            "temperature": row.text_temperature,
            "max_tokens": row.text_max_tokens,
            "prompt": self._text_prompt.digest,
        }
        return {**super().identity(), "canvas": row.canvas, "text": text}

    def preflight(self) -> list[str]:
        from importlib.util import find_spec

        faults = super().preflight() + missing_key(self._vimo.text_api_key_env, "text_api_key_env")
        if find_spec("rapidocr") is None or find_spec("onnxruntime") is None:
            faults.append("the packages rapidocr and onnxruntime are missing; install the extra `ocr`")
        return faults

    def predict(self, request: StepRequest) -> Prediction:
        current = opened(request.frame)
        texts = read_texts(current)
        graphic = with_placeholders(current, [text.box for text in texts])
        if self._row.cue:
            graphic = draw_cue(graphic, request.action)
        side = (self._vimo.canvas, self._vimo.canvas)
        prompt = self._text(request)
        shown = scaled(graphic, side)
        answer = self._edit(request, prompt, [shown], side)
        with images.open(io.BytesIO(answer.data)) as picture:
            predicted = scaled(picture.convert("RGB"), current.size)
        boxes = find_placeholders(predicted)
        facts = {**evidence(prompt, [shown], side, answer.facts), "placeholders": len(boxes)}
        if not boxes:
            return Prediction(png=png_bytes(predicted), evidence=facts)
        reply, sentence = self._ask(request, current, predicted, texts, boxes)
        facts.update(text_prompt=sentence, text_attempts=[dict(attempt) for attempt in reply.attempts])
        words = self._words(reply, len(boxes), facts)
        screen = fill_placeholders(current, predicted, boxes, words)
        return Prediction(png=png_bytes(screen), raw=reply.content, evidence=facts)

    def _ask(
        self, request: StepRequest, current: Image, predicted: Image, texts: Sequence[Text], boxes: Sequence[Box]
    ) -> tuple[Reply, str]:
        """The text stage's reply and the sentence it was asked with."""
        row, marked = self._vimo, self._vimo.cue and has_cue(request.action)
        sentence = step_prompt(
            self._text_prompt,
            request,
            cue=marked,
            history=row.history_as,
            section="user",
            width=current.width,
            height=current.height,
            boxes=json.dumps({str(number): box for number, box in enumerate(boxes, 1)}),
            texts=json.dumps([{"text": text.text, "box": text.box} for text in texts], ensure_ascii=False),
        )
        screen = draw_cue(current, request.action) if marked else current
        pictures = [png_bytes(screen), png_bytes(with_numbers(predicted, boxes))]
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": self._text_prompt.fill("system")},
            {"role": "user", "content": [*(image_part(picture) for picture in pictures), text_part(sentence)]},
        ]
        reply = self._chat.complete(
            messages,
            max_tokens=row.text_max_tokens,
            temperature=row.text_temperature,
            retry_seed=(request.task.task_id, request.step),
        )
        return reply, sentence

    def _words(self, reply: Reply, count: int, facts: dict[str, Any]) -> list[str | None]:
        """What each box says; None: what the current screen shows there. Raises ModelFailure."""
        detail = {"evidence": facts, "raw": reply.content}
        if reply.refusal or reply.finish_reason == "content_filter":
            raise ModelFailure("content_refused", "the text stage refused", **detail)
        if not reply.content:
            raise ModelFailure("empty_reply", "the text stage said nothing", **detail)
        if reply.finish_reason == "length":
            limit = self._vimo.text_max_tokens
            raise ModelFailure("reply_cut_off", f"the text stage's reply was cut off at {limit} tokens", **detail)
        try:
            return parse_texts(reply.content, count)
        except ValueError as error:
            raise ModelFailure("no_texts", f"the text stage's reply: {error}", **detail) from error


def parse_texts(reply: str, count: int) -> list[str | None]:
    """What boxes 1 … `count` say, from the reply's JSON object, in a code fence or bare; None for `{"same": true}`.

    A box that the reply leaves out stays empty. Raises ValueError where there is no such object.
    """
    start, end = reply.find("{"), reply.rfind("}")
    if start < 0 or end < start:
        raise ValueError("it has no JSON object")
    entries = json.loads(reply[start : end + 1])
    words: list[str | None] = []
    for number in range(1, count + 1):
        entry = entries.get(str(number), "")
        if isinstance(entry, dict):
            entry = None if entry.get("same") is True else entry.get("text", "")
        if entry is not None and not isinstance(entry, (str, int, float)):
            raise ValueError(f"box {number} is a {type(entry).__name__}, not a text")
        words.append(entry if entry is None else str(entry))
    if not any(str(number) in entries for number in range(1, count + 1)):
        raise ValueError("it names none of the boxes")
    return words


_reader: Any = None
_reading = threading.Lock()


def read_texts(image: Image) -> list[Text]:
    """The texts of a screen by OCR, top to bottom. Raises InfrastructureFailure where the OCR is not installed."""
    global _reader
    import numpy

    with _reading:  # one recognizer, one thread at a time: it is not said to be thread-safe
        if _reader is None:
            try:
                from rapidocr import RapidOCR
            except ImportError as error:
                message = "the package rapidocr is missing; install the extra `ocr`"
                raise InfrastructureFailure("missing_package", message) from error
            _reader = RapidOCR(params={"Global.log_level": "error"})
        found = _reader(numpy.asarray(image)[:, :, ::-1])  # it expects BGR
    if found.boxes is None:
        return []
    texts = []
    for corners, text in zip(found.boxes, found.txts, strict=True):
        (left, top), (right, bottom) = corners.min(axis=0), corners.max(axis=0)
        texts.append(Text(text, (int(left), int(top), int(right) + 1, int(bottom) + 1)))
    return sorted(texts, key=lambda text: (text.box[1], text.box[0]))


def with_placeholders(image: Image, boxes: Sequence[Box]) -> Image:
    """A copy in which each text is a white box with a black border, a little larger than the text."""
    result = image.copy()
    draw = ImageDraw.Draw(result)
    for left, top, right, bottom in boxes:
        outer = (left - PADDING, top - PADDING, right - 1 + PADDING, bottom - 1 + PADDING)
        width = max(1, min(BORDER, (bottom - top) // 4))
        draw.rectangle(outer, fill="white", outline="black", width=width)
    return result


def find_placeholders(image: Image) -> list[Box]:
    """The boxes of a predicted graphic, border included, top to bottom.

    A box is a bright connected region that fills its own bounding rectangle and is dark all around it.
    """
    import cv2
    import numpy

    grey = numpy.asarray(image.convert("L"))
    height, width = grey.shape
    count, _, stats, _ = cv2.connectedComponentsWithStats((grey > 200).astype(numpy.uint8), connectivity=4)
    boxes: list[Box] = []
    for label in range(1, count):
        x, y, w, h, area = (int(value) for value in stats[label])
        if min(w, h) < MIN_INSIDE or area < MIN_FILL * w * h or w * h > 0.25 * width * height:
            continue
        rim = 3
        left, top, right, bottom = max(0, x - rim), max(0, y - rim), min(width, x + w + rim), min(height, y + h + rim)
        around = grey[top:bottom, left:right].astype(float)
        inside = numpy.zeros(around.shape, bool)
        inside[y - top : y - top + h, x - left : x - left + w] = True
        border = around[~inside]
        if border.size and (border < 110).mean() > 0.6:
            border_width = max(1, min(BORDER, h // 4))
            boxes.append(
                (
                    max(0, x - border_width),
                    max(0, y - border_width),
                    min(width, x + w + border_width),
                    min(height, y + h + border_width),
                )
            )
    return sorted(boxes, key=lambda box: (box[1], box[0]))


def with_numbers(image: Image, boxes: Sequence[Box]) -> Image:
    """A copy in which each box is pale yellow and carries its number, from 1, in red."""
    result = image.copy()
    draw = ImageDraw.Draw(result)
    for number, box in enumerate(boxes, 1):
        left, top, right, bottom = box
        draw.rectangle((left, top, right - 1, bottom - 1), fill=(255, 255, 200), outline="black")
        _write(draw, box, str(number), (255, 0, 0))
    return result


def fill_placeholders(current: Image, predicted: Image, boxes: Sequence[Box], words: Sequence[str | None]) -> Image:
    """The predicted graphic with its boxes filled: copied from `current` where the word is None, else written."""
    import numpy

    result = predicted.copy()
    draw = ImageDraw.Draw(result)
    for box, word in zip(boxes, words, strict=True):
        if word is None:
            result.paste(current.crop(box), box[:2])
            continue
        color = _surroundings(numpy.asarray(predicted), box)
        left, top, right, bottom = box
        draw.rectangle((left, top, right - 1, bottom - 1), fill=color)
        if word.strip():
            bright = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2] > 127
            _write(draw, box, word, (0, 0, 0) if bright else (255, 255, 255))
    return result


def _surroundings(pixels: Any, box: Box) -> tuple[int, int, int]:
    """The median color of the ring of 4 pixels around a box."""
    import numpy

    left, top, right, bottom = box
    ring = 4
    height, width = pixels.shape[:2]
    rows = slice(max(0, top - ring), min(height, bottom + ring))
    columns = slice(max(0, left - ring), min(width, right + ring))
    outside = numpy.ones(pixels.shape[:2], bool)
    outside[top:bottom, left:right] = False
    around = pixels[rows, columns][outside[rows, columns]]
    if not len(around):
        return (255, 255, 255)
    red, green, blue = (int(value) for value in numpy.median(around, axis=0))
    return red, green, blue


def _write(draw: ImageDraw.ImageDraw, box: Box, text: str, color: tuple[int, int, int]) -> None:
    """`text` on one line, as large as the box allows, left-aligned and centred in height."""
    left, top, right, bottom = box
    size = max(6, int((bottom - top) * 0.75))
    font = _font(size)
    length = draw.textlength(text, font=font)
    if length > right - left:
        size = max(6, int(size * (right - left) / length))
        font = _font(size)
    draw.text((left + 1, (top + bottom) / 2), text, fill=color, font=font, anchor="lm")


@lru_cache(maxsize=256)
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(FONT), size, layout_engine=ImageFont.Layout.BASIC)
