"""Fronts for tests. Each test runs twice: on the fast path and on the ASGI path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transport.front import Front


@pytest.fixture(scope="module", params=["hot", "asgi", "tls"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    front = Front(request.param, tmp_path_factory.mktemp("front"))
    yield front
    front.stop()


@pytest.fixture
def front(running: Front) -> Iterator[Front]:
    """A front without connections and recorded requests. The test runs on each path."""
    running.service.reset()
    yield running
    running.hang_up()


@pytest.fixture
def half_closing_front(front: Front) -> Front:
    """A front whose clients can end one direction of a connection."""
    if front.way == "tls":
        pytest.skip("TLS ends both directions at once")
    return front


@pytest.fixture(params=["hot", "asgi", "tls"])
def fresh_front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Front]:
    """A front that the test may stop."""
    front = Front(request.param, tmp_path)
    yield front
    front.stop()


@pytest.fixture
def tls_front(tmp_path: Path) -> Iterator[Front]:
    front = Front("tls", tmp_path)
    yield front
    front.stop()
