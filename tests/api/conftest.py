"""Daemons with the test clock, for tests that send plain HTTP requests and use no client library."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.daemons import Daemon
from tests.waiting import PATIENCE_SECONDS, until

_names = itertools.count(1)


class ApiDaemon(Daemon):
    """A daemon with a shortcut for each call. Threads may share it."""

    def start(self, failpoint: str = "") -> None:
        self._local = threading.local()
        super().start(failpoint)

    # -- calls

    def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection(self.http, timeout=PATIENCE_SECONDS)
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
        """Starts a call in a thread. Returns a function that waits for the result."""
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

    def until_parked(self, queue: str, count: int = 1) -> None:
        until(lambda: self.stats(queue).get("lease_waiting", 0) == count)

    def advance(self, by: str) -> str:
        return self.ok("clock.advance", by=by)["now"]  # type: ignore[no-any-return]

    def now(self) -> str:
        return self.advance("0s")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiDaemon]:
    """One daemon for all tests of a module. Each test has its own queues, but they share the clock."""
    with ApiDaemon(tmp_path_factory.mktemp("d"), "--test-clock", http=True) as daemon:
        yield daemon


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], ApiDaemon]]:
    """Starts a daemon for one test, which may restart it or set its clock."""
    with contextlib.ExitStack() as started:
        yield lambda: started.enter_context(ApiDaemon(tmp_path_factory.mktemp("d"), "--test-clock", http=True))
