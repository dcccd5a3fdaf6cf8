"""Pages per second of the browser pool against one browser launch per page, in the same run.

``python benchmarks/rendering.py [--pages N]`` prints a table; `measure` is for other benchmarks. The baseline is what
a script without a pool does for every page: start Playwright, launch the browser, open a page, set its content, take a
screenshot, close all; it runs under the same number of threads. CPU time is that of this process and all its children.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil

from workflow_scripts.browser.find import find_browser
from workflow_scripts.browser.pool import BrowserPool

SIZE = (412, 915)


@dataclass(frozen=True)
class Rate:
    """How fast one way rendered: pages, wall seconds and CPU seconds."""

    way: str
    threads: int
    pages: int
    wall_s: float
    cpu_s: float

    @property
    def per_second(self) -> float:
        """Pages per wall second."""
        return self.pages / self.wall_s


def sample_page(number: int) -> str:
    """A phone screen of ordinary complexity; each number gives another one."""
    rows = "".join(
        f"<li><b>Item {number}-{i}</b><span>{'details ' * (1 + (number + i) % 5)}</span><button>Open</button></li>"
        for i in range(14)
    )
    return f"""<!doctype html><meta charset="utf-8"><style>
    body {{ margin: 0; font: 15px Roboto, sans-serif; background: #fafafa }}
    header {{ background: #{number * 7919 % 4096:03x}; color: #fff; padding: 14px; font-size: 20px }}
    ul {{ list-style: none; padding: 8px; margin: 0 }} span {{ flex: 1; color: #666 }}
    li {{ display: flex; gap: 8px; align-items: center; padding: 10px; margin: 6px 0; background: #fff }}
    li {{ border-radius: 8px; box-shadow: 0 1px 3px #0003 }}
    button {{ border: 0; border-radius: 12px; padding: 6px 10px }}
    </style><header>Screen {number} ☰</header><ul>{rows}</ul>"""


def launch_per_page(html: str) -> bytes:
    """One screenshot by a browser of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser().path)
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        page.set_content(html)
        png = page.screenshot()
        browser.close()
    return png


def measure(pages: int = 120, threads: tuple[int, ...] = (1, 4), launches: int = 8) -> list[Rate]:
    """Rates of both ways for each number of threads, the baseline first."""
    rates = []
    for count in threads:
        rates.append(_timed("browser launch per page", count, launches, launch_per_page))
        with BrowserPool() as pool:
            render = lambda html: pool.render(html, *SIZE).png  # noqa: E731
            _timed("", count, 2 * count, render)  # starts the browser and opens its pages
            rates.append(_timed("browser pool", count, pages, render))
    return rates


def _timed(way: str, threads: int, pages: int, render: Callable[[str], bytes]) -> Rate:
    with _CpuTime() as cpu, ThreadPoolExecutor(threads) as executor:
        start = time.perf_counter()
        for png in executor.map(render, map(sample_page, range(pages))):
            assert png.startswith(b"\x89PNG")
        wall = time.perf_counter() - start
    return Rate(way, threads, pages, wall, cpu.seconds)


class _CpuTime:
    """CPU seconds of this process and its descendants, as far as a look every 20 ms sees those that come and go."""

    def __enter__(self) -> _CpuTime:
        self.seconds = 0.0
        self._seen: dict[int, float] = {}
        self._start = self._look()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.seconds = self._look() - self._start

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self._look()

    def _look(self) -> float:
        me = psutil.Process(os.getpid())
        for process in (me, *me.children(recursive=True)):
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            self._seen[process.pid] = times.user + times.system
        return sum(self._seen.values())


def table(rates: list[Rate]) -> str:
    """The rates as text, with the pool's ratio to the baseline of the same number of threads."""
    lines = [f"{'way':26} {'threads':>7} {'pages':>6} {'pages/s':>8} {'CPU ms/page':>12} {'ratio':>6}"]
    base = {rate.threads: rate for rate in rates if rate.way == "browser launch per page"}
    for rate in rates:
        ratio = rate.per_second / base[rate.threads].per_second
        cpu = 1000 * rate.cpu_s / rate.pages
        lines.append(f"{rate.way:26} {rate.threads:7} {rate.pages:6} {rate.per_second:8.1f} {cpu:12.0f} {ratio:5.1f}x")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=120)
    options = parser.parse_args()
    print(table(measure(options.pages)))
