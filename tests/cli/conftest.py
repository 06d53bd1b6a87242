"""All tests share one daemon. Every test has its own queues, home directory and command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from querator import Client
from tests.cli.command_line import CommandLine, fresh_name
from tests.daemons import Daemon


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon"), "--test-clock", http=True) as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Client:
    return daemon.client


@pytest.fixture
def cli(daemon: Daemon, tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, daemon.socket)


@pytest.fixture
def lonely(tmp_path: Path) -> CommandLine:
    """A command line without a daemon."""
    return CommandLine(tmp_path, tmp_path / "nobody.sock")


@pytest.fixture
def queue(client: Client) -> str:
    """A queue with one partition."""
    name = fresh_name()
    client.create_queue(name)
    return name


@pytest.fixture
def wide_queue(client: Client) -> str:
    """A queue with two partitions."""
    name = fresh_name()
    client.create_queue(name, partitions=2)
    return name
