"""Reading bodies: limits, pieces, chunks, and bodies that never end (wire contract 1.1, 1.3 and section 6)."""

from __future__ import annotations

import contextlib
import json
import random
import socket

import pytest

from querator.daemon.http import routes
from querator.limits import BODY_BYTES_MAX, OVER_LIMIT_DRAIN_BYTES_MAX
from tests.transport.front import CUT_OFF, Front, chunked, produce, request

CHUNKED = "Transfer-Encoding: chunked"
HOT, COLD = "queue.complete", "queues.info"
OVER = "request body exceeds 250.0KiB limit"


def padded(size: int) -> bytes:
    return b"{}".ljust(size)


@pytest.mark.parametrize("path", [HOT, COLD])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["with-length", "chunked"])
def test_the_limit_is_the_limit(front: Front, path: str, is_chunked: bool) -> None:
    for size, status in ((BODY_BYTES_MAX, 200), (BODY_BYTES_MAX + 1, 400)):
        body = padded(size)
        wire = front.connect()
        wire.send(
            request(f"/v1/{path}", chunked(body[:1000], body[1000:]), CHUNKED)
            if is_chunked
            else request(f"/v1/{path}", body)
        )
        answer = wire.answer()
        assert answer.status == status
        if status == 400:
            assert answer.json["message"] == OVER
            assert answer.headers["connection"] == "close"
            assert wire.is_at_end()
    assert [route for route, _ in front.service.requests] == [path]


def test_every_path_has_its_limit(front: Front) -> None:
    for route in routes.routes_by_path().values():
        wire = front.connect()
        wire.send(request(f"/v1/{route.path}", b"", f"Content-Length: {route.body_bytes_max + 1}"))
        answer = wire.answer()
        assert (answer.status, answer.json["message"]) == (400, routes.over_limit_text(route.body_bytes_max))
        wire.close()
    assert front.service.requests == []


@pytest.mark.parametrize("path", [HOT, COLD])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["with-length", "chunked"])
def test_who_sends_everything_first_can_read_the_answer(front: Front, path: str, is_chunked: bool) -> None:
    body = padded(BODY_BYTES_MAX + 600_000)
    wire = front.connect(tcp=True)
    wire.send(request(f"/v1/{path}", chunked(body), CHUNKED) if is_chunked else request(f"/v1/{path}", body))
    assert wire.answer().json["message"] == OVER
    assert wire.is_at_end()


@pytest.mark.parametrize("path", [HOT, COLD])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["with-length", "chunked"])
@pytest.mark.parametrize("is_tcp", [False, True], ids=["unix", "tcp"])
def test_one_byte_too_many_is_answered_at_once_and_who_goes_on_is_cut_off(
    front: Front, path: str, is_chunked: bool, is_tcp: bool
) -> None:
    rest = 12 * OVER_LIMIT_DRAIN_BYTES_MAX
    size = BODY_BYTES_MAX + 1 + rest
    wire = front.connect(tcp=is_tcp)
    header = CHUNKED if is_chunked else f"Content-Length: {size}"
    wire.send(request(f"/v1/{path}", (b"%x\r\n" % size if is_chunked else b"") + padded(BODY_BYTES_MAX + 1), header))
    assert wire.answer().json["message"] == OVER
    with pytest.raises(CUT_OFF):
        for _ in range(100):
            wire.send(b" " * (rest // 100))
    assert wire.is_at_end()


@pytest.mark.parametrize(
    ("headers", "status"),
    [(("Authorization: x",), 401), (("Accept: x/y",), 455), (("Content-Type: x/y",), 400), ((), 400)],
)
def test_what_wins_over_the_limit(front: Front, headers: tuple[str, ...], status: int) -> None:
    wire = front.connect()
    wire.send(request(f"/v1/{COLD}", b"", f"Content-Length: {BODY_BYTES_MAX + 1}", *headers))
    assert wire.answer().status == status


def test_an_early_refusal_keeps_the_connection_if_the_body_is_short(front: Front) -> None:
    wire = front.connect()
    body = padded(300_000)
    data = request("/v1/nope", body)
    wire.send(data[:1000])
    assert wire.answer().status == 501
    wire.send(data[1000:] + produce())
    assert wire.answer().json == {"code": 200}


def test_an_early_refusal_ends_the_connection_if_the_body_is_long(front: Front) -> None:
    wire = front.connect()
    with contextlib.suppress(*CUT_OFF):
        wire.send(request("/v1/nope", padded(6_000_000)))
    assert wire.answer().status == 501
    assert wire.is_at_end()


# Pieces


def test_a_large_body_in_pieces(front: Front) -> None:
    text = "x" * 4_900_000
    data = request("/v1/queue.produce", json.dumps({"queue_name": "q", "items": [{"utf8": text}]}).encode())
    assert front.ask(data).json == {"code": 200}
    assert front.service.requests[-1][1].items[0].payload == text.encode()


@pytest.mark.parametrize("cut", ["in the head", "after the head", "in the body", "everywhere"])
def test_a_request_in_pieces(front: Front, cut: str) -> None:
    data = produce("later")
    front.familiar(data)
    head = data.index(b"\r\n\r\n") + 4
    cuts = {
        "in the head": [20, head - 3, head - 1],
        "after the head": [head],
        "in the body": [head + 1, len(data) - 1],
        "everywhere": list(range(1, len(data))),
    }[cut]
    wire = front.connect(tcp=True)
    wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(2):
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            wire.send(data[start:end])
        assert wire.answer().json == {"code": 200}


@pytest.mark.parametrize("parts", [1, 7, 500])
def test_chunks(front: Front, parts: int) -> None:
    body = json.dumps({"queue_name": "q", "items": [{"utf8": "x" * 5000}]}).encode()
    size = len(body) // parts
    chunks = chunked(*(body[at : at + size] for at in range(0, len(body), size)))
    wire = front.connect()
    for _ in range(2):
        wire.send(request("/v1/queue.produce", chunks, CHUNKED) + produce())
        assert wire.answer().json == {"code": 200}
        assert wire.answer().json == {"code": 200}
    assert len(front.service.requests[0][1].items[0].utf8) == 5000


def test_continue_is_said_to_who_waits_for_it(front: Front) -> None:
    data = produce("q", "Expect: 100-continue")
    head = data.index(b"\r\n\r\n") + 4
    wire = front.connect()
    for _ in range(2):
        wire.send(data[:head])
        assert wire.file.readline() == b"HTTP/1.1 100 Continue\r\n" and wire.file.readline() == b"\r\n"
        wire.send(data[head:])
        assert wire.answer().json == {"code": 200}


def test_continue_is_not_said_to_who_is_over_the_limit(front: Front) -> None:
    wire = front.connect()
    wire.send(request(f"/v1/{HOT}", b"", "Expect: 100-continue", f"Content-Length: {BODY_BYTES_MAX + 1}"))
    assert wire.answer().status == 400


# Bodies that never end


@pytest.mark.parametrize("path", ["/v1/queue.produce", "/v1/queues.info"])
def test_a_client_that_stops_in_the_middle_hears_of_it(half_closing_front: Front, path: str) -> None:
    front = half_closing_front
    front.familiar(request(path, b'{"queue_name": "q"} '))
    front.service.reset()
    wire = front.connect()
    wire.send(request(path, b'{"queue_name": "q"} ')[:-3])
    wire.socket.shutdown(socket.SHUT_WR)
    answer = wire.answer()
    assert (answer.status, answer.json["code_text"], answer.json["message"]) == (
        512,
        "Transport Error",
        "unexpected EOF",
    )
    assert wire.is_at_end()
    assert front.service.requests == []


def test_a_chunk_without_a_length_is_reported(front: Front) -> None:
    wire = front.connect()
    wire.send(request("/v1/queue.produce", b"zz\r\n{}\r\n0\r\n\r\n", CHUNKED, "Accept: application/json"))
    answer = wire.answer()
    assert (answer.status, answer.json["message"]) == (512, "invalid byte in chunk length")
    assert wire.is_at_end()
    assert front.service.requests == []


@pytest.mark.parametrize("endless", [b"2;" + b"x" * 10, b"2\r\n{}\r\n0\r\n" + b"a: b" * 10])
def test_framing_without_end_is_not_read_for_ever(front: Front, endless: bytes) -> None:
    wire = front.connect()
    wire.send(request("/v1/queue.produce", endless, CHUNKED))
    with contextlib.suppress(*CUT_OFF):
        for _ in range(100):
            wire.send(b"y" * 100_000)
    assert (wire.answer().status, wire.is_at_end()) == (512, True)
    assert front.service.requests == []


def test_half_a_body_and_gone(front: Front) -> None:
    data = produce()
    front.familiar(data)
    front.service.reset()
    wire = front.connect()
    wire.send(data[:-4])
    wire.close()
    assert front.ask(produce()).status == 200
    assert {route for route, _ in front.service.requests} == {"queue.produce"}


def test_many_lengths_of_the_same_head(front: Front) -> None:
    """There are more different lengths than heads that the front remembers."""
    chance = random.Random(5)
    wire = front.connect()
    sizes = list(range(30, 1_600))
    chance.shuffle(sizes)
    for size in sizes:
        wire.send(request("/v1/queue.produce", b'{"queue_name": "q"}'.ljust(size)))
        assert wire.answer().status == 200
    assert all(len(heads.whole) <= 1_024 for heads in front.gate.heads.values())
