"""How close a predicted next screen is to the true one, without any API or weights.

Every metric lies in [0, 1], 1 is best, and each is reported beside what a *copy of the previous screen* would have
scored: one step changes little of a screen (a median of 2 % on MiniWoB++), so a copy earns .89 in SSIM while a true
next screen that is two pixels off earns .59. `change_aware` is made for that: a copy earns 0 there. Transitions in
which the true screen does not change are flagged (`changed` is False), carry no change metrics and are scored apart by
`stay`.

Frames are uint8 arrays (H, W, 3), RGB; a prediction of another size is resized to the true screen's. All metrics work
on frames shrunk to at most `MAX_EDGE` pixels along their longest edge. Left out: LPIPS and other learned metrics, whose
weights no package ships (`features` has the learned ones), and the DOM: predictions of image models have none.
"""

from __future__ import annotations

import io
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ..chain import to_rgb
from ..failures import InfrastructureFailure
from ..identity import bytes_digest
from ..records import read_json, write_json

VERSION = 1
"""Counts changes that move a score; part of the identity of what is computed here."""
MAX_EDGE = 1024
"""Longest edge, in pixels, at which frames are compared."""
NOTICEABLE = 16
"""Smallest difference of a colour channel, of 255, that counts as a change."""
MIN_CHANGED = 12
"""Fewest changed pixels (at comparison size) that make a transition a change; less is anti-aliasing or a caret."""
SHIFT = 4
"""Largest displacement, in pixels at comparison size, that the change metrics forgive."""

Frame = NDArray[np.uint8]
Floats = NDArray[np.floating[Any]]
Mask = NDArray[np.bool_]
Reader = Callable[[Frame], Sequence[str]]
"""Reads the lines of text on a frame (see `Ocr`)."""

CHANGE_METRICS = ("change_aware", "changed_iou", "text_change")
METRICS = ("ssim", "ms_ssim", "edges", "text", "stay", *CHANGE_METRICS)

_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
_MS_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)


def load_frame(path: str | Path) -> Frame:
    """Decodes a PNG into (H, W, 3) uint8 RGB; transparent parts lie on white.

    Raises InfrastructureFailure (``frame_missing``, ``frame_unreadable``): a frame that a record names must be there.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InfrastructureFailure("frame_missing", f"cannot read {path}: {error.strerror}", path=str(path)) from error
    return decode_frame(data, str(path))


def decode_frame(data: bytes, name: str = "frame") -> Frame:
    """`load_frame` for bytes; `name` is used in the message of the error."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(to_rgb(image))
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and struct.error for broken files
        raise InfrastructureFailure("frame_unreadable", f"{name} is no image: {error}", path=name) from error


# ---- similarity of whole screens ---------------------------------------------------------------------------------


def ssim(true: Frame, predicted: Frame) -> float:
    """Mean structural similarity of the grey screens, negative values cut to 0.

    SSIM = (2 μx μy + c1)(2 σxy + c2) / ((μx² + μy² + c1)(σx² + σy² + c2)), 11×11 Gaussian window of σ = 1.5,
    c1 = (.01·255)², c2 = (.03·255)². Source: Wang et al. 2004, doi:10.1109/TIP.2003.819861. Fooled by blank screens
    (.6–.9) and by copies; blind to hue. Takes two (H, W, 3) uint8 frames of one size; returns a float in [0, 1].
    """
    return _clip(_mean_inside(_similarity(_gray(true), _gray(predicted)).ssim))


def ms_ssim(true: Frame, predicted: Frame) -> float:
    """Multi-scale SSIM: ∏ mean(cs_j)^w_j over halved scales, the last one with its luminance term; negatives are 0.

    Weights .0448, .2856, .3001, .2363, .1333. Source: Wang, Simoncelli, Bovik 2003, doi:10.1109/ACSSC.2003.1292216.
    Scales whose shorter side is under 11 pixels are left out and the weights made to sum to 1. Takes two (H, W, 3)
    uint8 frames of one size; returns a float in [0, 1].
    """
    a, b = _gray(true), _gray(predicted)
    scales = 1
    while scales < len(_MS_WEIGHTS) and min(a.shape) >> scales >= 11:
        scales += 1
    weights = np.array(_MS_WEIGHTS[:scales]) / sum(_MS_WEIGHTS[:scales])
    product = 1.0
    for scale, weight in enumerate(weights):
        maps = _similarity(a, b)
        mean = _mean_inside(maps.ssim if scale == scales - 1 else maps.structure)
        product *= max(mean, 0.0) ** float(weight)
        a, b = _half(a), _half(b)
    return _clip(product)


def edges(true: Frame, predicted: Frame) -> float:
    """F1 of Canny edges (thresholds 50, 150) that lie within 2 pixels of an edge of the other screen.

    Blind to colour and to what a text says; a blank screen scores 0 against any screen with edges. Two screens without
    any edge score 1. Takes two (H, W, 3) uint8 frames of one size; returns a float in [0, 1].
    """
    return _edge_f1(_canny(true), _canny(predicted))


def text(true: Sequence[str], predicted: Sequence[str]) -> float:
    """F1 of the two bags of words, lower-cased, whichever line they stand in; 1 when both are empty.

    Fooled by a heap of the right words; read it beside `ssim` or `edges`. Takes lines of text; returns a float in [0,
    1].
    """
    return _bag_f1(_words(true), _words(predicted))


def stay(true: Frame, predicted: Frame) -> float:
    """How well a screen that should not change was kept: structure similarity, weighted by structure.

    Σ w·s / Σ w with s the SSIM averaged over R, G, B and w = min(max(σ²true, σ²predicted), 400) + 1, so that plain
    areas hardly count and a blank screen scores near 0; displacements of up to `SHIFT` pixels are forgiven. Own
    definition. Takes two (H, W, 3) uint8 frames of one size; returns a float in [0, 1].
    """
    everywhere = np.ones(true.shape[:2], bool)
    return _kept(true, _aligned(true, predicted, everywhere), everywhere)


# ---- similarity of the change ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """What the true transition changed, at comparison size.

    Attributes:
        region: (H, W) bool, the pixels that differ, grown by 3 pixels.
        area: share of the pixels that differ, before growing; in [0, 1].
        changed: whether the transition changes anything to speak of (`MIN_CHANGED`).
        copy_structure, copy_error: s(c) and e(c) of `change_aware`; 1 and 0 where nothing changed.
    """

    region: Mask
    area: float
    changed: bool
    copy_structure: float = 1.0
    copy_error: float = 0.0

    @property
    def anchor(self) -> Mask | None:
        """(H, W) bool, the part by which screens are aligned: what stays the same; None if that is under 5 %."""
        return None if self.region.mean() > 0.95 else ~self.region


def true_change(previous: Frame, true: Frame) -> Change:
    """Compares two (H, W, 3) uint8 frames of one size."""
    differs = _differs(previous, true)
    count = int(differs.sum())
    region, area = _grow(differs, 3), count / differs.size
    if count < MIN_CHANGED:
        return Change(region, area, False)
    # The copy, too, may be displaced: a list scrolled by three pixels is hardly a change.
    copies = (previous, _aligned(true, previous, region))
    structure = max(_kept(true, copy, region) for copy in copies)
    return Change(region, area, True, structure, min(_error(true, copy, region) for copy in copies))


def aligned(true: Frame, predicted: Frame, change: Change) -> Frame:
    """The prediction moved by up to `SHIFT` pixels so that what should stay the same fits best; same shape.

    Where nearly everything changes there is nothing to hold on to, and it is returned as it is.
    """
    return predicted if change.anchor is None else _aligned(true, predicted, change.anchor)


def change_aware(true: Frame, predicted: Frame, change: Change, words: float | None = None) -> float:
    """Whether the prediction changes what it should, as it should, and keeps the rest.

    Harmonic mean 2·made·kept / (made + kept) of

    - made: how much of the step from a copy to the truth was taken inside the truly changed region R: the geometric
      mean of max(0, (s(p) - s(c)) / (1 - s(c))) and max(0, 1 - e(p) / e(c)), where p is the prediction, c the copy, s
      the structure-weighted similarity of `stay` within R and e the mean absolute error, after a blur of σ = 1.5,
      within R. Both p and c may be moved by up to `SHIFT` pixels to fit R best. Where text was read, `words` (see
      `text_change`) replaces it if larger: the right words in another font count;
    - kept: `stay` outside R. Where less than 5 % of the screen lies outside R, made alone is the score.

    Own definition, after the measurement that pixel metrics prefer a copy to a displaced truth. A copy scores 0, the
    true screen 1. Takes (H, W, 3) uint8 frames of one size, the prediction `aligned`, and a `Change` with changed =
    True; returns a float in [0, 1].
    """
    made = words or 0.0
    for candidate in (predicted, _aligned(true, predicted, change.region)):
        structure = (_kept(true, candidate, change.region) - change.copy_structure) / max(
            1 - change.copy_structure, 1e-6
        )
        colour = 1 - _error(true, candidate, change.region) / max(change.copy_error, 1e-6)
        made = max(made, math.sqrt(max(structure, 0.0) * max(colour, 0.0)))
    if change.anchor is None:
        return _clip(made)
    kept = _kept(true, predicted, change.anchor)
    return _clip(2 * made * kept / (made + kept)) if made + kept > 0 else 0.0


def changed_iou(previous: Frame, true: Frame, predicted: Frame, change: Change) -> float:
    """Whether the right part changed: intersection over union of the truly and the predictedly changed region.

    A pixel changes where a channel differs by more than 2·`NOTICEABLE` from the previous screen after a blur of
    σ = 1.5 (so that the noise of an image model is no change); both regions are grown by 3 pixels. Where the blur hides
    the true change, the unblurred one is taken. Says nothing on *how* it changed: a blank screen may score. A copy
    scores 0, the true screen 1. Shapes as in `change_aware`, the prediction `aligned`; returns a float in [0, 1].
    """
    smooth_previous, smooth_true, smooth = (_smooth(frame) for frame in (previous, true, predicted))
    wanted = _grow(_differs(smooth_previous, smooth_true, 2 * NOTICEABLE), 3)
    made = _grow(_differs(smooth_previous, smooth, 2 * NOTICEABLE), 3)
    if not wanted.any():
        wanted, made = change.region, _grow(_differs(previous, predicted), 3)
    return float((wanted & made).sum() / (wanted | made).sum())


def text_change(previous: Sequence[str], true: Sequence[str], predicted: Sequence[str]) -> float | None:
    """F1 of the words that appear and disappear; None where the true step changes no word.

    With bags of words P, T, Q of the previous, true and predicted screen: F1 of (T - P) ⊎ (P - T) against
    (Q - P) ⊎ (P - Q), additions and removals kept apart. A copy scores 0. Takes lines of text.
    """
    before, after, guess = _words(previous), _words(true), _words(predicted)

    def edit(to: Counter[str]) -> Counter[tuple[str, str]]:
        added = {("+", word): count for word, count in (to - before).items()}
        return Counter(added | {("-", word): count for word, count in (before - to).items()})

    wanted = edit(after)
    return _bag_f1(wanted, edit(guess)) if wanted else None


# ---- one transition ----------------------------------------------------------------------------------------------


def compare(previous: Frame, true: Frame, predicted: Frame, read: Reader | None = None) -> dict[str, Any]:
    """All metrics of one transition, and those of a copy of the previous screen and of an empty one.

    Args:
        previous: the true screen before the action; (H, W, 3) uint8.
        true: the true screen after it.
        predicted: the predicted screen after it; another size is resized (``resized`` says so).
        read: reads text off a frame; without it `text` and `text_change` are None.

    Returns:
        ``{"changed": bool, "changed_area": share, "copies_previous": bool, "resized": bool,
        "scores": {metric: float | None}, "copy": …, "blank": …}`` for all of `METRICS`; blank is a white screen. Change
        metrics are None where nothing changed, `stay` is None where something did.
    """
    if previous.shape != true.shape:
        message = f"the screens before and after the action differ in size: {previous.shape} and {true.shape}"
        raise InfrastructureFailure("frame_size", message)
    resized = predicted.shape != true.shape
    if resized:
        height, width = true.shape[:2]
        predicted = np.asarray(cv2.resize(predicted, (width, height), interpolation=cv2.INTER_AREA), np.uint8)
    lines = [list(read(frame)) for frame in (previous, true, predicted)] if read else None
    previous, true, predicted = (shrunk(frame) for frame in (previous, true, predicted))
    change = true_change(previous, true)

    def scores(candidate: Frame, said: Sequence[str] | None) -> dict[str, float | None]:
        result: dict[str, float | None] = dict.fromkeys(METRICS)
        result.update(ssim=ssim(true, candidate), ms_ssim=ms_ssim(true, candidate), edges=edges(true, candidate))
        if lines is not None and said is not None:
            result["text"] = text(lines[1], said)
        if not change.changed:
            result["stay"] = stay(true, candidate)
            return result
        if lines is not None and said is not None:
            result["text_change"] = text_change(lines[0], lines[1], said)
        moved = aligned(true, candidate, change)
        result["change_aware"] = change_aware(true, moved, change, result["text_change"])
        result["changed_iou"] = changed_iou(previous, true, moved, change)
        return result

    return {
        "changed": change.changed,
        "changed_area": change.area,
        "copies_previous": int(_differs(previous, predicted).sum()) < MIN_CHANGED,
        "resized": resized,
        "scores": scores(predicted, lines[2] if lines else None),
        "copy": scores(previous, lines[0] if lines else None),
        "blank": scores(np.full_like(true, 255), [] if lines else None),
    }


# ---- text --------------------------------------------------------------------------------------------------------


class Ocr:
    """Reads the text of frames with rapidocr (optional extra ``ocr``), once per content.

    Lines are ordered top to bottom, then left to right. Results are kept in `cache`, one small JSON file per digest of
    the pixels, so that a frame that many rows share is read once; without a folder they are kept in memory.
    """

    MAX_SIDE = 960

    def __init__(self, cache: str | Path | None = None) -> None:
        self._cache = Path(cache) if cache is not None else None
        self._memory: dict[str, list[str]] = {}
        self._engine: Any = None
        self._lock = threading.Lock()

    @staticmethod
    def version() -> str:
        """The engine and its version, for identities."""
        from importlib.metadata import version

        return f"rapidocr {version('rapidocr')}"

    def __call__(self, frame: Frame) -> list[str]:
        """Lines of text on an (H, W, 3) uint8 RGB frame."""
        key = bytes_digest(repr((self.version(), self.MAX_SIDE, frame.shape)).encode() + frame.tobytes())
        if key in self._memory:
            return self._memory[key]
        path = self._cache / key[:2] / f"{key}.json" if self._cache else None
        if path is not None and path.is_file():
            lines = [str(line) for line in read_json(path)]
        else:
            lines = self._read(frame)
            if path is not None:
                write_json(path, lines)
        self._memory[key] = lines
        return lines

    def _read(self, frame: Frame) -> list[str]:
        with self._lock:
            if self._engine is None:
                try:
                    from rapidocr import RapidOCR
                except ImportError as error:
                    message = "text metrics need rapidocr: pip install 'guiloop[ocr]'"
                    raise InfrastructureFailure("ocr_missing", message) from error
                settings = {"Global.log_level": "warning", "Global.max_side_len": self.MAX_SIDE}
                settings["EngineConfig.onnxruntime.intra_op_num_threads"] = 1
                self._engine = RapidOCR(params=settings)
            found = self._engine(np.ascontiguousarray(frame[:, :, ::-1]), use_cls=False)  # the engine wants BGR
        if found.txts is None:
            return []
        corners = [np.asarray(box).min(axis=0) for box in found.boxes]
        order = sorted(range(len(corners)), key=lambda i: (round(float(corners[i][1]) / 8), float(corners[i][0])))
        return [str(found.txts[i]) for i in order]


# ---- parts -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Maps:
    ssim: Floats
    structure: Floats  # the contrast-structure term alone
    variance_a: Floats
    variance_b: Floats


def _similarity(a: NDArray[Any], b: NDArray[Any]) -> _Maps:
    """Local SSIM maps of two arrays (H, W) or (H, W, C); float32 of the same shape."""
    x, y = a.astype(np.float32), b.astype(np.float32)

    def blur(values: NDArray[Any]) -> Floats:
        return np.asarray(cv2.GaussianBlur(values, (11, 11), 1.5), np.float32)

    mean_x, mean_y = blur(x), blur(y)
    variance_x, variance_y = blur(x * x) - mean_x * mean_x, blur(y * y) - mean_y * mean_y
    covariance = blur(x * y) - mean_x * mean_y
    structure = (2 * covariance + _C2) / (variance_x + variance_y + _C2)
    luminance = (2 * mean_x * mean_y + _C1) / (mean_x * mean_x + mean_y * mean_y + _C1)
    return _Maps(luminance * structure, structure, variance_x, variance_y)


def _mean_inside(values: Floats) -> float:
    """Mean without the 5 pixels along the edges, where the window hangs over (the original's rule)."""
    return float((values[5:-5, 5:-5] if min(values.shape) > 10 else values).mean())


def _kept(true: Frame, candidate: Frame, region: Mask) -> float:
    """`stay` within `region` of frames that are already aligned."""
    crop = _box(region)
    maps = _similarity(true[crop], candidate[crop])
    variance = _largest(np.maximum(maps.variance_a, maps.variance_b))
    weights = (np.minimum(variance, 400.0) + 1.0) * region[crop]
    return _clip(float((_mean3(maps.ssim) * weights).sum() / weights.sum()))


def _error(true: Frame, candidate: Frame, region: Mask) -> float:
    crop = _box(region)
    a, b = (cv2.GaussianBlur(frame[crop].astype(np.float32), (0, 0), 1.5) for frame in (true, candidate))
    return float(_mean3(cv2.absdiff(a, b))[region[crop]].mean())


def _aligned(true: Frame, candidate: Frame, region: Mask) -> Frame:
    """`candidate` moved by at most `SHIFT` pixels so as to differ least (squares, grey) from `true` in `region`."""
    crop = _box(region)
    rows, columns = crop
    framed = cv2.copyMakeBorder(candidate, SHIFT, SHIFT, SHIFT, SHIFT, cv2.BORDER_REPLICATE)
    area = framed[rows.start : rows.stop + 2 * SHIFT, columns.start : columns.stop + 2 * SHIFT]
    mask = region[crop].astype(np.uint8)
    misfit = cv2.matchTemplate(_gray(area), _gray(true[crop]), cv2.TM_SQDIFF, mask=mask)
    least, _, (dx, dy), _ = cv2.minMaxLoc(misfit)
    still = float(misfit[SHIFT, SHIFT])
    if still - least <= 1e-3 * still + float(mask.sum()):  # no clear gain (rounding, noise): leave it where it is
        return candidate
    height, width = candidate.shape[:2]
    return np.asarray(framed[dy : dy + height, dx : dx + width], np.uint8)


def _box(region: Mask) -> tuple[slice, slice]:
    """Rows and columns of the region, with a margin of 8 pixels; everything for an empty one."""
    if not region.any():
        return slice(0, region.shape[0]), slice(0, region.shape[1])
    rows, columns = np.flatnonzero(region.any(axis=1)), np.flatnonzero(region.any(axis=0))
    top, left = max(int(rows[0]) - 8, 0), max(int(columns[0]) - 8, 0)
    return slice(top, min(int(rows[-1]) + 9, region.shape[0])), slice(left, min(int(columns[-1]) + 9, region.shape[1]))


def _differs(a: Frame, b: Frame, threshold: int = NOTICEABLE) -> Mask:
    return np.asarray(_largest(cv2.absdiff(a, b)) > threshold)


def _largest(values: NDArray[Any]) -> NDArray[Any]:
    """Largest of three channels; numpy's ``max(axis=2)`` takes ten times as long, since the axis is so short."""
    return np.asarray(np.maximum(np.maximum(values[..., 0], values[..., 1]), values[..., 2]))


def _mean3(values: NDArray[Any]) -> NDArray[Any]:
    return np.asarray((values[..., 0] + values[..., 1] + values[..., 2]) / 3)


def _smooth(frame: Frame) -> Frame:
    return np.asarray(cv2.GaussianBlur(frame, (0, 0), 1.5), np.uint8)


def _grow(mask: Mask, pixels: int) -> Mask:
    kernel = np.ones((2 * pixels + 1, 2 * pixels + 1), np.uint8)
    return np.asarray(cv2.dilate(mask.astype(np.uint8), kernel) > 0)


def _gray(frame: NDArray[Any]) -> NDArray[np.uint8]:
    return np.asarray(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), np.uint8)


def _half(gray: NDArray[Any]) -> NDArray[np.uint8]:
    height, width = gray.shape[:2]
    return np.asarray(
        cv2.resize(gray, (max(width // 2, 1), max(height // 2, 1)), interpolation=cv2.INTER_AREA), np.uint8
    )


def shrunk(frame: Frame) -> Frame:
    """The frame at comparison size: at most `MAX_EDGE` pixels along its longest edge."""
    height, width = frame.shape[:2]
    scale = MAX_EDGE / max(height, width)
    if scale >= 1:
        return frame
    size = (max(round(width * scale), 1), max(round(height * scale), 1))
    return np.asarray(cv2.resize(frame, size, interpolation=cv2.INTER_AREA), np.uint8)


def _canny(frame: Frame) -> Mask:
    return np.asarray(cv2.Canny(_gray(frame), 50, 150) > 0)


def _edge_f1(true: Mask, predicted: Mask) -> float:
    if not true.any() or not predicted.any():
        return float(true.any() == predicted.any())
    precision = float((predicted & _grow(true, 2)).sum() / predicted.sum())
    recall = float((true & _grow(predicted, 2)).sum() / true.sum())
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _words(lines: Sequence[str]) -> Counter[str]:
    return Counter(word for line in lines for word in re.findall(r"\w+", line.lower()))


def _bag_f1(a: Mapping[Any, int], b: Mapping[Any, int]) -> float:
    total = sum(a.values()) + sum(b.values())
    return 2 * sum((Counter(a) & Counter(b)).values()) / total if total else 1.0


def _clip(value: float) -> float:
    return min(max(value, 0.0), 1.0)
