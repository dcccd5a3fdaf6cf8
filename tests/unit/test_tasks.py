import json
from pathlib import Path

import pytest
from PIL import Image

from workflow_scripts.failures import InvalidInput
from workflow_scripts.tasks import load_tasks, select, subset_positions

MILESTONE = {"id": "m1", "type": ["terminal_success"], "assertion": "The list is empty."}


def online(task_id="001", **changes):
    return {"task_id": task_id, "instruction": "Do it.", "step_budget": 3, "milestones": [MILESTONE], **changes}


@pytest.fixture
def data(tmp_path):
    """Writes a task set: rows of online_samples.jsonl and, per id, a grey first screen."""

    def write(*rows, images=True):
        lines = []
        for row in rows:
            lines.append(row if isinstance(row, str) else json.dumps(row))
            if images and isinstance(row, dict) and isinstance(row.get("task_id"), str):
                folder = tmp_path / "online_data" / row["task_id"]
                if ".." not in row["task_id"]:
                    folder.mkdir(parents=True, exist_ok=True)
                    Image.new("RGB", (40, 60), "grey").save(folder / "initial.png")
        (tmp_path / "online_samples.jsonl").write_text("\n".join(lines))
        return tmp_path

    return write


def refused(path: Path, track="online") -> str:
    with pytest.raises(InvalidInput) as caught:
        load_tasks(path, track)
    return str(caught.value)


def test_a_good_set(data):
    tasks = load_tasks(data(online(), online("b-2", extra=1)), "online")
    assert [task.task_id for task in tasks] == ["001", "b-2"]
    assert (tasks[0].width, tasks[0].height, tasks[0].step_budget) == (40, 60, 3)
    assert tasks[1].meta == {"extra": 1}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"step_budget": 0}, "step_budget"),
        ({"step_budget": True}, "step_budget"),
        ({"step_budget": "5"}, "step_budget"),
        ({"step_budget": 301}, "step_budget"),
        ({"instruction": " "}, "instruction"),
        ({"milestones": [{**MILESTONE, "type": ["sucess"]}]}, "milestones[0].type"),
        ({"milestones": [{**MILESTONE, "type": []}]}, "milestones[0].type"),
        ({"milestones": [{**MILESTONE, "assertion": ""}]}, "milestones[0].assertion"),
        ({"milestones": [MILESTONE, MILESTONE]}, "milestones"),
        ({"initial_image": "../secret.png"}, "initial_image"),
        ({"initial_image": "/etc/passwd"}, "initial_image"),
        ({"environment": {"page": "x"}}, "environment"),
    ],
)
def test_bad_fields_are_named_with_their_line(data, changes, key):
    message = refused(data(online("first"), online("second", **changes)))
    assert f"online_samples.jsonl:2: {key}\n" in message
    assert "expected:" in message
    assert "write:" in message


@pytest.mark.parametrize("task_id", ["a/b", "a b", "ä", "..", ".hidden", "", "x" * 101])
def test_ids_that_are_no_folder_names(data, task_id):
    assert ":1: task_id" in refused(data(online(task_id), images=False))


def test_missing_field_duplicate_id_and_broken_lines(data):
    row = online()
    del row["step_budget"]
    assert "no such field" in refused(data(row))
    assert "line 1" in refused(data(online("a"), online("a")))
    assert "online_samples.jsonl:2" in refused(data(online("a"), "{"))
    assert "one JSON object" in refused(data("[1]"))
    assert ":1:" in refused(data(json.dumps(online(instruction="\ud800"))))


def test_empty_file_and_missing_track(data):
    assert "at least one task" in refused(data(""))
    assert "online track only" in refused(data(online()), "offline")


def test_images(data):
    path = data(online("a"))
    image = path / "online_data/a/initial.png"
    whole = image.read_bytes()
    image.unlink()
    assert ":1: initial_image" in refused(path)
    image.write_bytes(whole[:-20])
    assert "a whole PNG" in refused(path)
    image.write_bytes(b"not a picture")
    assert "a whole PNG" in refused(path)
    Image.new("RGB", (1, 1)).save(image)
    assert "1×1" in refused(path)
    Image.new("RGB", (40, 40)).save(image, format="JPEG")
    assert "JPEG" in refused(path)
    for mode in ("RGBA", "L", "I;16", "P"):
        Image.new(mode, (40, 40)).save(image)
        assert load_tasks(path, "online")[0].width == 40


def offline_set(tmp_path, actions, **changes):
    folder = tmp_path / "offline_data" / "s1"
    folder.mkdir(parents=True)
    Image.new("RGB", (40, 60)).save(folder / "initial.png")
    lines = [json.dumps({"step_id": k, "semantic_action": action}) for k, action in enumerate(actions)]
    (folder / "reference_trajectory.jsonl").write_text("\n".join(lines))
    row = {"sample_id": "s1", "task_instruction": "Do it.", "n_steps": len(actions), **changes}
    (tmp_path / "offline_samples.jsonl").write_text(json.dumps(row))
    return tmp_path


def test_offline_budget_is_the_number_of_recorded_actions(tmp_path):
    path = offline_set(tmp_path, [{"type": "tap", "source_coord": [1, 2]}, {"type": "navigate_back"}])
    task = load_tasks(path, "offline")[0]
    assert task.step_budget == 2
    assert task.actions[0].x == 1


def test_true_screens_are_there_for_every_action_or_for_none(tmp_path):
    path = offline_set(tmp_path, [{"type": "wait"}, {"type": "wait"}])
    assert load_tasks(path, "offline")[0].true_images == ()
    folder = path / "offline_data/s1"
    Image.new("RGB", (40, 60)).save(folder / "step_000_after.png")
    assert "1 of 2" in refused(path, "offline")
    Image.new("RGB", (40, 61)).save(folder / "step_001_after.png")
    assert "40×61" in refused(path, "offline")
    Image.new("RGB", (40, 60)).save(folder / "step_001_after.png")
    assert len(load_tasks(path, "offline")[0].true_images) == 3


def test_offline_faults(tmp_path):
    path = offline_set(tmp_path, [{"type": "tap"}])
    assert "reference_trajectory.jsonl:1: semantic_action" in refused(path, "offline")


def test_offline_count_must_agree(tmp_path):
    path = offline_set(tmp_path, [{"type": "wait"}], n_steps=2)
    assert "n_steps" in refused(path, "offline")


def test_selection(data):
    tasks = load_tasks(data(*(online(f"{n:03d}") for n in range(10))), "online")
    ids = [task.task_id for task in tasks]
    assert [t.task_id for t in select(tasks, task_ids=["003", "1"])] == ["001", "003"]
    assert [t.task_id for t in select(tasks, subset=3)] == ["000", "003", "006"]
    shards = [[t.task_id for t in select(tasks, shard=(i, 3))] for i in (1, 2, 3)]
    assert sorted(name for shard in shards for name in shard) == ids
    for bad in ({"task_ids": []}, {"task_ids": ["nope"]}, {"subset": 11}, {"shard": (11, 11)}):
        with pytest.raises(InvalidInput):
            select(tasks, **bad)
    with pytest.raises(InvalidInput):
        select(tasks, task_ids=["001"], subset=2)


def test_subsets_nest_for_every_divisor_and_total():
    for total in (195, 200, 290, 310, 500):
        for count in range(1, total + 1):
            positions = subset_positions(total, count)
            assert len(set(positions)) == count
            assert positions[-1] < total
            for part in range(1, count + 1):
                if count % part == 0:
                    assert set(subset_positions(total, part)) <= set(positions)
