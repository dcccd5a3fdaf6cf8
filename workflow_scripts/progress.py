"""What a person sees while a run goes: steps done and left, rate, time left, failures by class, what is waiting.

One line on the terminal, rewritten in place there and repeated now and then elsewhere; the same and every event in a
plain log file. The log is only ever appended to. Left out: per-job output, which Snakemake's own log file has.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO


@dataclass
class FailedJob:
    """One job that stopped on infrastructure."""

    target: str
    code: str
    message: str


@dataclass
class Progress:
    """Counts of one run.

    Args:
        log: plain log file.
        steps_total, steps_done: predictions asked for, and those that lay there at the start.
        tasks_total, tasks_done: trajectories likewise.
        observe: where the work is done by other processes: says how many steps and tasks are done now.
        note: what other stages have to say in the line; without steps it is the line.
    """

    log: Path
    steps_total: int
    steps_done: int
    tasks_total: int
    tasks_done: int
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    model_failures: Counter[str] = field(default_factory=Counter)
    infrastructure: dict[str, FailedJob] = field(default_factory=dict)
    observe: Callable[[], tuple[int, int]] | None = None
    note: Callable[[], str] = lambda: ""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, float] = {}
        self._begun = time.monotonic()
        self._at_start = self.steps_done
        self._stop = threading.Event()
        self._in_place = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)

    def start(self) -> None:
        """Begins to report."""
        steps = (
            f"{self.steps_total - self.steps_done} of {self.steps_total} steps and "
            f"{self.tasks_total - self.tasks_done} of {self.tasks_total} tasks to do"
        )
        self.event(f"run begins: {steps if self.steps_total else self.note() or steps}")
        self._thread.start()

    def stop(self) -> None:
        """Ends with a last line."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._look()
        self._show(self.line(), final=True)

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Lists a job as running while it is."""
        with self._lock:
            self._running[name] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._running.pop(name, None)

    def step_done(self, model_failure: str | None) -> None:
        """Counts a prediction; `model_failure` is its code where it is one."""
        with self._lock:
            self.steps_done += 1
            if model_failure:
                self.model_failures[model_failure] += 1

    def task_done(self, name: str, reason: str) -> None:
        """Counts a trajectory."""
        with self._lock:
            self.tasks_done += 1
        self.event(f"{name}: {reason}")

    def job_failed(self, target: str, code: str, message: str) -> None:
        """Notes an infrastructure failure; the latest one of a target counts."""
        with self._lock:
            self.infrastructure[target] = FailedJob(target, code, message)
        self.event(f"FAILED {target}: {code}: {message}")

    def job_mended(self, target: str) -> None:
        """A retry of a failed target has succeeded."""
        with self._lock:
            self.infrastructure.pop(target, None)

    def line(self) -> str:
        """The state in one line."""
        note = self.note()
        with self._lock:
            done = self.steps_done - self._at_start
            elapsed = time.monotonic() - self._begun
            left = self.steps_total - self.steps_done
            rate = done / elapsed if elapsed > 0 else 0.0
            share = 100 * self.steps_done / self.steps_total if self.steps_total else 100.0
            parts = [
                f"steps {self.steps_done}/{self.steps_total} ({share:.0f} %)",
                f"tasks {self.tasks_done}/{self.tasks_total}",
            ]
            if done:
                parts.append(f"{rate:.2f} steps/s" if rate >= 0.1 else f"{rate * 60:.2f} steps/min")
            parts = [note, *(parts if self.steps_total else [])] if note else parts
            if left and rate:
                parts.append(f"about {duration(left / rate)} left")
            if self.model_failures:
                parts.append("model failures " + _counts(self.model_failures))
            if self.infrastructure:
                codes = Counter(job.code for job in self.infrastructure.values())
                parts.append("infrastructure failures " + _counts(codes))
            if self._running:
                name, since = min(self._running.items(), key=lambda item: item[1])
                parts.append(f"{len(self._running)} running, longest {name} {time.monotonic() - since:.0f} s")
        return "  ".join(parts)

    def event(self, text: str) -> None:
        """Appends a line with the time to the log file."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, open(self.log, "a", encoding="utf-8") as stream:
            stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def _tick(self) -> None:
        seconds = 0
        while not self._stop.wait(1):
            seconds += 1
            if seconds % 15 == 0:
                self._look()
            if self._in_place or seconds % 15 == 0:
                self._show(self.line())
            if seconds % 30 == 0:
                self.event(self.line())

    def _look(self) -> None:
        if self.observe is not None:
            steps, tasks = self.observe()
            with self._lock:
                self.steps_done, self.tasks_done = steps, tasks

    def _show(self, line: str, final: bool = False) -> None:
        if self._in_place:
            width = os.get_terminal_size(self.stream.fileno()).columns
            end = "\n" if final else ""
            self.stream.write(f"\r\x1b[K{line if final else line[: width - 1]}{end}")
        else:
            self.stream.write(line + "\n")
        self.stream.flush()


def duration(seconds: float) -> str:
    """Seconds for a person: 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _counts(counter: Counter[str]) -> str:
    return f"{sum(counter.values())} ({', '.join(f'{code} {n}' for code, n in counter.most_common(3))})"
