"""What a render is: exact size, cut overflow, bundled fonts, still animations, the same bytes every time."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from workflow_scripts.browser import fonts
from workflow_scripts.browser.find import find_browser
from workflow_scripts.browser.page import HermeticPage
from workflow_scripts.browser.pool import BrowserPool
from workflow_scripts.failures import ModelFailure
from workflow_scripts.identity import bytes_digest

from .conftest import ORDINARY


def picture(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png))


def colors(png: bytes) -> set[object]:
    return {color for _, color in picture(png).getcolors(1 << 20) or []}


def animated_gif() -> str:
    frames = [Image.new("RGB", (40, 40), color) for color in ("red", "lime", "blue")]
    stream = io.BytesIO()
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:], duration=30, loop=0)
    return "data:image/gif;base64," + base64.b64encode(stream.getvalue()).decode()


MOVING = {
    "gif": f"<img src='{animated_gif()}'>",
    "smil": "<svg width=200><rect width=9 height=9><animate attributeName=width to=200 dur=.3s repeatCount=indefinite>",
    "marquee": "<marquee scrollamount=30>moving</marquee>",
    "closed shadow": "<div><template shadowrootmode=closed><style>@keyframes m{to{translate:200px}}p{animation:m .7s "
    "infinite}</style><p>shadow</p></template></div>",
    "progress": "<progress></progress>",
    "media": "<audio controls></audio><video controls></video>",
    "shadowed names": "<form name=fonts></form><form name=getAnimations></form><img name=adoptedStyleSheets>"
    "<form name=querySelectorAll></form><form name=readyState></form><form name=activeElement></form>text",
    "caret": "<input autofocus style='font-size:60px;caret-color:red!important'>",
    "smooth scroll": "<style>html{scroll-behavior:smooth}</style><p style='height:3000px'>x<p id=z>end"
    "<script>z.scrollIntoView({behavior:'smooth'})</script>",
    "clock": "<p id=p><script>let n=0;setInterval(()=>p.textContent=++n+' '+Date.now()+' '+Math.random()+' '+"
    "performance.now()+crypto.getRandomValues(new Uint8Array(4)),90)</script>",
    "links": "<a href=''>self</a> <a href=/1>one</a> <a href='#'>top</a>",
}


def test_the_same_page_gives_the_same_bytes_in_every_browser(pool: BrowserPool) -> None:
    first = [pool.render(ORDINARY, 412, 915, javascript=js, scale=s).png for js in (False, True) for s in (1.0, 2.625)]
    with ThreadPoolExecutor(6) as threads:
        again = set(threads.map(lambda _: pool.render(ORDINARY, 412, 915).png, range(12)))
    assert again == {first[0]}
    with BrowserPool() as other:
        second = [
            other.render(ORDINARY, 412, 915, javascript=js, scale=s).png for js in (False, True) for s in (1.0, 2.625)
        ]
    assert first == second


@pytest.mark.parametrize("name", MOVING)
@pytest.mark.parametrize("javascript", [False, True])
def test_nothing_moves(pool: BrowserPool, name: str, javascript: bool) -> None:
    shots = {bytes_digest(pool.render(MOVING[name], 320, 240, javascript=javascript).png) for _ in range(3)}
    assert len(shots) == 1


def test_animations_show_their_end(pool: BrowserPool) -> None:
    faded = "<style>@keyframes f{from{opacity:0}}p{animation:f 9s 3s both}</style><p>text</p>"
    assert pool.render(faded, 200, 100).png == pool.render("<style></style><p>text</p>", 200, 100).png


@pytest.mark.parametrize("scale", [1.0, 2.625])
@pytest.mark.parametrize("size", [(412, 915), (1081, 333), (37, 2400)])
def test_the_picture_has_exactly_the_size_asked_for(pool: BrowserPool, size: tuple[int, int], scale: float) -> None:
    image = picture(pool.render(ORDINARY, *size, scale=scale).png)
    assert (image.size, image.mode) == (size, "RGB")


def test_overflow_is_cut_and_nothing_is_stretched(pool: BrowserPool) -> None:
    stripes = "background:linear-gradient(90deg,red 50px,lime 50px)"
    html = f"<body style='margin:0'><div style='width:900px;height:2000px;{stripes}'>"
    rendered = pool.render(html, 200, 100)
    image = picture(rendered.png)
    assert rendered.content_size == (900, 2000)
    assert [image.getpixel(at) for at in ((49, 0), (50, 99), (199, 99))] == [(255, 0, 0), (0, 255, 0), (0, 255, 0)]
    short = picture(pool.render("<body style='margin:0'><div style='height:10px;background:red'>", 200, 100).png)
    assert [short.getpixel((0, y)) for y in (9, 10)] == [(255, 0, 0), (255, 255, 255)]
    doubled = picture(pool.render(html, 200, 100, scale=2).png)
    assert [doubled.getpixel((x, 0)) for x in (99, 100)] == [(255, 0, 0), (0, 255, 0)]


def test_mobile_pages_obey_their_viewport(pool: BrowserPool) -> None:
    stripe = "<body style='margin:0'><div style='width:100px;height:9px;background:red'>"
    wide = picture(pool.render(stripe, 412, 50, mobile=True).png)
    fit = picture(pool.render(f"<meta name=viewport content='width=device-width'>{stripe}", 412, 50, mobile=True).png)
    assert fit.getpixel((99, 0)) == (255, 0, 0)
    assert wide.getpixel((60, 0)) == (255, 255, 255)


def test_pictures_can_be_forbidden(pool: BrowserPool) -> None:
    html = f"<img src='{animated_gif()}'><div style='width:50px;height:50px;background:url({animated_gif()})'></div>"
    assert (255, 0, 0) in colors(pool.render(html, 120, 120).png)
    assert (255, 0, 0) not in colors(pool.render(html, 120, 120, allow_images=False).png)


def test_scripts_run_only_when_asked(pool: BrowserPool) -> None:
    html = "<body style='margin:0'><script>document.body.style.background='red'</script><noscript>plain</noscript>"
    assert picture(pool.render(html, 20, 20, javascript=True).png).getpixel((19, 19)) == (255, 0, 0)
    assert picture(pool.render(html, 20, 20).png).getpixel((19, 19)) == (255, 255, 255)


def test_no_font_of_the_system_is_used(pool: BrowserPool, tmp_path: Path) -> None:
    """A machine whose font settings are empty gives the same pixels, with one page per named family."""
    families = ["Roboto", "system-ui", "Verdana", "DejaVu Serif", "Times", "Courier New", "Nimbus Sans", "no such font"]
    html = "<meta charset=utf-8>" + "".join(f"<p style='font-family:{f}'>{f} ★ ✓ é ☰</p>" for f in families)
    here = bytes_digest(pool.render(html, 300, 400).png)
    empty = tmp_path / "fonts.conf"
    empty.write_text("<fontconfig></fontconfig>")
    program = (
        "import sys; from workflow_scripts.browser.pool import shared_pool; from workflow_scripts.identity import *\n"
        "print(bytes_digest(shared_pool().render(sys.argv[1], 300, 400).png))"
    )
    environment = {**os.environ, "FONTCONFIG_FILE": str(empty), "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    environment["GUILOOP_BROWSER"] = str(find_browser().path)
    out = subprocess.run(
        [sys.executable, "-c", program, html], capture_output=True, text=True, env=environment, timeout=120, check=True
    )
    assert out.stdout.split() == [here]


def test_evidence_names_the_renderer(pool: BrowserPool) -> None:
    leaving = "<body style='height:70px;margin:0'><script>location = 'http://a.test/'</script>"
    assert pool.render(leaving, 50, 50, javascript=True).evidence == {
        **fonts.renderer_identity(),
        "browser": pool.version,
        "content_size": [50, 70],
        "blocked": {"navigation": 1},
    }


def test_long_pages_are_refused_and_bad_sizes_are_errors(pool: BrowserPool) -> None:
    with pytest.raises(ModelFailure) as caught:
        pool.render("x" * 1001, 10, 10, max_chars=1000)
    assert caught.value.code == "render_too_long"
    with pytest.raises(ValueError, match="0x10"):
        pool.render("x", 0, 10)


def test_a_visit_reads_and_restyles_the_page(pool: BrowserPool) -> None:
    """What a reward does: two fast pictures and a script that the page cannot lie to."""
    html = (
        "<form name=querySelectorAll></form><p>seen</p><script>Document.prototype.querySelectorAll = () => []</script>"
    )

    async def work(page: HermeticPage) -> tuple[bytes, bytes, bytes, str]:
        before = await page.screenshot(fast=True)
        await page.restyle("* { color: transparent !important }")
        without = await page.screenshot(fast=True)
        await page.restyle(None)
        after = await page.screenshot(fast=True)
        read = "() => [...Document.prototype.querySelectorAll.call(document, 'p')].map(p => p.textContent).join()"
        return before, without, after, await page.evaluate(read)

    for javascript in (False, True):
        before, without, after, text = pool.visit(html, 100, 60, work, javascript=javascript)
        assert before == after != without
        assert text == "seen"
        assert picture(without).getcolors() == [(6000, (255, 255, 255))]


def test_a_callers_own_error_comes_out(pool: BrowserPool) -> None:
    async def work(page: HermeticPage) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pool.visit("x", 10, 10, work)


def test_a_session_has_a_clock_of_its_own(pool: BrowserPool) -> None:
    html = "<p id=p>0</p><script>let n=0;setInterval(()=>{p.textContent=++n},100);document.title=Math.random()</script>"

    async def work() -> tuple[str, ...]:
        async def route(request) -> None:  # type: ignore[no-untyped-def]
            await request.fulfill(body=html, content_type="text/html")

        async with pool.session(160, 210, scale=2, route=route) as page:
            await page.goto("http://local.test/")
            before = await page.inner_text("p")
            await page.clock.run_for(1000)
            size = picture(await page.screenshot()).size
            return before, await page.inner_text("p"), await page.title(), str(size)

    first = pool.run(work, 30)
    assert first == pool.run(work, 30)
    assert (first[0], first[1], first[3]) == ("0", "10", "(320, 420)")
