"""All pages share one daemon. It has two storages, and listens on its socket and on TCP."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from querator import Client
from tests.daemons import Daemon

CONFIG = """
[[storages]]
name = "default"
directory = "{directory}/partitions"

[[storages]]
name = "archive"
directory = "{directory}/archive"
affinity = 0
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Served(Daemon):
    def __init__(self, directory: Path) -> None:
        self.config = directory / "querator.toml"
        self.config.write_text(CONFIG.format(directory=directory))
        super().__init__(directory, "--config", str(self.config), http=True)

    def empty(self) -> None:
        """Deletes the queues that an earlier page left."""
        for info in self.client.list_queues():
            self.client.delete_queue(info.queue_name, force=True)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("d")) as running:
        yield running


@pytest.fixture
def home() -> Iterator[Path]:
    """A home directory with a short path, because the path of a socket in it may have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="q") as directory:
        yield Path(directory)


@pytest.fixture
def client(served: Served) -> Client:
    return served.client
