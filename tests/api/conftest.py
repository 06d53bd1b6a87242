"""Daemons as processes, with the test clock, for tests that speak to the wire and nothing else."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PATIENCE_SECONDS = 30
_names = itertools.count(1)


class Daemon:
    """A daemon, and shortcuts for what tests ask of it. Calls are safe from several threads."""

    def __init__(self, *words: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="querator-test-"))
        self.words = words
        self._local = threading.local()
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "querator.cli.main", "daemon", "run", "--http", "127.0.0.1:0"]
        paths = ["--data", str(self.directory / "data"), "--socket", str(self.directory / "s")]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("QUERATOR_", "XDG_"))}
        self.process = subprocess.Popen(
            [*command, *paths, *self.words],
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**environment, "HOME": str(self.directory)},
        )
        self.log: list[dict[str, Any]] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(json.loads(line))
            if "http" in self.log[-1]:
                self.port = int(self.log[-1]["http"].rpartition(":")[2])
                break
        else:
            raise AssertionError(f"it did not start: {self.log}")
        threading.Thread(target=self._read_log, args=(self.process,), daemon=True).start()
        self._local = threading.local()

    def _read_log(self, process: subprocess.Popen[str]) -> None:
        for line in process.stderr or ():
            if line.startswith("{"):
                self.log.append(json.loads(line))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)

    def restart(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.stop(number)
        self.start()

    def destroy(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_SECONDS)
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- calls

    def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection(
                "127.0.0.1", self.port, timeout=PATIENCE_SECONDS
            )
        connection.request("POST", "/v1/" + path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def ok(self, path: str, **body: Any) -> dict[str, Any]:
        status, reply = self.post(path, **body)
        assert status == 200, reply
        return reply

    def error(self, path: str, **body: Any) -> tuple[int, str]:
        status, reply = self.post(path, **body)
        assert status != 200, reply
        assert set(reply) == {"code", "code_text", "message"} and reply["code"] == status
        return status, reply["message"]

    def in_background(self, call: Callable[..., Any], *args: Any, **more: Any) -> Callable[[], Any]:
        """Starts a call in a thread; the function that is returned waits for its result."""
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(call(*args, **more)), daemon=True)
        thread.start()

        def result() -> Any:
            thread.join(PATIENCE_SECONDS)
            assert results, "never answered"
            return results[0]

        return result

    # -- shortcuts

    def create(self, name: str = "", **more: Any) -> str:
        name = name or f"q{next(_names)}"
        settings = {"lease_timeout": "1m", "expire_timeout": "24h", "requested_partitions": 1, **more}
        assert self.ok("queues.create", queue_name=name, **settings) == {"code": 200}
        return name

    def produce(self, queue: str, *texts: str, **more: Any) -> None:
        items = [{"utf8": text, **more} for text in texts]
        assert self.ok("queue.produce", queue_name=queue, request_timeout="10s", items=items) == {"code": 200}

    def lease(self, queue: str, n: int = 1, timeout: str = "5s", **more: Any) -> tuple[int, dict[str, Any]]:
        client = more.pop("client_id", f"c{next(_names)}")
        return self.post(
            "queue.lease", queue_name=queue, batch_size=n, client_id=client, request_timeout=timeout, **more
        )

    def take(self, queue: str, n: int = 1, **more: Any) -> list[dict[str, Any]]:
        status, reply = self.lease(queue, n, **more)
        assert status == 200, reply
        items: list[dict[str, Any]] = reply["items"]
        return items

    def ids(self, queue: str, n: int = 1, **more: Any) -> list[str]:
        return [item["id"] for item in self.take(queue, n, **more)]

    def complete(self, queue: str, ids: list[str], partition: int = 0) -> tuple[int, dict[str, Any]]:
        return self.post("queue.complete", queue_name=queue, partition=partition, ids=ids, request_timeout="5s")

    def retry(self, queue: str, item_id: str, **more: Any) -> tuple[int, dict[str, Any]]:
        return self.post("queue.retry", queue_name=queue, items=[{"id": item_id, **more}])

    def items(self, queue: str, partition: int = 0, **more: Any) -> list[dict[str, Any]]:
        reply = self.ok("storage/items.list", queue_name=queue, partition=partition, **more)
        return reply.get("items", [])  # type: ignore[no-any-return]

    def scheduled(self, queue: str, partition: int = 0) -> list[dict[str, Any]]:
        reply = self.ok("storage/scheduled.list", queue_name=queue, partition=partition)
        return reply.get("items", [])  # type: ignore[no-any-return]

    def stats(self, queue: str) -> dict[str, Any]:
        return self.ok("queue.stats", queue_name=queue)["logicalQueues"][0]  # type: ignore[no-any-return]

    def until(self, check: Callable[[], Any]) -> None:
        """Until something that another connection causes can be seen."""
        for _ in range(20_000):
            if check():
                return
        raise AssertionError("it never happened")

    def until_parked(self, queue: str, count: int = 1) -> None:
        self.until(lambda: self.stats(queue).get("lease_waiting", 0) == count)

    def advance(self, by: str) -> str:
        return self.ok("clock.advance", by=by)["now"]  # type: ignore[no-any-return]

    def now(self) -> str:
        return self.advance("0s")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    started = Daemon("--test-clock")
    yield started
    started.destroy()


@pytest.fixture
def fresh() -> Iterator[Callable[..., Daemon]]:
    started: list[Daemon] = []

    def start(*words: str) -> Daemon:
        started.append(Daemon(*(words or ("--test-clock",))))
        return started[-1]

    yield start
    for one in started:
        one.destroy()
