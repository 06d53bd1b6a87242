"""The half of a store that both stores share: what was committed and is not in the file yet.

A batch goes through four stages. *Staged*: committed, not durable; dropped when its write fails. *Current*: durable,
part of the net effect that still grows. *Frozen*: a net effect that is being applied, or whose apply failed and will
be tried again. *Settled*: applied last; remembered only so that rows which were read before can still be judged.

`commit`, `is_removed` and `absorb_staged` belong to the loop's thread; `drop_staged` runs wherever the storage writes,
`freeze` in a worker thread. The storage's lock keeps the last three apart.
"""

from __future__ import annotations

import threading

from querator.daemon.failpoints import failpoint
from querator.daemon.store.base import Batch
from querator.daemon.store.delta import Delta


class UnappliedStore:
    """A store without its file: a subclass says how a Delta is applied and how things are read."""

    def __init__(self, uuid: str, lock: threading.Lock, record: int, last_seq: int) -> None:
        self.uuid = uuid
        self.prefix = int(uuid.replace("-", "")[:16], 16)
        self._lock = lock
        self._staged: list[Batch] = []
        self._staged_delta: Delta | None = None
        self._current = Delta(record, last_seq)
        self._frozen: Delta | None = None
        self._settled: Delta | None = None
        self._applied_through = last_seq

    # What happens on the loop's thread.

    def _stage(self, batch: Batch) -> None:
        self._staged.append(batch)
        self._staged_delta = None

    def is_removed(self, seq: int, state: str = "ready") -> bool:
        # Read newest first: a Delta that moves on meanwhile is then met twice, which changes nothing, and not missed.
        staged = self._delta_of_staged() if self._staged else None
        current, frozen, settled = self._current, self._frozen, self._settled
        for delta in (settled, frozen, current, staged):
            if delta is not None:
                state = delta.state_after(seq, state)
                if not state:
                    return True
        return False

    def _delta_of_staged(self) -> Delta:
        """Made only when somebody asks while a write is under way, which is seldom."""
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
        """About what all of it takes in memory, the keys of what is gone from the file included."""
        frozen = self._frozen
        return self._current.memory_bytes + (frozen.memory_bytes if frozen else 0)

    @property
    def record_written(self) -> int:
        """The number of the last journal record that is durable."""
        return self._current.record

    # What the storage does once a write has succeeded or failed, under its lock.

    def absorb_staged(self, batch: Batch, record: int, journal_bytes: int) -> None:
        self.absorb(batch, record, journal_bytes)
        self._unstage(batch)

    def absorb(self, batch: Batch, record: int, journal_bytes: int) -> None:
        """Takes in what is durable."""
        current = self._current
        current.absorb(batch)
        current.record = record
        current.journal_bytes += journal_bytes
        current.held_bytes = current.held_bytes + journal_bytes if current.holds_items else 0

    def drop_staged(self, batch: Batch) -> None:
        self._unstage(batch)

    def _unstage(self, batch: Batch) -> None:
        # Batches leave in the order in which they came, so that the first one is the one.
        if self._staged and self._staged[0] is batch:
            del self._staged[0]
            self._staged_delta = None

    # What happens in a worker thread.

    def freeze(self) -> bool:
        """Sets aside what is durable so far, to be applied. False when there is nothing to apply."""
        with self._lock:
            if self._frozen is None and self._current.record > self._record_applied():
                self._frozen = self._current
                self._current = Delta(self._frozen.record, self._frozen.last_seq)
                self._settled = None
            return self._frozen is not None

    def apply(self) -> None:
        """Applies what was frozen, in one transaction. When it raises, what was frozen waits for the next time."""
        frozen = self._frozen
        if frozen is None:
            return
        self._apply(frozen)
        failpoint("apply.committed")
        with self._lock:
            self._settled, self._frozen = frozen, None
            self._applied_through = frozen.last_seq
        frozen.drop_contents()

    def flush(self) -> None:
        self.apply()
        if self.freeze():
            self.apply()

    def _record_applied(self) -> int:
        raise NotImplementedError

    def _apply(self, delta: Delta) -> None:
        raise NotImplementedError
