"""A real daemon process in a directory of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 30
QUERATOR = [sys.executable, "-m", "querator.cli.main"]


def environment(directory: Path) -> dict[str, str]:
    """Ours, without whatever settings the person at the keyboard has."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("QUERATOR_", "XDG_"))}
    return inherited | {"HOME": str(directory)}


def querator(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*QUERATOR, *words],
        capture_output=True,
        text=True,
        env=environment(directory),
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_SECONDS,
    )


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_SECONDS)
        self.sock.connect(str(self._path))


class Daemon:
    """Started, and known to answer, when this returns; or ended, with `code` and `errors` to look at."""

    def __init__(self, directory: Path, *words: str, data: str = "data", sock: str = "q.sock") -> None:
        self.directory = directory
        self.data = directory / data
        self.socket = directory / sock
        self.process = subprocess.Popen(
            [*QUERATOR, "daemon", "run", "--data", str(self.data), "--socket", str(self.socket), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment(directory),
        )
        assert self.process.stderr is not None
        self.lines: list[str] = []
        for line in self.process.stderr:
            self.lines.append(line)
            if "querator" in line and "started" in line:
                break
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr or ()), daemon=True)
        self._reader.start()

    @property
    def errors(self) -> str:
        self.process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        return "".join(self.lines)

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    @property
    def code(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)

    def call(self, path: str, body: dict[str, Any] | None = None, *, address: str = "") -> tuple[int, dict[str, Any]]:
        """One POST (GET for /health) on the Unix socket, or on a TCP address."""
        connection = http.client.HTTPConnection(address) if address else UnixConnection(self.socket)
        with contextlib.closing(connection):
            connection.request(
                "POST" if body is not None else "GET", path, json.dumps(body) if body is not None else None
            )
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def create(self, queue: str) -> None:
        body = {"queue_name": queue, "lease_timeout": "1m", "expire_timeout": "1h", "requested_partitions": 1}
        assert self.call("/v1/queues.create", body) == (200, {"code": 200})

    def signal(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.code

    def end(self) -> None:
        """Whatever state it is in."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
