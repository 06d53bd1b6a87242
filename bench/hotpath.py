"""The daemon's own cost of a request, from its bytes to the bytes of the reply, in CPU time or executed bytecodes.

    python -m bench.hotpath [--rounds 300] [--count] [--protobuf] [SHAPE ...]

Shapes are items x clients: 1x1 1x32 100x4. A third number spreads the clients over so many queues: 1x200x50. A fourth
is the number of partitions per queue: 1x32x1x8.

The real protocol, service, engine and store run in this process, without sockets and on files in memory, where an
fdatasync does nothing. So only Python's work is measured, which varies little on a busy machine. `--count` counts
bytecodes instead of microseconds. Their number is the same in every run, so a test checks it. Rounds of upkeep, which
come with time and not with requests, are not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import uvloop
from uvicorn.server import ServerState

from querator import limits
from querator.clock import SystemClock
from querator.config import daemon_config
from querator.daemon.server import DaemonServer, settle_garbage_collector
from querator.daemon.service import Service
from querator.wire import json, messages, protobuf

PAYLOAD = "x" * 200
_ID = re.compile(rb'"id":"([0-9A-Za-z]{27})"')
_MESSAGES = {
    "queues.create": messages.QueueInfo,
    "queue.produce": messages.QueueProduceRequest,
    "queue.lease": messages.QueueLeaseRequest,
    "queue.complete": messages.QueueCompleteRequest,
}
STEPS = ("produce", "lease", "complete", "in one")


class Client(asyncio.Transport):
    """A connection without a socket. It passes bytes to the protocol and collects the replies."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self._protocol = protocol
        self.replies: list[bytes] = []
        protocol.connection_made(self)

    def send(self, request: bytes) -> None:
        self._protocol.data_received(request)

    def reply(self) -> bytes:
        whole = b"".join(self.replies)
        self.replies.clear()
        assert whole.startswith(b"HTTP/1.1 200"), whole[:500]
        return whole

    def write(self, data: Any) -> None:
        self.replies.append(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Bench:
    def __init__(
        self,
        server: DaemonServer,
        batch: int,
        clients: int,
        queues: int = 1,
        partitions: int = 1,
        dialect: str = "json",
    ) -> None:
        config = server.config
        config.load()
        state = ServerState()
        state.default_headers = [(b"date", b"Thu, 01 Jan 2026 00:00:00 GMT")]
        make = config.http_protocol_class
        self._clients = [Client(make(config=config, server_state=state, app_state={})) for _ in range(clients)]  # type: ignore[call-arg]
        self._batch = batch
        self._queues = [f"bench-{number % queues}" for number in range(clients)]
        """The queue of each client."""
        self._partitions = partitions
        self._dialect = dialect
        self.token = ""
        """The token that every request carries, if any."""

    async def create_queues(self) -> None:
        settings = {"lease_timeout": "30m", "expire_timeout": "24h", "requested_partitions": self._partitions}
        client = self._clients[0]
        for queue in dict.fromkeys(self._queues):
            client.send(self._request("queues.create", queue, settings))
            while not client.replies:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            client.reply()

    async def step(self, requests: list[bytes]) -> list[bytes]:
        """Sends a request on every connection, and waits for all answers."""
        for client, request in zip(self._clients, requests, strict=True):
            client.send(request)
        while not all(client.replies for client in self._clients):  # noqa: ASYNC110 -- a turn of the loop is all we want
            await asyncio.sleep(0)
        return [client.reply() for client in self._clients]

    def produces(self) -> list[bytes]:
        items = [{"utf8": PAYLOAD}] * self._batch
        fields = {"request_timeout": "30s", "items": items}
        return [self._request("queue.produce", queue, fields) for queue in self._queues]

    def leases(self, completed: list[list[str]] | None = None) -> list[bytes]:
        wanted = {"batch_size": self._batch, "request_timeout": "30s"}
        brought = completed or [[] for _ in self._clients]
        return [
            self._request(
                "queue.lease",
                queue,
                {"client_id": f"bench-{number}", **wanted, **({"complete_ids": ids} if ids else {})},
            )
            for number, (queue, ids) in enumerate(zip(self._queues, brought, strict=True))
        ]

    def completes(self, replies: list[bytes]) -> list[bytes]:
        return [
            self._request("queue.complete", queue, {"request_timeout": "30s", "ids": self.ids(reply)})
            for queue, reply in zip(self._queues, replies, strict=True)
        ]

    def _request(self, call: str, queue: str, fields: dict[str, Any]) -> bytes:
        body = msgspec.json.encode({"queue_name": queue, **fields})
        if self._dialect == "protobuf":
            body = protobuf.encode(json.decode(_MESSAGES[call], body))
        head = f"POST /v1/{call} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/{self._dialect}\r\n"
        head += f"Accept: application/{self._dialect}\r\n" if self._dialect == "protobuf" else ""
        head += f"Authorization: Bearer {self.token}\r\n" if self.token else ""
        return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body

    async def rounds(self, rounds: int, meter: Meter) -> None:
        held: list[list[str]] | None = None
        for _ in range(rounds):
            held = await self.round(meter, held)

    async def round(self, meter: Meter, held: list[list[str]] | None) -> list[list[str]]:
        """Measures each step once. `held` are the items that the last round leased, and this one completes. Returns the
        items that this round leased.
        """
        await meter.measure("produce", self.step(self.produces()))
        leased = await meter.measure("lease", self.step(self.leases()))
        await meter.measure("complete", self.step(self.completes(leased)))
        await self.step(self.produces())
        if held is None:
            return list(map(self.ids, await self.step(self.leases())))
        return list(map(self.ids, await meter.measure("in one", self.step(self.leases(held)))))

    def ids(self, reply: bytes) -> list[str]:
        if self._dialect == "protobuf":
            body = reply.partition(b"\r\n\r\n")[2]
            return [item.id for item in protobuf.decode(messages.QueueLeaseResponse, body).items]
        return [found.decode() for found in _ID.findall(reply)]


class Meter:
    """Adds up the cost of each step. `read` returns the cost so far."""

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self.used = dict.fromkeys(STEPS, 0.0)
        self.times = dict.fromkeys(STEPS, 0)

    async def measure(self, name: str, step: Any) -> Any:
        before = self._read()
        result = await step
        self.used[name] += self._read() - before
        self.times[name] += 1
        return result

    def per(self, requests: int) -> dict[str, float]:
        return {name: self.used[name] / max(1, self.times[name]) / requests for name in STEPS}


class ByReference(Meter):
    """The processor time of each step, in units of `reference_work`, which runs before each step.

    Both are the least that was seen, since a busy machine only ever adds to some of them.
    """

    def __init__(self) -> None:
        super().__init__(time.thread_time)
        self._units: list[float] = []
        self._costs: dict[str, list[float]] = {name: [] for name in STEPS}

    async def measure(self, name: str, step: Any) -> Any:
        before = time.thread_time()
        reference_work()
        between = time.thread_time()
        result = await step
        self._units.append(between - before)
        self._costs[name].append(time.thread_time() - between)
        return result

    def per(self, requests: int) -> dict[str, float]:
        unit = min(self._units)
        return {name: min(costs) / unit / requests for name, costs in self._costs.items()}


def reference_work() -> int:
    """A fixed piece of work of the kinds that a request consists of: calls, objects, dictionaries and bytes."""
    found: dict[bytes, list[int]] = {}
    for number in range(100):
        key = b"%d" % (number % 10)
        found.setdefault(key, []).append(len(msgspec.json.encode({"id": number, "text": "x" * 20})))
    return sum(map(sum, found.values()))


class Bytecodes:
    """Counts the bytecodes of our package that this thread executes."""

    def __init__(self) -> None:
        self.executed = 0

    def __enter__(self) -> Bytecodes:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if "/querator/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._count

    def _count(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.executed += 1
        return self._count


async def measure(
    directory: Path,
    batch: int,
    clients: int,
    rounds: int,
    count: bool,
    token: bool,
    queues: int,
    partitions: int,
    dialect: str,
) -> dict[str, float]:
    """The cost of one request of each step, in microseconds of CPU or in bytecodes."""
    bytecodes = Bytecodes() if count else None
    meter = Meter(lambda: bytecodes.executed if bytecodes else time.thread_time() * 1e6)
    settings = {"token": token, "queues": queues, "partitions": partitions, "dialect": dialect}
    await measured(directory, batch, clients, rounds, meter, bytecodes, **settings)
    return meter.per(clients)


async def measured(
    directory: Path,
    batch: int,
    clients: int,
    rounds: int,
    meter: Meter,
    counting: contextlib.AbstractContextManager[object] | None = None,
    *,
    token: bool = False,
    queues: int = 1,
    partitions: int = 1,
    dialect: str = "json",
) -> None:
    """Runs the rounds on a new daemon, after a few that `meter` does not see."""
    # On a busy machine, or under valgrind, every disk looks slow, and a slow disk is written in a thread.
    limits.INLINE_WRITE_SECONDS_MAX = float("inf")
    config = daemon_config(data=directory, log_level="warning", environ={})
    service = Service(config, SystemClock())
    server = DaemonServer(config, service, service.registry.clock)
    await service.start()
    try:
        bench = Bench(server, batch, clients, queues, partitions, dialect)
        await bench.create_queues()
        if token:
            made = await service.registry.access.create("bench", "operator", ["ben*"], 0, "bench")
            bench.token = made.text
        await bench.rounds(5, Meter(time.process_time))
        # Neither background work nor the collector of cyclic garbage shall be part of a step.
        service.registry.upkeep.close()
        await service.registry.end_tasks()
        settle_garbage_collector()
        with counting or contextlib.nullcontext():
            await bench.rounds(rounds, meter)
    finally:
        await service.stop()


@contextlib.contextmanager
def in_memory() -> Iterator[Path]:
    """A temporary directory without a disk behind it, where the system has one: an fdatasync there does nothing."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="querator-bench-", dir=memory if memory.is_dir() else None) as scratch:
        yield Path(scratch)


def parse_shape(shape: str) -> tuple[int, int, int, int]:
    """Items per request, clients, queues and partitions per queue."""
    batch, clients, *more = map(int, shape.split("x"))
    queues, partitions = (*more, 1, 1)[:2]
    return batch, clients, queues, partitions


def run(
    batch: int,
    clients: int,
    rounds: int,
    count: bool,
    *,
    token: bool = False,
    queues: int = 1,
    partitions: int = 1,
    dialect: str = "json",
) -> dict[str, float]:
    with in_memory() as scratch, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure(scratch, batch, clients, rounds, count, token, queues, partitions, dialect))


def run_by_reference(batch: int, clients: int, rounds: int) -> dict[str, float]:
    """The processor time of a request of each step, in units of `reference_work`."""
    meter = ByReference()
    with in_memory() as scratch, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measured(scratch, batch, clients, rounds, meter))
    return meter.per(clients)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=["1x1", "1x32", "100x4", "1000x2"])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--count", action="store_true", help="bytecodes instead of microseconds")
    parser.add_argument("--protobuf", action="store_true", help="protobuf instead of JSON")
    options = parser.parse_args()
    dialect = "protobuf" if options.protobuf else "json"
    print(f"{'per request':10}", *(f"{name:>10}" for name in STEPS))
    for shape in options.shapes:
        batch, clients, queues, partitions = parse_shape(shape)
        rounds = max(5, options.rounds * 32 // (batch * clients + 31))
        costs = run(batch, clients, rounds, options.count, queues=queues, partitions=partitions, dialect=dialect)
        print(f"{shape:11}", *(f"{costs[name]:10,.1f}" for name in STEPS), flush=True)


if __name__ == "__main__":
    main()
