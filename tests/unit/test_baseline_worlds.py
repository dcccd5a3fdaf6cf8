"""The two baselines: no change, and an empty screen."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from workflow_scripts.actions import Action
from workflow_scripts.records import png_bytes
from workflow_scripts.tasks import Task
from workflow_scripts.worlds.base import StepRequest
from workflow_scripts.worlds.blank import BlankWorld
from workflow_scripts.worlds.copy_last import CopyLastWorld
from workflow_scripts.worlds.rows import BlankRow, CopyLastRow


@pytest.fixture
def request_(tmp_path):
    frame = tmp_path / "frame.png"
    frame.write_bytes(png_bytes(Image.linear_gradient("L").convert("RGB").resize((40, 30))))
    task = Task("t", "online", "Do it.", 3, frame, 40, 30, image_sha256="")
    action = Action("tap", 1, 2)
    return StepRequest(task, 0, frame, action, (), (action,), seed=1)


def test_copy_last_predicts_the_same_bytes(request_):
    world = CopyLastWorld(CopyLastRow(family="copy_last"))
    assert world.predict(request_).png == request_.frame.read_bytes()
    assert world.preflight() == []


def test_blank_predicts_one_colour_of_the_tasks_size(request_):
    world = BlankWorld(BlankRow(family="blank", color="#0A141E"))
    with Image.open(io.BytesIO(world.predict(request_).png)) as image:
        assert image.size == (40, 30)
        assert image.getcolors() == [(1200, (10, 20, 30))]
    assert world.near_constant_ok


def test_the_colour_is_part_of_the_identity():
    identities = [BlankWorld(BlankRow(family="blank", color=c)).identity() for c in ("#ffffff", "#FFFFFF", "#000000")]
    assert identities[0] == identities[1] != identities[2]
