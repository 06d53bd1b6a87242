"""The half of a store that needs no SQL: batches that are not in the file yet.

A batch goes through four stages. *Staged*: not durable yet; dropped when its write fails. *Current*: durable, and part
of the net effect that still grows. *Frozen*: a net effect that is being applied, or whose apply failed and will be
tried again. *Settled*: a net effect that the last flush has applied. It is kept until the next flush, so that
`is_removed` stays right for rows that were read during that flush or before it.

`commit`, `is_removed` and `absorb_staged` run on the loop's thread, `drop_staged` in the thread that writes, `freeze`
in a worker thread. The lock of `StagedBatches` keeps the last three apart.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from uuid import UUID

from mypy_extensions import mypyc_attr

from querator.daemon.failpoints import failpoint
from querator.daemon.store.base import StorageError
from querator.daemon.store.batches import Batch, encode
from querator.daemon.store.delta import Delta
from querator.daemon.store.journal import BATCH, RECORD_HEADER_BYTES, NewRecord


class StagedBatch(NewRecord):
    """A batch that waits for the next write, and its record in the journal."""

    __slots__ = ("batch", "of")

    def __init__(self, of: Unapplied, batch: Batch) -> None:
        self.kind = BATCH
        self.number = 0
        self.partition = of.partition
        self.payload = encode(batch)
        self.of = of
        self.batch = batch


class StagedBatches:
    """The batches that the stores of one storage have committed since its last write, in order.

    Stores add batches and the storage takes them, so that a store need not know its storage.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while batches of a store go from one stage to the next."""
        self.waiting: list[StagedBatch] = []

    def take(self) -> list[StagedBatch] | None:
        taken, self.waiting = self.waiting, []
        return taken or None

    def absorb(self, taken: list[StagedBatch]) -> int:
        """Counts written batches as durable. Returns how many bytes their payloads have."""
        total = 0
        with self.lock:
            for staged in taken:
                size = len(staged.payload)
                total += size
                staged.of.absorb(staged.batch, size + RECORD_HEADER_BYTES)
        return total

    def drop(self, taken: list[StagedBatch]) -> None:
        """Forgets batches whose write failed."""
        with self.lock:
            for staged in taken:
                staged.of.drop_staged(staged.batch)


class Unapplied:
    """The batches of one store. A class of its own, because calls of a class with subclasses that are not compiled, as
    the store is, cost several times as much.
    """

    def __init__(self, uuid: str, record: int, last_seq: int) -> None:
        self.uuid = uuid
        self.partition = UUID(uuid).bytes
        self.is_closed = False
        """Whether batches can no longer be written."""
        self.staged: list[Batch] = []
        self.staged_delta: Delta | None = None
        self.current = Delta(record, last_seq)
        self.frozen: Delta | None = None
        self.settled: tuple[Delta, ...] = ()
        self.applied_through = last_seq

    # On the loop's thread.

    def deltas(self) -> list[Delta]:
        """What is not in the file for certain, oldest first."""
        # Read newest first. A Delta that reaches the next stage meanwhile is then seen twice, which is harmless.
        staged = self._delta_of_staged() if self.staged else None
        current, frozen, settled = self.current, self.frozen, self.settled
        return [delta for delta in (*settled, frozen, current, staged) if delta is not None]

    def _delta_of_staged(self) -> Delta:
        """Computed on demand, because `is_removed` is rarely called while a write is under way."""
        delta = self.staged_delta
        if delta is None:
            delta = Delta(0, 0)
            for batch in tuple(self.staged):
                delta.absorb(batch)
            self.staged_delta = delta
        return delta

    # After a write, under the lock.

    def absorb(self, batch: Batch, journal_bytes: int) -> None:
        """Adds the batch that was staged first, and is durable now, to the current net effect."""
        current = self.current
        current.absorb(batch)
        current.record += 1
        current.journal_bytes += journal_bytes
        if batch.add is not None or batch.rows is not None or batch.schedule is not None:
            current.held_bytes += journal_bytes
        elif not (current.added or current.rows or current.scheduled):
            current.held_bytes = 0
        self.drop_staged(batch)

    def drop_staged(self, batch: Batch) -> None:
        # Batches leave in the order in which they came, so only the first one can match.
        if self.staged and self.staged[0] is batch:
            del self.staged[0]
            self.staged_delta = None


@mypyc_attr(allow_interpreted_subclasses=True)
class UnappliedStore:
    """A store without its file. A subclass applies a Delta and reads."""

    def __init__(self, uuid: str, staged: StagedBatches, record: int, last_seq: int) -> None:
        self.uuid = uuid
        self.prefix = int(uuid.replace("-", "")[:16], 16)
        self.unapplied = Unapplied(uuid, record, last_seq)
        self.partition = self.unapplied.partition
        self._storage_staged = staged
        self._lock = staged.lock

    @property
    def is_closed(self) -> bool:
        return self.unapplied.is_closed

    # On the loop's thread.

    def commit(self, batch: Batch) -> None:
        of = self.unapplied
        of.staged.append(batch)
        of.staged_delta = None
        self._storage_staged.waiting.append(StagedBatch(of, batch))

    def is_removed(self, seq: int, state: str = "ready") -> bool:
        for delta in self.unapplied.deltas():
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

    @property
    def has_staged(self) -> bool:
        return bool(self.unapplied.staged)

    @property
    def applied_through(self) -> int:
        return self.unapplied.applied_through

    @property
    def unapplied_bytes(self) -> int:
        frozen = self.unapplied.frozen
        return self.unapplied.current.journal_bytes + (frozen.journal_bytes if frozen else 0)

    @property
    def held_bytes(self) -> int:
        frozen = self.unapplied.frozen
        return self.unapplied.current.held_bytes + (frozen.held_bytes if frozen else 0)

    @property
    def memory_bytes(self) -> int:
        """About how much memory the unapplied batches take, including the keys of items removed from the file."""
        frozen = self.unapplied.frozen
        return self.unapplied.current.memory_bytes + (frozen.memory_bytes if frozen else 0)

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
        unapplied = self.unapplied
        with self._lock:
            if unapplied.frozen is None and unapplied.current.record > self._record_applied():
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
        settled, self.unapplied.settled = self.unapplied.settled, ()
        for delta in settled:
            delta.drop_keys()
        self.apply()
        if self.freeze():
            self.apply()

    def _record_applied(self) -> int:
        raise NotImplementedError

    def _apply(self, delta: Delta) -> None:
        raise NotImplementedError


def number_records(taken: list[StagedBatch]) -> dict[bytes, int]:
    """Gives the records of these batches their numbers. Returns the last number of each partition.

    Raises StorageError if one of the partitions was closed.
    """
    numbers: dict[bytes, int] = {}
    for staged in taken:
        of = staged.of
        if of.is_closed:
            closed = [one.of.uuid for one in taken if one.of.is_closed]
            raise StorageError(f"partition {closed[0]} was closed meanwhile", closed)
        staged.number = numbers[of.partition] = numbers.get(of.partition, of.current.record) + 1
    return numbers
