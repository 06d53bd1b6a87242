"""Bulk produce and import: an Arrow stream of any length, taken in chunk by chunk.

    body ──> BodyFile ──> worker thread: record batches, checked ──> the queue's Logical, one chunk per pass

A chunk is durable before the next one is begun, and the answer comes when all are. The chunks of a stream follow from
its record batches alone, and each is remembered under the request's id and its number: whoever repeats a request, after
whatever, adds what is missing and nothing else. Between chunks everybody else has their turn.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from starlette.types import Receive, Scope, Send

from querator.daemon import priority, validation
from querator.daemon.admin import item_calls
from querator.daemon.bulk.pacing import Pace
from querator.daemon.http import NOSNIFF, ClientGone
from querator.daemon.metrics import HttpMetrics
from querator.daemon.queue import lifecycle
from querator.daemon.queue.logical import Logical
from querator.daemon.queue.requests import BULK_PREFIX, SOURCE_PREFIX, Columns, Intake
from querator.daemon.registry import Registry
from querator.daemon.store import Store, items_from
from querator.errors import InvalidRequest, QueratorError, RequestFailed, from_wire
from querator.items import Item
from querator.limits import (
    BULK_AHEAD_BYTES_MAX,
    BULK_APPLY_BYTES,
    BULK_BATCH_BYTES_MAX,
    BULK_CHUNK_BYTES_MAX,
    BULK_CHUNK_ROWS_MAX,
    BULK_PAYLOAD_BYTES_MAX,
    BULK_REQUEST_ID_BYTES_MAX,
    BULK_TIMEOUT_SECONDS,
    BULK_WRITES_MAX,
    NS_PER_SECOND,
)
from querator.wire import arrow, bulk_messages, content

_ORDINARY_PATHS = ("/v1/queue.produce", "/v1/queue.lease")


class Chunk(NamedTuple):
    """A piece of a stream that enters its queue as a whole."""

    rows: pa.Table
    sources: list[str]
    """Where each row comes from, as far as it says; empty when none does."""
    columns: Columns
    timed: list[Item]
    """The rows that have a time to be enqueued at; all the others are in `columns`."""
    digest: str
    """Of its content: a chunk that is repeated must be the same one."""


class BodyFile:
    """A request's body as a file that a worker thread reads while the loop fills it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._broken: Exception | None = None
        self._changed = threading.Condition()
        self._drained = asyncio.Event()
        self.closed = False

    # On the loop.

    async def fill(self, receive: Receive) -> None:
        """Takes the body in as it is read, a little ahead."""
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                more = bool(message.get("more_body", False))
                with self._changed:
                    self._parts.append(message.get("body", b""))
                    self._size += len(self._parts[-1])
                    self._ended = not more
                    self._drained.clear()
                    full = self._size > BULK_AHEAD_BYTES_MAX
                    self._changed.notify_all()
                if not more:
                    return
                if full:
                    await self._drained.wait()
        except BaseException as error:
            self.break_off(error if isinstance(error, ClientGone) else ConnectionError(str(error)))
            raise

    def break_off(self, reason: Exception) -> None:
        with self._changed:
            self._broken = self._broken or reason
            self._changed.notify_all()

    # In the worker thread.

    def read(self, size: int = -1) -> bytes:
        if size > BULK_BATCH_BYTES_MAX:
            raise InvalidRequest(
                f"stream is invalid; a record batch has {size:,} bytes, at most {BULK_BATCH_BYTES_MAX:,} are taken"
            )
        pieces: list[bytes] = []
        wanted = size
        with self._changed:
            while wanted > 0 or size < 0:
                while not self._parts and not self._ended and self._broken is None:
                    # What a large message still lacks is on its way only if there is room for it.
                    self._loop.call_soon_threadsafe(self._drained.set)
                    self._changed.wait()
                if self._broken is not None:
                    raise self._broken
                if not self._parts:
                    break
                part = self._parts.popleft()
                if 0 <= wanted < len(part):
                    self._parts.appendleft(part[wanted:])
                    part = part[:wanted]
                pieces.append(part)
                wanted -= len(part)
                self._size -= len(part)
            if self._size <= BULK_AHEAD_BYTES_MAX // 2:
                self._loop.call_soon_threadsafe(self._drained.set)
        return b"".join(pieces)

    def readable(self) -> bool:
        return True


def chunks(source: Any, wanted: pa.Schema) -> Iterator[Chunk]:
    """The items of a stream, cut the same way every time. Blocking; raises InvalidRequest."""
    try:
        row = 0
        for batch in arrow.untrusted_batches(source, wanted, BULK_BATCH_BYTES_MAX):
            rows = _rows_per_chunk(batch)
            for first in range(0, batch.num_rows, rows):
                yield chunk(arrow.fitted(batch.slice(first, rows), wanted), row + first)
            row += batch.num_rows
    except (ValueError, struct.error, pa.ArrowException) as error:
        raise InvalidRequest(f"stream is invalid; {error}") from None
    except OSError as error:
        raise InvalidRequest(f"stream is invalid; it ends too early: {error}") from None


def _rows_per_chunk(batch: pa.RecordBatch) -> int:
    size_bytes: int = max(1, batch.nbytes)
    rows: int = batch.num_rows * BULK_CHUNK_BYTES_MAX // size_bytes
    return max(1, min(BULK_CHUNK_ROWS_MAX, rows))


def chunk(batch: pa.RecordBatch, row: int) -> Chunk:
    lengths = pc.binary_length(batch.column("payload"))
    longest = pc.max(lengths).as_py() or 0
    if longest > BULK_PAYLOAD_BYTES_MAX:
        at = row + pc.index(lengths, longest).as_py()
        raise InvalidRequest(
            f"payload is invalid; that of row {at:,} has {longest:,} bytes,"
            f" at most {BULK_PAYLOAD_BYTES_MAX:,} are taken"
        )
    rows = pa.table({name: _stored(name, batch.column(name)) for name in batch.schema.names})
    sources = rows.column("source_id").to_pylist() if "source_id" in rows.column_names else []
    return _chunk(rows, sources if any(sources) else [], _digest(rows))


def _digest(rows: pa.Table) -> str:
    """Of the values alone. The same rows may come in other buffers, with other bytes behind them and under nulls."""
    digest = hashlib.blake2b(digest_size=8)
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        values = column.chunk(0)
        if pa.types.is_timestamp(values.type):
            values = pc.fill_null(values.cast(pa.int64()), 0)
        _, *buffers = pa.concat_arrays([values, values[:0]]).buffers()  # a copy, without what it is a slice of
        is_number = pa.types.is_integer(values.type)
        sizes = [8 * len(values)] if is_number else [4 * len(values) + 4, pc.sum(pc.binary_length(values)).as_py()]
        digest.update(f"{name} ".encode())
        for buffer, size in zip(buffers, sizes, strict=True):
            if size:
                digest.update(memoryview(buffer)[:size])
    return digest.hexdigest()


def _stored(name: str, values: pa.Array) -> pa.Array:
    """A column as storage has it; raises InvalidRequest. Times that are not told stay null."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
        if values.null_count < len(values):
            for bound in pc.min_max(values).values():
                validation.year(name, bound.as_py())
        # Some write 1970 for a time that there is none of.
        return pc.if_else(pc.equal(values, 0), None, values).view(pa.timestamp("us"))
    if pa.types.is_integer(values.type):
        values = pc.fill_null(values, 0).cast(pa.int64())
        if (pc.min(values).as_py() or 0) < 0:
            raise InvalidRequest(f"stream is invalid; column '{name}' has a negative number")
        return values
    if pa.types.is_string(values.type):
        values = pc.fill_null(values, "")
    if name == "history":
        values = values.cast(pa.binary())
        for text in pc.unique(values).to_pylist():
            if not lifecycle.is_history(text):
                raise InvalidRequest("history is invalid; it is no list of attempts and deaths")
    return values


def _chunk(rows: pa.Table, sources: list[str], digest: str) -> Chunk:
    timed: list[Item] = []
    ready = rows
    if "enqueue_at" in rows.column_names:
        is_timed = pc.is_valid(rows.column("enqueue_at"))
        timed = items_from(rows.filter(is_timed))
        ready = rows.filter(pc.invert(is_timed)).drop_columns("enqueue_at")
    return Chunk(rows, sources, _columns(ready), timed, digest)


def _columns(rows: pa.Table) -> Columns:
    created, expires = _told(rows, "created_at"), _told(rows, "expire_deadline")
    return Columns(
        rows=rows.num_rows,
        stream=arrow.encode_batches(rows.to_batches(), rows.schema),
        created_sum=sum(created.to_pylist()),  # more than 64 bits hold
        created_unsaid=rows.num_rows - len(created),
        expires_first=pc.min(expires).as_py(),
        expires_unsaid=len(expires) < rows.num_rows,
    )


def _told(rows: pa.Table, name: str) -> pa.ChunkedArray:
    """The times that are told, as numbers."""
    if name not in rows.column_names:
        return pa.chunked_array([], pa.int64())
    return rows.column(name).drop_null().cast(pa.int64())


async def send_json(send: Send, result: Any) -> None:
    body = msgspec.json.encode(result)
    headers = [(b"content-type", content.JSON.content_type.encode()), NOSNIFF, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Writes:
    def __init__(self, registry: Registry, http: HttpMetrics) -> None:
        self._registry = registry
        self._http = http
        self._threads = ThreadPoolExecutor(
            BULK_WRITES_MAX, thread_name_prefix="querator-bulk", initializer=priority.lower
        )
        self._places = asyncio.Semaphore(BULK_WRITES_MAX)

    async def produce(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._write(scope, receive, send, arrow.PRODUCED)

    async def import_(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._write(scope, receive, send, arrow.IMPORTED)

    async def _write(self, scope: Scope, receive: Receive, send: Send, schema: pa.Schema) -> None:
        parameters = Parameters.of(scope["query_string"])
        logical = self._registry.find(parameters.queue_name)
        write = Write(self._registry, self._http, logical, parameters)
        body = BodyFile(asyncio.get_running_loop())
        async with self._places:
            filling = asyncio.ensure_future(body.fill(receive))
            try:
                result = await self._take_in(write, chunks(body, schema))
            except QueratorError as error:
                raise write.with_progress(error) from None
            finally:
                body.break_off(ConnectionError("nobody reads on"))
                filling.cancel()
                await asyncio.gather(filling, return_exceptions=True)
        await send_json(send, result)

    async def _take_in(self, write: Write, coming: Iterator[Chunk]) -> bulk_messages.WriteResponse:
        loop = asyncio.get_running_loop()

        def start() -> asyncio.Future[Chunk | None]:
            return loop.run_in_executor(self._threads, next, coming, None)

        following = start()
        while (one := await following) is not None:
            following = start()  # built while this one becomes durable
            try:
                await write.add(one)
            except BaseException:
                following.cancel()
                raise
        return bulk_messages.WriteResponse(write.items, write.added, write.chunks)


class Parameters(NamedTuple):
    queue_name: str
    request_id: str
    timeout_ns: int
    remember_sources: bool

    @classmethod
    def of(cls, query_string: bytes) -> Parameters:
        try:
            found = parse_qs(query_string.decode(), keep_blank_values=True, strict_parsing=bool(query_string))
        except ValueError as error:
            raise InvalidRequest(f"query string is invalid; {error}") from None
        unknown = found.keys() - {"queue_name", "request_id", "request_timeout", "remember_sources"}
        if unknown:
            raise InvalidRequest(f"query string is invalid; '{min(unknown)}' is unknown")
        texts = {name: values[-1] for name, values in found.items()}
        request_id = texts.get("request_id", "")
        if validation.size(request_id) > BULK_REQUEST_ID_BYTES_MAX:
            raise InvalidRequest(
                f"request id is invalid; cannot be greater than '{BULK_REQUEST_ID_BYTES_MAX}' characters"
            )
        timeout_ns = int(BULK_TIMEOUT_SECONDS * NS_PER_SECOND)
        if "request_timeout" in texts:
            timeout_ns = validation.produce_timeout(texts["request_timeout"])
        remember_sources = texts.get("remember_sources", "false")
        if remember_sources not in ("true", "false"):
            raise InvalidRequest("query string is invalid; 'remember_sources' must be 'true' or 'false'")
        return cls(texts.get("queue_name", ""), request_id, timeout_ns, remember_sources == "true")


class Write:
    """One request's way into its queue."""

    def __init__(self, registry: Registry, http: HttpMetrics, logical: Logical, parameters: Parameters) -> None:
        self._registry = registry
        self._logical = logical
        self._parameters = parameters
        ordinary = [http.durations(path) for path in _ORDINARY_PATHS]
        self._pace = Pace(
            self._waiting_bytes,
            lambda: any([registry.upkeep.is_catching_up(name) for name in self._storages()]),
            lambda: sum([path.count for path in ordinary]),
            parameters.timeout_ns / NS_PER_SECOND,
        )
        self.items = self.added = self.chunks = 0

    async def add(self, one: Chunk) -> None:
        """One chunk, durable when this returns."""
        await self._pace.until_it_may_go_on()
        count = one.rows.num_rows
        if one.sources:
            # Nobody else may bring the same items between the look and the leap.
            async with self._registry.importing[f"bulk {self._logical.queue.name}"]:
                fresh = _fresh(one.sources, await self._sources(list(filter(None, one.sources))))
                if not all(fresh):
                    one = _chunk(one.rows.filter(pa.array(fresh)), list(compress(one.sources, fresh)), one.digest)
                self.added += await self._submit(one)
        else:
            self.added += await self._submit(one)
        self.items += count
        self.chunks += 1

    async def _submit(self, one: Chunk) -> int:
        request_id = self._parameters.request_id
        key = f"{BULK_PREFIX}{request_id} {self.chunks}" if request_id else ""
        if not one.rows.num_rows and not key:
            return 0
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

        def respond(result: Any) -> None:
            if future.done():
                return
            if isinstance(result, QueratorError):
                future.set_exception(result)
            else:
                future.set_result(result)

        deadline_ns = time.monotonic_ns() + self._parameters.timeout_ns
        keys = self._source_keys(one.sources)
        self._logical.submit(Intake(respond, deadline_ns, one.columns, one.timed, key, one.digest, keys))
        return await future or 0

    def _source_keys(self, sources: list[str]) -> list[str]:
        """What the queue remembers of items from these sources, if the request says that it should."""
        return [SOURCE_PREFIX + source for source in sources if source] if self._parameters.remember_sources else []

    async def _sources(self, sources: list[str]) -> set[str]:
        """Those of which the queue has an item, or remembers that it had one."""
        logical = self._logical
        keys = self._source_keys(sources)
        now_us = self._registry.clock.now_us()

        def known(store: Store) -> set[str]:
            remembered = store.remembered(keys, now_us) if keys else set()
            return store.sources(sources) | {key.removeprefix(SOURCE_PREFIX) for key in remembered}

        found = await asyncio.gather(*(item_calls.read(logical, one, known) for one in logical.partitions))
        return set().union(*found)

    def _waiting_bytes(self) -> int:
        """What the files lack. Raises when nobody needs to know."""
        self._registry.check_running()
        if self._registry.logicals.get(self._parameters.queue_name) is not self._logical:
            self._registry.find(self._parameters.queue_name)
            raise RequestFailed("the queue was replaced by another of the same name")
        return max([self._registry.upkeep.relieve(name, BULK_APPLY_BYTES) for name in self._storages()])

    def _storages(self) -> set[str]:
        return {partition.placement.storage for partition in self._logical.partitions}

    def with_progress(self, error: QueratorError) -> QueratorError:
        """The error, and how far it got: a repetition with the same request id goes on from there."""
        if not self.items:
            return error
        return from_wire(error.code, f"{error.message}; {self.items} items are in the queue")


def _fresh(sources: list[str], here: set[str]) -> list[bool]:
    """Of each source whether it is one that the queue does not have, each source once."""
    known = set(here)
    fresh = []
    for source in sources:
        fresh.append(not source or source not in known)
        known.add(source)
    return fresh
