"""The compiled and the plain build answer the same traffic with the same bytes.

The traffic is one list of requests, sent to a daemon of each build on one connection. Both daemons have the test clock,
so all times are the same. Only two things differ by nature and are replaced: the Date header, and item ids, which
contain the random id of their partition. The n-th id that a daemon returns becomes `item(n)`, as long as an id.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from querator import build
from querator.wire import messages, protobuf
from tests.daemons import Daemon
from tests.waiting import PATIENCE_SECONDS

_ID = re.compile(rb"(?<![0-9A-Za-z])[0-9A-Za-z]{27}(?![0-9A-Za-z])")
_DATE = re.compile(rb"\r\ndate: [^\r]+", re.IGNORECASE)
JSON, PROTOBUF = "application/json", "application/protobuf"


def item(number: int) -> str:
    return f"item{number:023d}"


def raw(path: str, body: bytes, kind: str = JSON, accept: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return (head + (f"Accept: {accept}\r\n" if accept else "") + "\r\n").encode() + body


def ask(call: str, **fields: Any) -> bytes:
    return raw(f"/v1/{call}", json.dumps(fields).encode())


def binary(call: str, message: messages.Message) -> bytes:
    return raw(f"/v1/{call}", protobuf.encode(message), PROTOBUF)


def settings(name: str, **more: Any) -> dict[str, Any]:
    times = {"lease_timeout": "1m0s", "expire_timeout": "24h0m0s"}
    return {"queue_name": name, "requested_partitions": 1, "max_attempts": 2, **times, **more}


TIMEOUT = {"request_timeout": "5s"}
PRODUCED = [
    {"encoding": "utf8", "kind": "letter", "reference": "r-1", "utf8": "plain text"},
    {"utf8": 'quotes " and \\ and \n and \u00e4 and \U0001f600 and \u0000'},
    {"bytes": "AAEC/w=="},
    {"utf8": ""},
    {"utf8": "x" * 5_000},
]
BEFORE_RESTART = [
    ask("queues.create", **settings("dead")),
    ask("queues.create", **settings("q", dead_queue="dead")),
    ask("queues.create", **settings("q")),
    # Produce
    ask("queue.produce", queue_name="q", items=PRODUCED, **TIMEOUT),
    ask("queue.produce", queue_name="q", items=PRODUCED[:1], **TIMEOUT, request_id="once"),
    ask("queue.produce", queue_name="q", items=PRODUCED[:1], **TIMEOUT, request_id="once"),
    binary(
        "queue.produce",
        messages.QueueProduceRequest("q", "5s", [messages.QueueProduceItem(kind="binary", bytes_=b"\x00\xff")]),
    ),
    ask("queue.produce", queue_name="q", items=[{"utf8": "later", "enqueue_at": "2030-01-01T01:00:00Z"}], **TIMEOUT),
    ask("queue.produce", queue_name="q", items=[], **TIMEOUT),
    ask("queue.produce", queue_name="q", items=[{"utf8": "both", "bytes": "AAE="}], **TIMEOUT),
    ask("queue.produce", queue_name="q", items=[{"bytes": "not base64!"}], **TIMEOUT),
    ask("queue.produce", queue_name="q", items=[{"utf8": 1}], **TIMEOUT),
    ask("queue.produce", queue_name="q", items=[{"utf8": "x", "enqueue_at": "yesterday"}], **TIMEOUT),
    ask("queue.produce", queue_name="q", items=PRODUCED[:1]),
    ask("queue.produce", queue_name="q", items=PRODUCED[:1], request_timeout="5 parsecs"),
    ask("queue.produce", queue_name="nobody", items=PRODUCED[:1], **TIMEOUT),
    ask("queue.produce", queue_name="bad~name", items=PRODUCED[:1], **TIMEOUT),
    ask("queue.produce", queue_name="q", items=[{"utf8": "x"}] * 1_001, **TIMEOUT),
    # Lease
    ask("queue.lease", queue_name="q", batch_size=3, client_id="a", **TIMEOUT),
    binary("queue.lease", messages.QueueLeaseRequest("q", 2, "b", "5s")),
    raw(
        "/v1/queue.lease",
        json.dumps({"queue_name": "q", "batch_size": 1, "client_id": "c", **TIMEOUT}).encode(),
        JSON,
        PROTOBUF,
    ),
    ask("queue.lease", queue_name="q", batch_size=0, client_id="a", **TIMEOUT),
    ask("queue.lease", queue_name="q", batch_size="3", client_id="a", **TIMEOUT),
    ask("queue.lease", queue_name="q", batch_size=1, **TIMEOUT),
    ask("queue.lease", queue_name="q", batch_size=1, client_id="a", request_timeout="1h0m0s"),
    ask("queue.lease", queue_name="nobody", batch_size=1, client_id="a", **TIMEOUT),
    # Complete, retry, extend
    ask("queue.complete", queue_name="q", ids=[item(0)], **TIMEOUT),
    ask("queue.complete", queue_name="q", ids=[item(0)], **TIMEOUT),
    ask("queue.complete", queue_name="q", ids=[item(1), item(1)], **TIMEOUT),
    ask("queue.complete", queue_name="q", ids=["no id"], **TIMEOUT),
    ask("queue.complete", queue_name="q", ids=[], **TIMEOUT),
    binary("queue.complete", messages.QueueCompleteRequest("q", 0, "5s", [item(2)])),
    ask("queue.extend", queue_name="q", ids=[item(3)], lease_timeout="2m0s"),
    ask("queue.extend", queue_name="q", ids=[item(0)]),
    ask("queue.retry", queue_name="q", items=[{"id": item(3)}]),
    ask("queue.retry", queue_name="q", items=[{"id": item(4), "dead": True}]),
    ask("queue.retry", queue_name="q", items=[{"id": item(3)}]),
    ask("queue.lease", queue_name="q", batch_size=9, client_id="a", complete_ids=[item(5)], **TIMEOUT),
    # What is no call
    raw("/v1/queue.nothing", b"{}"),
    raw("/v1/queue.produce", b"{"),
    raw("/v1/queue.produce", b"[]"),
    raw("/v1/queue.produce", b'{"queue_name":"q","unknown":1}'),
    raw("/v1/queue.produce", b'{"queue_name":"\xff"}'),
    raw("/v1/queue.produce", b"\x0a\xff", PROTOBUF),
    raw("/v1/queue.produce", b"{}", "text/plain"),
    raw("/v1/queue.lease", b"{}", JSON, "text/html"),
    ask("queue.stats", queue_name="q"),
    ask("storage/items.list", queue_name="q", partition=0, limit=50),
    ask("storage/scheduled.list", queue_name="q", partition=0, limit=50),
]
AFTER_RESTART = [
    ask("storage/items.list", queue_name="q", partition=0, limit=50),
    ask("queue.stats", queue_name="q"),
    ask("queue.complete", queue_name="q", ids=[item(3)], **TIMEOUT),
    ask("clock.advance", by="2m0s"),  # all leases end
    ask("queue.lease", queue_name="q", batch_size=10, client_id="late", **TIMEOUT),
    ask("clock.advance", by="2h0m0s"),  # scheduled items come due, and leased items die
    ask("queue.lease", queue_name="q", batch_size=10, client_id="late", **TIMEOUT),
    ask("queue.lease", queue_name="dead", batch_size=10, client_id="late", **TIMEOUT),
    ask("clock.advance", by="48h0m0s"),  # what is left expires
    ask("storage/items.list", queue_name="q", partition=0, limit=50),
    ask("storage/items.list", queue_name="dead", partition=0, limit=50),
    ask("queue.stats", queue_name="q"),
    ask("queues.list", limit=10),
]


class Player:
    """Sends requests to one daemon and writes down its answers, with the names of this module for item ids."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._names: dict[bytes, bytes] = {}
        self.answers: list[bytes] = []

    def play(self, requests: list[bytes]) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_SECONDS)
            connection.connect(str(self._daemon.socket))
            with connection.makefile("rb") as replies:
                for request in requests:
                    for real, name in self._names.items():
                        request = request.replace(name, real)
                    connection.sendall(request)
                    self.answers.append(_ID.sub(self._name, _answer(replies)))

    def _name(self, found: re.Match[bytes]) -> bytes:
        return self._names.setdefault(found[0], item(len(self._names)).encode())


def _answer(replies: Any) -> bytes:
    head = b"".join(itertools.takewhile(lambda line: line != b"\r\n", iter(replies.readline, b"")))
    (length,) = re.findall(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
    return _DATE.sub(b"\r\ndate: today", head) + b"\r\n" + replies.read(int(length))


def answers(directory: Path, pure: str) -> tuple[str, list[bytes]]:
    directory.mkdir()
    with Daemon(directory, "--test-clock", environment={"QUERATOR_PURE": pure}) as daemon:
        player = Player(daemon)
        player.play([ask("clock.set", now="2030-01-01T00:00:00Z"), *BEFORE_RESTART])
        daemon.restart()
        player.play([ask("clock.set", now="2030-01-01T00:00:01Z"), *AFTER_RESTART])
        return daemon.client.health()["releaseId"], player.answers


@pytest.mark.skipif(build.name() != build.COMPILED, reason="no compiled modules in this checkout; make compiled")
def test_both_builds_give_the_same_answers(tmp_path: Path) -> None:
    compiled, theirs = answers(tmp_path / "compiled", "0")
    plain, ours = answers(tmp_path / "plain", "1")
    assert (compiled, plain) == (build.COMPILED, build.PLAIN)
    requests = [b"clock.set", *BEFORE_RESTART, b"clock.set", *AFTER_RESTART]
    for request, compiled_answer, plain_answer in zip(requests, theirs, ours, strict=True):
        assert compiled_answer == plain_answer, request[:300]
    statuses = {answer.split()[1] for answer in ours}
    assert statuses == {b"200", b"400", b"455", b"501"}  # the traffic has good and bad requests of each kind
