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
from querator.daemon.store.journal import BATCH, RECORD_HEADER_BYTES


class StagedBatches:
    """The batches that the stores of one storage have committed since its last write, in order.

    Stores add batches and the storage takes them, so that a store need not know its storage.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while batches of a store go from one stage to the next."""
        self.waiting: Taken = []

    def take(self) -> Taken | None:
        taken, self.waiting = self.waiting, []
        return taken or None

    def absorb(self, taken: Taken) -> int:
        """Counts written batches as durable. Returns how many bytes their payloads have."""
        total = 0
        with self.lock:
            for store, batch, payload in taken:
                size = len(payload)
                total += size
                store.absorb_staged(batch, size + RECORD_HEADER_BYTES)
        return total

    def drop(self, taken: Taken) -> None:
        """Forgets batches whose write failed."""
        with self.lock:
            for store, batch, _ in taken:
                store.drop_staged(batch)


@mypyc_attr(allow_interpreted_subclasses=True)
class UnappliedStore:
    """A store without its file. A subclass applies a Delta and reads."""

    def __init__(self, uuid: str, staged: StagedBatches, record: int, last_seq: int) -> None:
        self.uuid = uuid
        self.prefix = int(uuid.replace("-", "")[:16], 16)
        self.partition = UUID(uuid).bytes
        self.is_closed = False
        """Whether batches can no longer be written."""
        self._storage_staged = staged
        self._lock = staged.lock
        self._staged: list[Batch] = []
        self._staged_delta: Delta | None = None
        self._current = Delta(record, last_seq)
        self._frozen: Delta | None = None
        self._settled: tuple[Delta, ...] = ()
        self._applied_through = last_seq

    # On the loop's thread.

    def commit(self, batch: Batch) -> None:
        self._staged.append(batch)
        self._staged_delta = None
        self._storage_staged.waiting.append((self, batch, encode(batch)))

    def is_removed(self, seq: int, state: str = "ready") -> bool:
        for delta in self._deltas():
            state = delta.state_after(seq, state)
            if not state:
                return True
        return False

    def removed_among(self, seqs: Sequence[int]) -> set[int]:
        deltas = self._deltas()
        if any(delta.clear_ready or delta.clear_leased for delta in deltas):
            return set(filter(self.is_removed, seqs))
        removed: set[int] = set()
        for delta in deltas:
            if delta.removed:
                removed.update(filter(delta.removed.__contains__, seqs))
        return removed

    def has_removed_from(self, seq: int) -> bool:
        return any(delta.removed_upto >= seq or delta.clear_ready or delta.clear_leased for delta in self._deltas())

    def _deltas(self) -> list[Delta]:
        """What is not in the file for certain, oldest first."""
        # Read newest first. A Delta that reaches the next stage meanwhile is then seen twice, which is harmless.
        staged = self._delta_of_staged() if self._staged else None
        current, frozen, settled = self._current, self._frozen, self._settled
        return [delta for delta in (*settled, frozen, current, staged) if delta is not None]

    def _delta_of_staged(self) -> Delta:
        """Computed on demand, because `is_removed` is rarely called while a write is under way."""
        delta = self._staged_delta
        if delta is None:
            delta = Delta(0, 0)
            for batch in tuple(self._staged):
                delta.absorb(batch)
            self._staged_delta = delta
        return delta

    @property
    def has_staged(self) -> bool:
        return bool(self._staged)

    @property
    def applied_through(self) -> int:
        return self._applied_through

    @property
    def unapplied_bytes(self) -> int:
        frozen = self._frozen
        return self._current.journal_bytes + (frozen.journal_bytes if frozen else 0)

    @property
    def held_bytes(self) -> int:
        frozen = self._frozen
        return self._current.held_bytes + (frozen.held_bytes if frozen else 0)

    @property
    def memory_bytes(self) -> int:
        """About how much memory the unapplied batches take, including the keys of items removed from the file."""
        frozen = self._frozen
        return self._current.memory_bytes + (frozen.memory_bytes if frozen else 0)

    @property
    def record_written(self) -> int:
        """The number of the last journal record that is durable."""
        return self._current.record

    # After a write, under the lock.

    def absorb_staged(self, batch: Batch, journal_bytes: int) -> None:
        """Adds the batch that was staged first, and is durable now, to the current net effect."""
        current = self._current
        current.absorb(batch)
        current.record += 1
        current.journal_bytes += journal_bytes
        if current.added or current.rows or current.scheduled:
            current.held_bytes += journal_bytes
        else:
            current.held_bytes = 0
        self.drop_staged(batch)

    def absorb(self, batch: Batch, record: int, journal_bytes: int) -> None:
        """Adds a durable batch that was read from the journal."""
        self._current.record = record - 1
        self.absorb_staged(batch, journal_bytes)

    def drop_staged(self, batch: Batch) -> None:
        # Batches leave in the order in which they came, so only the first one can match.
        if self._staged and self._staged[0] is batch:
            del self._staged[0]
            self._staged_delta = None

    # In a worker thread.

    def freeze(self) -> bool:
        with self._lock:
            if self._frozen is None and self._current.record > self._record_applied():
                self._frozen = self._current
                self._current = Delta(self._frozen.record, self._frozen.last_seq)
            return self._frozen is not None

    def apply(self) -> None:
        frozen = self._frozen
        if frozen is None:
            return
        self._apply(frozen)
        failpoint("apply.committed")
        with self._lock:
            self._settled, self._frozen = (*self._settled, frozen), None
            self._applied_through = frozen.last_seq
        frozen.drop_contents()

    def flush(self) -> None:
        settled, self._settled = self._settled, ()
        for delta in settled:
            delta.drop_keys()
        self.apply()
        if self.freeze():
            self.apply()

    def _record_applied(self) -> int:
        raise NotImplementedError

    def _apply(self, delta: Delta) -> None:
        raise NotImplementedError


Taken = list[tuple[UnappliedStore, Batch, bytes]]
"""Batches that are about to be written: the store, the batch, and its encoding for the journal."""


def records_for(taken: Taken) -> tuple[list[tuple[int, int, bytes, bytes]], dict[bytes, int]]:
    """The records of these batches, and the last record number of each partition, as `Journal.append` takes them.

    Raises StorageError if one of the partitions was closed.
    """
    records: list[tuple[int, int, bytes, bytes]] = []
    numbers: dict[bytes, int] = {}
    for store, _, payload in taken:
        if store.is_closed:
            closed = [one.uuid for one, _, _ in taken if one.is_closed]
            raise StorageError(f"partition {closed[0]} was closed meanwhile", closed)
        partition = store.partition
        number = numbers.get(partition, store.record_written) + 1
        numbers[partition] = number
        records.append((BATCH, number, partition, payload))
    return records, numbers
