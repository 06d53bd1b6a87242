"""Protobuf messages, and that they mean the same as JSON."""

from __future__ import annotations

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from querator.errors import ContentError
from querator.limits import BATCH_ITEMS_MAX
from querator.wire import json, protobuf, schema, wireformat
from querator.wire.messages import (
    ClockSetRequest,
    Message,
    QueueCompleteRequest,
    QueueLeaseItem,
    QueueLeaseRequest,
    QueueLeaseResponse,
    QueueProduceItem,
    QueueProduceRequest,
    QueuesInfoRequest,
    StorageItem,
    StorageItemsImportRequest,
)
from tests.wire.strategies import KINDS, message


@settings(max_examples=300, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_a_message_survives_the_round_trip(data: st.DataObject, kind: type[Message]) -> None:
    sent = data.draw(message(kind))
    assert protobuf.decode(kind, protobuf.encode(sent)) == sent


@settings(max_examples=300, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_protobufs_own_json_and_ours_understand_each_other(data: st.DataObject, kind: type[Message]) -> None:
    sent = data.draw(message(kind))
    generated = schema.generated(kind).FromString(protobuf.encode(sent))
    assert json.decode(kind, json_format.MessageToJson(generated).encode()) == sent
    assert json.decode(kind, json_format.MessageToJson(generated, preserving_proto_field_name=True).encode()) == sent
    assert json_format.Parse(json.encode(sent), schema.generated(kind)()) == generated


def test_an_empty_body_is_a_message_without_values() -> None:
    assert protobuf.decode(QueueLeaseRequest, b"") == QueueLeaseRequest()
    assert protobuf.encode(QueueLeaseRequest()) == b""


@pytest.mark.parametrize("body", [b"\x0a\x05ab", b"\x00\x01", b"\x0a" + b"\xff" * 11, b"\x0b", b'{"queue_name": "x"}'])
def test_broken_data_is_refused(body: bytes) -> None:
    with pytest.raises(ContentError) as caught:
        protobuf.decode(QueuesInfoRequest, body)
    assert caught.value.message == "proto: cannot parse invalid wire-format data"


def test_a_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ContentError) as caught:
        protobuf.decode(QueuesInfoRequest, b"\x0a\x02\xff\xfe")
    assert caught.value.message == "string field contains invalid UTF-8"


def test_unknown_fields_are_ignored_and_the_last_value_wins() -> None:
    assert protobuf.decode(QueuesInfoRequest, b"\x0a\x01x\xfa\x7f\x03abc\x0a\x01y") == QueuesInfoRequest("y")


def test_a_negative_number_takes_ten_bytes() -> None:
    body = b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    assert protobuf.decode(QueueLeaseRequest, body) == QueueLeaseRequest(batch_size=-1)


@pytest.mark.parametrize(
    "seconds,nanos,us",
    [
        (0, 0, 0),
        (1, 999, 1_000_000),
        (-1, 500_000_000, -500_000),
        (1 << 62, 0, (1 << 62) * 1_000_000),
        (-(1 << 62), -1, -(1 << 62) * 1_000_000 - 1),
    ],
)
def test_times_beyond_any_year_are_left_to_the_service(seconds: int, nanos: int, us: int) -> None:
    generated = schema.generated(ClockSetRequest)()
    generated.now.seconds, generated.now.nanos = seconds, nanos
    assert protobuf.decode(ClockSetRequest, generated.SerializeToString()).now == us


def test_a_time_of_1970_is_told_from_no_time() -> None:
    assert protobuf.decode(StorageItem, protobuf.encode(StorageItem(created_at=0))) == StorageItem(created_at=0)
    assert protobuf.decode(StorageItem, b"").created_at is None


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_long_list_is_encoded_like_many_short_ones(data: st.DataObject) -> None:
    kinds = [(kind, field) for kind in KINDS for field in schema.fields(kind) if field.repeated and field.child]
    kind, field = data.draw(st.sampled_from(kinds))
    assert field.child is not None
    some = data.draw(st.lists(message(field.child), min_size=1, max_size=3))
    together = kind(**{field.attribute: some * 9})
    apart = b"".join([protobuf.encode(kind(**{field.attribute: [one]})) for one in some * 9])
    assert schema.generated(kind).FromString(protobuf.encode(together)) == schema.generated(kind).FromString(apart)
    assert protobuf.decode(kind, protobuf.encode(together)) == together


def test_a_long_list_with_long_texts_survives_the_round_trip() -> None:
    sizes = (0, 1, 127, 128, 4_095, 4_096, 20_000)
    items = [QueueLeaseItem(id=f"{size}", attempts=size, bytes_=bytes(size)) for size in sizes * 2]
    sent = QueueLeaseResponse(queue_name="q", items=items)
    assert protobuf.decode(QueueLeaseResponse, protobuf.encode(sent)) == sent


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0a\x80",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x1a\x03\x32\x05a",
        b"\x80",
        b"\x0b",
        b"\x0a\x01\xff",
    ],
    ids=["no length", "cut text", "cut length", "endless length", "cut in an item", "cut tag", "group", "no UTF-8"],
)
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(ContentError):
        protobuf.decode(QueueProduceRequest, body)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_body_is_read_as_the_generated_class_reads_it(data: st.DataObject) -> None:
    """Whatever order its fields have, however often they come, and wherever it breaks off."""
    kind = data.draw(st.sampled_from([QueueProduceRequest, QueueLeaseRequest, QueueCompleteRequest]))
    parts = [protobuf.encode(one) for one in data.draw(st.lists(message(kind), max_size=3))]
    body = b"".join(parts)
    body = body[: data.draw(st.integers(0, len(body)))] + data.draw(st.binary(max_size=4))
    try:
        expected = protobuf._decoder(kind)(body)
    except ContentError:
        expected = None
    assert wireformat.read(protobuf._prepare(kind), body) in (None, expected)


@pytest.mark.parametrize("kind", [QueueProduceRequest, QueueLeaseRequest, QueueCompleteRequest])
def test_a_usual_request_needs_no_generated_class(kind: type[Message]) -> None:
    usual = {
        QueueProduceRequest: QueueProduceRequest("q", "1m", [QueueProduceItem(kind="k", utf8="é"), QueueProduceItem()]),
        QueueLeaseRequest: QueueLeaseRequest("q", 1_000, "c", "1m", ["a" * 27, "b" * 200]),
        QueueCompleteRequest: QueueCompleteRequest("q", 7, "1m", ["a" * 27]),
    }[kind]
    assert wireformat.read(protobuf._prepare(kind), protobuf.encode(usual)) == usual


@pytest.mark.parametrize("first", [b"\x1a\x00", b"\x1a\x02\x22\x00"], ids=["usual", "with a time"])
def test_items_beyond_the_bound_are_counted_but_not_made(first: bytes) -> None:
    many = protobuf.decode(QueueProduceRequest, first + b"\x1a\x03\x12\x01a" * 3_000 + b"\x0a\x01q")
    assert (many.queue_name, len(many.items)) == ("q", 3_001)
    assert len({id(item) for item in many.items}) == BATCH_ITEMS_MAX
    assert many.items[0].kind == "" and {item.kind for item in many.items[1:]} == {"a"}


@pytest.mark.parametrize(
    ("last", "text"),
    [(b"\x1a\x05ab", protobuf.INVALID_DATA), (b"\x1a\x03\x12\x01\xff", protobuf.INVALID_TEXT)],
)
def test_items_beyond_the_bound_are_still_checked(last: bytes, text: str) -> None:
    with pytest.raises(ContentError, match=text):
        protobuf.decode(QueueProduceRequest, b"\x1a\x00" * 3_000 + last)


def test_lists_without_a_bound_are_read_in_full() -> None:
    items = [StorageItem(id=str(number)) for number in range(BATCH_ITEMS_MAX + 2)]
    body = protobuf.encode(StorageItemsImportRequest(items=items))
    assert protobuf.decode(StorageItemsImportRequest, body).items == items
