"""The reward against a real browser: the truth earns 1, hacks earn nothing, damage costs more as it grows."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from workflow_scripts.coder.blocks import Camera, Limits, Snapshot
from workflow_scripts.coder.corruptions import SERIES
from workflow_scripts.coder.hacks import HACKS, PARTIAL
from workflow_scripts.coder.pages import LEVELS, SPLITS, PageTask, procedural_page
from workflow_scripts.coder.reward import Reward, reward
from workflow_scripts.failures import ModelFailure

# The weights were chosen on train pages 0-3 of each level; nothing here was looked at then.
JUDGED = [procedural_page(level, "heldout", index) for level in LEVELS for index in (11, 12)]


def look(camera: Camera, page: PageTask, html: str) -> Snapshot:
    return camera.look(html, page.width, page.height)


def score(camera: Camera, page: PageTask, reference: Snapshot, html: str) -> Reward:
    try:
        return reward(reference, look(camera, page, html))
    except ModelFailure as failure:
        return Reward(0.0, gate=failure.code)


@pytest.fixture(scope="module")
def references(camera: Camera) -> list[Snapshot]:
    return [look(camera, page, page.html) for page in JUDGED]


def oracle(camera: Camera, page: PageTask) -> tuple[str, float, int]:
    """The reward of a page's own source, rendered twice."""
    first, second = look(camera, page, page.html), look(camera, page, page.html)
    return page.id, reward(first, second).total, len(first.text)


def _oracles(indices: range) -> list[PageTask]:
    return [procedural_page(level, split, i) for level in LEVELS for split in SPLITS for i in indices]


def test_every_page_earns_one_with_its_own_source(camera: Camera, at_once: Any) -> None:
    found = at_once(lambda page: oracle(camera, page), _oracles(range(100, 104)))
    assert [(name, total) for name, total, _ in found if total != 1.0] == []
    assert min(words for _, _, words in found) > 3


@pytest.mark.slow
def test_three_hundred_pages_earn_one_with_their_own_source(camera: Camera, at_once: Any) -> None:
    found = at_once(lambda page: oracle(camera, page), _oracles(range(50)))
    assert len(found) == 300
    assert [(name, total) for name, total, _ in found if total != 1.0] == []


@pytest.mark.parametrize("name", HACKS)
def test_hacks_earn_next_to_nothing(name: str, camera: Camera, references: list[Snapshot], at_once: Any) -> None:
    def one(pair: tuple[PageTask, Snapshot]) -> float:
        page, reference = pair
        return score(camera, page, reference, HACKS[name](page.html, reference.png)).total

    assert max(at_once(one, zip(JUDGED[::2], references[::2], strict=True))) < 0.05


BOUNDS = {
    "duplicated": 0.75,
    "giant": 0.02,
    "shuffled": 0.6,
    "inverted": 0.05,
    "recolored": 0.4,
    "no_style": 0.4,
    "overlay": 0.2,
    "flood": 0.4,
    "stacked": 0.9,
}


@pytest.mark.parametrize("name", BOUNDS)
def test_partial_pages_earn_less_than_their_honest_part(
    name: str, camera: Camera, references: list[Snapshot], at_once: Any
) -> None:
    def one(pair: tuple[PageTask, Snapshot]) -> float:
        page, reference = pair
        return score(camera, page, reference, PARTIAL[name](page.html, reference.png)).total

    assert max(at_once(one, zip(JUDGED[::2], references[::2], strict=True))) < BOUNDS[name]


def test_a_picture_of_the_target_adds_nothing(camera: Camera, references: list[Snapshot]) -> None:
    page, reference = JUDGED[2], references[2]
    with_picture = PARTIAL["overlay"](page.html, reference.png)
    start = with_picture.index("<img")
    without = with_picture[:start] + with_picture[with_picture.index(">", start) + 1 :]
    assert score(camera, page, reference, with_picture).total <= score(camera, page, reference, without).total + 0.01


def test_another_page_earns_next_to_nothing(camera: Camera, references: list[Snapshot]) -> None:
    others = [reward(references[i], look(camera, JUDGED[i], JUDGED[i - 2].html)).total for i in range(6)]
    assert max(others) < 0.1


def ranking(camera: Camera, pages: list[PageTask], references: list[Snapshot], at_once: Any) -> dict[str, Any]:
    """Corruption ranking: Spearman correlation of lost reward with strength, per series and page."""
    jobs = [(name, page, ref) for name in SERIES for page, ref in zip(pages, references, strict=True)]

    def one(job: tuple[str, PageTask, Snapshot]) -> tuple[str, float, float]:
        name, page, reference = job
        corrupt, strengths = SERIES[name]
        scores = np.array([score(camera, page, reference, corrupt(page.html, x, 3)).total for x in strengths])
        return name, float(spearmanr(strengths, -scores).statistic), float(np.diff(scores).max())

    return {"all": at_once(one, jobs)}


def test_reward_falls_with_damage_on_pages_the_weights_never_saw(
    camera: Camera, references: list[Snapshot], at_once: Any
) -> None:
    found = ranking(camera, JUDGED[::2], references[::2], at_once)["all"]
    assert np.mean([rho for _, rho, _ in found]) >= 0.97
    for name in SERIES:
        # Monotone: no step of a stronger damage is worth visibly more than the weaker one.
        assert max(rise for series, _, rise in found if series == name) < 0.02, name


@pytest.mark.slow
def test_corruption_ranking_on_more_pages(camera: Camera, at_once: Any) -> None:
    pages = [procedural_page(level, "heldout", index) for level in LEVELS for index in range(20, 24)]
    references = at_once(lambda page: look(camera, page, page.html), pages)
    found = ranking(camera, pages, references, at_once)["all"]
    assert np.mean([rho for _, rho, _ in found]) >= 0.97
    assert min(np.mean([rho for name, rho, _ in found if name == series]) for series in SERIES) >= 0.95


def test_every_part_is_between_zero_and_one(camera: Camera, references: list[Snapshot]) -> None:
    page, reference = JUDGED[0], references[0]
    for hack in (*HACKS.values(), *PARTIAL.values()):
        parts = score(camera, page, reference, hack(page.html, reference.png)).parts()
        assert all(0 <= value <= 1 for value in parts.values()), parts


VISIBILITY = {
    "<p>plain</p>": ["plain"],
    "<p style='opacity:0'>x</p><p>y</p>": ["y"],
    "<p style='color:#fff'>white</p>": [],
    "<p style='color:transparent'>clear</p>": [],
    "<p style='position:absolute;left:-999px'>left</p>": [],
    "<p>covered<span style='position:absolute;left:0;top:0;width:400px;height:300px;background:#eee'></span></p>": [],
    "<p style='clip-path:inset(50%)'>clipped</p>": [],
    "<p style='text-indent:-9999px'>indent</p>": [],
    "<details><summary>open</summary>closed</details>": ["open"],
    "<p style='color:#345;background:currentColor'>same</p>": [],
    "<form name=body><input name=style value=Typed></form>": ["typed"],
    "<p>a <b>b</b><i>c</i></p>": ["a", "b", "c"],
    "<p style='text-transform:uppercase'>Loud</p>": ["loud"],
    "<textarea>some text</textarea>": ["some", "text"],
    "<input placeholder='Your name'>": ["your", "name"],
    "<input type=password value=abc>": ["•••"],
    "<select><option>one<option selected>two</select>": ["two"],
    "<svg width=200 height=40><text y=20>drawn</text></svg>": ["drawn"],
    "<p>東京 tower</p>": ["東", "京", "tower"],
}


@pytest.mark.parametrize("html", VISIBILITY)
def test_only_visible_words_are_seen(html: str, camera: Camera) -> None:
    assert camera.look("<!DOCTYPE html>" + html, 400, 300).text == VISIBILITY[html]


def test_words_on_one_another_cannot_be_read_and_a_cover_hides(camera: Camera) -> None:
    stacked = "<div style='position:absolute;left:20px;top:20px;font-size:20px;{}'>{}</div>"
    under = stacked.format("", "garble")
    assert camera.look(under + stacked.format("", "jumble"), 400, 300).text == ["", ""]
    assert camera.look(under + stacked.format("background:#fff", "jumble"), 400, 300).text == ["jumble"]


def test_boxes_and_colours_are_measured(camera: Camera) -> None:
    html = (
        "<body style='margin:0;background:#eeeeee'>"
        "<div style='position:absolute;left:50px;top:40px;width:120px;height:80px;background:#224466;color:#ffffff;"
        "font:20px Arial'>Words</div><div style='width:10px;height:10px;background:#eee'>"
    )
    seen = camera.look(html, 400, 300)
    assert seen.boxes.tolist() == [[50, 40, 120, 80]]
    assert seen.fill.tolist() == [[0x22, 0x44, 0x66]]
    assert np.abs(seen.ink[0] - 255).max() < 20
    assert seen.ground.tolist() == [[0x22, 0x44, 0x66]]


def test_the_picture_is_the_whole_page_up_to_the_limit(camera: Camera) -> None:
    tall = "<body style='margin:0'><p>top</p><div style='height:1500px'></div><p>bottom"
    seen = camera.look(tall, 300, 200)
    assert seen.height == seen.page_height > 1500
    assert seen.text == ["top", "bottom"]
    short = Camera(camera.pool, Limits(height=400)).look(tall, 300, 200)
    assert (short.height, short.page_height, short.text) == (400, seen.page_height, ["top"])


def test_too_long_a_document_is_the_models_failure(camera: Camera) -> None:
    with pytest.raises(ModelFailure, match="render_too_long"):
        camera.look("x" * 100_001, 300, 200)
