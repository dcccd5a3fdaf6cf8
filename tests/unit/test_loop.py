"""The loop's rules on one task, step by step, with a planner and a world written out here."""

from __future__ import annotations

import io
import json

import numpy
import pytest
from PIL import Image

from workflow_scripts import act, predict, rollout_results, trajectory
from workflow_scripts.actions import Action
from workflow_scripts.chain import first_stale, positions, results_hold, step_folder, to_frame, verify_row
from workflow_scripts.failures import InfrastructureFailure, ModelFailure
from workflow_scripts.plan import Row
from workflow_scripts.planners.base import Planned
from workflow_scripts.records import png_bytes, read_json
from workflow_scripts.scoring.gui_cc_import import validate_rollout_row
from workflow_scripts.tasks import load_tasks
from workflow_scripts.worlds.base import Prediction

WIDTH, HEIGHT = 40, 60


def noise(seed: int, size=(WIDTH, HEIGHT), mode="RGB") -> Image.Image:
    channels = len(mode) if mode in ("RGB", "RGBA") else 1
    shape = (size[1], size[0], channels) if channels > 1 else (size[1], size[0])
    return Image.fromarray(numpy.random.default_rng(seed).integers(0, 255, shape, dtype=numpy.uint8), mode)


class Script:
    """A planner that carries out a list of actions."""

    def __init__(self, *actions: Action) -> None:
        self.actions = actions

    def identity(self):
        return {"kind": "script"}

    def step_identity(self, task, step):
        return self.identity()

    def act(self, request):
        assert len(request.past) == request.step
        with Image.open(request.frame) as frame:
            assert frame.size == (request.width, request.height)
        return Planned(self.actions[request.step], "a plan", "words", {"planner_attempts": []})


class Worlds:
    """A world that answers each step with what the list says: bytes, or a failure to raise."""

    near_constant_ok = False

    def __init__(self, *answers) -> None:
        self.answers = answers
        self.requests = []

    def identity(self):
        return {"world": "list"}

    def predict(self, request):
        self.requests.append(request)
        answer = self.answers[request.step]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Prediction) else Prediction(png=answer)


@pytest.fixture
def make_row(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(planner, world, budget=4, history=0):
        folder = tmp_path / "set/online_data/t1"
        folder.mkdir(parents=True)
        noise(0).save(folder / "initial.png")
        milestone = {"id": "m1", "type": ["terminal_success"], "assertion": "Done."}
        line = {"task_id": "t1", "instruction": "Do it.", "step_budget": budget, "milestones": [milestone]}
        (tmp_path / "set/online_samples.jsonl").write_text(json.dumps(line))
        tasks = load_tasks(tmp_path / "set", "online")
        return Row(
            model="list",
            family="list",
            setting="nohist",
            history=history,
            seed=0,
            repeat=0,
            world=world,
            planner=planner,
            planner_name="script",
            track="online",
            tasks=tuple(tasks),
            all_tasks={task.task_id: task for task in tasks},
            tasks_path="set",
        )

    return make


def roll(row):
    """Runs the chain in order; returns the trajectory."""
    task = row.tasks[0]
    folder = row.folder / task.task_id
    for _, name, step in positions(task.step_budget):
        module = act if name == "action.json" else predict
        module.main(row, task, step, step_folder(folder, step) / name)
    trajectory.main(row, task, folder / "trajectory.json")
    rollout_results.main(row, row.folder / "rollout_results.json")
    assert first_stale(row, task) is None
    assert results_hold(row)
    assert verify_row(row) == []
    assert validate_rollout_row(row.folder, row.tasks) == []
    return read_json(folder / "trajectory.json")


TAP = Action("tap", 1, 2)


def test_budget_end(make_row):
    pictures = [png_bytes(noise(n)) for n in range(1, 5)]
    record = roll(make_row(Script(*[TAP] * 4), Worlds(*pictures)))
    assert (record["end_reason"], record["end_step"], record["steps_taken"]) == ("budget_used", 3, 4)
    assert record["complete"] is True
    assert len(record["frames"]) == 5
    assert record["trajectory"][3]["pred_resized_to_frame"] is False


@pytest.mark.parametrize(
    ("last", "reason", "status"),
    [
        (Action("terminate", status="failure"), "terminated", "failure"),
        (Action("answer", text="7"), "answered", "unknown"),
    ],
)
def test_terminal_action_passes_through(make_row, last, reason, status):
    world = Worlds(png_bytes(noise(1)), png_bytes(noise(2)))
    row = make_row(Script(TAP, last), world)
    record = roll(row)
    assert (record["end_reason"], record["end_step"], record["terminal_status"]) == (reason, 1, status)
    assert record["trajectory"][1]["terminated"] is True
    assert len(record["frames"]) == 2
    assert len(world.requests) == 1
    assert read_json(row.folder / "t1/step_003/prediction.json")["status"] == "skipped"
    assert sorted(path.name for path in (row.folder / "t1/step_003").iterdir()) == ["action.json", "prediction.json"]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (ModelFailure("no_html", "no page in the reply"), "no_html"),
        (b"no picture", "undecodable_image"),
        (png_bytes(noise(1))[:500], "undecodable_image"),
        (png_bytes(Image.new("RGB", (WIDTH, HEIGHT), "grey")), "near_constant_image"),
        (png_bytes(Image.new("RGB", (7, 7), "white")), "near_constant_image"),
    ],
)
def test_model_failure_is_a_result_and_passes_through(make_row, answer, code):
    row = make_row(Script(TAP, TAP), Worlds(png_bytes(noise(1)), answer))
    record = roll(row)
    assert (record["complete"], record["error"], record["failure_class"]) == (False, code, "model")
    assert (record["end_reason"], record["end_step"], record["steps_taken"]) == ("model_failure", 1, 2)
    assert record["trajectory"][1]["wm_error"] == code
    # The last screen is the last good one.
    final = (row.folder / "t1/final_frame.png").read_bytes()
    assert final == (row.folder / "t1/step_001/frame.png").read_bytes()


def test_near_constant_is_allowed_where_the_world_says_so(make_row):
    world = Worlds(*[png_bytes(Image.new("RGB", (WIDTH, HEIGHT), "white"))] * 2)
    world.near_constant_ok = True
    assert roll(make_row(Script(TAP, TAP), world, budget=2))["end_reason"] == "budget_used"


def test_infrastructure_failure_writes_nothing(make_row):
    row = make_row(Script(TAP), Worlds(InfrastructureFailure("timeout", "no answer")))
    task = row.tasks[0]
    folder = step_folder(row.folder / "t1", 0)
    act.main(row, task, 0, folder / "action.json")
    with pytest.raises(InfrastructureFailure):
        predict.main(row, task, 0, folder / "prediction.json")
    assert not list(folder.glob("prediction*"))
    assert first_stale(row, task) == 1


def test_other_sizes_are_resized_and_both_sizes_recorded(make_row):
    row = make_row(Script(TAP), Worlds(png_bytes(noise(1, (20, 90)))), budget=1)
    entry = roll(row)["trajectory"][0]
    assert entry["pred_original_size"] == [20, 90]
    assert entry["pred_resized_to_frame"] is True
    with Image.open(row.folder / "t1/final_frame.png") as final:
        assert final.size == (WIDTH, HEIGHT)
    with Image.open(row.folder / "t1/step_000/prediction.png") as prediction:
        assert prediction.size == (20, 90)


def test_history_window_holds_the_last_screens_and_actions(make_row):
    world = Worlds(*[png_bytes(noise(n)) for n in range(1, 5)])
    actions = [Action("tap", n, n) for n in range(4)]
    roll(make_row(Script(*actions), world, history=2))
    assert [[past.step for past in request.history] for request in world.requests] == [[], [0], [0, 1], [1, 2]]
    assert world.requests[3].history[0].action.x == 1
    assert [len(request.actions) for request in world.requests] == [1, 2, 3, 4]
    assert len({request.seed for request in world.requests}) == 4


def test_a_picture_changed_behind_the_record_is_found(make_row):
    row = make_row(Script(TAP, TAP), Worlds(png_bytes(noise(1)), png_bytes(noise(2))), budget=2)
    roll(row)
    path = row.folder / "t1/step_001/prediction.png"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert len(verify_row(row)) == 1
    path.write_bytes(data[:-1])
    assert first_stale(row, row.tasks[0]) == 3


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "I;16", "LA", "1"])
def test_every_kind_of_png_becomes_an_8_bit_rgb_frame(mode):
    if mode == "I;16":
        image = Image.fromarray(numpy.full((HEIGHT, WIDTH), 65535, dtype=numpy.uint16))
    else:
        image = Image.new("RGB", (WIDTH, HEIGHT), "white").convert(mode)
    stream = io.BytesIO()
    image.save(stream, format="PNG")
    data, own, resized = to_frame(stream.getvalue(), (WIDTH, HEIGHT))
    with Image.open(io.BytesIO(data)) as frame:
        assert (frame.mode, frame.size) == ("RGB", (WIDTH, HEIGHT))
        assert numpy.asarray(frame).min() == 255
    assert own == (WIDTH, HEIGHT)
    assert resized is False


def test_transparent_pixels_are_laid_on_white():
    stream = io.BytesIO()
    Image.new("RGBA", (WIDTH, HEIGHT), (0, 0, 0, 0)).save(stream, format="PNG")
    with Image.open(io.BytesIO(to_frame(stream.getvalue(), (WIDTH, HEIGHT))[0])) as frame:
        assert frame.getpixel((0, 0)) == (255, 255, 255)
