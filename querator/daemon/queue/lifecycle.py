"""When items expire and die, and what their history says. Pure functions over items and times."""

from __future__ import annotations

from typing import Final

import msgspec

from querator.items import Event, Hold, Item
from querator.limits import CLIENT_ID_CHARACTERS_MAX, HISTORY_ATTEMPTS_MAX, HISTORY_REASONS_BYTES_MAX, NS_PER_US

MAX_ATTEMPTS = "max_attempts"
EXPIRED = "expired"
CLIENT = "client"

LAST_US: Final = 253_402_300_799_999_999
"""The last microsecond of the year 9999, the latest time that the wire can carry."""

NO_EXPIRY_US = 7_258_118_400_000_000
"""2200-01-01, the deadline of an item that does not expire. Pandas, and so Spark, has no time after 2262."""

LEASE_EXPIRED = "lease expired"
"""The reason of an attempt whose holder let its lease end without an answer."""

_NS_PER_US: Final = NS_PER_US
_events = msgspec.json.Decoder(list[Event])


def deadline(now_us: int, timeout_ns: int) -> int:
    at_us = now_us + timeout_ns // _NS_PER_US
    return at_us if at_us < LAST_US else LAST_US


def dead_deadline(now_us: int, retention_ns: int) -> int:
    """The expire deadline of a dead item in its dead queue: never, unless that queue has a retention."""
    if retention_ns:
        return deadline(now_us, retention_ns)
    return NO_EXPIRY_US if now_us < NO_EXPIRY_US else LAST_US


def cause_of_death(item: Item, attempts: int, now_us: int, max_attempts: int) -> str:
    """Why an item whose lease has ended must not come back; empty if it may."""
    if max_attempts and attempts >= max_attempts:
        return MAX_ATTEMPTS
    if now_us > item.expire_deadline:
        return EXPIRED
    return ""


def history(item: Item) -> list[Event]:
    """The events of an item so far."""
    return events(item.history)


def events(text: bytes) -> list[Event]:
    """The events of a history. One that was edited by hand and cannot be decoded counts as empty."""
    try:
        return _events.decode(text) if text else []
    except msgspec.MsgspecError:
        return []


def is_history(text: bytes) -> bool:
    """Whether this text can be decoded as an item's history."""
    try:
        if text:
            _events.decode(text)
    except msgspec.MsgspecError:
        return False
    return True


def history_with_attempt(item: Item, attempts: int, hold: Hold) -> bytes:
    """The item's history with this attempt added. The oldest attempts are dropped when there are too many."""
    events = history(item)
    if events and not events[-1].queue_name and events[-1].attempts == attempts:
        del events[-1]  # recorded before, by a retry that failed and was repeated
    held_us = hold.ended_at - hold.leased_at if hold.leased_at else 0
    events.append(
        Event(hold.ended_at, hold.reason, attempts, hold.client_id[:CLIENT_ID_CHARACTERS_MAX], max(0, held_us))
    )
    tried = [at for at, event in enumerate(events) if not event.queue_name]
    size = sum([len(events[at].reason.encode()) for at in tried])
    while len(tried) > HISTORY_ATTEMPTS_MAX or (size > HISTORY_REASONS_BYTES_MAX and len(tried) > 1):
        size -= len(events[tried[0]].reason.encode())
        del events[tried[0]]
        tried = [at - 1 for at in tried[1:]]
    return msgspec.json.encode(events)


def dead_copy(item: Item, item_id: str, attempts: int, queue: str, reason: str, now_us: int) -> Item:
    """The copy of an item for the dead queue: a new item with the same content, and one more death in its history.

    The dead queue sets its sequence, creation time and expire deadline.
    """
    death = Event(now_us, reason, attempts, queue_name=queue, source_id=item_id)
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
