"""`/v1/sql`: a SELECT over the open partitions of one queue. The rows are JSON, NDJSON, CSV or Arrow.

The query runs in a process of its own (`store/duck/sandbox.py`, docs/adr/0020), which gets the rows of this queue and
nothing else. This module has the endpoint, the worker processes, and the scans that feed them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

import msgspec
from starlette.types import Receive, Scope, Send

import querator
from querator import durations
from querator.daemon.bulk import scans
from querator.daemon.http import NOSNIFF, Calls, ClientGone, Refused, cut_off, hold_back, read_body, send_reply
from querator.daemon.queue import Logical, Partition
from querator.daemon.registry import Registry
from querator.daemon.store import ITEMS, Scan, schemas
from querator.errors import InvalidRequest, QueratorError, RequestFailed, RetryRequest
from querator.limits import (
    NS_PER_SECOND,
    SQL_HELD_BACK_BYTES,
    SQL_TIMEOUT_SECONDS,
    SQL_TIMEOUT_SECONDS_MAX,
    SQL_WORKER_IDLE_SECONDS,
    SQL_WORKERS_MAX,
)
from querator.wire import bulk_messages, content
from querator.wire.messages import SqlRequest

CONTENT_TYPES: Final = {
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "csv": "text/csv",
    "arrow": bulk_messages.ARROW_CONTENT_TYPE,
}
HEAD_BYTES: Final = 5
"""The head of a frame: a kind and a length (see `store/duck/sandbox.py`)."""


class Tables:
    """The tables of a query: the rows that the open partitions had when the query began."""

    def __init__(
        self, registry: Registry, logical: Logical, upto: dict[Partition, int], after: dict[Partition, int]
    ) -> None:
        self._registry = registry
        self._logical = logical
        self._upto = upto
        self._after = after
        """Where `items` begins in a partition of which the query sees only the latest rows."""

    @classmethod
    async def of(cls, registry: Registry, logical: Logical, latest: int = 0) -> Tables:
        live = [partition for partition in logical.partitions if partition.allows.storage]
        if not live:
            raise RetryRequest("partition not available; no partition of the queue is open, retry again")
        upto = await asyncio.gather(*(scans.flush(logical, partition) for partition in live))
        after: dict[Partition, int] = {}
        parts = -(-sum(one.counts.ready + one.counts.leased for one in live) // latest) if latest else 1
        if parts > 1:
            # Of each partition the last part, so that the parts together have about the wanted number of rows.
            ends = [scans.split(logical, one, ITEMS, end, parts) for one, end in zip(live, upto, strict=True)]
            for one, (_, bounds) in zip(live, await asyncio.gather(*ends), strict=True):
                after[one] = bounds[-2] if len(bounds) > 1 else 0
        return cls(registry, logical, dict(zip(live, upto, strict=True)), after)

    @property
    def left_out(self) -> list[int]:
        return [partition.number for partition in self._logical.partitions if partition not in self._upto]

    async def scan(self, table: str, columns: list[str]) -> AsyncIterator[bytes]:
        from querator.wire import arrow

        schema = arrow.chosen(schemas()[table], columns)
        for partition, upto in self._upto.items():
            after = self._after.get(partition, 0) if table == ITEMS else 0
            wanted = Scan(table, tuple(schema.names), after, upto)
            async for part in scans.slices(
                self._registry, self._logical, partition, wanted, lambda batch: arrow.encode_batches([batch], schema)
            ):
                yield part


class OneSlice:
    """The table of a query that filters one slice of a scan. It records the columns that the query needs."""

    def __init__(self, body: bytes = b"") -> None:
        self._body = body
        self.columns: list[str] = []

    async def scan(self, table: str, columns: list[str]) -> AsyncIterator[bytes]:
        self.columns = columns
        if self._body:
            yield self._body


class Worker:
    """A worker process. It runs one query at a time. A caller that abandons a query must `kill` the worker."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin is not None and process.stdout is not None
        self._to, self._from = process.stdin, process.stdout

    @classmethod
    async def start(cls) -> Worker:
        # The worker gets no environment, because ours may hold secrets, and its own session, so that Ctrl-C spares it.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "querator.daemon.store.duck.sandbox",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd="/",
            env={"PYTHONPATH": str(Path(querator.__file__).parent.parent), "LANG": os.environ.get("LANG", "C.UTF-8")},
            start_new_session=True,
        )
        return cls(process)

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def run(self, query: dict[str, object], tables: Tables | OneSlice) -> AsyncIterator[bytes]:
        """The pieces of the result as they arrive. `query` is a `sandbox.Query`."""
        await self._send(b"Q", msgspec.json.encode(query))
        open_scans: dict[bytes, AsyncIterator[bytes]] = {}
        while True:
            try:
                kind, body = await self._receive()
            except asyncio.IncompleteReadError:
                raise RequestFailed("query failed; its worker process has ended") from None
            if kind == b"R":
                yield body
            elif kind == b"O":
                opened = msgspec.json.decode(body)
                open_scans[str(opened["number"]).encode()] = tables.scan(opened["table"], opened["columns"])
            elif kind == b"N":
                await self._send(*await _next_slice(open_scans[body]))
            elif kind == b"C":
                open_scans.pop(body, None)
            elif kind == b"D":
                return
            elif kind == b"X":
                raise InvalidRequest(f"{'where' if query.get('where') else 'query'} is invalid; {body.decode()}")
            else:
                raise RetryRequest(body.decode())

    async def _send(self, kind: bytes, body: bytes) -> None:
        self._to.write(kind + len(body).to_bytes(4, "big"))
        self._to.write(body)
        with contextlib.suppress(ConnectionError):  # the next receive notices that the worker is gone
            await self._to.drain()

    async def _receive(self) -> tuple[bytes, bytes]:
        head = await self._from.readexactly(HEAD_BYTES)
        return head[:1], await self._from.readexactly(int.from_bytes(head[1:], "big"))


async def _next_slice(scan: AsyncIterator[bytes]) -> tuple[bytes, bytes]:
    try:
        return b"S", await anext(scan)
    except StopAsyncIteration:
        return b"Z", b""
    except QueratorError as error:
        return b"E", error.message.encode()


class Workers:
    """The worker processes. An idle worker is kept for a while, because starting one takes most of a second."""

    def __init__(self) -> None:
        self._free: list[Worker] = []
        self._places = asyncio.Semaphore(SQL_WORKERS_MAX)
        self._retirement: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[Worker]:
        async with self._places:
            worker = None
            while self._free and worker is None:
                worker = self._free.pop()
                worker = worker if worker.is_alive else None
            worker = worker or await Worker.start()
            try:
                yield worker
            except (InvalidRequest, RetryRequest):  # the worker still works
                self._keep(worker)
                raise
            except BaseException:
                worker.kill()
                raise
            self._keep(worker)

    def _keep(self, worker: Worker) -> None:
        self._free.append(worker)
        if self._retirement is not None:
            self._retirement.cancel()
        self._retirement = asyncio.get_running_loop().call_later(SQL_WORKER_IDLE_SECONDS, self.close)

    def close(self) -> None:
        """Ends the idle workers."""
        while self._free:
            self._free.pop().kill()


_workers: Final[WeakKeyDictionary[Registry, Workers]] = WeakKeyDictionary()


def workers_of(registry: Registry) -> Workers:
    """The worker processes of a daemon, which queries, scans and jobs share."""
    found = _workers.get(registry)
    if found is None:
        found = _workers[registry] = Workers()
    return found


class Filter:
    """A condition on the rows of a scan, evaluated slice by slice in a worker process.

    A scan uses a worker for one slice at a time, so that many scans can share few workers.
    """

    def __init__(self, workers: Workers, table: str, columns: list[str], where: str) -> None:
        self._workers = workers
        selected = ", ".join([f'"{name}"' for name in columns])
        query = f"SELECT {selected} FROM {table} WHERE ({where}\n)"  # `where` may end in a comment
        self._query = {"query": query, "format": "arrow", "limit": 0, "where": where}

    async def prepare(self) -> tuple[bytes, list[str]]:
        """Checks the condition. Returns the start of the Arrow stream and the columns that a slice must have."""
        empty = OneSlice()
        start, *_ = await self._run(empty)
        return start, empty.columns

    async def matching(self, slices: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The matching rows as parts of an Arrow stream, without its end. Each slice is an Arrow stream."""
        async for body in slices:
            _, *parts, _ = await self._run(OneSlice(body))
            for part in parts:
                yield part

    async def _run(self, one: OneSlice) -> list[bytes]:
        async with self._workers.one() as worker:
            try:
                async with asyncio.timeout(SQL_TIMEOUT_SECONDS):
                    return [piece async for piece in worker.run(self._query, one)]
            except TimeoutError:
                raise RequestFailed(f"where timed out; a part may take {SQL_TIMEOUT_SECONDS:g}s") from None


class SqlEndpoint:
    """The ASGI app of `/v1/sql`."""

    def __init__(self, calls: Calls, registry: Registry) -> None:
        self._calls = calls
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        codec, close = content.JSON, False
        answer = RowsAnswer(send)
        try:
            call = self._calls.understand(scope["method"], scope["path"], scope["headers"], scope["state"]["peer"])
            codec = call.codec
            body = await read_body(scope, receive, call.route.body_bytes_max, codec)
            if call.content_error is not None:
                raise call.content_error
            request = call.decode(SqlRequest, body)
            queues = call.route.queues_in(request)
            self._calls.access.admit(call.caller, scope["state"]["peer"], call.name, call.route.right, queues)
            await self._answer(request, receive, answer)
            return
        except ClientGone:
            return
        except Refused as refused:
            error, codec, close = refused.error, refused.codec, refused.close
        except QueratorError as raised:
            error = raised
        finally:
            self._calls.metrics.durations(scope["path"]).observe(time.perf_counter() - started)
        if answer.has_begun:
            await cut_off(send, error, tell=True)
        await hold_back(self._calls.access, scope, error)
        await send_reply(send, codec, error, close=close)

    async def _answer(self, request: SqlRequest, receive: Receive, answer: RowsAnswer) -> None:
        logical = self._registry.find(request.queue_name)
        form = request.format or "json"
        if form not in CONTENT_TYPES:
            raise InvalidRequest(f"format is invalid; '{form}' is none of {', '.join(CONTENT_TYPES)}")
        if request.limit < 0:
            raise InvalidRequest("limit is invalid; cannot be negative")
        if request.latest < 0:
            raise InvalidRequest("latest is invalid; cannot be negative")
        seconds = _timeout(request.timeout)
        work = asyncio.ensure_future(self._run(request, logical, answer, CONTENT_TYPES[form]))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((work, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            elif gone.done():
                raise ClientGone
            else:
                raise RequestFailed(f"query timed out; it was stopped after {seconds:g}s")
        finally:
            gone.cancel()
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError, QueratorError):
                await work

    async def _run(self, request: SqlRequest, logical: Logical, answer: RowsAnswer, content_type: str) -> None:
        async with workers_of(self._registry).one() as worker:
            tables = await Tables.of(self._registry, logical, request.latest)
            answer.describe(content_type, tables.left_out)
            query = {"query": request.query, "format": request.format or "json", "limit": request.limit}
            async for piece in worker.run(query, tables):
                await answer.add(piece)
        await answer.end()


class RowsAnswer:
    """Sends the rows. Holds the first ones back, so that an early error can still become an error status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self.has_begun = False

    def describe(self, content_type: str, left_out: list[int]) -> None:
        self._headers = [(b"content-type", content_type.encode()), NOSNIFF]
        if left_out:
            numbers = ",".join(map(str, left_out))
            self._headers.append((b"x-querator-partitions-left-out", numbers.encode()))

    async def add(self, piece: bytes) -> None:
        self._held.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes > SQL_HELD_BACK_BYTES or self.has_begun:
            await self._begin()
            await self._pass_on(more=True)

    async def end(self) -> None:
        if not self.has_begun:
            self._headers.append((b"content-length", b"%d" % self._held_bytes))
        await self._begin()
        await self._pass_on(more=False)

    async def _begin(self) -> None:
        if not self.has_begun:
            self.has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})

    async def _pass_on(self, *, more: bool) -> None:
        body, self._held = b"".join(self._held), []
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _timeout(text: str) -> float:
    if not text:
        return SQL_TIMEOUT_SECONDS
    try:
        seconds = durations.parse(text) / NS_PER_SECOND
    except ValueError as error:
        raise InvalidRequest(f"timeout is invalid; {error}") from None
    if not 0 < seconds <= SQL_TIMEOUT_SECONDS_MAX:
        raise InvalidRequest(f"timeout is invalid; it must be above 0 and at most {SQL_TIMEOUT_SECONDS_MAX:g}s")
    return seconds
