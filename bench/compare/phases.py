"""The phases of a cell, for each peer. Connections are already open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.compare import drive
from bench.compare.asyncio_clients import AsyncioClients
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
    """One cell: the peer, its address, and the size of the load."""

    peer: str
    batch: int
    clients: int
    path: str = ""
    port: int = 0
    server_pid: int = 0
    queues: tuple[str, ...] = ("bench",)
    """For Querator: the number of queues. Connection i uses queue i modulo this number."""
    dialect: str = "json"
    is_asyncio: bool = False
    """For Querator and Redis: use asyncio clients, instead of raw sockets with requests that are encoded in advance."""
    transaction: bool = False
    """For Redis: send a batch between MULTI and EXEC."""
    with_in_one: bool = False
    """Also measure leases that carry `complete_ids`."""
    produce_only: bool = False
    items: int = 0
    """With `produce_only`: the number of items. 0 means as many as the seconds allow."""
    parked: int = 0
    """For Querator: the number of leases that wait on the queue `parked` during the cell."""
    payload_bytes: int = 200
    seconds: float = 2.0
    """For a cell that runs alone: the seconds for each direction."""
    round_seconds: float = 0.8
    """The seconds for one round of producing and consuming."""
    fsync_file: str = ""
    """The file that counts the server's fsyncs. Empty if they are not counted."""


class Phases(NamedTuple):
    """Each function runs one phase on every connection and returns its seconds."""

    produce: RunPhase
    consume: RunPhase
    consume_in_one: RunPhase | None
    close: Callable[[], None]


def open_phases(spec: CellSpec) -> Phases:
    if spec.peer == "sqlite":
        workers = SqliteWorkers(Path(spec.path), spec.batch, spec.clients, spec.payload_bytes)
        return Phases(workers.produce, workers.consume, None, workers.close)
    if spec.is_asyncio:
        address = Address(path=spec.path, port=spec.port)
        clients = AsyncioClients(spec.peer, address, spec.batch, spec.clients, spec.payload_bytes)
        return Phases(clients.produce, clients.consume, None, clients.close)
    connections = [_connect(spec, index) for index in range(spec.clients)]

    def shares(phase: Phase) -> Iterator[Phase]:
        """The phase of each connection. Each queue has its own phase."""
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
