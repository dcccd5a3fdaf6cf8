"""The browser pool: one warm browser for all renders of a process, one for its trusted pages.

Playwright runs in an asyncio loop of a daemon thread; `BrowserPool.render` and `visit` may be called from any number of
threads. A page that exceeds its time or the memory, or that crashes, takes its whole browser with it (closing the page
was measured not to be enough); pages of others that were in it are rendered again, and whoever is suspected is tried
once more alone in a fresh browser. Only that trial condemns, so a result never depends on who shared the browser.

Left out: recycling of trusted sessions (a page's virtual clock cannot be set back) and browsers other than Chromium.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import math
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..failures import Failure, InfrastructureFailure, InvalidInput, ModelFailure
from . import processes
from .find import find_browser
from .fonts import fontconfig_file, renderer_identity
from .page import (
    COMMON_OPTIONS,
    LAUNCH_ARGUMENTS,
    HermeticPage,
    PageKind,
    check_browser,
    fix_time_and_chance,
    open_page,
)

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Playwright, Route

T = TypeVar("T")

SANDBOX_VARIABLE = "GUILOOP_BROWSER_SANDBOX"
MAX_CHARS = 2_000_000
MAX_SIDE = 16_384
USES_PER_PAGE = 250
VISITS_PER_BROWSER = 2_500
INTERRUPTIONS = 2
"""How often a page may be interrupted by somebody else's fault before it is given a browser of its own."""
LAUNCH_S = 30.0
OPEN_S = 20.0
CLOSE_S = 3.0
WATCH_S = 0.2

_EXPLAINED = {
    "render_timeout": "the page was not done within its time",
    "render_crash": "the browser crashed on the page",
    "render_memory": "the page took more memory than allowed",
    "render_failed": "the browser stopped answering on the page",
}


@dataclass(frozen=True)
class Rendered:
    """A picture of a page.

    Attributes:
        png: RGB PNG of exactly the size asked for.
        content_size: width and height of the whole document in CSS pixels; what exceeds the viewport was cut.
        blocked: refused requests by kind.
        evidence: JSON-able facts for a record: browser, renderer identity, content size, blocked requests.
    """

    png: bytes
    content_size: tuple[int, int]
    blocked: dict[str, int]
    evidence: dict[str, Any]


@dataclass(frozen=True)
class _Job(Generic[T]):
    html: str
    width: int
    height: int
    kind: PageKind
    allow_images: bool
    timeout_s: float
    work: Callable[[HermeticPage], Awaitable[T]]


class _Interrupted(Exception):
    """The browser ended under a page that is not to blame."""


class _Suspected(Exception):
    """A page failed in a way that may be its own fault."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclass
class _Browser:
    """One running browser: its processes, its idle pages, and the future that resolves when it is gone."""

    browser: Browser
    pid: int
    driver_pid: int
    profile: str | None
    gone: asyncio.Future[str]
    idle: list[HermeticPage] = field(default_factory=list)
    busy: int = 0
    visits: int = 0
    memory_limit: int = 0
    watch: asyncio.Task[None] | None = None

    def end(self, reason: str) -> None:
        """Kills the whole process tree; `reason` is ``guilty`` (who did it is known) or why all in it are suspected."""
        if not self.gone.done():
            self.gone.set_result(reason)
            processes.kill_tree(self.pid)

    async def watch_memory(self) -> None:
        """Ends the browser when its processes hold more memory than the limit."""
        while not self.gone.done():
            await asyncio.sleep(WATCH_S)
            if self.busy and processes.resident_bytes(processes.tree(self.pid)) > self.memory_limit:
                self.end("render_memory")


class _Gate:
    """Lets up to `limit` in together, or one alone; whoever wants to be alone goes first."""

    def __init__(self, limit: int) -> None:
        self._limit, self._inside, self._waiting_alone = limit, 0, 0
        self._alone = False
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(
                lambda: not self._alone and not self._waiting_alone and self._inside < self._limit
            )
            self._inside += 1
        try:
            yield
        finally:
            await self._leave(alone=False)

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._changed:
            self._waiting_alone += 1
            try:
                await self._changed.wait_for(lambda: not self._alone and not self._inside)
                self._alone = True
            finally:
                self._waiting_alone -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            await self._leave(alone=True)

    async def _leave(self, *, alone: bool) -> None:
        async with self._changed:
            if alone:
                self._alone = False
            else:
                self._inside -= 1
            self._changed.notify_all()


class BrowserPool:
    """Renders pages in a warm browser, from any thread. Started on first use; a context manager.

    Args:
        pages: how many pages are rendered at the same time.
        memory_mb: resident memory, in MiB, that the pages in a browser may take together beyond its own.
        sandbox: Chromium's sandbox; None takes GUILOOP_BROWSER_SANDBOX (``on`` or ``off``), else on unless root, as
            whom Chromium refuses to start with it.
    """

    def __init__(self, pages: int = 4, memory_mb: int = 1500, sandbox: bool | None = None) -> None:
        self._pages, self._memory_mb = pages, memory_mb
        self._sandbox = _sandbox_setting() if sandbox is None else sandbox
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._loop: asyncio.AbstractEventLoop
        self._guard: processes.Guard
        self._folder: str
        # The following belong to the loop's thread.
        self._driver: Playwright | None = None
        self._untrusted: _Browser | None = None
        self._trusted: _Browser | None = None
        self._closing: set[asyncio.Future[None]] = set()
        self._starting: asyncio.Lock
        self._gate: _Gate
        self._sessions: asyncio.Semaphore

    # ---- for callers in any thread

    def render(
        self,
        html: str,
        width: int,
        height: int,
        *,
        scale: float = 1.0,
        javascript: bool = False,
        mobile: bool = False,
        allow_images: bool = True,
        timeout_s: float = 10.0,
        max_chars: int = MAX_CHARS,
    ) -> Rendered:
        """A picture of untrusted HTML, `width` × `height` *image* pixels.

        The layout viewport is ceil(width / scale) × ceil(height / scale) CSS pixels. The picture shows its top left
        corner unscrolled: what overflows is cut, what falls short shows the page's background (white if it has none),
        and nothing is stretched.

        Args:
            scale: device pixels per CSS pixel.
            javascript: run the page's scripts until load and SETTLE_MS of virtual time after it.
            mobile: honour ``<meta name="viewport">`` as a phone does.
            allow_images: show ``data:`` pictures; off, also CSS, SVG and video pictures stay out.
            timeout_s: seconds that the page may take, alone in a browser if need be.
            max_chars: longest HTML taken.

        Raises:
            ModelFailure: ``render_timeout``, ``render_crash``, ``render_memory``, ``render_too_long``,
                ``render_navigated``, ``render_failed``, ``render_script``.
            InfrastructureFailure: ``browser_missing``, ``browser_unavailable``, ``browser_broken``, ``browser_closed``.
        """

        async def picture(page: HermeticPage) -> tuple[bytes, tuple[int, int], dict[str, int], str]:
            png = await page.screenshot()
            return png, await page.content_size(), dict(sorted(page.blocked.items())), page.browser_version

        png, content, blocked, version = self.visit(
            html,
            width,
            height,
            picture,
            scale=scale,
            javascript=javascript,
            mobile=mobile,
            allow_images=allow_images,
            timeout_s=timeout_s,
            max_chars=max_chars,
        )
        evidence = {**renderer_identity(), "browser": version, "content_size": list(content), "blocked": blocked}
        return Rendered(png, content, blocked, evidence)

    def visit(
        self,
        html: str,
        width: int,
        height: int,
        work: Callable[[HermeticPage], Awaitable[T]],
        *,
        scale: float = 1.0,
        javascript: bool = False,
        mobile: bool = False,
        allow_images: bool = True,
        timeout_s: float = 10.0,
        max_chars: int = MAX_CHARS,
    ) -> T:
        """Like `render`, but for more than one picture: awaits ``work(page)`` in the pool's loop and returns its
        result.

        `work` may be called again from the start with a new page when the browser ended under it, so it must not
        change anything outside; `timeout_s` covers loading and work. Its own exceptions come out as they are, those of
        Playwright count as the page's fault.
        """
        if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and 0.1 <= scale <= 8):
            raise ValueError(f"cannot render {width}x{height} at scale {scale}")
        if len(html) > max_chars:
            raise ModelFailure("render_too_long", f"the page has {len(html)} characters, more than {max_chars}")
        kind = PageKind(math.ceil(width / scale), math.ceil(height / scale), scale, javascript, mobile)
        return self._call(self._visit(_Job(html, width, height, kind, allow_images, timeout_s, work)))

    def run(self, work: Callable[[], Awaitable[T]], timeout_s: float) -> T:
        """Awaits ``work()`` in the pool's loop, where `session` can be used; cancelled after `timeout_s` seconds.

        Raises InfrastructureFailure('browser_timeout') then.
        """

        async def limited() -> T:
            try:
                return await asyncio.wait_for(work(), timeout_s)
            except TimeoutError as error:
                raise InfrastructureFailure("browser_timeout", f"not done within {timeout_s} s") from error

        return self._call(limited())

    @contextlib.asynccontextmanager
    async def session(
        self,
        width: int,
        height: int,
        *,
        scale: float = 1.0,
        mobile: bool = False,
        route: Callable[[Route], Awaitable[None]] | None = None,
        timeout_s: float = 10.0,
    ) -> AsyncIterator[Page]:
        """A fresh Playwright page for *trusted* content, in a browser that no untrusted page enters. Use it within
        `run`.

        `width` × `height` is the viewport in *CSS* pixels. The clock stands at EPOCH until ``page.clock.run_for``
        advances it, randomness is seeded, and every request goes to `route` (or is refused when there is none).

        Raises InfrastructureFailure('browser_died') when the browser ends meanwhile.
        """
        from playwright.async_api import Error

        async with self._sessions:
            browser = await self._running("_trusted")
            context = None
            browser.busy += 1
            try:
                context = await browser.browser.new_context(
                    viewport={"width": width, "height": height},
                    device_scale_factor=scale,
                    is_mobile=mobile,
                    has_touch=mobile,
                    **COMMON_OPTIONS,
                )
                context.set_default_timeout(timeout_s * 1000)
                # One parameter only: Playwright hands a handler with two the request as well.
                await context.route("**/*", (lambda r: route(r)) if route else (lambda r: r.abort()))
                page = await context.new_page()
                await fix_time_and_chance(page)
                yield page
            except Error as error:
                if browser.gone.done() or not browser.browser.is_connected():
                    raise InfrastructureFailure(
                        "browser_died", f"the browser ended under a session: {error}"
                    ) from error
                raise
            finally:
                browser.busy -= 1
                if context is not None and not browser.gone.done():
                    await self._close_or_end(context.close(), browser)

    @property
    def version(self) -> str:
        """The browser's version; starts it if need be."""

        async def version() -> str:
            return (await self._running("_untrusted")).browser.version

        return self._call(version())

    def close(self) -> None:
        """Ends browsers, driver and thread. Renders under way raise InfrastructureFailure('browser_closed')."""
        with self._lock:
            if self._closed or self._owner != os.getpid():
                return
            self._closed = True
            if self._thread is None:
                return
            for call in list(self._calls):
                call.cancel()
        with contextlib.suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(4 * CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        self._guard.close()
        processes.remove_folder(self._folder)

    def __enter__(self) -> BrowserPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- between the threads

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            self._start()
        except BaseException:
            coroutine.close()
            raise
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise InfrastructureFailure("browser_closed", "the browser pool was closed meanwhile") from error
        except BaseException:
            future.cancel()  # an interrupted caller takes its work along
            raise

    def _start(self) -> None:
        with self._lock:
            if self._owner != os.getpid():
                raise RuntimeError(
                    "a browser pool cannot be used in a forked child; make a new one, or use shared_pool()"
                )
            if self._closed:
                raise InfrastructureFailure("browser_closed", "the browser pool is closed")
            if self._thread is None:
                self._guard = processes.Guard()
                self._folder = tempfile.mkdtemp(prefix="guiloop-browser-")
                self._guard.add(folder=self._folder)
                self._loop = asyncio.new_event_loop()
                ready = threading.Event()
                self._thread = threading.Thread(target=self._serve, args=(ready,), name="browser-pool", daemon=True)
                self._thread.start()
                ready.wait()
            elif threading.current_thread() is self._thread:
                raise RuntimeError("the pool's own loop must not wait for the pool")

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._starting = asyncio.Lock()
        self._gate = _Gate(self._pages)
        self._sessions = asyncio.Semaphore(self._pages)
        self._loop.call_soon(ready.set)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    # ---- in the loop's thread: one visit

    async def _visit(self, job: _Job[T]) -> T:
        interruptions = 0
        while interruptions < INTERRUPTIONS:
            await self._renew_if_worn()
            async with self._gate.shared():
                try:
                    return await self._attempt(await self._running("_untrusted"), job)
                except _Interrupted:
                    interruptions += 1
                except _Suspected:
                    break
        async with self._gate.alone():
            await self._end("_untrusted")
            browser = await self._running("_untrusted")
            try:
                return await self._attempt(browser, job)
            except _Suspected as suspicion:
                raise ModelFailure(suspicion.code, suspicion.message, timeout_s=job.timeout_s) from suspicion
            except _Interrupted as error:
                raise InfrastructureFailure("browser_died", "the browser ended twice under a page") from error

    async def _attempt(self, browser: _Browser, job: _Job[T]) -> T:
        """Loads a page and does the job's work with it. Raises _Interrupted, _Suspected, or what the work raises."""
        from playwright.async_api import Error

        browser.busy += 1
        browser.visits += 1
        try:
            page = await self._page(browser, job.kind)
            task = asyncio.ensure_future(self._work(page, job))
            crash = asyncio.ensure_future(page.crashed.wait())
            try:
                ends: set[asyncio.Future[Any]] = {task, crash, browser.gone}
                await asyncio.wait(ends, timeout=job.timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if task.done() and not task.cancelled() and not isinstance(task.exception(), Error):
                    self._put_back(browser, page, usable=task.exception() is None)
                    return task.result()
                # A page that crashes fails the call that is waiting for it before its event arrives, a dead browser
                # too.
                if task.done():
                    await asyncio.wait(ends - {task}, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
                if browser.gone.done():
                    reason = browser.gone.result()
                    if reason == "guilty":
                        raise _Interrupted
                    raise _Suspected(reason, _EXPLAINED[reason])
                code = "render_crash" if crash.done() else "render_failed" if task.done() else "render_timeout"
                message = f"the page cannot be shown: {task.exception()}" if task.done() else _EXPLAINED[code]
                browser.end("guilty")
                raise _Suspected(code, message)
            finally:
                crash.cancel()
                task.cancel()
                await asyncio.wait({task}, timeout=CLOSE_S)
                if task.done() and not task.cancelled():
                    task.exception()  # read, so that asyncio does not report it as lost
        finally:
            browser.busy -= 1

    async def _work(self, page: HermeticPage, job: _Job[T]) -> T:
        await page.load(job.html, job.width, job.height, job.allow_images)
        return await job.work(page)

    async def _page(self, browser: _Browser, kind: PageKind) -> HermeticPage:
        """An idle page of this kind, else a new one, for which idle pages of other kinds make room."""
        for page in browser.idle:
            if page.kind == kind:
                browser.idle.remove(page)
                return page
        if len(browser.idle) + browser.busy > self._pages and browser.idle:
            await self._close_or_end(browser.idle.pop(0).close(), browser)
        return await self._bounded(open_page(browser.browser, kind), browser)

    def _put_back(self, browser: _Browser, page: HermeticPage, *, usable: bool) -> None:
        # A page whose scripts ran is never used again; without scripts, a navigation leaves nothing behind.
        if usable and not page.kind.javascript and page.uses < USES_PER_PAGE:
            browser.idle.append(page)
        else:
            closing = asyncio.ensure_future(self._close_or_end(page.close(), browser))
            self._closing.add(closing)  # the loop itself holds tasks weakly
            closing.add_done_callback(self._closing.discard)

    async def _bounded(self, opening: Coroutine[Any, Any, T], browser: _Browser) -> T:
        """Awaits something that a sound browser does at once; ends the browser when it does not."""
        from playwright.async_api import Error

        try:
            return await asyncio.wait_for(opening, OPEN_S)
        except (Error, TimeoutError) as error:
            browser.end("render_failed")
            raise _Interrupted from error

    async def _close_or_end(self, closing: Coroutine[Any, Any, None], browser: _Browser) -> None:
        from playwright.async_api import Error

        try:
            await asyncio.wait_for(closing, CLOSE_S)
        except (Error, TimeoutError):
            browser.end("guilty")

    # ---- in the loop's thread: browsers

    async def _renew_if_worn(self) -> None:
        """A browser that has shown many pages is replaced while nobody uses it, which bounds its memory."""
        if self._untrusted is not None and self._untrusted.visits >= VISITS_PER_BROWSER:
            async with self._gate.alone():
                if self._untrusted is not None and self._untrusted.visits >= VISITS_PER_BROWSER:
                    await self._end("_untrusted")

    async def _running(self, role: str) -> _Browser:
        """The browser of a role (``_untrusted`` or ``_trusted``), started when there is none."""
        async with self._starting:
            browser: _Browser | None = getattr(self, role)
            if browser is not None and not browser.gone.done():
                return browser
            if browser is not None:
                await self._end(role)
            browser = await self._launch()
            setattr(self, role, browser)
            return browser

    async def _end(self, role: str) -> None:
        browser: _Browser | None = getattr(self, role)
        if browser is None:
            return
        setattr(self, role, None)
        browser.end("guilty")
        if browser.watch is not None:
            browser.watch.cancel()
        # The driver still has to notice, and removes the profile then; it may also be waiting for a flooded pipe.
        with contextlib.suppress(Exception):
            await asyncio.wait_for(browser.browser.close(), CLOSE_S)
        self._guard.remove(kill=browser.pid, folder=browser.profile)
        if browser.profile:
            processes.remove_folder(browser.profile)

    async def _launch(self) -> _Browser:
        """Starts a browser and checks that it renders, with the bundled fonts. One more try with a new driver."""
        executable = find_browser().path
        environment: dict[str, str | float | bool] = {
            **{
                key: value
                for key, value in os.environ.items()
                if not key.startswith(("FONTCONFIG_", "FC_", "FREETYPE_"))
            },
            "FONTCONFIG_FILE": str(fontconfig_file(Path(self._folder))),
            "TMPDIR": self._folder,
            "LANGUAGE": "en_US",
        }
        for trial in (1, 2):
            try:
                driver = await self._running_driver()
                browser = await asyncio.wait_for(
                    driver.chromium.launch(
                        executable_path=executable,
                        args=list(LAUNCH_ARGUMENTS),
                        chromium_sandbox=self._sandbox,
                        env=environment,
                        artifacts_dir=self._folder,
                        timeout=LAUNCH_S * 1000,
                        handle_sigint=False,
                        handle_sigterm=False,
                        handle_sighup=False,
                    ),
                    LAUNCH_S + CLOSE_S,
                )
                return await self._adopt(browser)
            except Failure:
                raise
            except Exception as error:
                await self._stop_driver()
                if trial == 2:
                    raise _unavailable(executable, error, self._sandbox) from error
        raise AssertionError("unreachable")

    async def _adopt(self, browser: Browser) -> _Browser:
        """Registers a browser's processes with the guard, watches it, and has it show a page."""
        cdp = await asyncio.wait_for(browser.new_browser_cdp_session(), OPEN_S)
        info = (await asyncio.wait_for(cdp.send("SystemInfo.getProcessInfo"), OPEN_S))["processInfo"]
        pid = next(process["id"] for process in info if process["type"] == "browser")
        driver_pid, profile = processes.parent_and_profile(pid)
        self._guard.add(kill=pid, awaits=driver_pid, folder=profile)
        gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        running = _Browser(browser, pid, driver_pid, profile, gone)
        browser.on("disconnected", lambda _: running.end("render_crash"))
        try:
            await asyncio.wait_for(check_browser(browser), OPEN_S)
        except BaseException:
            running.end("guilty")
            raise
        running.memory_limit = processes.resident_bytes(processes.tree(pid)) + self._memory_mb * 2**20
        running.watch = asyncio.ensure_future(running.watch_memory())
        return running

    # ---- in the loop's thread: Playwright's driver

    async def _running_driver(self) -> Playwright:
        if self._driver is None:
            from playwright.async_api import async_playwright

            self._driver = await asyncio.wait_for(async_playwright().start(), LAUNCH_S)
        return self._driver

    async def _stop_driver(self) -> None:
        """Ends both browsers and the driver, by force if it does not go."""
        processes_of_driver = {b.driver_pid for b in (self._untrusted, self._trusted) if b is not None}
        for role in ("_untrusted", "_trusted"):
            await self._end(role)
        driver, self._driver = self._driver, None
        if driver is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(driver.stop(), CLOSE_S)
        for pid in processes_of_driver:
            processes.kill_tree(pid)
            self._guard.remove(awaits=pid)

    async def _shut_down(self) -> None:
        await self._stop_driver()


def _sandbox_setting() -> bool:
    chosen = os.environ.get(SANDBOX_VARIABLE, "")
    if chosen in ("on", "off"):
        return chosen == "on"
    if chosen:
        raise InvalidInput("environment", SANDBOX_VARIABLE, "on or off", chosen, f"export {SANDBOX_VARIABLE}=on")
    return not hasattr(os, "geteuid") or os.geteuid() != 0


def _unavailable(executable: Path, error: Exception, sandbox: bool) -> InfrastructureFailure:
    text = str(error)
    hint = (
        f" If the log names the sandbox: allow user namespaces on this machine, or set {SANDBOX_VARIABLE}=off"
        if sandbox
        else ""
    )
    return InfrastructureFailure(
        "browser_unavailable", f"{executable} does not start: {text[-1500:]}{hint}", stderr=text[-4000:]
    )


_shared: BrowserPool | None = None
_shared_lock = threading.Lock()


def shared_pool() -> BrowserPool:
    """The process's own pool; a forked child gets a new one. Closed at exit."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = BrowserPool()
        return _shared


def _close_shared() -> None:
    if _shared is not None:
        _shared.close()


def _forget_shared() -> None:
    global _shared, _shared_lock
    _shared, _shared_lock = None, threading.Lock()


atexit.register(_close_shared)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_shared)
