"""Messages to and from protobuf's binary form (wire contract 1.3, 1.9).

Times are not checked here: any seconds and nanoseconds become microseconds, and the service refuses times that RFC 3339
cannot express. Unknown fields are ignored, as usual with protobuf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from itertools import repeat
from keyword import iskeyword
from operator import attrgetter, concat
from typing import Any, Final, TypeVar, cast

from querator.errors import ContentError
from querator.limits import NS_PER_US, US_PER_SECOND
from querator.wire import schema
from querator.wire.messages import Message

M = TypeVar("M", bound=Message)

INVALID_DATA: Final = "proto: cannot parse invalid wire-format data"
INVALID_TEXT: Final = "string field contains invalid UTF-8"


def decode(kind: type[M], body: bytes) -> M:
    """Raises ContentError."""
    message: M = _decoder(kind)(body)
    return message


def encode(message: Message) -> bytes:
    return _writer(type(message))(message)


def _time_to_us(time: Any) -> int:
    us: int = time.seconds * US_PER_SECOND + time.nanos // NS_PER_US
    return us


# The pieces of an encoded message. Objects of the generated classes would cost several times as much: each of them, and
# each text in it, is copied once more into the message around it.


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(number: int) -> bytes:
    """A number in groups of seven bits. A negative number takes ten bytes."""
    if 0 <= number < 128:
        return _BYTES[number]
    number &= (1 << 64) - 1
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def _sized(data: bytes) -> bytes:
    """Bytes behind their length."""
    size = len(data)
    return (_BYTES[size] if size < 128 else _varint(size)) + data


@lru_cache(maxsize=256)  # items of one lease have the same deadline
def _time(us: int) -> bytes:
    """A google.protobuf.Timestamp behind its length."""
    seconds, fraction = divmod(us, US_PER_SECOND)
    data = _SECONDS + _varint(seconds) if seconds else b""
    return _sized(data + _NANOS + _varint(fraction * NS_PER_US) if fraction else data)


def _entries(tag: bytes, texts: dict[str, str]) -> bytes:
    """A map of texts, which is a list of messages with a key and a value. Empty ones of them are left out."""
    entries = []
    for key, value in texts.items():
        entry = _KEY + _sized(key.encode()) if key else b""
        entries.append(tag + _sized(entry + _VALUE + _sized(value.encode()) if value else entry))
    return b"".join(entries)


_VARINT: Final = 0
_LENGTH: Final = 2
_BYTES: Final = [bytes([value]) for value in range(128)]
_KEY: Final = _tag(1, _LENGTH)
_VALUE: Final = _tag(2, _LENGTH)
_SECONDS: Final = _tag(1, _VARINT)
_NANOS: Final = _tag(2, _VARINT)


# google.protobuf is imported with the first message in protobuf. Most clients speak JSON.


@cache
def _decoder(kind: type[Message]) -> Callable[[bytes], Any]:
    from google.protobuf.message import DecodeError

    parse, read = schema.generated(kind).FromString, _reader(kind)

    def decoder(body: bytes) -> Any:
        try:
            generated = parse(body)
        except DecodeError as error:
            raise ContentError(INVALID_TEXT if "UTF-8" in str(error) else INVALID_DATA) from None
        return read(generated)

    return decoder


# A reader or writer is one expression over all fields of a message, compiled once from the schema. A loop over the
# fields would cost more than all other work on an item.


@cache
def _reader(kind: type[Message]) -> Callable[[Any], Any]:
    """A function that turns an object of the generated class into a struct."""
    names: dict[str, Any] = {"kind": kind, "time": _time_to_us}
    arguments = []
    for position, field in enumerate(schema.fields(kind)):
        name = schema.proto_names(kind)[field.json_name]
        value = f"getattr(m, {name!r})" if iskeyword(name) else f"m.{name}"
        if field.child is not None:
            names[f"child{position}"] = _reader(field.child)
            inner = f"child{position}"
            value = f"list(map({inner}, {value}))" if field.repeated else f"{inner}({value})"
        elif field.repeated:
            value = f"list({value})"
        elif field.kind == "map":
            value = f"dict({value})"
        elif field.kind == "timestamp":
            value = f"time({value})"
        if not field.repeated and schema.generated(kind).DESCRIPTOR.fields_by_name[name].has_presence:
            value = f"{value} if m.HasField({name!r}) else None"
        arguments.append(value)
    return eval(f"lambda m: kind({', '.join(arguments)})", names)  # type: ignore[no-any-return]


@cache
def _writer(kind: type[Message]) -> Callable[[Any], bytes]:
    """A function that encodes a struct. A default is not written. Neither is None, which means unset."""
    names: dict[str, Any] = {}
    pieces = [_piece(kind, field, names) for field in schema.fields(kind)]
    return eval(f"lambda m: b''.join(({', '.join([*pieces, ''])}))", names)  # type: ignore[no-any-return]


def _piece(kind: type[Message], field: schema.Field, names: dict[str, Any]) -> str:
    """An expression for the bytes of one field of the struct `m`. Adds the names that it uses."""
    described, number = _described(kind, field)
    names |= {"sized": _sized, "time": _time, "varint": _varint, "entries": _entries}
    is_number = field.kind in ("int32", "int64", "bool")
    names[f"tag{number}"] = _tag(number, _VARINT if is_number and not field.repeated else _LENGTH)
    value = f"m.{field.attribute}"
    if field.child is not None:
        names[f"child{number}"] = _list_writer(field.child, number) if field.repeated else _writer(field.child)
        piece = f"child{number}({value})" if field.repeated else f"tag{number} + sized(child{number}({value}))"
    elif field.kind == "map":
        piece = f"entries(tag{number}, {value})"
    elif field.kind in ("string", "bytes") and not field.repeated:
        names[f"heads{number}"] = _Heads(names[f"tag{number}"])
        piece = f"heads{number}[len(v := {value}{'.encode()' if field.kind == 'string' else ''})] + v"
    elif not field.repeated:
        piece = f"tag{number} + " + _WRITTEN[field.kind].format(value)
    elif is_number:
        piece = f"tag{number} + sized(b''.join([varint(v) for v in {value}]))"
    else:
        piece = f"b''.join([tag{number} + {_WRITTEN[field.kind].format('v')} for v in {value}])"
    is_set = " is not None" if not field.repeated and described.has_presence else ""
    assert field.kind not in ("string", "bytes") or not is_set, "no message has an optional text"
    return f"({piece} if {value}{is_set} else b'')"


def _described(kind: type[Message], field: schema.Field) -> tuple[Any, int]:
    described = schema.generated(kind).DESCRIPTOR.fields_by_name[schema.proto_names(kind)[field.json_name]]
    return described, described.number


_WRITTEN: Final = {
    "string": "sized({0}.encode())",
    "bytes": "sized({0})",
    "timestamp": "time({0})",
    "int32": "varint({0})",
    "int64": "varint({0})",
    "bool": "varint({0})",
}
"""How a value is written behind its tag, by its kind."""


class _Heads(dict[int, bytes]):
    """The tag and length in front of a text, by its length. A field of length 0 is not written."""

    def __init__(self, tag: bytes) -> None:
        super().__init__({0: b""})
        self._tag = tag

    def __missing__(self, size: int) -> bytes:
        head = self._tag + _varint(size)
        if size < _HEADS_KEPT:
            self[size] = head
        return head


_concat: Final[Callable[[bytes, bytes], bytes]] = cast(Any, concat)
_HEADS_KEPT: Final = 4_096
_TOGETHER: Final = 8
"""A list of at least this many messages is encoded field by field, without a step of Python per message."""


def _list_writer(kind: type[Message], number: int) -> Callable[[list[Any]], bytes]:
    """A function that encodes a repeated field with this number."""
    write, tag = _writer(kind), _tag(number, _LENGTH)
    columns: list[tuple[Callable[[Any], Any], Callable[[Any], bytes], bool, _Heads | None]] = []
    for field in schema.fields(kind):
        names: dict[str, Any] = {}
        piece = eval(f"lambda m: {_piece(kind, field, names)}", names)
        described, child_number = _described(kind, field)
        is_text = field.kind in ("string", "bytes") and not field.repeated and not described.has_presence
        heads = _Heads(_tag(child_number, _LENGTH)) if is_text else None
        columns.append((attrgetter(field.attribute), piece, field.kind == "string", heads))
    outer = _Heads(tag)
    outer[0] = tag + _varint(0)

    def write_list(messages: list[Any]) -> bytes:
        if len(messages) < _TOGETHER:
            return b"".join([tag + _sized(write(message)) for message in messages])
        pieces: list[Iterable[bytes]] = []
        for value_of, piece, is_string, heads in columns:
            values = list(map(value_of, messages))
            if values.count(values[0]) == len(values):
                pieces.append(repeat(piece(messages[0])))
            elif heads is None:
                pieces.append(map(piece, messages))
            else:
                data = list(map(str.encode, values)) if is_string else values
                pieces.append(map(_concat, map(heads.__getitem__, map(len, data)), data))
        # The last column ends the others.
        whole = list(map(b"".join, zip(*pieces, repeat(b"", len(messages)), strict=False)))
        return b"".join(map(_concat, map(outer.__getitem__, map(len, whole)), whole))

    return write_list
