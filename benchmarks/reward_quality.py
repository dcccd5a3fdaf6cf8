"""How well the rewards tell good drafts from bad ones and from hacks, on held-out pages the weights were not chosen on.

    python benchmarks/reward_quality.py [--pages 4] [--split heldout] [--first 40]

Prints Markdown: corruption ranking (Spearman correlation of lost reward with the strength of damage, mean and minimum
over pages; no human agreement) and what each hack earns, for our reward and for the original eight-part one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from workflow_scripts.browser.pool import BrowserPool
from workflow_scripts.coder.blocks import Camera
from workflow_scripts.coder.corruptions import SERIES
from workflow_scripts.coder.hacks import HACKS, PARTIAL
from workflow_scripts.coder.pages import LEVELS, PageTask, procedural_page
from workflow_scripts.coder.scorers import OriginalScorer, Scorer, VisibleScorer


def ranking(scorers: dict[str, Scorer], tasks: list[PageTask], run: Callable[..., list[float]]) -> None:
    print(
        "| damage | "
        + " | ".join(f"{name}: mean (min)" for name in scorers)
        + " |\n|---" * 1
        + "|---" * len(scorers)
        + "|"
    )
    everything: dict[str, list[float]] = {name: [] for name in scorers}
    for series, (corrupt, strengths) in SERIES.items():
        cells = []
        for name, scorer in scorers.items():
            jobs = [(task, corrupt(task.html, strength, 3)) for task in tasks for strength in strengths]
            scores = np.array(run(scorer, jobs)).reshape(len(tasks), len(strengths))
            found = [float(np.nan_to_num(spearmanr(strengths, -row).statistic)) for row in scores]
            everything[name] += found
            cells.append(f"{np.mean(found):.3f} ({min(found):.3f})")
        print(f"| {series} | " + " | ".join(cells) + " |", flush=True)
    print("| all | " + " | ".join(f"{np.mean(v):.3f} ({min(v):.3f})" for v in everything.values()) + " |\n")


def hacks(scorers: dict[str, Scorer], tasks: list[PageTask], run: Callable[..., list[float]]) -> None:
    print(
        "| page | " + " | ".join(f"{name}: mean (max)" for name in scorers) + " |\n|---" + "|---" * len(scorers) + "|"
    )
    for label, make in {"itself": lambda html, png: html, **HACKS, **PARTIAL}.items():
        cells = []
        for scorer in scorers.values():
            scores = run(scorer, [(task, make(task.html, scorer.reference_png(task))) for task in tasks])
            cells.append(f"{np.mean(scores):.3f} ({max(scores):.3f})")
        print(f"| {label} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=4, help="pages of each level")
    parser.add_argument("--split", choices=("train", "heldout"), default="heldout")
    parser.add_argument("--first", type=int, default=40)
    options = parser.parse_args()
    tasks = [
        procedural_page(level, options.split, index)
        for level in LEVELS
        for index in range(options.first, options.first + options.pages)
    ]
    with BrowserPool() as pool, ThreadPoolExecutor(4) as threads:
        camera = Camera(pool)
        scorers: dict[str, Scorer] = {"ours": VisibleScorer(camera=camera), "original": OriginalScorer(camera)}

        def run(scorer: Scorer, jobs: list[tuple[PageTask, str]]) -> list[float]:
            return list(threads.map(lambda job: scorer.score(*job).total, jobs))

        ranking(scorers, tasks, run)
        hacks(scorers, tasks, run)


if __name__ == "__main__":
    main()
