"""The answer to a lease, encoded straight from the leases.

Most of the bytes that a daemon sends are answers to leases. So they are not turned into messages first: what all items
of an answer have in common is encoded once, and an item adds its id, its texts and its payload. The result has the same
bytes as a `QueueLeaseResponse` with these items.
"""

from __future__ import annotations

from binascii import b2a_base64
from functools import lru_cache
from typing import Any, Final

import msgspec
from pybase64 import b64encode

from querator import times
from querator.wire.wireformat import sized, time, varint

_encode: Final = msgspec.json.Encoder().encode


class LeaseReply:
    """What a client gets for a lease."""

    def __init__(self, queue_name: str, partition: int, leases: list[Any]) -> None:
        self.queue_name = queue_name
        self.partition = partition
        """The number of the partition."""
        self.leases = leases
        """Each has an `id`, the number of `attempts`, a `deadline` and an `item`."""


def as_json(reply: LeaseReply) -> bytes:
    before = '{"queue_name":' + _json_text(reply.queue_name)
    if reply.partition:
        before += f',"partition":{reply.partition}'
    leases = reply.leases
    if not leases:
        return (before + "}").encode()
    before += ',"items":[{'
    items: list[Any] = [lease.item for lease in leases]
    payloads = _base64([item.payload for item in items])
    pieces: list[bytes] = []
    shared, attempts, deadline = "", -1, -1
    for at in range(len(leases)):
        lease, item, payload = leases[at], items[at], payloads[at]
        own_id: str = lease.id
        own_attempts: int = lease.attempts
        own_deadline: int = lease.deadline
        if own_attempts != attempts or own_deadline != deadline:
            attempts, deadline = own_attempts, own_deadline
            shared = _json_shared(attempts, deadline)
        if item.encoding or item.kind or item.reference:
            before += _json_texts(item)
        if payload:
            pieces.append(f'{before}"id":"{own_id}{shared},"bytes":"'.encode())
            pieces.append(payload)
            before = '"},{'
        else:
            pieces.append(f'{before}"id":"{own_id}{shared}'.encode())
            before = "},{"
    pieces.append((before[:-2] + "]}").encode())
    return b"".join(pieces)


@lru_cache(maxsize=64)  # all leases of a pass have the same deadline
def _json_shared(attempts: int, deadline: int) -> str:
    counted = f',"attempts":{attempts}' if attempts else ""
    return f'"{counted},"lease_deadline":"{times.text(deadline)}"'


def _json_texts(item: Any) -> str:
    texts = ""
    if item.encoding:
        texts += '"encoding":' + _json_text(item.encoding) + ","
    if item.kind:
        texts += '"kind":' + _json_text(item.kind) + ","
    if item.reference:
        texts += '"reference":' + _json_text(item.reference) + ","
    return texts


def _json_text(text: str) -> str:
    encoded: bytes = _encode(text)
    return encoded.decode()


def _base64(payloads: list[bytes]) -> list[bytes]:
    """The payloads in base64.

    The fast library gives up the interpreter's lock in every call. Another thread may keep the lock for milliseconds,
    so there are few calls: short payloads are encoded together. Zeros fill each payload up to three bytes, and the
    digits of these zeros become its padding.
    """
    if len(payloads) == 1:
        only = payloads[0]
        return [b64encode(only) if len(only) > _SHORT_BYTES else b2a_base64(only, newline=False)]
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
    shared, attempts, deadline = b"", -1, -1
    before_payload, payload_bytes = b"", 0
    for lease in reply.leases:
        item = lease.item
        if lease.attempts != attempts or lease.deadline != deadline:
            attempts, deadline = lease.attempts, lease.deadline
            counted = _ATTEMPTS + varint(attempts) if attempts else b""
            shared = counted + _LEASE_DEADLINE + time(deadline)
        id_text: str = lease.id
        own_id = _ID + sized(id_text.encode())
        texts = _protobuf_texts(item) if item.encoding or item.kind or item.reference else b""
        payload: bytes = item.payload
        if len(payload) != payload_bytes:
            payload_bytes = len(payload)
            before_payload = _BYTES + varint(payload_bytes) if payload else b""
        size = len(texts) + len(own_id) + len(shared) + len(before_payload)
        pieces.append(_ITEMS + varint(size + payload_bytes) + texts)
        pieces.append(own_id + shared + before_payload)
        pieces.append(payload)
    return b"".join(pieces)


def _protobuf_texts(item: Any) -> bytes:
    texts = b""
    if item.encoding:
        texts += _ENCODING + sized(item.encoding.encode())
    if item.kind:
        texts += _KIND + sized(item.kind.encode())
    if item.reference:
        texts += _REFERENCE + sized(item.reference.encode())
    return texts
