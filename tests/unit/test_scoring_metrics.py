"""Local metrics: their bounds and known values, and what they make of real transitions of the built-in tasks."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from skimage.metrics import structural_similarity

from tests.tiny.gui_cc_rows import screen
from workflow_scripts.failures import InfrastructureFailure
from workflow_scripts.scoring import metrics
from workflow_scripts.scoring.metrics import CHANGE_METRICS, METRICS, compare, load_frame, true_change

DATA = Path(__file__).parents[2] / "data" / "miniwob" / "offline_data"
TASKS = ("login-user-s0", "click-tab-2-hard-s1", "click-collapsible-2-s1", "choose-date-s0")


def array(number: int) -> metrics.Frame:
    return np.asarray(screen(number))


def moved(frame: metrics.Frame, x: int, y: int) -> metrics.Frame:
    return np.roll(frame, (y, x), axis=(0, 1))


@pytest.fixture(scope="module")
def transitions() -> list[tuple[metrics.Frame, metrics.Frame]]:
    """Pairs of true screens before and after an action in which something changes."""
    pairs = []
    for task in TASKS:
        folder = DATA / task
        frames = [load_frame(path) for path in (folder / "initial.png", *sorted(folder.glob("step_*_after.png")))]
        pairs += [pair for pair in pairwise(frames) if true_change(*pair).changed]
    assert len(pairs) > 8
    return pairs[::4]


def test_the_true_screen_scores_one_and_a_copy_is_told(transitions):
    for previous, true in transitions:
        exact = compare(previous, true, true)
        assert exact["changed"]
        assert not exact["copies_previous"]
        for metric in ("ssim", "ms_ssim", "edges", "change_aware", "changed_iou"):
            assert exact["scores"][metric] == pytest.approx(1.0, abs=1e-5)
        copy = compare(previous, true, previous)
        assert copy["copies_previous"]
        assert copy["scores"] == copy["copy"] == exact["copy"]
        assert copy["copy"]["change_aware"] == copy["copy"]["changed_iou"] == 0.0


def test_a_displaced_truth_beats_a_copy_under_change_aware_and_loses_under_ssim(transitions):
    displaced = [compare(previous, true, moved(true, 2, 0)) for previous, true in transitions]
    for result in displaced:
        assert result["scores"]["change_aware"] > 0.5 > result["copy"]["change_aware"]
    means = {
        side: {metric: np.mean([result[side][metric] for result in displaced]) for metric in ("ssim", "change_aware")}
        for side in ("scores", "copy")
    }
    assert means["scores"]["change_aware"] > 0.95
    assert means["copy"]["ssim"] > 0.8


def test_blank_screens_earn_next_to_nothing(transitions):
    for previous, true in transitions:
        for blank in (np.full_like(true, 255), np.full_like(true, true.mean((0, 1)).astype(np.uint8))):
            scores = compare(previous, true, blank)["scores"]
            assert scores["change_aware"] < 0.2
            assert scores["edges"] == 0.0


def test_noise_and_compression_cost_little_and_half_a_change_about_half(transitions):
    for previous, true in transitions:
        noise = np.random.default_rng(0).normal(0, 6, true.shape)
        noisy = np.clip(true + noise, 0, 255).astype(np.uint8)
        jpeg = np.asarray(cv2.imdecode(cv2.imencode(".jpg", true, [1, 75])[1], 1), np.uint8)
        for candidate in (noisy, jpeg):
            assert compare(previous, true, candidate)["scores"]["change_aware"] > 0.7
        half = true.copy()
        columns = np.nonzero(true_change(previous, true).region)[1]
        half[:, : int(np.median(columns))] = previous[:, : int(np.median(columns))]
        assert 0.3 < compare(previous, true, half)["scores"]["change_aware"] < 0.85


def test_a_change_in_the_wrong_place_earns_nothing():
    previous, true, wrong = array(0), array(0).copy(), array(0).copy()
    true[70:80, 40:60] = (0, 0, 255)
    wrong[70:80, 5:25] = (0, 0, 255)
    scores = compare(previous, true, wrong)["scores"]
    assert scores["changed_iou"] == 0.0
    assert scores["change_aware"] == 0.0
    # The right place in the wrong colour: the region is right, the change is not.
    true_place = previous.copy()
    true_place[70:80, 40:60] = (255, 255, 0)
    scores = compare(previous, true, true_place)["scores"]
    assert scores["changed_iou"] > 0.9
    assert scores["change_aware"] < 0.5


def test_a_transition_without_change_is_scored_apart():
    still = array(2)
    result = compare(still, still, still)
    assert (result["changed"], result["changed_area"]) == (False, 0.0)
    assert result["scores"]["stay"] == 1.0
    assert all(result["scores"][metric] is None for metric in CHANGE_METRICS)
    assert compare(still, still, np.full_like(still, 255))["scores"]["stay"] < 0.2
    assert compare(still, still, moved(still, 0, 2))["scores"]["stay"] > 0.9
    caret = still.copy()
    caret[50:60, 8] = 0
    assert not compare(still, caret, still)["changed"]
    assert compare(still, array(3), still)["scores"]["stay"] is None


def test_ssim_agrees_with_scikit_image(transitions):
    for previous, true in transitions[:3]:
        a, b = (cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in (previous, true))
        settings = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 255}
        assert metrics.ssim(previous, true) == pytest.approx(structural_similarity(a, b, **settings), abs=1e-4)


def test_known_values():
    black, white = np.zeros((40, 40, 3), np.uint8), np.full((40, 40, 3), 255, np.uint8)
    c1 = (0.01 * 255) ** 2
    assert metrics.ssim(black, white) == pytest.approx(c1 / (255**2 + c1), rel=1e-3)
    assert metrics.ms_ssim(black, white) == pytest.approx((c1 / (255**2 + c1)) ** (0.2856 / 0.3304), rel=1e-3)
    assert metrics.edges(black, white) == 1.0  # neither has an edge
    assert metrics.edges(black, array(0)[:40, :40]) == 0.0
    assert metrics.text(["Log in", "Name"], ["name LOG out"]) == pytest.approx(2 * 2 / 6)
    assert metrics.text([], []) == 1.0
    assert metrics.text(["a"], []) == 0.0


def test_text_change():
    before, after = ["Name", "Log in"], ["Name", "Welcome Ada"]
    assert metrics.text_change(before, after, after) == 1.0
    assert metrics.text_change(before, after, before) == 0.0
    # of the edits -log -in +welcome +ada the guess makes three, and one of its own
    assert metrics.text_change(before, after, ["Name", "Welcome Eve"]) == pytest.approx(2 * 3 / 8)
    assert metrics.text_change(before, before, after) is None
    assert metrics.text_change(["a a"], ["a"], ["a"]) == 1.0
    # A word added is not a word removed.
    assert metrics.text_change([], ["a"], []) == 0.0


def test_the_right_words_in_another_font_count():
    previous, true, other = array(0), array(0).copy(), array(0).copy()
    cv2.putText(true, "42", (5, 85), cv2.FONT_HERSHEY_PLAIN, 1, (0, 0, 0))
    cv2.putText(other, "42", (20, 88), cv2.FONT_HERSHEY_COMPLEX, 0.7, (0, 0, 0))
    words = {id(previous): ["menu"], id(true): ["menu", "42"], id(other): ["menu", "42"]}
    result = compare(previous, true, other, read=lambda frame: words[id(frame)])
    assert result["scores"]["text_change"] == 1.0
    assert result["scores"]["change_aware"] > 0.8 > compare(previous, true, other)["scores"]["change_aware"]
    assert result["copy"]["text_change"] == 0.0
    assert compare(previous, true, other)["scores"]["text"] is None


def test_scores_are_bounded_and_finite():
    frames = [
        array(0),
        array(3),
        np.zeros((96, 64, 3), np.uint8),
        np.random.default_rng(1).integers(0, 256, (96, 64, 3), np.uint8),
    ]
    for previous in frames:
        for true in frames:
            for predicted in frames:
                result = compare(previous, true, predicted)
                for side in ("scores", "copy"):
                    assert set(result[side]) == set(METRICS)
                    assert all(value is None or 0.0 <= value <= 1.0 for value in result[side].values())


def test_sizes():
    small = np.asarray(Image.fromarray(array(1)).resize((32, 48)))
    result = compare(array(0), array(1), small)
    assert result["resized"]
    assert result["scores"]["change_aware"] > 0.2
    with pytest.raises(InfrastructureFailure) as caught:
        compare(small, array(1), array(1))
    assert caught.value.code == "frame_size"
    tiny = np.zeros((9, 9, 3), np.uint8)
    assert compare(tiny, tiny, tiny)["scores"]["ms_ssim"] == 1.0
    tall = np.zeros((3000, 300, 3), np.uint8)
    assert compare(tall, tall, tall)["scores"]["ssim"] == 1.0


def test_frames_that_are_missing_or_broken(tmp_path):
    with pytest.raises(InfrastructureFailure) as caught:
        load_frame(tmp_path / "none.png")
    assert caught.value.code == "frame_missing"
    (tmp_path / "cut.png").write_bytes((DATA / TASKS[0] / "initial.png").read_bytes()[:500])
    with pytest.raises(InfrastructureFailure) as caught:
        load_frame(tmp_path / "cut.png")
    assert caught.value.code == "frame_unreadable"
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    assert load_frame(tmp_path / "clear.png").min() == 255


def test_ocr_reads_a_screen_once(tmp_path):
    pytest.importorskip("rapidocr")
    frame = load_frame(DATA / TASKS[0] / "initial.png")
    lines = metrics.Ocr(tmp_path)(frame)
    words = {word for line in lines for word in line.lower().replace(":", " ").split()}
    assert {"username", "password", "login"} <= words
    (cached,) = tmp_path.glob("*/*.json")
    cached.write_text('["from the cache"]')
    assert metrics.Ocr(tmp_path)(frame) == ["from the cache"]
    blank = np.full_like(frame, 255)
    assert metrics.Ocr()(blank) == []
