"""Hostile pages: each ends in time with a picture or a model's failure, reaches nobody and harms no other page."""

from __future__ import annotations

import contextlib
import io
import threading
from pathlib import Path

import pytest
from PIL import Image

from workflow_scripts.browser.pool import BrowserPool
from workflow_scripts.failures import ModelFailure

from .conftest import ORDINARY, Honeypot

TIMEOUT_S = 0.8
SIZE = (320, 240)
BENIGN = ORDINARY[: ORDINARY.index("<div class")]

DEADLY = {
    "endless loop at load": "<script>while(1);</script>",
    "endless loop after load": "x<script>setTimeout(()=>{while(1);},5)</script>",
    "endless alerts": "<script>while(1)alert(1)</script>",
    "document.write forever": "<script>for(;;)document.write('<p>x')</script>",
    "memory by arrays": "<script>const a=[];for(;;)a.push(new Array(1e6).fill(1.5))</script>",
    "memory by buffers": "<script>const a=[];for(;;)a.push(new Uint8Array(5e7).fill(1))</script>",
    "forking frames": "<body><script>const s='<body><script>'+document.currentScript.text+'<\\/script>';"
    "for(const i of [1,2]){const f=document.createElement('iframe');f.srcdoc=s;document.body.append(f)}</script>x",
    "endless microtasks": "<script>(function f(){Promise.resolve().then(f)})()</script>",
}
SURVIVED = {
    "alerts": "<script>for(let i=0;i<50;i++)alert(i)</script>",
    "windows": "<script>for(let i=0;i<30;i++)window.open('about:blank')</script>",
    "meta refresh": "<meta http-equiv=refresh content='0;url=http://a.test/'>x",
    "leaving at load": "x<script>location='http://a.test/'</script>",
    "reloading": "x<script>setInterval(()=>location.reload(),1)</script>",
    "download": "<a href='data:application/zip,x' download=x.zip></a><script>document.links[0].click()</script>x",
    "giant canvas": "<canvas id=c width=30000 height=30000></canvas><script>c.getContext('2d').fill()</script>",
    "frames": "<body><script>for(let i=0;i<50;i++){const f=document.createElement('iframe');"
    "f.srcdoc='<iframe srcdoc=x>';document.body.append(f)}</script>x",
    "workers": "x<script>for(let i=0;i<60;i++)try{new Worker('data:text/javascript,for(;;);')}catch{}</script>",
    "timers with errors": "x<script>setInterval(()=>{throw new Error('mine')},1)</script>",
    "no built-ins": "x<script>delete window.document;Document.prototype.getAnimations=null;Object=null</script>",
    "nested deep": "<div>" * 10_000 + "x",
    "odd characters": "\x00\ud800\ufffe<p>x\u202e",
}
HEAVY_WITHOUT_SCRIPT = {
    "100k nodes": "<i>x</i>" * 100_000,
    "huge blur": "<style>div{position:absolute;inset:0;backdrop-filter:blur(900px);filter:blur(900px)}</style>"
    + "<div>x" * 30,
    "nested deep": "<b><table><tr><td>" * 10_000,
    "huge sizes": "<p style='width:1e9px;height:1e9px;background:linear-gradient(red,blue);box-shadow:0 0 9e3px'>",
    "huge table": "<table><td colspan=1000 rowspan=65534>" + "<td>" * 5000,
}


@pytest.fixture(scope="module")
def benign(pool: BrowserPool) -> bytes:
    return pool.render(BENIGN, *SIZE).png


@pytest.mark.parametrize("name", DEADLY)
def test_a_deadly_page_fails_and_the_next_renders(pool: BrowserPool, benign: bytes, name: str) -> None:
    with pytest.raises(ModelFailure) as caught:
        pool.render(DEADLY[name], *SIZE, javascript=True, timeout_s=TIMEOUT_S)
    assert caught.value.code in ("render_timeout", "render_memory", "render_crash")
    assert pool.render(BENIGN, *SIZE).png == benign


@pytest.mark.parametrize("name", SURVIVED)
def test_a_nuisance_is_shown(pool: BrowserPool, benign: bytes, name: str) -> None:
    first = pool.render(SURVIVED[name], *SIZE, javascript=True).png
    assert pool.render(SURVIVED[name], *SIZE, javascript=True).png == first
    assert pool.render(BENIGN, *SIZE).png == benign


@pytest.mark.parametrize("name", HEAVY_WITHOUT_SCRIPT)
def test_a_heavy_page_ends(pool: BrowserPool, benign: bytes, name: str) -> None:
    """As a picture or as the model's failure, whichever this machine's speed makes it."""
    with contextlib.suppress(ModelFailure):
        pool.render(HEAVY_WITHOUT_SCRIPT[name], *SIZE, timeout_s=1)
    assert pool.render(BENIGN, *SIZE).png == benign


def test_without_scripts_script_attacks_are_ordinary_pages(pool: BrowserPool) -> None:
    for html in (*DEADLY.values(), *SURVIVED.values()):
        pool.render(html, *SIZE)


@pytest.mark.parametrize("javascript", [False, True])
def test_nothing_is_fetched(pool: BrowserPool, honeypot: Honeypot, javascript: bool) -> None:
    there = f"http://127.0.0.1:{honeypot.port}/"
    html = f"""<!doctype html><base href={there}><link rel=stylesheet href={there}>
    <link rel=preload as=image href={there}>
    <link rel=prefetch href={there}><link rel=dns-prefetch href={there}><link rel=preconnect href={there}>
    <link rel=icon href={there}><style>@import url({there}b.css);@font-face{{font-family:x;src:url({there}x.woff)}}
    p{{font-family:x;background:url({there}bg)}}</style><img src={there}i srcset="{there}j 2x">
    <iframe src={there}></iframe><object data={there}></object><embed src={there}><audio src={there}></audio>
    <video src={there} poster={there} autoplay></video><svg><image href={there} /><use href={there}#a /></svg>
    <script src={there}></script><form action={there}><input name=a></form><p>x
    <meta http-equiv=refresh content="0;url={there}">
    <script>
    const t = '{there}', quiet = f => {{ try {{ const r = f(); r && r.catch && r.catch(() => 0) }} catch {{}} }};
    quiet(() => fetch(t)); quiet(() => {{ const x = new XMLHttpRequest(); x.open('GET', t); x.send() }});
    quiet(() => navigator.sendBeacon(t, 'x')); quiet(() => new WebSocket(t.replace('http', 'ws')));
    quiet(() => new EventSource(t)); quiet(() => new Worker(t)); quiet(() => import(t)); quiet(() => open(t));
    quiet(() => {{ new Image().src = t }}); quiet(() => document.forms[0].submit());
    quiet(() => navigator.serviceWorker.register(t)); quiet(() => {{ setTimeout(() => location = t, 20) }});
    quiet(() => {{ const p = new RTCPeerConnection({{iceServers: [{{urls: 'stun:127.0.0.1:{honeypot.port}'}}]}});
      p.createDataChannel('x'); p.createOffer().then(o => p.setLocalDescription(o)) }});
    </script>"""
    pool.render(html, *SIZE, javascript=javascript)
    assert honeypot.hits == 0


def test_local_files_do_not_show(pool: BrowserPool, tmp_path: Path) -> None:
    Image.new("RGB", (50, 50), "red").save(tmp_path / "secret.png")
    (tmp_path / "secret.html").write_text("<body style='background:red'>")
    html = f"<iframe src='file://{tmp_path}/secret.html'></iframe><img src='file://{tmp_path}/secret.png'>"
    shown = Image.open(io.BytesIO(pool.render(html, *SIZE, javascript=True).png))
    assert (255, 0, 0) not in {color for _, color in shown.getcolors(1 << 20) or []}


def test_pages_beside_an_attacker_are_not_harmed(pool: BrowserPool, benign: bytes) -> None:
    results: list[bytes] = []
    codes: list[str] = []
    stop = threading.Event()

    def innocent() -> None:
        while not stop.is_set():
            results.append(pool.render(BENIGN, *SIZE).png)

    threads = [threading.Thread(target=innocent) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for name in ("endless loop at load", "memory by buffers"):
            with pytest.raises(ModelFailure) as caught:
                pool.render(DEADLY[name], *SIZE, javascript=True, timeout_s=TIMEOUT_S)
            codes.append(caught.value.code)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert codes[0] == "render_timeout"
    assert len(results) > 4
    assert set(results) == {benign}
