"""Fronts for tests. Each test runs twice: on the fast path and on the ASGI path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transport.front import Front


@pytest.fixture(scope="module", params=["hot", "asgi"])
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


@pytest.fixture(params=["hot", "asgi"])
def fresh_front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Front]:
    """A front that the test may stop."""
    front = Front(request.param, tmp_path)
    yield front
    front.stop()
