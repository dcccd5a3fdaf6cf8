"""A real Chromium that opens pages from disk and notices every console message and every request to a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from workflow_scripts.browser.find import find_browser


@dataclass
class Visit:
    """A page, and what it should never have done."""

    page: Page
    root: Path
    faults: list[str] = field(default_factory=list)

    def open(self, relative: str) -> Page:
        """Opens ``results/report/…`` from disk."""
        self.page.goto(f"file://{self.root}/results/report/{relative}")
        return self.page


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(find_browser().path), args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def visiting(browser: Browser, root: Path, width: int = 1280, scheme: str = "light") -> Iterator[Visit]:
    """A fresh browser profile; at the end the test fails if anything was logged, thrown, asked or fetched."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    visit = Visit(context.new_page(), root)
    page = visit.page
    page.on("console", lambda message: visit.faults.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: visit.faults.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (visit.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("popup", lambda popup: visit.faults.append(f"popup: {popup.url}"))
    page.on("requestfailed", lambda request: visit.faults.append(f"missing: {request.url}"))
    page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else visit.faults.append(f"net: {r.url}"))
    yield visit
    context.close()
    assert visit.faults == []
