"""A partition that lost items in a crash, and what an operator can do about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from querator import Client
from tests.cli.command_line import TERMINAL, CommandLine
from tests.daemons import Daemon


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that was killed with ten items in the file and five in the journal. Then the journal was emptied."""
    with Daemon(tmp_path) as daemon:
        cli = CommandLine(tmp_path, daemon.socket)
        cli.ok("queues", "create", "orders")
        cli.ok("queue", "produce", "orders", "--lines", input="".join(f"{number}\n" for number in range(10)))
        cli.ok("partitions", "reload", "orders", "--all")
        cli.ok("queue", "produce", "orders", "--lines", input="".join(f"{number}\n" for number in range(5)))
        daemon.kill()
        for segment in (daemon.data / "partitions" / "journal").glob("*.seg"):
            segment.write_bytes(b"")
        daemon.start()
        yield daemon


@pytest.fixture
def cli(daemon: Daemon, tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, daemon.socket)


def state(client: Client) -> str:
    (partition,) = client.list_partitions("orders")
    return partition.state


def test_it_is_in_error_until_the_loss_is_accepted(cli: CommandLine, daemon: Daemon) -> None:
    (shown,) = cli.json("partitions", "list", "orders")
    assert shown["state"] == "error"
    assert "cannot be trusted" in shown["reason"]

    told = cli("partitions", "accept-loss", "orders", "0", "--dry-run").output
    assert "would give up what partition 0 of 'orders' lost" in told
    assert "records after 1 may be missing.\n" in told
    assert "10 items and every record up to 1" in told
    assert state(daemon.client) == "error"

    refused = cli("partitions", "accept-loss", "orders", "0")
    assert refused.exit_code == 2
    assert "--yes" in refused.output
    wrong = cli("partitions", "accept-loss", "orders", "0", input="other\n", terminals=TERMINAL)
    assert wrong.exit_code != 0
    assert state(daemon.client) == "error"

    done = json.loads(cli.ok("partitions", "accept-loss", "orders", "0", "--yes", "-o", "json"))
    assert (done["ready"], done["leased"], done["scheduled"]) == (10, 0, 0)
    assert state(daemon.client) == "available"
    aside = {path.name.split(".")[-2] for path in (daemon.data / "partitions" / "quarantine").iterdir()}
    assert {"seg", "duckdb"} <= aside
    assert "loss accepted" in daemon.output
    cli.ok("queue", "produce", "orders", "--lines", input="again\n")
    (partition,) = daemon.client.list_partitions("orders")
    assert partition.total == 11


def test_a_partition_that_lost_nothing_is_refused(cli: CommandLine) -> None:
    cli.ok("queues", "create", "whole")
    refused = cli("partitions", "accept-loss", "whole", "0", "--yes")
    assert refused.exit_code == 1
    assert "loss cannot be accepted; partition '0' of queue 'whole' has lost nothing" in refused.output
