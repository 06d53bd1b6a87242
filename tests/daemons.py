"""The one way in which tests start a daemon as a process of its own.

    with Daemon(tmp_path, "--test-clock") as daemon:
        daemon.client.create_queue("q")
        daemon.restart(signal.SIGKILL)
        assert daemon.client.list_queues()

`Daemon(directory, *options)` returns when the daemon serves. Its data is in `directory/data`, its socket is
`directory/q.sock`, its log is `directory/daemon.log`. The options go to `querator daemon run` as they are, for example
"--test-clock" or "--config", str(path). Keyword arguments:

- `http=True` serves on a free port of 127.0.0.1 as well. The port stays the same across restarts.
- `environment={"NAME": "value"}` adds variables. Settings of the person who runs the tests never reach the daemon.
- `failpoint="journal.synced:3"` has the daemon kill itself when it reaches this step for the third time.
- `may_fail=True` accepts a daemon that ends instead of serving. `exit_code` and `output` then say why.

`daemon.client` is a Client on the socket. `daemon.connect()` makes another one, on TCP if the daemon has a port.
`daemon.call(path, body)` sends one plain HTTP request. The end of the `with` block kills the daemon; a test of a clean
end calls `stop()`, which returns the exit code.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from querator import Client
from tests import ROOT
from tests.waiting import PATIENCE_SECONDS, until

QUERATOR = [sys.executable, "-m", "querator.cli.main"]
TWO_STORAGES = """
[[storages]]
name = "default"
directory = "{directory}/default"

[[storages]]
name = "other"
directory = "{directory}/other"
affinity = 0
"""
"""A configuration with a second storage, which takes partitions only when a call names it."""


def clean_environment(home: Path) -> dict[str, str]:
    """The environment of a command: ours without Querator's settings, and with a home of its own. The build is ours."""
    settings = ("QUERATOR_", "XDG_")
    inherited = {k: v for k, v in os.environ.items() if k == "QUERATOR_PURE" or not k.startswith(settings)}
    return inherited | {"HOME": str(home), "PYTHONPATH": str(ROOT)}


def querator(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        [*QUERATOR, *words],
        capture_output=True,
        text=True,
        env=clean_environment(home),
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_SECONDS,
    )


def two_storages(directory: Path) -> list[str]:
    """Options for a daemon with the storages `default` and `other`, each in a directory of that name."""
    config = directory / "querator.toml"
    config.write_text(TWO_STORAGES.format(directory=directory))
    return ["--config", str(config)]


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_SECONDS)
        self.sock.connect(str(self._path))


class Daemon:
    """A daemon process. The module's docstring says how to use it."""

    process: subprocess.Popen[bytes]

    def __init__(
        self,
        directory: Path,
        *options: str,
        http: bool = False,
        environment: Mapping[str, str] | None = None,
        failpoint: str = "",
        may_fail: bool = False,
        data: str = "data",
        socket: str = "q.sock",
        log: str = "daemon.log",
    ) -> None:
        self.directory = directory
        self.data = directory / data
        self.socket = directory / socket
        self.log_file = directory / log
        self.stdout_file = self.log_file.with_suffix(".out")
        self.http = "127.0.0.1:0" if http else ""
        """The address on TCP, or nothing."""
        self._options = options
        self._environment = clean_environment(directory) | dict(environment or {})
        self._may_fail = may_fail
        self._client: Client | None = None
        self.start(failpoint)

    # -- its life

    def start(self, failpoint: str = "") -> None:
        """Starts the daemon on the data that it had before, and returns when it serves."""
        words = ["--data", str(self.data), "--socket", str(self.socket), *self._options]
        words += ["--http", self.http] if self.http else []
        with open(self.log_file, "ab") as log, open(self.stdout_file, "wb") as stdout:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                [*QUERATOR, "daemon", "run", *words],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=log,
                env=self._environment | {"QUERATOR_FAILPOINT": failpoint},
                start_new_session=True,  # signals to the group of the tests are not for the daemon
            )
        until(lambda: self._serves() or self.process.poll() is not None, "the daemon does not serve")
        if self.process.poll() is not None and not self._serves():
            assert self._may_fail, f"the daemon did not start:\n{self.output}"
        elif self.http:
            (self.http,) = re.findall(r'"http":"([^",]+)"', self.output)

    def _serves(self) -> bool:
        return re.search(r"querator \S+ started", self.output) is not None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal that ends the daemon, waits for the end and returns the exit code."""
        self._close_client()
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.exit_code

    def kill(self) -> None:
        """Ends the daemon as a crash would."""
        self.stop(signal.SIGKILL)

    def restart(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.stop(number)
        self.start()

    def until_killed(self) -> None:
        """Waits until the daemon has killed itself at its failpoint."""
        assert self.exit_code == -signal.SIGKILL, self.output
        self._close_client()

    @property
    def exit_code(self) -> int:
        """The exit code, as soon as the process has ended."""
        return self.process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # -- what it says

    @property
    def output(self) -> str:
        """What the daemon has written to standard error, which is its log, since its last start."""
        with open(self.log_file, "rb") as log:
            log.seek(self._log_start)
            return log.read().decode()

    @property
    def log(self) -> list[dict[str, Any]]:
        """Records of its log since its last start."""
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{") and line.endswith("}")]

    # -- asking it

    @property
    def endpoint(self) -> str:
        """The address as clients write it: on TCP if the daemon listens there, otherwise its socket."""
        return f"http://{self.http}" if self.http else f"unix:{self.socket}"

    @property
    def client(self) -> Client:
        """A client on the socket, which lives as long as the process."""
        if self._client is None:
            self._client = Client(f"unix:{self.socket}", timeout=30)
        return self._client

    def connect(self, **settings: Any) -> Client:
        """A client of the caller's own."""
        return Client(self.endpoint, **settings)

    def call(self, path: str, body: dict[str, Any] | None = None, *, address: str = "") -> tuple[int, dict[str, Any]]:
        """Sends a POST, or a GET without a body, to the socket or to a TCP address. Returns status and JSON."""
        connection = http.client.HTTPConnection(address) if address else UnixConnection(self.socket)
        with contextlib.closing(connection):
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def _close_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
