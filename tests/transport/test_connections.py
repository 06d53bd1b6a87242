"""Connections that are kept, closed, pipelined, lost or slow, and the end of the front."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading

import pytest

from querator.daemon.http.gate import SWEEP_SECONDS
from querator.errors import RequestFailed
from querator.limits import HEAD_BYTES_MAX
from tests.transport.front import PATIENCE_SECONDS, Front, Wire, chunked, produce, request
from tests.waiting import until


def lease(queue: str, size: int = 1) -> bytes:
    return request("/v1/queue.lease", json.dumps({"queue_name": queue, "batch_size": size}).encode())


# Kept and closed


def test_one_connection_serves_many_calls_also_after_errors(front: Front) -> None:
    wire = front.connect()
    for _ in range(3):
        for data, status in (
            (produce(), 200),
            (produce("bad"), 400),
            (request("/v1/queue.produce", b"{"), 455),
            (request("/v1/nope"), 501),
            (request("/v1/queues.info", b'{"queue_name": "q"}'), 200),
            (request("/health", b"", method="GET"), 200),
            (produce("boom"), 500),
        ):
            wire.send(data)
            answer = wire.answer()
            assert answer.status == status
            assert "connection" not in answer.headers


def test_a_client_is_alone_once_two_requests_in_a_row_are_its_own(front: Front) -> None:
    if front.way == "asgi":
        pytest.skip("these requests take the long way")
    one, other = front.connect(), front.connect()

    def ask(wire: Wire, times: int = 1) -> list[bool]:
        front.service.alone.clear()
        wire.send(produce() * times)
        for _ in range(times):
            assert wire.answer().status == 200
        return front.service.alone

    ask(one), ask(one), ask(other)  # the head is learned, and found again
    assert ask(one) == [False]
    assert ask(one) == [True]
    assert ask(other) == [False]
    assert ask(one) == [False]
    # Requests that come together would hold up other clients if each had a turn of its own.
    assert ask(one, times=3) == [False] * 3


def test_a_client_may_ask_for_the_end(front: Front) -> None:
    wire = front.connect()
    wire.send(produce("later", "Connection: close"))
    answer = wire.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert wire.is_at_end()


def test_http_1_0(front: Front) -> None:
    wire = front.connect()
    wire.send(request("/v1/queue.produce", b'{"queue_name": "q"}', version="HTTP/1.0"))
    assert wire.answer().json == {"code": 200}
    assert wire.is_at_end()


def test_http_1_0_needs_no_host(front: Front) -> None:
    wire = front.connect()
    wire.send(b"POST /v1/queue.produce HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
    assert wire.answer().status == 200


def test_an_upgrade_is_not_taken_up(front: Front) -> None:
    wire = front.connect()
    for _ in range(2):
        wire.send(produce("q", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"))
        assert wire.answer().json == {"code": 200}


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"NONSENSE\r\n\r\n",
        b"\r\n\n\r\n\r\n",
        b"POST /v1/queue.produce HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/queue.produce HTTP/1.1\r\nHost: x\r\nContent-Length: -2\r\n\r\n{}",
        b"POST /v1/queue.produce HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v1/queue.produce HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"POST /v1/queue.produce HTTP/1.1\r\nHost: x\r\nBad Header\r\n\r\n{}",
        b"POST  HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT host:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /" + b"x" * (HEAD_BYTES_MAX + 1),
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_plain_text_and_the_end(front: Front, nonsense: bytes) -> None:
    wire = front.connect()
    wire.send(nonsense)
    answer = wire.answer()
    assert (answer.status, answer.headers["content-type"]) == (400, "text/plain; charset=utf-8")
    assert wire.is_at_end()
    assert front.service.requests == []


def test_empty_lines_before_a_request_are_skipped(front: Front) -> None:
    wire = front.connect()
    for _ in range(2):
        wire.send(b"\r\n\r\n" + produce() + b"\r\n" + produce() + b"\r")
        assert [wire.answer().status for _ in range(2)] == [200, 200]
        wire.send(b"\n" + produce())
        assert wire.answer().status == 200


# Pipelined


def test_requests_sent_ahead_are_answered_in_order(front: Front) -> None:
    wire = front.connect()
    kinds = [
        (produce(), 200),
        (produce("later"), 200),
        (produce("bad"), 400),
        (request("/v1/nope"), 501),
        (request("/v1/queue.produce", chunked(b'{"queue_name"', b': "bad"}'), "Transfer-Encoding: chunked"), 400),
        (request("/v1/queue.produce", b"{"), 455),
        (request("/health", b"", method="GET"), 200),
        (lease("q"), 200),
    ]
    front.familiar(produce(), lease("q"))
    sent = [kind for step in range(60) for kind in kinds[step % 3 :]]
    sender = threading.Thread(target=wire.send, args=(b"".join(data for data, _ in sent),))
    sender.start()
    assert [wire.answer().status for _ in sent] == [status for _, status in sent]
    sender.join(PATIENCE_SECONDS)


def test_what_comes_behind_a_parked_call_waits(front: Front) -> None:
    front.familiar(produce("q"), lease("q"))
    front.service.reset()
    wire = front.connect()
    wire.send(lease("park") + produce("bad") + request("/v1/queues.info", b'{"queue_name": "q"}') + lease("q"))
    front.service.until(lambda: len(front.service.parked) == 1)
    assert len(front.service.requests) == 1
    front.release()
    assert [wire.answer().status for _ in range(4)] == [200, 400, 200, 200]
    assert [route for route, _ in front.service.requests] == [
        "queue.lease",
        "queue.produce",
        "queues.info",
        "queue.lease",
    ]


def test_who_sends_much_ahead_is_not_read(front: Front) -> None:
    front.familiar(produce("q"), lease("q"))
    front.service.reset()
    wire = front.connect()
    wire.send(lease("park"))
    front.service.until(lambda: len(front.service.parked) == 1)
    wire.socket.setblocking(False)
    data = produce("later") * 1_000
    for _ in range(1_000):
        with contextlib.suppress(BlockingIOError):
            wire.socket.send(data)
        if front.on_loop(lambda: any(c.flow.read_paused for c in front.server.server_state.connections)):
            break
    else:
        pytest.fail("the front reads whatever it is sent")
    wire.socket.settimeout(PATIENCE_SECONDS)
    front.release()
    assert [wire.answer().status for _ in range(100)] == [200] * 100


# Lost


def test_a_closed_connection_abandons_its_call(front: Front) -> None:
    front.familiar(lease("q"))
    wire = front.connect()
    wire.send(lease("park"))
    front.service.until(lambda: len(front.service.parked) == 1)
    wire.close()
    front.service.until(lambda: front.service.abandoned == 1)
    front.release()
    assert front.ask(produce()).status == 200


def test_a_closed_connection_abandons_its_call_also_with_requests_behind(front: Front) -> None:
    front.familiar(lease("q"))
    wire = front.connect()
    chunks = request("/v1/queue.lease", chunked(b'{"queue_name": "park"}'), "Transfer-Encoding: chunked")
    for data in (lease("park"), chunks):
        front.service.reset()
        wire = front.connect()
        wire.send(data + produce() + request("/v1/queues.info"))
        front.service.until(lambda: len(front.service.parked) == 1)
        wire.close()
        front.service.until(lambda: front.service.abandoned == 1)
        assert [route for route, _ in front.service.requests] == ["queue.lease"]


def test_an_answered_call_is_not_abandoned(front: Front) -> None:
    wire = front.connect()
    wire.send(lease("park"))
    front.service.until(lambda: len(front.service.parked) == 1)
    front.release()
    assert wire.answer().status == 200
    wire.close()
    assert front.ask(produce()).status == 200
    assert front.service.abandoned == 0


# Slow


def test_a_client_that_does_not_read_is_not_worked_for(front: Front) -> None:
    front.familiar(lease("q"))
    front.service.reset()
    wire = front.connect()
    wire.send(lease("large", 2_000_000) * 50)
    front.service.until(lambda: len(front.service.requests) >= 1)
    # Wait until the front stops writing, because its answers do not fit into the socket.
    until(lambda: front.on_loop(lambda: any(c.flow.write_paused for c in front.server.server_state.connections)))
    assert len(front.service.requests) < 10
    for _ in range(50):
        answer = wire.answer()
        assert len(answer.json["items"][0]["encoding"]) == 2_000_000
    assert len(front.service.requests) == 50


# Idle


def test_idle_connections_are_swept_away_and_waiting_ones_are_not(front: Front) -> None:
    front.familiar(produce(), lease("q"))
    front.service.reset()
    idle, half, half_body, waiting, busy = (front.connect() for _ in range(5))
    idle.send(produce())
    assert idle.answer().status == 200
    half.send(b"POST /v1/queue.pro")
    half_body.send(produce()[:-1])
    waiting.send(lease("park"))
    front.service.until(lambda: len(front.service.parked) == 1)
    sweeps = 75 // SWEEP_SECONDS + 2

    def sweep() -> None:
        front.gate.sweeps += 1
        for connection in list(front.server.server_state.connections):
            connection.end_if_idle()

    for _ in range(sweeps):
        busy.send(produce())
        assert busy.answer().status == 200
        front.on_loop(sweep)
    assert idle.is_at_end() and half.is_at_end() and half_body.is_at_end()
    front.release()
    assert waiting.answer().status == 200
    waiting.send(produce())
    assert waiting.answer().status == 200


def test_a_head_that_arrives_byte_by_byte_is_given_up(front: Front) -> None:
    slow, steady = front.connect(), front.connect()
    slow.send(b"POST /v1/queue.pro")

    def sweep() -> None:
        front.gate.sweeps += 1
        for connection in list(front.server.server_state.connections):
            connection.end_if_idle()

    for _ in range(75 // SWEEP_SECONDS + 2):
        with contextlib.suppress(OSError):
            slow.send(b"d")
        # Each request of this client comes in two parts, and each of them is complete soon.
        steady.send(produce()[:20])
        steady.send(produce()[20:])
        assert steady.answer().status == 200
        front.on_loop(sweep)
    assert slow.is_at_end()


def test_connections_beyond_the_bound_are_closed_except_on_the_unix_socket(fresh_front: Front) -> None:
    front = fresh_front
    front.gate._tcp_connections_max = 3
    kept = [front.connect(tcp=True) for _ in range(3)]
    for one in kept:
        one.send(produce())
        assert one.answer().status == 200
    assert front.connect(tcp=True).is_at_end()
    for one in [*kept, front.connect()]:
        one.send(produce())
        assert one.answer().status == 200


# The end


def test_the_end_answers_what_is_under_way(fresh_front: Front) -> None:
    front = fresh_front
    front.familiar(produce(), lease("q"))
    front.service.reset()
    parked, idle, half = front.connect(), front.connect(), front.connect()
    idle.send(produce())
    assert idle.answer().status == 200
    parked.send(lease("park"))
    half.send(produce()[:-1])
    front.service.until(lambda: len(front.service.parked) == 1)
    front.server.should_exit = True
    assert idle.is_at_end()
    half.send(produce()[-1:])
    answer = half.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    front.release(RequestFailed("queue is shutting down"))
    answer = parked.answer()
    assert (answer.status, answer.json["message"]) == (453, "queue is shutting down")
    assert parked.is_at_end() and half.is_at_end()


# Half closed


@pytest.mark.parametrize("path", ["/v1/queue.produce", "/v1/queue.complete", "/v1/queues.info"])
@pytest.mark.parametrize("queue", ["q", "later", "park"])
def test_who_sends_no_more_is_still_answered(half_closing_front: Front, path: str, queue: str) -> None:
    """On two connections, because the front handles a known head in another way."""
    front = half_closing_front
    for _ in range(2):
        wire = front.connect()
        wire.send(request(path, json.dumps({"queue_name": queue}).encode()))
        wire.socket.shutdown(socket.SHUT_WR)
        if queue == "park":
            front.service.until(lambda: bool(front.service.parked))
            front.release()
        assert wire.answer().status == 200
        assert wire.is_at_end()
    assert front.service.abandoned == 0


def test_a_lease_of_who_sends_no_more_is_given_up(half_closing_front: Front) -> None:
    front = half_closing_front
    for number in (1, 2):
        wire = front.connect()
        wire.send(lease("park"))
        front.service.until(lambda number=number: len(front.service.parked) == number)
        wire.socket.shutdown(socket.SHUT_WR)
        front.service.until(lambda number=number: front.service.abandoned == number)
        assert wire.is_at_end()


def test_a_tls_client_that_says_goodbye_is_let_go_without_a_word(
    tls_front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    """The event loop ends the connection whatever the front wants, and warns if the front wants something else."""
    for _ in range(2):
        wire = tls_front.connect()
        assert isinstance(wire.socket, ssl.SSLSocket)
        wire.send(request("/v1/queue.complete", json.dumps({"queue_name": "park"}).encode()))
        tls_front.service.until(lambda: bool(tls_front.service.parked))
        wire.socket.settimeout(PATIENCE_SECONDS)
        wire.socket.unwrap()
        tls_front.service.until(lambda: tls_front.service.abandoned == 1)
        tls_front.release()
        tls_front.service.reset()
    assert caplog.records == []
