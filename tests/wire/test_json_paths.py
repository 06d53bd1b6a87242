"""The fast JSON decoder accepts nothing that the strict one refuses, and both give the same message."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from querator.errors import ContentError
from querator.wire import json, strict
from querator.wire.messages import Message, QueueCompleteRequest, QueueProduceRequest, QueuesInfoRequest, Reply
from tests.wire.strategies import HOT, KINDS, body, damaged, message


def outcome(decode: Callable[[type[Message], bytes], Message], kind: type[Message], data: bytes) -> Message | str:
    try:
        return decode(kind, data)
    except ContentError as error:
        return error.message


def agree(kind: type[Message], data: bytes) -> None:
    assert outcome(json.decode, kind, data) == outcome(strict.decode, kind, data), data


@settings(max_examples=1500, deadline=None)
@given(data=st.data(), kind=st.sampled_from(HOT + KINDS))
def test_both_ways_agree_on_whatever_a_client_may_write(data: st.DataObject, kind: type[Message]) -> None:
    agree(kind, data.draw(damaged(data.draw(body(kind)))))


@settings(max_examples=300, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_both_ways_read_what_we_write(data: st.DataObject, kind: type[Message]) -> None:
    sent = data.draw(message(kind))
    written = json.encode(sent)
    assert json.decode(kind, written) == sent
    assert strict.decode(kind, written) == sent


def twice(first: str, second: str) -> str:
    return f'{{"items":[{{{first},{second}}}]}}'


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(twice('"kind":"a"', '"kind":"b"'), id="plainly"),
        pytest.param(twice('"kind":"a"', '"kind" :"b"'), id="with a space before the colon"),
        pytest.param(twice('"kind" :"a"', '"kind"\n:"b"'), id="with white space before both colons"),
        pytest.param(twice('"kind":""', '"kind":""'), id="both zero"),
        pytest.param(twice('"kind":"a:b"', '"kind":"c"'), id="the first with a colon of its own"),
        pytest.param(twice('"kind":"c"', '"kind":"a:b"'), id="the second with a colon of its own"),
        pytest.param(twice('"kind":"c"', '"kind":"\\u003a"'), id="with a colon in disguise"),
        pytest.param(twice('"kind":"c"', '"kind":"\\u003A"'), id="with a colon in a disguise of capitals"),
        pytest.param(twice('"kind":"c"', '"k\\u0069nd":"d"'), id="the name in disguise"),
        pytest.param(twice('"kind":"\\\\"', '"kind":"\\":"'), id="among backslashes and quotes"),
        pytest.param(twice('"enqueue_at":null', '"enqueue_at":null'), id="both null"),
        pytest.param(twice('"enqueue_at":null', '"enqueueAt":null'), id="in both spellings"),
        pytest.param(twice('"bytes":"YQ=="', '"bytes":"Yg=="'), id="in bytes"),
    ],
)
@pytest.mark.parametrize("payload", ["", "x" * 100_000, "x:" * 50_000], ids=["short", "long", "long with colons"])
def test_a_key_that_comes_twice_is_always_found(text: str, payload: str) -> None:
    text = text.replace("[", f'[{{"utf8":"{payload}"}},', 1)
    with pytest.raises(ContentError, match="duplicate field"):
        json.decode(QueueProduceRequest, text.encode())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param('"utf8":"' + "x" * 100_000 + '"', '"utf8":"y"', id="text"),
        pytest.param('"bytes":"YQ=="', '"bytes":"' + "Y" * 100_000 + '"', id="bytes"),
    ],
)
def test_a_long_payload_that_comes_twice_is_found(first: str, second: str) -> None:
    with pytest.raises(ContentError, match="duplicate field"):
        json.decode(QueueProduceRequest, twice(first, second).encode())


@pytest.mark.parametrize(
    "text",
    [
        '{"queue_name":"q","ids":["a"],"ids":["b"]}',
        '{"queue_name":"q","queue_name":"r","ids":["b"],"request_timeout":"5s"}',
        '{"queue_name":"q","ids":["a"],"partition":0,"partition":1}',
        '{"ids":["a"],"ids":[],"partition":0,"queue_name":""}',
    ],
)
@pytest.mark.parametrize("others", [0, 100], ids=["short", "long"])
def test_a_key_that_comes_twice_in_a_complete_is_found(text: str, others: int) -> None:
    text = text.replace('["a"', '["a"' + ',"x234567890123456789012345"' * others)
    with pytest.raises(ContentError, match="duplicate field"):
        json.decode(QueueCompleteRequest, text.encode())


def test_the_keys_of_a_map_may_hold_anything_but_come_once() -> None:
    assert json.decode(Reply, b'{"details":{"a\\\\":"x","b:":"y"}}').details == {"a\\": "x", "b:": "y"}
    with pytest.raises(ContentError, match='duplicate map key "b"'):
        json.decode(Reply, b'{"details":{"a\\\\":"x","b":"y","b":"z"}}')


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies that the strict decoder had to read."""
    bodies: list[bytes] = []
    monkeypatch.setattr(strict, "decode", lambda _, body: bodies.append(body))
    return bodies


@pytest.mark.parametrize(
    "text",
    [
        '{"queue_name":"q","request_timeout":"5s","items":[{"utf8":"x","kind":"k"},{"bytes":"eA=="}]}',
        '{"queue_name": "q", "items": [{"utf8": "a: b"}, {"utf8": "{\\"a\\": \\"b\\"}"}]}',
        '{\n  "queue_name" : "q : r",\n  "items" : [ {} ]\n}\n',
        '{"queue_name":"q","items":[{"kind":"","enqueue_at":null,"utf8":"x"}],"request_id":""}',
        '{"items":[{"utf8":"é\\u00e9\\n","enqueue_at":"2030-01-02T03:04:05.123456+05:30"}]}',
        '{"items": [{"utf8": "' + "x" * 100_000 + '"}, {"utf8": "' + "a:b" * 30_000 + '"}]}',
        '{"items": [{"bytes": "' + "eHh4" * 30_000 + '", "kind": "a:b"}]}',
    ],
)
def test_ordinary_bodies_never_need_the_strict_reader(text: str, asked: list[bytes]) -> None:
    json.decode(QueueProduceRequest, text.encode())
    assert asked == []


def test_the_strict_reader_is_asked_when_needed(asked: list[bytes]) -> None:
    json.decode(QueuesInfoRequest, b'{"queueName":"q"}')
    assert asked == [b'{"queueName":"q"}']
