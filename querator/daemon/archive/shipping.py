"""The shipper: a thread that owns the archive and copies everything durable to it, as log objects in one sequence.

Requests are not involved: the shipper reads the journal's files, and the journal keeps segments until they are shipped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from querator import limits
from querator.clock import Clock
from querator.config import ArchiveConfig
from querator.daemon import priority
from querator.daemon.archive.bucket import ArchiveError, Away, Bucket
from querator.daemon.archive.care import try_store
from querator.daemon.archive.cutting import Cutter
from querator.daemon.archive.ledger import Ledger, Line, Lost, latest, save_index
from querator.daemon.archive.objects import (
    HEARTBEAT,
    Base,
    DamagedObject,
    Heartbeat,
    log_name,
    opened_log,
    sealed,
)
from querator.daemon.archive.ownership import (
    check_claim,
    check_continues,
    check_log,
    claim,
    found_for_claim,
    noted_bases,
    noted_number,
    owner_of,
    read_identity,
    save_identity,
)
from querator.daemon.archive.packing import Packers
from querator.daemon.catalog import Catalog, placements_in
from querator.daemon.store import Storage
from querator.errors import QueratorError, Replaced

if TYPE_CHECKING:
    from querator.daemon.archive.objects import Owner
    from querator.daemon.archive.ownership import Identity

log = logging.getLogger("querator.archive")


class Before(NamedTuple):
    """The owner and the last log object that were there before our claim."""

    owner: Owner | None
    epoch: int
    number: int
    sha256: str


class Shipper:
    def __init__(
        self,
        config: ArchiveConfig,
        data: Path,
        directories: Sequence[Path],
        clock: Clock,
        failed: Callable[[QueratorError], None],
    ) -> None:
        """`directories` are those of the storages. `failed` is called in the shipper's thread when the archive is lost
        for good: another daemon owns it, or it is damaged."""
        self.config = config
        self.bucket = Bucket(config.url, config.options)
        self.ledger = Ledger()
        self.owner: Owner
        """This daemon. A standby that was promoted sets it, and `before`, as it has claimed the archive already."""
        self.trouble = ""
        """Why the object store cannot be used at present; empty if it works."""
        self.is_damaged = False
        """Whether that is because the archive lacks what was written to it."""
        self._away_since = 0.0
        self.shipped_us = 0
        """Everything that was durable at this time is in the archive; 0 if that is not known."""
        self._data = data
        self._directories = directories
        self._clock = clock
        self._started_us = clock.now_us()
        self._failed = failed
        self._identity: Identity
        self._may_take = self._may_start_over = False
        self._is_blank = False
        """Whether the directory had no catalog when the daemon was started."""
        self.before: Before | None = None
        self._is_heir = False
        """Whether another directory owned the archive before."""
        self._is_stranger = False
        """Whether this directory was not made from what the archive has."""
        self._unchanged: set[str] = set()
        self._cutter: Cutter | None = None
        self._packers = Packers(is_urgent=config.wait)
        self._bases: list[Base] = []
        self._placed: tuple[str, ...] = ()
        """The partitions of the last cut that is wholly in the archive. The ledger knows all of them."""
        self._without_base: list[str] = []
        """The partitions in use that could not be restored after the last cut."""
        self.base_failures: dict[str, str] = {}
        """Why the base of a partition was not taken."""
        self._many_objects: frozenset[str] = frozenset()
        """Partitions that need new bases because the log since their last ones has many objects."""
        self._lock = threading.Lock()
        self._cuts_begun = 0
        self.cuts_done = 0
        """How many cuts are wholly in the archive."""
        self.confirmed: Callable[[], None] = lambda: None
        """Called in the shipper's thread when `cuts_done` has grown."""
        self._must_put = False
        self._wake = threading.Event()
        self._claimed = threading.Event()
        self._has_started = False
        """Whether the daemon went on, so that it must be told if the archive is lost."""
        self._refusal: QueratorError | None = None
        self._stop_at = 0.0
        """While the daemon stops: the time after which nothing is tried again. 0 if it does not stop."""
        self._beat_at = 0.0
        self._check_at = 0.0
        """When to look next whether the archive still has its log."""
        self._beats = 0
        self._indexed = 0
        """The log object of the last index of this daemon, or its claim."""
        self._index_at = 0.0
        """When the next index may be written."""
        self._thread = threading.Thread(target=self._run, name="querator-archive", daemon=True)

    # Starting and stopping.

    def claim(self, address: str, may_take: bool, may_start_over: bool = False) -> None:
        """Blocking. Claims the archive, before anything is opened. Raises Replaced if it belongs to another directory,
        and Conflict if this directory lacks what the archive has.

        If the object store cannot be reached, the thread claims later. With `wait`, nothing is acknowledged until then.
        """
        self._identity = read_identity(self._data)
        if self.before is None:
            self.owner = owner_of(self._identity, address)
            # A standby that was promoted in this run knows which of its files agree with the log.
            self._is_stranger = self._identity.needs_bases
        self._may_take, self._may_start_over = may_take, may_start_over
        self._is_blank = not (self._data / "catalog.duckdb").exists()
        self._unchanged = {uuid for uuid, stat in self._identity.closed.items() if self._stat(uuid) == stat}
        self._thread.start()
        self._claimed.wait(limits.ARCHIVE_CLAIM_SECONDS_MAX)
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            self._has_started = True

    def begin(self, catalog: Catalog, storages: Mapping[str, Storage]) -> None:
        """Starts shipping. Called when the storages are open and nothing was written to them yet."""
        cutter = Cutter(catalog, storages, self._clock)
        cutter.unchanged = self._unchanged
        self._cutter = cutter
        self._wake.set()

    def stop(self) -> None:
        """Blocking. Ships the rest, after everything was closed, if the object store answers in time."""
        self._stop_at = time.monotonic() + limits.ARCHIVE_STOP_SECONDS_MAX / 2
        self._wake.set()
        self._thread.join(limits.ARCHIVE_STOP_SECONDS_MAX)
        if self._refusal is None and self._cutter is not None:
            uuids = self._cutter.placements
            self._identity.closed = {uuid: stat for uuid in uuids if (stat := self._stat(uuid)) is not None}
            save_identity(self._data, self._identity)

    def _stat(self, uuid: str) -> tuple[int, int, int] | None:
        for directory in self._directories:
            try:
                found = (directory / f"{uuid}.duckdb").stat()
            except OSError:
                continue
            return found.st_size, found.st_mtime_ns, found.st_ino
        return None

    # The thread.

    def _run(self) -> None:
        if not self.config.wait:
            priority.lower()  # also the threads that obstore starts, which sign and send objects
        try:
            self._patiently(lambda: _try_store(self))
            self._patiently(lambda: _claim(self))
            self._claimed.set()
            while True:
                is_last, begun = bool(self._stop_at), time.monotonic()
                if self._cutter is not None:
                    self._ship(self._cutter)
                _beat(self, is_last)
                if is_last:
                    return
                self._rest_until(begun + self.config.interval)
        except _Stopped:
            log.warning("what the archive lacks stays in the journal", extra={"reason": self.trouble})
        except (QueratorError, DamagedObject) as error:
            _end(self, error if isinstance(error, QueratorError) else ArchiveError(f"{error}"))
        except Exception as error:
            # Without this thread the daemon would not learn that it was replaced. A restart begins with durable state.
            log.exception("a defect ended the copying to the archive")
            _end(self, ArchiveError(f"a defect ended the copying to the archive: {error!r}"))
        finally:
            self._claimed.set()
            self._packers.close()

    def _rest_until(self, end: float) -> None:
        """Waits until then, or until somebody asks for a cut. Heartbeats go on: they must not depend on `interval`."""
        while not self._wake.wait(max(0.0, min(end, self._beat_at) - time.monotonic())) and time.monotonic() < end:
            _beat(self, at_once=False)
        self._wake.clear()

    def _patiently(self, work: Callable[[], object]) -> None:
        """Repeats work until the object store has taken it."""
        wait = 0.05
        while True:
            try:
                work()
                break
            except Away as error:
                self._note_away(error)
            if self._stop_at and time.monotonic() > self._stop_at:
                raise _Stopped
            time.sleep(wait)
            wait = min(2 * wait, limits.ARCHIVE_RETRY_SECONDS_MAX)
        self._note_back()

    def _note_away(self, error: Away) -> None:
        if self.trouble != str(error):
            log.error("archive cannot be reached", extra={"archive": self.config.url, "reason": str(error)})
        if not self.trouble:
            self._away_since = time.monotonic()
        self.trouble, self.is_damaged = str(error), isinstance(error, Lost)

    def _note_back(self) -> None:
        if self.trouble:
            log.warning("archive can be reached again", extra={"archive": self.config.url})
            self.trouble, self.is_damaged = "", False

    def away_seconds(self) -> float:
        """For how long the object store could not be used; 0 if it works."""
        return time.monotonic() - self._away_since if self.trouble else 0.0

    # Owning.

    def _put(self, number: int, data: bytes) -> None:
        """Creates a log object. Raises Replaced if the number is taken."""
        if self.trouble or time.monotonic() >= self._check_at:
            check_log(self.bucket, self.ledger)
            self._check_at = time.monotonic() + self.config.heartbeat
        self._check_owner(number, self.bucket.create(log_name(number), data))

    def _check_owner(self, number: int, there: bytes | None) -> None:
        """Raises Replaced if another daemon has written the object with our next number."""
        if there is not None:
            head = opened_log(there, number).head
            raise Replaced(
                f"this daemon was replaced by {head.owner} in epoch {head.epoch}: it no longer owns the archive"
                f" {self.config.url}",
                hint=f"querator archive salvage --data {self._data} lists what was not shipped; daemon run --standby"
                " follows the new owner, with a new --data",
            )

    # Shipping.

    def lag_seconds(self) -> float:
        """The time since the moment up to which the archive has everything, or since the start."""
        return max(0, self._clock.now_us() - (self.shipped_us or self._started_us)) / limits.US_PER_SECOND

    def note(self) -> str:
        """How far the archive is, for a person."""
        if not self.shipped_us:
            return f"archive {self.config.url}: nothing is copied yet"
        return (
            f"archive {self.config.url}: epoch {self.ledger.epoch}, object {self.ledger.number},"
            f" {self.lag_seconds():.1f}s behind"
        )

    def lack(self) -> str:
        """How many partitions the archive lacks although they should have been copied by now; empty if it lacks none.
        The text names no queue, because everybody may read it."""
        missing = self._without_base
        reasons = [self.base_failures[uuid] for uuid in missing if uuid in self.base_failures]
        if not missing or not (reasons or self.lag_seconds() > limits.ARCHIVE_BASE_SECONDS_MAX):
            return ""
        text = f"the archive has no copy of {len(missing)} of {len(self._placed)} partitions"
        return f"{text}: {reasons[0]}" if reasons else text

    def ask(self, must_put: bool = False) -> int:
        """Asks for a cut at once. Everything that is durable now is in the archive when `cuts_done` has reached the
        number that this returns. With `must_put`, this also proves that this daemon is still the owner.
        """
        with self._lock:
            wanted = self._cuts_begun + 1
            self._must_put = self._must_put or must_put
        self._wake.set()
        return wanted

    def wanted_bases(self) -> list[str]:
        """The partitions that need a new base, because they have none, or because the log since it is long."""
        cutter, ledger = self._cutter, self.ledger
        if cutter is None or self.trouble:
            return []
        with self._lock:
            under_way = {base.uuid for base in self._bases}
        wanted = []
        for uuid in self._placed:
            line = ledger.lines.get(uuid)
            is_wanted = line is None or line.base is None
            if line is not None and line.replay_from:
                is_wanted |= ledger.log_bytes - line.log_bytes_before > limits.ARCHIVE_BASE_LOG_BYTES
                is_wanted |= uuid in self._many_objects and _has_many_objects(line, ledger)
            if is_wanted and uuid not in under_way:
                wanted.append(uuid)
        return wanted

    def add_base(self, base: Base) -> None:
        """Records a base that was uploaded. It counts once the next log object names it."""
        with self._lock:
            self._bases.append(base)
        self._wake.set()

    def _ship(self, cutter: Cutter) -> None:
        cutter.must_agree, cutter.is_stranger = self._is_heir, self._is_stranger
        with self._lock:
            bases, self._bases = self._bases, []
            must_put, self._must_put = self._must_put, False
            self._cuts_begun += 1
        time_us = self._clock.now_us()
        pieces = cutter.take(self.ledger, bases, must_put)
        for piece in pieces:
            one, data = self._packers.made(cutter, piece, self.ledger, self.owner)
            self._patiently(lambda one=one, data=data: self._put(one.head.number, data))  # type: ignore[misc]
            self.ledger.advance(one)
            if piece.is_last:
                self._end_cut(cutter, time_us)  # first of all, because clients may be waiting for it
            cutter.shipped(piece)
            if _wants_index(self):
                _save_index(self)
            self._is_stranger = False
            _beat(self, at_once=False)  # a cut after an outage may take long
        if not pieces:
            self._end_cut(cutter, time_us)
        self._identity = noted_bases(self._data, self._identity, False)

    def _end_cut(self, cutter: Cutter, time_us: int) -> None:
        """Called when the archive has a whole cut."""
        self._placed = tuple(cutter.placements)
        self._without_base = cutter.without_base(self.ledger)
        _note_shipped(self, time_us)
        if not (self.config.wait and self._without_base):
            self.cuts_done = self._cuts_begun
            self.confirmed()


def _save_index(shipper: Shipper) -> None:
    shipper._patiently(lambda: save_index(shipper.bucket, shipper.ledger))
    shipper._indexed = shipper.ledger.number
    shipper._index_at = time.monotonic() + limits.ARCHIVE_INDEX_SECONDS_MIN
    _find_many_objects(shipper)


def _wants_index(shipper: Shipper) -> bool:
    every = limits.ARCHIVE_INDEX_EVERY
    return shipper.ledger.number // every > shipper._indexed // every and time.monotonic() >= shipper._index_at


def _end(shipper: Shipper, refusal: QueratorError) -> None:
    """Nothing more is copied. Ends the daemon, or its start."""
    shipper.trouble = str(refusal)
    with shipper._lock:
        shipper._refusal = refusal
    if shipper._has_started:
        log.critical("archive is lost", extra={"reason": shipper.trouble})
        shipper._failed(refusal)


def _try_store(shipper: Shipper) -> None:
    if shipper.before is not None:
        return  # the standby has tried the store
    try:
        try_store(shipper.bucket)
    except ArchiveError as error:
        if shipper.config.wait:
            raise
        log.warning("the archive is only a copy: two daemons could own it", extra={"reason": str(error)})
    except Away:
        if shipper.config.wait:
            raise


def _claim(shipper: Shipper) -> None:
    """Called again after a failure. The claim may have arrived nevertheless."""
    ledger, is_shorter = found_for_claim(
        shipper.bucket, shipper._identity, shipper.owner, shipper._may_take, shipper._may_start_over
    )
    shipper._is_stranger |= is_shorter
    while not (shipper.before and ledger.owner == shipper.owner):
        # Another daemon may have claimed the archive in the meantime. Or an attempt of ours succeeded although it
        # looked like a failure: then we are the owner.
        is_first = shipper.before is None or shipper.before.epoch == ledger.epoch
        check_claim(ledger, shipper.owner, shipper._may_take and is_first, shipper.config.url)
        _check_continues(shipper, ledger)
        if is_shorter or (ledger.owner is not None and ledger.owner.data != shipper.owner.data):
            shipper._identity = noted_bases(shipper._data, shipper._identity, True)
        shipper.before = Before(ledger.owner, ledger.epoch, ledger.number, ledger.sha256)
        if claim(shipper.bucket, ledger, shipper.owner, shipper._clock.now_us()):
            break
        ledger = latest(shipper.bucket, ledger)
    assert shipper.before is not None
    before = shipper.before
    shipper.ledger, shipper._indexed = ledger, ledger.number
    shipper._is_heir = before.owner is not None and before.owner.data != shipper.owner.data
    is_here = (shipper._identity.number, shipper._identity.sha256)
    shipper._is_stranger |= shipper._is_heir and is_here != (before.number, before.sha256)
    if shipper._is_stranger:
        log.warning("archive starts over from fresh bases: this directory does not continue it")
    shipper._identity = noted_number(shipper._data, shipper._identity, shipper.config.url, ledger)
    log.info("archive is ours", extra={"archive": shipper.config.url, "epoch": ledger.epoch})


def _check_continues(shipper: Shipper, ledger: Ledger) -> None:
    placed = placements_in(ledger.catalog) if ledger.catalog else {}
    is_heir = ledger.owner is not None and ledger.owner.data != shipper.owner.data
    if placed and not shipper._may_start_over and (is_heir or shipper._is_blank):
        missing = (uuid for uuid in placed if shipper._stat(uuid) is None)
        check_continues(shipper.bucket, ledger, shipper._identity, missing, is_heir)


def _beat(shipper: Shipper, at_once: bool) -> None:
    if not at_once and time.monotonic() < shipper._beat_at:
        return
    shipper._beat_at = time.monotonic() + shipper.config.heartbeat
    shipper._beats += 1
    number = shipper.ledger.number
    try:
        check_log(shipper.bucket, shipper.ledger)
        # A daemon that nobody uses puts nothing else, and would not learn that it was replaced.
        shipper._check_owner(number + 1, shipper.bucket.read(log_name(number + 1)))
        # The time is taken last: what passes before the put ends counts as a difference of the clocks.
        beat = Heartbeat(
            epoch=shipper.ledger.epoch,
            owner=shipper.owner,
            time=shipper._clock.now_us(),
            number=number,
            beats=shipper._beats,
            every=shipper.config.heartbeat,
            complete_to=shipper.shipped_us,
            is_waiting=shipper.config.wait,
        )
        shipper.bucket.replace(HEARTBEAT, sealed(beat, b""))
        if number != shipper._identity.number:
            shipper._identity = noted_number(shipper._data, shipper._identity, shipper.config.url, shipper.ledger)
        shipper._note_back()
    except Away as error:
        shipper._note_away(error)  # nothing else may be put for a long time


def _find_many_objects(shipper: Shipper) -> None:
    """A quiet queue fills few bytes and many log objects, and each costs a reader a request. New bases are taken
    once they are no larger than what the log objects weigh, so that large files are not copied for a few records.
    """
    ledger = shipper.ledger
    found = {uuid: line for uuid, line in ledger.lines.items() if _has_many_objects(line, ledger)}
    objects = ledger.number + 1 - min([line.replay_from for line in found.values()], default=ledger.number + 1)
    stats = [shipper._stat(uuid) for uuid in found]
    is_worth_it = sum(stat[0] for stat in stats if stat) <= objects * limits.ARCHIVE_BASE_BYTES_PER_OBJECT
    shipper._many_objects = frozenset(found) if is_worth_it else frozenset()


def _note_shipped(shipper: Shipper, time_us: int) -> None:
    """A partition without a base would be lost with this machine, so the time stands still until it has one."""
    if shipper._without_base:
        lines = [shipper.ledger.lines.get(uuid) for uuid in shipper._without_base]
        known = [shipper.shipped_us, *(line.complete_to for line in lines if line is not None)]
        time_us = min([one for one in known if one], default=0)
    shipper.shipped_us = time_us


def _has_many_objects(line: Line, ledger: Ledger) -> bool:
    """Whether the records of a partition after its base are in many log objects."""
    return bool(line.replay_from) and ledger.number + 1 - line.replay_from >= limits.ARCHIVE_BASE_LOG_OBJECTS


class _Stopped(Exception):
    """The daemon stops, and the object store does not answer."""
