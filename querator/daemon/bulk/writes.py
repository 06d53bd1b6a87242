"""Bulk produce and import: they write an Arrow stream of any length, chunk by chunk.

    body ──> BodyFile ──> worker thread: record batches, checked ──> the queue's Logical, one chunk per pass

A chunk is durable before the next one begins, and the answer comes when all are durable. The record batches alone
decide how a stream is cut into chunks, and the queue remembers each chunk by the request's id and the chunk's number.
So a repeated request adds only what is missing. Between chunks, other requests have their turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs

import msgspec
from starlette.types import Receive, Scope, Send

from querator.daemon import priority, validation
from querator.daemon.bulk.body_file import BodyFile
from querator.daemon.bulk.pacing import Pace
from querator.daemon.engine import ask, read
from querator.daemon.http import send_body
from querator.daemon.metrics import HttpMetrics
from querator.daemon.queue import BULK_PREFIX, SOURCE_PREFIX, Intake, Logical, Partition
from querator.daemon.registry import Registry
from querator.daemon.store import Store
from querator.errors import InvalidRequest, QueratorError, RequestFailed, from_wire
from querator.limits import (
    BULK_APPLY_BYTES,
    BULK_REQUEST_ID_BYTES_MAX,
    BULK_TIMEOUT_SECONDS,
    BULK_WRITES_MAX,
    NS_PER_SECOND,
)
from querator.wire import bulk_messages, content

if TYPE_CHECKING:
    import pyarrow as pa

    from querator.daemon.bulk.stream_chunks import StreamChunk

_ORDINARY_PATHS = ("/v1/queue.produce", "/v1/queue.lease")


async def send_json(send: Send, result: Any) -> None:
    await send_body(send, 200, content.JSON.content_type, msgspec.json.encode(result))


class Writes:
    """The endpoints that write."""

    def __init__(self, registry: Registry, http: HttpMetrics) -> None:
        self._registry = registry
        self._ordinary = [http.durations(path) for path in _ORDINARY_PATHS]
        self._threads = ThreadPoolExecutor(
            BULK_WRITES_MAX, thread_name_prefix="querator-bulk", initializer=priority.lower
        )
        self._places = asyncio.Semaphore(BULK_WRITES_MAX)

    async def produce(self, scope: Scope, receive: Receive, send: Send, allow: Callable[[str], None]) -> None:
        from querator.wire import arrow

        await self._write(scope, receive, send, allow, arrow.PRODUCED)

    async def import_(self, scope: Scope, receive: Receive, send: Send, allow: Callable[[str], None]) -> None:
        from querator.wire import arrow

        await self._write(scope, receive, send, allow, arrow.IMPORTED)

    async def _write(
        self, scope: Scope, receive: Receive, send: Send, allow: Callable[[str], None], schema: pa.Schema
    ) -> None:
        from querator.daemon.bulk import stream_chunks

        parameters = Parameters.of(scope["query_string"])
        allow(parameters.queue_name)
        self._registry.check_serving()
        logical = self._registry.find(parameters.queue_name)
        write = Write(self._registry, lambda: sum([path.count for path in self._ordinary]), logical, parameters)
        body = BodyFile(asyncio.get_running_loop())
        async with self._places:
            filling = asyncio.ensure_future(body.fill(receive))
            try:
                result = await self._write_all(write, stream_chunks.chunks(body, schema))
            except QueratorError as error:
                raise write.with_progress(error) from None
            finally:
                body.break_off(ConnectionError("the request has ended"))
                filling.cancel()
                await asyncio.gather(filling, return_exceptions=True)
        await send_json(send, result)

    async def _write_all(self, write: Write, coming: Iterator[StreamChunk]) -> bulk_messages.WriteResponse:
        loop = asyncio.get_running_loop()

        def start() -> asyncio.Future[StreamChunk | None]:
            return loop.run_in_executor(self._threads, next, coming, None)

        following = start()
        while (one := await following) is not None:
            following = start()  # built while the current one becomes durable
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
        unknown = found.keys() - set(bulk_messages.WriteParameters.__struct_fields__)
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
    """One bulk write: it adds chunks to a queue and counts them."""

    def __init__(self, registry: Registry, served: Callable[[], int], logical: Logical, parameters: Parameters) -> None:
        """`served` counts answered requests of clients, so that the write can slow down while clients are active."""
        self._registry = registry
        self._logical = logical
        self._parameters = parameters
        self._pace = Pace(
            self._waiting_bytes,
            lambda: any([registry.upkeep.is_catching_up(name) for name in self._storages()]),
            served,
            parameters.timeout_ns / NS_PER_SECOND,
        )
        self.items = self.added = self.chunks = 0

    async def add(self, one: StreamChunk) -> None:
        """Adds a chunk. It is durable when this returns."""
        await self._pace.wait_for_turn()
        count = one.rows.num_rows
        if one.sources:
            # No other import may add the same items between the lookup and the write.
            async with self._registry.importing[f"bulk {self._logical.queue.name}"]:
                fresh = _fresh(one.sources, await self._sources(list(filter(None, one.sources))))
                if not all(fresh):
                    import pyarrow as pa

                    from querator.daemon.bulk import stream_chunks

                    one = stream_chunks.split_by_time(
                        one.rows.filter(pa.array(fresh)), list(compress(one.sources, fresh)), one.digest
                    )
                self.added += await self._submit(one)
        else:
            self.added += await self._submit(one)
        self.items += count
        self.chunks += 1

    async def _submit(self, one: StreamChunk) -> int:
        request_id = self._parameters.request_id
        key = f"{BULK_PREFIX}{request_id} {self.chunks}" if request_id else ""
        if not one.rows.num_rows and not key:
            return 0
        deadline_ns = time.monotonic_ns() + self._parameters.timeout_ns
        keys = self._source_keys(one.sources)
        added: int | None = await ask(
            self._logical,
            lambda respond: Intake(respond, deadline_ns, one.columns, one.timed, key, one.digest, keys),
        )
        return added or 0

    def _source_keys(self, sources: list[str]) -> list[str]:
        """The keys by which the queue remembers these sources; empty unless the request asks for it."""
        return [SOURCE_PREFIX + source for source in sources if source] if self._parameters.remember_sources else []

    async def _sources(self, sources: list[str]) -> set[str]:
        """The sources of which the queue has an item, or remembers that it had one."""
        logical = self._logical
        keys = self._source_keys(sources)
        now_us = self._registry.clock.now_us()

        def known(store: Store) -> set[str]:
            remembered = store.remembered(keys, now_us) if keys else set()
            return store.sources(sources) | {key.removeprefix(SOURCE_PREFIX) for key in remembered}

        async def known_by(partition: Partition) -> set[str]:
            if keys and partition.store is None and partition.keys_are_noted:
                # The partition is offline. The catalog has every key of its file, so nothing need wait for it.
                catalog = self._registry.catalog
                noted = await self._registry.blocking(catalog.remembered, partition.placement.uuid, keys, now_us)
                return {key.removeprefix(SOURCE_PREFIX) for key in noted}
            return await read(logical, partition, known)

        return set().union(*await asyncio.gather(*map(known_by, logical.partitions)))

    def _waiting_bytes(self) -> int:
        """The bytes that are not applied to the files yet. Raises if the daemon stops or the queue is gone."""
        self._registry.check_running()
        if self._registry.logicals.get(self._parameters.queue_name) is not self._logical:
            self._registry.find(self._parameters.queue_name)
            raise RequestFailed("the queue was replaced by another of the same name")
        return max([self._registry.upkeep.relieve(name, BULK_APPLY_BYTES) for name in self._storages()])

    def _storages(self) -> set[str]:
        return {partition.placement.storage for partition in self._logical.partitions}

    def with_progress(self, error: QueratorError) -> QueratorError:
        """The error, with the number of items so far. A repeated request with the same id continues from there."""
        if not self.items:
            return error
        return from_wire(error.code, f"{error.message}; {self.items} items are in the queue")


def _fresh(sources: list[str], here: set[str]) -> list[bool]:
    """For each source: whether it is new, neither in the queue nor earlier in the list."""
    known = set(here)
    fresh = []
    for source in sources:
        fresh.append(not source or source not in known)
        known.add(source)
    return fresh
