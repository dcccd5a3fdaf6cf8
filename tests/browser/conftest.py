"""A pool for all browser tests, an ordinary page, and a server that notices whoever comes near it."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator

import pytest

from workflow_scripts.browser.pool import BrowserPool

ORDINARY = """<!doctype html><meta charset="utf-8"><style>
body { font-family: Roboto, sans-serif; margin: 0 } header { background: #3367d6; color: #fff; padding: 12px }
.card { border: 1px solid #ccc; border-radius: 8px; overflow: hidden; margin: 8px; padding: 8px }
.card { box-shadow: 0 1px 4px #0004 }
h1 { animation: in .5s both } @keyframes in { from { opacity: 0 } } .bar { width: 40px; animation: run 1s infinite }
@keyframes run { to { margin-left: 200px } }</style>
<header>Settings ★ ☰</header><h1>Network</h1><div class="bar">wait</div><input value="abc" autofocus>
<a href="#">Help</a> <i>italic</i> <tt>mono</tt>""" + "".join(
    f'<div class="card"><b>Row {i}</b><br>some text of row {i}</div>' for i in range(12)
)


@pytest.fixture(scope="session")
def pool() -> Iterator[BrowserPool]:
    with BrowserPool() as made:
        yield made


class Honeypot:
    """A TCP server on loopback that counts connections."""

    def __init__(self) -> None:
        self.hits = 0
        pot = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                pot.hits += 1

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def honeypot() -> Iterator[Honeypot]:
    pot = Honeypot()
    yield pot
    pot.close()
