"""Requests per second through the front alone, on the fast path and on the ASGI path, with a service that does nothing.

    python -m bench.transport [--connections 32] [--seconds 3] [--tcp]

Server and client are separate processes. The client uses plain sockets, so that it is not the bottleneck. On a busy
machine, compare the CPU time per request.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import select
import socket
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

BODY = b'{"queue_name":"q","request_timeout":"5s","items":[{"utf8":"' + b"x" * 200 + b'"}]}'
REQUEST = (
    b"POST /v1/queue.produce HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % len(BODY)
) + BODY
ANSWER_END = b'{"code":200}'
WARM_UP_SECONDS = 0.5
SECONDS_MAX = 60.0


def serve(listener: socket.socket, way: str, ready: Connection) -> None:
    import uvicorn
    import uvloop

    from querator.clock import SystemClock
    from querator.config import AccessConfig
    from querator.daemon.access import Access
    from querator.daemon.http import asgi, routes
    from querator.daemon.http.dispatch import Calls
    from querator.daemon.http.gate import Gate
    from querator.daemon.http.heads import RememberedHeads
    from querator.daemon.http.protocol import QueratorProtocol
    from querator.daemon.metrics import Metrics
    from querator.wire.messages import Reply

    class NoArchive:
        is_standby = False

    class Idle:
        archive = NoArchive()

        def call(self, route: str, request: Any, respond: Any, caller: Any) -> None:
            respond(Reply(code=200))

        def health(self, caller: Any) -> tuple[bool, str]:
            return True, ""

    service = Idle()
    metrics = Metrics(dict, lambda: 0)
    calls = Calls(
        service, routes.routes_by_path(), metrics.http, Access(AccessConfig(), SystemClock(), Path("/nonexistent"))
    )
    gate = Gate(calls)
    if way == "asgi":
        RememberedHeads.learn = lambda *_: None  # type: ignore[method-assign, assignment]
    config = uvicorn.Config(
        asgi.application(calls, metrics),
        http=QueratorProtocol.behind(gate),
        interface="asgi3",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
    ready.send(os.getpid())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(uvicorn.Server(config).serve(sockets=[listener]))


class Client:
    """Opens the connections. Each has one request under way."""

    def __init__(self, address: Any, family: int, connections: int) -> None:
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        for _ in range(connections):
            connection = socket.socket(family)
            connection.connect(address)
            if family == socket.AF_INET:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[connection.fileno()] = connection
            self._poll.register(connection.fileno(), select.EPOLLIN)
            connection.sendall(REQUEST)

    def run(self, seconds: float) -> tuple[int, float]:
        """The number of answers, and the seconds they took."""
        count, started = 0, time.perf_counter()
        end = started + min(seconds, SECONDS_MAX)
        while (now := time.perf_counter()) < end:
            for descriptor, _ in self._poll.poll(1):
                connection = self._sockets[descriptor]
                data = connection.recv(65_536)
                if not data:
                    raise SystemExit("the server closed a connection")
                if data.endswith(ANSWER_END):
                    connection.send(REQUEST)
                    count += 1
        return count, now - started


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(way: str, connections: int, seconds: float, is_tcp: bool, directory: str) -> str:
    listener = socket.socket(socket.AF_INET if is_tcp else socket.AF_UNIX)
    listener.bind(("127.0.0.1", 0) if is_tcp else f"{directory}/{way}.sock")
    listener.listen(connections)
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(listener, way, there), daemon=True)
    server.start()
    try:
        pid = here.recv()
        client = Client(listener.getsockname(), listener.family, connections)
        client.run(WARM_UP_SECONDS)
        before = cpu_seconds(pid)
        count, took = client.run(seconds)
        cpu = cpu_seconds(pid) - before
    finally:
        server.terminate()
        server.join()
    rate, each, share = count / took, 1e6 * cpu / count, cpu / took
    return f"{way:<5} {rate:>9,.0f} requests/s   {each:>6.1f} µs CPU each   {share:>4.0%} of a core"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--tcp", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for way in ("hot", "asgi"):
            print(measure(way, options.connections, options.seconds, options.tcp, directory), flush=True)


if __name__ == "__main__":
    main()
