"""The reward of one draft: how much of the reference can be seen in it, and how alike the two look.

    reward = size · elements^a · look^(1-a)                                       all factors in [0, 1]

`elements` is an area-weighted F-measure over matched words and boxes in the manner of Design2Code (Si et al. 2024,
arXiv:2403.03163: block match over both sides, text, position, colour), with three changes: sizes and background colours
count, non-text boxes count, and the qualities of a matched pair multiply, so that one right property pays nothing
without the others. `look` compares the pictures. The two multiply because words without looks, and looks without words,
were the hacks that paid under sums.

Gates come before any of it: a draft that cannot be rendered raises `ModelFailure` in the renderer and is worth 0 to the
environment; a page on which nothing can be seen is worth 0 here. Infrastructure failures never become a number.
Left out: embeddings (CLIP): coarse, saturating, and a download.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields

import cv2
import numpy as np
import numpy.typing as npt
from rapidfuzz import process
from rapidfuzz.distance import Indel
from scipy.optimize import linear_sum_assignment
from skimage.color import deltaE_ciede2000, rgb2lab

from .blocks import Floats, Image, Snapshot

cv2.setNumThreads(1)  # many rewards run side by side; one thread each is faster than all on every core

Matrix = npt.NDArray[np.float64]
Gray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RewardConfig:
    """Weights and scales. Exponents of one pair multiply, so 0 switches a property off.

    Attributes:
        elements: exponent a of the element part; the look has 1 - a.
        words: exponent of the words' F-measure in the element part; the boxes' has the rest.
        lent: what either F-measure lends to the other, so that words without boxes earn something.
        text, position, size, ink, ground: exponents of a word pair's qualities.
        box_position, box_size, box_color: exponents of a box pair's qualities.
        distance: displacement, as a share of the page's width, at which a position's quality falls to 1/e.
        color: CIEDE2000 difference at which a colour's quality falls to 1/e.
        edges, structure, palette: exponents of the look's parts; they sum to 1.
        chance: F-measure that counts as nothing: words strewn about find some partners by luck.
        floor: what a part of the look counts at least, so that the others still order bad drafts.
        height: exponent of the page-height ratio.
        area: exponent on areas when they weigh elements; 0.5 keeps one banner from deciding alone.
    """

    elements: float = 0.7
    words: float = 0.7
    lent: float = 0.05
    text: float = 1.0
    position: float = 1.0
    size: float = 1.0
    ink: float = 0.5
    ground: float = 0.5
    box_position: float = 1.0
    box_size: float = 1.0
    box_color: float = 1.0
    distance: float = 0.1
    color: float = 15.0
    edges: float = 0.4
    structure: float = 0.2
    palette: float = 0.4
    chance: float = 0.05
    floor: float = 0.05
    height: float = 1.0
    area: float = 0.5


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward and its parts, every one in [0, 1].

    Attributes:
        total: the reward.
        gate: why it is 0 without a comparison (``"blank"``), else None.
        size: ratio of the smaller page height to the larger.
        elements: F-measure over words and boxes; `words` and `boxes` are its two halves.
        coverage: weight share, over both sides, of words that found a partner.
        text, position, extent, ink, ground: mean quality of matched words, weighted by area.
        look: weighted geometric mean of `edges`, `structure`, `palette`.
        pairs, box_pairs: matched (reference, candidate) indices into the snapshots' words and boxes.
    """

    total: float
    gate: str | None = None
    size: float = 0.0
    elements: float = 0.0
    words: float = 0.0
    boxes: float = 0.0
    coverage: float = 0.0
    text: float = 0.0
    position: float = 0.0
    extent: float = 0.0
    ink: float = 0.0
    ground: float = 0.0
    look: float = 0.0
    edges: float = 0.0
    structure: float = 0.0
    palette: float = 0.0
    pairs: list[tuple[int, int]] = field(default_factory=list, repr=False)
    box_pairs: list[tuple[int, int]] = field(default_factory=list, repr=False)

    def parts(self) -> dict[str, float]:
        """All numbers by name, without the matches."""
        return {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), float)}


def reward(reference: Snapshot, candidate: Snapshot, config: RewardConfig = RewardConfig()) -> Reward:
    """Scores `candidate` against `reference`; 1.0 for equal snapshots. Deterministic, no I/O."""
    if candidate.image.min() == candidate.image.max() or not (len(candidate.text) or len(candidate.boxes)):
        return Reward(0.0, gate="blank")
    low, high = sorted((reference.page_height, candidate.page_height))
    size = (low / high) ** config.height
    words = _words(reference, candidate, config)
    boxes, box_pairs = _boxes(reference, candidate, config)
    has_words, has_boxes = (
        bool(len(reference.text) or len(candidate.text)),
        bool(len(reference.boxes) or len(candidate.boxes)),
    )
    if has_words and has_boxes:
        lent = config.lent
        w, b = words.score + lent * boxes * (1 - words.score), boxes + lent * words.score * (1 - boxes)
        elements = w**config.words * b ** (1 - config.words)
    else:
        elements = words.score if has_words else boxes
    edges, structure, palette = look_parts(reference, candidate, config.color)
    overlap = min(reference.height, candidate.height) / max(reference.height, candidate.height)
    exponents = ((edges, config.edges), (structure, config.structure), (palette, config.palette))
    look = overlap * float(
        np.prod([(config.floor + (1 - config.floor) * part) ** exponent for part, exponent in exponents])
    )
    return Reward(
        total=round(size * elements**config.elements * look ** (1 - config.elements), 9),
        size=size,
        elements=elements,
        words=words.score,
        boxes=boxes,
        coverage=words.coverage,
        text=words.means["text"],
        position=words.means["position"],
        extent=words.means["extent"],
        ink=words.means["ink"],
        ground=words.means["ground"],
        look=look,
        edges=edges,
        structure=structure,
        palette=palette,
        pairs=words.pairs,
        box_pairs=box_pairs,
    )


def config_record(config: RewardConfig) -> dict[str, float]:
    """The configuration as it enters identities and records."""
    return asdict(config)


# -- elements ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Words:
    score: float
    coverage: float
    means: dict[str, float]
    pairs: list[tuple[int, int]]


def _words(a: Snapshot, b: Snapshot, config: RewardConfig) -> _Words:
    """F-measure of words: sum over matched pairs of (w_i + w_j) q_ij, divided by the sum of all weights of both sides.

    w = area^`config.area`; q = text · position · extent · ink · ground, each to its exponent. The assignment maximises
    the same sum, so the score is that of the best reading of the candidate.
    """
    names = ("text", "position", "extent", "ink", "ground")
    if not a.text or not b.text:
        return _Words(0.0, 0.0, dict.fromkeys(names, 0.0), [])
    # A flood of words cannot make the assignment slow: what lies beyond twice the reference stays unmatched.
    n = min(len(b.text), 2 * len(a.text) + 100)
    qualities = {
        "text": _text(a.text, b.text[:n]) * _shown(a.shown, b.shown[:n]),
        "position": _position(a.rects, b.rects[:n], a.width, config.distance),
        "extent": _extent(a.rects, b.rects[:n]),
        "ink": _color(a.ink, b.ink[:n], config.color),
        "ground": _color(a.ground, b.ground[:n], config.color),
    }
    exponents = {
        "text": config.text,
        "position": config.position,
        "extent": config.size,
        "ink": config.ink,
        "ground": config.ground,
    }
    q = np.ones((len(a.text), n))
    for name in names:
        q *= qualities[name] ** exponents[name]
    score, coverage, i, j = _f_measure(_weight(a.rects, config.area), _weight(b.rects, config.area), q, config.chance)
    weight = _weight(a.rects, config.area)[i]
    total = weight.sum()
    means = {name: min(1.0, float((weight * qualities[name][i, j]).sum() / total)) if total else 0.0 for name in names}
    return _Words(score, coverage, means, list(zip(i.tolist(), j.tolist(), strict=True)))


def _boxes(a: Snapshot, b: Snapshot, config: RewardConfig) -> tuple[float, list[tuple[int, int]]]:
    """The same F-measure over painted boxes; colour is the mean of the fill's and the rim's quality."""
    if not len(a.boxes) or not len(b.boxes):
        return 0.0, []
    n = min(len(b.boxes), 2 * len(a.boxes) + 50)
    color = 0.6 * _color(a.fill, b.fill[:n], config.color) + 0.4 * _color(a.edge, b.edge[:n], config.color)
    q = (
        _position(a.boxes, b.boxes[:n], a.width, config.distance) ** config.box_position
        * _extent(a.boxes, b.boxes[:n]) ** config.box_size
        * color**config.box_color
    )
    score, _, i, j = _f_measure(_weight(a.boxes, config.area), _weight(b.boxes, config.area), q, config.chance)
    return score, list(zip(i.tolist(), j.tolist(), strict=True))


def _weight(rects: Floats, exponent: float) -> Matrix:
    return (np.maximum(rects[:, 2], 1) * np.maximum(rects[:, 3], 1)).astype(float) ** exponent


def _f_measure(
    wa: Matrix, wb: Matrix, q: Matrix, chance: float
) -> tuple[float, float, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Best assignment of rows to columns: (score, matched weight share, rows, columns). q may lack trailing columns."""
    i, j = linear_sum_assignment((wa[:, None] + wb[None, : q.shape[1]]) * q, maximize=True)
    keep = q[i, j] > 1e-3
    i, j = i[keep], j[keep]
    pair, everything = wa[i] + wb[j], wa.sum() + wb.sum()
    # Sums in another order may exceed one another by an ulp.
    score = min(1.0, float((pair * q[i, j]).sum() / everything))
    return max(0.0, (score - chance) / (1 - chance)), min(1.0, float(pair.sum() / everything)), i, j


def _text(a: list[str], b: list[str]) -> Matrix:
    """(n, m) similarity: Indel ratio 2·LCS/(len a + len b), rescaled so that 0.4 (chance for short words) is 0.

    An empty word stands for one that cannot be read and equals nothing.
    """
    left, right = sorted(set(a)), sorted(set(b))
    ratio = process.cdist(left, right, scorer=Indel.normalized_similarity, dtype=np.float32)
    unreadable = np.array([[not x or not y for y in right] for x in left]) if "" in left or "" in right else None
    table = np.clip((ratio - 0.4) / 0.6, 0, 1).astype(float)
    if unreadable is not None:
        table[unreadable] = 0
    at, to = {w: k for k, w in enumerate(left)}, {w: k for k, w in enumerate(right)}
    return table[np.ix_([at[w] for w in a], [to[w] for w in b])]


def _shown(a: Floats, b: Floats) -> Matrix:
    return (np.minimum(a[:, None], b[None]) / np.maximum(np.maximum(a[:, None], b[None]), 1e-6)).astype(float)


def _position(a: Floats, b: Floats, width: int, scale: float) -> Matrix:
    """exp(-d / (scale · width)), d = the larger of the two distances between centres (Design2Code's max norm)."""
    ca, cb = a[:, :2] + a[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2
    d = np.abs(ca[:, None] - cb[None]).max(axis=-1)
    quality: Matrix = np.exp(-d.astype(float) / (scale * width))
    return quality


def _extent(a: Floats, b: Floats) -> Matrix:
    """Ratio of the smaller to the larger width, times that of heights."""
    ratio = np.ones((len(a), len(b)))
    for k in (2, 3):
        x, y = np.maximum(a[:, k, None], 1), np.maximum(b[None, :, k], 1)
        ratio *= np.minimum(x, y) / np.maximum(x, y)
    return ratio


def _difference(a: Matrix, b: Matrix) -> Matrix:
    """CIEDE2000 (Sharma et al. 2005) of CIELAB arrays (…, 3)."""
    difference: Matrix = deltaE_ciede2000(a, b)
    return difference


def _color(a: Floats, b: Floats, scale: float) -> Matrix:
    """exp(-dE / scale) with dE the CIEDE2000 difference of colours rounded to 1/255."""
    left, li = np.unique(np.round(a), axis=0, return_inverse=True)
    right, ri = np.unique(np.round(b), axis=0, return_inverse=True)
    table: Matrix = np.exp(-_difference(rgb2lab(left / 255)[:, None], rgb2lab(right / 255)[None]) / scale)
    return table[np.ix_(li.reshape(-1), ri.reshape(-1))]


# -- look -------------------------------------------------------------------------------------------------------------
def look_parts(a: Snapshot, b: Snapshot, color: float) -> tuple[float, float, float]:
    """(edges, structure, palette) of the two pictures over their common height; each 1 for equal pictures.

    edges: F-measure of Canny edges that fades with distance (exp(-d/4) at half size), above what a page full of edges
    would get. structure: SSIM (Wang et al. 2004) at 1/2, 1/4 and 1/8 size, averaged only where either picture varies.
    palette: exp(-dE/scale) with CIEDE2000 on a grid of 12-pixel cells, of which those that differ from their picture's
    commonest colour in either picture have 70 % of the weight, so that a page's empty ground cannot carry it.
    """
    height = min(a.height, b.height)
    fa, fb = _features(a, height), _features(b, height)
    return _edges(fa, fb), _structure(fa, fb), _palette(fa, fb, color)


@dataclass(frozen=True, slots=True)
class _Features:
    scales: list[tuple[Gray, Gray, Gray]]
    edge: npt.NDArray[np.bool_]
    distance: Gray
    lab: npt.NDArray[np.float64]
    figure: npt.NDArray[np.bool_]


def _features(page: Snapshot, height: int) -> _Features:
    found: _Features | None = page.memo.get(height)
    if found is None:
        if len(page.memo) >= 4:  # candidates of many heights must not pile up on their reference
            page.memo.clear()
        found = page.memo[height] = _measure(page.image[:height])
    return found


def _measure(image: Image) -> _Features:
    height, width = image.shape[:2]
    half = cv2.resize(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), (width // 2, height // 2), interpolation=cv2.INTER_AREA)
    edge = cv2.Canny(half, 50, 150) > 0
    distance: Gray = np.full(half.shape, 1e3, np.float32)
    if edge.any():
        distance = np.asarray(cv2.distanceTransform((~edge).astype(np.uint8), cv2.DIST_L2, 3), np.float32)
    scales = []
    for factor in (1, 2, 4):
        gray = cv2.resize(
            half, (max(width // 2 // factor, 1), max(height // 2 // factor, 1)), interpolation=cv2.INTER_AREA
        ).astype(np.float32)
        mean = _blur(gray)
        scales.append((gray, mean, _blur(gray * gray) - mean * mean))
    cells = cv2.resize(image, (max(width // 12, 1), max(height // 12, 1)), interpolation=cv2.INTER_AREA)
    lab = rgb2lab(cells)
    ground = rgb2lab(_commonest(image)[None, None])
    return _Features(scales, edge, distance, lab, _difference(lab, ground) > 1)


def _commonest(image: Image) -> Image:
    packed = image[::4, ::4].reshape(-1, 3).astype(np.int32) @ np.array([65536, 256, 1])
    values, counts = np.unique(packed, return_counts=True)
    value = int(values[counts.argmax()])
    return np.array([value >> 16, (value >> 8) & 255, value & 255], np.uint8)


def _blur(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.asarray(cv2.GaussianBlur(x, (11, 11), 1.5), np.float32)


def _edges(a: _Features, b: _Features) -> float:
    if not a.edge.any() or not b.edge.any():
        return float(a.edge.any() == b.edge.any())
    near_a = np.exp(-a.distance / 4)
    chance = float(near_a.mean())
    precision = max(0.0, (float(near_a[b.edge].mean()) - chance) / max(1 - chance, 1e-9))
    recall = float(np.exp(-b.distance[a.edge] / 4).mean())
    return 2 * precision * recall / max(precision + recall, 1e-9)


def _structure(a: _Features, b: _Features) -> float:
    c1, c2 = 6.5025, 58.5225
    scores = []
    for (x, mean_x, var_x), (y, mean_y, var_y) in zip(a.scales, b.scales, strict=True):
        both = _blur(x * y) - mean_x * mean_y
        ssim = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1) * (2 * both + c2) / (var_x + var_y + c2)
        weight = np.minimum(np.maximum(var_x, var_y), 400)
        total = float(weight.sum())
        scores.append(float(np.clip((ssim * weight).sum() / total, 0, 1)) if total > 1 else 1.0)
    return sum(scores) / len(scores)


def _palette(a: _Features, b: _Features, scale: float) -> float:
    closeness = np.exp(-_difference(a.lab, b.lab) / scale)
    figure = a.figure | b.figure
    if figure.all() or not figure.any():
        return float(closeness.mean())
    return float(0.7 * closeness[figure].mean() + 0.3 * closeness[~figure].mean())
