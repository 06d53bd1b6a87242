"""A daemon in a process of its own, with two storages, that can be killed at a named step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from querator import Client
from querator.errors import QueratorError
from querator.wire import messages as m

WAIT_SECONDS = 30.0
START = (
    "import sys; from querator.config import daemon_config; from querator.daemon import server;"
    " server.run(daemon_config(config=sys.argv[1], environ={}))"
)


class Process:
    def __init__(self, directory: Path, failpoint: str = "") -> None:
        self.directory = directory
        self.log = directory / "log"
        self.config = directory / "config.toml"
        self.config.write_text(
            'data = "data"\n[[storages]]\nname = "default"\ndirectory = "default"\n'
            '[[storages]]\nname = "other"\ndirectory = "other"\naffinity = 0\n'
        )
        self.start(failpoint)

    def start(self, failpoint: str = "") -> None:
        environment = {**os.environ, "QUERATOR_FAILPOINT": failpoint}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", START, str(self.config)], stdout=log, stderr=log, env=environment
            )
        self.endpoint = f"unix:{self.directory / 'data' / 'querator.sock'}"
        self.client = Client(self.endpoint, timeout=WAIT_SECONDS)
        self.until_answering()

    def until_answering(self) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                self.client.list_queues(timeout=0.2)
                return
            except QueratorError:
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < end, "it does not answer"

    def until_killed(self) -> None:
        assert self.process.wait(WAIT_SECONDS) == -signal.SIGKILL, self.log.read_text()
        self.client.close()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.until_killed()

    def stop(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(WAIT_SECONDS)

    # -- looking

    def jobs_ended(self) -> list[m.Job]:
        end = time.monotonic() + 2 * WAIT_SECONDS
        while any(job.state == "running" for job in self.client.list_jobs()):
            assert time.monotonic() < end, self.client.list_jobs()
            time.sleep(0.02)
        return self.client.list_jobs()

    def contents(self, queue: str = "q") -> list[str]:
        found = []
        for status in self.client.list_partitions(queue):
            for list_ in (self.client.list_items, self.client.list_scheduled):
                found += [item.payload.decode() for item in list_(queue, partition=status.partition, limit=100_000)]
        return found
