"""The files of a standby: a catalog and partition files that have what the archive has, up to one log object.

Only this module changes them. Readers hold `StandbyFiles.lock`, and so does every change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from querator import limits, times
from querator.clock import Clock
from querator.config import StorageConfig
from querator.daemon.archive.bucket import Away, Bucket
from querator.daemon.archive.ledger import Ledger, Line, needed_logs
from querator.daemon.archive.objects import LogObject, log_name
from querator.daemon.archive.ownership import noted_bases, noted_behind, read_identity, save_identity
from querator.daemon.archive.restoring import place_base, records_in
from querator.daemon.catalog import Catalog, placements_in
from querator.daemon.store import Storage, Store, open_storage
from querator.errors import ConfigError, Conflict


class StandbyFiles:
    def __init__(self, bucket: Bucket, data: Path, storages: Sequence[StorageConfig]) -> None:
        self.catalog: Catalog
        self.ledger = Ledger()
        """What the archive has after the last log object that was taken in."""
        self.identity = read_identity(data)
        self.storages: dict[str, Storage] = {}
        self.stores: dict[str, Store] = {}
        """The open stores of all partitions that the archive has, by UUID."""
        self.layout = 0
        """Grows whenever the catalog or the set of open stores changes."""
        self.complete_to: dict[str, int] = {}
        """The partitions whose bases the archive lacks, and up to which time each one is complete."""
        self.incomplete: list[str] = []
        """The same for a person."""
        self.lock = threading.RLock()
        self.is_closed = False
        self._bucket = bucket
        self._data = data
        self._directories = {storage.name: storage.directory for storage in storages}
        self._placements: dict[str, tuple[str, str]] = {}
        self._homes: dict[str, Storage] = {}
        """The storage of each open store."""
        self._lineages: dict[str, int] = dict(self.identity.lineages)
        """For each file: the log object that last said that the partition needs a new base. 0 if there was none."""
        self._is_torn = False
        """Whether an object was taken in part, because a disk or the object store failed."""
        self._has_news = False
        self._unmerged: dict[str, int] = {}
        """About how many bytes of each partition are only in DuckDB's log."""
        self._looked_after_at = time.monotonic()
        self._forgot_at: dict[str, float] = {}
        """When expired request ids were last deleted from each attached file, or when it was first seen attached."""

    # Opening and closing.

    def number_noted(self) -> int | None:
        """The last log object that the files of an earlier run have; None if there are no such files. Raises Conflict
        if the directory is not that of a standby."""
        if self.identity.is_standby:
            return self.identity.number or None
        if (self._data / "catalog.duckdb").exists():
            raise Conflict(
                f"{self._data} is not the directory of a standby",
                hint="a standby needs a directory of its own: give it a new one with --data",
            )
        return None

    def open(self, ledger: Ledger) -> None:
        """Blocking. Makes the files, or uses those of an earlier run. After Away, this can be called again. Raises
        Conflict if the files of an earlier run do not lead to the ledger."""
        known = self.identity
        if known.number == ledger.number and known.sha256 != ledger.sha256:
            raise Conflict(
                f"{log_name(known.number)} is not the object that this standby has read: the archive has started over",
                hint="start the standby with a new data directory",
            )
        if not known.is_standby:
            # Noted before there is a file: a standby that is killed while it makes its files goes on with them.
            self.identity = msgspec.structs.replace(known, url=self._bucket.url, number=0, sha256="", is_standby=True)
            save_identity(self._data, self.identity)
        self.ledger = ledger
        self.catalog = Catalog(self._data / "catalog.duckdb")
        try:
            for name, directory in self._directories.items():
                self.storages[name] = open_storage(name, directory)
            self._bring_up_to_date()
        except Away:
            self._close()
            self.storages, self.stores, self._homes = {}, {}, {}
            raise
        self.save()

    def close(self) -> None:
        """Blocking. The next run goes on from here."""
        with self.lock:
            self.save()
            self.is_closed = True
            self._close()

    def _close(self) -> None:
        for storage in self.storages.values():
            storage.close()
        self.catalog.close()

    # Following the log.

    def take(self, objects: Sequence[LogObject]) -> None:
        """Blocking. Takes in the log objects up to the next whole cut."""
        with self.lock:
            # From here on the ledger is ahead of the files until everything was taken.
            self._is_torn = True
            for one in objects:
                self.ledger.advance(one)
            if any(one.catalog for one in objects):
                self._take_catalog()
            for one in objects:
                self._take_records(one)
            if any(one.catalog or one.head.bases for one in objects):
                after = self.ledger.number + 1
                for uuid in self._open_missing():
                    for one in needed_logs(self._bucket, self.ledger.lines[uuid].replay_from or after, after - 1):
                        self._take_records(one, uuid)
            self._note_incomplete()
            self._is_torn, self._has_news = False, True

    def mend(self) -> None:
        """Blocking. Takes in the rest, if a disk or the object store has failed in the middle of `take`."""
        if self._is_torn:
            with self.lock:
                self._bring_up_to_date()
            self._is_torn = False

    def _bring_up_to_date(self) -> None:
        """Brings the files to where the ledger is, whatever they have. A file skips the records that it has."""
        self._take_catalog()
        self._open_missing()
        # A standby that was restarted has most records in its files, and need not read their objects.
        lagging = [line for uuid, line in self.ledger.lines.items() if self._lacks_records(uuid, line)]
        first = min([line.replay_from for line in lagging], default=self.ledger.number + 1)
        for one in needed_logs(self._bucket, first, self.ledger.number):
            self._take_records(one)
        self._note_incomplete()
        self._has_news = True

    def _lacks_records(self, uuid: str, line: Line) -> bool:
        return line.base is not None and uuid in self.stores and self.stores[uuid].record_written < line.last

    def _take_catalog(self) -> None:
        self.catalog.load(self.ledger.catalog)
        self.catalog.forget_elsewhere()
        self._placements = placements_in(self.ledger.catalog)
        self.layout += 1

    def _take_records(self, one: LogObject, only: str = "") -> None:
        for uuid, number, payload in records_in(one):
            line = self.ledger.lines.get(uuid)
            # Records up to the object that voids a base belong to a file that was replaced since.
            is_wanted = line is not None and line.base is not None and one.head.number > line.void_at
            if is_wanted and uuid in self.stores and only in ("", uuid):
                self._homes[uuid].replay(uuid, number, payload)
                self._unmerged[uuid] = self._unmerged.get(uuid, 0) + len(payload)

    def _open_missing(self) -> list[str]:
        """Opens every partition that the archive has and that is not open, from its base if there is no file of it.
        Returns those that it opened. Deletes files that no longer lead to what the archive has."""
        for uuid in set(self.stores) - self._placements.keys():
            self._drop(uuid)
        opened = []
        unknown = {name for _, name in self._placements.values()} - self.storages.keys()
        if unknown:
            names = ", ".join(f"'{name}'" for name in sorted(unknown))
            raise ConfigError(
                f"the owner has partitions in storage {names}, which this standby lacks",
                hint="give the standby [[storages]] of the same names, and restart it",
            )
        for uuid, (queue, name) in self._placements.items():
            line = self.ledger.lines.get(uuid)
            if line is None or line.base is None:
                continue  # the owner is still copying its file; until then the old file is the best there is
            if self._lineages.get(uuid, 0) != line.void_at:
                # The owner closed the partition and its file was changed, so later records do not fit our file.
                self._drop(uuid)
            if uuid in self.stores and self.stores[uuid].record_written >= line.base.applied:
                continue
            storage = self.storages[name]
            place_base(self._bucket, storage, line.base)
            store = storage.open(uuid, queue)
            if store.record_written < line.base.applied:
                # The log may no longer have the records that lead from our old file to the base.
                self._drop(uuid)
                place_base(self._bucket, storage, line.base)
                store = storage.open(uuid, queue)
            self.stores[uuid], self._homes[uuid], self._lineages[uuid] = store, storage, line.void_at
            self.layout += 1
            opened.append(uuid)
        return opened

    def _drop(self, uuid: str) -> None:
        self.stores.pop(uuid, None)
        self._homes.pop(uuid, None)
        self._unmerged.pop(uuid, None)
        self._forgot_at.pop(uuid, None)
        self._lineages.pop(uuid, None)
        for storage in self.storages.values():
            storage.delete(uuid)
        self.layout += 1

    def _note_incomplete(self) -> None:
        """Notes which partitions could not be taken over whole, because the archive has no base of them."""
        missing = self.ledger.without_base(self._placements)
        names = {one.uuid: f"{one.queue}/{one.number}" for one in self.catalog.placements()} if missing else {}
        found, texts = {}, []
        for uuid in missing:
            line = self.ledger.lines.get(uuid)
            found[uuid] = (line.complete_to if line else 0) or self.complete_to.get(uuid, self.ledger.time)
            # A file that we have ends at that moment. If we have none, the partition is lost with the owner.
            until = f"complete up to {times.text(found[uuid])}" if uuid in self.stores else "no copy"
            texts.append(f"{names.get(uuid, uuid)} ({until})")
        self.complete_to, self.incomplete = found, texts

    # Upkeep.

    def look_after(self, until_us: int, is_needed: Callable[[], bool]) -> None:
        """Blocking. Saves, and does the upkeep that a daemon does on its files, now and then. Everything up to
        `until_us`, by the owner's clock, is in the files. The upkeep ends early if somebody needs the files."""
        if time.monotonic() - self._looked_after_at >= limits.STANDBY_SAVE_SECONDS:
            if self._has_news:
                self.save()
            self._forget_old_keys(until_us, is_needed)
            self._looked_after_at = time.monotonic()

    def save(self) -> None:
        """Blocking. Makes everything durable that was replayed, and notes the last log object."""
        with self.lock:
            for uuid, store in self.stores.items():
                store.flush()
                if self._unmerged.get(uuid, 0) >= limits.STANDBY_MERGE_BYTES:
                    # Closing the file would do this too, but a promotion must not wait for it.
                    store.checkpoint(force=True)
                    del self._unmerged[uuid]
        self.identity = msgspec.structs.replace(
            self.identity,
            url=self._bucket.url,
            number=self.ledger.number,
            sha256=self.ledger.sha256,
            lineages={uuid: number for uuid, number in self._lineages.items() if number},
        )
        save_identity(self._data, self.identity)
        self._has_news = False

    def _forget_old_keys(self, until_us: int, is_needed: Callable[[], bool]) -> None:
        """Deletes expired request ids from files, and detaches files without rows until they are needed again."""
        now, every = time.monotonic(), limits.FORGET_EVERY_US / limits.US_PER_SECOND
        for uuid, store in tuple(self.stores.items()):
            if store.is_resting:
                self._forgot_at.pop(uuid, None)
            elif store.is_blank or now - self._forgot_at.setdefault(uuid, now) >= every:
                if is_needed():
                    return
                with self.lock:  # for one file at a time: readers wait
                    store.flush()
                    # The owner's clock has reached this time, so the owner has forgotten these keys too, or soon will.
                    store.forget(until_us)
                self._forgot_at[uuid] = now

    def note_claim(self, needs_bases: bool) -> None:
        """Blocking. Called before a claim. If the daemon dies after it, its next start goes on from the files. With
        `needs_bases`, the log has records that the files lack."""
        self.save()
        self.identity = noted_bases(self._data, self.identity, needs_bases)

    def note_behind(self, clock: Clock, behind_us: int) -> None:
        """Blocking. Notes that the daemon's clock is about to be set back by this much more."""
        self.identity = noted_behind(self._data, self.identity, clock, behind_us)
