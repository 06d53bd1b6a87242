"""A batch: the changes that one pass makes to one partition, and their form in the journal.

A turn has a batch for each partition that was asked for something, mostly with a single change. So a new batch has no
lists: a field gets its list with its first change (`joined`). A batch is also its own record on the way to the journal,
so that a turn with many queues makes one object for each of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from querator.daemon.store.journal import BATCH, NewRecord
from querator.daemon.store.runs import LeasedStripe, Rows, Run, Stripe
from querator.items import NOBODY, Hold, Item
from querator.limits import LARGE_PAYLOAD_BYTES, LEFT_ITEM_BYTES_MIN, LEFT_RECORD_BYTES_MIN

if TYPE_CHECKING:
    from querator.daemon.store.unapplied import Unapplied

T = TypeVar("T")


class Others:
    """The changes that few batches have. A class of its own, because each batch pays for each field that it has."""

    clear_ready: bool = False
    clear_leased: bool = False
    clear_scheduled: bool = False
    schedule: list[Item] | None = None
    unschedule: list[int] | None = None
    lost_seqs: list[int] | None = None
    lost_births: list[int] | None = None
    """The birth of each of these items. A lost lease is remembered while its item is stored."""
    lost_until: int = 0
    """Lost leases are remembered at least until this time."""
    request_ids: list[str] | None = None
    request_until: list[int] | None = None
    """Until when each request id is remembered."""
    rows: list[Rows | Run] | None = None
    """Items to add, besides those of `add`."""
    leased_stripes: list[LeasedStripe] | None = None
    """Leases, besides those of `lease_seqs`, which come after them."""
    removed_stripes: list[Stripe] | None = None
    """Items to remove, besides those of `remove`. If they are leased, they were leased with exactly these stripes."""


class Batch(NewRecord):
    """The changes. They take effect in this order: clears, added items, leases, removals. A field without changes is
    None.

    An item that is retried, or whose lease expired, is removed under its old sequence and added under a new one.
    Leasing an item that is leased already replaces its lease. This is how a lease is extended.
    """

    kind: int = BATCH
    number: int = 0
    """Its number in the journal, which it gets with the write."""
    partition: bytes = b""
    payload: bytes = b""
    """Its form in the journal, once it is staged."""
    following: list[bytes] | None = None
    of: Unapplied
    """The batches of its store, once it is staged."""
    next_staged: Batch | None = None
    """The batch of the same store that was staged after it."""
    add: list[Item] | None = None
    lease_seq: Any = 0
    lease: tuple[Any, Any, Hold] | None = None
    """The sequence, and the attempts, deadline and hold, if there is only one lease. Five lists for it would take half
    of the memory that the batch of a single lease takes. `spread_lease` makes the lists."""
    lease_seqs: list[int] | None = None
    lease_attempts: list[int] | None = None
    lease_deadlines: list[int] | None = None
    holds: list[Hold] | None = None
    hold_counts: list[int] | None = None
    """How many leases each hold covers, in the order of the leases. Leases after the last hold have no holder."""
    remove: list[int] | None = None
    """Sequences of items to remove, leased or not. Their leases go too."""
    last_seq: int = 0
    """The highest sequence handed out so far, even if its item is gone."""
    others: Others | None = None

    def __init__(self) -> None:
        """Without changes, and without the fields of its record, which it gets later."""


def others_of(batch: Batch) -> Others:
    """The other changes of the batch, to read them or to add to them."""
    others = batch.others
    if others is None:
        others = batch.others = Others()
    return others


def joined(some: list[T] | None, more: list[T]) -> list[T]:
    """A field of a batch with more entries. The batch may keep the list `more`, and add to it."""
    if some is None:
        return more
    some += more
    return some


def spread_lease(batch: Batch) -> None:
    """Puts a single lease into the lists, before others join it."""
    if batch.lease is not None:
        attempts, deadline, hold = batch.lease
        batch.lease_seqs, batch.lease_attempts, batch.lease_deadlines = [batch.lease_seq], [attempts], [deadline]
        batch.holds, batch.hold_counts = [hold], [1]
        batch.lease = None


def holds_of(batch: Batch) -> Iterator[Hold]:
    """The hold of each lease of the batch; endless."""
    holds, counts = batch.holds or (), batch.hold_counts or ()
    return chain(chain.from_iterable(map(repeat, holds, counts)), repeat(NOBODY))


# In the journal a batch is a list: the last sequence, the added items, the leases, the removed items, and all other
# fields. What a batch lacks is nil there, which is one byte for all fields that few batches have.

_Integers = list[int] | None
_Leases = tuple[_Integers, _Integers, _Integers, list[Hold] | None, _Integers]
_Others = tuple[
    bool,
    bool,
    bool,
    list[Item] | None,
    _Integers,
    _Integers,
    _Integers,
    int,
    list[str] | None,
    _Integers,
    list[Rows | Run] | None,
    list[LeasedStripe] | None,
    list[Stripe] | None,
]
_Fields = tuple[int, list[Item] | None, _Leases | None, _Integers, _Others | None]
_ONE: Final = (1,)
_encode: Final[Callable[[Any], bytes]] = msgspec.msgpack.Encoder().encode
_decode: Final[Callable[[bytes | memoryview], Any]] = msgspec.msgpack.Decoder(_Fields).decode


def encode(batch: Batch) -> bytes:
    others = None if batch.others is None else _fields_of(batch.others, batch.others.rows)
    return _encoded(batch, batch.add, others)


def _encoded(batch: Batch, add: list[Item] | None, others: object) -> bytes:
    leases: Any = None
    lease: Any = batch.lease
    if lease is not None:
        leases = ((batch.lease_seq,), lease[:1], lease[1:2], lease[2:], _ONE)
    elif batch.lease_seqs is not None:
        leases = (batch.lease_seqs, batch.lease_attempts, batch.lease_deadlines, batch.holds, batch.hold_counts)
    return _encode((batch.last_seq, add, leases, batch.remove, others))


def _fields_of(others: Others, rows: list[Rows | Run] | None) -> tuple[object, ...]:
    return (
        others.clear_ready,
        others.clear_leased,
        others.clear_scheduled,
        others.schedule,
        others.unschedule,
        others.lost_seqs,
        others.lost_births,
        others.lost_until,
        others.request_ids,
        others.request_until,
        rows,
        others.leased_stripes,
        others.removed_stripes,
    )


# Large payloads stand behind the list as they are. So nobody copies them: neither the encoder nor an apply, which reads
# the record again.
#
#     _APART · number of payloads · length of the list · length of each payload · list · payload · payload · …

_APART: Final = 0xC1
"""No list in msgpack begins with this byte."""
_APART_HEAD: Final = struct.Struct("<BII")


def has_large_payloads(batch: Batch) -> bool:
    """Whether `encode_apart` pays. Looks at the first item only, because items that come together are mostly alike."""
    add, rows = batch.add, _rows_of(batch)
    if add:
        payload = add[0].payload
    elif rows and isinstance(rows[0], Run):
        payload = rows[0].payloads[0]
    else:
        return False
    return len(payload) >= LEFT_ITEM_BYTES_MIN and sum(map(len, _payloads(batch))) >= LEFT_RECORD_BYTES_MIN


def encode_apart(batch: Batch) -> tuple[bytes, list[bytes]]:
    """The beginning of a record, and the payloads that follow it."""
    payloads = _payloads(batch)
    add, others, fields_of_others = batch.add, batch.others, None
    if add is not None:
        add = [msgspec.structs.replace(item, payload=b"") for item in add]
    if others is not None:
        rows = None if others.rows is None else [_without_payloads(one) for one in others.rows]
        fields_of_others = _fields_of(others, rows)
    fields = _encoded(batch, add, fields_of_others)
    head = _APART_HEAD.pack(_APART, len(payloads), len(fields))
    return head + struct.pack(f"<{len(payloads)}I", *map(len, payloads)) + fields, payloads


def _rows_of(batch: Batch) -> list[Rows | Run]:
    others = batch.others
    return [] if others is None else others.rows or []


def _without_payloads(rows: Rows | Run) -> Rows | Run:
    return msgspec.structs.replace(rows, payloads=[]) if isinstance(rows, Run) else rows


def _payloads(batch: Batch) -> list[bytes]:
    """The payloads of the new items, without those of bulk writes."""
    payloads = [item.payload for item in batch.add or ()]
    for rows in _rows_of(batch):
        if isinstance(rows, Run):
            payloads += rows.payloads
    return payloads


def decode(record: bytes | memoryview, in_place: bool = False) -> Batch:
    """Raises msgspec.MsgspecError if the record is not a batch. With `in_place`, payloads that are kept in parts are
    views of the record instead of bytes. This is enough for an apply.
    """
    if not record or record[0] != _APART:
        return _batch_of(record)
    view = memoryview(record)
    try:
        _, count, size = _APART_HEAD.unpack_from(view)
        lengths = struct.unpack_from(f"<{count}I", view, _APART_HEAD.size)
    except struct.error as error:
        raise msgspec.DecodeError(str(error)) from error
    at = _APART_HEAD.size + 4 * count
    batch = _batch_of(view[at : at + size])
    at += size
    payloads: list[Any] = []
    for length in lengths:
        payload = view[at : at + length]
        payloads.append(payload if in_place and length > LARGE_PAYLOAD_BYTES else payload.tobytes())
        at += length
    if at != len(view):
        raise msgspec.DecodeError(f"the record has {len(view)} bytes instead of {at}")
    _put_back(batch, payloads)
    return batch


def _put_back(batch: Batch, payloads: list[Any]) -> None:
    """Gives the new items their payloads, in the order of `_payloads`."""
    runs = [rows for rows in _rows_of(batch) if isinstance(rows, Run)]
    items = batch.add or []
    count = len(items) + sum([run.count for run in runs])
    if count != len(payloads):
        raise msgspec.DecodeError(f"the record has {len(payloads)} payloads for {count} items")
    rest = iter(payloads)
    for item, payload in zip(items, rest, strict=False):
        item.payload = payload
    for run in runs:
        run.payloads = list(islice(rest, run.count))


def _batch_of(payload: bytes | memoryview) -> Batch:
    batch = Batch()
    batch.last_seq, batch.add, leases, batch.remove, fields = _decode(payload)
    if leases is not None:
        batch.lease_seqs, batch.lease_attempts, batch.lease_deadlines, batch.holds, batch.hold_counts = leases
    if fields is not None:
        others = batch.others = Others()
        others.clear_ready, others.clear_leased, others.clear_scheduled, *lists = fields
        others.schedule, others.unschedule, others.lost_seqs, others.lost_births, others.lost_until, *lists = lists
        others.request_ids, others.request_until, others.rows, others.leased_stripes, others.removed_stripes = lists
    return batch
