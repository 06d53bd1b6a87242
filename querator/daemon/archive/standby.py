"""The standby: a thread that keeps files of its own up to date with an archive, and takes the archive over.

The standby reads one log object after the other, and replays the records with the code that a recovery uses. Only the
archive decides about the owner: the standby is the owner once it has created the next log object itself, and it does so
only after it has replayed all earlier ones. The heartbeat of the owner only shows when an attempt is worthwhile.

Readers of the files and of the catalog hold `Standby.files`, and so does the thread while it changes them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from querator import limits, times
from querator.clock import Clock
from querator.config import ArchiveConfig, StorageConfig
from querator.daemon.archive.bucket import ArchiveError, Away, Bucket, NothingYet
from querator.daemon.archive.care import try_store
from querator.daemon.archive.heartbeats import Heartbeats
from querator.daemon.archive.ledger import Ledger, Line, check_gap, needed_logs, read_log, read_logs
from querator.daemon.archive.objects import DamagedObject, LogObject, Owner
from querator.daemon.archive.ownership import (
    check_end,
    check_log,
    claim,
    noted_behind,
    owner_of,
    read_identity,
    save_identity,
)
from querator.daemon.archive.restoring import place_base, point_at, records_in
from querator.daemon.archive.shipping import Before
from querator.daemon.catalog import Catalog, placements_in
from querator.daemon.store import Storage, StorageError, Store, open_storage
from querator.errors import Conflict, QueratorError

log = logging.getLogger("querator.archive")


class Doubt(Conflict):
    """Taking over may break a promise, so somebody has to force it."""


class Replayed(NamedTuple):
    """How far a standby is."""

    owner: str
    until_us: int
    """The standby has everything that the archive had at this time, by the owner's clock."""
    objects: int
    """Log objects that the standby knows of and has not replayed yet."""


class Promotion(NamedTuple):
    """What the daemon needs to know after its standby has taken over."""

    owner: Owner
    """This daemon, as it has claimed the archive."""
    before: Before
    behind_us: int
    """By how much more the clock is set back, so that leases last as long as they were given."""
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
        self._is_new = not (data / "catalog.duckdb").exists()
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
        self._complete_to: dict[str, int] = {}
        """The partitions whose bases the archive lacks, and up to which time each one is complete."""
        self.incomplete: list[str] = []
        """The same for a person."""
        self._ahead: Iterator[LogObject] = iter(())
        """The log objects that the owner's last heartbeat knows of and that come after those in `_pending`."""
        self._placements: dict[str, tuple[str, str]] = {}
        self.storages: dict[str, Storage] = {}
        self.stores: dict[str, Store] = {}
        """The open stores of all partitions that the archive has, by UUID."""
        self._homes: dict[str, Storage] = {}
        """The storage of each open store."""
        self._lineages: dict[str, int] = dict(self._identity.lineages)
        """For each file: the log object that last said that the partition needs a new base. 0 if there was none."""
        self.layout = 0
        """Grows whenever the catalog or the set of open stores changes."""
        self.files = threading.RLock()
        """Held while the files, the stores or the catalog change, and by whoever reads them."""
        self.is_closed = False
        self._is_torn = False
        """Whether an object was taken in part, because a disk or the object store failed."""
        self._unmerged: dict[str, int] = {}
        """About how many bytes of each partition are only in DuckDB's log."""
        self._has_news = False
        self._check_at = 0.0
        """When to look next whether the archive still has its log."""
        self._looked_after_at = time.monotonic()
        self._forgot_at: dict[str, float] = {}
        """When expired request ids were last deleted from each attached file, or when it was first seen attached."""
        self.heartbeats = Heartbeats(self.bucket, clock)
        self._following = threading.RLock()
        """Held by the thread that reads the log: ours, or the one that promotes."""
        self._stopping = threading.Event()
        self._is_promoting = threading.Event()
        """Set while somebody waits to take over: the thread lets go of the log, however much the owner writes."""
        self._thread = threading.Thread(target=self._run, name="querator-standby", daemon=True)

    # Starting and stopping.

    def start(self) -> None:
        """Blocking. Makes the files, or uses those of an earlier run. Raises QueratorError or StorageError. After Away
        and NothingYet, it can be called again.
        """
        if not self._is_new and not self._identity.number:
            raise Conflict(
                f"{self._data} is not the directory of a standby", hint="a standby needs a directory of its own"
            )
        try_store(self.bucket)
        try:
            self._ledger = point_at(self.bucket, None, None if self._is_new else self._identity.number)
        except NothingYet:
            raise
        except ArchiveError as error:
            if self._is_new:
                raise
            hint = "the standby was down for longer than the archive keeps; start it with a new data directory"
            raise Conflict(str(error), hint=hint) from None
        self.catalog = Catalog(self._data / "catalog.duckdb")
        try:
            for name, directory in self._directories.items():
                self.storages[name] = open_storage(name, directory)
            self._bring_up_to_date()
        except Away:
            self._close_files()
            self.storages, self.stores, self._homes = {}, {}, {}
            raise
        _save(self)
        # Clocks are compared from the second heartbeat on, so an owner that stops after this moment was compared.
        with contextlib.suppress(Away):
            self.heartbeats.look(self._ledger.epoch)
        self._thread.start()

    def stop(self) -> None:
        """Blocking. Closes everything. The next start continues from here."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._close()

    def _close(self) -> None:
        with self.files:
            _save(self)
            self.is_closed = True
            self._close_files()

    def _close_files(self) -> None:
        for storage in self.storages.values():
            storage.close()
        self.catalog.close()

    # The thread.

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._following:
                    while not (self._stopping.is_set() or self._is_promoting.is_set()) and self._follow_one():
                        pass
                    self._look_after_files()
                _watch_owner(self)
                self._check_archive()
                self.trouble = ""
            except Away as error:
                self.trouble = str(error)
            except (DamagedObject, QueratorError, StorageError, OSError) as error:
                if self.trouble != str(error):
                    log.error("standby cannot follow", extra={"reason": str(error)})
                self.trouble = str(error)
            self._rest()

    def _rest(self) -> None:
        """Waits for one interval, and looks for heartbeats meanwhile: how often must not depend on the interval."""
        end = time.monotonic() + self.config.interval
        with contextlib.suppress(Away):  # the next turn notes it
            while not (
                self._stopping.wait(min(self.config.interval, self.heartbeats.pause())) or time.monotonic() >= end
            ):
                _watch_owner(self)

    def _follow_one(self) -> bool:
        """Reads the next log object. False if there is none yet."""
        if self._is_torn:
            with self.files:
                self._bring_up_to_date()
            self._is_torn = False
        one = _next_object(self)
        if one is None:
            return False
        self._pending.append(one)
        if one.head.is_point:
            pending, self._pending = self._pending, []
            with self.files:
                for each in pending:
                    self._ledger.advance(each)
                # From here on the ledger is ahead of the files until everything was taken.
                self._is_torn = True
                self._take(pending)
                self._is_torn = False
        return True

    def _take(self, objects: Sequence[LogObject]) -> None:
        """Takes in objects that the ledger has already."""
        if any(one.catalog for one in objects):
            self._take_catalog()
        for one in objects:
            self._take_records(one)
        if any(one.catalog or one.head.bases for one in objects):
            after = self._ledger.number + 1
            for uuid in _open_missing(self):
                for one in needed_logs(self.bucket, self._ledger.lines[uuid].replay_from or after, after - 1):
                    self._take_records(one, uuid)
        _note_incomplete(self)
        self._has_news = True

    def _bring_up_to_date(self) -> None:
        """Brings the files to where the ledger is, whatever they have. A file skips the records that it has."""
        self._take_catalog()
        _open_missing(self)
        # A standby that was restarted has most records in its files, and need not read their objects.
        lagging = [line for uuid, line in self._ledger.lines.items() if self._lacks_records(uuid, line)]
        first = min([line.replay_from for line in lagging], default=self._ledger.number + 1)
        for one in needed_logs(self.bucket, first, self._ledger.number):
            self._take_records(one)
        _note_incomplete(self)
        self._has_news = True

    def _lacks_records(self, uuid: str, line: Line) -> bool:
        return line.base is not None and uuid in self.stores and self.stores[uuid].record_written < line.last

    def _take_catalog(self) -> None:
        self.catalog.load(self._ledger.catalog)
        self.catalog.forget_elsewhere()
        self._placements = placements_in(self._ledger.catalog)
        self.layout += 1

    def _drop(self, uuid: str) -> None:
        self.stores.pop(uuid, None)
        self._homes.pop(uuid, None)
        self._unmerged.pop(uuid, None)
        self._forgot_at.pop(uuid, None)
        self._lineages.pop(uuid, None)
        for storage in self.storages.values():
            storage.delete(uuid)
        self.layout += 1

    def _take_records(self, one: LogObject, only: str = "") -> None:
        for uuid, number, payload in records_in(one):
            line = self._ledger.lines.get(uuid)
            # Records up to the object that voids a base belong to a file that was replaced since.
            is_wanted = line is not None and line.base is not None and one.head.number > line.void_at
            if is_wanted and uuid in self.stores and only in ("", uuid):
                self._homes[uuid].replay(uuid, number, payload)
                self._unmerged[uuid] = self._unmerged.get(uuid, 0) + len(payload)

    def _look_after_files(self) -> None:
        """Saves, and does the upkeep that a daemon does on its files, now and then."""
        if time.monotonic() - self._looked_after_at >= limits.STANDBY_SAVE_SECONDS:
            if self._has_news:
                with self.files:
                    _save(self)
            _forget_old_keys(self)
            self._looked_after_at = time.monotonic()

    # The owner.

    def _check_archive(self) -> None:
        """Raises Away if the archive has lost what we have read from it: then it has no news, but nothing is well."""
        if self.trouble or time.monotonic() >= self._check_at:
            check_log(self.bucket, self._ledger)
            self._check_at = time.monotonic() + self.config.heartbeat

    def replayed(self) -> Replayed:
        last, number, owner = self.heartbeats.last, self._ledger.number, str(self._ledger.owner or "")
        objects = max(0, last.number - number) if last else 0
        complete_to = last.complete_to if last is not None and not objects else 0
        until_us = max(self._ledger.time, complete_to)
        return Replayed(owner, min([until_us, *self._complete_to.values()]), objects)

    # Taking over.

    def promote(self, force: bool) -> Promotion:
        """Blocking. Takes the archive over and closes the files, which have everything. Raises Conflict or Away.

        A store that fails now and then must not end a take-over, so everything is tried again for a while. All attempts
        replace the same owner: one that was faster than us is not replaced.
        """
        epoch = self._ledger.epoch
        deadline = time.monotonic() + limits.PROMOTION_SECONDS_MAX
        self._is_promoting.set()
        try:
            while True:
                try:
                    return self._promote(force, epoch)
                except Away:
                    if self._stopping.wait(limits.PROMOTION_RETRY_SECONDS) or time.monotonic() > deadline:
                        raise
        finally:
            self._is_promoting.clear()

    def _promote(self, force: bool, epoch: int) -> Promotion:
        self.heartbeats.look(self._ledger.epoch)
        skew_us = self.heartbeats.skew_us()
        if not force and (doubt := _doubt_about_clocks(skew_us)):
            raise Doubt(doubt)
        behind_us = max(0, skew_us or 0)
        with self._following:
            # Noted before the claim: if the daemon dies after it, its next start must set the clock back as well.
            self._identity = noted_behind(self._data, self._identity, self._clock, behind_us)
            try:
                before = _claim(self, epoch, force)
            except QueratorError:
                self._identity = noted_behind(self._data, self._identity, self._clock, 0)
                raise
            for one in self.incomplete:
                log.warning("a partition is not complete", extra={"partition": one})
            self._stopping.set()
            self._close()
        complete_to = min([self._ledger.time, *self._complete_to.values()])
        extra = {"from": str(before.owner), "epoch": self._ledger.epoch, "complete_to": times.text(complete_to)}
        log.warning("standby takes over", extra=extra)
        return Promotion(self.owner, before, behind_us, complete_to)


def _next_object(standby: Standby) -> LogObject | None:
    number = standby._ledger.number + len(standby._pending) + 1
    one = next(standby._ahead, None)
    if one is None or one.head.number != number:
        # All of them were read, or reading or taking one has failed.
        beat = standby.heartbeats.last
        last = max(number, beat.number if beat else 0)
        if last == number:
            one = read_log(standby.bucket, number)
        else:
            standby._ahead = read_logs(standby.bucket, number, last)
            one = next(standby._ahead, None)
        if one is None and beat is not None and beat.number >= number:
            check_gap(standby.bucket, number - 1)
    return one


def _open_missing(standby: Standby) -> list[str]:
    """Opens every partition that the archive has and that is not open, from its base if there is no file of it.
    Returns those that it opened. Deletes files that no longer lead to what the archive has."""
    for uuid in set(standby.stores) - standby._placements.keys():
        standby._drop(uuid)
    opened = []
    for uuid, (queue, name) in standby._placements.items():
        line = standby._ledger.lines.get(uuid)
        if line is None or line.base is None:
            continue  # the owner is still copying its file; until then the old file is the best there is
        if standby._lineages.get(uuid, 0) != line.void_at:
            # The owner closed the partition and its file was changed, so later records do not fit our file.
            standby._drop(uuid)
        if uuid in standby.stores and standby.stores[uuid].record_written >= line.base.applied:
            continue
        place_base(standby.bucket, standby.storages[name], line.base)
        store = standby.storages[name].open(uuid, queue)
        if store.record_written < line.base.applied:
            # The log may no longer have the records that lead from our old file to the base.
            standby._drop(uuid)
            place_base(standby.bucket, standby.storages[name], line.base)
            store = standby.storages[name].open(uuid, queue)
        standby.stores[uuid], standby._homes[uuid], standby._lineages[uuid] = (
            store,
            standby.storages[name],
            line.void_at,
        )
        standby.layout += 1
        opened.append(uuid)
    return opened


def _forget_old_keys(standby: Standby) -> None:
    """Deletes expired request ids from files, and detaches files without rows until they are needed again."""
    until_us = standby.replayed().until_us
    now, every = time.monotonic(), limits.FORGET_EVERY_US / limits.US_PER_SECOND
    for uuid, store in tuple(standby.stores.items()):
        if store.is_resting:
            standby._forgot_at.pop(uuid, None)
        elif store.is_blank or now - standby._forgot_at.setdefault(uuid, now) >= every:
            if standby._stopping.is_set() or standby._is_promoting.is_set():
                return
            with standby.files:  # for one file at a time: readers wait
                store.flush()
                # The owner's clock has reached this time, so the owner has forgotten these keys too, or soon will.
                store.forget(until_us)
            standby._forgot_at[uuid] = now


def _save(standby: Standby) -> None:
    """Makes everything durable that was replayed, and notes the last log object."""
    for uuid, store in standby.stores.items():
        store.flush()
        if standby._unmerged.get(uuid, 0) >= limits.STANDBY_MERGE_BYTES:
            # Closing the file would do this too, but a promotion must not wait for it.
            store.checkpoint(force=True)
            del standby._unmerged[uuid]
    standby._identity = msgspec.structs.replace(
        standby._identity,
        url=standby.config.url,
        number=standby._ledger.number,
        sha256=standby._ledger.sha256,
        lineages={uuid: number for uuid, number in standby._lineages.items() if number},
    )
    save_identity(standby._data, standby._identity)
    standby._has_news = False


def _watch_owner(standby: Standby) -> None:
    standby.heartbeats.look(standby._ledger.epoch)
    silence, last = standby.heartbeats.silence(), standby.heartbeats.last
    # The owner may have another configuration than we have.
    patience = max(standby.config.takeover or 0.0, 3 * last.every if last is not None else 0.0)
    if standby.config.takeover is not None and silence > patience:
        log.warning("the owner is silent", extra={"owner": str(standby._ledger.owner), "seconds": round(silence, 1)})
        standby.heartbeats.forget_silence()
        standby._take_over()


def _note_incomplete(standby: Standby) -> None:
    """Notes which partitions could not be taken over whole, because the archive has no base of them."""
    missing = standby._ledger.without_base(standby._placements)
    names = {one.uuid: f"{one.queue}/{one.number}" for one in standby.catalog.placements()} if missing else {}
    found, texts = {}, []
    for uuid in missing:
        line = standby._ledger.lines.get(uuid)
        found[uuid] = (line.complete_to if line else 0) or standby._complete_to.get(uuid, standby._ledger.time)
        # A file that we have ends at that moment. If we have none, the partition is lost with the owner.
        until = f"complete up to {times.text(found[uuid])}" if uuid in standby.stores else "no copy"
        texts.append(f"{names.get(uuid, uuid)} ({until})")
    standby._complete_to, standby.incomplete = found, texts


def _claim(standby: Standby, epoch: int, force: bool) -> Before:
    """Creates the next log object, after all earlier ones were replayed."""
    check_end(standby.bucket, standby._ledger.number + len(standby._pending))
    while True:
        while standby._follow_one():
            pass
        last = standby._pending[-1].head if standby._pending else standby._ledger
        if standby._before and last.owner == standby.owner:
            # An earlier attempt has succeeded, although it looked like a failure. We may have taken it in as well.
            return standby._before._replace(number=standby._ledger.number, sha256=standby._ledger.sha256)
        if last.epoch != epoch:
            raise Conflict(f"{last.owner} was faster: it owns the archive now")
        if standby.incomplete and not force:
            raise Doubt(f"the archive has no copy of all files of its owner: {', '.join(standby.incomplete)}")
        end = _end_of_log(standby._ledger, standby._pending)
        standby._before = Before(standby._ledger.owner, epoch, standby._ledger.number, standby._ledger.sha256)
        if claim(standby.bucket, end, standby.owner, standby._clock.now_us()):
            return standby._before


def _doubt_about_clocks(skew_us: int | None) -> str:
    """Why the clocks of the owner and of this machine may differ too much for a take-over; empty if they do not."""
    if skew_us is None:
        return "the difference between the owner's clock and ours is not known, because no heartbeat was seen"
    if abs(skew_us) > limits.SKEW_SECONDS_MAX * limits.US_PER_SECOND:
        return f"the difference between the owner's clock and ours is {skew_us / 1e6:.1f}s"
    return ""


def _end_of_log(ledger: Ledger, pending: Sequence[LogObject]) -> Ledger:
    """What a claim follows. An owner that died in the middle of a cut leaves an incomplete cut, whose records were
    never acknowledged.
    """
    return Ledger(
        number=ledger.number + len(pending),
        sha256=pending[-1].sha256 if pending else ledger.sha256,
        epoch=ledger.epoch,
        time=ledger.time,
        is_point=not pending,
    )
