"""The half of a store that needs no SQL: batches that are not in the file yet.

A batch goes through these stages. *Staged*: not durable yet; dropped when its write fails. *Current*: durable, and part
of the net effect that still grows. *Filled*: a net effect that does not grow any more, because much of it is left in
the journal; there may be several. *Frozen*: a net effect that is being applied, or whose apply failed and will be tried
again. *Settled*: a net effect that the last flush has applied. It is kept until the next flush, so that `is_removed`
stays right for rows that were read during that flush or before it.

`commit`, `is_removed` and `absorb_staged` run on the loop's thread, `drop_staged` in the thread that writes, `freeze`
in a worker thread. The lock of `StagedBatches` keeps the last three apart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from uuid import UUID

from mypy_extensions import mypyc_attr

from querator import limits
from querator.daemon.failpoints import failpoint
from querator.daemon.store.base import RecordLost, StorageError
from querator.daemon.store.batches import Batch, encode, encode_apart, has_large_payloads, others_of
from querator.daemon.store.columnar import ItemColumns, items_in
from querator.daemon.store.delta import Delta, Left
from querator.daemon.store.journal import RECORD_HEADER_BYTES, Place, size_of
from querator.daemon.store.runs import Rows, Run
from querator.daemon.store.stretches import LAST_SEQ
from querator.items import Item
from querator.limits import LEFT_ITEM_BYTES_MIN, LEFT_RECORD_BYTES_MIN, UNAPPLIED_READ_ITEMS_MAX

_seq_of = attrgetter("seq")
Source = Item | Rows | Run | Left
"""What has the contents of an item that is not applied yet."""


class StagedBatches:
    """The batches that the stores of one storage have committed since its last write, in order.

    Stores add batches and the storage takes them, so that a store need not know its storage.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while batches of a store go from one stage to the next."""
        self.waiting: list[Batch] = []
        self.waiting_bytes = 0

    def take(self) -> list[Batch] | None:
        taken, self.waiting = self.waiting, []
        self.waiting_bytes = 0
        return taken or None

    def absorb(self, taken: list[Batch], written: tuple[Path, int] | None = None) -> int:
        """Counts written batches as durable. Returns how many bytes their payloads have. `written` says in which file
        and at which byte they begin; without it, no items are left in the journal.
        """
        total = 0
        at = 0 if written is None else written[1]
        # Local names: compiled code would look these up in their modules for every batch.
        header_bytes: int = RECORD_HEADER_BYTES
        left_bytes_min: int = LEFT_RECORD_BYTES_MIN
        with self.lock:
            for batch in taken:
                size = size_of(batch)
                total += size
                left = None
                if written is not None:
                    at += header_bytes
                    if size >= left_bytes_min:
                        left = _left(batch, Place(batch.number, 0, written[0], at, size))
                    at += size
                batch.of.absorb(batch, size + header_bytes, left)
        return total

    def drop(self, taken: list[Batch]) -> None:
        """Forgets batches whose write failed."""
        with self.lock:
            for batch in taken:
                batch.of.drop_staged(batch)


class Unapplied:
    """The batches of one store. A class of its own, because calls of a class with subclasses that are not compiled, as
    the store is, cost several times as much.
    """

    def __init__(self, uuid: str, storage_staged: StagedBatches, record: int, last_seq: int) -> None:
        self.uuid = uuid
        self.partition = UUID(uuid).bytes
        self._storage_staged = storage_staged
        self.is_closed = False
        """Whether batches can no longer be written."""
        self.staged: Batch | None = None
        """The first batch that is staged. Others follow as `next_staged`. There is rarely more than one."""
        self.staged_delta: Delta | None = None
        self.current = Delta(record, last_seq)
        self.filled: list[Delta] = []
        self.frozen: Delta | None = None
        self.settled: tuple[Delta, ...] = ()
        self.applied_through = last_seq

    # On the loop's thread.

    def commit(self, batch: Batch) -> None:
        """Stages a batch. It is durable once the storage has written it. Never blocks, never fails."""
        batch.of, batch.partition = self, self.partition
        if has_large_payloads(batch):
            batch.payload, batch.following = encode_apart(batch)
        else:
            batch.payload = encode(batch)
        last = self.staged
        if last is None:
            self.staged = batch
        else:
            while last.next_staged is not None:
                last = last.next_staged
            last.next_staged = batch
        self.staged_delta = None
        waiting = self._storage_staged
        waiting.waiting.append(batch)
        waiting.waiting_bytes += size_of(batch)

    def deltas(self) -> list[Delta]:
        """What is not in the file for certain, oldest first."""
        # Read newest first. A Delta that reaches the next stage meanwhile is then seen twice, which is harmless.
        staged = self._delta_of_staged() if self.staged is not None else None
        current = self.current
        filled = tuple(self.filled)
        frozen, settled = self.frozen, self.settled
        return [delta for delta in (*settled, frozen, *filled, current, staged) if delta is not None]

    def written(self) -> list[Delta]:
        """What is durable and not applied yet, oldest first."""
        current = self.current
        filled = self.filled
        frozen = self.frozen
        if not filled:
            return [current] if frozen is None else [frozen, current]
        return [*([] if frozen is None else [frozen]), *filled, current]

    def _delta_of_staged(self) -> Delta:
        """Computed on demand, because `is_removed` is rarely called while a write is under way."""
        delta = self.staged_delta
        if delta is None:
            delta = Delta(0, self.current.last_seq)
            batch = self.staged
            while batch is not None:
                delta.absorb(batch)
                batch = batch.next_staged
            self.staged_delta = delta
        return delta

    # After a write, under the lock.

    def absorb(self, batch: Batch, journal_bytes: int, left: Left | None = None) -> None:
        """Adds the batch that was staged first, and is durable now, to the current net effect."""
        current = self.current
        current.absorb(batch, left)
        current.record += 1
        current.journal_bytes += journal_bytes
        others = batch.others
        has_items = left is None and (batch.add is not None or (others is not None and others.rows is not None))
        if has_items or (others is not None and others.schedule is not None):
            current.held_bytes += journal_bytes
        elif not current.added and (current.is_plain or not (current.rows or current.scheduled)):
            current.held_bytes = 0
        if current.left_bytes and current.left_bytes >= limits.LEFT_DELTA_BYTES:
            self.filled.append(current)
            self.current = Delta(current.record, current.last_seq)
        self.drop_staged(batch)

    def drop_staged(self, batch: Batch) -> None:
        # Batches leave in the order in which they came, so only the first one can match.
        if self.staged is batch:
            self.staged = batch.next_staged
            self.staged_delta = None

    # In the thread that writes.

    def number(self, batch: Batch) -> None:
        """Gives a batch that is about to be written its number in the journal. The batches of a store are written in
        the order in which they were staged.
        """
        number = self.current.record + 1
        earlier = self.staged
        while earlier is not None and earlier is not batch:
            number += 1
            earlier = earlier.next_staged
        batch.number = number


@mypyc_attr(allow_interpreted_subclasses=True)
class UnappliedStore:
    """A store without its file. A subclass applies a Delta and reads."""

    def __init__(self, uuid: str, staged: StagedBatches, record: int, last_seq: int) -> None:
        self.uuid = uuid
        self.prefix = int(uuid.replace("-", "")[:16], 16)
        self.unapplied = Unapplied(uuid, staged, record, last_seq)
        self.partition = self.unapplied.partition
        self._lock = staged.lock

    @property
    def is_closed(self) -> bool:
        return self.unapplied.is_closed

    # On the loop's thread.

    def is_removed(self, seq: int, state: str = "ready") -> bool:
        for delta in self.unapplied.deltas():
            if seq > delta.last_seq:
                continue  # it came later, and no clear in this Delta concerns it
            state = delta.state_after(seq, state)
            if not state:
                return True
        return False

    def removed_among(self, seqs: Sequence[int]) -> set[int]:
        deltas = self.unapplied.deltas()
        if any(delta.clear_ready or delta.clear_leased for delta in deltas):
            return set(filter(self.is_removed, seqs))
        removed: set[int] = set()
        for delta in deltas:
            if delta.removed:
                removed.update(filter(delta.removed.__contains__, seqs))
        return removed

    def has_removed_from(self, seq: int) -> bool:
        deltas = self.unapplied.deltas()
        return any(delta.removed_upto >= seq or delta.clear_ready or delta.clear_leased for delta in deltas)

    def skip(self) -> bool:
        unapplied = self.unapplied
        with self._lock:
            current = unapplied.current
            if unapplied.frozen is not None or unapplied.filled or not current.journal_bytes or not current.is_nothing:
                return False
            if not self._can_skip(current):
                return False
            current.journal_bytes = current.held_bytes = 0
            # A read under way may look for a record that has left the journal now, and then reads again.
            unapplied.applied_through = max(unapplied.applied_through, current.last_seq)
        return True

    @property
    def has_staged(self) -> bool:
        return self.unapplied.staged is not None

    @property
    def applied_through(self) -> int:
        return self.unapplied.applied_through

    @property
    def unapplied_bytes(self) -> int:
        return sum([delta.journal_bytes for delta in self.unapplied.written()])

    @property
    def held_bytes(self) -> int:
        return sum([delta.held_bytes for delta in self.unapplied.written()])

    @property
    def left_bytes(self) -> int:
        return sum([delta.left_bytes for delta in self.unapplied.written()])

    @property
    def next_bytes(self) -> int:
        written = self.unapplied.written()
        return written[0].memory_bytes + written[0].left_bytes

    @property
    def memory_bytes(self) -> int:
        """About how much memory the unapplied batches take, including the keys of items removed from the file."""
        return sum([delta.memory_bytes for delta in self.unapplied.written()])

    @property
    def record_written(self) -> int:
        """The number of the last journal record that is durable."""
        return self.unapplied.current.record

    # Under the lock.

    def absorb(self, batch: Batch, record: int, journal_bytes: int) -> None:
        """Adds a durable batch that was read from the journal."""
        self.unapplied.current.record = record - 1
        self.unapplied.absorb(batch, journal_bytes)

    # In a worker thread.

    def freeze(self) -> bool:
        return self._freeze(self.unapplied.current.record)

    def _freeze(self, upto: int) -> bool:
        """`freeze`; records up to this one may remove items before they are applied."""
        unapplied = self.unapplied
        with self._lock:
            if unapplied.frozen is None and unapplied.filled:
                # In this order: `deltas` must not miss it meanwhile.
                frozen = unapplied.frozen = unapplied.filled[0]
                del unapplied.filled[0]
                frozen.cancel([later for later in unapplied.written()[1:] if later.record <= upto])
            elif unapplied.frozen is None and unapplied.current.record > self._record_applied():
                frozen = unapplied.frozen = unapplied.current
                unapplied.current = Delta(frozen.record, frozen.last_seq)
            return unapplied.frozen is not None

    def apply(self) -> None:
        unapplied = self.unapplied
        frozen = unapplied.frozen
        if frozen is None:
            return
        self._apply(frozen)
        failpoint("apply.committed")
        with self._lock:
            unapplied.settled, unapplied.frozen = (*unapplied.settled, frozen), None
            unapplied.applied_through = frozen.last_seq
        frozen.drop_contents()

    def flush(self) -> None:
        self._drop_settled()
        written = self.unapplied.current.record
        self.apply()
        # Later records may remove an item and add it again, and the file gets both or neither of these changes.
        while self._record_applied() < written and self._freeze(written):
            self.apply()

    def catch_up(self) -> int:
        self._drop_settled()
        if not self.freeze() or self.unapplied.frozen is None:
            return 0
        left_bytes = self.unapplied.frozen.left_bytes
        self.apply()
        return left_bytes

    def _drop_settled(self) -> None:
        settled, self.unapplied.settled = self.unapplied.settled, ()
        for delta in settled:
            delta.drop_keys()

    def ready_ahead(self, after: int, before: int | None, items_max: int, bytes_max: int) -> list[Item] | ItemColumns:
        upto = LAST_SEQ if before is None else before
        while True:
            applied_through = self.unapplied.applied_through
            waiting = self._waiting(after, upto, items_max, bytes_max)
            if not waiting or after < applied_through or applied_through < self.unapplied.applied_through:
                # An apply may add the items to the file meanwhile, so this read ends before the first of them.
                found = self._ready_in_file(after, waiting[0][0] if waiting else upto, items_max, bytes_max)
                if found or not waiting:
                    return found
            try:
                return self._items_of(waiting)
            except RecordLost:
                if applied_through == self.unapplied.applied_through:
                    raise
                # The items are in the file by now, and the journal has overwritten their records.

    def _waiting(self, after: int, before: int, items_max: int, bytes_max: int) -> list[tuple[int, Source]]:
        """The first waiting items with after < seq < before that are not applied yet, with what has their contents."""
        found: list[tuple[int, Source]] = []
        size = 0
        with self._lock:
            deltas = self.unapplied.written()
            for at, delta in enumerate(deltas):
                for seq, contents in delta.waiting(after, before):
                    if any([later.state_after(seq, "ready") != "ready" for later in deltas[at + 1 :]]):
                        continue
                    size += _size_of(seq, contents)
                    if found and (size > bytes_max or len(found) >= min(items_max, UNAPPLIED_READ_ITEMS_MAX)):
                        return found
                    found.append((seq, contents))
        return found

    def _items_of(self, waiting: Sequence[tuple[int, Source]]) -> list[Item]:
        """These items, ascending. Raises RecordLost if the journal no longer has what was left in it."""
        seqs = {seq for seq, _ in waiting}
        items: list[Item] = []
        rows: dict[int, Rows | Run] = {}
        records: dict[int, Left] = {}
        for _, contents in waiting:
            if isinstance(contents, Item):
                items.append(contents)
            elif isinstance(contents, Rows | Run):
                rows[contents.first_seq] = contents
            else:
                records[contents.place.number] = contents
        for one in rows.values():
            items += [item for item in items_in(one) if item.seq in seqs]
        for batch in self._left_batches(records.values()) if records else ():
            items += [item for item in _items_in(batch) if item.seq in seqs]
        return sorted(items, key=_seq_of)

    def _left_batches(self, records: Iterable[Left]) -> Iterator[Batch]:
        """The batches of records that were left in the journal. Raises RecordLost if one is gone."""
        raise NotImplementedError

    def _ready_in_file(self, after: int, before: int, items_max: int, bytes_max: int) -> list[Item] | ItemColumns:
        raise NotImplementedError

    def _can_skip(self, delta: Delta) -> bool:
        """Notes that the file need not have the records of this Delta, which changes nothing. Under the lock; fast."""
        return False

    def _record_applied(self) -> int:
        raise NotImplementedError

    def _apply(self, delta: Delta) -> None:
        raise NotImplementedError


def _left(batch: Batch, place: Place) -> Left | None:
    """The record, if its items are large enough to be left in the journal."""
    count = len(batch.add or ())
    for rows in others_of(batch).rows or ():
        count += rows.count
    if not count or place.payload_bytes < count * LEFT_ITEM_BYTES_MIN:
        return None
    return Left(place, place.payload_bytes // count)


def _size_of(seq: int, contents: Source) -> int:
    """The bytes of one item."""
    if isinstance(contents, Item):
        return len(contents.payload)
    if isinstance(contents, Run):
        return len(contents.payloads[seq - contents.first_seq])
    return contents.item_bytes if isinstance(contents, Left) else contents.size_bytes // contents.count


def _items_in(batch: Batch) -> list[Item]:
    """The items that a batch adds."""
    items = list(batch.add or ())
    for rows in others_of(batch).rows or ():
        items += items_in(rows)
    return items


def numbered(taken: list[Batch]) -> list[Batch]:
    """These batches, whose records get their numbers here. Raises StorageError if one of the partitions was closed."""
    for batch in taken:
        if batch.of.is_closed:
            closed = [one.of.uuid for one in taken if one.of.is_closed]
            raise StorageError(f"partition {closed[0]} was closed meanwhile", closed)
        batch.of.number(batch)
    return taken
