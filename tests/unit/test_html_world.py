"""HTML world models without endpoint and browser: rows, requests, replies, layout, identity."""

from __future__ import annotations

import base64
import io
import json
import math
from pathlib import Path

import numpy
import pytest
from PIL import Image

from workflow_scripts.actions import Action
from workflow_scripts.config import load, read_yaml
from workflow_scripts.failures import InvalidInput, ModelFailure
from workflow_scripts.records import png_bytes
from workflow_scripts.tasks import Task
from workflow_scripts.worlds.base import Past, StepRequest
from workflow_scripts.worlds.html import HtmlWorld, canvas_size, read_page, scale_of
from workflow_scripts.worlds.html_rows import STYLES, HtmlRow

MODELS = Path(__file__).parents[2] / "config" / "models.yaml"
SIZE = (200, 400)
TAP = Action("tap", x=100, y=100, target="the Send button")
PAGE = "<!DOCTYPE html>\n<html><body>hello</body></html>"


def world(**fields) -> HtmlWorld:
    common = {"family": "html", "model": "m", "endpoint": "http://localhost:1/v1"}
    return HtmlWorld(HtmlRow.model_validate({**common, **fields}))


@pytest.fixture
def step(tmp_path):
    """`step(action, history)`: a request whose screens are files of different greys."""

    def of(action: Action = TAP, history: int = 0) -> StepRequest:
        frames = [tmp_path / f"frame_{k}.png" for k in range(history + 1)]
        for k, frame in enumerate(frames):
            frame.write_bytes(png_bytes(Image.new("RGB", SIZE, (10 * k, 10 * k, 10 * k))))
        task = Task("t", "online", "Send it.", 20, frames[0], *SIZE, image_sha256="")
        past = tuple(Past(k, frames[k], Action("scroll", x=100, y=200, direction="up")) for k in range(history))
        return StepRequest(task, history, frames[-1], action, past, (*(p.action for p in past), action), 7)

    return of


def parts(message) -> list[str]:
    """A user message's content; pictures as the grey level of their first pixel, with * where red is drawn on them."""
    shown = []
    for part in message["content"]:
        if part["type"] == "text":
            shown.append(part["text"])
            continue
        data = base64.b64decode(part["image_url"]["url"].partition(";base64,")[2])
        pixels = numpy.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
        marked = bool((pixels[..., 0] - pixels[..., 1] > 50).any())
        shown.append(f"[image {pixels[0, 0, 1]}{'*' if marked else ''}]")
    return shown


@pytest.mark.parametrize(
    ("reply", "page"),
    [
        (PAGE, PAGE),
        (f"```html\n{PAGE}\n```", PAGE),
        (f"Here it is:\n```html\n{PAGE}\n```\nI hope it helps.", PAGE),
        (f"```\n{PAGE}", PAGE),
        (f"```html\n{PAGE}", PAGE),
        (f"Sure!\n{PAGE}\nDone.", PAGE),
        ("<html><p>x</p></html>", "<html><p>x</p></html>"),
        ("<HTML lang=en><P>x</P></HTML >", "<HTML lang=en><P>x</P></HTML >"),
        (f"<think>a draft: <html><p>no</p></html></think>\n{PAGE}", PAGE),
        (f"a draft: {PAGE.replace('hello', 'no')}\n</think>\n\n{PAGE}", PAGE),
        (f"<thinking>hm</thinking>{PAGE}", PAGE),
        (f"# Next State Reasoning: it sends, so <html> changes.\n# HTML: {PAGE}", PAGE),
        (f"# Next State Reasoning: it sends.\n# HTML: ```html\n{PAGE}\n```", PAGE),
        (f"First:\n```html\n{PAGE.replace('hello', 'no')}\n```\nBetter:\n```html\n{PAGE}\n```", PAGE),
        (f"```html\n{PAGE}\n```\nor else\n```html\n<html>never ended\n```", PAGE),
        (f"```css\np {{}}\n```\n{PAGE}", PAGE),
        (f"{PAGE}</html>", f"{PAGE}</html>"),
    ],
)
def test_the_page_in_a_reply(reply, page):
    assert read_page(reply, "stop") == page


@pytest.mark.parametrize(
    ("content", "finish_reason", "refusal", "code"),
    [
        (None, "stop", None, "empty_reply"),
        (" \n", "stop", None, "empty_reply"),
        (None, None, None, "empty_reply"),
        (None, "length", None, "cut_off"),
        ("<think>for ever", "length", None, "cut_off"),
        ("<think>for ever", "stop", None, "no_html"),
        ("<!DOCTYPE html><html><body>and so on", "length", None, "cut_off"),
        ("<!DOCTYPE html><html><body>and so on", "stop", None, "cut_off_html"),
        ("```html\n<html><body>and so on\n```", "stop", None, "cut_off_html"),
        ("I cannot see a screenshot.", "stop", None, "no_html"),
        ("<div>a fragment</div>", "stop", None, "no_html"),
        (f"<think>{PAGE}</think>", "stop", None, "no_html"),
        (PAGE[:20], "content_filter", None, "content_filtered"),
        (None, "content_filter", None, "content_filtered"),
        (None, "stop", "I cannot help with that.", "refused"),
    ],
)
def test_replies_without_a_page_are_the_models_failures(content, finish_reason, refusal, code):
    with pytest.raises(ModelFailure) as failure:
        read_page(content, finish_reason, refusal)
    assert failure.value.code == code


def test_a_whole_page_counts_even_if_the_reply_was_cut_off_after_it():
    assert read_page(f"{PAGE}\nThis page shows", "length") == PAGE


def test_code2world_is_asked_for_a_fixed_canvas_and_sees_the_cue(step):
    system, user = world(style="code2world").messages(step())
    assert system["role"] == "system"
    assert "width: 1080px, height: 2400px" in system["content"]
    assert "red circle" in system["content"]
    assert "earlier screens" not in system["content"]
    assert parts(user) == ["[image 0*]", "Action: Tap the Send button."]


def test_generic_fills_the_frames_own_size(step):
    system, user = world().messages(step(Action("type_text", text='say "hi" for $5', target="the field")))
    assert "200 x 400" in system["content"]
    assert "width: 200px, height: 400px" in system["content"]
    assert parts(user) == ["[image 0]", 'The user\'s action: Type "say "hi" for $5" into the focused text field.']
    system, user = world(cue=False, coordinates="permille").messages(step(Action("tap", x=50, y=100)))
    assert "red circle" not in system["content"]
    picture, text = parts(user)
    assert picture == "[image 0]"
    assert text.splitlines() == [
        "The user's action: Tap the screen.",
        "Its place: (250, 250), thousandths of the screen's width and height from its top left corner",
    ]


def test_recorded_instructions_are_used_for_what_is_pointed_at(step):
    recorded = Action("tap", x=1, y=1, target="Send", instruction="Tap on Send, bottom right.")
    assert parts(world(style="code2world").messages(step(recorded))[1])[1] == "Action: Tap on Send, bottom right."
    marked = Action("long_press", x=1, y=1)
    assert parts(world(style="code2world").messages(step(marked))[1])[1] == "Action: Press and hold the marked spot."
    scroll = Action("scroll", x=1, y=1, direction="up", instruction="Scroll the list.")
    said = parts(world(style="code2world").messages(step(scroll))[1])[1]
    assert said.startswith("Action: Scroll up")


def test_gworld_is_one_user_message_with_the_action_as_json(step):
    (user,) = world(style="gworld").messages(step())
    picture, text = parts(user)
    assert (user["role"], picture) == ("user", "[image 0]")
    assert '\n{"action_type": "TAP", "coordinates": [500, 250]}\n' in text
    assert "360 CSS pixels wide and 720 high" in text
    assert "red mark" not in text
    (user,) = world(style="gworld").messages(step(Action("type_text", text="naïve")))
    assert '{"action_type": "TYPE", "text": "naïve"}' in parts(user)[1]


def test_mobileworld_names_action_target_and_relative_place(step):
    system, user = world(style="mobileworld").messages(step())
    assert system["content"].startswith("You generate the HTML of mobile screens.")
    picture, text = parts(user)
    assert picture == "[image 0]"
    assert text.splitlines()[:2] == ["Action: Tap the Send button.", "Target: the Send button"]
    assert text.splitlines()[2].startswith("Position: (0.500, 0.250), fractions of")
    assert parts(world(style="mobileworld").messages(step(Action("wait")))[1])[1] == (
        "Action: Wait a moment without touching the screen."
    )


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("window", [1, 3, 7])
def test_history_of_any_length_interleaves_unmarked_screens_with_their_actions(step, style, window):
    *system, user = world(style=style, cue=True).messages(step(TAP, window))
    shown = parts(user)
    assert len(shown) == 2 * window + 3
    for k in range(window):
        assert f"tep {k}" in shown[2 * k]
        assert "up" in shown[2 * k]
        assert shown[2 * k + 1] == f"[image {10 * k}]"
    assert f"tep {window}" in shown[-3]
    assert shown[-2] == f"[image {10 * window}*]"
    consistency = system[0]["content"] if system else shown[-1]
    assert "arlier screens" in consistency
    for text in (*shown, *(message["content"] for message in system)):
        assert "$" not in text
        assert "\n\n\n" not in text


@pytest.mark.parametrize(
    ("canvas", "size", "scale", "seen"),
    [
        ("frame", (480, 480), 1.0, (480, 480)),
        ("1080x2400", (1080, 2400), 1.0, (1080, 2400)),
        ("1080x2400", (480, 480), 480 / 1080, (1080, 1080)),
        ("1080x2400", (1344, 2992), 1344 / 1080, (1080, 2405)),
        ("360", (1080, 2400), 3.0, (360, 800)),
        ("360", (1440, 3120), 4.0, (360, 780)),
        ("1080", (720, 1280), 2 / 3, (1080, 1920)),
    ],
)
def test_layout(canvas, size, scale, seen):
    found = scale_of(canvas, *size)
    assert found == pytest.approx(scale)
    assert (math.ceil(size[0] / found), math.ceil(size[1] / found)) == seen


def test_the_viewport_is_exactly_as_wide_as_the_canvas():
    for width in range(100, 1500, 7):
        for across in (320, 360, 393, 411, 1080):
            assert math.ceil(width / scale_of(str(across), width, 2 * width)) == across
    assert canvas_size("360", 1080, 2400) == (360, 800)
    assert canvas_size("1080x2400", 480, 480) == (1080, 2400)


def test_identity_says_what_changes_a_result_and_nothing_else():
    before = world().identity()
    json.dumps(before)
    for same in (
        {"endpoint": "http://gpu7:9/v1"},
        {"api_key_env": "KEY"},
        {"timeout_s": 5},
        {"render_timeout_s": 5},
        {"max_attempts": 1},
        {"canvas": "frame"},
    ):
        assert world(**same).identity() == before
    changes = [
        {"model": "n"}, {"revision": "a1b2"}, {"style": "gworld"}, {"temperature": None}, {"max_tokens": 9},
        {"seed": 3}, {"seed": None}, {"extra_body": {"top_p": 0.9}}, {"cue": False}, {"coordinates": "permille"},
        {"canvas": "1080x2400"}, {"javascript": True},
    ]  # fmt: skip
    identities = [json.dumps(world(**change).identity()) for change in changes]
    assert json.dumps(before) not in identities
    assert len(set(identities)) == len(changes)


def test_every_row_of_the_models_file_is_valid_and_every_field_described():
    config = load({}, read_yaml(MODELS))
    shown = {}
    for name in config.models:
        row = config.world_row(name)
        if isinstance(row, HtmlRow):
            HtmlWorld(row)
            shown[name] = row.shown.canvas
    assert shown == {
        "gpt55": "frame", "code2world": "1080x2400", "gworld": "360", "mobileworld": "frame", "chat_html": "frame",
        "visual_coder": "frame",
    }  # fmt: skip
    assert [name for name, field in HtmlRow.model_fields.items() if name != "family" and not field.description] == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("endpoint", "localhost:8000"),
        ("style", "closed"),
        ("canvas", "1080×2400"),
        ("canvas", "0x10"),
        ("temperature", 3),
        ("seed", "random"),
        ("coordinates", "pixels"),
        ("maxtokens", 5),
    ],
)
def test_faulty_rows_are_refused_with_the_key(field, value):
    row = {"family": "html", "model": "m", "endpoint": "http://localhost:1/v1", field: value}
    with pytest.raises(InvalidInput, match=f"models.mine.{field}"):
        load({"models": {"mine": row}}, {}).world_row("mine")


def test_a_canvas_out_of_proportion_is_refused(step):
    with pytest.raises(InvalidInput, match="canvas: frame"):
        world(canvas="10x10").check_task(step().task)
    world(canvas="360").check_task(step().task)


def test_preflight_names_the_missing_key_and_the_server_that_is_not_there(monkeypatch):
    monkeypatch.delenv("SOME_KEY", raising=False)
    problems = world(api_key_env="SOME_KEY").preflight()
    assert any("SOME_KEY" in problem for problem in problems)
    assert any("nothing answers at http://localhost:1/v1" in problem for problem in problems)
    assert not any("answers" in problem for problem in world(endpoint="https://api.example.org/v1").preflight())
