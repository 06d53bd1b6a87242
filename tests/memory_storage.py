"""A storage that forgets everything when the process ends, for tests.

Batches go through the same stages as in the journaled store (staged, written, applied), so that code that works with
this storage works with the other. Applied batches are in dictionaries here, instead of a file.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from itertools import islice
from pathlib import Path

import pyarrow as pa

from querator.daemon.store import FileSnapshot, ItemColumns
from querator.daemon.store.base import Due, Found, Leased, Loss, StorageError, Summary
from querator.daemon.store.columnar import items_in
from querator.daemon.store.delta import Delta
from querator.daemon.store.duck.arrow_rows import item_rows
from querator.daemon.store.fingerprints import Fingerprints, fingerprint
from querator.daemon.store.unapplied import StagedBatches, UnappliedStore
from querator.items import NOBODY, Hold, Item, Room


class MemoryStore(UnappliedStore):
    def __init__(self, uuid: str, staged: StagedBatches) -> None:
        super().__init__(uuid, staged, record=0, last_seq=0)
        self._applied = 0
        self._last_seq = 0
        self._items: dict[int, Item] = {}
        self._leases: dict[int, tuple[int, int, Hold]] = {}
        self._scheduled: dict[int, Item] = {}
        self._lost: dict[int, tuple[int, int]] = {}
        self._requests: dict[str, int] = {}

    @property
    def is_blank(self) -> bool:
        return not (self._items or self._scheduled or self._lost or self._requests)

    @property
    def is_resting(self) -> bool:
        return self.is_blank

    def _record_applied(self) -> int:
        return self._applied

    def _apply(self, delta: Delta) -> None:
        items, leases, held = self._items, self._leases, dict(delta.all_leases())
        if delta.clear_ready:
            for seq in [seq for seq in items if seq not in leases and seq not in held]:
                del items[seq]
        if delta.clear_leased:
            for seq in leases:
                items.pop(seq, None)
            leases.clear()
        if delta.clear_scheduled:
            self._scheduled.clear()
        for rows in delta.rows:
            gone = delta.gone_from(rows) or bytes(rows.count)
            items.update((item.seq, item) for at, item in enumerate(items_in(rows)) if not gone[at])
        for seq in delta.removed:
            items.pop(seq, None)
            leases.pop(seq, None)
        for seq in delta.unscheduled:
            self._scheduled.pop(seq, None)
        items.update(delta.added)
        leases.update(held)
        self._scheduled.update(delta.scheduled)
        self._lost.update(delta.lost)
        self._requests.update(delta.requests)
        self._applied, self._last_seq = delta.record, delta.last_seq

    def _ready_items(self) -> Iterable[Item]:
        return (item for seq, item in self._items.items() if seq not in self._leases)

    def summary(self) -> Summary:
        return Summary(
            ready=len(self._items) - len(self._leases),
            leased=len(self._leases),
            scheduled=len(self._scheduled),
            created_sum=sum(item.created_at for item in self._items.values()),
            last_seq=self._last_seq,
            next_expiry=self.next_expiry(),
            next_due=min((item.enqueue_at for item in self._scheduled.values()), default=None),
        )

    def ready(self, after: int, before: int | None, items_max: int, bytes_max: int) -> list[Item]:
        found = (item for item in self._ready_items() if after < item.seq and (before is None or item.seq < before))
        size = 0
        chosen: list[Item] = []
        for item in sorted(found, key=_by_seq)[:items_max]:
            size += len(item.payload)
            if chosen and size > bytes_max:
                break
            chosen.append(item)
        return chosen

    def _ready_in_file(self, after: int, before: int, items_max: int, bytes_max: int) -> list[Item] | ItemColumns:
        found = self.ready(after, before, items_max, bytes_max)
        return ItemColumns(pa.table(item_rows(found))) if found else []

    def leased(self) -> list[Leased]:
        found = [Leased(self._items[seq], *lease) for seq, lease in self._leases.items()]
        return sorted(found, key=lambda leased: (leased.deadline, leased.item.seq))

    def scheduled(self, items_max: int) -> Due:
        items = nsmallest(items_max, self._scheduled.values(), key=lambda item: (item.enqueue_at, item.seq))
        return Due(items, are_all=len(items) == len(self._scheduled))

    def expired(self, now_us: int, items_max: int) -> list[Item]:
        found = (item for item in self._ready_items() if item.expire_deadline < now_us)
        return nsmallest(items_max, found, key=_by_seq)

    def next_expiry(self) -> int | None:
        return min((item.expire_deadline for item in self._ready_items()), default=None)

    def find(self, seqs: Iterable[int], *, payloads: bool = True) -> dict[int, Found]:
        found: dict[int, Found] = {}
        for seq in seqs:
            if item := self._items.get(seq):
                lease = self._leases.get(seq)
                found[seq] = Found("leased", item, *lease) if lease else Found("ready", item, item.attempts, 0)
            elif item := self._scheduled.get(seq):
                found[seq] = Found("scheduled", item, item.attempts, 0)
            elif seq in self._lost:
                found[seq] = Found("lost", None, 0, 0)
        return found

    def page(self, scheduled: bool, from_seq: int, items_max: int) -> list[Leased]:
        items = self._scheduled if scheduled else self._items
        seqs = islice(sorted(seq for seq in items if seq >= from_seq), items_max)
        leases = {} if scheduled else self._leases
        return [Leased(items[seq], *leases.get(seq, (items[seq].attempts, 0, NOBODY))) for seq in seqs]

    def sources(self, source_ids: Iterable[str]) -> set[str]:
        here = {item.source_id for items in (self._items, self._scheduled) for item in items.values()}
        return here.intersection(source_ids) - {""}

    def request_ids(self, now_us: int, newest_max: int, always: tuple[str, ...]) -> list[tuple[str, int]]:
        found = sorted(self._remembered(now_us).items(), key=_until_of)
        rest = found[: max(0, len(found) - newest_max)]
        return [one for one in rest if always and one[0].startswith(always)] + found[len(rest) :]

    def request_fingerprints(self, now_us: int) -> Fingerprints:
        found = self._remembered(now_us)
        return Fingerprints(array("Q", sorted(map(fingerprint, found))), max(found.values(), default=0))

    def remembered(self, request_ids: Sequence[str], now_us: int) -> set[str]:
        return self._remembered(now_us).keys() & set(request_ids)

    def _remembered(self, now_us: int) -> dict[str, int]:
        return {request_id: until for request_id, until in self._requests.items() if until >= now_us}

    def forget(self, now_us: int) -> None:
        births = {item.birth or item.seq for items in (self._items, self._scheduled) for item in items.values()}
        births |= {birth or seq for seq, (birth, until) in self._lost.items() if until >= now_us}
        self._lost = {
            seq: (birth, until)
            for seq, (birth, until) in self._lost.items()
            if until >= now_us or (birth or seq) in births
        }
        self._requests = self._remembered(now_us)

    def file_replaced(self) -> bool:
        return False

    def size_bytes(self) -> int:
        return sum(len(item.payload) for items in (self._items, self._scheduled) for item in items.values())

    def snapshot(self) -> FileSnapshot:
        raise StorageError("there is no file", [self.uuid])

    def free_share(self) -> float:
        return 0.0

    def compact(self) -> None:
        pass  # there is no file

    def checkpoint(self, force: bool = False) -> None:
        pass  # there is no log to fold in

    def close(self) -> None:
        self.flush()


class MemoryStorage:
    """Partitions live as long as this object. A closed partition can be opened again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.directory = Path()
        self._staged = StagedBatches()
        self._stores: dict[str, MemoryStore] = {}

    def create(self, uuid: str, queue: str) -> MemoryStore:
        if uuid in self._stores:
            raise StorageError(f"partition {uuid} exists already in storage {self.name}", [uuid])
        store = self._stores[uuid] = MemoryStore(uuid, self._staged)
        return store

    def open(self, uuid: str, queue: str) -> MemoryStore:
        store = self._stores.get(uuid)
        if store is None:
            raise StorageError(f"partition {uuid} is not in storage {self.name}", [uuid])
        store.flush()
        return store

    def loss(self, uuid: str) -> Loss | None:
        return None

    def accept_loss(self, uuid: str, queue: str) -> Loss:
        raise StorageError(f"partition {uuid} was not put aside", [uuid])

    def release(self, uuid: str) -> None:
        pass  # there is no file to close

    def adopt(self, uuid: str, fresh: Path) -> None:
        raise StorageError(f"storage {self.name} has no files", [uuid])

    def staging(self, uuid: str) -> Path:
        raise StorageError(f"storage {self.name} has no files", [uuid])

    def delete(self, uuid: str) -> None:
        self._stores.pop(uuid, None)

    @property
    def unapplied_bytes(self) -> int:
        return 0  # nothing waits for a disk

    @property
    def staged_bytes(self) -> int:
        return self._staged.waiting_bytes

    def take(self) -> object | None:
        return self._staged.take()

    def write(self, taken: object, on_loop: bool = False) -> None:
        pass

    def absorb(self, taken: object) -> int:
        assert isinstance(taken, list)
        return self._staged.absorb(taken)

    def drop(self, taken: object) -> None:
        """Forgets batches whose write a test lets fail."""
        assert isinstance(taken, list)
        self._staged.drop(taken)

    def lagging(self, left_bytes: int = 0) -> set[str]:
        return set()

    def holding(self) -> set[str]:
        return set()

    def trim(self) -> None:
        pass

    @property
    def wants_preparing(self) -> bool:
        return False

    def prepare(self) -> None:
        pass

    def note_acknowledged(self) -> None:
        pass

    def roll(self) -> None:
        pass

    @property
    def failure(self) -> str:
        return ""

    @property
    def shortage(self) -> str:
        return ""

    def check_room(self) -> Room:
        return Room(1 << 40, 1 << 40)

    def reopen(self) -> None:
        pass

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


def _until_of(remembered: tuple[str, int]) -> int:
    return remembered[1]


def _by_seq(item: Item) -> int:
    return item.seq
