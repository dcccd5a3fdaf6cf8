"""The reward's arithmetic on made-up snapshots, without a browser."""

from dataclasses import replace

import numpy as np
import pytest

from workflow_scripts.coder.blocks import Snapshot
from workflow_scripts.coder.corruptions import SERIES, add_style, delete, letters
from workflow_scripts.coder.hacks import HACKS, PARTIAL, words_of
from workflow_scripts.coder.pages import procedural_page
from workflow_scripts.coder.reward import RewardConfig, reward


def snapshot(words: list[str], step: int = 60) -> Snapshot:
    """Black words on white, `step` pixels apart, over one grey box."""
    image = np.full((200, 640, 3), 255, np.uint8)
    image[100:180, 20:300] = 128
    rects = np.array([[10 + step * i, 20, 8 * len(w), 16] for i, w in enumerate(words)], np.float32).reshape(-1, 4)
    for x, y, w, h in rects.astype(int):
        image[y + 4 : y + h - 4, x : x + w : 2] = 0
    n = len(words)
    return Snapshot(
        image=image,
        png=b"",
        text=words,
        rects=rects,
        ink=np.zeros((n, 3), np.float32),
        ground=np.full((n, 3), 255, np.float32),
        shown=np.ones(n, np.float32),
        boxes=np.array([[20, 100, 280, 80]], np.float32),
        fill=np.full((1, 3), 128, np.float32),
        edge=np.full((1, 3), 128, np.float32),
        page_height=200,
        hidden=0,
    )


PAGE = snapshot(["every", "word", "counts", "here"])


def test_equal_pages_earn_one_and_all_parts_are_one() -> None:
    same = reward(PAGE, snapshot(["every", "word", "counts", "here"]))
    assert same.total == 1
    assert set(same.parts().values()) == {1.0}
    assert same.pairs == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_each_property_counts_and_shows_in_its_part() -> None:
    changes = {
        "text": replace(PAGE, text=["evory", "ward", "caunts", "hero"]),
        "position": replace(PAGE, rects=PAGE.rects + np.array([0, 9, 0, 0], np.float32)),
        "extent": replace(PAGE, rects=PAGE.rects * np.array([1, 1, 1, 1.5], np.float32)),
        "ink": replace(PAGE, ink=PAGE.ink + 120),
        "ground": replace(PAGE, ground=PAGE.ground - 60),
        "size": replace(PAGE, page_height=400),
        "boxes": replace(PAGE, fill=PAGE.fill + 60),
        "coverage": replace(PAGE, text=["every", "word", "xxxx", "yyyyy"]),
    }
    for part, changed in changes.items():
        found = reward(PAGE, changed)
        assert found.total < 1, part
        assert found.parts()[part] < 1, part
        assert all(0 <= value <= 1 for value in found.parts().values())


def test_missing_and_invented_words_cost_alike() -> None:
    less, more = snapshot(["every", "word"]), snapshot(["every", "word", "counts", "here", "plus", "these"])
    assert reward(PAGE, less).words < 0.8
    assert reward(PAGE, more).words < 0.9
    assert reward(PAGE, less).words == pytest.approx(reward(less, PAGE).words)


def test_words_that_cannot_be_read_match_nothing() -> None:
    assert reward(PAGE, replace(PAGE, text=["", "", "", ""])).words == 0


def test_nothing_visible_earns_nothing() -> None:
    empty = replace(snapshot([]), boxes=np.zeros((0, 4), np.float32), image=np.full((200, 640, 3), 255, np.uint8))
    assert reward(PAGE, empty).gate == "blank"
    assert reward(PAGE, empty).total == 0


def test_a_flood_of_words_does_not_hide_the_right_ones_but_costs() -> None:
    flood = snapshot(["every", "word", "counts", "here", *["flood"] * 400], step=1)
    assert reward(PAGE, flood).words < 0.1


def test_weights_come_from_the_config() -> None:
    moved = replace(PAGE, rects=PAGE.rects + np.array([30, 0, 0, 0], np.float32))
    assert reward(PAGE, moved, RewardConfig(position=0.0)).words == pytest.approx(1)
    assert reward(PAGE, moved, RewardConfig(position=2.0)).words < reward(PAGE, moved).words


def test_stronger_damage_contains_the_weaker() -> None:
    html = procedural_page("hard", "train", 1).html
    assert all(corrupt(html, 0, 1) == html for corrupt, _ in SERIES.values())
    few, many = delete(html, 0.2, 1), delete(html, 0.6, 1)
    assert 0 < few.count("visibility:hidden") < many.count("visibility:hidden")
    body = html.split("<body>")[1]
    some, most = (letters(html, share, 1).split("<body>")[1] for share in (0.2, 0.6))
    changed = [{i for i, (a, b) in enumerate(zip(body, x, strict=True)) if a != b} for x in (some, most)]
    assert changed[0] <= changed[1]


def test_hacks_are_documents_of_their_page() -> None:
    page = procedural_page("easy", "train", 0)
    image = np.full((480, 640, 3), 200, np.uint8)
    import cv2

    png = cv2.imencode(".png", image)[1].tobytes()
    documents = {name: hack(page.html, png) for name, hack in {**HACKS, **PARTIAL}.items()}
    assert len(set(documents.values())) == len(documents)
    assert "<" not in words_of(page.html)
    assert add_style("<p>x", "p{}") == "<style>p{}</style><p>x"
