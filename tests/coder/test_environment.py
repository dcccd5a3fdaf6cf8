"""Episodes and sessions with the real renderer: turns, ends, failures of either kind, eviction."""

from pathlib import Path
from typing import Any

import pytest

from workflow_scripts.browser.pool import BrowserPool
from workflow_scripts.coder.blocks import Camera
from workflow_scripts.coder.environment import (
    Environment,
    EnvironmentConfig,
    EpisodeDone,
    NoEpisode,
    Sessions,
    TooManySessions,
)
from workflow_scripts.coder.pages import procedural_page
from workflow_scripts.coder.scorers import OriginalScorer, VisibleScorer, extract_html, make_scorer
from workflow_scripts.coder.tasksets import load_folder
from workflow_scripts.failures import InfrastructureFailure, InvalidInput

PAGE = procedural_page("easy", "train", 3)
BLANK = "<!DOCTYPE html><html><body></body></html>"


@pytest.fixture(scope="module")
def scorer(camera: Camera) -> VisibleScorer:
    return VisibleScorer(camera=camera)


def environment(scorer: Any, **settings: Any) -> Environment:
    return Environment(EnvironmentConfig(**settings), scorer)


def test_an_episode_runs_to_its_last_turn(scorer: VisibleScorer) -> None:
    env = environment(scorer, max_turns=2)
    start = env.reset(task_id=PAGE.id)
    assert (start.turn, start.done, start.reward, start.render) == (0, False, None, None)
    assert start.reference.startswith(b"\x89PNG")
    first = env.step(PAGE.html.replace("</h1>", " more</h1>"))
    assert first.reward is not None
    assert 0.3 < first.reward < 1
    assert first.render is not None
    second = env.step(BLANK)
    assert (second.turn, second.done, second.reason, second.reward) == (2, True, "max_turns", 0.0)
    assert second.failure is not None
    assert second.failure["code"] == "reward_blank"
    assert second.best == first.reward
    with pytest.raises(EpisodeDone):
        env.step(PAGE.html)


def test_the_truth_ends_the_episode(scorer: VisibleScorer) -> None:
    env = environment(scorer)
    env.reset(task_id=PAGE.id)
    done = env.step(f"<think>easy</think>\nHere it is:\n```html\n{PAGE.html}```\nDone.")
    assert (done.reward, done.done, done.reason) == (1.0, True, "success")


def test_best_so_far_keeps_the_better_draft(scorer: VisibleScorer) -> None:
    env = environment(scorer, best_so_far=True)
    env.reset(task_id=PAGE.id)
    first = env.step(PAGE.html.replace("</h1>", " more</h1>"))
    second = env.step(BLANK)
    assert (second.reward, second.draft) == (first.reward, 0.0)


def test_seeds_and_levels_choose_the_task(scorer: VisibleScorer) -> None:
    env = environment(scorer)
    assert env.reset(seed=7, level="easy", split="heldout").task_id == "procedural/easy/heldout/7"
    assert env.reset(seed=7).task_id == env.reset(seed=7).task_id
    assert env.reset().task_id != env.reset().task_id
    with pytest.raises(KeyError):
        env.reset(task_id="procedural/easy/train/no")
    with pytest.raises(ValueError, match="level"):
        env.reset(seed=1, level="brutal")


def test_a_step_needs_a_reset(scorer: VisibleScorer) -> None:
    with pytest.raises(NoEpisode):
        environment(scorer).step(BLANK)


def test_a_page_that_cannot_be_rendered_is_worth_nothing_and_says_why(camera: Camera) -> None:
    env = environment(VisibleScorer(camera=Camera(camera.pool, max_chars=5_000)))
    env.reset(task_id=PAGE.id)
    seen = env.step("x" * 5_001)
    assert seen.reward == 0
    assert seen.failure is not None
    assert (seen.failure["kind"], seen.failure["code"]) == ("model", "render_too_long")
    assert seen.render is None


def test_a_task_without_a_visible_page_is_refused(camera: Camera, tmp_path: Path) -> None:
    (tmp_path / "blank.html").write_text("<p style='color:#fff'>white</p>")
    (tmp_path / "huge.html").write_text("x" * 100_000)
    for task in load_folder(tmp_path):
        scorer = VisibleScorer(camera=Camera(camera.pool, max_chars=99_999))
        with pytest.raises(InvalidInput, match="remove the page"):
            Environment(scorer=scorer, tasks=load_folder(tmp_path)).reset(task_id=task.id)


def test_a_broken_renderer_is_nobodys_reward() -> None:
    pool = BrowserPool()
    env = environment(VisibleScorer(camera=Camera(pool)))
    env.reset(task_id=PAGE.id)
    pool.close()
    with pytest.raises(InfrastructureFailure):
        env.step(PAGE.html)
    assert env.observation is not None
    assert env.observation.turn == 0
    assert env.infrastructure_failures == 1


def test_the_original_reward_pays_for_what_ours_does_not(camera: Camera, scorer: VisibleScorer) -> None:
    page = procedural_page("medium", "heldout", 31)
    theirs = OriginalScorer(camera)
    perfect = theirs.score(page, page.html)
    assert set(perfect.parts) == {
        "format",
        "validity",
        "structural",
        "text_block",
        "position",
        "color",
        "clip",
        "ssim",
    }
    assert all(0 <= part <= 1 for part in perfect.parts.values())
    assert perfect.total == pytest.approx(1 - 0.25 / 11)  # unfenced, as its prompts demand
    hidden = page.html.replace("</style>", "body *{opacity:0}</style>")
    assert theirs.score(page, hidden).parts["text_block"] == 1
    assert scorer.score(page, hidden).total == 0
    assert make_scorer("original", camera=camera).record()["reward"] == "original"
    with pytest.raises(ValueError, match="visible"):
        make_scorer("clip")


@pytest.mark.parametrize(
    ("reply", "html"),
    [
        ("<p>bare</p>", "<p>bare</p>"),
        ("Sure!\n```html\n<p>a</p>\n```\nor\n```html\n<p>b</p>\n```", "<p>b</p>"),
        ("```html\n<p>cut off", "<p>cut off"),
        ("Text <!DOCTYPE html><html><p>x</html> thanks", "<!DOCTYPE html><html><p>x</html>"),
        ("<think>```html\n<p>no</p>```</think><p>yes</p>", "<p>yes</p>"),
        ("<think>never closed <p>no</p>", ""),
        ("<!DOCTYPE html><html><pre>```\nnot a tag\n```</pre></html>", None),
    ],
)
def test_the_document_is_found_in_a_reply(reply: str, html: str | None) -> None:
    assert extract_html(reply) == (reply if html is None else html)


def test_sessions_are_apart_expire_and_make_room(scorer: VisibleScorer) -> None:
    now = [0.0]
    sessions = Sessions(lambda: environment(scorer, max_turns=1), limit=2, timeout_s=10, clock=lambda: now[0])
    one = sessions.reset(task_id=PAGE.id)
    two = sessions.reset(task_id="procedural/easy/train/4")
    assert one.session_id != two.session_id
    with pytest.raises(TooManySessions):
        sessions.reset(seed=1)
    assert sessions.step(str(one.session_id), PAGE.html).reward == 1
    with pytest.raises(EpisodeDone):
        sessions.step(str(one.session_id), PAGE.html)
    three = sessions.reset(seed=1)  # the finished one made room
    with pytest.raises(NoEpisode):
        sessions.step(str(one.session_id), PAGE.html)
    now[0] = 11
    with pytest.raises(NoEpisode):
        sessions.step(str(three.session_id), PAGE.html)
    assert len(sessions) == 0
    with pytest.raises(KeyError):
        sessions.reset(task_id="nothing")
    assert len(sessions) == 0
