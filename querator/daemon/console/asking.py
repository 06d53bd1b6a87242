"""Calls of the daemon's own API, made in process through the same app as any client's.

So a page can do what its visitor may do, and no more; a call is checked, counted and logged in one place.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
from starlette.types import Message, Receive, Scope

from querator.daemon.access import Peer
from querator.errors import InvalidRequest, QueratorError, RequestFailed, from_wire
from querator.limits import CONSOLE_SQL_BYTES_MAX, CONSOLE_SQL_ROWS_MAX
from querator.wire import bulk_messages, content, messages
from querator.wire.messages import Reply

T = TypeVar("T", bound=messages.Message)

JSON_HEADERS: Final = [(b"content-type", b"application/json"), (b"accept", b"application/json")]


class Answer:
    """The answer to a call, as it arrives."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif message.get("body"):
            self.parts.append(message["body"])

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def check(self) -> None:
        """Raises the error that the daemon answered with."""
        if self.status == 200:
            return
        try:
            reply = content.JSON.decode(Reply, self.body)
        except QueratorError:
            raise RequestFailed(f"the daemon answered {self.status}") from None
        raise from_wire(reply.code or self.status, reply.message)


class Api:
    """The daemon as the visitor of one request may use it."""

    def __init__(self, scope: Scope, receive: Receive, peer: Peer) -> None:
        self._scope = scope
        self._receive = receive
        """Tells when the visitor is gone, so that a long query ends. The body of the visitor's request is read."""
        self._peer = peer
        """Who the visitor is, for the checks of the call."""

    async def call(self, name: str, request: messages.Message, answer: type[T]) -> T:
        found = await self._post(f"/v1/{name}", content.JSON.encode(request))
        found.check()
        decoded: T = content.JSON.decode(answer, found.body)
        return decoded

    async def health(self) -> tuple[str, str]:
        """`pass`, `warn` or `fail`, and what is wrong."""
        found = await self._ask("GET", "/health", b"")
        health = msgspec.json.decode(found.body)
        checks = health.get("checks", {}).get("queues:storage", [{}])
        return str(health.get("status", "fail")), str(checks[0].get("output", ""))

    async def sql(
        self, queue: str, query: str, *, limit: int = CONSOLE_SQL_ROWS_MAX, within: str = "", latest: int = 0
    ) -> list[dict[str, Any]]:
        """The rows of a query. Stops reading a result that is too long, and refuses it."""
        request = messages.SqlRequest(
            queue_name=queue, query=query, format="json", limit=limit, timeout=within, latest=latest
        )
        answer, enough = Answer(), asyncio.Event()
        size = 0

        async def take(message: Message) -> None:
            nonlocal size
            size += len(message.get("body", b""))
            if size > CONSOLE_SQL_BYTES_MAX:
                enough.set()
            else:
                await answer.take(message)

        await self._ask("POST", "/v1/sql", content.JSON.encode(request), answer, take, enough)
        answer.check()
        if enough.is_set():
            raise InvalidRequest("the result is too long for a page; choose fewer columns or rows")
        rows: list[dict[str, Any]] = msgspec.json.decode(answer.body or b"[]")
        return rows

    async def plan(self, queue: str, state: str, partition: int, splits: int, where: str) -> list[str]:
        """The ends of id ranges that cut a partition into about equal parts."""
        request = bulk_messages.PlanRequest(queue, state, splits, [partition], where)
        found = await self._post(bulk_messages.PREFIX + "items.plan", msgspec.json.encode(request))
        found.check()
        return msgspec.json.decode(found.body, type=bulk_messages.PlanResponse).partitions[0].upto_ids

    async def scan(self, request: bulk_messages.ScanRequest, limit: int, until: float) -> list[dict[str, Any]]:
        """Rows of a scan, at most `limit`. Stops reading when it has them, or when the time `until` has come."""
        answer, enough = Answer(), asyncio.Event()
        rows = 0

        async def take(message: Message) -> None:
            nonlocal rows
            await answer.take(message)
            if answer.status == 200 and message.get("body"):
                rows = sum(batch.num_rows for batch in _batches(answer.body))
            if rows >= limit or time.monotonic() >= until:
                enough.set()

        await self._ask("POST", bulk_messages.PREFIX + "items.scan", msgspec.json.encode(request), answer, take, enough)
        answer.check()
        found: list[dict[str, Any]] = []
        for batch in _batches(answer.body):
            found += batch.slice(0, limit - len(found)).to_pylist()
        return found

    async def _post(self, path: str, body: bytes) -> Answer:
        return await self._ask("POST", path, body)

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes,
        answer: Answer | None = None,
        take: Any = None,
        enough: asyncio.Event | None = None,
    ) -> Answer:
        answer = answer or Answer()
        is_sent = False

        async def receive() -> Message:
            nonlocal is_sent
            if not is_sent:
                is_sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            if enough is None:
                return await self._receive()
            gone, done = asyncio.ensure_future(self._receive()), asyncio.ensure_future(enough.wait())
            try:
                await asyncio.wait((gone, done), return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
                done.cancel()
            return {"type": "http.disconnect"}

        scope = {
            **{name: self._scope[name] for name in ("type", "asgi", "http_version", "scheme", "client", "server")},
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": list(JSON_HEADERS),
            "state": {"peer": self._peer, "cut_off": lambda is_unread: None},
            "extensions": self._scope.get("extensions", {}),
        }
        await self._scope["app"](scope, receive, take or answer.take)
        return answer


def _batches(stream: bytes) -> list[pa.RecordBatch]:
    """The complete batches of an Arrow stream that may end anywhere."""
    batches = []
    with contextlib.suppress(StopIteration, OSError, pa.ArrowInvalid):
        reader = pa.ipc.open_stream(stream)
        while True:
            batches.append(reader.read_next_batch())
    return batches


def literal(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def conditions(group: Mapping[str, str | None], expressions: Mapping[str, str]) -> str:
    """A condition that picks one group out of many: each expression has the group's value."""
    return " and ".join(
        f"{expressions[name]} is null" if value is None else f"{expressions[name]} = {literal(value)}"
        for name, value in group.items()
    )
