"""The phases of each peer, on connections that are set up already: what a cell is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.compare import drive
from bench.compare.drive import Phase
from bench.compare.sqlite_threads import SqliteWorkers
from bench.compare.wire import Address, Connection
from bench.compare.wire_beanstalkd import BeanstalkdConnection
from bench.compare.wire_postgres import PostgresConnection
from bench.compare.wire_querator import QueratorConnection
from bench.compare.wire_rabbitmq import RabbitConnection
from bench.compare.wire_redis import RedisConnection

RunPhase = Callable[[Phase], float]


class CellSpec(msgspec.Struct, kw_only=True):
    """One cell: which peer, where, and how much of what."""

    peer: str
    batch: int
    clients: int
    path: str = ""
    port: int = 0
    server_pid: int = 0
    queues: tuple[str, ...] = ("bench",)
    """For Querator: connection i works on queue i modulo their number; items are shared out evenly."""
    dialect: str = "json"
    transaction: bool = False
    """For Redis: a batch goes in between MULTI and EXEC."""
    with_in_one: bool = False
    """Also measure leases that carry `complete_ids`."""
    produce_only: bool = False
    items: int = 0
    """With `produce_only`: how many; 0 for as many as the seconds allow."""
    parked: int = 0
    """For Querator: leases that wait on the queue `parked` meanwhile."""
    payload_bytes: int = 200
    seconds: float = 2.0
    """For a cell that runs by itself: per direction."""
    round_seconds: float = 0.8
    """For producing a number of items and consuming them."""
    fsync_file: str = ""
    """Where the server's fsyncs are counted; empty if they are not."""


class Phases(NamedTuple):
    """Each runs one phase on every connection and says how many seconds it took."""

    produce: RunPhase
    consume: RunPhase
    consume_in_one: RunPhase | None
    close: Callable[[], None]


def open_phases(spec: CellSpec) -> Phases:
    if spec.peer == "sqlite":
        workers = SqliteWorkers(Path(spec.path), spec.batch, spec.clients, spec.payload_bytes)
        return Phases(workers.produce, workers.consume, None, workers.close)
    connections = [_connect(spec, index) for index in range(spec.clients)]

    def shares(phase: Phase) -> Iterator[Phase]:
        """The phase that each connection takes part in: one per queue."""
        return cycle(phase.split(len(spec.queues))) if len(spec.queues) > 1 else cycle([phase])

    def produce(phase: Phase) -> float:
        pairs = zip(connections, shares(phase), strict=False)
        return drive.run([(each.sock, each.produce(share)) for each, share in pairs], phase)

    def consume(phase: Phase) -> float:
        pairs = zip(connections, shares(phase), strict=False)
        return drive.run([(each.sock, each.consume(share)) for each, share in pairs], phase)

    def consume_in_one(phase: Phase) -> float:
        for each in connections:
            if isinstance(each, QueratorConnection):
                each.in_one = True
        try:
            return consume(phase)
        finally:
            for each in connections:
                if isinstance(each, QueratorConnection):
                    each.in_one = False

    def close() -> None:
        for each in connections:
            each.close()

    return Phases(produce, consume, consume_in_one if spec.with_in_one else None, close)


def _connect(spec: CellSpec, index: int) -> Connection:
    address = Address(path=spec.path, port=spec.port)
    if spec.peer == "querator":
        return QueratorConnection(
            address,
            spec.queues[index % len(spec.queues)],
            spec.batch,
            index=index,
            payload_bytes=spec.payload_bytes,
            dialect=spec.dialect,
        )
    if spec.peer == "redis":
        return RedisConnection(
            address, spec.batch, index=index, payload_bytes=spec.payload_bytes, transaction=spec.transaction
        )
    kinds: dict[str, type[BeanstalkdConnection | PostgresConnection | RabbitConnection]] = {
        "beanstalkd": BeanstalkdConnection,
        "postgres": PostgresConnection,
        "rabbitmq": RabbitConnection,
    }
    return kinds[spec.peer](address, spec.batch, index=index, payload_bytes=spec.payload_bytes)
