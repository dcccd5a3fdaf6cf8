"""The built-in tasks: whole, solvable, and reproduced by the browser world to the pixel."""

from __future__ import annotations

import io
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy
import pytest
from PIL import Image

from workflow_scripts.actions import Action
from workflow_scripts.browser.pool import shared_pool
from workflow_scripts.failures import InvalidInput
from workflow_scripts.tasks import load_tasks
from workflow_scripts.worlds.base import StepRequest
from workflow_scripts.worlds.browser import BrowserWorld
from workflow_scripts.worlds.make_builtin_tasks import MILESTONES, STEPS
from workflow_scripts.worlds.miniwob import Environment, episode
from workflow_scripts.worlds.rows import BrowserRow

from ..workflow.conftest import REPOSITORY

DATA = REPOSITORY / "data" / "miniwob"
OFFLINE = load_tasks(DATA, "offline")
ONLINE = load_tasks(DATA, "online")
WORLD = BrowserWorld(BrowserRow(family="browser"))
RECORDED_WITH = "156.0.8078.114"
"""The browser of the stored screens. That build must give the very pixels; another one draws the edges of letters and
the faces of buttons and date fields its own way, so there a small share of the pixels may be clearly different."""
OTHER_BUILD_SHARE = 0.03
CLEARLY = 40


def request(task, step, actions=None):
    actions = tuple((actions or task.actions)[: step + 1])
    return StepRequest(task, step, task.image, actions[-1], (), actions, seed=0)


def pixels(png):
    with Image.open(io.BytesIO(png)) as image:
        return numpy.asarray(image.convert("RGB")).astype(int)


def assert_same_screen(png, stored, version):
    got, wanted = pixels(png), pixels(stored.read_bytes())
    assert got.shape == wanted.shape
    apart = numpy.abs(got - wanted).max(axis=2)
    if version == RECORDED_WITH:
        assert apart.max() == 0, f"{(apart > 0).sum()} pixels differ from {stored}"
    else:
        assert (apart > CLEARLY).mean() < OTHER_BUILD_SHARE, f"Chromium {version} draws another screen than {stored}"


@pytest.mark.parametrize("task", OFFLINE, ids=lambda task: task.task_id)
def test_recorded_actions_reach_the_reward(task):
    steps = (len(task.actions) - 1, len(task.actions) // 2 - 1)
    with ThreadPoolExecutor(2) as threads:
        last, middle = threads.map(lambda step: WORLD.predict(request(task, step)), steps)
    assert last.page == {"reward": 1.0, "done": True}
    assert middle.page == {"reward": 0.0, "done": False}
    assert last.supported
    for step, prediction in zip(steps, (last, middle), strict=True):
        assert_same_screen(prediction.png, task.after_image(step), prediction.evidence["browser"])


def test_the_two_tracks_hold_the_same_tasks():
    assert [task.task_id for task in ONLINE] == [task.task_id for task in OFFLINE]
    for online, offline in zip(ONLINE, OFFLINE, strict=True):
        assert online.instruction == offline.instruction
        assert online.environment == offline.environment
        assert online.image_sha256 == offline.image_sha256
        assert online.step_budget in range(len(offline.actions) + 1, 25)


def test_counts_and_names():
    pages = {task.environment["page"] for task in ONLINE}
    assert len(ONLINE) >= 30
    assert 18 <= len(pages) < len(ONLINE)
    assert all(re.fullmatch(r"[A-Za-z0-9-]+", task.task_id) for task in ONLINE)
    assert all(len(task.actions) in STEPS for task in OFFLINE)
    used = {action.type for task in OFFLINE for action in task.actions}
    assert used == {"tap", "long_press", "scroll", "type_text", "wait"}


def test_milestones_end_in_success():
    for task in ONLINE:
        assert len(task.milestones) in MILESTONES
        assert [("terminal_success" in m.type) for m in task.milestones] == [False] * (len(task.milestones) - 1) + [
            True
        ]


def test_every_screen_is_stored_as_a_frame():
    for task in OFFLINE:
        WORLD.check_task(task)
        for path in (task.image, *(task.after_image(step) for step in range(task.step_budget))):
            with Image.open(path) as image:
                assert (image.size, image.mode) == ((480, 480), "RGB")
        assert not task.after_image(task.step_budget).exists()


@pytest.mark.parametrize("task", ONLINE[::8], ids=lambda task: task.task_id)
def test_an_episode_starts_as_recorded(task):
    environment = Environment.of(task.environment, task.task_id)

    async def start():
        async with episode(shared_pool(), environment) as running:
            return await running.frame(), running.instruction, running.browser_version

    png, instruction, version = shared_pool().run(start, 60)
    assert_same_screen(png, task.image, version)
    assert instruction == task.instruction


def test_equal_seeds_give_equal_bytes_at_any_load():
    chosen = [
        task for task in OFFLINE if task.environment["page"] in ("social-media-some", "tic-tac-toe", "choose-date")
    ]
    requests = [request(task, task.step_budget - 2) for task in chosen] * 3
    with ThreadPoolExecutor(6) as threads:
        pngs = [prediction.png for prediction in threads.map(WORLD.predict, requests)]
    assert pngs == pngs[: len(chosen)] * 3
    assert len(set(pngs)) == len(chosen)


def test_unsupported_actions_change_nothing():
    task = OFFLINE[0]
    before = WORLD.predict(request(task, 1))
    for action in (Action("navigate_back"), Action("navigate_home"), Action("open_app", app_name="Mail")):
        after = WORLD.predict(request(task, 2, (*task.actions[:2], action)))
        assert not after.supported
        assert after.png == before.png
    done = WORLD.predict(request(task, task.step_budget, (Action("navigate_back"), *task.actions)))
    assert done.supported
    assert done.page == {"reward": 1.0, "done": True}


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        (None, "environment.kind"),
        ({"kind": "android"}, "environment.kind"),
        ({"kind": "miniwob", "page": "no-such-page", "seed": 0}, "environment.page"),
        ({"kind": "miniwob", "page": "../core/core", "seed": 0}, "environment.page"),
        ({"kind": "miniwob", "page": "login-user", "seed": "0"}, "environment.seed"),
        ({"kind": "miniwob", "page": "login-user", "seed": 0, "scale": 0}, "environment.scale"),
        ({"kind": "miniwob", "page": "login-user", "seed": 0, "scale": 2}, "environment.scale"),
        ({"kind": "miniwob", "page": "login-user", "seed": 0, "sede": 3}, "environment.sede"),
    ],
)
def test_tasks_without_a_page_are_refused(environment, key):
    with pytest.raises(InvalidInput) as caught:
        WORLD.check_task(replace(ONLINE[0], environment=environment))
    assert caught.value.key == key
    assert ONLINE[0].task_id in caught.value.where


def test_nothing_is_missing_here():
    assert WORLD.preflight() == []
