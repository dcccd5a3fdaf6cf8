"""What each action of the vocabulary does to a page, on a page that writes down what happens to it."""

from __future__ import annotations

import pytest

from workflow_scripts.actions import Action
from workflow_scripts.browser.pool import shared_pool
from workflow_scripts.worlds.miniwob import LONG_PRESS_MS, STEP_MS, VIEWPORT, Environment, Episode

SCALE = 2
PAGE = """<!doctype html><style>
 body{margin:0;height:400px;width:400px} div{position:absolute}
 #list{left:0;top:60px;width:100px;height:60px;overflow:auto}
 #list p{margin:0;height:150px;background:linear-gradient(red,blue)}
 #deaf{left:110px;top:60px;width:40px;height:60px;overflow:auto} #deaf p{margin:0;height:200px;background:#0a0}
 #field{position:absolute;left:4px;top:130px;width:100px} #late{left:0;top:170px;width:20px;height:20px}
</style><div id=list><p></div><div id=deaf><p></div><input id=field><div id=late></div><script>
 window.log = [];
 for (const kind of ['mousedown', 'mouseup', 'click'])
   addEventListener(kind, e => log.push([kind, e.clientX, e.clientY, Date.now()]));
 deaf.addEventListener('wheel', e => e.preventDefault(), {passive: false});
 addEventListener('click', () => setTimeout(() => late.style.background = 'red', 900));
</script>"""
SCROLLED = "() => [list.scrollTop, document.scrollingElement.scrollTop, document.scrollingElement.scrollLeft]"


def play(*steps):
    """Carries out actions and evaluates expressions on PAGE, in order; returns the results."""

    async def serve(route):
        await route.fulfill(body=PAGE, content_type="text/html")

    async def job():
        async with shared_pool().session(*VIEWPORT, scale=SCALE, route=serve) as page:
            await page.goto("http://test.invalid/")
            episode = Episode(page, Environment("test", 0, SCALE), "")
            results = []
            for step in steps:
                if isinstance(step, Action):
                    results.append(await episode.perform(step))
                elif step == "frame":
                    results.append(await episode.frame())
                else:
                    results.append(await page.evaluate(step))
            return results

    return shared_pool().run(job, 60)


def test_tap_is_a_click_at_the_point_below_the_goal_bar():
    done, log = play(Action("tap", 100, 30), "() => log.map(e => e.slice(0, 3))")
    assert done
    assert log == [[kind, 50, 65] for kind in ("mousedown", "mouseup", "click")]


def test_time_passes_after_an_action_and_only_then():
    before, _, after, late = play(
        "() => Date.now()", Action("tap", 0, 0), "() => Date.now()", "() => late.style.background"
    )
    assert after - before == STEP_MS
    assert late == "red"


def test_long_press_holds():
    done, log = play(Action("long_press", 100, 30), "() => log")
    assert done
    down, up = log[0], log[1]
    assert [down[0], up[0]] == ["mousedown", "mouseup"]
    assert up[3] - down[3] == LONG_PRESS_MS


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        (["up"], [48, 0, 0]),  # 30 % of 160 CSS pixels
        (["up", "down"], [0, 0, 0]),
        (["up", "up"], [90, 0, 0]),  # as far as the list goes
        (["up", "up", "up"], [90, 48, 0]),  # then the page moves
        (["left"], [0, 0, 48]),
        (["left", "right"], [0, 0, 0]),
        (["down"], [0, 0, 0]),  # nothing above
    ],
)
def test_scroll_follows_the_finger(moves, expected):
    *done, scrolled = play(*(Action("scroll", 80, 60, direction=move) for move in moves), SCROLLED)
    assert all(done)
    assert scrolled == expected


def test_scroll_on_an_element_that_swallows_the_wheel():
    done, inner, outer = play(Action("scroll", 250, 60, direction="up"), "() => deaf.scrollTop", SCROLLED)
    assert done
    assert (inner, outer) == (0, [0, 0, 0])


def test_text_goes_into_the_focused_field():
    value = "() => field.value"
    results = play(
        Action("type_text", text="lost"),
        value,
        Action("tap", 60, 180),
        Action("type_text", text="Zoë 1"),
        Action("type_text", text=""),
        Action("type_text", text="!"),
        value,
    )
    assert results[1] == ""
    assert results[-1] == "Zoë 1!"


def test_wait_lets_a_second_pass():
    before, done, after, events = play("() => Date.now()", Action("wait"), "() => Date.now()", "() => log.length")
    assert done
    assert (after - before, events) == (1000, 0)


@pytest.mark.parametrize(
    "action", [Action("navigate_home"), Action("navigate_back"), Action("open_app", app_name="Mail")], ids=str
)
def test_what_a_page_cannot_do_leaves_it_alone(action):
    now = "() => Date.now()"
    frame, before, done, after, same = play("frame", now, action, now, "frame")
    assert not done
    assert (before, frame) == (after, same)


@pytest.mark.parametrize("action", [Action("terminate", status="success"), Action("answer", text="42")], ids=str)
def test_terminal_actions_have_no_screen(action):
    with pytest.raises(ValueError, match="ends an episode"):
        play(action)
