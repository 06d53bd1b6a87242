"""What is expired, dead or due. Pure functions over items and times; the Logical acts on what they say."""

from __future__ import annotations

import msgspec

from querator.items import Death, Item
from querator.limits import NS_PER_US

MAX_ATTEMPTS = "max_attempts"
EXPIRED = "expired"
CLIENT = "client"

LAST_US = 253_402_300_799_999_999
"""The last microsecond of the year 9999, which is as far as the wire can tell a time."""

_deaths = msgspec.json.Decoder(list[Death])


def deadline(now_us: int, timeout_ns: int) -> int:
    return min(now_us + timeout_ns // NS_PER_US, LAST_US)


def dead_deadline(now_us: int, retention_ns: int) -> int:
    """When an item expires that has died and came to its dead queue: never, unless that queue has a retention."""
    return deadline(now_us, retention_ns) if retention_ns else LAST_US


def cause_of_death(item: Item, attempts: int, now_us: int, max_attempts: int) -> str:
    """Why an item whose lease has ended must not come back; empty if it may."""
    if max_attempts and attempts >= max_attempts:
        return MAX_ATTEMPTS
    if now_us > item.expire_deadline:
        return EXPIRED
    return ""


def history(item: Item) -> list[Death]:
    """Its deaths so far. What somebody has put there by hand and nobody can read must not keep it from dying again."""
    try:
        return _deaths.decode(item.history) if item.history else []
    except msgspec.MsgspecError:
        return []


def is_history(text: bytes) -> bool:
    """Whether this is what an item's history can be."""
    try:
        if text:
            _deaths.decode(text)
    except msgspec.MsgspecError:
        return False
    return True


def dead_copy(item: Item, item_id: str, attempts: int, queue: str, reason: str, now_us: int) -> Item:
    """What arrives in the dead queue: fresh but for its content, and with one more death in its history.

    Sequence, creation and expiry are the dead queue's to set.
    """
    death = Death(queue_name=queue, source_id=item_id, reason=reason, attempts=attempts, at=now_us)
    return Item(
        seq=0,
        created_at=0,
        expire_deadline=0,
        payload=item.payload,
        kind=item.kind,
        reference=item.reference,
        encoding=item.encoding,
        max_attempts=item.max_attempts,
        source_id=item_id,
        history=msgspec.json.encode([*history(item), death]),
    )
