"""The binary form of protobuf messages, piece by piece.

Objects of the generated classes cost several times as much: each of them, and each text in it, is copied once more into
the message around it. `read` understands what requests nearly always consist of, and leaves everything else to the
generated classes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from querator.limits import NS_PER_US, US_PER_SECOND

VARINT: Final = 0
LENGTH: Final = 2
_BYTES: Final = [bytes([value]) for value in range(128)]
_GROUPS: Final = [bytes([value | 128]) for value in range(128)]
"""Seven bits that are followed by more."""


# -- writing


def tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def varint(number: int) -> bytes:
    """A number in groups of seven bits. A negative number takes ten bytes."""
    if 0 <= number < 128:
        return _BYTES[number]
    if number < 0:
        number += 1 << 64
    groups = b""
    while number > 127:
        groups = groups + _GROUPS[number & 127]  # compiled code adds in place more slowly
        number >>= 7
    return groups + _BYTES[number]


def sized(data: bytes) -> bytes:
    """Bytes behind their length."""
    return varint(len(data)) + data


@lru_cache(maxsize=256)  # items of one list often have the same time
def time(us: int) -> bytes:
    """A google.protobuf.Timestamp behind its length."""
    seconds, fraction = us // US_PER_SECOND, us % US_PER_SECOND
    data = _SECONDS + varint(seconds) if seconds else b""
    return sized(data + _NANOS + varint(fraction * NS_PER_US) if fraction else data)


_SECONDS: Final = tag(1, VARINT)
_NANOS: Final = tag(2, VARINT)


# -- reading

TEXT: Final = 0
DATA: Final = 1
NUMBER: Final = 2
FLAG: Final = 3
TEXTS: Final = 4
MESSAGES: Final = 5
"""The forms of a field that `read` understands."""
_SHIFT_MAX: Final = 21
"""A length of more than 28 bits is beyond every limit of a body."""


class FieldRule:
    def __init__(self, position: int, form: int, child: MessageRule | None, most: int) -> None:
        self.position = position
        """The place of the field's value among the arguments of its struct."""
        self.form = form
        self.child = child
        """How to read each of its MESSAGES."""
        self.most = most
        """A request with more MESSAGES is refused, so further ones are only checked and counted."""


class MessageRule:
    """How to read one kind of message."""

    def __init__(self, kind: Any, defaults: list[Any], fields: dict[int, FieldRule]) -> None:
        self.kind = kind
        self.defaults = defaults
        self.by_tag: list[FieldRule | None] = [fields.get(tag) for tag in range(128)]
        self.repeated = [field.position for field in fields.values() if field.form >= TEXTS]


def read(table: MessageRule, body: bytes) -> Any:
    """The message in a body, or None if it is not valid or has something unusual."""
    try:
        return _read(table, body, 0, len(body), None)
    except UnicodeDecodeError:
        return None


def _read(table: MessageRule, body: bytes, at: int, end: int, placeholder: Any) -> Any:
    """The message in a part of a body, or the placeholder, if there is one, in place of a valid message."""
    values = table.defaults.copy()
    for position in table.repeated:
        values[position] = []
    by_tag = table.by_tag
    while at < end:
        byte = body[at]
        field = by_tag[byte] if byte < 128 else None
        at += 1
        if field is None or at == end:
            return None
        number = body[at]
        at += 1
        if number > 127:
            number &= 127
            shift = 7
            while True:
                if at == end or shift > _SHIFT_MAX:
                    return None
                byte = body[at]
                at += 1
                number |= (byte & 127) << shift
                if byte < 128:
                    break
                shift += 7
        form = field.form
        if form == NUMBER:
            values[field.position] = number
            continue
        if form == FLAG:
            values[field.position] = number != 0
            continue
        stop = at + number
        if stop > end:
            return None
        if form == TEXT:
            values[field.position] = body[at:stop].decode()
        elif form == DATA:
            values[field.position] = body[at:stop]
        elif form == TEXTS:
            values[field.position].append(body[at:stop].decode())
        else:
            assert field.child is not None
            messages: list[Any] = values[field.position]
            message = _read(field.child, body, at, stop, messages[-1] if len(messages) >= field.most else None)
            if message is None:
                return None
            messages.append(message)
        at = stop
    return table.kind(*values) if placeholder is None else placeholder
