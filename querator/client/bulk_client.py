"""The client of the bulk endpoints: plans, scans and writes of Arrow record batches. Spark uses it in its tasks.

An interrupted scan continues after the last id that arrived. An interrupted write is repeated with the same request id.
The client gives up when the daemon has not answered for `patience` seconds.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlencode

import msgspec
import pyarrow as pa

from querator import errors
from querator.client.connection import ConnectionLost, ConnectionPool, parse_address
from querator.config import SYSTEM_TLS, ClientTls
from querator.errors import QueratorError, RequestFailed, RetryRequest, TimedOut, TlsFailed, Unreachable
from querator.wire import arrow, bulk_messages
from querator.wire import json as wire_json
from querator.wire.messages import Reply

T = TypeVar("T")

PATIENCE_SECONDS: Final = 300.0
ANSWER_SECONDS: Final = 120.0
PAUSE_SECONDS_MAX: Final = 2.0
JSON_HEADERS: Final = {"Content-Type": "application/json"}
ARROW_HEADERS: Final = {"Content-Type": bulk_messages.ARROW_CONTENT_TYPE}


class BulkClient:
    """Use one client per thread. `endpoint` is the same as for `Client`."""

    def __init__(
        self, endpoint: str, *, token: str = "", tls: ClientTls = SYSTEM_TLS, patience: float = PATIENCE_SECONDS
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._pool = ConnectionPool(parse_address(endpoint), headers, tls)
        self._headers = headers
        self._patience = patience

    def on_standby(self, told: Callable[[str, str], None]) -> None:
        """The same as for `Client`."""
        self._pool.on_standby = told

    def plan(
        self, queue: str, *, state: str = "stored", splits: int = 1, partitions: Sequence[int] = (), where: str = ""
    ) -> list[bulk_messages.PlannedPartition]:
        """Id ranges that split each partition into parts of about the same size. Later items are in no range."""
        request = bulk_messages.PlanRequest(queue, state, splits, list(partitions), where)
        body = self._repeat(lambda: self._post("items.plan", msgspec.json.encode(request), JSON_HEADERS))
        return msgspec.json.decode(body, type=bulk_messages.PlanResponse).partitions

    def scan(
        self,
        queue: str,
        partition: int,
        *,
        state: str = "stored",
        columns: Sequence[str] = (),
        where: str = "",
        after_id: str = "",
        upto_id: str = "",
    ) -> Generator[pa.RecordBatch, None, None]:
        """The items of one partition that meet the condition `where`, in the order of their ids."""
        schema = arrow.chosen(arrow.ITEM, columns)
        # The id is always requested, because an interrupted scan continues after it.
        asked = [name for name in arrow.ITEM.names if name in schema.names or name == "id"]
        request = bulk_messages.ScanRequest(queue, partition, state, asked, where, after_id, upto_id)
        pauses = _Pauses(self._patience)
        while True:
            try:
                for batch in self._scan(request):
                    pauses.reset()
                    if batch.num_rows:
                        request.after_id = batch.column("id")[-1].as_py()
                        yield batch.select(schema.names).cast(schema)
                return
            except QueratorError as error:
                pauses.after(error)

    def _scan(self, request: bulk_messages.ScanRequest) -> Iterator[pa.RecordBatch]:
        connection = self._pool.connect(ANSWER_SECONDS)
        try:
            response = self._exchange(connection, "items.scan", msgspec.json.encode(request), JSON_HEADERS)
            yield from arrow.read_batches(response)
        except (OSError, http.client.HTTPException, pa.ArrowException) as error:
            raise ConnectionLost(f"the scan was interrupted: {error}") from error
        finally:
            connection.close()

    def produce(self, queue: str, batches: Sequence[pa.RecordBatch], request_id: str) -> bulk_messages.WriteResponse:
        """Add new items (`wire.arrow.PRODUCED`). Repeating the request with the same id adds nothing."""
        return self._write("items.produce", queue, batches, request_id)

    def import_(
        self, queue: str, batches: Sequence[pa.RecordBatch], request_id: str, *, remember_sources: bool = False
    ) -> bulk_messages.WriteResponse:
        """Add stored items (`wire.arrow.IMPORTED`), except those whose source id the queue has already.

        With `remember_sources`, the queue knows each source id for a month, even after its item has left the queue.
        """
        parameters = {"remember_sources": "true"} if remember_sources else {}
        return self._write("items.import", queue, batches, request_id, **parameters)

    def _write(
        self, name: str, queue: str, batches: Sequence[pa.RecordBatch], request_id: str, **parameters: str
    ) -> bulk_messages.WriteResponse:
        body = arrow.encode_batches(batches, batches[0].schema)
        path = f"{name}?{urlencode({'queue_name': queue, 'request_id': request_id, **parameters})}"
        return msgspec.json.decode(
            self._repeat(lambda: self._post(path, body, ARROW_HEADERS)), type=bulk_messages.WriteResponse
        )

    def _post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        answer = self._pool.exchange("POST", bulk_messages.PREFIX + path, body, headers, ANSWER_SECONDS)
        if answer.status != 200:
            raise _error(answer.status, answer.body)
        return answer.body

    def _exchange(
        self, connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        if connection.sock is not None:
            connection.sock.settimeout(ANSWER_SECONDS)
        prefix = self._pool.address.prefix
        connection.request("POST", prefix + bulk_messages.PREFIX + path, body, self._headers | headers)
        response = connection.getresponse()
        self._pool.notice(response)
        if response.status != 200:
            raise _error(response.status, response.read())
        return response

    def _repeat(self, attempt: Callable[[], T]) -> T:
        pauses = _Pauses(self._patience)
        while True:
            try:
                return attempt()
            except QueratorError as error:
                pauses.after(error)

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Pauses:
    """Waits between attempts while the daemon does not answer, or answers that the request should be repeated."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._failures = 0
        self._since = 0.0

    def reset(self) -> None:
        self._failures = 0

    def after(self, error: QueratorError) -> None:
        """Sleep before the next attempt. Raises the error if repeating is useless, or if the patience is used up."""
        is_away = isinstance(error, RetryRequest | Unreachable | TimedOut) or (
            isinstance(error, RequestFailed) and "shutting down" in error.message
        )
        is_away = is_away and not isinstance(error, TlsFailed)
        now = time.monotonic()
        if not self._failures:
            self._since = now
        if not is_away or now - self._since > self._patience:
            raise error
        self._failures += 1
        time.sleep(min(PAUSE_SECONDS_MAX, 0.05 * 2.0 ** min(self._failures, 8)))


def _error(status: int, body: bytes) -> QueratorError:
    try:
        reply: Any = wire_json.decode(Reply, body)
    except (QueratorError, ValueError):
        return QueratorError(f"the daemon answered {status}: {body[:200].decode('utf-8', 'replace')}")
    return errors.from_wire(reply.code or status, reply.message)
