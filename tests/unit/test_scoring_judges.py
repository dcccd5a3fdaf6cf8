"""Judge calls: what is shown, how strictly replies are read, prefix rules, and calls against a real local server."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.servers.fake_openai import FakeOpenAI, Request, Response, completion, text
from tests.tiny import gui_cc_rows as rows
from workflow_scripts.chat import ChatClient
from workflow_scripts.failures import InfrastructureFailure, InvalidInput
from workflow_scripts.scoring import judges
from workflow_scripts.scoring.episodes import Episode
from workflow_scripts.scoring.gui_cc_import import read_row
from workflow_scripts.scoring.judges import BadReply, JudgeCall, JudgeError, JudgeSettings, Shot, parse

SETTINGS = JudgeSettings("j", "judge-1")


@pytest.fixture
def online(tmp_path: Path) -> Episode:
    tasks = rows.online_tasks(tmp_path / "data", ("full",))
    rows.online_row(tmp_path / "row", ("full",))
    return read_row(tmp_path / "row", tasks)["full"]


@pytest.fixture
def offline(tmp_path: Path) -> Episode:
    tasks = rows.offline_tasks(tmp_path / "offline", ("a",))
    rows.offline_row(tmp_path / "offline_row", tasks)
    return read_row(tmp_path / "offline_row", tasks)["a"]


def binary(metric: str, ones: int, **more: Any) -> dict[str, Any]:
    keys = judges.CRITERIA[metric]
    values = {key: int(position < ones) for position, key in enumerate(keys)}
    modes = {"failure_modes": []} if metric == "S_use" else {}
    return {**values, "score": ones, "reasoning": "seen", **modes, **more}


def rap(ones: int = 3, **more: Any) -> dict[str, Any]:
    values = {key: int(position < ones) for position, key in enumerate(judges.CRITERIA["S_rap"])}
    return {**values, "passed": int(ones == 3), "failure_reason": "none", "evidence": "seen", **more}


def mp(passed: int = 1, frame: int = 1, **more: Any) -> dict[str, Any]:
    return {"passed": passed, "first_satisfied_frame": frame, "evidence": "seen", **more}


GOOD: dict[str, dict[str, Any]] = {
    "S_ad": {"score": 8, "reasoning": "seen"},
    "S_id": {"inferred_action": "tap", "reasoning": "seen"},
    "S_use": binary("S_use", 4),
    "S_cp": binary("S_cp", 3),
    "S_rd": binary("S_rd", 5),
    "S_ele_lay": {"element_alignment_score": 10, "structural_fidelity_score": 5.5, "reasoning": "seen"},
    "S_rap": rap(),
    "S_mp": mp(),
}


def call(metric: str, **expects: Any) -> JudgeCall:
    return JudgeCall(metric, 0, "system", ("user",), {"class": "tap", "earliest": 1, "frames": 3, **expects})


@pytest.mark.parametrize(
    ("metric", "change", "scores"),
    [
        ("S_ad", {}, {"S_ad": 0.8}),
        ("S_ad", {"score": 0}, {"S_ad": 0.0}),
        ("S_ad", {"score": 10}, {"S_ad": 1.0}),
        ("S_ad", {"score": 7.5}, {"S_ad": 0.75}),
        ("S_id", {}, {"S_id": 1.0}),
        ("S_id", {"inferred_action": " TAP "}, {"S_id": 1.0}),
        ("S_id", {"inferred_action": "none"}, {"S_id": 0.0}),
        ("S_use", {}, {"S_use": 0.8}),
        ("S_cp", {}, {"S_cp": 0.6}),
        ("S_rd", {}, {"S_rd": 1.0}),
        ("S_cp", {"C1_step_continuity": 1.0}, {"S_cp": 0.6}),
        ("S_ele_lay", {}, {"S_ele": 1.0, "S_lay": 0.5}),
        ("S_ele_lay", {"element_alignment_score": 1}, {"S_ele": 0.0, "S_lay": 0.5}),
        ("S_rap", {}, {"S_rap": 1.0}),
        ("S_rap", rap(2), {"S_rap": 0.0}),
        ("S_mp", {}, {"S_mp": 1.0}),
        ("S_mp", mp(0, -1), {"S_mp": 0.0}),
    ],
)
def test_scores(metric, change, scores):
    assert parse(call(metric), json.dumps({**GOOD[metric], **change}))["scores"] == scores


@pytest.mark.parametrize(
    ("metric", "change", "code"),
    [
        ("S_ad", {"score": 11}, "judge_out_of_range"),
        ("S_ad", {"score": -0.1}, "judge_out_of_range"),
        ("S_ad", {"score": "11/10"}, "judge_bad_number"),
        ("S_ad", {"score": "8"}, "judge_bad_number"),
        ("S_ad", {"score": True}, "judge_bad_number"),
        ("S_ad", {"score": None}, "judge_bad_number"),
        ("S_ad", {"score": math.nan}, "judge_bad_number"),
        ("S_ad", {"score": math.inf}, "judge_bad_number"),
        ("S_ad", {"reasoning": " "}, "judge_missing_text"),
        ("S_ad", {"reasoning": ["seen"]}, "judge_missing_text"),
        ("S_ele_lay", {"element_alignment_score": 0}, "judge_out_of_range"),
        ("S_ele_lay", {"structural_fidelity_score": "5"}, "judge_bad_number"),
        ("S_ele_lay", {"reasoning": None}, "judge_missing_text"),
        ("S_id", {"inferred_action": "swipe"}, "judge_bad_class"),
        ("S_id", {"inferred_action": ["tap"]}, "judge_bad_class"),
        ("S_id", {"reasoning": ""}, "judge_missing_text"),
        ("S_use", {"C1_valid_mobile_gui": "1"}, "judge_bad_binary"),
        ("S_use", {"C1_valid_mobile_gui": True}, "judge_bad_binary"),
        ("S_use", {"C1_valid_mobile_gui": 0.5}, "judge_bad_binary"),
        ("S_use", {"C1_valid_mobile_gui": None}, "judge_bad_binary"),
        ("S_use", {"failure_modes": "blur"}, "judge_bad_list"),
        ("S_use", {"failure_modes": [1]}, "judge_bad_list"),
        ("S_cp", {"reasoning": ""}, "judge_missing_text"),
        ("S_rap", {"passed": 2}, "judge_bad_binary"),
        ("S_rap", {"failure_reason": "wrong"}, "judge_bad_class"),
        ("S_rap", {"failure_reason": ["none"]}, "judge_bad_class"),
        ("S_rap", {"evidence": ""}, "judge_missing_text"),
        ("S_mp", {"passed": "1"}, "judge_bad_binary"),
        ("S_mp", {"first_satisfied_frame": 1.0}, "judge_bad_frame"),
        ("S_mp", {"first_satisfied_frame": True}, "judge_bad_frame"),
        ("S_mp", {"first_satisfied_frame": 0}, "judge_bad_frame"),
        ("S_mp", {"first_satisfied_frame": 3}, "judge_bad_frame"),
        ("S_mp", {"first_satisfied_frame": -1}, "judge_bad_frame"),
        ("S_mp", {"passed": 0, "first_satisfied_frame": 2}, "judge_bad_frame"),
        ("S_mp", {"evidence": ""}, "judge_missing_text"),
    ],
)
def test_bad_answers(metric, change, code):
    with pytest.raises(BadReply) as caught:
        parse(call(metric), json.dumps({**GOOD[metric], **change}))
    assert caught.value.code == code


def test_the_criteria_count_and_not_the_sum_that_the_judge_wrote():
    for said in (5, "4", None, True, math.nan):
        result = parse(call("S_use"), json.dumps({**GOOD["S_use"], "score": said}))
        assert result["scores"] == {"S_use": 0.8}
        assert "score_field_mismatch" in result
        assert result["score_field_mismatch"] == ("nan" if isinstance(said, float) else said)
    assert "score_field_mismatch" not in parse(call("S_use"), json.dumps(GOOD["S_use"]))
    result = parse(call("S_rap"), json.dumps(rap(2, passed=1)))
    assert (result["passed"], result["passed_field_mismatch"]) == (0, 1)


@pytest.mark.parametrize(
    "reply",
    [
        '{"score": 8, "reasoning": "ok"}',
        '```json\n{"score": 8, "reasoning": "ok"}\n```',
        'Here it is:\n{"score": 8, "reasoning": "uses {braces}"} and more',
        '<think>{"score": 1, "reasoning": "no"}</think>{"score": 8, "reasoning": "ok"}',
        'a {brace} first {"score": 8, "reasoning": "ok"}',
        '```\n{"score": 8, "reasoning": "ok"}',
    ],
)
def test_finds_the_object(reply):
    assert parse(call("S_ad"), reply)["scores"] == {"S_ad": 0.8}


@pytest.mark.parametrize(
    "reply", ["The screen looks fine, 8 of 10.", '{"score": 8, "reas', "[8]", "8", "{}}", "{" * 5000]
)
def test_prose_and_half_json(reply):
    with pytest.raises(BadReply) as caught:
        parse(call("S_ad"), reply)
    assert caught.value.code in ("judge_no_json", "judge_bad_number")


def test_expected_class():
    def expected(**action: str) -> str:
        return judges.expected_class(action)

    assert expected(type="tap", low_level_instruction="Open the Settings app.") == "open_app"
    assert expected(type="tap", target="open app drawer") == "open_app"
    assert expected(type="tap", target="OPEN the\tClock APP now") == "open_app"
    assert expected(type="tap", target="reopen the application") == "tap"
    assert expected(type="tap", target="app to open") == "tap"
    assert expected(type="long_press", target="open the app") == "long_press"
    assert expected(type="open_app", app_name="Clock") == "open_app"


def test_action_text_differs_between_the_tracks():
    assert judges.action_text(rows.TAP, "online") == "Tap the entry."
    assert judges.action_text(rows.TAP, "offline") == 'tap on "the entry"'
    words = [
        ({"type": "type_text", "text": "hi", "target": "the field"}, 'type "hi" into "the field"'),
        ({"type": "scroll", "direction": "up"}, "scroll up"),
        ({"type": "open_app", "app_name": "Clock"}, 'open app "Clock"'),
        ({"type": "navigate_home"}, "press Home"),
        ({"type": "wait"}, "wait"),
    ]
    for action, said in words:
        assert judges.action_text(action, "offline") == said
    assert judges.public({"a": 1, "_b": 2, "c": [{"_d": 1, "e": 2}]}) == {"a": 1, "c": [{"e": 2}]}


# ---- what is shown -----------------------------------------------------------------------------------------------


def shown(made: JudgeCall) -> list[str]:
    return ["text" if isinstance(item, str) else item.path.parent.name + "/" + item.path.name for item in made.content]


def test_inputs_of_step_calls(online, offline):
    ad, inverse, use = judges.step_calls(online, 1)
    before, after = "step_001/frame.png", "step_002/frame.png"
    assert [shown(made) for made in (ad, inverse, use)] == [
        [before, after, "text"],
        [before, after, "text"],
        ["text", after],
    ]
    assert "Delete the entry." in ad.content[2]
    assert '"navigate_back"' in ad.content[2]
    assert "navigate_back" not in " ".join(item for item in inverse.content if isinstance(item, str))
    assert inverse.expects == {"class": "navigate_back"}
    assert [made.name for made in (ad, inverse, use)] == ["S_ad_step_001", "S_id_step_001", "S_use_step_001"]

    compared, *rest = judges.step_calls(offline, 0)
    assert shown(compared) == ["text", "a/step_000_after.png", "text", "step_000/pred.png", "text"]
    assert [made.metric for made in rest] == ["S_ad", "S_id", "S_use"]
    assert shown(rest[0])[:2] == ["a/initial.png", "step_000/pred.png"]


def test_inputs_of_episode_calls(online):
    for made in judges.episode_calls(online):
        assert shown(made)[1::2] == ["text"] * 4
        frames = [item.path for item in made.content if isinstance(item, Shot)]
        assert frames == list(online.frames)
        assert "- step 1: Tap the entry.\n- step 2: press Back\n- step 3: Tap the entry." in made.content[0]
    made = judges.mp_call(online, 1, 2)
    assert len([item for item in made.content if isinstance(item, Shot)]) == 4
    assert "memory_persistence+terminal_success" in made.content[0]
    assert "frame: 2" in made.content[0]


def test_inputs_of_rap(offline):
    first, last = judges.rap_call(offline, 0), judges.rap_call(offline, 1)
    assert shown(first) == ["text", "a/initial.png", "a/step_000_after.png", "a/initial.png", "step_000/pred.png"]
    assert shown(last)[1:] == ["a/step_000_after.png", "a/step_001_after.png", "step_000/pred.png", "step_001/pred.png"]
    assert "Next reference action: press Back" in first.content[0]
    assert "last step" in last.content[0]


def test_more_frames_than_the_judge_takes(online):
    long = replace(online, frames=online.frames[:1] * 26, actions=online.actions[:1] * 25)
    with pytest.raises(InvalidInput, match="step_budget"):
        judges.episode_calls(long)
    assert judges.episode_calls(replace(online, frames=online.frames[:1] * 25, actions=online.actions[:1] * 24))


@pytest.mark.parametrize(
    ("size", "edge", "rounding", "expected"),
    [
        ((1080, 2400), 1280, "nearest", (576, 1280)),
        ((1344, 2992), 768, "nearest", (345, 768)),
        ((1440, 3120), 1280, "nearest", (591, 1280)),
        ((1440, 3120), 1280, "down", (590, 1280)),
        ((480, 630), 1280, "nearest", (480, 630)),
        ((3000, 1), 768, "down", (768, 1)),
    ],
)
def test_image_preparation(tmp_path, size, edge, rounding, expected):
    path = rows.save(tmp_path / "s.png", Image.new("RGBA", size, (9, 9, 9, 255)))
    with Image.open(io.BytesIO(Shot(path, edge, 88, rounding).jpeg())) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", expected)


def test_sizes_and_qualities(online, offline):
    step = next(item for item in judges.step_calls(online, 0)[0].content if isinstance(item, Shot))
    whole = next(item for item in judges.episode_calls(online)[0].content if isinstance(item, Shot))
    assert (step.edge, step.quality, step.rounding) == (1280, 88, "nearest")
    assert (whole.edge, whole.quality) == (768, 82)
    assert next(item for item in judges.rap_call(offline, 0).content if isinstance(item, Shot)).rounding == "down"


def test_a_missing_or_broken_screen(tmp_path):
    shot = Shot(tmp_path / "none.png", 768, 82, "down")
    for use in (shot.jpeg, shot.identity):
        with pytest.raises(InfrastructureFailure) as caught:
            use()
        assert caught.value.code == "frame_missing"
    (tmp_path / "none.png").write_bytes(b"no image")
    with pytest.raises(InfrastructureFailure) as caught:
        shot.jpeg()
    assert caught.value.code == "frame_unreadable"


# ---- ordered metrics ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("passed", "total", "score"),
    [([1, 1, 1, 1], 4, 1.0), ([1, 1, 0], 4, 0.5), ([0], 4, 0.0), ([0], 1, 0.0), ([1], 1, 1.0)],
)
def test_prefix(passed, total, score):
    assert judges.prefix_score([{"passed": value} for value in passed], total) == score


@pytest.mark.parametrize(("passed", "total"), [([1, 1], 3), ([], 1), ([0, 1], 2), ([1, 1], 1), ([], 0)])
def test_undecided_prefix(passed, total):
    with pytest.raises(ValueError, match="do not decide"):
        judges.prefix_score([{"passed": value} for value in passed], total)


def test_milestones_follow_each_other_and_may_share_a_frame(online):
    first = judges.next_ordered(online, [])
    assert first.expects == {"earliest": 0, "frames": 4}
    done = parse(first, json.dumps(mp(1, 2)))
    second = judges.next_ordered(online, [done])
    assert (second.index, second.expects["earliest"]) == (1, 2)
    again = parse(second, json.dumps(mp(1, 2)))
    assert judges.next_ordered(online, [done, again]) is None
    assert judges.next_ordered(online, [parse(first, json.dumps(mp(0, -1)))]) is None
    with pytest.raises(BadReply):
        parse(second, json.dumps(mp(1, 1)))


def test_reference_actions_follow_each_other(offline):
    good, bad = parse(call("S_rap"), json.dumps(rap())), parse(call("S_rap"), json.dumps(rap(1)))
    assert judges.next_ordered(offline, []).index == 0
    assert judges.next_ordered(offline, [good]).index == 1
    assert judges.next_ordered(offline, [bad]) is None
    assert judges.next_ordered(offline, [good, good]) is None


# ---- identity ----------------------------------------------------------------------------------------------------


def test_identity_covers_what_changes_an_answer_and_nothing_else(online, monkeypatch, tmp_path):
    made = judges.step_calls(online, 1)[0]
    before = judges.call_identity(made, SETTINGS)
    same = [replace(SETTINGS, name="k"), replace(SETTINGS, attempts=9), replace(SETTINGS, answers_as=("x",))]
    assert {judges.call_identity(made, settings) for settings in same} == {before}
    other = [
        judges.call_identity(made, replace(SETTINGS, model="judge-2")),
        judges.call_identity(made, replace(SETTINGS, temperature=1.0)),
        judges.call_identity(made, replace(SETTINGS, max_tokens=1)),
        judges.call_identity(made, replace(SETTINGS, extra_body={"enable_thinking": False})),
        judges.call_identity(judges.step_calls(online, 0)[0], SETTINGS),
        judges.call_identity(judges.step_calls(online, 1)[1], SETTINGS),
        judges.call_identity(replace(made, system=made.system + "."), SETTINGS),
    ]
    task = replace(online.task, instruction="Add an entry.")
    other.append(judges.call_identity(judges.step_calls(replace(online, task=task), 1)[0], SETTINGS))
    rows.save(online.frames[2], rows.screen(7))
    other.append(judges.call_identity(made, SETTINGS))
    assert len({before, *other}) == len(other) + 1


# ---- calls -------------------------------------------------------------------------------------------------------


def client(server: FakeOpenAI) -> ChatClient:
    return ChatClient(server.base_url, "judge-1", None, timeout_s=5.0, max_attempts=2, backoff_s=0.01)


def answer(metric: str, **more: Any) -> Response:
    return text(json.dumps(GOOD[metric]), **more)


def by_metric(request: Request) -> Response:
    """Answers whichever metric's system message it sees; the second milestone does not come true."""
    system = request.body["messages"][0]["content"]
    for metric, good in GOOD.items():
        if system == judges._prompt(f"{metric.lower()}_system"):
            reply = mp(0, -1) if metric == "S_mp" and "m2" in request.user_text else good
            return text(json.dumps(reply))
    raise AssertionError(system)


def test_an_online_episode(online, tmp_path):
    with FakeOpenAI(by_metric) as server:
        records = judges.judge_episode(online, SETTINGS, client(server), tmp_path / "scores")
        sent = len(server.requests)
        again = judges.judge_episode(online, SETTINGS, client(server), tmp_path / "scores")
        assert again == records
        assert len(server.requests) == sent == 3 * 3 + 2 + 2
        # A lost file costs one call, a changed frame those that show it.
        judges.call_path(tmp_path / "scores", "full", "j", "S_id_step_002").unlink()
        judges.judge_episode(online, SETTINGS, client(server), tmp_path / "scores")
        assert len(server.requests) == sent + 1
        rows.save(online.frames[3], rows.screen(8))
        judges.judge_episode(online, SETTINGS, client(server), tmp_path / "scores")
        assert len(server.requests) == sent + 1 + 3 + 2 + 2
    assert set(records) == {
        *(f"{metric}_step_{step:03d}" for metric in ("S_ad", "S_id", "S_use") for step in range(3)),
        "S_cp",
        "S_rd",
        "S_mp_step_000",
        "S_mp_step_001",
    }
    record = records["S_ad_step_001"]
    assert record == json.loads((tmp_path / "scores/full/judge/j/S_ad_step_001.json").read_text())
    assert (record["schema"], record["record"], record["metric"], record["index"]) == (1, "judge_call", "S_ad", 1)
    assert record["result"]["scores"] == {"S_ad": 0.8}
    assert record["usage"]["prompt_tokens"] == 11
    assert len(record["signature"]["content"]) == 3
    request = server.requests[0].body
    assert (request["temperature"], request["max_tokens"]) == (0.0, 4096)


def test_a_record_of_another_schema_or_half_written_is_judged_again(online, tmp_path):
    made = judges.step_calls(online, 0)[0]
    path = tmp_path / "S_ad_step_000.json"
    with FakeOpenAI([answer("S_ad"), answer("S_ad"), answer("S_ad")]) as server:
        record = judges.judge_to_file(made, SETTINGS, client(server), path, ("t",))
        for spoilt in (json.dumps({**record, "schema": 2}), path.read_text()[:50]):
            path.write_text(spoilt)
            assert judges.judge_to_file(made, SETTINGS, client(server), path, ("t",))["identity"] == record["identity"]
        assert len(server.requests) == 3


def test_an_offline_episode_and_a_model_failure(offline, tmp_path):
    with FakeOpenAI(by_metric) as server:
        records = judges.judge_episode(offline, SETTINGS, client(server), tmp_path)
        assert len(server.requests) == 2 * 4 + 2 + 2
        failed = replace(offline, failure={"kind": "model", "code": "no_html"})
        assert judges.judge_episode(failed, SETTINGS, client(server), tmp_path) == {}
    assert records["S_ele_lay_step_000"]["result"]["scores"] == {"S_ele": 1.0, "S_lay": 0.5}
    assert [records[f"S_rap_step_00{step}"]["result"]["passed"] for step in (0, 1)] == [1, 1]


def test_an_episode_of_one_frame(online, tmp_path):
    single = replace(online, frames=online.frames[:1], actions=(), terminated=True)
    with FakeOpenAI(
        lambda request: text(json.dumps(mp(1, 0))) if "Milestone" in request.user_text else by_metric(request)
    ) as s:
        records = judges.judge_episode(single, SETTINGS, client(s), tmp_path)
    assert set(records) == {"S_cp", "S_rd", "S_mp_step_000", "S_mp_step_001"}


def fails(script: list[Response], settings: JudgeSettings = SETTINGS) -> tuple[JudgeError, int]:
    with FakeOpenAI(script) as server, pytest.raises(JudgeError) as caught:
        judges.judge(JudgeCall("S_ad", 3, "system", ("user",)), settings, client(server), ("m", "s", "t"))
    json.dumps(caught.value.record(), allow_nan=False)
    return caught.value, len(server.requests)


def test_a_bad_reply_is_asked_for_again_and_then_fails():
    made = JudgeCall("S_ad", 3, "system", ("user",))
    with FakeOpenAI([text("prose"), text('{"score": "8"}'), answer("S_ad")]) as server:
        record = judges.judge(made, SETTINGS, client(server), ("t",))
    assert [attempt.get("fault", {}).get("code") for attempt in record["attempts"]] == [
        "judge_no_json",
        "judge_bad_number",
        None,
    ]
    error, requests = fails([text("prose")] * 3)
    assert (error.code, error.kind, requests) == ("judge_no_json", "infrastructure", 3)
    assert [attempt["text"] for attempt in error.detail["attempts"]] == ["prose"] * 3


def test_named_errors_of_replies():
    cut = text('{"score": 8, "reasoning": "it', finish_reason="length")
    refused = completion({"content": None, "refusal": "I cannot"})
    assert fails([cut] * 3)[0].code == "judge_cut_off"
    assert fails([refused] * 3)[0].code == "judge_refused"
    assert fails([text("")] * 3)[0].code == "judge_empty"
    assert fails([answer("S_ad", choices=[])] * 3)[0].code == "judge_empty"
    assert fails([text(json.dumps({**GOOD["S_ad"], "score": math.nan}))] * 3)[0].code == "judge_bad_number"


def test_another_models_name_is_refused_at_once_unless_it_is_an_alias():
    error, requests = fails([answer("S_ad", model="judge-mini")] * 3)
    assert (error.code, requests) == ("judge_wrong_model", 1)
    made = JudgeCall("S_ad", 0, "system", ("user",))
    with FakeOpenAI([answer("S_ad", model="judge-1-0424")]) as server:
        settings = replace(SETTINGS, answers_as=("judge-1-0424",))
        assert judges.judge(made, settings, client(server), ("t",))["reply"]["model"] == "judge-1-0424"


def test_what_was_answered_is_kept_when_a_call_fails(online, tmp_path):
    def script(request: Request) -> Response:
        if "apply the five criteria" in request.user_text.lower():
            return text("no")
        return by_metric(request)

    with FakeOpenAI(script) as server, pytest.raises(JudgeError):
        judges.judge_episode(online, SETTINGS, client(server), tmp_path)
    kept = {path.stem for path in (tmp_path / "full/judge/j").glob("*.json")}
    assert len(kept) == 3 * 2 + 2 + 2
    with FakeOpenAI(by_metric) as server:
        judges.judge_episode(online, SETTINGS, client(server), tmp_path)
        assert len(server.requests) == 3
