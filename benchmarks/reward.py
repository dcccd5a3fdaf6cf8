"""What a step of the coder's environment costs, beside one browser launch per render as the original did it.

    python benchmarks/reward.py [--steps 60] [--launches 5] [--memory 5000]

CPU is that of this process, Playwright's driver and the browser together, so it holds on a busy machine; wall times and
rates do not. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from workflow_scripts.browser.find import find_browser
from workflow_scripts.browser.page import HermeticPage
from workflow_scripts.browser.pool import BrowserPool
from workflow_scripts.coder.blocks import Camera, photograph, snapshot
from workflow_scripts.coder.corruptions import letters, shift
from workflow_scripts.coder.pages import PageTask, procedural_page
from workflow_scripts.coder.reward import reward
from workflow_scripts.coder.scorers import VisibleScorer

TASKS = [procedural_page("medium", "train", index) for index in range(40)]
TASKS = [task for task in TASKS if task.width == 640][:12]


def processes() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def cpu_s() -> float:
    """CPU seconds of this process and everything it has started that still lives."""
    total = 0.0
    for process in processes():
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def memory_mib() -> dict[str, int]:
    mine, others = psutil.Process().memory_info().rss, 0
    for process in processes()[1:]:
        try:
            others += process.memory_full_info().pss
        except psutil.Error:
            continue
    return {"own_rss": mine >> 20, "browser_pss": others >> 20}


def measured(work: Callable[[Any], Any], items: Iterable[Any], threads: int = 1) -> dict[str, float]:
    """CPU and wall per item, and items per second, of `work` over `items`."""
    items = list(items)
    before, started = cpu_s(), time.perf_counter()
    if threads == 1:
        for item in items:
            work(item)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, items))
    wall = time.perf_counter() - started
    return {
        "cpu_ms": round(1000 * (cpu_s() - before) / len(items), 1),
        "wall_ms": round(1000 * wall / len(items), 1),
        "per_s": round(len(items) / wall, 2),
    }


def drafts(count: int) -> list[tuple[PageTask, str]]:
    """Candidates that differ from one another and from their page."""
    pairs = []
    for i in range(count):
        task = TASKS[i % len(TASKS)]
        pairs.append((task, letters(shift(task.html, i % 7), 0.01 * (i % 11), i)))
    return pairs


def breakdown(camera: Camera, task: PageTask, rounds: int) -> dict[str, float]:
    """Median wall milliseconds of the phases of a step."""
    phases: dict[str, list[float]] = {}
    reference = camera.look(task.html, task.width, task.height)

    async def work(page: HermeticPage) -> tuple[float, Any, float]:
        started = time.perf_counter()
        shots = await photograph(page, camera.limits)
        return started, shots, time.perf_counter()

    for i in range(rounds):
        start = time.perf_counter()
        loaded, shots, shot = camera.pool.visit(
            shift(task.html, i % 7), task.width, task.height, work, allow_images=False
        )
        seen_at = time.perf_counter()
        seen = snapshot(*shots)
        measured_at = time.perf_counter()
        reward(reference, seen)
        end = time.perf_counter()
        for name, value in (
            ("load", loaded - start),
            ("read_and_two_shots", shot - loaded),
            ("snapshot", measured_at - seen_at),
            ("reward", end - measured_at),
        ):
            phases.setdefault(name, []).append(1000 * value)
    return {name: round(statistics.median(values), 1) for name, values in phases.items()}


def launch_and_render(pair: tuple[PageTask, str]) -> None:
    """One render as the original did it: a browser for it alone, with its flags."""
    from playwright.sync_api import sync_playwright

    task, html = pair
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_browser().path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": task.width, "height": task.height})
        page.set_content(html, wait_until="networkidle")
        page.screenshot(full_page=True)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--memory", type=int, default=0, help="steps of the memory run")
    options = parser.parse_args()
    results: dict[str, Any] = {"page": "medium, 640x480", "words": 0}
    with BrowserPool(pages=8) as pool:
        scorer = VisibleScorer(camera=Camera(pool))
        for task in TASKS:
            results["words"] = max(results["words"], len(scorer.reference(task).text))

        def step(pair: tuple[PageTask, str]) -> None:
            score = scorer.score(*pair)
            if score.failure is not None:
                raise RuntimeError(f"a benchmark page failed: {score.failure}")

        def render(pair: tuple[PageTask, str]) -> None:
            pool.render(pair[1], pair[0].width, pair[0].height, allow_images=False)

        measured(step, drafts(10))
        results["phases_wall_ms"] = breakdown(scorer.camera, TASKS[0], 20)
        results["step"] = measured(step, drafts(options.steps))
        results["render"] = {str(n): measured(render, drafts(options.steps), n) for n in (1, 4, 8)}
        results["steps_by_sessions"] = {str(n): measured(step, drafts(options.steps), n) for n in (1, 4, 8)}
        if options.memory:
            marks = {0: memory_mib()}
            for done in range(500, options.memory + 1, 500):
                measured(step, drafts(500), 2)
                marks[done] = memory_mib()
            results["memory_mib_after_steps"] = marks
    results["launch_per_render"] = measured(launch_and_render, drafts(options.launches))
    launch = results["launch_per_render"]
    results["ratio"] = {
        "render_cpu": round(launch["cpu_ms"] / results["render"]["1"]["cpu_ms"], 1),
        "render_wall": round(launch["wall_ms"] / results["render"]["1"]["wall_ms"], 1),
        "step_wall_against_five_launches": round(5 * launch["wall_ms"] / results["step"]["wall_ms"], 1),
    }
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
