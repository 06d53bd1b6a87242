"""The store contract: what a storage and its partitions promise, and nothing about how they do it.

A **Storage** is a named directory of partitions, whose batches it makes durable together. A **Store** is one partition
of it. A commit has two steps, so that one turn of the event loop costs one fsync: `store.unapplied.commit(batch)`
stages a batch in memory, and `storage.write(storage.take())` makes every staged batch durable. `write` blocks, on the
loop or in a worker thread. Nothing may be acknowledged before `write` has returned. If `write` raises, its batches are
dropped as if they had never been staged. Otherwise `absorb` must follow.

`commit`, `is_removed`, `skip`, `take`, `absorb` and the properties are called on the loop's thread. Every other method
blocks and runs in a worker thread, one call at a time per store; only `ready_ahead` may run beside a flush or a
checkpoint. The loop uses the result of a call before it makes the next one. A storage has one write at a time, and
`take` waits until the last write was absorbed. Until then a store whose batch is being written gets no further batch,
because that batch would build on one that may fail.

Reads see batches that were applied. Call `flush` first where a read must see everything. `find`, `ready`, `scheduled`
and `expired` may return rows that a later batch has leased or removed without being applied yet. The caller knows its
leases, and asks `store.is_removed` for the rest, before the next flush begins. To know how far a read is complete, get
`applied_through` *before* the read. A sequence that was removed or unscheduled is never used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from querator.items import NOBODY, Hold, Item, Room

if TYPE_CHECKING:
    from querator.daemon.store.columnar import ItemColumns
    from querator.daemon.store.duck import FileSnapshot
    from querator.daemon.store.fingerprints import Fingerprints
    from querator.daemon.store.journal import Feed
    from querator.daemon.store.unapplied import Unapplied


class Summary(NamedTuple):
    """What a partition needs to know about its store at a start. The sums are exact."""

    ready: int
    leased: int
    scheduled: int
    created_sum: int
    """Sum of created_at over ready and leased items."""
    last_seq: int
    next_expiry: int | None
    """Smallest expire_deadline of the ready items."""
    next_due: int | None
    """Smallest enqueue_at of the scheduled items."""


class Leased(NamedTuple):
    item: Item
    attempts: int
    deadline: int
    hold: Hold = NOBODY


class Due(NamedTuple):
    """The scheduled items that are due first, by (enqueue_at, seq)."""

    items: list[Item]
    are_all: bool
    """Whether no other item is scheduled."""


class Found(NamedTuple):
    """Where a sequence was found. `item` is None for a lost lease."""

    state: str  # "ready", "leased", "scheduled" or "lost"
    item: Item | None
    attempts: int
    deadline: int
    hold: Hold = NOBODY


class Store(Protocol):
    """One partition. `prefix` is the first 8 bytes of its UUID as a number; ids carry it."""

    uuid: str
    prefix: int
    unapplied: Unapplied
    """Takes the batches, and has those that are not applied yet."""

    def is_removed(self, seq: int, state: str = "ready") -> bool:
        """Whether a batch that is not applied yet has removed, cleared or unscheduled this sequence.

        `state` is the state in which the item was read: "ready", "leased" or "scheduled".
        """

    def removed_among(self, seqs: Sequence[int]) -> set[int]:
        """Those of the sequences of ready items for which `is_removed` is true."""

    def has_removed_from(self, seq: int) -> bool:
        """False if `is_removed` is false for every ready item with this sequence or a higher one; fast."""

    def skip(self) -> bool:
        """If the batches that were *written* so far change nothing in the file, all in all: notes that the file need
        not have them, so that the journal can let them go. Fast. False if they change something.
        """

    @property
    def has_staged(self) -> bool:
        """Whether a batch is staged and not durable yet."""

    @property
    def applied_through(self) -> int:
        """Reads see every item that was added with a sequence up to this one, unless it was removed."""

    @property
    def unapplied_bytes(self) -> int:
        """How many bytes of the journal wait to be applied to this partition."""

    @property
    def held_bytes(self) -> int:
        """How many of these bytes are in memory. Items that leave before they are applied need none any more."""

    @property
    def left_bytes(self) -> int:
        """How many bytes of the journal have unapplied items that memory does not have."""

    @property
    def memory_bytes(self) -> int:
        """About how much memory the unapplied batches take."""

    @property
    def is_blank(self) -> bool:
        """Whether the file is known to contain nothing: no item, no lease, no key that is remembered."""

    @property
    def is_resting(self) -> bool:
        """Whether the file is closed until it is needed, because it contains nothing."""

    @property
    def next_bytes(self) -> int:
        """How many bytes the next `catch_up` applies."""

    def freeze(self) -> bool:
        """Sets aside the batches that were *written* so far, so that `apply` applies them; fast. False if there are
        none.
        """

    def apply(self) -> None:
        """Applies the batches that were set aside, in one transaction. Further batches may be committed meanwhile.

        Raises StorageError. Nothing is lost then: the next call tries again.
        """

    def flush(self) -> None:
        """Applies every batch that was written before the call."""

    def catch_up(self) -> int:
        """Applies the oldest batches, as many as one transaction should have. Returns how many bytes of them were left
        in the journal."""

    def checkpoint(self, force: bool = False) -> None:
        """Checkpoints the file if its log has grown long, or if `force` is set. Called after an apply."""

    def summary(self) -> Summary: ...

    def ready(self, after: int, before: int | None, items_max: int, bytes_max: int) -> list[Item]:
        """Ready items with after < seq < before, ascending; at least one if there is one, however large it is."""

    def ready_ahead(self, after: int, before: int | None, items_max: int, bytes_max: int) -> list[Item] | ItemColumns:
        """The same items, in columnar form if they can be read so, and also those that are not applied yet."""

    def leased(self) -> list[Leased]:
        """Every lease with its item, by deadline."""

    def scheduled(self, items_max: int) -> Due:
        """The scheduled items that are due first: at most `items_max`, and fewer if they are large."""

    def expired(self, now_us: int, items_max: int) -> list[Item]:
        """Ready items with expire_deadline < now, oldest first; at most `items_max`, and fewer if they are large."""

    def next_expiry(self) -> int | None: ...

    def find(self, seqs: Iterable[int], *, payloads: bool = True) -> dict[int, Found]:
        """Where these sequences are. Without `payloads`, payload, history and texts of the items are empty."""

    def page(self, scheduled: bool, from_seq: int, items_max: int) -> list[Leased]:
        """Items (with deadline 0 if not leased) or scheduled items from `from_seq` on, ascending; for lists.

        At most `items_max`, and fewer if they are large; at least one if there is one.
        """

    def sources(self, source_ids: Iterable[str]) -> set[str]:
        """Which of these source ids an item of this partition has, be it leased, ready or scheduled."""

    def request_ids(self, now_us: int, newest_max: int, always: tuple[str, ...]) -> list[tuple[str, int]]:
        """Remembered request ids with the times until which they are remembered, in the order of these times.

        The newest `newest_max` of them, and all that begin with one of `always`.
        """

    def request_fingerprints(self, now_us: int) -> Fingerprints:
        """Fingerprints of all remembered request ids."""

    def remembered(self, request_ids: Sequence[str], now_us: int) -> set[str]:
        """Which of these request ids are remembered."""

    def forget(self, now_us: int) -> None:
        """Drops lost leases and request ids that need no longer be remembered, and closes a file that contains nothing.

        The lost leases of one item are remembered while the item, or the newest of these leases, is remembered.
        """

    def file_replaced(self) -> bool:
        """Whether the path no longer leads to the file that was opened."""

    def size_bytes(self) -> int: ...

    @property
    def record_written(self) -> int:
        """How many batches are durable, counted over the partition's whole life."""

    def snapshot(self) -> FileSnapshot:
        """The file as it is now, for long reads outside of this contract. The partition stays in use meanwhile."""

    def free_share(self) -> float:
        """The share of the file that nothing uses any more, between 0 and 1."""

    def compact(self) -> None:
        """Frees this space: copies the rows to a new file and puts it in the place of the old one."""

    def close(self) -> None:
        """Flushes and closes the file, so that another process may open it."""


class Loss(NamedTuple):
    """What is lost if a partition that was put aside is opened anyway, and what is left of it."""

    reason: str
    """Which records are missing, as far as it is known."""
    applied: int
    """The last record that the partition's file contains."""
    replayed: int
    """How many later records the journal contains."""
    ready: int
    leased: int
    scheduled: int


class Storage(Protocol):
    """A named directory of partitions."""

    name: str
    directory: Path

    @property
    def feed(self) -> Feed:
        """Feeds the journal to the archive."""

    @property
    def unapplied_bytes(self) -> int:
        """How many bytes of the journal wait to be applied, in all partitions."""

    def create(self, uuid: str, queue: str) -> Store:
        """A new, empty partition; durable when this returns."""

    def open(self, uuid: str, queue: str) -> Store:
        """Opens an existing partition and applies every record that its file lacks, so that reads see everything.

        Raises StorageError when the partition cannot be trusted.
        """

    def replay(self, uuid: str, number: int, payload: bytes) -> bool:
        """Takes over a record of another journal, for an open partition that gets no other writes. False if it has the
        record already. The record is durable once the store is flushed. Raises StorageError if records are missing."""

    def loss(self, uuid: str) -> Loss | None:
        """What a partition that was put aside has lost. Changes nothing. Counts the items in the file, without the
        records of the journal. Returns None when the partition was not put aside."""

    def accept_loss(self, uuid: str, queue: str) -> Loss:
        """Accepts the loss of a partition that was put aside, for good, and leaves the partition closed. Copies of the
        damaged files stay in quarantine. Raises StorageError."""

    def release(self, uuid: str) -> None:
        """Closes the file of a partition without applying anything, so that another process may open it."""

    def adopt(self, uuid: str, fresh: Path) -> None:
        """Puts a closed file in the place of a partition's file, or where there was none; durable on return."""

    def staging(self, uuid: str) -> Path:
        """An empty directory in this storage in which a file can be made. The next start removes it."""

    def delete(self, uuid: str) -> None:
        """Deletes a partition's file, open or not."""

    @property
    def staged_bytes(self) -> int:
        """How many bytes the next `take` returns."""

    def take(self) -> object | None:
        """The batches that were staged since the last call, for `write`; None if there are none."""

    def write(self, taken: object, on_loop: bool = False) -> None:
        """Makes batches durable. `on_loop` says that this runs on the loop's thread, where all requests wait for it.

        Raises StorageError: none of the batches may be acknowledged then. Otherwise `absorb` must follow.
        """

    def absorb(self, taken: object) -> int:
        """Counts written batches as durable, and returns how many bytes they have in the journal. Must come before the
        next flush or write. It is a step of its own because clients need not wait for it."""

    def lagging(self, left_bytes: int = 0) -> set[str]:
        """The partitions that should be applied first, because they keep old journal segments from being trimmed.
        `left_bytes` are left in the journal, and may stay there."""

    def holding(self) -> set[str]:
        """All partitions that keep journal segments from being trimmed, apart from the segment in use."""

    def trim(self) -> None:
        """Drops what no partition of the journal needs any more. Called after partitions skipped batches."""

    @property
    def wants_preparing(self) -> bool:
        """Whether `prepare` would make the next writes faster."""

    def prepare(self) -> None:
        """Makes the next writes faster. One call at a time."""

    def note_acknowledged(self) -> None:
        """Notes how much has been written, so that losing it is noticed. Called in every round of upkeep in which
        there were writes, and in the round after."""

    def roll(self) -> None:
        """Called when idle. Ends the active journal segment, so that it can be trimmed, and frees memory."""

    @property
    def failure(self) -> str:
        """Why this storage cannot write until `reopen` has succeeded; empty if it can write."""

    @property
    def shortage(self) -> str:
        """Why the last write found no space; empty once a write has succeeded since."""

    def check_room(self) -> Room:
        """The free space of the file system. If there is next to none, or the last write found none, this tries a small
        write, so that `shortage` is up to date."""

    def reopen(self) -> None:
        """After a failure: starts over from what is durable. Every partition must be opened again."""

    def close(self) -> None: ...


class StorageError(Exception):
    """A storage failed. `uuids` are the partitions concerned; empty means all partitions of the storage."""

    def __init__(self, message: str, uuids: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.uuids = frozenset(uuids)


class LackOfMemory(StorageError):
    """A call needs more memory than a store may use. Only this call fails; the store stays usable."""


class RecordLost(StorageError):
    """The journal no longer has a record that the partition's file lacks. Trying again cannot help. Opening the
    partition again tells what is lost.
    """


def is_harmless(error: Exception) -> bool:
    """Whether a store stays usable after a call has failed with this error."""
    return isinstance(error, LackOfMemory) or not isinstance(error, StorageError)
