"""Large bodies share a bounded room while they arrive, and unread answers take bounded memory."""

from __future__ import annotations

import contextlib
import threading

import pytest

from querator import limits
from querator.daemon import allocators
from querator.daemon.http import memory
from tests.transport.front import CUT_OFF, Front, Wire, chunked, produce, request
from tests.waiting import until

SIZE = 100_000
LARGE = request("/v1/queue.produce", b'{"queue_name": "q"}'.ljust(SIZE))
CHUNKED = request("/v1/queue.produce", chunked(b'{"queue_name": "q"}'.ljust(SIZE)), "Transfer-Encoding: chunked")


@pytest.fixture(autouse=True)
def room_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARRIVING_BYTES_MAX", SIZE + 1)


def begin(front: Front, data: bytes = LARGE) -> Wire:
    """A client that has sent all but the last byte of a large request."""
    wire = front.connect()
    before = inside(front) + waiting(front)
    wire.send(data[:-1])
    until(lambda: inside(front) + waiting(front) == before + 1)
    return wire


def inside(front: Front) -> int:
    return front.on_loop(lambda: len(front.gate.bodies._inside))  # type: ignore[no-any-return]


def waiting(front: Front) -> int:
    return front.on_loop(lambda: len(front.gate.bodies._waiting))  # type: ignore[no-any-return]


@pytest.mark.parametrize("data", [LARGE, CHUNKED], ids=["length", "chunked"])
def test_a_large_body_waits_for_room_and_a_small_one_does_not(front: Front, data: bytes) -> None:
    front.familiar(produce())
    first, second, third = begin(front, data), begin(front, data), begin(front, LARGE)
    assert (inside(front), waiting(front)) == (1, 2)
    second.send(data[-1:])
    assert front.ask(produce()).status == 200
    front.service.reset()
    third.send(LARGE[-1:] + produce())
    first.send(data[-1:])
    for wire in (first, second, third, third):
        assert wire.answer().status == 200
    assert front.on_loop(lambda: front.gate.bodies.bytes) == 0


def test_a_client_that_leaves_makes_room(front: Front) -> None:
    front.familiar(produce())
    first, second, third = begin(front), begin(front), begin(front)
    second.close()
    first.close()
    third.send(LARGE[-1:])
    assert third.answer().status == 200
    until(lambda: (inside(front), waiting(front)) == (0, 0))


def test_a_slow_body_ends_when_others_wait(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARRIVING_SECONDS_MAX", 0.3)
    front.familiar(produce())
    slow, second = begin(front), begin(front)
    assert slow.is_at_end()
    second.send(LARGE[-1:])
    assert second.answer().status == 200


def test_a_body_that_waits_for_room_is_not_idle(front: Front) -> None:
    front.familiar(produce())
    first, second = begin(front), begin(front)
    second.send(LARGE[-1:])

    def sweep() -> None:
        front.gate.sweeps += 100
        for connection in list(front.server.server_state.connections):
            connection.end_if_idle()  # type: ignore[union-attr]

    front.on_loop(sweep)
    assert first.is_at_end()
    assert second.answer().status == 200


def test_clients_that_do_not_read_are_cut_off_when_there_are_many(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNREAD_BYTES_MAX", 10_000_000)
    monkeypatch.setattr(limits, "UNREAD_CROWDED_SECONDS_MAX", 0.1)
    monkeypatch.setattr(memory, "_UNREAD_LOOK_SECONDS", 0.05)
    lease = request("/v1/queue.lease", b'{"queue_name": "large", "batch_size": 6000000}')
    wires = [front.connect() for _ in range(2)]
    until(lambda: front.on_loop(lambda: len(front.server.server_state.connections)) == 2)
    for wire in wires:
        wire.send(lease * 3)
    until(lambda: front.on_loop(lambda: len(front.server.server_state.connections)) == 1)
    whole = 0
    for wire in wires:
        with contextlib.suppress(AssertionError, *CUT_OFF):
            whole += [len(wire.answer().body) > 6_000_000 for _ in range(3)] == [True] * 3
    assert whole == 1


def test_memory_is_given_back_after_a_peak(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    given = threading.Event()
    monkeypatch.setattr(memory, "PEAK_BYTES", SIZE)
    monkeypatch.setattr(allocators, "give_back", given.set)

    def sweep() -> None:
        front.gate._sweep(front.loop, set())

    front.familiar(produce())
    first = begin(front)
    front.on_loop(sweep)
    assert not given.is_set()
    first.send(LARGE[-1:])
    assert first.answer().status == 200
    front.on_loop(sweep)
    assert given.wait(20)
