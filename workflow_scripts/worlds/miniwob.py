"""Drives the pages of the PyPI package `miniwob` (MiniWoB++, MIT licence) as a phone-sized application.

The package's files are served by request interception from a made-up origin: no server, no network. An episode is a
pure function of (page, seed, actions): the random generator is seeded, the page's clock stands still but for `STEP_MS`
after each action, CSS transitions are off, and a scroll is waited for until the page has really scrolled. The same
actions therefore give the same pixels, and page time costs no wall time.

The page is 160 × 210 CSS pixels, of which the upper 50 are MiniWoB's goal bar. A frame is the 160 × 160 square below it
at `scale` device pixels per CSS pixel; the instruction reaches an agent as text only. After its end an episode keeps
showing the page as it was left: MiniWoB's START cover, reward display, click marks and time limit are off.

A tap is a mouse click, a scroll a turn of the wheel: the pages know no touch events. Left out: drags (not in the action
vocabulary), native popups of single-choice `<select>` lists (Chromium draws them outside the page), and MiniWoB's decay
of the reward with time.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import mimetypes
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..actions import SCROLL_SPAN, Action
from ..failures import InfrastructureFailure, InvalidInput
from ..identity import digest, file_digest

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

    from ..browser.pool import BrowserPool

DRIVER_VERSION = 1
"""Raised whenever the same actions may give other pixels; part of the world's identity."""
ORIGIN = "http://miniwob.invalid/"
VIEWPORT = (160, 210)
GOAL_BAR = 50
FRAME_SIDE = 160
"""CSS pixels: the page, the goal bar at its top, and the square frame below that."""
STEP_MS = 1000
"""Page time that passes after each action: more than any of the pages' animations and input delays (≤ 500 ms)."""
LONG_PRESS_MS = 600
"""Page time between press and release: Android's threshold is 500 ms."""
SETTLE_S = 1.0
"""Wall time a scroll is given to arrive; it takes about 10 ms."""
DEFAULT_SCALE = 3

# 1e8 ms is over a day of page time. The cover is replaced only after the start, which needs it.
_START = """([seed, limit]) => {
  const style = document.createElement('style');
  style.textContent = '#query{visibility:hidden} *,*::before,*::after{transition:none!important}';
  document.head.append(style);
  Math.seedrandom(seed);
  core.EPISODE_MAX_TIME = limit;
  core.startEpisodeReal();
  core.startEpisode = () => {};
  document.body.removeEventListener('click', core.canvasDrawClick);
  for (const id of ['reward-display', 'click-canvas', 'sync-task-cover'])
    document.getElementById(id).style.display = 'none';
}"""
_STATE = "() => ({reward: WOB_RAW_REWARD_GLOBAL, done: WOB_DONE_GLOBAL, reason: WOB_REWARD_REASON})"
# Chromium scrolls the nearest ancestor that can still move that way. Left on the window: whether it has arrived.
_AIM = """([x, y, dx, dy]) => {
  const horizontal = dx != 0, delta = horizontal ? dx : dy;
  const key = horizontal ? 'scrollLeft' : 'scrollTop';
  let element = document.elementFromPoint(x, y);
  for (; element; element = element.parentElement) {
    const root = element == document.scrollingElement;
    const flow = getComputedStyle(element)[horizontal ? 'overflowX' : 'overflowY'];
    if (!root && !/auto|scroll/.test(flow) && element.tagName != 'TEXTAREA') continue;
    const room = horizontal ? element.scrollWidth - element.clientWidth : element.scrollHeight - element.clientHeight;
    const end = Math.min(Math.max(element[key] + delta, 0), room);
    if (Math.abs(end - element[key]) >= 1) { window.__aim = () => Math.abs(element[key] - end) < 1; return true; }
  }
  return false;
}"""


@dataclass(frozen=True)
class Environment:
    """Which page a task is made from: `page` is a file name in the package without ``.html``."""

    page: str
    seed: int
    scale: int = DEFAULT_SCALE

    @classmethod
    def of(cls, record: Mapping[str, Any] | None, where: str) -> Environment:
        """Checks the ``environment`` of a task. Raises InvalidInput; `where` names the task in it."""
        example = '"environment": {"kind": "miniwob", "page": "login-user", "seed": 0}'
        if record is None or record.get("kind") != "miniwob":
            found = "no such field" if record is None else record.get("kind")
            raise InvalidInput(where, "environment.kind", "miniwob (a real page to open)", found, example)
        unknown = sorted(set(record) - {"kind", "page", "seed", "scale"})
        if unknown:
            raise InvalidInput(where, f"environment.{unknown[0]}", "kind, page, seed or scale", unknown[0], example)
        page, seed, scale = record.get("page"), record.get("seed"), record.get("scale", DEFAULT_SCALE)
        if not isinstance(page, str) or f"miniwob/{page}.html" not in served_files():
            raise InvalidInput(where, "environment.page", "a page of the miniwob package", page, example)
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InvalidInput(where, "environment.seed", "a whole number from 0", seed, example)
        if isinstance(scale, bool) or not isinstance(scale, int) or not 1 <= scale <= 8:
            raise InvalidInput(where, "environment.scale", "a whole number from 1 to 8", scale, example)
        return cls(page, seed, scale)

    def record(self) -> dict[str, Any]:
        """The ``environment`` field of a task."""
        return {"kind": "miniwob", "page": self.page, "seed": self.seed, "scale": self.scale}

    @property
    def side(self) -> int:
        """Width and height of the frame in pixels."""
        return FRAME_SIDE * self.scale


def wrong_scale(where: str, environment: Environment, width: int, height: int) -> InvalidInput:
    """The refusal of a task whose first screen has another size than the environment's frames."""
    expected = f"the scale that gives frames of the first screen's size, {width}×{height} pixels"
    found = f"{environment.scale}, which gives {environment.side}×{environment.side}"
    return InvalidInput(where, "environment.scale", expected, found, f'"scale": {max(1, width // FRAME_SIDE)}')


@functools.cache
def served_files() -> Mapping[str, Path]:
    """The package's files by their path under the origin, e.g. ``miniwob/login-user.html``.

    Raises InfrastructureFailure where the package is not installed. (It is found, not imported: importing it would need
    gymnasium and selenium.)
    """
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        message = "the package miniwob is not installed; `pip install --no-deps miniwob` brings the pages"
        raise InfrastructureFailure("miniwob_missing", message)
    root = Path(spec.submodule_search_locations[0]) / "html"
    folders = ("core", "common", "miniwob")
    return {p.relative_to(root).as_posix(): p for f in folders for p in sorted((root / f).rglob("*")) if p.is_file()}


@functools.cache
def files_digest() -> str:
    """Digest over the content of all served files."""
    return digest({name: file_digest(path) for name, path in served_files().items()})


@contextlib.asynccontextmanager
async def episode(pool: BrowserPool, environment: Environment) -> AsyncIterator[Episode]:
    """A new episode in a fresh page of the pool, at its first screen. Use it within ``pool.run``."""
    async with pool.session(*VIEWPORT, scale=environment.scale, route=serve) as page:
        yield await Episode.start(page, environment)


class Episode:
    """A running episode on a Playwright page. Made by `start`, mostly through `episode`."""

    def __init__(self, page: Page, environment: Environment, instruction: str) -> None:
        self.page = page
        self.environment = environment
        self.instruction = instruction

    @classmethod
    async def start(cls, page: Page, environment: Environment) -> Episode:
        """Opens the environment's page on a fresh `page` of VIEWPORT size and the environment's scale.

        The page's clock must be paused, its randomness fixed (setup code draws from it before the seed is set), and its
        requests must go to `serve`: as in a session of the pool.
        """
        await page.goto(f"{ORIGIN}miniwob/{environment.page}.html")
        await page.evaluate(_START, [str(environment.seed), 10**8])
        await page.clock.run_for(STEP_MS)
        goal = await page.evaluate("() => core.getUtterance()")
        instruction = goal["utterance"] if isinstance(goal, dict) else goal
        return cls(page, environment, " ".join(instruction.split()))

    async def perform(self, action: Action) -> bool:
        """Carries out one action and lets STEP_MS of page time pass. Coordinates are frame pixels.

        Returns False, and leaves the page alone, for actions a single page has no meaning for (navigate_home,
        navigate_back, open_app). Raises ValueError for terminal actions: they end the episode and change no screen.
        """
        if action.terminal:
            raise ValueError(f"{action.type} ends an episode; there is no screen after it")
        mouse, clock = self.page.mouse, self.page.clock
        if action.x is not None and action.y is not None:
            x, y = action.x / self.environment.scale, action.y / self.environment.scale + GOAL_BAR
        match action.type:
            case "tap":
                await mouse.click(x, y)
            case "long_press":
                await mouse.move(x, y)
                await mouse.down()
                await clock.run_for(LONG_PRESS_MS)
                await mouse.up()
            case "scroll":
                await mouse.move(x, y)
                await self._scroll(x, y, str(action.direction))
            case "type_text":
                await self.page.keyboard.type(action.text or "")
            case "wait":
                pass
            case _:
                return False
        await clock.run_for(STEP_MS)
        if action.x is not None:
            # What came to lie under the pointer is hovered now, not at a moment of Chromium's choosing.
            await mouse.move(x, y)
        return True

    async def _scroll(self, x: float, y: float, direction: str) -> None:
        """Turns the wheel against the finger's motion by the vocabulary's span; waits until the page has followed."""
        span = FRAME_SIDE * SCROLL_SPAN / 1000
        dx, dy = {"up": (0.0, span), "down": (0.0, -span), "left": (span, 0.0), "right": (-span, 0.0)}[direction]
        moves = await self.page.evaluate(_AIM, [x, y, dx, dy])
        await self.page.mouse.wheel(dx, dy)
        # A page may swallow the wheel; then nothing more comes, and the screen is what it is.
        deadline = time.monotonic() + SETTLE_S
        while moves and time.monotonic() < deadline and not await self.page.evaluate("() => window.__aim()"):
            pass

    async def frame(self) -> bytes:
        """The current screen as PNG, `environment.side` pixels square, without the goal bar."""
        clip = {"x": 0.0, "y": float(GOAL_BAR), "width": float(FRAME_SIDE), "height": float(FRAME_SIDE)}
        return await self.page.screenshot(clip=clip, animations="disabled", caret="hide")  # type: ignore[arg-type]

    @property
    def browser_version(self) -> str:
        browser = self.page.context.browser
        return browser.version if browser else "unknown"

    async def state(self) -> dict[str, Any]:
        """The page's own verdict: reward (raw, without decay by time; 1.0 is success), done, reason (or None)."""
        state: dict[str, Any] = await self.page.evaluate(_STATE)
        return state


async def serve(route: Route) -> None:
    """Answers a request for one of the package's files; refuses every other."""
    path = served_files().get(route.request.url.removeprefix(ORIGIN).split("?")[0].split("#")[0])
    if path is None:
        await route.abort()
    else:
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        await route.fulfill(body=path.read_bytes(), content_type=kind)
