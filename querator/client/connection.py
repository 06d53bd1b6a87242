"""Sends requests to the daemon over a Unix socket or TCP, with the standard library only.

The blocking client uses this instead of httpx, because importing httpx takes longer than a whole command
(docs/adr/0004). This module knows connections, and nothing about queues.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from querator.client.tls import check_not_tls, client_context, tls_failure
from querator.config import ClientTls
from querator.errors import QueratorError, TimedOut, Unreachable, UsageError

UNIX_SCHEMES: Final = ("unix", "http+unix")
IDLE_CONNECTIONS_MAX: Final = 64
CONNECT_TIMEOUT_SECONDS: Final = 5.0


_CODE: Final = b'{"code":'
"""The first bytes of an error on the wire."""


class ConnectionLost(Unreachable):
    """The connection was lost before the answer arrived."""


class Aborted(QueratorError):
    """This side has aborted the request."""


class Address(NamedTuple):
    """Where a daemon listens: `socket` is the path of a Unix socket. If it is empty, the other fields apply."""

    socket: str
    scheme: str = "http"
    host: str = "localhost"
    port: int = 0
    prefix: str = ""

    def __str__(self) -> str:
        return f"unix:{self.socket}" if self.socket else f"{self.scheme}://{self.host}:{self.port}{self.prefix}"


def parse_address(text: str) -> Address:
    """Read `http://host:port`, `https://…`, `unix:/path`, or just the path of a socket."""
    if text.startswith(("/", "./", "../", "~")):
        return Address(text)
    if not text.startswith(UNIX_SCHEMES) and any(character in text for character in "@?#"):
        # The error does not show the text, which may contain a secret.
        raise UsageError("an endpoint contains no user, password or query", hint=f"{_ENDPOINT_HINT}; {_TOKEN_HINT}")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"'{text}' is not an endpoint: {error}", hint=_ENDPOINT_HINT) from None
    if parts.scheme in UNIX_SCHEMES:
        path = unquote(parts.netloc + parts.path)
        if not path:
            raise UsageError(f"'{text}' names no socket", hint=_ENDPOINT_HINT)
        return Address(path)
    if parts.scheme in ("http", "https") and parts.hostname:
        default_port = 443 if parts.scheme == "https" else 80
        return Address("", parts.scheme, parts.hostname, port or default_port, parts.path.rstrip("/"))
    raise UsageError(f"'{text}' is not an endpoint", hint=_ENDPOINT_HINT)


_ENDPOINT_HINT: Final = "an endpoint looks like http://localhost:2319 or unix:/run/querator/querator.sock"
_TOKEN_HINT: Final = "a token comes from --token-file, QUERATOR_TOKEN_FILE or QUERATOR_TOKEN"


def unreachable(address: Address, tls: ClientTls, error: Exception) -> Unreachable:
    """The error for a failed connection, with a hint what to try next."""
    if (failure := tls_failure(address, tls, error)) is not None:
        return failure
    if isinstance(error, FileNotFoundError):
        return Unreachable(f"no daemon at {address}: there is no such socket", hint="querator daemon run")
    if isinstance(error, PermissionError):
        return Unreachable(
            f"no permission to use {address}",
            hint="the socket belongs to the user who runs the daemon; run the command as that user, or use --endpoint",
        )
    if isinstance(error, TimeoutError):
        return Unreachable(f"no answer from {address}", hint="querator doctor")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Unreachable(f"no daemon at {address}: {reason}", hint="querator daemon run, or see querator doctor")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except BaseException:
            self.sock.close()
            self.sock = None
            raise


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes


def _read(response: http.client.HTTPResponse) -> Answer:
    """Read the whole answer. If the daemon cut it off, its last line has the reason, and is returned as the answer."""
    try:
        return Answer(response.status, response.getheader("Content-Type", ""), response.read())
    except http.client.IncompleteRead as error:
        reason = error.partial.rpartition(b"\n")[2]
        code = reason.removeprefix(_CODE)[:3]
        if not reason.startswith(_CODE) or not code.isdigit():
            raise
        response.will_close = True
        return Answer(int(code), "application/json", reason)


class ConnectionPool:
    """Keep-alive connections to one daemon. Threads may share a pool."""

    def __init__(self, address: Address, headers: dict[str, str], tls: ClientTls) -> None:
        self.address = address
        self.has_connected = False
        self._headers = headers
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._idle: deque[http.client.HTTPConnection] = deque()
        self._busy: set[http.client.HTTPConnection] = set()
        self._is_aborted = False
        self.on_standby: Callable[[str, str], None] = lambda owner, seconds: None
        """Called for every answer of a standby, with the owner of its archive and the seconds of its lag."""

    def notice(self, response: http.client.HTTPResponse) -> None:
        """Look at the head of an answer."""
        owner = response.getheader("Querator-Standby-Of")
        if owner is not None:
            self.on_standby(owner, response.getheader("Querator-Lag-Seconds", "?"))

    def exchange(
        self, method: str, path: str, body: bytes, headers: dict[str, str], timeout: float, *, fresh: bool = False
    ) -> Answer:
        """Send a request and read its answer. `fresh` uses a new connection, because an idle one may be dead."""
        connection = None if fresh else self._take_idle()
        if connection is None:
            connection = self.connect(timeout)
        assert connection.sock is not None
        connection.sock.settimeout(timeout)
        self._busy.add(connection)
        try:
            if self._is_aborted:
                raise Aborted
            connection.request(method, self.address.prefix + path, body, self._headers | headers)
            response = connection.getresponse()
            self.notice(response)
            answer = _read(response)
            check_not_tls(self.address, answer.status)
        except TimeoutError:
            connection.close()
            raise TimedOut(f"no answer from {self.address} within {timeout:.3g}s", hint="querator doctor") from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if self._is_aborted:
                raise Aborted from None
            if (failure := tls_failure(self.address, self._tls, error)) is not None:
                raise failure from None
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ConnectionLost(f"lost the connection to {self.address}: {reason}", hint="querator doctor") from error
        except BaseException:
            # After Ctrl-C, the rest of the old answer would still arrive on this connection.
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        if response.will_close or len(self._idle) >= IDLE_CONNECTIONS_MAX:
            connection.close()
        else:
            self._idle.append(connection)
        return answer

    def _take_idle(self) -> http.client.HTTPConnection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        """Open a new connection. The caller closes it."""
        address = self.address
        connection: http.client.HTTPConnection
        if address.socket:
            connection = _UnixConnection(address.socket)
        elif address.scheme == "https":
            if self._context is None:
                self._context = client_context(self._tls)
            connection = http.client.HTTPSConnection(address.host, address.port, context=self._context)
        else:
            connection = http.client.HTTPConnection(address.host, address.port)
        connection.timeout = min(timeout, CONNECT_TIMEOUT_SECONDS)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise unreachable(address, self._tls, error) from None
        self.has_connected = True
        return connection

    def abort(self) -> None:
        """Abort all requests, and refuse new ones. The daemon and the waiting threads see a closed connection."""
        self._is_aborted = True
        for connection in list(self._busy):
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    # The method of a TLS socket would also take the TLS state away from the thread that reads.
                    socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        while (connection := self._take_idle()) is not None:
            connection.close()
