"""The ledger: what an archive has after a log object. Every reader and the writer advance it in the same way.

A partition has a line: its base, its last record, and the first log object with a record after the base. They tell a
restore what to read. A partition whose line has no base cannot be restored yet, because its base is still being copied.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from querator import limits, times
from querator.daemon.archive.bucket import ArchiveError, Away, Bucket, Gap, StoredObject
from querator.daemon.archive.objects import (
    CLAIM,
    HEARTBEAT,
    Base,
    DamagedObject,
    Heartbeat,
    LogObject,
    Owner,
    index_name,
    log_name,
    log_number,
    opened,
    opened_log,
    sealed,
)
from querator.daemon.store import Position


class LostTail(ArchiveError):
    """The newest log objects are missing: the owner had written them, and no later one shows it."""


class Lost(Away):
    """The archive lacks what was written to it. It counts as away until somebody brings the objects back."""


class Line(msgspec.Struct):
    last: int = 0
    """The last record that the archive has."""
    base: Base | None = None
    replay_from: int = 0
    """The first log object with a record after the base; 0 if there is none."""
    log_bytes_before: int = 0
    """How many bytes of log objects there were before that one."""
    void_at: int = 0
    """The log object that said that earlier bases no longer count."""
    is_closed: bool = False
    """Whether the partition was closed, so that its file may have changed without a record since."""
    complete_to: int = 0
    """Without a base: the archive has everything of the partition up to this time; 0 if that is not known."""


class Ledger(msgspec.Struct, kw_only=True):
    number: int = 0
    """The last log object; 0 if there is none."""
    sha256: str = ""
    epoch: int = 0
    owner: Owner | None = None
    claimed_at: int = 0
    time: int = 0
    point_time: int = 0
    """When the last whole cut was made."""
    is_point: bool = True
    log_bytes: int = 0
    """Of all log objects so far."""
    lines: dict[str, Line] = {}
    positions: dict[str, tuple[int, int]] = {}
    """How far the journal of each storage of the owner was copied."""
    catalog: bytes = b""
    """The last catalog that was in a log object."""
    claims: list[int] = []
    """The log objects with which an owner has claimed the archive."""

    def position(self, storage: str) -> Position | None:
        found = self.positions.get(storage)
        return Position(*found) if found else None

    def advance(self, one: LogObject) -> None:
        """Adds the next log object. Raises DamagedObject if it does not follow the last one."""
        head = one.head
        if head.number != self.number + 1 or (self.sha256 and head.previous != self.sha256):
            raise DamagedObject(f"{log_name(head.number)} does not follow {log_name(self.number)}")
        if head.kind == CLAIM:
            if self.owner is None or self.owner.data != head.owner.data:
                self.positions = {}
            self.epoch, self.owner, self.claimed_at = head.epoch, head.owner, head.time
            self.claims.append(head.number)
        for part in head.journal:
            self.positions[part.storage] = (part.segment, part.begin + part.size)
        for uuid, number in head.records.items():
            line = self.lines.setdefault(uuid, Line())
            line.last = max(line.last, number)
            line.is_closed = False
            if line.base and number > line.base.applied and not line.replay_from:
                line.replay_from, line.log_bytes_before = head.number, self.log_bytes
        for uuid in head.closed:
            self.lines.setdefault(uuid, Line()).is_closed = True
        for uuid in head.void:
            # A base that is taken from now on has everything up to here.
            old = self.lines.get(uuid, Line())
            complete_to = self.point_time if old.base is not None else old.complete_to
            self.lines[uuid] = Line(void_at=head.number, complete_to=complete_to)
        for base in head.bases:
            line = self.lines.setdefault(base.uuid, Line())
            if base.since <= line.void_at:
                continue  # it was taken before the partition was closed
            line.base = base
            line.replay_from = base.since if line.last > base.applied else 0
            line.log_bytes_before = self.log_bytes
            line.last = max(line.last, base.applied)
        for uuid in head.gone:
            self.lines.pop(uuid, None)
        self.number, self.sha256, self.time, self.is_point = head.number, one.sha256, head.time, head.is_point
        self.point_time = head.time if head.is_point else self.point_time
        self.log_bytes += one.size
        self.catalog = one.catalog or self.catalog

    def without_base(self, uuids: Iterable[str]) -> list[str]:
        """Which of these partitions cannot be restored yet."""
        return [uuid for uuid in uuids if uuid not in self.lines or self.lines[uuid].base is None]

    def oldest_needed(self) -> int:
        """The first log object that a restore to this point reads."""
        starts = [line.replay_from for line in self.lines.values() if line.replay_from]
        return min([*starts, self.number + 1])


def save_index(bucket: Bucket, ledger: Ledger) -> None:
    """Blocking. Saves the ledger as an index. An index that exists already has the same contents."""
    bucket.create(index_name(ledger.number, ledger.time), sealed(None, msgspec.msgpack.encode(ledger)))


class Index:
    """An index by its name: which log object it follows, and when that was."""

    def __init__(self, name: str) -> None:
        self.name = name
        number, _, time = name.removeprefix("index/").partition("-")
        self.number, self.time = int(number), int(time)

    @staticmethod
    def is_name(name: str) -> bool:
        number, _, time = name.removeprefix("index/").partition("-")
        return number.isdecimal() and time.isdecimal()

    def read(self, bucket: Bucket) -> Ledger | None:
        """Blocking. None if it was pruned meanwhile. Raises DamagedObject."""
        data = bucket.read(self.name)
        return msgspec.msgpack.decode(opened(data, None, self.name)[1], type=Ledger) if data is not None else None


def indexes(bucket: Bucket) -> list[Index]:
    return [Index(entry.name) for entry in bucket.entries("index/") if Index.is_name(entry.name)]


def log_entries(bucket: Bucket, after: int = 0) -> Iterator[tuple[int, StoredObject]]:
    """The log objects with larger numbers that a list shows. Objects of others are passed over."""
    for entry in bucket.entries("log/", after=log_name(after)):
        number = log_number(entry.name)
        if number is not None:
            yield number, entry


def first_number(bucket: Bucket) -> int:
    """The log object from which on all are there; 0 if there is none. Claims before it are there too."""
    found = indexes(bucket)
    oldest = found[0].read(bucket) if found else None
    claims = set(oldest.claims) if oldest is not None else set()
    start, last = 0, -1
    for number, _ in log_entries(bucket):
        start, last = start if number == last + 1 else number, number
        if number not in claims:
            break
    return start


def read_log(bucket: Bucket, number: int) -> LogObject | None:
    """Blocking. None if there is no such object. Raises DamagedObject."""
    data = bucket.read(log_name(number))
    return opened_log(data, number) if data is not None else None


def read_logs(bucket: Bucket, first: int, last: int | None = None) -> Iterator[LogObject]:
    """Blocking. The log objects from a number on, in order, up to `last` or to the first one that is not there.

    An object store takes milliseconds for each object, so several are read at the same time: as many as possible up to
    `last`, and few at first if the end is not known. Only the beginning of a large object is read ahead, so that memory
    stays bounded. Raises DamagedObject.
    """
    ahead: deque[Future[tuple[bytes, int] | None]] = deque()
    width = 1 if last is None else limits.ARCHIVE_READS_AHEAD_MAX
    following = first
    with ThreadPoolExecutor(limits.ARCHIVE_READS_AHEAD_MAX, "querator-archive-read") as pool:
        try:
            for number in itertools.count(first):
                while len(ahead) < width and (last is None or following <= last):
                    ahead.append(pool.submit(bucket.read_start, log_name(following), limits.ARCHIVE_READ_AHEAD_BYTES))
                    following += 1
                found = ahead.popleft().result() if ahead else None
                if found is None:
                    return
                data, size = found
                if len(data) < size:
                    data += bucket.read_rest(log_name(number), len(data), size)
                yield opened_log(data, number)
                width = min(2 * width, limits.ARCHIVE_READS_AHEAD_MAX)
        finally:
            for future in ahead:
                future.cancel()


def needed_logs(bucket: Bucket, first: int, last: int) -> Iterator[LogObject]:
    """Blocking. The log objects from `first` to `last`. Raises ArchiveError if one is missing, and DamagedObject."""
    number = first
    for one in read_logs(bucket, first, last):
        yield one
        number = one.head.number + 1
    if number <= last:
        raise _missing(bucket, number, read_log(bucket, number - 1))


def _missing(bucket: Bucket, number: int, before: LogObject | None) -> ArchiveError:
    return ArchiveError(f"{log_name(number)} is missing from the archive {bucket.url}", hint=_ways_back(before))


def _ways_back(before: LogObject | None) -> str:
    """What to do about a log object that is missing after this one."""
    if before is None:
        return "querator archive list shows the times that can be restored"
    time = times.text(before.head.time)
    return f"bring it back, or restore what was there before it: querator archive restore --at {time}"


def heartbeat(bucket: Bucket) -> Heartbeat | None:
    """Blocking. The last heartbeat; None if there is none that can be read."""
    data = bucket.read(HEARTBEAT)
    try:
        return opened(data, Heartbeat, HEARTBEAT)[0] if data is not None else None
    except DamagedObject:
        return None


def check_tail(bucket: Bucket, number: int, noted: int = 0) -> None:
    """Blocking. Called with the last log object that could be read. Raises LostTail if a heartbeat, or the `noted`
    number of a data directory, says that there were later ones.

    An owner puts an object before the heartbeat that names it, so the object is asked for after the heartbeat. Only the
    heartbeat of an earlier epoch may name more than there is: a daemon with `--start-over` has claimed a shorter log.
    """
    beat = heartbeat(bucket)
    if max(noted, beat.number if beat else 0) <= number or bucket.has(log_name(number + 1)):
        return
    before = read_log(bucket, number) if number else None
    if beat is not None and (before is None or beat.epoch >= before.head.epoch):
        noted = max(noted, beat.number)
    if noted > number:
        raise LostTail(
            f"{log_name(number + 1)} is missing from the archive {bucket.url}, whose owner had written up to"
            f" {log_name(noted)}",
            hint=_ways_back(before),
        )


def check_gap(bucket: Bucket, number: int, noted: int = 0) -> bool:
    """Blocking. Called with the last log object that could be read. Raises ArchiveError if the next one is lost: it is
    missing, and there are later ones, or LostTail if there were later ones, as in `check_tail`. Raises Gap if it may
    have been pruned. Returns whether there are later ones.

    A list may lag, so the missing object itself is asked for. Pruning deletes from the start of the log and leaves only
    claims, so a number after another kind of object, or after an index, was not pruned.
    """
    found = indexes(bucket)
    is_later = any(index.number > number for index in found) or any(log_entries(bucket, after=number + 1))
    if not is_later:
        check_tail(bucket, number, noted)
        return False
    if bucket.has(log_name(number + 1)):
        return True
    before = read_log(bucket, number) if number else None
    is_kept = before is not None and (
        before.head.kind != CLAIM or any(index.number <= number and bucket.has(index.name) for index in found)
    )
    # The first log object is a claim, and claims are not pruned.
    if is_kept or not number:
        raise _missing(bucket, number + 1, before)
    raise Gap(f"{log_name(number + 1)} was deleted, and the log goes on after it")


def latest(bucket: Bucket, known: Ledger | None = None) -> Ledger:
    """Blocking. The ledger after the last log object. `known` is an earlier ledger to start from. Raises ArchiveError
    or Gap if a log object is missing. Then `known` has everything before it.
    """
    ledger = last_readable(bucket, known)
    check_gap(bucket, ledger.number)
    return ledger


def last_readable(bucket: Bucket, known: Ledger | None = None) -> Ledger:
    """Blocking. The ledger after the last log object before the first number that cannot be read. A list may lag, so
    it only says where to begin."""
    ledger = known
    if ledger is None:
        for index in reversed(indexes(bucket)):
            ledger = index.read(bucket)
            if ledger is not None:
                break
    ledger = ledger or Ledger()
    for one in read_logs(bucket, ledger.number + 1):
        ledger.advance(one)
    return ledger
