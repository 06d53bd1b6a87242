"""A batch: the changes that one pass makes to one partition, and their form in the journal.

A turn has a batch for each partition that was asked for something, mostly with a single change. So a new batch has no
lists: a field gets its list with its first change (`joined`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Final, TypeVar

import msgspec

from querator.items import NOBODY, Hold, Item

T = TypeVar("T")


class Rows(msgspec.Struct, array_like=True, gc=False):
    """New items in columnar form, with rising sequences. They become objects only when they are about to be leased."""

    first_seq: int
    count: int
    created_at: int
    """Used for rows that carry no value of their own; the same goes for the next field."""
    expire_deadline: int
    columns: bytes
    """An Arrow stream with the payload and any other columns of the items table."""

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


class Batch:
    """The changes, in the order in which they take effect.

    An item that is retried, or whose lease expired, is removed under its old sequence and added under a new one.
    Leasing an item that is leased already replaces its lease. This is how a lease is extended.
    """

    clear_ready: bool = False
    clear_leased: bool = False
    clear_scheduled: bool = False
    add: Sequence[Item] = ()
    schedule: Sequence[Item] = ()
    lease_seqs: Sequence[int] = ()
    lease_attempts: Sequence[int] = ()
    lease_deadlines: Sequence[int] = ()
    holds: Sequence[Hold] = ()
    hold_counts: Sequence[int] = ()
    """How many leases each hold covers, in the order of the leases. Leases after the last hold have no holder."""
    unschedule: Sequence[int] = ()
    remove: Sequence[int] = ()
    """Sequences of items to remove, leased or not. Their leases go too."""
    lost_seqs: Sequence[int] = ()
    lost_births: Sequence[int] = ()
    """The birth of each of these items. A lost lease is remembered while its item is stored."""
    lost_until: int = 0
    """Lost leases are remembered at least until this time."""
    request_ids: Sequence[str] = ()
    request_until: Sequence[int] = ()
    """Until when each request id is remembered."""
    last_seq: int = 0
    """The highest sequence handed out so far, even if its item is gone."""
    rows: Sequence[Rows] = ()
    """Items to add, besides those of `add`."""


def joined(some: Sequence[T], more: Iterable[T]) -> list[T]:
    """A field of a batch with more entries. The list is the batch's own."""
    if isinstance(some, list):
        some += more
        return some
    return list(more)


def holds_of(batch: Batch) -> Iterator[Hold]:
    """The hold of each lease of the batch; endless."""
    return chain(chain.from_iterable(map(repeat, batch.holds, batch.hold_counts)), repeat(NOBODY))


# In the journal a batch is a list of its fields, with nil for an empty one.

_Integers = list[int] | None
_Fields = tuple[
    bool,
    bool,
    bool,
    list[Item] | None,
    list[Item] | None,
    _Integers,
    _Integers,
    _Integers,
    list[Hold] | None,
    _Integers,
    _Integers,
    _Integers,
    _Integers,
    _Integers,
    int,
    list[str] | None,
    _Integers,
    int,
    list[Rows] | None,
]
_encode: Final[Callable[[Any], bytes]] = msgspec.msgpack.Encoder().encode
_decode: Final[Callable[[bytes], Any]] = msgspec.msgpack.Decoder(_Fields).decode


def encode(batch: Batch) -> bytes:
    return _encode(
        (
            batch.clear_ready,
            batch.clear_leased,
            batch.clear_scheduled,
            batch.add or None,
            batch.schedule or None,
            batch.lease_seqs or None,
            batch.lease_attempts or None,
            batch.lease_deadlines or None,
            batch.holds or None,
            batch.hold_counts or None,
            batch.unschedule or None,
            batch.remove or None,
            batch.lost_seqs or None,
            batch.lost_births or None,
            batch.lost_until,
            batch.request_ids or None,
            batch.request_until or None,
            batch.last_seq,
            batch.rows or None,
        )
    )


def decode(payload: bytes) -> Batch:
    """Raises msgspec.MsgspecError if the payload is not a batch."""
    fields = _decode(payload)
    batch = Batch()
    batch.clear_ready, batch.clear_leased, batch.clear_scheduled = fields[:3]
    batch.add, batch.schedule = fields[3] or (), fields[4] or ()
    batch.lease_seqs, batch.lease_attempts, batch.lease_deadlines = fields[5] or (), fields[6] or (), fields[7] or ()
    batch.holds, batch.hold_counts = fields[8] or (), fields[9] or ()
    batch.unschedule, batch.remove = fields[10] or (), fields[11] or ()
    batch.lost_seqs, batch.lost_births, batch.lost_until = fields[12] or (), fields[13] or (), fields[14]
    batch.request_ids, batch.request_until = fields[15] or (), fields[16] or ()
    batch.last_seq, batch.rows = fields[17], fields[18] or ()
    return batch
