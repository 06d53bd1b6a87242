"""querator queue leases and release, and where else the holder of an item is shown"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from querator import Client
from tests.cli.command_line import TERMINAL, CommandLine, fresh_name
from tests.cli.test_queue import totals
from tests.daemons import Daemon

MINUTE_US = 60_000_000


@pytest.fixture
def held(client: Client, wide_queue: str) -> str:
    """A queue with five items: ann has leased three, bob one, and one is ready."""
    client.produce(wide_queue, ["a", "b"])
    client.produce(wide_queue, ["c", "d", "e"])
    client.lease(wide_queue, 2, client_id="ann")
    client.advance_clock("10s")
    client.lease(wide_queue, 1, client_id="ann")
    client.lease(wide_queue, 1, client_id="bob's")
    return wide_queue


def test_leases_are_listed_by_holder(cli: CommandLine, client: Client, held: str) -> None:
    ann, bob = cli.json("queue", "leases", held)
    assert (ann["client_id"], ann["leased"], bob["client_id"], bob["leased"]) == ("ann", 3, "bob's", 1)
    leased = cli.json("items", "list", held, "--state", "leased")
    assert ann["since"] == min(one["leased_at"] for one in leased) < bob["since"]
    assert ann["next_deadline"] == min(one["lease_deadline"] for one in leased) < ann["last_deadline"]
    assert ann["last_deadline"] == bob["next_deadline"] == bob["last_deadline"]
    table = cli.ok("queue", "leases", held).splitlines()
    assert table[0].split() == ["CLIENT_ID", "TOKEN_NAME", "LEASED", "SINCE", "NEXT_DEADLINE", "LAST_DEADLINE"]
    assert cli.ok("queue", "leases", held, "-q").split() == ["ann", "bob's"]


def test_nobody_holds_anything(cli: CommandLine, queue: str) -> None:
    assert cli.json("queue", "leases", queue) == []
    assert f"nobody holds items of '{queue}'" in cli("queue", "leases", queue, terminals=TERMINAL).output


def test_items_say_who_holds_them(cli: CommandLine, client: Client, held: str) -> None:
    assert "CLIENT_ID" in cli.ok("items", "list", held, "--state", "leased").splitlines()[0]
    by_where = cli.json("items", "list", held, "--where", "client_id = 'ann'")
    assert {one["client_id"] for one in by_where} == {"ann"} and len(by_where) == 3
    shown = cli.json("items", "inspect", held, by_where[0]["id"])
    assert (shown["client_id"], shown["leased_at"]) == ("ann", by_where[0]["leased_at"])
    assert "ann" in cli.ok("items", "inspect", held, by_where[0]["id"])
    (free,) = cli.json("items", "list", held, "--state", "ready")
    assert (free["client_id"], free["leased_at"]) == (None, None)


def test_release_gives_all_items_of_a_client_back_without_an_attempt(
    cli: CommandLine, client: Client, held: str
) -> None:
    assert "would release 3 items" in cli("queue", "release", held, "--client", "ann", "--dry-run").stderr
    assert totals(client, held) == (1, 4, 0)
    released = cli.json("queue", "release", held, "--client", "ann")
    assert released == {"queue_name": held, "client_id": "ann", "released": 3}
    assert totals(client, held) == (4, 1, 0)
    assert {one["attempts"] for one in cli.json("items", "list", held, "--state", "ready")} == {0}
    (left,) = cli.json("queue", "leases", held)
    assert left["client_id"] == "bob's"
    assert cli.json("queue", "release", held, "--client", "bob's")["released"] == 1


def test_release_of_a_client_that_holds_nothing(cli: CommandLine, held: str) -> None:
    result = cli("queue", "release", held, "--client", "nobody")
    assert result.exit_code == 4
    assert f"hint: querator queue leases {held}" in result.stderr


def test_a_worker_that_stops_hands_items_back_without_an_attempt(cli: CommandLine, client: Client, queue: str) -> None:
    client.produce(queue, ["a", "b", "c"])
    command = "kill -TERM $PPID; while kill -0 $PPID && [ ! -e $HOME/go ]; do sleep 0.02; done"
    worker = cli.process("queue", "consume", queue, "--exec", command, "-n", "3", "--concurrency", "1")
    while totals(client, queue) != (2, 1, 0):
        assert worker.poll() is None
    Path(str(cli.environment["HOME"]), "go").touch()
    worker.wait(60)
    assert [one.attempts for one in client.list_items(queue)] == [0, 0]


def test_holders_survive_a_restart(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        name = fresh_name()
        daemon.client.create_queue(name, lease_timeout="1h")
        daemon.client.produce(name, ["a", "b"])
        daemon.client.lease(name, 2, client_id="ann")
        cli = CommandLine(tmp_path, daemon.socket)
        before = cli.json("queue", "leases", name)
        daemon.restart(signal.SIGKILL)
        assert cli.json("queue", "leases", name) == before
        assert before[0]["leased"] == 2
