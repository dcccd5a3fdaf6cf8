"""How many transitions per second the local metrics score, on one core, at real screen sizes; how long a report takes.

    python -m benchmarks.scoring [--seconds 5] [--ocr] [--siglip FOLDER] [--dinov2 FOLDER] [--report 20 100 200]

One transition is a prediction, the copy of the previous screen and an empty one, as `metrics.compare` scores them. A
report is that of three rows of so many tasks of 24 steps (25 screens, as many as a judge takes), built from nothing
and, a second time, with nothing changed. Prints one JSON line per size and metric. Left out: judges (their speed is
the endpoint's).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from tests.report import synthetic
from workflow_scripts import report_run
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
    parser.add_argument(
        "--report", metavar="TASKS", nargs="*", type=int, default=[20, 100, 200], help="sizes of reports"
    )
    options = parser.parse_args()
    for tasks in options.report:
        _report(tasks)
    cv2.setNumThreads(1)
    for name, size in SIZES.items():
        _measure(name, size, options)


def _report(tasks: int, steps: int = 24) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        rows = synthetic.make(Path(name), tasks, steps)
        seconds = []
        for _ in ("new", "again"):
            started = time.perf_counter()
            for row in rows:
                report_run.row(row, synthetic.SCORES)
            report_run.index(rows, synthetic.SCORES, synthetic.TABLES)
            seconds.append(round(time.perf_counter() - started, 2))
        pages = list(report_run.REPORT.rglob("*.html"))
        size = {"megabytes": round(sum(page.stat().st_size for page in pages) / 1e6, 1)}
        index = {"index_kilobytes": round((report_run.REPORT / "index.html").stat().st_size / 1e3, 1)}
        line = {"report": f"{len(rows)} rows × {tasks} tasks × {steps} steps", "pages": len(pages), **size, **index}
    print(json.dumps({**line, "seconds": seconds[0], "seconds_unchanged": seconds[1]}, ensure_ascii=False), flush=True)


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
    while runs == 0 or time.perf_counter() - wall < seconds:
        work()
        runs += 1
    return runs / (time.perf_counter() - wall), 1000 * (time.process_time() - cpu) / runs


if __name__ == "__main__":
    main()
