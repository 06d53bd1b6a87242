"""A real daemon in a temporary directory, for tests that need sockets, processes and crashes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from querator.client.clients import Client


class Daemon:
    """Starts at once; `kill` is a crash, `start` after it a restart on the same data."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "q.sock"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.http = f"127.0.0.1:{free.getsockname()[1]}"
        self.endpoint = f"http://{self.http}"
        self.log: list[dict[str, object]] = []
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "querator.cli.main", "daemon", "run"]
        options = ["--data", str(self.directory / "data"), "--socket", str(self.socket), "--http", self.http]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QUERATOR_")}
        self.process = subprocess.Popen(
            command + options, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:  # blocks until the daemon says that it has started
            self.log.append(json.loads(line))
            if "started" in str(self.log[-1].get("message")):
                break
        else:
            raise AssertionError(f"the daemon did not start: {self.log}")

    def client(self, **settings: float) -> Client:
        return Client(self.endpoint, **settings)  # type: ignore[arg-type]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.stderr is not None
            self.process.stderr.read()
            self.process.wait(15)
        if self.process.stderr is not None:
            self.process.stderr.close()
