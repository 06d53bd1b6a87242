"""The answer to a lease, encoded straight from the leases.

Most of the bytes that a daemon sends are answers to leases. So they are not turned into messages first: what all items
of an answer have in common is encoded once, and an item adds its id, its texts and its payload. The result has the same
bytes as a `QueueLeaseResponse` with these items.
"""

from __future__ import annotations

from binascii import b2a_base64
from typing import Any, Final

import msgspec
from pybase64 import b64encode, b64encode_as_string

from querator import times
from querator.wire.wireformat import sized, time, varint

_encode: Final = msgspec.json.Encoder().encode


class LeaseReply:
    """What a client gets for a lease."""

    def __init__(self, queue_name: str, partition: int, leases: list[Any], hand: Any = None) -> None:
        self.queue_name = queue_name
        self.partition = partition
        """The number of the partition."""
        self.leases = leases
        """Each has an `id`, the number of `attempts`, a `deadline` and an `item`."""
        self.hand = hand
        """If it is not None, it has all leases, with the same attempts and deadline. It knows their ids, payloads and
        texts as columns.
        """


def as_json(reply: LeaseReply) -> bytes:
    before = _NAME.as_json(reply.queue_name)
    if reply.partition:
        before = f'{before},"partition":{reply.partition}'
    leases = reply.leases
    if reply.hand is not None:
        encoded = _hand_as_json(before, reply.hand)
        if encoded is not None:
            return encoded
        leases = reply.hand.leases()
    if not leases:
        return (before + "}").encode()
    before += ',"items":[{'
    if len(leases) == 1:
        return _one_as_json(before, leases[0])
    items: list[Any] = [lease.item for lease in leases]
    payloads = _base64([item.payload for item in items])
    pieces: list[bytes] = []
    for at in range(len(leases)):
        lease, item, payload = leases[at], items[at], payloads[at]
        own_id: str = lease.id
        shared = _SHARED.as_json(lease.attempts, lease.deadline)
        before += _json_texts(item.encoding, item.kind, item.reference)
        if payload:
            pieces.append(f'{before}"id":"{own_id}{shared},"bytes":"'.encode())
            pieces.append(payload)
            before = '"},{'
        else:
            pieces.append(f'{before}"id":"{own_id}{shared}'.encode())
            before = "},{"
    pieces.append((before[:-2] + "]}").encode())
    return b"".join(pieces)


def _one_as_json(before: str, lease: Any) -> bytes:
    """The answer with one item, which is the most common one."""
    item = lease.item
    texts = _json_texts(item.encoding, item.kind, item.reference)
    own_id: str = lease.id
    shared = _SHARED.as_json(lease.attempts, lease.deadline)
    payload: bytes = item.payload
    if not payload:
        return f'{before}{texts}"id":"{own_id}{shared}}}]}}'.encode()
    digits: bytes = b64encode(payload) if len(payload) > _SHORT_BYTES else b2a_base64(payload, newline=False)
    start = f'{before}{texts}"id":"{own_id}{shared},"bytes":"'.encode()
    return b"".join([start, digits, b'"}]}'])


class _QueueName:
    """The beginning of an answer. Kept for the last queue, because answers of one queue often follow each other."""

    def __init__(self) -> None:
        self._name = ""
        self._json = '{"queue_name":""'

    def as_json(self, name: str) -> str:
        if name != self._name:
            self._name, self._json = name, '{"queue_name":' + _json_text(name)
        return self._json


class _Shared:
    """An item's attempts and deadline in an answer. Kept for the last item, because all leases of a pass have the same
    deadline, and most of them the same attempts."""

    def __init__(self) -> None:
        self._attempts = -1
        self._deadline = 0
        self._json = ""
        self._protobuf = b""

    def as_json(self, attempts: int, deadline: int) -> str:
        if attempts != self._attempts or deadline != self._deadline or not self._json:
            counted = f',"attempts":{attempts}' if attempts else ""
            text = f'"{counted},"lease_deadline":"{times.text(deadline)}"'
            self._attempts, self._deadline, self._json, self._protobuf = attempts, deadline, text, b""
        return self._json

    def as_protobuf(self, attempts: int, deadline: int) -> bytes:
        if attempts != self._attempts or deadline != self._deadline or not self._protobuf:
            counted = _ATTEMPTS + varint(attempts) if attempts else b""
            data = counted + _LEASE_DEADLINE + time(deadline)
            self._attempts, self._deadline, self._json, self._protobuf = attempts, deadline, "", data
        return self._protobuf


_NAME: Final = _QueueName()
_SHARED: Final = _Shared()


def _json_texts(encoding: str, kind: str, reference: str) -> str:
    if not (encoding or kind or reference):
        return ""
    texts = ""
    if encoding:
        texts += '"encoding":' + _json_text(encoding) + ","
    if kind:
        texts += '"kind":' + _json_text(kind) + ","
    if reference:
        texts += '"reference":' + _json_text(reference) + ","
    return texts


def _hand_as_json(before: str, hand: Any) -> bytes | None:
    """The answer, put together from four columns. None for payloads for which this is not worth it."""
    ids: list[str] = hand.ids
    digits = _base64_texts(hand.payloads())
    if digits is None:
        return None
    payloads, padding = digits
    shared = _SHARED.as_json(hand.attempts, hand.deadline) + ',"bytes":"'
    count = len(ids)
    pieces = [padding + '"},{"id":"', "", shared, ""] * count
    pieces[1::4] = ids
    pieces[3::4] = payloads
    first = ""
    texts = hand.texts()
    if texts is not None:
        own = [_json_texts(*some) for some in texts]
        pieces[::4] = [padding + '"},{' + some + '"id":"' for some in own]
        first = own[0]
    pieces[0] = before + ',"items":[{' + first + '"id":"'
    pieces.append(padding + '"}]}')
    return "".join(pieces).encode()


def _base64_texts(payloads: list[bytes]) -> tuple[list[str], str] | None:
    """Short payloads in base64, and the padding that all of them lack. None if one is empty, or if they are long. May
    change the list.
    """
    sizes = list(map(len, payloads))
    size = sizes[0]
    if 0 in sizes or sum(sizes) > _SHORT_BYTES * len(sizes):
        return None
    if sizes.count(size) < len(sizes):
        return [digits.decode("ascii") for digits in _base64(payloads)], ""
    rest = size % 3
    fill = _FILL[rest]
    payloads.append(b"")
    digits: str = b64encode_as_string(fill.join(payloads))
    width = (size + 2) // 3 * 4
    end = width + rest - 3 if rest else width
    return [digits[at : at + end] for at in range(0, width * len(sizes), width)], _PADDING[rest].decode("ascii")


def _json_text(text: str) -> str:
    encoded: bytes = _encode(text)
    return encoded.decode()


def _base64(payloads: list[bytes]) -> list[bytes]:
    """The payloads in base64.

    The fast library gives up the interpreter's lock in every call. Another thread may keep the lock for milliseconds,
    so there are few calls: short payloads are encoded together. Zeros fill each payload up to three bytes, and the
    digits of these zeros become its padding.
    """
    filled: list[bytes] = []
    size = 0
    for payload in payloads:
        size += len(payload)
        filled.append(payload)
        rest = len(payload) % 3
        if rest:
            filled.append(_FILL[rest])
    if size > _SHORT_BYTES * len(payloads):
        return [b64encode(payload) for payload in payloads]
    digits: bytes = b64encode(b"".join(filled))
    texts: list[bytes] = []
    at = 0
    for payload in payloads:
        end = at + (len(payload) + 2) // 3 * 4
        rest = len(payload) % 3
        texts.append(digits[at : end + rest - 3] + _PADDING[rest] if rest else digits[at:end])
        at = end
    return texts


_SHORT_BYTES: Final = 8_192
"""Payloads that are longer on average are encoded one by one, because copying them would cost more than a call."""
_FILL: Final = [b"", b"\0\0", b"\0"]
_PADDING: Final = [b"", b"==", b"="]


# Tags of protobuf, by the field numbers in `querator.proto`.

_QUEUE_NAME: Final = b"\x0a"
_PARTITION: Final = b"\x10"
_ITEMS: Final = b"\x1a"
_ENCODING: Final = b"\x0a"
_KIND: Final = b"\x12"
_REFERENCE: Final = b"\x1a"
_ID: Final = b"\x22"
_ATTEMPTS: Final = b"\x28"
_LEASE_DEADLINE: Final = b"\x32"
_BYTES: Final = b"\x3a"


def as_protobuf(reply: LeaseReply) -> bytes:
    pieces = [_QUEUE_NAME + sized(reply.queue_name.encode())]
    if reply.partition:
        pieces.append(_PARTITION + varint(reply.partition))
    if reply.hand is not None:
        return b"".join(pieces + _hand_as_protobuf(reply.hand))
    before_payload, payload_bytes = b"", 0
    for lease in reply.leases:
        item = lease.item
        shared = _SHARED.as_protobuf(lease.attempts, lease.deadline)
        id_text: str = lease.id
        own_id = _ID + sized(id_text.encode())
        texts = b""
        if item.encoding or item.kind or item.reference:
            texts = _protobuf_texts(item.encoding, item.kind, item.reference)
        payload: bytes = item.payload
        if len(payload) != payload_bytes:
            payload_bytes = len(payload)
            before_payload = _BYTES + varint(payload_bytes) if payload else b""
        size = len(texts) + len(own_id) + len(shared) + len(before_payload)
        pieces.append(_ITEMS + varint(size + payload_bytes) + texts)
        pieces.append(own_id + shared + before_payload)
        pieces.append(payload)
    return b"".join(pieces)


def _hand_as_protobuf(hand: Any) -> list[bytes]:
    ids: list[str] = hand.ids
    payloads: list[bytes] = hand.payloads()
    shared = _SHARED.as_protobuf(hand.attempts, hand.deadline)
    pieces = [b"", b"", b"", b""] * len(ids)
    pieces[1::4] = list(map(str.encode, ids))
    pieces[3::4] = payloads
    texts = hand.texts()
    all_sizes = list(map(len, payloads))
    before_id, before_payload = b"", b""
    previous = -1
    id_size = varint(len(ids[0]))
    for at in range(len(ids)):
        size = all_sizes[at]
        own = b"" if texts is None else _protobuf_texts(*texts[at])
        if size != previous or texts is not None:
            before_payload = shared + (_BYTES + varint(size) if size else b"")
            whole = len(own) + len(_ID) + len(id_size) + len(ids[0]) + len(before_payload) + size
            before_id = _ITEMS + varint(whole) + own + _ID + id_size
            previous = size
        pieces[4 * at] = before_id
        pieces[4 * at + 2] = before_payload
    return pieces


def _protobuf_texts(encoding: str, kind: str, reference: str) -> bytes:
    texts = b""
    if encoding:
        texts += _ENCODING + sized(encoding.encode())
    if kind:
        texts += _KIND + sized(kind.encode())
    if reference:
        texts += _REFERENCE + sized(reference.encode())
    return texts
