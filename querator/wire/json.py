"""Messages to and from JSON, by the protobuf JSON mapping (wire contract 1.7).

A body is decoded by msgspec, which is fast and accepts less than the mapping allows. Whatever it does not take, and
whatever may hold a key twice (msgspec keeps the last and says nothing), is read again by `strict.py`, which decides.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from querator import times
from querator.wire import schema, strict
from querator.wire.messages import Message

M = TypeVar("M", bound=Message)

_encode: Final = msgspec.json.Encoder().encode
_decode_untyped: Final = msgspec.json.Decoder().decode
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def decode(kind: type[M], body: bytes) -> M:
    """Raises ContentError with the text that existing clients know."""
    fast = _FAST.get(kind) or _prepare(kind)
    try:
        message: M = fast.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return strict.decode(kind, body)
    if not _has_keys(body, _distinct_keys(fast.nested, _decode_untyped(body)), fast.has_map):
        return strict.decode(kind, body)
    return message


def encode(message: Message) -> bytes:
    timed = _timed(type(message))
    if timed is not None:
        (message,) = _with_times_as_text(timed, [message])
    return _encode(message)


# -- decoding


class _Nested(NamedTuple):
    """Where the keys of a message are, beyond its own."""

    json_name: str
    repeated: bool
    nested: tuple[_Nested, ...]


class _Fast(NamedTuple):
    decode: Any
    nested: tuple[_Nested, ...]
    has_map: bool


_FAST: Final[dict[type[Message], _Fast]] = {}


def _prepare(kind: type[Message]) -> _Fast:
    decoder = msgspec.json.Decoder(kind, dec_hook=_time_from_text)
    has_map = any(field.kind == "map" for field in schema.fields(kind))
    fast = _FAST[kind] = _Fast(decoder.decode, _nested(kind), has_map)
    return fast


def _time_from_text(_: type[Any], value: Any) -> int:
    if type(value) is not str:
        raise ValueError("a time is a text")
    return times.parse(value)


@cache
def _nested(kind: type[Message]) -> tuple[_Nested, ...]:
    return tuple(
        _Nested(field.json_name, field.repeated, _nested(field.child) if field.child else ())
        for field in schema.fields(kind)
        if field.kind in ("message", "map")
    )


def _distinct_keys(nested: tuple[_Nested, ...], value: dict[str, Any]) -> int:
    count = len(value)
    for json_name, repeated, deeper in nested:
        inner = value.get(json_name)
        if inner:
            if not repeated:
                count += _distinct_keys(deeper, inner)
            elif deeper:
                count += sum([_distinct_keys(deeper, one) for one in inner])
            else:
                count += sum(map(len, inner))
    return count


def _has_keys(body: bytes, count: int, has_map: bool) -> bool:
    """Whether this valid JSON has exactly so many keys.

    Each key has its colon, and all other colons stand in strings. Three ways to tell them apart, the cheapest first,
    because this is a good part of what decoding costs.
    """
    # Deleting a byte is much faster than counting it: that jumps from hit to hit.
    if len(body) - len(body.replace(b":", b"")) == count:
        return True
    if has_map or b" :" in body or any(space in body and space + b":" in body for space in (b"\n", b"\t", b"\r")):
        return _STRING.sub(b"", body).count(b":") == count
    # Now every key ends in quote and colon, and is the name of a field (those of a map could end in a backslash). In
    # a string a quote has a backslash before it.
    keys = body.count(b'":')
    return keys == count if b"\\" not in body else keys - body.count(b'\\":') == count


# -- encoding


class _Timed(NamedTuple):
    """Where the times of a message are."""

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


def _with_times_as_text(timed: _Timed, messages: list[Any]) -> list[Any]:
    """Copies that hold texts where the messages hold times, so that msgspec writes them as such."""
    copies = list(map(timed.copy, messages))
    for attribute in timed.times:
        # Neighbours often have the same time, above all the deadline of what was leased together.
        last, text = None, None
        for copy in copies:
            us = getattr(copy, attribute)
            if us is not None:
                if us != last:
                    last, text = us, times.text(us)
                setattr(copy, attribute, text)
    for attribute, repeated, child in timed.children:
        for copy in copies:
            inner = getattr(copy, attribute)
            if inner:
                spelled = _with_times_as_text(child, inner if repeated else [inner])
                setattr(copy, attribute, spelled if repeated else spelled[0])
    return copies
