"""Starts this daemon for a benchmark, and sends the few calls that are not part of the load."""

from __future__ import annotations

import json
import platform
import signal
import subprocess
from importlib import metadata
from pathlib import Path

from bench.compare import wire_querator
from bench.compare.servers import Server, free_port, python_program
from bench.compare.wire import Address, PeerError, connect
from querator import build

EXIT_SECONDS_MAX = 60.0


class Querator(Server):
    peer = "querator"
    settings = "one journal fdatasync per turn of the event loop; leases are durable"

    @classmethod
    def version(cls) -> str:
        if not Path(python_program("querator")).exists():
            return ""
        root = Path(__file__).resolve().parents[2]
        command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()
        python = f"Python {platform.python_version()}"
        return f"{metadata.version('querator')} ({build.name()}, {commit or 'no git'}, {python})"

    def start(self) -> None:
        path, port = self.directory / "d.sock", free_port()
        data = str(self.directory / "data")
        command = [python_program("querator"), "daemon", "run", "--data", data, *self.options()]
        self._spawn([*command, "--socket", str(path), "--http", f"127.0.0.1:{port}"])
        self.addresses = {"tcp": Address(port=port), "unix": Address(path=str(path))}
        self._wait_for(lambda: call(self.addresses["unix"], "/v1/queues.list", {}))

    def options(self) -> list[str]:
        """More options for `querator daemon run`."""
        return []

    def create_queue(self, name: str, partitions: int) -> None:
        settings = {"lease_timeout": "30m", "expire_timeout": "24h", "requested_partitions": partitions}
        call(self.addresses["unix"], "/v1/queues.create", {"queue_name": name, **settings})

    def delete_queue(self, name: str) -> None:
        call(self.addresses["unix"], "/v1/queues.delete", {"queue_name": name, "force": True})

    def stop_process(self, how: signal.Signals) -> None:
        """Stops the daemon, and keeps its data for the next `start`."""
        process = self._processes.pop()
        process.send_signal(how)
        process.wait(EXIT_SECONDS_MAX)


def call(address: Address, path: str, request: dict[str, object]) -> dict[str, object]:
    body = json.dumps(request).encode()
    fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    head = f"POST {path} HTTP/1.1\r\n{fields}\r\n\r\n"
    answer: dict[str, object] = json.loads(_exchange(address, path, head.encode() + body))
    return answer


def fetch_metrics(address: Address) -> str:
    return _exchange(address, "/metrics", b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").decode()


def _exchange(address: Address, path: str, request: bytes) -> bytes:
    is_whole = wire_querator.is_whole_reply()
    sock = connect(address)
    sock.settimeout(60)
    try:
        sock.sendall(request)
        reply = b""
        while not is_whole(reply):
            data = sock.recv(65536)
            if not data:
                raise PeerError(f"{path}: connection closed after {reply!r}")
            reply += data
    finally:
        sock.close()
    if not reply.startswith(b"HTTP/1.1 200"):
        raise PeerError(f"{path}: {reply[:500]!r}")
    return reply.partition(b"\r\n\r\n")[2]
