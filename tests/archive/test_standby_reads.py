"""A standby answers reads from files that it keeps up to date, says how old its answers are, and changes nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from querator import Client
from querator.client import BulkClient
from querator.config import ArchiveConfig
from querator.daemon.archive import READS
from querator.daemon.http import routes_by_path
from querator.errors import RequestFailed, Unauthorized
from querator.wire import messages as m
from tests.archive.looking import shipped, shipper_of
from tests.daemons import Daemon, UnixConnection, querator
from tests.maintenance.house import SECOND, House
from tests.waiting import until

OpenHouse = Callable[..., House]

CHANGES: dict[str, dict[str, Any]] = {
    "queue.produce": {"queue_name": "q", "request_timeout": "1s", "items": [{"utf8": "x"}]},
    "queue.lease": {"queue_name": "q", "request_timeout": "1s", "client_id": "me", "batch_size": 1},
    "queue.clear": {"queue_name": "q", "queue": True},
    "queues.create": {"queue_name": "new", "lease_timeout": "1m", "expire_timeout": "1h", "requested_partitions": 1},
    "queues.delete": {"queue_name": "q"},
    "partitions.pause": {"queue_name": "q"},
    "partitions.compact": {"queue_name": "q"},
    "items.redrive": {"queue_name": "q"},
    "tokens.create": {"name": "x", "role": "viewer"},
    "bulk/items.produce?queue_name=q&request_id=r": {},
}


# -- two processes


class Pair:
    def __init__(self, directory: Path) -> None:
        config = directory / "querator.toml"
        settings = 'interval = "50ms"\nheartbeat = "300ms"'
        config.write_text(f'[archive]\nurl = "file://{directory / "archive"}"\n{settings}\n')
        self.owner = self._daemon(directory / "owner", config)
        self.standby = self._daemon(directory / "standby", config, "--standby")

    @staticmethod
    def _daemon(directory: Path, config: Path, *options: str) -> Daemon:
        directory.mkdir()
        return Daemon(directory, "--config", str(config), *options, http=True)

    def command(self, *words: str) -> Any:
        return querator(self.standby.directory, *words, "--socket", str(self.standby.socket))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.standby.kill()
    pair.owner.kill()


def headers_of(daemon: Daemon, path: str, body: str | None) -> dict[str, str]:
    with contextlib.closing(UnixConnection(daemon.socket)) as connection:
        connection.request("GET" if body is None else "POST", path, body)
        response = connection.getresponse()
        response.read()
        return {name.lower(): value for name, value in response.getheaders()}


def total(client: Client, queue: str = "q") -> int:
    if queue not in [one.queue_name for one in client.list_queues()]:
        return -1
    return sum(one.total for one in client.stats(queue).logical_queues[0].partitions)


def test_every_read_shows_what_the_owner_has(pair: Pair) -> None:
    owner, standby = pair.owner.client, pair.standby.client
    owner.create_queue("q", partitions=2)
    owner.produce("q", [b"one", b"two", b"three"])
    (leased,) = owner.lease("q", 1).items
    until(lambda: total(standby) == 3)
    until(lambda: sum(one.leased for one in standby.list_partitions("q")) == 1)
    assert [one.state for one in standby.list_partitions("q")] == ["available", "available"]
    assert standby.queue_info("q").requested_partitions == 2
    listed = [item for number in (0, 1) for item in standby.list_items("q", partition=number)]
    assert sorted(item.payload for item in listed) == [b"one", b"three", b"two"]
    assert standby.inspect_item("q", leased.id).state == "leased"
    assert standby.sql("q", "select count(*) as n from items").to_pylist() == [{"n": 3}]
    with BulkClient(f"unix:{pair.standby.socket}") as bulk:
        assert sum(batch.num_rows for number in (0, 1) for batch in bulk.scan("q", number)) == 3
    figures = standby.metrics()
    assert 'querator_items{partition="0",queue="q",state="ready"}' in figures
    assert "querator_standby_lag_seconds " in figures and "querator_standby_lag_objects 0.0" in figures
    assert "querator_archive_lag_seconds " in owner.metrics()
    for path in ("/console", "/console/queue?name=q", "/console/items?name=q"):
        status, page = page_of(pair.standby, path)
        assert status == 200 and ("three" in page or "items" not in path)
    owner.complete("q", [leased.id])
    owner.produce("q", [b"four", b"five"])
    until(lambda: standby.sql("q", "select count(*) as n from items").to_pylist() == [{"n": 4}])


def page_of(daemon: Daemon, path: str) -> tuple[int, str]:
    with contextlib.closing(UnixConnection(daemon.socket)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_answers_say_how_old_they_are_and_who_the_owner_is(pair: Pair) -> None:
    found = headers_of(pair.standby, "/v1/queues.list", "{}")
    assert f"(PID {pair.owner.process.pid})" in found["querator-standby-of"]
    assert 0 <= float(found["querator-lag-seconds"]) < 60
    assert "querator-standby-of" not in headers_of(pair.owner, "/v1/queues.list", "{}")
    done = pair.command("queues", "list")
    assert done.returncode == 0
    assert "answered by a standby" in done.stderr and f"PID {pair.owner.process.pid}" in done.stderr


def test_status_and_check_have_the_lag_as_numbers(pair: Pair) -> None:
    until(lambda: pair.standby.client.health()["lag"]["objects"] == 0)
    status = json.loads(pair.command("daemon", "status", "-o", "json").stdout)
    assert status["lag_seconds"] >= 0 and status["lag_objects"] == 0
    assert pair.command("check", "daemon", "--lag-warn", "50m", "--lag-critical", "1h").returncode == 0
    critical = pair.command("check", "daemon", "--lag-critical", "0s")
    assert critical.returncode == 2 and "lag=" in critical.stdout and "standby of " in critical.stdout
    of_owner = querator(pair.owner.directory, "check", "daemon", "--lag-warn", "0s", "--socket", str(pair.owner.socket))
    assert of_owner.returncode == 1 and "lag=" in of_owner.stdout and "lag_objects" not in of_owner.stdout


@pytest.fixture(scope="module")
def idle_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("idle"))
    pair.owner.client.create_queue("q")
    until(lambda: total(pair.standby.client) == 0)
    yield pair
    pair.standby.kill()
    pair.owner.kill()


@pytest.mark.parametrize("path", CHANGES)
def test_changes_are_refused_and_the_error_names_the_owner(idle_pair: Pair, path: str) -> None:
    status, reply = idle_pair.standby.call(f"/v1/{path}", CHANGES[path])
    assert status == RequestFailed.code
    assert "the owner of the archive is " in reply["message"] and str(idle_pair.owner.process.pid) in reply["message"]


def test_a_refused_change_says_where_to_make_it(idle_pair: Pair, tmp_path: Path) -> None:
    done = querator(tmp_path, "queue", "produce", "q", "x", "--socket", str(idle_pair.standby.socket))
    assert done.returncode == 1 and "hint: send it to the owner with --endpoint URL" in done.stderr
    assert "querator daemon promote" in done.stderr


def test_tokens_and_roles_apply_on_a_standby(pair: Pair) -> None:
    owner = pair.owner.client
    for queue in ("mine", "other"):
        owner.create_queue(queue)
    until(lambda: total(pair.standby.client, "other") == 0)
    made = owner.create_token("reader", "viewer", queues=["mine"])
    with pair.standby.connect(token=made.token) as reader:
        until(lambda: [one.queue_name for one in reader.list_queues()] == ["mine"])
        status, _ = pair.standby.call("/v1/queues.list", {}, address=pair.standby.http)
        assert status == Unauthorized.code
        owner.revoke_token("reader")
        until(lambda: not _admits(reader))


def _admits(client: Client) -> bool:
    try:
        client.list_queues()
    except Unauthorized:
        return False
    return True


def test_a_promoted_standby_answers_and_takes_changes(pair: Pair) -> None:
    pair.owner.client.create_queue("q")
    pair.owner.client.produce("q", [b"one"])
    until(lambda: total(pair.standby.client) == 1)
    until(lambda: "compared" not in pair.standby.client.health()["archive"][0])
    done = querator(pair.standby.directory, "daemon", "promote", "--data", str(pair.standby.data))
    assert done.returncode == 0, done.stderr
    client = pair.standby.client
    client.produce("q", [b"two"])
    assert total(client) == 2
    assert "querator-standby-of" not in headers_of(pair.standby, "/v1/queues.list", "{}")


# -- in this process


def test_a_standby_answers_every_call_that_changes_nothing() -> None:
    calls = routes_by_path().values()
    reads = {route.path for route in calls if not (route.audited or route.hot or route.refusal)}
    assert reads - {"sql"} == READS  # sql has an endpoint of its own


def caught_up(live: House, standby: House) -> None:
    """Returns when the answers of the standby have everything that is durable now."""
    shipped(live)
    number = shipper_of(live).ledger.number
    role = standby.service.archive.standby
    assert role is not None
    standby.until(lambda: role.standby.files.ledger.number >= number)
    role.reads._refreshed_at = 0.0
    standby.run(standby.service.archive.catch_up())


def test_nothing_comes_due_on_a_standby(live: House, standby: House) -> None:
    live.lease(1)
    live.produce("later", at=live.clock.now_us() + 60 * SECOND)
    caught_up(live, standby)
    standby.clock.set(live.clock.now_us() + 3_600 * SECOND)
    standby.registry.turns.loop.call_soon_threadsafe(standby.registry.logicals["q"].wake)
    caught_up(live, standby)
    partitions = standby.statuses()
    assert (sum(one.leased for one in partitions), sum(one.scheduled for one in partitions)) == (1, 1)
    live.advance("1h")
    caught_up(live, standby)
    partitions = standby.statuses()
    assert (sum(one.leased for one in partitions), sum(one.scheduled for one in partitions)) == (0, 0)


def test_queues_and_states_follow_the_owner(live: House, standby: House) -> None:
    live.create("new")
    live.ask("pause", 0)
    live.call("queues.update", m.QueueInfo(queue_name="q", requested_partitions=3, max_attempts=7))
    caught_up(live, standby)
    assert sorted(standby.registry.queues) == ["new", "q"]
    assert standby.call("queues.info", m.QueuesInfoRequest(queue_name="q")).max_attempts == 7
    assert standby.states() == ["paused", "available", "available"]
    live.call("queues.delete", m.QueuesDeleteRequest(queue_name="new"))
    live.ask("offline", 0, 1)
    caught_up(live, standby)
    assert list(standby.registry.queues) == ["q"]
    assert standby.states() == ["unavailable", "unavailable", "available"]
    assert sum(one.total for one in standby.statuses()) == 2


def test_a_file_that_the_owner_replaced_is_shown(live: House, standby: House, tmp_path: Path) -> None:
    assert live.job("backup", to=str(tmp_path / "backup")).state == "done"
    live.produce("gone", "gone too")
    caught_up(live, standby)
    assert sorted(standby.contents()) == ["1", "2", "gone", "gone too"]
    assert live.job("restore", from_=str(tmp_path / "backup")).state == "done"
    standby.until(lambda: _contents_after(live, standby) == ["1", "2"])


def _contents_after(live: House, standby: House) -> list[str]:
    caught_up(live, standby)
    return sorted(standby.contents())


def test_a_standby_that_was_down_when_the_owner_replaced_a_file_does_not_use_its_old_one(
    live: House, standby: House, open_house: OpenHouse, archive: ArchiveConfig, tmp_path: Path
) -> None:
    assert live.job("backup", to=str(tmp_path / "backup")).state == "done"
    live.produce("gone", "gone too")
    caught_up(live, standby)
    standby.close()
    assert live.job("restore", from_=str(tmp_path / "backup")).state == "done"
    live.until(lambda: not shipper_of(live).wanted_bases())
    live.produce("3")
    shipped(live)
    again = open_house("standby", archive=archive, standby=True)
    again.until(lambda: _contents_after(live, again) == ["1", "2", "3"])
