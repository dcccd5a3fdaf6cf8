"""How many transitions per second the local metrics score, on one core, at real screen sizes.

    python -m benchmarks.scoring [--seconds 5] [--ocr] [--siglip FOLDER] [--dinov2 FOLDER]

One transition is a prediction and the copy of the previous screen, as `metrics.compare` scores them. Prints one JSON
line per size and metric. Left out: judges (their speed is the endpoint's).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from workflow_scripts.scoring import metrics
from workflow_scripts.scoring.features import FeatureModel, FeatureSettings, Kind

DATA = Path(__file__).parents[1] / "data" / "miniwob" / "offline_data" / "login-user-s0"
SIZES = {"built-in": None, "GUI-CC online, 1080 × 2400": (1080, 2400)}


def main() -> None:
    """Runs all that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5, help="time per line")
    parser.add_argument("--ocr", action="store_true", help="also read the text (needs rapidocr)")
    parser.add_argument("--siglip", metavar="FOLDER", help="weights for S_sig")
    parser.add_argument("--dinov2", metavar="FOLDER", help="weights for S_dino")
    options = parser.parse_args()
    cv2.setNumThreads(1)
    for name, size in SIZES.items():
        _measure(name, size, options)


def _measure(name: str, size: tuple[int, int] | None, options: argparse.Namespace) -> None:
    previous, true = (_frame(f"step_{step:03d}_after.png", size) for step in (0, 1))
    predicted = np.roll(true, 2, axis=1)

    pixels = [true.shape[1], true.shape[0]]

    def report(what: str, work: Callable[[], object]) -> None:
        per_second, cpu_ms = _rate(work, options.seconds)
        rate = {"per_second": round(per_second, 2), "cpu_ms": round(cpu_ms, 1)}
        print(json.dumps({"size": name, "pixels": pixels, "metric": what, **rate}, ensure_ascii=False))

    small = [metrics.shrunk(frame) for frame in (previous, true, predicted)]
    change = metrics.true_change(*small[:2])
    report("all local metrics of a transition", lambda: metrics.compare(previous, true, predicted))
    report("ssim", lambda: metrics.ssim(small[1], small[2]))
    report("ms_ssim", lambda: metrics.ms_ssim(small[1], small[2]))
    report("edges", lambda: metrics.edges(small[1], small[2]))
    report("change_aware", lambda: metrics.change_aware(small[1], small[2], change))
    report("changed_iou", lambda: metrics.changed_iou(small[0], small[1], small[2], change))
    if options.ocr:
        shift = iter(range(10**9))  # a new frame each time, past the cache
        reader = metrics.Ocr()
        report("reading one screen", lambda: reader(np.roll(true, next(shift), axis=0)))
    kinds: list[tuple[Kind, str | None]] = [("siglip", options.siglip), ("dinov2", options.dinov2)]
    for kind, folder in kinds:
        if folder:
            report(f"{kind}, one pair", _pair(FeatureSettings(kind, folder), true))


def _frame(name: str, size: tuple[int, int] | None) -> metrics.Frame:
    frame = metrics.load_frame(DATA / name)
    return frame if size is None else np.asarray(cv2.resize(frame, size, interpolation=cv2.INTER_CUBIC), np.uint8)


def _pair(settings: FeatureSettings, frame: metrics.Frame) -> Callable[[], object]:
    model, count = FeatureModel(settings), iter(range(10**9))
    folder = Path(tempfile.mkdtemp())

    def work() -> object:
        paths = [folder / "a.png", folder / "b.png"]
        for path in paths:
            Image.fromarray(np.roll(frame, next(count), axis=0)).save(path, compress_level=1)
        return model.similarities(paths[:1], paths[1:])

    return work


def _rate(work: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Runs per second of wall time, and milliseconds of CPU per run."""
    work()
    runs, wall, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        work()
        runs += 1
    return runs / (time.perf_counter() - wall), 1000 * (time.process_time() - cpu) / runs


if __name__ == "__main__":
    main()
