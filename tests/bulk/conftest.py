from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from querator.client.clients import Client
from tests.daemons import Daemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon"), http=True) as running:
        yield running


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> Iterator[Client]:
    with daemon.connect() as one:
        yield one


_names = itertools.count(1)


@pytest.fixture
def queue(client: Client) -> str:
    """A new queue with two partitions."""
    name = f"queue-{next(_names)}"
    client.create_queue(name, partitions=2)
    return name
