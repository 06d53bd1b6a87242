"""Clients as an application would write them: asyncio streams on uvloop, one connection per client.

Each client builds every request and parses every reply: JSON with orjson for Querator, RESP with hiredis for Redis.
Their cost is part of the result. The raw clients of `drive` show what the servers can do.
"""

from __future__ import annotations

import abc
import asyncio
import time
from itertools import cycle
from typing import Any

import hiredis
import orjson
import uvloop

from bench.compare.drive import Phase
from bench.compare.wire import TEMPLATES, Address, PeerError, payloads
from bench.compare.wire_redis import GROUP, STREAM

REPLY_BYTES_MAX = 1 << 24
"""A stream refuses a reply whose head is longer than this."""


class AsyncioClient(abc.ABC):
    """One connection, which runs one request after another."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def __init__(self, batch: int, index: int, payload_bytes: int) -> None:
        self.name = f"bench-{index}"
        seeds = range(index * TEMPLATES, (index + 1) * TEMPLATES)
        self.batches = cycle([payloads(batch, payload_bytes, seed) for seed in seeds])

    async def connect(self, address: Address) -> None:
        if address.path:
            connecting = asyncio.open_unix_connection(address.path, limit=REPLY_BYTES_MAX)
        else:
            connecting = asyncio.open_connection("127.0.0.1", address.port, limit=REPLY_BYTES_MAX)
        self.reader, self.writer = await connecting

    async def produce(self, phase: Phase) -> None:
        samples = phase.samples("produce")
        while phase.claim():
            began = time.perf_counter_ns()
            await self.produce_batch(next(self.batches))
            samples.append(time.perf_counter_ns() - began)

    async def consume(self, phase: Phase) -> None:
        leases, completes = phase.samples("lease"), phase.samples("complete")
        while count := phase.claim():
            began = time.perf_counter_ns()
            ids, partition = await self.lease(count)
            leases.append(time.perf_counter_ns() - began)
            phase.give_back(count - len(ids))
            if ids:
                began = time.perf_counter_ns()
                await self.complete(ids, partition)
                completes.append(time.perf_counter_ns() - began)

    @abc.abstractmethod
    async def produce_batch(self, items: list[bytes]) -> None: ...

    @abc.abstractmethod
    async def lease(self, count: int) -> tuple[list[Any], int]:
        """The ids of the leased items, and the partition that they came from."""

    @abc.abstractmethod
    async def complete(self, ids: list[Any], partition: int) -> None: ...


class QueratorClient(AsyncioClient):
    async def produce_batch(self, items: list[bytes]) -> None:
        listed = [{"utf8": item.decode()} for item in items]
        await self._call("produce", {"queue_name": "bench", "request_timeout": "30s", "items": listed})

    async def lease(self, count: int) -> tuple[list[Any], int]:
        request = {"queue_name": "bench", "batch_size": count, "client_id": self.name, "request_timeout": "30s"}
        reply = await self._call("lease", request)
        return [item["id"] for item in reply["items"]], reply.get("partition", 0)

    async def complete(self, ids: list[Any], partition: int) -> None:
        request = {"queue_name": "bench", "partition": partition, "request_timeout": "30s", "ids": ids}
        await self._call("complete", request)

    async def _call(self, verb: str, request: dict[str, Any]) -> Any:
        body = orjson.dumps(request)
        head = f"POST /v1/queue.{verb} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        reply_head = await self.reader.readuntil(b"\r\n\r\n")
        fields = dict(line.lower().split(b":", 1) for line in reply_head.split(b"\r\n")[1:] if line)
        body = await self.reader.readexactly(int(fields[b"content-length"]))
        if not reply_head.startswith(b"HTTP/1.1 200"):
            raise PeerError(body[:500])
        return orjson.loads(body)


class RedisClient(AsyncioClient):
    def __init__(self, batch: int, index: int, payload_bytes: int) -> None:
        super().__init__(batch, index, payload_bytes)
        self._parser = hiredis.Reader()

    async def produce_batch(self, items: list[bytes]) -> None:
        await self._call([(b"XADD", STREAM, b"*", b"p", item) for item in items])

    async def lease(self, count: int) -> tuple[list[Any], int]:
        command = (b"XREADGROUP", b"GROUP", GROUP, self.name, b"COUNT", count, b"STREAMS", STREAM, b">")
        (reply,) = await self._call([command])
        return [entry_id for entry_id, _ in reply[0][1]] if reply else [], 0

    async def complete(self, ids: list[Any], partition: int) -> None:
        await self._call([(b"XACK", STREAM, GROUP, *ids), (b"XDEL", STREAM, *ids)])

    async def _call(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        """Sends the commands in one write, and waits for all of their replies."""
        self.writer.write(b"".join(map(hiredis.pack_command, commands)))
        replies: list[Any] = []
        while len(replies) < len(commands):
            reply = self._parser.gets()
            if reply is False:
                data = await self.reader.read(REPLY_BYTES_MAX)
                if not data:
                    raise PeerError("Redis closed a connection")
                self._parser.feed(data)
            elif isinstance(reply, hiredis.ReplyError):
                raise PeerError(reply)
            else:
                replies.append(reply)
        return replies


CLIENTS: dict[str, type[AsyncioClient]] = {"querator": QueratorClient, "redis": RedisClient}


class AsyncioClients:
    """The clients of a cell. `produce` and `consume` run one phase and return its seconds."""

    def __init__(self, peer: str, address: Address, batch: int, clients: int, payload_bytes: int) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._clients = [CLIENTS[peer](batch, index, payload_bytes) for index in range(clients)]
        self._runner.run(self._connect(address))

    def produce(self, phase: Phase) -> float:
        return self._runner.run(self._timed("produce", phase))

    def consume(self, phase: Phase) -> float:
        return self._runner.run(self._timed("consume", phase))

    def close(self) -> None:
        for client in self._clients:
            client.writer.close()
        self._runner.close()

    async def _connect(self, address: Address) -> None:
        for client in self._clients:
            await client.connect(address)

    async def _timed(self, direction: str, phase: Phase) -> float:
        began = time.perf_counter()
        await asyncio.gather(*[getattr(client, direction)(phase) for client in self._clients])
        return time.perf_counter() - began
