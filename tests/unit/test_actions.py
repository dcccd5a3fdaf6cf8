import math

import pytest

from workflow_scripts.actions import ACTION_TYPES, Action, InvalidAction

EXAMPLES = [
    Action("tap", 10, 20, target="OK"),
    Action("long_press", 0, 0),
    Action("scroll", 50, 100, direction="up"),
    Action("type_text", text=""),
    Action("navigate_home"),
    Action("navigate_back"),
    Action("open_app", app_name="Clock"),
    Action("wait"),
    Action("terminate", status="success"),
    Action("answer", text="42"),
]


def test_examples_cover_the_vocabulary():
    assert [action.type for action in EXAMPLES] == list(ACTION_TYPES)


@pytest.mark.parametrize("action", EXAMPLES, ids=lambda a: a.type)
def test_semantic_round_trip_keeps_what_the_action_does(action):
    record = action.semantic(100, 200)
    assert Action.from_semantic(record, 100, 200) == action
    assert record["type"] == action.type
    assert record["low_level_instruction"] == action.summary()


def test_scroll_path_is_centred_spans_300_permille_and_is_clamped():
    assert Action("scroll", 500, 500, direction="up").scroll_path(1000, 1000) == ((500, 650), (500, 350))
    assert Action("scroll", 500, 500, direction="down").scroll_path(1000, 1000) == ((500, 350), (500, 650))
    assert Action("scroll", 500, 500, direction="left").scroll_path(1000, 1000) == ((650, 500), (350, 500))
    assert Action("scroll", 990, 5, direction="right").scroll_path(1000, 1000) == ((840, 5), (1000, 5))


def test_recorded_points_from_permille_and_from_a_path():
    tap = Action.from_semantic({"type": "tap", "source_coord_norm": [500, 250]}, 1080, 2400)
    assert (tap.x, tap.y) == (540, 600)
    scroll = {"type": "scroll", "direction": "up", "start_norm": [500, 700], "end_norm": [500, 300]}
    assert (Action.from_semantic(scroll, 1080, 2400).x, Action.from_semantic(scroll, 1080, 2400).y) == (540, 1200)


def test_planner_points_are_clamped_into_the_frame():
    action = Action.from_call({"action": "tap", "coordinate": [-(10**400), 1e300]}, 320, 200)
    assert (action.x, action.y) == (0, 199)


def test_planner_point_as_array_in_x_or_as_two_fields():
    assert Action.from_call({"action": "tap", "x": [3, 4]}, 10, 10).y == 4
    assert Action.from_call({"action": "tap", "x": 3, "y": 4}, 10, 10).y == 4


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        None,
        {},
        {"action": "fly"},
        {"action": 3},
        {"action": "tap"},
        {"action": "tap", "coordinate": ["1", "2"]},
        {"action": "tap", "coordinate": [math.nan, 2]},
        {"action": "tap", "coordinate": [math.inf, 2]},
        {"action": "tap", "coordinate": [True, 2]},
        {"action": "tap", "coordinate": [1, 2, 3]},
        {"action": "tap", "x": 1},
        {"action": "scroll", "coordinate": [1, 2]},
        {"action": "scroll", "coordinate": [1, 2], "direction": "UP"},
        {"action": "type_text"},
        {"action": "type_text", "text": 5},
        {"action": "open_app", "app_name": " "},
        {"action": "terminate"},
        {"action": "terminate", "status": "done"},
        {"action": "answer"},
    ],
)
def test_illegal_calls_are_refused(arguments):
    with pytest.raises(InvalidAction):
        Action.from_call(arguments, 100, 100)


def test_fields_of_other_types_are_refused():
    with pytest.raises(InvalidAction):
        Action("wait", 1, 2)
    with pytest.raises(InvalidAction):
        Action("tap", 1, 2, text="x")
