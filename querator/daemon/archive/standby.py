"""The standby: a thread that keeps files of its own up to date with an archive, and takes the archive over.

The standby reads one log object after the other, and replays the records with the code that a recovery uses. Only the
archive decides about the owner: the standby is the owner once it has created the next log object itself, and it does so
only after it has replayed all earlier ones. The heartbeat of the owner only shows when an attempt is worthwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from querator import limits
from querator.clock import Clock
from querator.config import ArchiveConfig, StorageConfig
from querator.daemon.archive.bucket import ArchiveError, Away, Bucket
from querator.daemon.archive.care import heartbeat, try_store
from querator.daemon.archive.ledger import Ledger, read_log
from querator.daemon.archive.objects import DamagedObject, Heartbeat, LogObject, Owner
from querator.daemon.archive.ownership import claim, owner_of, read_identity, save_identity
from querator.daemon.archive.restoring import place_base, point_at, records_in
from querator.daemon.archive.shipping import Before
from querator.daemon.catalog import Catalog, placements_in
from querator.daemon.store import Storage, StorageError, Store, open_storage
from querator.errors import Conflict, QueratorError

log = logging.getLogger("querator.archive")


class Lag(NamedTuple):
    owner: str
    seconds: float
    """Since the moment up to which the standby has everything, by the owner's clock and ours."""
    objects: int
    """Log objects that the standby knows of and has not replayed yet."""


class Promotion(NamedTuple):
    """What the daemon needs to know after its standby has taken over."""

    before: Before
    behind_us: int
    """By how much the clock is to be behind, so that leases last as long as they were given."""
    complete_to_us: int
    """Everything that the last owner had acknowledged up to this moment is in the files."""


class Standby:
    def __init__(
        self,
        config: ArchiveConfig,
        data: Path,
        storages: Sequence[StorageConfig],
        clock: Clock,
        address: str,
        take_over: Callable[[], None],
    ) -> None:
        """`take_over` is called in the standby's thread when the owner has been silent for too long."""
        self.config = config
        self.bucket = Bucket(config.url, config.options)
        self.catalog: Catalog
        self.trouble = ""
        """Why the archive cannot be read at present; empty if it works."""
        self.refusal = ""
        """Why the last promotion was refused; empty if none was."""
        self._before: Before | None = None
        """What was there before our last attempt to claim the archive."""
        self._data = data
        self._directories = {storage.name: storage.directory for storage in storages}
        self._clock = clock
        self._take_over = take_over
        self._identity = read_identity(data)
        self.owner: Owner = owner_of(self._identity, address)
        self._ledger = Ledger()
        self._pending: list[LogObject] = []
        self._placements: dict[str, tuple[str, str]] = {}
        self._storages: dict[str, Storage] = {}
        self._stores: dict[str, Store] = {}
        self._has_news = False
        self._saved_at = time.monotonic()
        self._beat: Heartbeat | None = None
        self._beat_seen_at = time.monotonic()
        self._skews: deque[int] = deque(maxlen=limits.SKEW_SAMPLES_MAX)
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="querator-standby", daemon=True)

    # Starting and stopping.

    def start(self) -> None:
        """Blocking. Makes the files, or uses those of an earlier run. Raises QueratorError or StorageError."""
        try_store(self.bucket)
        is_new = not (self._data / "catalog.duckdb").exists()
        if not is_new and not self._identity.number:
            raise Conflict(
                f"{self._data} is not the directory of a standby", hint="a standby needs a directory of its own"
            )
        self.catalog = Catalog(self._data / "catalog.duckdb")
        self._ledger = point_at(self.bucket, None, None if is_new else self._identity.number)
        for name, directory in self._directories.items():
            self._storages[name] = open_storage(name, directory)
        self._take_catalog()
        starts = [line.replay_from for line in self._ledger.lines.values() if line.replay_from]
        for number in range(min(starts, default=self._ledger.number + 1), self._ledger.number + 1):
            one = read_log(self.bucket, number)
            if one is None:
                raise ArchiveError(f"log object {number} is missing from the archive {self.bucket.url}")
            self._take_records(one)
        self._save()
        self._thread.start()

    def stop(self) -> None:
        """Blocking. Closes everything. The next start continues from here."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._close()

    def _close(self) -> None:
        self._save()
        for storage in self._storages.values():
            storage.close()
        self.catalog.close()

    # The thread.

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._lock:
                    while not self._stopping.is_set() and self._follow_one():
                        pass
                    self._save_now_and_then()
                self._watch_owner()
                self.trouble = ""
            except Away as error:
                self.trouble = str(error)
            except (DamagedObject, QueratorError, StorageError, OSError) as error:
                if self.trouble != str(error):
                    log.error("standby cannot follow", extra={"reason": str(error)})
                self.trouble = str(error)
            self._stopping.wait(self.config.interval)

    def _follow_one(self) -> bool:
        """Reads the next log object. False if there is none yet."""
        last = self._pending[-1] if self._pending else None
        one = read_log(self.bucket, (last.head.number if last else self._ledger.number) + 1)
        if one is None:
            return False
        self._pending.append(one)
        if one.head.is_point:
            pending, self._pending = self._pending, []
            for each in pending:
                self._take(each)
        return True

    def _take(self, one: LogObject) -> None:
        stale = {uuid for uuid in self._stores if (line := self._ledger.lines.get(uuid)) is None or line.base is None}
        self._ledger.advance(one)
        if one.catalog:
            self._take_catalog()
        self._take_records(one)
        for base in one.head.bases:
            line = self._ledger.lines.get(base.uuid)
            if base.uuid in self._placements and line is not None and line.base == base:
                if base.uuid in stale:
                    # Later records do not fit this file, because the owner closed the partition and its file was
                    # changed.
                    self._drop(base.uuid)
                if base.uuid not in self._stores:
                    self._open(base.uuid)
                    for number in range(base.since, one.head.number + 1):
                        if (earlier := read_log(self.bucket, number)) is not None:
                            self._take_records(earlier, base.uuid)
        self._has_news = True

    def _take_catalog(self) -> None:
        self.catalog.load(self._ledger.catalog)
        self.catalog.forget_elsewhere()
        self._placements = placements_in(self._ledger.catalog)
        for uuid in set(self._stores) - self._placements.keys():
            self._drop(uuid)
        for uuid in self._placements:
            line = self._ledger.lines.get(uuid)
            if uuid not in self._stores and line is not None and line.base is not None:
                self._open(uuid)

    def _open(self, uuid: str) -> None:
        queue, name = self._placements[uuid]
        base = self._ledger.lines[uuid].base
        assert base is not None
        place_base(self.bucket, self._storages[name], base)
        self._stores[uuid] = self._storages[name].open(uuid, queue)

    def _drop(self, uuid: str) -> None:
        del self._stores[uuid]
        for storage in self._storages.values():
            storage.delete(uuid)

    def _take_records(self, one: LogObject, only: str = "") -> None:
        for uuid, number, payload in records_in(one):
            line = self._ledger.lines.get(uuid)
            if uuid in self._stores and only in ("", uuid) and line is not None and line.base is not None:
                self._storages[self._placements[uuid][1]].replay(uuid, number, payload)

    def _save_now_and_then(self) -> None:
        if self._has_news and time.monotonic() - self._saved_at >= limits.STANDBY_SAVE_SECONDS:
            self._save()

    def _save(self) -> None:
        """Makes everything durable that was replayed, and notes the last log object."""
        for store in self._stores.values():
            store.flush()
        self._identity = msgspec.structs.replace(
            self._identity, url=self.config.url, number=self._ledger.number, sha256=self._ledger.sha256
        )
        save_identity(self._data, self._identity)
        self._has_news, self._saved_at = False, time.monotonic()

    # The owner.

    def _see_heartbeat(self) -> None:
        beat = heartbeat(self.bucket)
        if beat is None or beat.epoch != self._ledger.epoch or beat == self._beat:
            return
        if self._beat is not None:
            # Our clock is ahead of the owner's by at most this much: it includes the time until the heartbeat was read.
            # The age of the first heartbeat is unknown, so it is left out.
            self._skews.append(self._clock.now_us() - beat.time)
        self._beat, self._beat_seen_at = beat, time.monotonic()

    def _watch_owner(self) -> None:
        self._see_heartbeat()
        silence = time.monotonic() - self._beat_seen_at
        if self.config.takeover is not None and silence > self.config.takeover:
            log.warning("the owner is silent", extra={"owner": str(self._ledger.owner), "seconds": round(silence, 1)})
            self._beat_seen_at = time.monotonic()
            self._take_over()

    def lag(self) -> Lag:
        beat, number = self._beat, self._ledger.number
        objects = max(0, beat.number - number) if beat else 0
        at_us = self._ledger.time if objects or beat is None else beat.time
        return Lag(str(self._ledger.owner or ""), max(0, self._clock.now_us() - at_us) / limits.US_PER_SECOND, objects)

    def skew_us(self) -> int | None:
        """The most by which our clock can be ahead of the owner's; None if no heartbeat was seen."""
        return min(self._skews, default=None)

    # Taking over.

    def promote(self, force: bool) -> Promotion:
        """Blocking. Takes the archive over and closes the files, which have everything. Raises Conflict or Away."""
        self._see_heartbeat()
        skew_us = self.skew_us()
        bound_us = limits.SKEW_SECONDS_MAX * limits.US_PER_SECOND
        if not force and (skew_us is None or abs(skew_us) > bound_us):
            found = "is not known, because no heartbeat was seen" if skew_us is None else f"is {skew_us / 1e6:.1f}s"
            self.refusal = f"the difference between the owner's clock and ours {found}"
            raise Conflict(self.refusal, hint="--force takes over anyway; leases may end too early")
        with self._lock:
            before = self._claim()
            self._stopping.set()
            self._close()
        behind_us = max(0, skew_us or 0)
        log.warning(
            "standby takes over",
            extra={"from": str(before.owner), "epoch": self._ledger.epoch, "complete_to": self._ledger.time},
        )
        return Promotion(before, behind_us, self._ledger.time)

    def _claim(self) -> Before:
        """Creates the next log object, after all earlier ones were replayed."""
        epoch = self._ledger.epoch
        while True:
            while self._follow_one():
                pass
            last = self._pending[-1].head if self._pending else self._ledger
            if self._before and last.owner == self.owner:
                return self._before  # an earlier attempt has succeeded, although it looked like a failure
            if last.epoch != epoch:
                raise Conflict(f"{last.owner} was faster: it owns the archive now")
            # An owner that died in the middle of a cut leaves an incomplete cut. Its records were never acknowledged.
            end = Ledger(
                number=self._ledger.number + len(self._pending),
                sha256=self._pending[-1].sha256 if self._pending else self._ledger.sha256,
                epoch=epoch,
                time=self._ledger.time,
                is_point=not self._pending,
            )
            self._before = Before(self._ledger.owner, epoch, self._ledger.number, self._ledger.sha256)
            if claim(self.bucket, end, self.owner, self._clock.now_us()):
                return self._before
