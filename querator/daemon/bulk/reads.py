"""The routes of the bulk endpoints, and the endpoints that read: plan and scan.

A scan flushes its partition and then streams it slice by slice. It returns the items in the requested id range that
still exist when their slice is read. Items that were added after the scan began are not part of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar, cast

import msgspec
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from querator import ids
from querator.daemon.access import Caller
from querator.daemon.bulk import scans
from querator.daemon.bulk.sql import Filter, SqlEndpoint, workers_of
from querator.daemon.bulk.writes import Writes, send_json
from querator.daemon.http import (
    AUDITED_STREAMS,
    NOSNIFF,
    STREAMS,
    Calls,
    ClientGone,
    CutOff,
    Refused,
    hold_back,
    read_body,
    send_reply,
    wait_until_read,
)
from querator.daemon.queue import Logical, Partition
from querator.daemon.registry import Registry
from querator.daemon.store import ITEMS, SCHEDULED, Scan
from querator.errors import ContentError, InvalidRequest, QueratorError, RetryRequest
from querator.limits import BODY_BYTES_MAX, SPLITS_MAX
from querator.wire import bulk_messages, content

T = TypeVar("T")
Allow = Callable[[str], None]
"""Raises unless the caller may use the queue of this name."""
Answering = Callable[[Scope, Receive, Send, Allow], Awaitable[None]]


def bulk_routes(calls: Calls, registry: Registry) -> list[BaseRoute]:
    reads, writes = Reads(registry), Writes(registry, calls.metrics)
    return [
        Route("/v1/sql", SqlEndpoint(calls, registry)),
        *(
            Route(bulk_messages.PREFIX + name, Endpoint(calls, name, answer))
            for name, answer in {
                "items.plan": reads.plan,
                "items.scan": reads.scan,
                "items.produce": writes.produce,
                "items.import": writes.import_,
            }.items()
        ),
    ]


class Endpoint:
    """The part that all bulk calls share: the checks of head and caller, the duration metric, the audit line, and
    errors.
    """

    def __init__(self, calls: Calls, name: str, answer: Answering) -> None:
        self._calls = calls
        self._name = f"bulk/{name}"
        self._right = STREAMS[name]
        self._is_audited = name in AUDITED_STREAMS
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        peer = scope["state"]["peer"]
        begun = False
        caller: Caller | None = None
        queue: str | None = None

        def allow(name: str) -> None:
            nonlocal queue
            assert caller is not None
            self._calls.access.admit(caller, peer, self._name, self._right, [name])
            queue = name

        async def record(result: QueratorError | None) -> None:
            if self._is_audited and caller is not None and queue is not None:
                recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                request = bulk_messages.WriteParameters(queue)
                seconds = time.perf_counter() - started
                self._calls.access.audit.changed(
                    caller, peer, self._name, request, result, seconds, lambda: recorded.set_result(None)
                )
                await recorded

        async def tracked_send(message: Any) -> None:
            nonlocal begun
            if not begun:
                await record(None)
            begun = True
            await send(message)

        # Errors come in the order of the wire contract. Content-Type and Accept are left out: bodies can be Arrow.
        headers = [(name, value) for name, value in scope["headers"] if name not in (b"content-type", b"accept")]
        try:
            _, _, caller = self._calls.check_head(scope["method"], headers, peer)
            await self._answer(scope, receive, tracked_send, allow)
            return
        except ClientGone:
            return
        except Refused as refused:
            error: QueratorError = refused.error
        except QueratorError as raised:
            error = raised
        finally:
            self._calls.metrics.durations(scope["path"]).observe(time.perf_counter() - started)
        if begun:
            raise CutOff(error.message)
        await record(error)
        await hold_back(self._calls.access, scope, error)
        await send_reply(send, content.JSON, error, close=True)


async def read_request(type_: type[T], scope: Scope, receive: Receive) -> T:
    """The JSON body of a request. Raises ClientGone, Refused, InvalidRequest or ContentError."""
    body = await read_body(scope, receive, BODY_BYTES_MAX)
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.MsgspecError as error:
        raise ContentError(str(error)) from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"request body is invalid; {error}") from None


class Reads:
    """The endpoints that read."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def plan(self, scope: Scope, receive: Receive, send: Send, allow: Allow) -> None:
        request = await read_request(bulk_messages.PlanRequest, scope, receive)
        allow(request.queue_name)
        logical = self._registry.find(request.queue_name)
        table, _ = _table(request.state)
        if not 1 <= request.splits <= SPLITS_MAX:
            raise InvalidRequest(f"splits is invalid; it must be from 1 to {SPLITS_MAX}")
        if request.where:
            await Filter(workers_of(self._registry), table, ["id"], request.where).prepare()
        wanted = [self._registry.partition(logical, number) for number in request.partitions] or logical.partitions
        planned = await asyncio.gather(*(_plan(logical, one, table, request.splits) for one in wanted))
        await send_json(send, bulk_messages.PlanResponse(list(planned)))

    async def scan(self, scope: Scope, receive: Receive, send: Send, allow: Allow) -> None:
        from querator.wire import arrow

        request = await read_request(bulk_messages.ScanRequest, scope, receive)
        allow(request.queue_name)
        logical = self._registry.find(request.queue_name)
        partition = self._registry.partition(logical, request.partition)
        table, state = _table(request.state)
        try:
            schema = arrow.chosen(arrow.ITEM, request.columns)
        except ValueError as error:
            raise InvalidRequest(f"scan is invalid; {error}") from None
        after = _sequence(partition, "after_id", request.after_id) if request.after_id else 0
        upto = await scans.flush(logical, partition)
        if request.upto_id:
            upto = min(upto, _sequence(partition, "upto_id", request.upto_id))
        wanted = Scan(table, tuple(schema.names), after, upto, state)
        if not request.where:
            parts = scans.slices(self._registry, logical, partition, wanted, arrow.stream_part)
            await _stream(receive, send, arrow.stream_start(schema), parts, arrow.STREAM_END)
            return
        filter = Filter(workers_of(self._registry), table, schema.names, request.where)
        start, columns = await filter.prepare()
        needed = arrow.chosen(arrow.ITEM, columns)
        slices = scans.slices(
            self._registry,
            logical,
            partition,
            wanted._replace(columns=tuple(needed.names)),
            lambda batch: arrow.encode_batches([batch], needed),
        )
        await _stream(receive, send, start, filter.matching(slices), arrow.STREAM_END)


async def _plan(logical: Logical, partition: Partition, table: str, splits: int) -> bulk_messages.PlannedPartition:
    upto = await scans.flush(logical, partition)
    rows, bounds = await scans.split(logical, partition, table, upto, splits)
    return bulk_messages.PlannedPartition(partition.number, rows, ids.encode_many(partition.prefix, bounds))


def _table(state: str) -> tuple[str, str]:
    """The table that holds the items of a state, and the state to filter by; empty means all items."""
    if state not in bulk_messages.STATES:
        raise InvalidRequest(f"state is invalid; '{state}' is none of {', '.join(bulk_messages.STATES)}")
    if state == "scheduled":
        return SCHEDULED, ""
    return ITEMS, "" if state == "stored" else state


def _sequence(partition: Partition, name: str, text: str) -> int:
    try:
        decoded = ids.decode(text)
    except ValueError as error:
        raise InvalidRequest(f"{name} is invalid; '{text}': {error}") from None
    if not ids.is_own(partition.prefix, text, decoded):
        raise InvalidRequest(f"{name} is invalid; '{text}' is not an id of partition {partition.number}")
    return decoded.seq


async def _stream(receive: Receive, send: Send, start: bytes, parts: AsyncIterator[bytes], end: bytes) -> None:
    """Sends an Arrow stream as fast as the client reads. Stops when the client disconnects."""
    gone = asyncio.ensure_future(receive())
    first: bytes | None = None
    try:
        # Nothing is sent before the first part, so that an early failure becomes an error status.
        with contextlib.suppress(StopAsyncIteration):
            first = await anext(parts)
        headers = [(b"content-type", bulk_messages.ARROW_CONTENT_TYPE.encode()), NOSNIFF]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": start, "more_body": True})
        while first is not None and not gone.done():
            await send({"type": "http.response.body", "body": first, "more_body": True})
            await wait_until_read(send)
            first = await anext(parts, None)
        if not gone.done():
            await send({"type": "http.response.body", "body": end})
    finally:
        gone.cancel()
        with contextlib.suppress(RetryRequest):
            await cast(Any, parts).aclose()
