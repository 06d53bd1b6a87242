"""A daemon with TCP, and one browser for all tests of the console. Each test gets a page of its own.

Both end with this package: while Playwright runs, its event loop keeps other tests from running one of their own.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.browsing import CHROMIUM, ConsoleDaemon, Reader, launched

try:
    from playwright.sync_api import Browser
except ImportError:
    Browser = None  # type: ignore[assignment,misc]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if Browser is None or not shutil.which(CHROMIUM):
        pytest.skip("needs Chromium and Playwright: apt-get install chromium, pip install playwright")
    with launched() as browser:
        yield browser


@pytest.fixture(scope="package")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleDaemon]:
    daemon = ConsoleDaemon(tmp_path_factory.mktemp("console"))
    yield daemon
    daemon.stop()


@pytest.fixture
def reader(browser: Browser, daemon: ConsoleDaemon) -> Iterator[Reader]:
    reader = Reader(browser, daemon.address)
    yield reader
    reader.close()


@pytest.fixture
def queue(daemon: ConsoleDaemon) -> str:
    name = f"q-{uuid.uuid4().hex[:8]}"
    daemon.client.create_queue(name, partitions=2)
    return name


@pytest.fixture
def own_daemon(tmp_path: Path) -> Iterator[ConsoleDaemon]:
    """A daemon that the test may stop."""
    daemon = ConsoleDaemon(tmp_path)
    yield daemon
    daemon.stop()
