"""Answers to leases are encoded without messages, and have the same bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from querator import times
from querator.daemon.queue.hands import Hand
from querator.daemon.store import Run
from querator.items import NOBODY, Item, Lease
from querator.wire import json, leased, protobuf
from querator.wire.leased import LeaseReply
from querator.wire.messages import QueueLeaseItem, QueueLeaseResponse

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LEASES = st.builds(
    Lease,
    id=st.text("0123456789AZaz", min_size=27, max_size=27),
    item=st.builds(
        Item,
        seq=st.just(1),
        created_at=st.just(1),
        expire_deadline=st.just(1),
        payload=st.binary() | st.integers(126, 130).map(bytes) | st.integers(16_383, 16_385).map(bytes),
        kind=TEXTS,
        reference=TEXTS,
        encoding=TEXTS,
    ),
    attempts=st.integers(0, 300),
    deadline=st.integers(times.MIN_US, times.MAX_US) | st.just(0),
)


def message_of(reply: LeaseReply) -> QueueLeaseResponse:
    items = [
        QueueLeaseItem(
            lease.item.encoding,
            lease.item.kind,
            lease.item.reference,
            lease.id,
            lease.attempts,
            lease.deadline,
            lease.item.payload,
        )
        for lease in reply.leases
    ]
    return QueueLeaseResponse(reply.queue_name, reply.partition, items)


@settings(max_examples=200, deadline=None)
@given(name=TEXTS.filter(bool), partition=st.integers(0, 1_000), leases=st.lists(LEASES, max_size=5))
def test_the_bytes_are_those_of_the_message(name: str, partition: int, leases: list[Lease]) -> None:
    reply = LeaseReply(name, partition, leases)
    message = message_of(reply)
    assert leased.as_json(reply) == json.encode(message)
    assert leased.as_protobuf(reply) == protobuf.encode(message)


def test_neighbours_with_the_same_deadline_and_length_keep_their_own_values() -> None:
    items = [Item(1, 1, 1, payload) for payload in (b"ab", b"cd", b"", b"e", b"fg")]
    leases = [Lease(str(n), item, 1 + n // 2, 5) for n, item in enumerate(items)]
    reply = LeaseReply("q", 0, leases)
    assert json.decode(QueueLeaseResponse, leased.as_json(reply)) == message_of(reply)
    assert protobuf.decode(QueueLeaseResponse, leased.as_protobuf(reply)) == message_of(reply)


def test_a_deadline_without_a_text_is_refused() -> None:
    with pytest.raises(times.OutOfRange):
        leased.as_json(LeaseReply("q", 0, [Lease("i", Item(1, 1, 1), 1, times.MAX_US + 1)]))


@pytest.mark.parametrize("size", [1, 40, 41, 42, 200, 8_191, 8_192, 8_193, 100_000])
def test_payloads_of_any_size_and_number_are_encoded_alike(size: int) -> None:
    payloads = [bytes([n % 251]) * (size + n % 4) for n in range(0, 120, 1 + size // 1_000)]
    reply = LeaseReply("q", 1, [Lease(str(n), Item(1, 1, 1, payload), 1, 5) for n, payload in enumerate(payloads)])
    assert leased.as_json(reply) == json.encode(message_of(reply))


def a_run(texts: list[tuple[str, str, str]], payloads: list[bytes], with_texts: bool) -> Run:
    encodings, kinds, references = ([one[at] for one in texts] for at in range(3))
    columns = (kinds, references, encodings) if with_texts else ()
    return Run(1_000, len(payloads), 1, 2, payloads, *columns)


@settings(max_examples=200, deadline=None)
@given(
    items=st.lists(st.tuples(TEXTS, TEXTS, TEXTS, st.binary(max_size=9)), min_size=4, max_size=8),
    same_size=st.booleans(),
    with_texts=st.booleans(),
    step=st.integers(1, 3),
)
def test_a_hand_has_the_bytes_of_its_leases(items, same_size: bool, with_texts: bool, step: int) -> None:
    payloads = [item[3].ljust(5, b"-")[:5] if same_size else item[3] for item in items]
    run = a_run([item[:3] for item in items], payloads, with_texts)
    pieces = [(run, range(1, len(items), step)), (run, range(1))]
    count = sum(len(places) for _, places in pieces)
    reply = LeaseReply("q", 3, [], Hand([str(n).zfill(27) for n in range(count)], pieces, 5_000_000, NOBODY))
    one_by_one = LeaseReply("q", 3, reply.hand.leases())
    assert leased.as_json(reply) == leased.as_json(one_by_one)
    assert leased.as_protobuf(reply) == leased.as_protobuf(one_by_one)


@pytest.mark.parametrize("size", [1, 2, 3, 200, 8_192, 8_193])
def test_a_hand_with_payloads_of_any_size_has_the_bytes_of_its_leases(size: int) -> None:
    run = a_run([], [bytes([n]) * size for n in range(20)], with_texts=False)
    reply = LeaseReply("q", 0, [], Hand([str(n).zfill(27) for n in range(20)], [(run, range(20))], 5, NOBODY))
    assert leased.as_json(reply) == leased.as_json(LeaseReply("q", 0, reply.hand.leases()))
    assert leased.as_protobuf(reply) == leased.as_protobuf(LeaseReply("q", 0, reply.hand.leases()))
