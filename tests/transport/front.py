"""A daemon's front without queues: the real protocol and app on real sockets, and a fake service behind them.

The name of the queue in a request chooses what the fake service does; see `StandIn`.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
import uvloop

from querator.clock import SystemClock
from querator.config import AccessConfig, TlsConfig
from querator.daemon.access import Access, Caller
from querator.daemon.http import asgi, routes
from querator.daemon.http.dispatch import Abandon, Calls, Respond
from querator.daemon.http.gate import Gate
from querator.daemon.http.protocol import QueratorProtocol
from querator.daemon.metrics import Metrics
from querator.daemon.tls import ServerTls
from querator.errors import InvalidRequest
from querator.wire import messages
from tests.pki import Pki

PATIENCE_SECONDS = 20
OK = messages.Reply(code=200)
CUT_OFF = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)
"""What a client sees when the front ends the connection while it sends."""


class NoArchive:
    """What a service without an archive reports."""

    is_standby = False

    async def catch_up(self) -> None:
        return None

    def lag(self) -> None:
        return None

    def notes(self) -> list[str]:
        return []


class StandIn:
    """Answers by queue name: `park` waits until told, `later` answers in the next turn of the loop, `bad` is refused,
    `boom` raises, `twice` answers twice, `large` answers with as many bytes as batch_size says, all others succeed."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.reset()

    def reset(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.parked: list[Respond] = []
        self.abandoned = 0
        self.alone: list[bool] = []
        """Of each request, whether its client was taken for the only active one."""

    def call(
        self, route: str, request: Any, respond: Respond, caller: Caller, is_alone: bool = False
    ) -> Abandon | None:
        queue = getattr(request, "queue_name", "")
        with self.changed:
            self.requests.append((route, request))
            self.alone.append(is_alone)
            if queue == "park":
                self.parked.append(respond)
            self.changed.notify_all()
        if queue == "park":
            return self._abandon
        if queue == "later":
            asyncio.get_running_loop().call_soon(respond, OK)
        elif queue == "bad":
            respond(InvalidRequest("no good; 'é'"))
        elif queue == "boom":
            raise RuntimeError("boom")
        elif queue == "twice":
            respond(OK)
            respond(InvalidRequest("again"))
        elif queue == "large":
            respond(
                messages.QueueLeaseResponse("large", 0, [messages.QueueLeaseItem(encoding="x" * request.batch_size)])
            )
        elif queue == "unspeakable":
            respond(object())
        elif route == "queue.lease":
            respond(messages.QueueLeaseResponse(queue, 3, [messages.QueueLeaseItem(id="i", bytes_=b"payload")]))
        else:
            respond(OK)
        return None

    def _abandon(self) -> None:
        with self.changed:
            self.abandoned += 1
            self.changed.notify_all()

    def until(self, true: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(true, PATIENCE_SECONDS), "it never happened"

    archive = NoArchive()

    def health(self, caller: Caller) -> tuple[bool, str]:
        return True, ""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    reason: str
    """The words behind the status."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """A plain socket, for requests that an HTTP library would refuse to send."""

    def __init__(self, address: str | tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.socket.connect(address)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, *, head_only: bool = False) -> Answer:
        status = self.file.readline()
        assert status.startswith(b"HTTP/1.1 "), f"no answer but {status!r}"
        headers = {}
        while line := self.file.readline().strip().decode():
            name, _, value = line.partition(":")
            assert name not in headers, f"{name} twice"
            headers[name] = value.strip()
        size = 0 if head_only else int(headers.get("content-length", "0"))
        _, code, reason = status.decode().rstrip("\r\n").split(" ", 2)
        return Answer(int(code), headers, self.file.read(size), reason)

    def is_at_end(self) -> bool:
        try:
            return self.file.read(1) == b""
        except CUT_OFF:
            return True

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def request(path: str, body: bytes = b"{}", *lines: str, method: str = "POST", version: str = "HTTP/1.1") -> bytes:
    """The bytes of a request, with a Content-Length unless it is chunked."""
    head = [f"{method} {path} {version}", "Host: localhost", *lines]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in lines):
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def produce(queue: str = "q", *lines: str) -> bytes:
    return request("/v1/queue.produce", json.dumps({"queue_name": queue}).encode(), *lines)


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"


class _TellingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: threading.Event, tls: ServerTls | None) -> None:
        super().__init__(config)
        self._ready = ready
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is not None:
            self.config.ssl = self._tls.context
        await super().startup(sockets)
        self._ready.set()


class Front:
    """A running front. If `way` is "hot", known heads take the fast path. If it is "asgi", no request does. If it is
    "tls", known heads take the fast path, and both sockets speak TLS."""

    def __init__(self, way: str, directory: Path) -> None:
        self.way = way
        self.service = StandIn()
        self.metrics = Metrics(dict, lambda: 0)
        self.access = Access(AccessConfig(), SystemClock(), directory)
        by_path = routes.routes_by_path()
        if way == "asgi":
            by_path = {path: route._replace(hot=False) for path, route in by_path.items()}
        self.calls = Calls(self.service, by_path, self.metrics.http, self.access)
        self.gate = Gate(self.calls)
        self.seen_by_asgi = 0
        app = asgi.application(self.calls, self.metrics)

        async def counting(scope: Any, receive: Any, send: Any) -> None:
            self.seen_by_asgi += 1
            await app(scope, receive, send)

        self.unix = str(directory / "front.sock")
        unix, tcp = socket.socket(socket.AF_UNIX), socket.socket()
        unix.bind(self.unix)
        tcp.bind(("127.0.0.1", 0))
        self.tcp = tcp.getsockname()
        self.config = uvicorn.Config(
            counting,
            http=QueratorProtocol.behind(self.gate),
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=5,
        )
        self._ready = threading.Event()
        self._client_tls: ssl.SSLContext | None = None
        tls: ServerTls | None = None
        if way == "tls":
            pki = Pki(directory / "pki")
            self._client_tls = pki.client_context()
            tls = ServerTls(TlsConfig(Path(pki.path("server.crt")), Path(pki.path("server.key"))))
        self.server = _TellingServer(self.config, self._ready, tls)
        self._wires: list[Wire] = []
        self._thread = threading.Thread(target=self._run, args=([unix, tcp],))
        self._thread.start()
        assert self._ready.wait(PATIENCE_SECONDS)

    def _run(self, sockets: list[socket.socket]) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            await self.server.serve(sockets=sockets)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    def on_loop(self, action: Callable[[], Any]) -> Any:
        """Calls a function in the server's thread, and returns its result."""

        async def run() -> Any:
            return action()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE_SECONDS)

    def connect(self, *, tcp: bool = False) -> Wire:
        self._wires.append(Wire(self.tcp if tcp else self.unix, self._client_tls))
        return self._wires[-1]

    def familiar(self, *requests: bytes) -> None:
        """Sends requests once, so that the front knows their heads. This has no effect on the ASGI path."""
        wire = self.connect()
        for one in requests:
            wire.send(one)
            assert wire.answer().status in (200, 400, 454, 455, 500)
        wire.close()

    def ask(self, data: bytes) -> Answer:
        """The answer to a request. On the fast path it is sent twice, because only the second one takes that path."""
        wire = self.connect()
        if self.way != "asgi":
            wire.send(data)
            wire.answer()
        wire.send(data)
        return wire.answer()

    def get(self, path: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(*self.tcp, timeout=PATIENCE_SECONDS)
        if self._client_tls is not None:
            connection = http.client.HTTPSConnection(*self.tcp, timeout=PATIENCE_SECONDS, context=self._client_tls)
        connection.request("GET", path)
        return connection.getresponse()

    def release(self, result: Any = OK) -> None:
        """Answers all parked requests."""

        def answer() -> None:
            parked, self.service.parked = self.service.parked, []
            for respond in parked:
                respond(result)

        self.on_loop(answer)

    def hang_up(self) -> None:
        for wire in self._wires:
            wire.close()
        self._wires.clear()

    def stop(self) -> None:
        self.server.should_exit = True
        self.hang_up()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
