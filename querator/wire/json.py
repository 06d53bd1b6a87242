"""Messages to and from JSON, by the protobuf JSON mapping (wire contract 1.7).

msgspec decodes a body. It is fast, and accepts less than the mapping allows. `strict.py` reads a body again if msgspec
refuses it, or if an object may have a key twice: msgspec silently keeps the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from querator import times
from querator.errors import ContentError
from querator.wire import large, schema, strict
from querator.wire.messages import Message, QueueCompleteRequest, QueueLeaseRequest, QueueProduceRequest

M = TypeVar("M", bound=Message)

_encode: Final = msgspec.json.Encoder().encode
_decode_untyped: Final = msgspec.json.Decoder().decode
_utf8_of: Final = attrgetter("utf8")
_bytes_of: Final = attrgetter("bytes_")
_LONG_BODY_BYTES: Final = 1_024
_LARGE_BODY_BYTES: Final = 65_536
_LARGE_ITEM_BYTES: Final = 4_096
_DECODERS: Final[dict[type[Message], Callable[[bytes], Any]]] = {}


def decode(kind: type[M], body: bytes) -> M:
    """The message in a body. Raises ContentError with the text that existing clients know."""
    if len(body) >= _LARGE_BODY_BYTES and kind is QueueProduceRequest:
        request: Any = _with_large_texts(body)
        if request is not None:
            return cast(M, request)
    fast = _DECODERS.get(kind) or _prepare(kind)
    try:
        message: M = fast(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return strict.decode(kind, body)
    return message if _has_no_key_twice(body, message) else strict.decode(kind, body)


def encode(message: Message) -> bytes:
    timed = _timed(type(message))
    return _encode(message if timed is None else _with_times_as_text(timed, message))


# -- decoding


def _prepare(kind: type[Message]) -> Callable[[bytes], Any]:
    decoder = _DECODERS[kind] = msgspec.json.Decoder(kind, dec_hook=_time_from_text).decode
    return decoder


def _time_from_text(_: type[Any], value: Any) -> int:
    if type(value) is not str:
        raise ValueError("a time is a text")
    return times.parse(value)


def _with_large_texts(body: bytes) -> QueueProduceRequest | None:
    """The request in a large body, if its texts can be cut out of the body and everything else is valid."""
    parts = large.cut(body)
    if parts is None:
        return None
    rest, texts = parts
    try:
        request = decode(QueueProduceRequest, rest)
    except ContentError:
        return None  # the error is described by its place in the body
    return request if large.put_back(request.items, texts) else None


def _has_no_key_twice(body: bytes, message: Message) -> bool:
    """Whether no object in this valid body has a key twice. A cheap check; False can also mean "not sure".

    A colon belongs to a key or is part of a string. So a body with as many colons as its message has values has every
    key once. Otherwise the check encodes the message again. If the result is not the body itself, it compares the
    number of colons, because a repeated key is encoded once. The message lacks explicit zeros, and its times are
    numbers. If the numbers differ, the body is decoded without types, encoded and compared again.

    A short body is encoded at once, because that is as fast. Except a lease, whose fields have no usual order.
    """
    is_searched = len(body) >= _LONG_BODY_BYTES or type(message) is QueueLeaseRequest
    if is_searched and _has_colons(body, _values(message)):
        return True
    if len(body) >= _LARGE_BODY_BYTES and type(message) is QueueProduceRequest:
        # To encode large payloads again would cost as much as to decode them.
        message = _without_large_payloads(message, len(body))
    encoded = _encode(message)
    if encoded == body:
        return True
    if b"\\" in body and b"\\u003" in body:
        return False  # it may be an escaped colon
    colons = _colons(body)
    return colons == _colons(encoded) or colons == _colons(_encode(_decode_untyped(body)))


def _values(message: Any) -> int:
    """The number of values that a message of the hot path has: each was behind a key of its own. Items with more than a
    payload count too little, which only costs the cheap check.
    """
    kind = type(message)
    if kind is QueueProduceRequest:
        return _values_of_produce(message)
    if kind is QueueLeaseRequest:
        values = bool(message.queue_name) + bool(message.batch_size) + bool(message.client_id)
        return values + bool(message.request_timeout) + bool(message.complete_ids)
    if kind is QueueCompleteRequest:
        values = bool(message.queue_name) + bool(message.partition)
        return values + bool(message.request_timeout) + bool(message.ids)
    return -1


def _values_of_produce(message: Any) -> int:
    values = bool(message.queue_name) + bool(message.request_timeout) + bool(message.items) + bool(message.request_id)
    items = message.items
    if len(items) == 1:
        return values + bool(items[0].utf8 or items[0].bytes_)
    with_payload = len(items) - list(map(_utf8_of, items)).count("")
    if with_payload < len(items):
        with_payload = max(with_payload, len(items) - list(map(_bytes_of, items)).count(b""))
    return values + with_payload


def _without_large_payloads(request: QueueProduceRequest, body_bytes: int) -> QueueProduceRequest:
    """A copy with short payloads, whose encoding has as many colons. The request itself if its payloads are short."""
    if body_bytes < len(request.items) * _LARGE_ITEM_BYTES:
        return request
    items = []
    for item in request.items:
        if item.bytes_:
            item = msgspec.structs.replace(item, bytes_=b"-")  # base64 has no colon
        elif item.utf8 and ":" not in item.utf8:
            item = msgspec.structs.replace(item, utf8="-")
        items.append(item)
    return msgspec.structs.replace(request, items=items)


def _has_colons(body: bytes, count: int) -> bool:
    """Whether the body has exactly so many colons."""
    if len(body) < _LARGE_BODY_BYTES or len(body) < count * _LARGE_ITEM_BYTES:
        return _colons(body) == count
    # Without a copy of the body. Each search is fast if colons are far apart.
    at = -1
    for _ in range(count):
        at = body.find(b":", at + 1)
        if at < 0:
            return False
    return count >= 0 and body.find(b":", at + 1) < 0


def _colons(body: bytes) -> int:
    return len(body) - len(body.replace(b":", b""))  # much faster than count()


# -- encoding


class _Timed(NamedTuple):
    """The fields of a message that hold times, and its children that have such fields."""

    copy: Any
    times: tuple[str, ...]
    children: tuple[tuple[str, bool, _Timed], ...]


@cache
def _timed(kind: type[Message]) -> _Timed | None:
    own, children = [], []
    for field in schema.fields(kind):
        if field.kind == "timestamp":
            own.append(field.attribute)
        elif field.child and (child := _timed(field.child)) is not None:
            children.append((field.attribute, field.repeated, child))
    return _Timed(cast(Any, kind).__copy__, tuple(own), tuple(children)) if own or children else None


_time_text: Final = lru_cache(maxsize=64)(times.text)
"""Many answers have the same time, such as the deadline of a lease."""


def _with_times_as_text(timed: _Timed, message: Any) -> Any:
    """A copy of the message that holds its times as texts, for msgspec to encode."""
    copy = timed.copy(message)
    for attribute in timed.times:
        us = getattr(copy, attribute)
        if us is not None:
            setattr(copy, attribute, _time_text(us))
    for attribute, repeated, child in timed.children:
        inner = getattr(copy, attribute)
        if inner:
            if not repeated:
                inner = _with_times_as_text(child, inner)
            elif len(inner) == 1:
                inner = [_with_times_as_text(child, inner[0])]
            else:
                inner = _all_with_times_as_text(child, inner)
            setattr(copy, attribute, inner)
    return copy


def _all_with_times_as_text(timed: _Timed, messages: list[Any]) -> list[Any]:
    """The same for many messages, field by field."""
    copies = list(map(timed.copy, messages))
    for attribute in timed.times:
        values = list(map(attrgetter(attribute), copies))
        texts = {us: _time_text(us) for us in set(values) if us is not None}
        deque(map(setattr, copies, repeat(attribute), map(texts.get, values)), maxlen=0)
    for attribute, repeated, child in timed.children:
        for copy in copies:
            inner = getattr(copy, attribute)
            if inner:
                spell = _all_with_times_as_text if repeated else _with_times_as_text
                setattr(copy, attribute, spell(child, inner))
    return copies
