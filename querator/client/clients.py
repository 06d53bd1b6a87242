"""The two clients. `Client` blocks, and `AsyncClient` is for asyncio. Both have all calls of `catalogue.py`.

    with Client() as client:
        client.produce("mail", ["one", "two"])
        with client.leased("mail", 10) as items:      # completed on success, retried on an exception
            for item in items:
                send(item.payload)

A call is repeated while the daemon answers "retry" (454) or the connection is lost, until the timeout of the caller. A
produce always has a request id, so a repetition adds nothing twice.
"""

from __future__ import annotations

import contextlib
import functools
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Self, TypeVar, overload

import msgspec

from querator import durations, errors
from querator.client import catalogue
from querator.client.attempts import (
    ANSWER_SLACK_SECONDS,
    REQUEST_TIMEOUT_SECONDS_MAX,
    REQUEST_TIMEOUT_SECONDS_MIN,
    Attempts,
    Call,
)
from querator.client.connection import Address, Answer, ConnectionLost, ConnectionPool, parse_address, unreachable
from querator.client.tls import check_not_tls, client_context, tls_failure
from querator.config import SYSTEM_TLS, ClientTls, client_settings
from querator.errors import ContentError, QueratorError, RetryRequest, TimedOut
from querator.limits import NS_PER_SECOND
from querator.wire import json as wire_json
from querator.wire import messages

if TYPE_CHECKING:
    import httpx

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_TIMEOUT_SECONDS: Final = 30.0
JSON_HEADERS: Final = {"Content-Type": "application/json"}


class Method(Generic[P, T]):
    """A function of `catalogue.py` as a method. On a Client it returns the answer, on an AsyncClient an awaitable."""

    def __init__(self, build: Callable[P, Call[T]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, client: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(self, client: Client, owner: type[Any]) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type[Any]) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, client: Client | AsyncClient | None, owner: type[Any]) -> Any:
        if client is None:
            return self
        build, send = self._build, client.send

        @functools.wraps(build)
        def method(*arguments: P.args, **settings: P.kwargs) -> Any:
            return send(build(*arguments, **settings))

        return method


class _Calls:
    """The calls of both clients."""

    produce = Method(catalogue.produce)
    lease = Method(catalogue.lease)
    complete = Method(catalogue.complete)
    retry = Method(catalogue.retry)
    extend = Method(catalogue.extend)
    stats = Method(catalogue.stats)
    queue_history = Method(catalogue.queue_history)
    clear = Method(catalogue.clear)
    create_queue = Method(catalogue.create_queue)
    update_queue = Method(catalogue.update_queue)
    list_queues = Method(catalogue.list_queues)
    queue_info = Method(catalogue.queue_info)
    delete_queue = Method(catalogue.delete_queue)
    list_items = Method(catalogue.list_items)
    list_scheduled = Method(catalogue.list_scheduled)
    import_items = Method(catalogue.import_items)
    delete_items = Method(catalogue.delete_items)
    inspect_item = Method(catalogue.inspect_item)
    sql = Method(catalogue.sql)
    sql_bytes = Method(catalogue.sql_bytes)
    list_partitions = Method(catalogue.list_partitions)
    list_storages = Method(catalogue.list_storages)
    daemon_status = Method(catalogue.daemon_status)
    pause_partitions = Method(catalogue.pause_partitions)
    resume_partitions = Method(catalogue.resume_partitions)
    drain_partitions = Method(catalogue.drain_partitions)
    offline_partitions = Method(catalogue.offline_partitions)
    reload_partitions = Method(catalogue.reload_partitions)
    migrate_partition = Method(catalogue.migrate_partition)
    backup_partitions = Method(catalogue.backup_partitions)
    restore_partitions = Method(catalogue.restore_partitions)
    verify_partitions = Method(catalogue.verify_partitions)
    compact_partitions = Method(catalogue.compact_partitions)
    accept_loss = Method(catalogue.accept_loss)
    redrive_items = Method(catalogue.redrive_items)
    delete_items_where = Method(catalogue.delete_items_where)
    list_jobs = Method(catalogue.list_jobs)
    show_job = Method(catalogue.show_job)
    cancel_job = Method(catalogue.cancel_job)
    create_token = Method(catalogue.create_token)
    list_tokens = Method(catalogue.list_tokens)
    revoke_token = Method(catalogue.revoke_token)
    rotate_token = Method(catalogue.rotate_token)
    whoami = Method(catalogue.whoami)
    list_audit = Method(catalogue.list_audit)
    advance_clock = Method(catalogue.advance_clock)
    set_clock = Method(catalogue.set_clock)


def _connection(endpoint: str | None, token: str, tls: ClientTls) -> tuple[Address, dict[str, str], ClientTls]:
    """The address, the headers and the TLS files. Without an endpoint they come from the settings."""
    if endpoint is None:
        settings = client_settings()
        endpoint, token = str(settings.address.value), token or settings.token()
        tls = tls if any(tls) else settings.tls
    return parse_address(endpoint), {"Authorization": f"Bearer {token}"} if token else {}, tls


def _body(call: Call[Any], remaining: float) -> tuple[bytes, float]:
    """The body to send, and the seconds to wait for the answer."""
    if not call.carries_timeout:
        return wire_json.encode(call.request), remaining
    seconds = min(max(remaining, REQUEST_TIMEOUT_SECONDS_MIN), REQUEST_TIMEOUT_SECONDS_MAX)
    text = durations.text(round(seconds * 1_000) * NS_PER_SECOND // 1_000)
    request = msgspec.structs.replace(call.request, request_timeout=text)
    return wire_json.encode(request), seconds + ANSWER_SLACK_SECONDS


def _read(call: Call[T], answer: Answer, address: Address) -> T:
    if answer.status == 200:
        try:
            return call.read(answer.body)
        except ContentError as error:
            raise QueratorError(
                f"{address} sent an answer that this client cannot read: {error.message}",
                hint="querator doctor shows whether client and daemon have the same version",
            ) from None
    raise _error(answer, address)


def _error(answer: Answer, address: Address) -> QueratorError:
    try:
        reply = wire_json.decode(messages.Reply, answer.body)
    except (QueratorError, ValueError):
        return QueratorError(
            f"{address} answered {answer.status} without an error of the daemon", hint="is this the right endpoint?"
        )
    return errors.from_wire(reply.code or answer.status, reply.message)


def _admitted(answer: Answer, address: Address) -> Answer:
    """The answer to a GET. Raises if the caller may not see the page."""
    if answer.status in (errors.Unauthorized.code, errors.Forbidden.code):
        raise _error(answer, address)
    return answer


def _reason(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Client(_Calls):
    """A blocking client, which threads may share.

    `endpoint` is `http://host:port`, `https://host:port` or `unix:/path`. Without it, the settings of the command line
    apply. `tls` names the CA of the daemon. A client that is not `patient` fails at once if its first connection fails.
    Later connections are always retried within the timeout.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        token: str = "",
        tls: ClientTls = SYSTEM_TLS,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        patient: bool = True,
    ) -> None:
        address, headers, tls = _connection(endpoint, token, tls)
        self.address = address
        self.timeout = timeout
        self.patient = patient
        self._pool = ConnectionPool(address, headers, tls)

    def on_standby(self, told: Callable[[str, str], None]) -> None:
        """Have `told` called for every answer of a standby, with the owner of the archive and the standby's lag in
        seconds."""
        self._pool.on_standby = told

    def send(self, call: Call[T]) -> T:
        """Send a call of `catalogue.py`."""
        timeout = self.timeout if call.timeout is None else call.timeout
        attempts = Attempts(call, timeout, patient=self.patient or self._pool.has_connected)
        while True:
            body, listen = _body(call, attempts.remaining)
            try:
                answer = self._pool.exchange(
                    "POST", f"/v1/{call.path}", body, JSON_HEADERS, listen, fresh=not call.repeatable
                )
                return _read(call, answer, self.address)
            except QueratorError as error:
                delay = attempts.delay_after(error)
            time.sleep(delay)

    @contextlib.contextmanager
    def leased(
        self, queue: str, n: int = 1, *, client_id: str | None = None, timeout: float | None = None
    ) -> Iterator[list[messages.QueueLeaseItem]]:
        """Lease items for a block. They are completed at its end, and retried if it raises. Empty if there were none.

        The items keep the exception as the reason of the failed attempt.
        """
        try:
            items = self.lease(queue, n, client_id=client_id, timeout=timeout).items
        except RetryRequest:
            yield []
            return
        ids = [item.id for item in items]
        try:
            yield items
        except BaseException as error:
            # If the retry fails, the leases expire anyway. The exception of the block matters more.
            with contextlib.suppress(QueratorError):
                self.retry(queue, ids, reason=_reason(error))
            raise
        self.complete(queue, ids)

    def batches(
        self, queue: str, n: int = 1, *, client_id: str | None = None, timeout: float | None = None
    ) -> Iterator[list[messages.QueueLeaseItem]]:
        """Lease batch after batch, until there are no items in time. One request completes a batch and leases another.

        Taking the next batch completes the one before. Leaving the loop returns the current batch to the queue.
        """
        done: list[str] = []
        while True:
            try:
                items = self.lease(queue, n, client_id=client_id, complete_ids=done, timeout=timeout).items
            except RetryRequest:
                if done:
                    self.complete(queue, done)  # the lease request may have timed out before it completed them
                return
            done = [item.id for item in items]
            try:
                yield items
            except BaseException:
                with contextlib.suppress(QueratorError):
                    self.retry(queue, done)
                raise

    def health(self) -> dict[str, Any]:
        """The answer to `GET /health`, even if it reports a failure."""
        return dict(msgspec.json.decode(self._get("/health").body))

    def metrics(self) -> str:
        """The answer to `GET /metrics`, in the text format of Prometheus."""
        return self._get("/metrics").body.decode()

    def _get(self, path: str) -> Answer:
        return _admitted(self._pool.exchange("GET", path, b"", {}, self.timeout), self.address)

    def abort(self) -> None:
        """Abort the requests of other threads, and refuse new ones. A waiting lease ends at once."""
        self._pool.abort()

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Calls):
    """The client for asyncio, based on httpx. Tests pass a `transport` to call an ASGI app in process."""

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        token: str = "",
        tls: ClientTls = SYSTEM_TLS,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        patient: bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        import httpx

        if transport is not None and endpoint is None:
            endpoint = "http://localhost"
        self.address, headers, self._tls = _connection(endpoint, token, tls)
        self.timeout = timeout
        self.patient = patient
        self._has_connected = False
        if transport is None and self.address.socket:
            transport = httpx.AsyncHTTPTransport(uds=self.address.socket)
        base_url = "http://localhost" if self.address.socket else str(self.address)
        verify = client_context(self._tls) if self.address.scheme == "https" and transport is None else True
        self._http = httpx.AsyncClient(transport=transport, base_url=base_url, headers=headers, verify=verify)

    async def send(self, call: Call[T]) -> T:
        """Send a call of `catalogue.py`."""
        import asyncio  # a slow import that the blocking client does not need

        timeout = self.timeout if call.timeout is None else call.timeout
        attempts = Attempts(call, timeout, patient=self.patient or self._has_connected)
        while True:
            body, listen = _body(call, attempts.remaining)
            try:
                answer = await self._exchange("POST", f"/v1/{call.path}", body, listen)
                return _read(call, answer, self.address)
            except QueratorError as error:
                delay = attempts.delay_after(error)
            await asyncio.sleep(delay)

    async def _exchange(self, method: str, path: str, body: bytes, listen: float) -> Answer:
        import httpx

        try:
            response = await self._http.request(method, path, content=body, headers=JSON_HEADERS, timeout=listen)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise unreachable(self.address, self._tls, error) from error
        except httpx.TimeoutException as error:
            raise TimedOut(f"no answer from {self.address} within {listen:.3g}s", hint="querator doctor") from error
        except (httpx.TransportError, ssl.SSLError) as error:  # httpx lets the alerts of TLS through
            if (failure := tls_failure(self.address, self._tls, error)) is not None:
                raise failure from error
            raise ConnectionLost(f"lost the connection to {self.address}: {error}", hint="querator doctor") from error
        self._has_connected = True
        check_not_tls(self.address, response.status_code)
        return Answer(response.status_code, response.headers.get("Content-Type", ""), response.content)

    @contextlib.asynccontextmanager
    async def leased(
        self,
        queue: str,
        n: int = 1,
        *,
        client_id: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it travels to the daemon
    ) -> AsyncIterator[list[messages.QueueLeaseItem]]:
        """The same as `Client.leased`."""
        try:
            items = (await self.lease(queue, n, client_id=client_id, timeout=timeout)).items
        except RetryRequest:
            yield []
            return
        ids = [item.id for item in items]
        try:
            yield items
        except BaseException as error:
            with contextlib.suppress(QueratorError):
                await self.retry(queue, ids, reason=_reason(error))
            raise
        await self.complete(queue, ids)

    async def batches(
        self,
        queue: str,
        n: int = 1,
        *,
        client_id: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it travels to the daemon
    ) -> AsyncIterator[list[messages.QueueLeaseItem]]:
        """The same as `Client.batches`. Use `contextlib.aclosing` if the loop may end early."""
        done: list[str] = []
        while True:
            try:
                reply = await self.lease(queue, n, client_id=client_id, complete_ids=done, timeout=timeout)
            except RetryRequest:
                if done:
                    await self.complete(queue, done)
                return
            done = [item.id for item in reply.items]
            try:
                yield reply.items
            except BaseException:
                with contextlib.suppress(QueratorError):
                    await self.retry(queue, done)
                raise

    async def health(self) -> dict[str, Any]:
        return dict(msgspec.json.decode((await self._get("/health")).body))

    async def metrics(self) -> str:
        return (await self._get("/metrics")).body.decode()

    async def _get(self, path: str) -> Answer:
        return _admitted(await self._exchange("GET", path, b"", self.timeout), self.address)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
