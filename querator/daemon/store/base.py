"""The store contract: what a partition's storage does, and nothing about how.

A **Storage** is a named directory that holds partitions and makes what they commit durable together. A **Store** is
one partition in it. A commit is two steps, so that everything that was decided in one turn of the event loop costs
one fsync: `store.commit(batch)` takes a batch in (memory only), and `storage.write(storage.take())` makes all batches
taken in so far durable (blocking; on the loop or in a worker thread). Nothing may be acknowledged before `write` has
returned. When it raises, its batches are dropped, as if they had never been committed; otherwise `absorb` follows.

On the loop's thread: `commit`, `is_removed`, `take`, `absorb`, and the properties. Everything else blocks and runs in
a worker thread, one call at a time per store, and the loop looks at what a call returned before it makes the next one.
One write at a time per storage, and no `take` before the last write was absorbed; a store whose batch is being written
gets no further batch until then, since what it decides would stand on something that may fail.

Reads see what has been applied: call `flush` first where everything must be seen. `find`, `ready`, `scheduled` and
`expired` may return rows that a later batch, still unapplied, has leased or removed; the caller knows its leases, and
what was removed from `store.is_removed`. To know up to where a read is complete, take `applied_through` *before* it.
A sequence that was removed or unscheduled is never used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from querator.items import NOBODY, Hold, Item, Room

if TYPE_CHECKING:
    from querator.daemon.store.duck.snapshot import FileSnapshot
    from querator.daemon.store.fingerprints import Fingerprints


class Rows(msgspec.Struct, array_like=True, gc=False):
    """New items in columns, with rising sequences: none of them is an object until somebody is about to get it."""

    first_seq: int
    count: int
    created_at: int
    """Of those that do not say themselves, as the next one."""
    expire_deadline: int
    columns: bytes
    """An Arrow stream with columns of the items table: the payload, and whichever else there is."""

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    """What one pass changes in one partition, in the order in which it takes effect.

    An item that is retried or whose lease ran out is removed under its old sequence and added under a new one.
    Leasing an item that is leased already replaces its lease (that is how a lease is extended).
    """

    clear_ready: bool = False
    clear_leased: bool = False
    clear_scheduled: bool = False
    add: list[Item] = msgspec.field(default_factory=list)
    schedule: list[Item] = msgspec.field(default_factory=list)
    lease_seqs: list[int] = msgspec.field(default_factory=list)
    lease_attempts: list[int] = msgspec.field(default_factory=list)
    lease_deadlines: list[int] = msgspec.field(default_factory=list)
    holds: list[Hold] = msgspec.field(default_factory=list)
    hold_counts: list[int] = msgspec.field(default_factory=list)
    """Each hold is that of so many of the leases, in their order. Leases beyond the last hold are nobody's."""
    unschedule: list[int] = msgspec.field(default_factory=list)
    remove: list[int] = msgspec.field(default_factory=list)
    """Sequences that leave the items, leased or not, and their leases with them."""
    lost_seqs: list[int] = msgspec.field(default_factory=list)
    lost_births: list[int] = msgspec.field(default_factory=list)
    """Per lost sequence the birth of its item, so that it is remembered while the item stays."""
    lost_until: int = 0
    """Kept at least until then."""
    request_ids: list[str] = msgspec.field(default_factory=list)
    request_until: list[int] = msgspec.field(default_factory=list)
    """Per request id: remembered until then."""
    last_seq: int = 0
    """The highest sequence handed out so far, also when nothing with it is left."""
    rows: list[Rows] = msgspec.field(default_factory=list)
    """Added, like those of `add`."""


def holds_of(batch: Batch) -> Iterator[Hold]:
    """One hold per lease of the batch, without an end."""
    return chain(chain.from_iterable(map(repeat, batch.holds, batch.hold_counts)), repeat(NOBODY))


class Summary(NamedTuple):
    """What a partition needs to know of its storage to start. Sums are exact, read from everything stored."""

    ready: int
    leased: int
    scheduled: int
    created_sum: int
    """Sum of created_at over ready and leased items."""
    last_seq: int
    next_expiry: int | None
    """Smallest expire_deadline of the un-leased items."""
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

    def commit(self, batch: Batch) -> None:
        """Takes a batch in. It is durable once the storage has written. Never blocks, never fails."""

    def is_removed(self, seq: int, state: str = "ready") -> bool:
        """Whether a batch that is not applied yet has removed, cleared or unscheduled this sequence.

        `state` is what it was read as: "ready", "leased" or "scheduled".
        """

    @property
    def has_staged(self) -> bool:
        """Whether a batch was committed that does not count as durable yet."""

    @property
    def applied_through(self) -> int:
        """Every item added with a sequence up to this one can be read back (unless it was removed)."""

    @property
    def unapplied_bytes(self) -> int:
        """What waits to be applied."""

    def freeze(self) -> bool:
        """Sets aside what was committed *and written* so far, to be applied; fast. False when there is nothing."""

    def apply(self) -> None:
        """Applies what was set aside, in one transaction; blocking. Batches may be committed meanwhile.

        Raises StorageError when it cannot. Nothing is lost then: the queue goes on, and the next call tries again.
        """

    def flush(self) -> None:
        """`freeze` and `apply`, until everything is applied that was written before the call."""

    def checkpoint(self, force: bool = False) -> None:
        """Folds the file's own log into it if that has grown long (or is forced to); blocking, after an apply."""

    def summary(self) -> Summary: ...

    def ready(self, after: int, before: int | None, items_max: int, bytes_max: int) -> list[Item]:
        """Un-leased items with after < seq < before, ascending; at least one if there is one, however large it is."""

    def leased(self) -> list[Leased]:
        """Every lease with its item, by deadline."""

    def scheduled(self, items_max: int) -> Due:
        """The scheduled items that are due first: at most so many, fewer if they are large."""

    def expired(self, now_us: int, items_max: int) -> list[Item]:
        """Un-leased items with expire_deadline < now, oldest first; at most so many, fewer if they are large."""

    def next_expiry(self) -> int | None: ...

    def find(self, seqs: Iterable[int], *, payloads: bool = True) -> dict[int, Found]:
        """Where these sequences are. Without `payloads` the items have neither payload, history nor texts."""

    def page(self, scheduled: bool, from_seq: int, items_max: int) -> list[Leased]:
        """For listing, ascending from from_seq: items (leased or not; deadline 0 when not) or scheduled ones.

        At most so many, and fewer if they are large; at least one if there is one.
        """

    def sources(self, source_ids: Iterable[str]) -> set[str]:
        """Which of these source ids some item here, leased, ready or scheduled, has."""

    def request_ids(self, now_us: int, newest_max: int, always: tuple[str, ...]) -> list[tuple[str, int]]:
        """Remembered request ids and until when, those that are not past, in the order of these times.

        At most the newest so many, and besides those all that begin with one of `always`.
        """

    def request_fingerprints(self, now_us: int) -> Fingerprints:
        """Of all remembered request ids that are not past."""

    def remembered(self, request_ids: Sequence[str], now_us: int) -> set[str]:
        """Which of these request ids are remembered and not past."""

    def forget(self, now_us: int) -> None:
        """Drops lost leases and request ids that need no longer be remembered.

        Those of one item are remembered for as long as the last of them, or the item itself, is here.
        """

    def file_replaced(self) -> bool:
        """Whether what was opened is no longer what its name stands for."""

    def size_bytes(self) -> int: ...

    @property
    def record_written(self) -> int:
        """How many batches are durable, counted over the partition's whole life."""

    def snapshot(self) -> FileSnapshot:
        """The file as it is now, for reading outside of this contract while the partition goes on."""

    def free_share(self) -> float:
        """How much of the file nothing uses any more, between 0 and 1."""

    def compact(self) -> None:
        """Gives that room back: copies what is there and puts the copy in the file's place; nobody notices."""

    def close(self) -> None:
        """Flushes and closes the file, so that another process may open it."""


class Loss(NamedTuple):
    """What is given up when a partition that was put aside is opened again, and what is left of it."""

    reason: str
    """Which records are missing, as far as that can be known."""
    applied: int
    """The last record that the partition's file has."""
    replayed: int
    """How many later records the journal still has."""
    ready: int
    leased: int
    scheduled: int


class Storage(Protocol):
    """A named directory of partitions."""

    name: str
    directory: Path

    @property
    def unapplied_bytes(self) -> int:
        """What waits to be applied in all partitions, in bytes of the journal."""

    @property
    def held_bytes(self) -> int:
        """How much of that memory has to hold until then: less, because most of what comes goes before that."""

    def create(self, uuid: str, queue: str) -> Store:
        """A new, empty partition; durable when this returns."""

    def open(self, uuid: str, queue: str) -> Store:
        """Opens an existing partition and applies what its file does not have yet, so that reads see everything.

        Raises StorageError when it cannot be trusted.
        """

    def loss(self, uuid: str) -> Loss:
        """What a partition that was put aside has lost. Changes nothing; counts what is in the file, without the
        records that the journal has. Raises StorageError when it was not put aside."""

    def accept_loss(self, uuid: str, queue: str) -> Loss:
        """Makes do with what is left of a partition that was put aside, for good; leaves it closed. The damaged files
        stay in quarantine. Raises StorageError."""

    def release(self, uuid: str) -> None:
        """Lets go of a partition as it is, open or not, so that another process may open its file."""

    def adopt(self, uuid: str, fresh: Path) -> None:
        """Puts a whole file that nobody has open in the place of a partition's; blocking, durable on return."""

    def staging(self, uuid: str) -> Path:
        """An empty directory beside the files in which one can be made; blocking."""

    def delete(self, uuid: str) -> None:
        """Removes a partition's file for good (closed or not)."""

    def take(self) -> object | None:
        """What has been committed since the last call, ready for `write`; None if nothing. On the loop's thread."""

    def write(self, taken: object, on_loop: bool = False) -> None:
        """Makes it durable, in a thread or, when that is quick, `on_loop`, where everybody waits for it.

        Raises StorageError: then nothing of it may be acknowledged. Otherwise `absorb` must follow.
        """

    def absorb(self, taken: object) -> None:
        """Counts what has been written as durable, before anything is flushed or written next. On the loop's thread;
        apart from `write`, because clients need not wait for it."""

    @property
    def memory_bytes(self) -> int:
        """About what is taken in memory by all that is not applied yet."""

    def lagging(self) -> set[str]:
        """The partitions that should be applied first, because they keep old journal segments from going."""

    @property
    def wants_preparing(self) -> bool:
        """Whether `prepare` would make what is written next faster to write."""

    def prepare(self) -> None:
        """Makes what is written next faster to write, and notes how much was acknowledged. Also called when writes
        pause. Blocking, one at a time."""

    def roll(self) -> None:
        """When things are idle: closes what is open of the journal, so that it can go; blocking."""

    @property
    def failure(self) -> str:
        """Why nothing can be acknowledged from this storage until `reopen` has succeeded; empty when it can."""

    @property
    def shortage(self) -> str:
        """Why the last write found no room; empty once a write has succeeded since."""

    def check_room(self) -> Room:
        """What is left of its file system; blocking. Where that is next to nothing, or the last write found no room, it
        tries a small write first, so that `shortage` is true now."""

    def reopen(self) -> None:
        """After a failure: starts over from what is durable; blocking. Every partition must be opened again."""

    def close(self) -> None: ...


class StorageError(Exception):
    """A storage cannot do what it must. `uuids` are the partitions concerned; empty means all of the storage."""

    def __init__(self, message: str, uuids: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.uuids = frozenset(uuids)


class LackOfMemory(StorageError):
    """A store may not use as much memory as it would take. It is fine otherwise: only what was asked of it fails."""


def is_harmless(error: Exception) -> bool:
    """Whether a store is as good as before though something that was asked of it has failed."""
    return isinstance(error, LackOfMemory) or not isinstance(error, StorageError)
