"""A camera on the real browser, and a thread pool: two renders at a time fill two cores."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from workflow_scripts.browser.pool import BrowserPool
from workflow_scripts.coder.blocks import Camera


@pytest.fixture(scope="session")
def camera() -> Iterator[Camera]:
    with BrowserPool() as pool:
        yield Camera(pool)


@pytest.fixture(scope="session")
def at_once() -> Iterator[Callable[[Callable[..., Any], Iterable[Any]], list[Any]]]:
    """`map` over threads."""
    with ThreadPoolExecutor(4) as threads:
        yield lambda function, items: list(threads.map(function, items))
