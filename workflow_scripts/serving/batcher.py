"""The queue in front of a pipeline: which waiting requests run as one call. Pure apart from a lock and the clock.

Requests of one group (equal sizes and settings) may share a call; everything else waits its turn. Order is start-time
fair queueing over tasks (Goyal, Vin, Cheng 1996) with unit cost: a task that floods the queue only delays itself, and
the ticket that stands first is always in the next call, so no task and no group starves.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


class QueueFull(Exception):
    """No place in the queue; `retry_after_s` is when one is likely."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"the queue is full; retry in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


@dataclass(eq=False, slots=True)
class Ticket:
    """A request that waits. `start` is its virtual start time; `future` receives the row's result."""

    task: str
    group: Hashable
    payload: Any
    start: float
    arrived: float
    future: Future[Any] = field(default_factory=Future)


class Batcher:
    """Thread-safe: many submitters, one taker.

    Args:
        max_rows: most rows of one call.
        max_queue: most waiting requests; a single task may hold a quarter of them.
    """

    def __init__(self, max_rows: int, max_queue: int) -> None:
        self.max_rows, self.max_queue = max_rows, max_queue
        self.max_per_task = max(1, max_queue // 4)
        self._waiting: list[Ticket] = []
        self._ready = threading.Condition()
        self._virtual = 0.0
        self._last_finish: dict[str, float] = {}
        self._limits: dict[Hashable, int] = {}
        self._row_seconds = 1.0
        self._recent: deque[tuple[float, str]] = deque(maxlen=4 * max_rows)
        self._running: tuple[float, int] | None = None

    def submit(self, task: str, group: Hashable, payload: Any) -> Ticket:
        """Puts a request in line. Raises QueueFull."""
        with self._ready:
            own = sum(t.task == task for t in self._waiting)
            if len(self._waiting) >= self.max_queue or own >= self.max_per_task:
                raise QueueFull(max(1.0, min(60.0, self._row_seconds * len(self._waiting) / 2)))
            start = max(self._virtual, self._last_finish.get(task, 0.0))
            self._last_finish[task] = start + 1.0
            now = time.monotonic()
            ticket = Ticket(task, group, payload, start, now)
            self._recent.append((now, task))
            self._waiting.append(ticket)
            self._ready.notify_all()
            return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Takes a request out of line, if it still stands there (its client has gone)."""
        with self._ready:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                ticket.future.cancel()

    def take(self, timeout_s: float) -> list[Ticket]:
        """The next call's rows, first-in-line first; empty after `timeout_s` without a request.

        Where other tasks were active lately it waits a moment for their next requests: a tenth of one row's time, at
        most a quarter of a second.
        """
        with self._ready:
            if not self._ready.wait_for(lambda: bool(self._waiting), timeout_s):
                return []
            deadline = time.monotonic() + min(0.25, self._row_seconds / 10)
            while len(self._next()) < min(self._limit(self._first().group), self._active_tasks()):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._ready.wait(left)
                if not self._waiting:  # the only one was cancelled
                    return []
            batch = self._next()
            for ticket in batch:
                self._waiting.remove(ticket)
            self._virtual = max(self._virtual, batch[0].start)
            if not self._waiting:
                self._last_finish.clear()
                self._virtual = 0.0
            self._running = (time.monotonic(), len(batch))
            return batch

    def done(self, rows: int, seconds: float) -> None:
        """Notes how long a call of `rows` rows took."""
        with self._ready:
            self._row_seconds = 0.7 * self._row_seconds + 0.3 * seconds / max(1, rows)
            self._running = None

    def limit(self, group: Hashable) -> int:
        """Most rows of one call of this group: `max_rows`, less after an out-of-memory."""
        with self._ready:
            return self._limit(group)

    def out_of_memory(self, group: Hashable, rows: int) -> int:
        """Halves what ran out of memory at `rows` rows, for good. Returns the group's new limit (at least 1)."""
        with self._ready:
            self._limits[group] = max(1, min(self._limit(group), rows) // 2)
            return self._limits[group]

    @property
    def pending(self) -> int:
        """Requests waiting or running."""
        with self._ready:
            return len(self._waiting) + (self._running[1] if self._running else 0)

    @property
    def running_s(self) -> float:
        """Seconds the present call has been running; 0 between calls."""
        with self._ready:
            return time.monotonic() - self._running[0] if self._running else 0.0

    @property
    def limits(self) -> dict[Hashable, int]:
        """Groups whose batches were made smaller, with their limits."""
        with self._ready:
            return dict(self._limits)

    def _limit(self, group: Hashable) -> int:
        return self._limits.get(group, self.max_rows)

    def _first(self) -> Ticket:
        return min(self._waiting, key=lambda t: (t.start, t.arrived))

    def _next(self) -> list[Ticket]:
        group = self._first().group
        line = sorted((t for t in self._waiting if t.group == group), key=lambda t: (t.start, t.arrived))
        return line[: self._limit(group)]

    def _active_tasks(self) -> int:
        """Tasks that asked within the last few rows' time."""
        since = time.monotonic() - 2 * self.max_rows * self._row_seconds
        return len({task for at, task in self._recent if at >= since})
