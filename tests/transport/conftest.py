"""Fronts to test against: each test that asks for one runs on the short way and on the ASGI way."""

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
    """A front on each way, as good as new."""
    running.service.reset()
    yield running
    running.hang_up()


@pytest.fixture(params=["hot", "asgi"])
def fresh_front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Front]:
    """For tests that stop it."""
    front = Front(request.param, tmp_path)
    yield front
    front.stop()
