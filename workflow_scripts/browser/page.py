"""One hermetic page: untrusted HTML in, pixels and facts out.

The document is served by interception from a made-up origin (never from ``file://``, whose pages can read local files)
under a content security policy; whatever else it asks for is refused and counted. Time stands still for it: CSS and SVG
animations show their end where they have one, else their start; with scripts on, `Date`, timers and `Math.random` are
fixed. Left out: what happens when a page never ends, crashes or eats memory; `pool` sees to that.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import struct
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..failures import InfrastructureFailure, ModelFailure
from ..identity import bytes_digest

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, CDPSession, Page, Route

ORIGIN = "http://page.invalid/"
EPOCH = "2025-01-01T12:00:00Z"
"""What a page's clock shows when its script starts."""
_BEFORE_EPOCH = "2025-01-01T11:00:00Z"
SETTLE_MS = 1000
"""Virtual milliseconds of timers that run, with scripts on, between the load event and the picture."""

_POINTER_SETTINGS = "primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4"

# No browser may reach the network (dead proxy, loopback included), show a GPU's, a CPU's or a screen's own rounding, or
# advance pictures by wall time.
LAUNCH_ARGUMENTS = (
    "--proxy-server=http://127.0.0.1:9",
    "--proxy-bypass-list=<-loopback>",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--js-flags=--max-old-space-size=256",
    "--disable-gpu",
    "--disable-3d-apis",
    "--disable-skia-runtime-opts",
    "--disable-lcd-text",
    "--disable-checker-imaging",
    "--disable-partial-raster",
    "--disable-image-animation-resync",
    "--disable-smooth-scrolling",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--mute-audio",
    # 2: pictures stay at their first frame. The rest of this flag is Playwright's own, which this one replaces.
    f"--blink-settings={_POINTER_SETTINGS},imageAnimationPolicy=2",
)

FIXED_RANDOM = """(() => {
  let a = 0x9e3779b9;
  const next = () => {                                            // mulberry32
    a = (a + 0x6d2b79f5) | 0; let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t; return ((t ^ (t >>> 14)) >>> 0) / 4294967296; };
  Math.random = next;
  Crypto.prototype.getRandomValues = function (v) {
    const b = new Uint8Array(v.buffer, v.byteOffset, v.byteLength);
    for (let i = 0; i < b.length; i++) b[i] = next() * 256; return v; };
})();"""

# What Playwright's clock leaves to the wall time that passed before its pause; this runs after the clock's own script.
_FIXED_FRAMES = """(() => {
  const start = Date.now();
  performance.now = () => Date.now() - start;
  window.requestAnimationFrame = call => setTimeout(() => call(performance.now()), 16);
  window.cancelAnimationFrame = id => clearTimeout(id);
})();"""

# Runs in an isolated world. A page can name a form "fonts" and so shadow document.fonts there as well, hence the
# functions and getters are taken from the prototypes.
_AWAIT_LOAD = """
  const D = Document.prototype, own = (p, n) => Object.getOwnPropertyDescriptor(p, n);
  if (own(D, 'readyState').get.call(document) !== 'complete') await new Promise(done => addEventListener('load', done));
"""
_LOADED = f"async () => {{{_AWAIT_LOAD}}}"

_PREPARE = (
    f"async () => {{{_AWAIT_LOAD}"
    """
  const all = s => D.querySelectorAll.call(document, s);
  await own(D, 'fonts').get.call(document).ready;
  for (const a of D.getAnimations.call(document)) {
    const end = a.effect ? a.effect.getComputedTiming().endTime : 0;
    try { Number.isFinite(end) ? a.finish() : a.cancel(); } catch { a.cancel(); } }
  for (const s of all('svg')) if (s instanceof SVGSVGElement) {
    SVGSVGElement.prototype.pauseAnimations.call(s); SVGSVGElement.prototype.setCurrentTime.call(s, 0); }
  const sheet = new CSSStyleSheet(), focused = own(D, 'activeElement').get.call(document);
  // An unfilled progress bar moves for ever.
  sheet.replaceSync('* { caret-color: transparent !important } progress:indeterminate { appearance: none !important }');
  if (focused instanceof HTMLElement)                             // only this beats an inline style with !important
    own(HTMLElement.prototype, 'style').get.call(focused).setProperty('caret-color', 'transparent', 'important');
  const sheets = own(D, 'adoptedStyleSheets');
  sheets.set.call(document, [...sheets.get.call(document), sheet]);
}"""
)

_RESTYLE = """css => {
  const sheets = Object.getOwnPropertyDescriptor(Document.prototype, 'adoptedStyleSheets'), key = 'guiloopSheet';
  const rest = [...sheets.get.call(document)].filter(s => s !== globalThis[key]);
  if (css) { globalThis[key] = new CSSStyleSheet(); globalThis[key].replaceSync(css); rest.push(globalThis[key]); }
  sheets.set.call(document, rest);
}"""


def content_security_policy(javascript: bool, allow_images: bool) -> str:
    """The policy a document is served under: inline style, ``data:`` fonts and (if allowed) pictures, nothing else."""
    script = "script-src 'unsafe-inline'; " if javascript else ""
    images = "data:" if allow_images else "'none'"
    sandbox = "sandbox allow-scripts allow-modals" if javascript else "sandbox"
    return (
        f"default-src 'none'; {script}style-src 'unsafe-inline'; img-src {images}; font-src data:; form-action 'none'; "
        f"base-uri 'none'; webrtc 'block'; {sandbox}"
    )


@dataclass(frozen=True)
class PageKind:
    """What a browser context is made for; pages of one kind can be used one after the other.

    Attributes:
        width, height: viewport in CSS pixels.
        scale: device pixels per CSS pixel.
        javascript: whether the page's scripts run.
        mobile: whether ``<meta name="viewport">`` counts and a page without it is laid out 980 wide, as on a phone.
    """

    width: int
    height: int
    scale: float
    javascript: bool
    mobile: bool

    def context_options(self) -> dict[str, Any]:
        """Arguments of Playwright's ``new_context``."""
        return dict(
            viewport={"width": self.width, "height": self.height},
            device_scale_factor=self.scale,
            is_mobile=self.mobile,
            has_touch=self.mobile,
            java_script_enabled=self.javascript,
            offline=True,
            **COMMON_OPTIONS,
        )


COMMON_OPTIONS: dict[str, Any] = {
    "accept_downloads": False,
    "service_workers": "block",
    "locale": "en-US",
    "timezone_id": "UTC",
    "reduced_motion": "reduce",
    "color_scheme": "light",
}


class HermeticPage:
    """A page that holds one untrusted document. Its scripts, if it had any, have stopped when a caller gets it.

    Attributes:
        width, height: size of a screenshot in pixels.
        blocked: how many requests were refused, by kind (``navigation``, ``image``, ``fetch`` …).
        uses: how many documents it has held.
    """

    def __init__(self, kind: PageKind, context: BrowserContext, page: Page, cdp: CDPSession, crashed: asyncio.Event):
        self.kind = kind
        self.width, self.height = kind.width, kind.height
        self.blocked: Counter[str] = Counter()
        self.uses = 0
        self.crashed = crashed
        self._context, self._page, self._cdp = context, page, cdp
        self._url = ""
        self._document: bytes | None = None
        self._policy = ""
        self._world: int | None = None
        self._frame = ""

    @property
    def browser_version(self) -> str:
        """Version of the browser it is in, e.g. ``156.0.8078.114``."""
        browser = self._context.browser
        return browser.version if browser else ""

    async def load(self, html: str, width: int, height: int, allow_images: bool) -> None:
        """Shows `html`; screenshots will be `width` × `height` pixels. Raises ModelFailure('render_navigated')."""
        self.uses += 1
        self.width, self.height = width, height
        self.blocked = Counter()
        self._world = None
        self._document = html.encode("utf-8", "replace")
        # Depends on the content alone, and the content cannot name it: a link to it would show as visited.
        self._url = ORIGIN + bytes_digest(self._document)
        self._policy = content_security_policy(self.kind.javascript, allow_images)
        # Playwright would wait for ever for the load event of a page that tries to leave before it.
        await self._page.goto(self._url, wait_until="commit", timeout=0)
        if self.kind.javascript:
            await self.evaluate(_LOADED)
            await self._settle()
        await self.evaluate(_PREPARE)
        self._check_url()

    async def screenshot(self, *, fast: bool = False, height: int | None = None) -> bytes:
        """The page's top left `width` × `height` pixels as an RGB PNG; what overflows is cut.

        `fast` takes a quicker encoder and yields a bigger file of the same pixels. A `height` (CSS pixels, only at
        scale 1) beyond the viewport's shows that much of the document at an unchanged layout viewport.
        """
        options: dict[str, Any] = {"format": "png", "optimizeForSpeed": fast}
        if height is not None and height > self.height:
            clip = {"x": 0, "y": 0, "width": self.width, "height": height, "scale": 1}
            options |= {"captureBeyondViewport": True, "clip": clip}
            shot = await self._cdp.send("Page.captureScreenshot", options)
            self._check_url()
            return base64.b64decode(shot["data"])
        shot = await self._cdp.send("Page.captureScreenshot", options)
        self._check_url()
        png = base64.b64decode(shot["data"])
        size = png_size(png)
        if size == (self.width, self.height):
            return png
        return _cropped(png, size, (self.width, self.height))

    async def evaluate(self, function: str, argument: Any = None) -> Any:
        """Calls a JavaScript function with a JSON-able argument in an isolated world; returns its (awaited) JSON-able
        result.

        The page's scripts cannot change what the function sees as built-ins, but names of its elements do shadow
        properties of `document`: take functions from prototypes
        (``Document.prototype.querySelectorAll.call(document)``). Raises ModelFailure('render_script') when the function
        throws.
        """
        if self._world is None:
            world = await self._cdp.send("Page.createIsolatedWorld", {"frameId": self._frame, "worldName": "guiloop"})
            self._world = world["executionContextId"]
        answer = await self._cdp.send(
            "Runtime.evaluate",
            {
                "expression": f"({function})({json.dumps(argument)})",
                "contextId": self._world,
                "awaitPromise": True,
                "returnByValue": True,
            },
        )
        if "exceptionDetails" in answer:
            thrown = answer["exceptionDetails"].get("exception", {}).get("description", "")
            raise ModelFailure("render_script", f"reading the page failed: {thrown[:300]}")
        return answer["result"].get("value")

    async def restyle(self, css: str | None) -> None:
        """Adds a style sheet after the page's own, replacing the one added before; None takes it away."""
        await self.evaluate(_RESTYLE, css)

    async def content_size(self) -> tuple[int, int]:
        """Width and height of the whole document in CSS pixels, which may exceed the viewport's."""
        size = (await self._cdp.send("Page.getLayoutMetrics"))["cssContentSize"]
        return round(size["width"]), round(size["height"])

    async def close(self) -> None:
        """Closes the page's context."""
        await self._context.close()

    async def _fonts(self, selector: str) -> list[str]:
        """The font family that the first glyphs of each matching element really came from."""
        await self._cdp.send("DOM.enable")
        await self._cdp.send("CSS.enable")
        root = (await self._cdp.send("DOM.getDocument"))["root"]["nodeId"]
        nodes = await self._cdp.send("DOM.querySelectorAll", {"nodeId": root, "selector": selector})
        families = []
        for node in nodes["nodeIds"]:
            fonts = (await self._cdp.send("CSS.getPlatformFontsForNode", {"nodeId": node}))["fonts"]
            families.append(fonts[0]["familyName"] if fonts else "")
        return families

    async def _settle(self) -> None:
        from playwright.async_api import Error

        # An exception of the page's own timers comes out here; to a page it is no more than a line in the console.
        with contextlib.suppress(Error):
            await self._page.clock.run_for(SETTLE_MS)
        await self._cdp.send("Emulation.setScriptExecutionDisabled", {"value": True})

    def _check_url(self) -> None:
        if self._page.url.split("#")[0] != self._url:
            raise ModelFailure("render_navigated", "the page changed its own address")

    async def _answer(self, route: Route) -> None:
        request = route.request
        if request.url.split("#")[0] == self._url and self._document is not None and request.is_navigation_request():
            body, self._document = self._document, None
            headers = {"content-type": "text/html; charset=utf-8", "content-security-policy": self._policy}
            await route.fulfill(body=body, headers=headers)
        elif request.is_navigation_request():
            self.blocked["navigation"] += 1
            await route.fulfill(status=204)  # the page stays where it is
        else:
            self.blocked[request.resource_type] += 1
            await route.abort()


async def open_page(browser: Browser, kind: PageKind) -> HermeticPage:
    """A new page of a kind in a context of its own (thus a renderer process of its own)."""
    context = await browser.new_context(**kind.context_options())
    page = await context.new_page()
    crashed = asyncio.Event()
    page.on("crash", lambda _: crashed.set())
    context.on("page", lambda popup: asyncio.ensure_future(popup.close()))
    cdp = await context.new_cdp_session(page)
    hermetic = HermeticPage(kind, context, page, cdp, crashed)
    hermetic._frame = (await cdp.send("Page.getFrameTree"))["frameTree"]["frame"]["id"]
    await context.route("**/*", hermetic._answer)
    if kind.scale != 1:
        # Without an override of its own, this session's screenshots have one pixel per CSS pixel.
        metrics = {"width": kind.width, "height": kind.height, "deviceScaleFactor": kind.scale, "mobile": kind.mobile}
        await cdp.send("Emulation.setDeviceMetricsOverride", metrics)
    # The document timeline stands still, closed shadow trees and marquees included; _PREPARE then moves what has an
    # end.
    await cdp.send("Animation.enable")
    await cdp.send("Animation.setPlaybackRate", {"playbackRate": 0})
    if kind.javascript:
        await fix_time_and_chance(page)
    return hermetic


_EXPECTED_FONTS = {
    "sans-serif": "Liberation Sans",
    "serif": "Liberation Serif",
    "monospace": "Liberation Mono",
    "Roboto": "Liberation Sans",
}


async def check_browser(browser: Browser) -> None:
    """Has a freshly started browser show a page. Raises InfrastructureFailure: ``browser_broken``, ``fonts_missing``.

    Only because this went well may a later failure be blamed on a page.
    """
    page = await open_page(browser, PageKind(64, 64, 1.0, javascript=False, mobile=False))
    families = list(_EXPECTED_FONTS)
    await page.load("".join(f"<p style='font-family:{name}'>a</p>" for name in families), 64, 64, allow_images=False)
    await page.screenshot()
    if sys.platform == "linux":
        found = dict(zip(families, await page._fonts("p"), strict=True))
        if found != _EXPECTED_FONTS:
            raise InfrastructureFailure(
                "fonts_missing",
                f"the browser does not use the bundled fonts but {found}; one inside a snap or a container cannot read "
                "them: set GUILOOP_BROWSER to another Chromium",
            )
    await page.close()


async def fix_time_and_chance(page: Page) -> None:
    """Stops a page's clock at EPOCH until ``page.clock.run_for`` advances it, and seeds its scripts' randomness."""
    await page.add_init_script(FIXED_RANDOM)
    # The clock runs between these two calls, and cannot be paused at a moment that it has passed.
    await page.clock.install(time=_BEFORE_EPOCH)
    await page.clock.pause_at(EPOCH)
    await page.add_init_script(_FIXED_FRAMES)


def png_size(png: bytes) -> tuple[int, int]:
    """Width and height from a PNG's header. Raises InfrastructureFailure('browser_broken') for other bytes."""
    if len(png) < 24 or png[:8] != b"\x89PNG\r\n\x1a\n":
        raise InfrastructureFailure("browser_broken", "the browser's screenshot is no PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def _cropped(png: bytes, size: tuple[int, int], wanted: tuple[int, int]) -> bytes:
    """The top left part of a PNG; needed where `scale` does not divide the size."""
    import io

    from PIL import Image

    from ..records import png_bytes

    if size[0] < wanted[0] or size[1] < wanted[1]:
        raise InfrastructureFailure("browser_broken", f"the screenshot is {size[0]}x{size[1]}, expected {wanted}")
    with Image.open(io.BytesIO(png)) as image:
        return png_bytes(image.convert("RGB").crop((0, 0, *wanted)))
