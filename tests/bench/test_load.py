"""The load generator against a fake daemon: every item comes out once, whatever the encoding and the reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.compare.asyncio_clients import AsyncioClients
from bench.compare.cell import run_cell
from bench.compare.drive import Phase, run
from bench.compare.phases import CellSpec
from bench.compare.wire import payloads
from bench.compare.wire_querator import QueratorConnection, is_whole_reply
from tests.bench.fake_daemon import FakeDaemon


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(tmp_path)
    yield fake
    fake.close()


@pytest.mark.parametrize("dialect", ["json", "protobuf"])
@pytest.mark.parametrize("in_one", [False, True])
def test_every_item_is_produced_leased_and_completed_once(daemon: FakeDaemon, dialect: str, in_one: bool) -> None:
    connections = [
        QueratorConnection(daemon.address, "q", 10, index=index, dialect=dialect, in_one=in_one) for index in range(3)
    ]
    inward, outward = Phase(120, 10), Phase(120, 10)
    run([(each.sock, each.produce(inward)) for each in connections])
    run([(each.sock, each.consume(outward)) for each in connections])
    assert len(daemon.completed) == 120
    assert not daemon.waiting
    assert not daemon.leased
    assert all(len(payload) == 200 for payload in daemon.completed)
    assert len(inward.latencies_ns["produce"]) == 12
    for each in connections:
        each.close()


def test_completing_with_the_lease_takes_one_request_per_batch(daemon: FakeDaemon) -> None:
    connection = QueratorConnection(daemon.address, "q", 10, in_one=True)
    run([(connection.sock, connection.produce(Phase(100, 10)))])
    run([(connection.sock, connection.consume(Phase(100, 10)))])
    assert daemon.requests["/v1/queue.lease"] == 10
    assert daemon.requests["/v1/queue.complete"] == 1
    connection.close()


def test_a_lease_that_brings_less_than_asked_for_loses_nothing(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path, short_leases=True)
    connection = QueratorConnection(daemon.address, "q", 10)
    run([(connection.sock, connection.produce(Phase(100, 10)))])
    run([(connection.sock, connection.consume(Phase(100, 10)))])
    assert len(daemon.completed) == 100
    connection.close()
    daemon.close()


def test_a_cell_measures_every_direction(daemon: FakeDaemon) -> None:
    spec = CellSpec(
        peer="querator",
        batch=5,
        clients=2,
        path=daemon.address.path,
        with_in_one=True,
        seconds=0.05,
        round_seconds=0.02,
    )
    result = run_cell(spec)
    assert result.in_one is not None
    assert result.inward.items == result.outward.items + result.in_one.items
    assert result.inward.latencies_us.keys() == {"produce"}
    assert result.outward.latencies_us.keys() == {"lease", "complete"}
    assert not daemon.waiting and not daemon.leased


def test_asyncio_clients_produce_lease_and_complete_every_item_once(daemon: FakeDaemon) -> None:
    clients = AsyncioClients("querator", daemon.address, batch=10, clients=3, payload_bytes=200)
    inward, outward = Phase(120, 10), Phase(120, 10)
    clients.produce(inward)
    clients.consume(outward)
    clients.close()
    assert len(daemon.completed) == 120
    assert not daemon.waiting and not daemon.leased
    assert len(inward.latencies_ns["produce"]) == len(outward.latencies_ns["complete"]) == 12


def test_filling_produces_exactly_what_was_asked_for(daemon: FakeDaemon) -> None:
    spec = CellSpec(peer="querator", batch=10, clients=2, path=daemon.address.path, produce_only=True, items=2_000)
    assert run_cell(spec).inward.items == 2_000
    assert len(daemon.waiting) == 2_000


def test_a_reply_is_whole_when_its_body_is_there() -> None:
    is_whole = is_whole_reply()
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
    assert [length for length in range(len(reply) + 1) if is_whole(reply[:length])] == [len(reply)]
    assert is_whole(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def test_payloads_differ_and_repeat_with_their_seed() -> None:
    made = payloads(50, 200, seed=1)
    assert len(set(made)) == 50
    assert made == payloads(50, 200, seed=1)
    assert made != payloads(50, 200, seed=2)
