"""The standby: a thread that follows the log of an archive, and takes the archive over.

The standby reads one log object after the other, and its files take them in. Only the archive decides about the owner:
the standby is the owner once it has created the next log object itself, and it does so only after it has replayed all
earlier ones. The heartbeat of the owner only shows when an attempt is worthwhile.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from querator import limits, times
from querator.clock import Clock
from querator.config import ArchiveConfig, StorageConfig
from querator.daemon.archive.bucket import ArchiveError, Away, Bucket, NothingYet
from querator.daemon.archive.care import try_store
from querator.daemon.archive.heartbeats import Heartbeats
from querator.daemon.archive.ledger import Ledger, Lost, LostTail, check_gap, read_log, read_logs
from querator.daemon.archive.objects import DamagedObject, LogObject, Owner
from querator.daemon.archive.ownership import check_end, check_log, claim, owner_of
from querator.daemon.archive.restoring import point_at
from querator.daemon.archive.shipping import Before
from querator.daemon.archive.standby_files import StandbyFiles
from querator.daemon.store import StorageError
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
        self.files = StandbyFiles(self.bucket, data, storages)
        self.heartbeats = Heartbeats(self.bucket, clock)
        self.owner: Owner = owner_of(self.files.identity, address)
        """This daemon, as it will claim the archive."""
        self.trouble = ""
        """Why the archive cannot be read at present; empty if it works."""
        self.is_damaged = False
        """Whether that is because the archive lacks what was written to it."""
        self.refusal = ""
        """Why the last promotion was refused; empty if none was."""
        self._before: Before | None = None
        """What was there before our last attempt to claim the archive."""
        self._clock = clock
        self._take_over = take_over
        self._pending: list[LogObject] = []
        """The log objects of a cut that is not wholly there yet."""
        self._ahead: Iterator[LogObject] = iter(())
        """The log objects that the owner's last heartbeat knows of and that come after those in `_pending`."""
        self._has_refused_puts = False
        """Whether the store has refused a put when the owner seemed to be silent."""
        self._check_at = 0.0
        """When to look next whether the archive still has its log."""
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
        noted = self.files.number_noted()
        try_store(self.bucket)
        try:
            ledger = point_at(self.bucket, None, noted)
        except NothingYet:
            raise
        except LostTail as error:
            raise Lost(
                f"{error}: mount the archive's disk or bring the objects back; with --claim --start-over instead of"
                " --standby, this directory becomes the last state of the archive"
            ) from None
        except ArchiveError as error:
            if noted is None:
                raise
            hint = "the standby was down for longer than the archive keeps; start it with a new data directory"
            raise Conflict(str(error), hint=hint) from None
        self.files.open(ledger)
        # Clocks are compared from the second heartbeat on, so an owner that stops after this moment was compared.
        with contextlib.suppress(Away):
            self.heartbeats.look(ledger.epoch)
        self._thread.start()

    def stop(self) -> None:
        """Blocking. Closes everything. The next start continues from here."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self.files.close()

    # The thread.

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._following:
                    while not self._must_let_go() and self._follow_one():
                        pass
                    self.files.look_after(self.replayed().until_us, self._must_let_go)
                self._watch_owner()
                self._check_archive()
                self.trouble, self.is_damaged = "", False
            except Away as error:
                self.trouble, self.is_damaged = str(error), isinstance(error, Lost)
            except (DamagedObject, QueratorError, StorageError, OSError) as error:
                if self.trouble != str(error):
                    log.error("standby cannot follow", extra={"reason": str(error)})
                self.trouble, self.is_damaged = str(error), isinstance(error, (DamagedObject, ArchiveError))
            except Exception as error:
                # A thread that ends here would leave a standby that only grows older.
                if self.trouble != repr(error):
                    log.exception("standby cannot follow")
                self.trouble = repr(error)
            self._rest()

    def _must_let_go(self) -> bool:
        return self._stopping.is_set() or self._is_promoting.is_set()

    def _rest(self) -> None:
        """Waits for one interval, and looks for heartbeats meanwhile: how often must not depend on the interval."""
        end = time.monotonic() + self.config.interval
        with contextlib.suppress(Exception):  # the next turn meets it too, and notes it
            while not (
                self._stopping.wait(min(self.config.interval, self.heartbeats.pause())) or time.monotonic() >= end
            ):
                self._watch_owner()

    def _follow_one(self) -> bool:
        """Reads the next log object. False if there is none yet."""
        self.files.mend()
        one = self._next_object()
        if one is None:
            return False
        self._pending.append(one)
        if one.head.is_point:
            pending, self._pending = self._pending, []
            self.files.take(pending)
        return True

    def _next_object(self) -> LogObject | None:
        number = self.files.ledger.number + len(self._pending) + 1
        one = next(self._ahead, None)
        if one is None or one.head.number != number:
            # All of them were read, or reading or taking one has failed.
            beat = self.heartbeats.last
            last = max(number, beat.number if beat else 0)
            if last == number:
                one = read_log(self.bucket, number)
            else:
                self._ahead = read_logs(self.bucket, number, last)
                one = next(self._ahead, None)
            if one is None and beat is not None and beat.number >= number:
                check_gap(self.bucket, number - 1)
        return one

    # The owner.

    def _watch_owner(self) -> None:
        self.heartbeats.look(self.files.ledger.epoch)
        silence, last = self.heartbeats.silence(), self.heartbeats.last
        # The owner may have another configuration than we have.
        patience = max(self.config.takeover or 0.0, 3 * last.every if last is not None else 0.0)
        if self.config.takeover is not None and silence > patience and self._store_takes_puts():
            owner = str(self.files.ledger.owner)
            log.warning("the owner is silent", extra={"owner": owner, "seconds": round(silence, 1)})
            self.heartbeats.forget_silence()
            self._take_over()

    def _store_takes_puts(self) -> bool:
        """A store that can be read and refuses puts makes any owner silent. After that, the owner is given all of its
        time again. Raises Away."""
        try:
            try_store(self.bucket)
        except Away:
            self._has_refused_puts = True
            raise
        if self._has_refused_puts:
            self.heartbeats.forget_silence()
        refused, self._has_refused_puts = self._has_refused_puts, False
        return not refused

    def _check_archive(self) -> None:
        """Raises Away if the archive has lost what we have read from it: then it has no news, but nothing is well."""
        if self.trouble or time.monotonic() >= self._check_at:
            check_log(self.bucket, self.files.ledger)
            self._check_at = time.monotonic() + self.config.heartbeat

    def replayed(self) -> Replayed:
        last, ledger = self.heartbeats.last, self.files.ledger
        objects = max(0, last.number - ledger.number) if last else 0
        complete_to = last.complete_to if last is not None and not objects else 0
        until_us = max(ledger.time, complete_to)
        return Replayed(str(ledger.owner or ""), min([until_us, *self.files.complete_to.values()]), objects)

    # Taking over.

    def promote(self, force: bool) -> Promotion:
        """Blocking. Takes the archive over and closes the files, which have everything. Raises Conflict or Away.

        A store that fails now and then must not end a take-over, so everything is tried again for a while. All attempts
        replace the same owner: one that was faster than us is not replaced.
        """
        epoch = self.files.ledger.epoch
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
        self.heartbeats.look(self.files.ledger.epoch)
        skew_us = self.heartbeats.skew_us()
        if not force and (doubt := _doubt_about_clocks(skew_us)):
            raise Doubt(doubt)
        behind_us = max(0, skew_us or 0)
        with self._following:
            # Noted before the claim: if the daemon dies after it, its next start must set the clock back as well.
            self.files.note_behind(self._clock, behind_us)
            try:
                before = self._claim(epoch, force)
            except (QueratorError, StorageError):
                self.files.note_behind(self._clock, 0)
                raise
            for one in self.files.incomplete:
                log.warning("a partition is not complete", extra={"partition": one})
            self._stopping.set()
            self.files.close()
        complete_to = min([self.files.ledger.time, *self.files.complete_to.values()])
        extra = {"from": str(before.owner), "epoch": self.files.ledger.epoch, "complete_to": times.text(complete_to)}
        log.warning("standby takes over", extra=extra)
        return Promotion(self.owner, before, behind_us, complete_to)

    def _claim(self, epoch: int, force: bool) -> Before:
        """Creates the next log object, after all earlier ones were replayed."""
        while True:
            try:
                check_end(self.bucket, self.files.ledger.number + len(self._pending))
                while self._follow_one():
                    pass
            except LostTail as error:
                if not force:
                    raise Doubt(f"{error}: mount the archive's disk or bring the objects back") from None
                log.warning("the archive has lost its newest objects", extra={"reason": str(error)})
            last = self._pending[-1].head if self._pending else self.files.ledger
            if self._before and last.owner == self.owner:
                # An earlier attempt has succeeded, although it looked like a failure. We may have taken it in as well.
                return self._before._replace(number=self.files.ledger.number, sha256=self.files.ledger.sha256)
            if last.epoch != epoch:
                raise Conflict(f"{last.owner} was faster: it owns the archive now")
            if self.files.incomplete and not force:
                raise Doubt(f"the archive has no copy of all files of its owner: {', '.join(self.files.incomplete)}")
            end = _end_of_log(self.files.ledger, self._pending)
            self._before = Before(self.files.ledger.owner, epoch, self.files.ledger.number, self.files.ledger.sha256)
            self.files.note_claim(needs_bases=bool(self._pending))
            if claim(self.bucket, end, self.owner, self._clock.now_us()):
                return self._before


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
