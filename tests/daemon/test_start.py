"""What a started daemon has imported. Imports are most of the time that it takes to start, and half of its memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RARELY_NEEDED = {
    "google.protobuf": "requests in protobuf",
    "numpy": "nothing",
    "obstore": "an archive",
    "pandas": "nothing",
    "prometheus_client": "scrapes",
    "querator.daemon.archive": "an archive",
    "pyarrow": "items that go into partition files, and bulk data",
}

PROGRAM = """
import http.client, json, os, signal, socket, sys, threading, time
from querator.config import daemon_config
from querator.daemon import server

config = daemon_config(data=sys.argv[1])


def call(path, body=None):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(config.socket))
    connection.request("POST" if body else "GET", path, json.dumps(body) if body else None)
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, text
    return text


def use():
    try:
        for _ in range(1200):
            try:
                call("/health")
                break
            except OSError:
                time.sleep(0.05)
        loaded = [sorted(sys.modules)]
        for path, body in json.loads(sys.argv[2]):
            text = call(path, body)
        loaded.append(sorted(sys.modules))
        print(json.dumps(loaded))
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


threading.Thread(target=use).start()
server.run(config)
"""


def modules(data: Path, *calls: tuple[str, dict[str, object]]) -> list[set[str]]:
    """The modules of a daemon that has just started, and of the same daemon after these calls."""
    program = [sys.executable, "-c", PROGRAM, str(data), json.dumps(calls)]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    return [set(names) for names in json.loads(done.stdout)]


def test_a_started_daemon_has_imported_nothing_that_only_rare_calls_need(tmp_path: Path) -> None:
    started, used = modules(
        tmp_path / "data",
        (
            "/v1/queues.create",
            {"queue_name": "a", "lease_timeout": "1m", "expire_timeout": "1h", "requested_partitions": 2},
        ),
        ("/v1/queue.produce", {"queue_name": "a", "request_timeout": "1m", "items": [{"utf8": "x"}]}),
        ("/v1/queue.lease", {"queue_name": "a", "client_id": "c", "batch_size": 1, "request_timeout": "1m"}),
    )
    assert "querator.daemon.service" in started
    assert RARELY_NEEDED.keys().isdisjoint(started)
    assert RARELY_NEEDED.keys().isdisjoint(used)


def test_a_daemon_that_opens_empty_queues_needs_no_arrow(tmp_path: Path) -> None:
    queue = {"queue_name": "a", "lease_timeout": "1m", "expire_timeout": "1h", "requested_partitions": 2}
    modules(tmp_path / "data", ("/v1/queues.create", queue))
    started, _ = modules(tmp_path / "data")
    assert RARELY_NEEDED.keys().isdisjoint(started)


def test_arrow_comes_without_numpy_and_pandas(tmp_path: Path) -> None:
    queue = {"queue_name": "a", "lease_timeout": "1m", "expire_timeout": "1h", "requested_partitions": 1}
    item = {"queue_name": "a", "request_timeout": "1m", "items": [{"utf8": "x"}]}
    _, used = modules(
        tmp_path / "data",
        ("/v1/queues.create", queue),
        ("/v1/queue.produce", item),
        ("/v1/storage/items.list", {"queue_name": "a", "partition": 0, "limit": 1}),
    )
    assert "pyarrow" in used
    assert used.isdisjoint({"numpy", "pandas"})
