"""Which request heads the front remembers."""

from __future__ import annotations

from pathlib import Path

import httptools
import pytest

from querator import limits
from querator.clock import SystemClock
from querator.config import AccessConfig
from querator.daemon.access import Access, Peer
from querator.daemon.http import routes
from querator.daemon.http.dispatch import Calls
from querator.daemon.http.heads import RememberedHeads
from querator.daemon.metrics import HttpMetrics
from tests.transport.front import StandIn

SIMPLE = b"POST /v1/queue.produce HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n"
ACCESS = Access(AccessConfig(), SystemClock(), Path("/nonexistent"))
CALLS = Calls(
    StandIn(), routes.routes_by_path(), HttpMetrics(), Access(AccessConfig(), SystemClock(), Path("/nonexistent"))
)
PEER = Peer("127.0.0.1:1")


class Parsed:
    def __init__(self, head: bytes) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.path = b""
        httptools.HttpRequestParser(self).feed_data(head)

    def on_url(self, url: bytes) -> None:
        self.path = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))


def learnt(head: bytes) -> RememberedHeads:
    heads, parsed = RememberedHeads(), Parsed(head)
    heads.learn(head, parsed.headers, CALLS.understand("POST", parsed.path.decode(), parsed.headers, PEER))
    return heads


def test_a_simple_head_is_known_by_its_route_and_length() -> None:
    known = learnt(SIMPLE).find(SIMPLE)
    assert known is not None and (known.call.name, known.length) == ("queue.produce", 10)


def test_another_length_is_the_same_head() -> None:
    heads = learnt(SIMPLE)
    known = heads.find(SIMPLE.replace(b"10", b"12345"))
    assert known is not None and known.length == 12345
    assert heads.whole[SIMPLE.replace(b"10", b"12345")] is known


def test_a_whole_request_is_known_by_its_head_and_its_size() -> None:
    heads = learnt(SIMPLE)
    assert heads.find(SIMPLE) is not None
    for _ in range(2):
        known = heads.of_request(SIMPLE + b"0123456789")
        assert known is not None and SIMPLE[: known.bytes] == SIMPLE
        assert heads.of_request(SIMPLE + b"012345678") is None
        assert heads.of_request(SIMPLE + b"0123456789a") is None


def test_requests_of_one_size_may_have_different_heads() -> None:
    heads = learnt(SIMPLE)
    short = SIMPLE.replace(b"10", b"9")
    assert heads.find(SIMPLE) is not None and heads.find(short) is not None
    longer = SIMPLE.replace(b"10", b"9").replace(b"Host: x", b"Host: xy")
    for _ in range(2):
        known = heads.of_request(SIMPLE + bytes(10))
        assert known is not None and known.head == SIMPLE
        assert heads.of_request(longer + bytes(10)) is None, "another head of the same size"
        assert heads.of_request(short + bytes(9)) is not None


def test_forgotten_heads_are_not_known_by_their_size_either() -> None:
    heads = learnt(SIMPLE)
    heads.find(SIMPLE)
    assert heads.of_request(SIMPLE + bytes(10)) is not None
    heads.forget()
    assert heads.of_request(SIMPLE + bytes(10)) is None


@pytest.mark.parametrize(
    "length", [b"", b"-1", b"+1", b"1 2", b"1,2", b"0x1", b"1e1", b"\xb2", b"5000001", b"99999999999999999999"]
)
def test_a_length_that_is_odd_or_over_the_limit_is_not_known(length: bytes) -> None:
    assert learnt(SIMPLE).find(SIMPLE.replace(b"10", length)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"Host: x", b"Host: y"),
        (b"POST", b"post"),
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"queue.produce", b"queue.lease"),
        (b"\r\n\r\n", b"\r\nContent-Length: 10\r\n\r\n"),
        (b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ],
)
def test_any_other_difference_makes_another_head(old: bytes, new: bytes) -> None:
    assert learnt(SIMPLE).find(SIMPLE.replace(old, new)) is None


@pytest.mark.parametrize(
    "line",
    [
        b"Expect: 100-continue",
        b"Connection: close",
        b"Connection: keep-alive, upgrade",
        b"Upgrade: h2c",
        b"Trailer: x",
        b"X: " + b"x" * limits.REMEMBERED_HEAD_BYTES_MAX,
    ],
)
def test_an_unusual_head_is_not_remembered(line: bytes) -> None:
    head = SIMPLE[:-2] + line + b"\r\n\r\n"
    assert learnt(head).find(head) is None


@pytest.mark.parametrize(
    "line", [b"Connection: keep-alive", b"Accept: application/protobuf", b"Authorization: Bearer x"]
)
def test_a_usual_head_is_remembered(line: bytes) -> None:
    head = SIMPLE[:-2] + line + b"\r\n\r\n"
    assert learnt(head).find(head) is not None


def test_a_head_whose_lines_the_parser_saw_differently_is_not_remembered() -> None:
    heads, parsed = RememberedHeads(), Parsed(SIMPLE)
    call = CALLS.understand("POST", "/v1/queue.produce", parsed.headers, PEER)
    for odd in (
        SIMPLE.replace(b"Host: x", b"Host: x\r\n folded"),
        SIMPLE.replace(b"Host: x\r\n", b"Host: x\n"),
        SIMPLE.replace(b"Host: x", b"Host: x\ry"),
        b"\r\n" + SIMPLE,
    ):
        heads.learn(odd, parsed.headers, call)
        assert heads.find(odd) is None


def test_calls_that_are_not_hot_are_not_remembered() -> None:
    head = SIMPLE.replace(b"queue.produce", b"queue.stats")
    assert learnt(head).find(head) is None


def test_a_content_type_that_will_be_refused_is_not_remembered() -> None:
    head = SIMPLE.replace(b"application/json", b"text/plain")
    assert learnt(head).find(head) is None


def test_memory_is_bounded() -> None:
    heads = RememberedHeads()
    for number in range(limits.REMEMBERED_HEADS_MAX + 50):
        head = SIMPLE.replace(b"Host: x", b"Host: %d" % number)
        parsed = Parsed(head)
        heads.learn(head, parsed.headers, CALLS.understand("POST", "/v1/queue.produce", parsed.headers, PEER))
        assert heads.find(head) is not None
    assert heads.find(SIMPLE.replace(b"Host: x", b"Host: 0")) is None or len(heads.whole) <= limits.REMEMBERED_HEADS_MAX
    assert len(heads._without_length) <= limits.REMEMBERED_HEADS_MAX
    assert len(heads.whole) <= limits.REMEMBERED_HEADS_MAX
