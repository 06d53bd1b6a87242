"""Lists, verifies and prunes an archive."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple
from uuid import uuid4

from querator import limits
from querator.daemon.archive.bucket import ArchiveError, Away, Bucket, Gap
from querator.daemon.archive.ledger import (
    Index,
    Ledger,
    check_tail,
    first_number,
    heartbeat,
    indexes,
    latest,
    log_entries,
    read_logs,
)
from querator.daemon.archive.objects import DamagedObject, Owner, log_name, log_number
from querator.daemon.archive.restoring import records_in
from querator.daemon.catalog import placements_in


class Status(NamedTuple):
    owner: Owner | None
    epoch: int
    number: int
    claimed_at: int
    last_point: int
    """When the last log object was cut."""
    oldest_point: int
    """The first moment to which everything can be restored; 0 if there is none."""
    last_heartbeat: int
    objects: int
    size: int
    partitions: int
    without_base: int
    last_base: int


def status(bucket: Bucket) -> Status:
    """Blocking. Lists everything, which takes a while for a large archive."""
    entries = list(bucket.entries(""))
    ledger = latest(bucket)
    beat = heartbeat(bucket)
    placed = placements_in(ledger.catalog) if ledger.catalog else {}
    return Status(
        owner=ledger.owner,
        epoch=ledger.epoch,
        number=ledger.number,
        claimed_at=ledger.claimed_at,
        last_point=ledger.time,
        oldest_point=_oldest_point(bucket),
        last_heartbeat=beat.time if beat and beat.epoch == ledger.epoch else 0,
        objects=len(entries),
        size=sum(entry.size for entry in entries),
        partitions=len(placed),
        without_base=len(ledger.without_base(placed)),
        last_base=max([entry.modified_us for entry in entries if entry.name.startswith("base/")], default=0),
    )


def _oldest_point(bucket: Bucket) -> int:
    before = Ledger() if first_number(bucket) == 1 else None
    for index in indexes(bucket):
        ledger = index.read(bucket)
        if ledger is not None and _is_whole(ledger):
            return (_first_whole(bucket, before, ledger.number) if before is not None else 0) or ledger.time
        before = ledger if ledger is not None else before
    return _first_whole(bucket, before, None) if before is not None else 0


def _first_whole(bucket: Bucket, ledger: Ledger, last: int | None) -> int:
    for one in read_logs(bucket, ledger.number + 1, last):
        ledger.advance(one)
        if _is_whole(ledger):
            return ledger.time
    return 0


def _is_whole(ledger: Ledger) -> bool:
    """Whether a restore to this point has everything."""
    return ledger.is_point and bool(ledger.catalog) and not ledger.without_base(placements_in(ledger.catalog))


class Point(NamedTuple):
    """A log object after which a restore may begin to read."""

    number: int
    time: int
    epoch: int
    owner: str
    queues: int
    partitions: int
    base_bytes: int
    log_bytes: int
    """What a restore to this point reads besides the bases."""


def points(bucket: Bucket) -> Iterator[Point]:
    """Blocking. The points that have an index, and the last one. Raises what is wrong with the archive after them."""
    end = Ledger()
    for index in indexes(bucket):
        ledger = index.read(bucket)
        if ledger is not None:
            end = ledger
            if ledger.catalog:
                yield _point(ledger)
    number = end.number
    trouble: Exception | None = None
    try:
        latest(bucket, end)
    except (ArchiveError, DamagedObject, Gap) as error:
        trouble = error
    if end.number > number and end.catalog:
        yield _point(end)
    if trouble is not None:
        raise trouble


def _point(ledger: Ledger) -> Point:
    placed = placements_in(ledger.catalog)
    lines = [ledger.lines[uuid] for uuid in placed if uuid in ledger.lines]
    starts = [line.log_bytes_before for line in lines if line.replay_from]
    return Point(
        number=ledger.number,
        time=ledger.time,
        epoch=ledger.epoch,
        owner=str(ledger.owner or ""),
        queues=len({queue for queue, _ in placed.values()}),
        partitions=len(placed),
        base_bytes=sum(line.base.size for line in lines if line.base),
        log_bytes=ledger.log_bytes - min(starts) if starts else 0,
    )


class Verified(NamedTuple):
    log_objects: int
    bases: int
    bytes: int


def verify(bucket: Bucket, progress: Callable[[int, int], None] = lambda done, total: None) -> Verified:
    """Blocking. Reads everything. Raises DamagedObject or ArchiveError, naming the first object that is wrong."""
    sizes = {entry.name: entry.size for entry in bucket.entries("")}
    total, done = sum(sizes.values()), 0
    first = first_number(bucket)
    if not first:
        # Probably the URL is wrong. Nothing must not count as sound.
        raise ArchiveError(f"there is nothing in the archive {bucket.url}")
    found = [ledger for index in indexes(bucket) if (ledger := index.read(bucket)) is not None]
    if first > 1 and not found:
        # Pruning leaves an index. Perhaps the disk of the archive is not mounted.
        raise DamagedObject(f"everything before {log_name(first)} is missing, so nothing can be restored")
    # A point before the first index that was left by pruning cannot be restored. Its bases may be gone.
    oldest_point = found[0].number if first > 1 and found else 0
    bases = {line.base.name: line.base for one in found for line in one.lines.values() if line.base and line.base.name}
    ledger = Ledger(number=first - 1)
    number = first
    for one in read_logs(bucket, first):
        ledger.advance(one)
        records_in(one)
        if one.catalog:
            placements_in(one.catalog)
        bases |= {base.name: base for base in one.head.bases if base.name and number > oldest_point}
        done += one.size
        progress(done, total)
        number += 1
    if any((log_number(name) or 0) > number for name in sizes):
        raise DamagedObject(f"{log_name(number)} is missing")
    check_tail(bucket, number - 1)
    for base in bases.values():
        if base.name not in sizes and base.uuid not in ledger.lines:
            continue  # pruned: no point that is left needs it
        digest = hashlib.sha256()
        for piece in bucket.pieces(base.name):
            digest.update(piece)
            done += len(piece)
            progress(done, total)
        if digest.hexdigest() != base.sha256:
            raise DamagedObject(f"{base.name} is damaged: its hash is wrong")
    return Verified(number - first, len(bases), done)


class Pruned(NamedTuple):
    objects: int
    size: int
    oldest_point: int


def prune(bucket: Bucket, before_us: int, dry_run: bool = False) -> Pruned:
    """Blocking. Deletes the objects that no point after a moment needs, and files that crashed writers have left.

    The oldest point that stays is an index at or before that moment. Indexes are deleted first, so that no reader
    begins at one whose log objects are gone, and bases last, so that no log object that is left names one that is gone.
    Claims stay for ever: a daemon that was replaced while it was suspended must find its next number taken, even if
    that was long ago.

    Raises DamagedObject if a log object is missing: what its restore still needs must not go too.
    """
    _check_numbers(bucket)
    unfinished = bucket.delete_unfinished(dry_run)
    found = indexes(bucket)
    oldest, ledger = _oldest_kept(bucket, found, before_us)
    if oldest is None or ledger is None:
        return Pruned(len(unfinished), sum(unfinished), found[0].time if found else 0)
    doomed = []
    # The last log object stays in any case: it shows that the log goes on after the gap that pruning makes.
    needed, claims = min(ledger.oldest_needed(), ledger.number), set(ledger.claims)
    for entry in bucket.entries(""):
        kind, _, rest = entry.name.partition("/")
        number = log_number(entry.name)
        is_index = kind == "index" and Index.is_name(entry.name) and Index(entry.name).number < oldest.number
        is_log = number is not None and number < needed and number not in claims
        if is_index or is_log or (kind == "base" and not _is_needed(rest, ledger)):
            doomed.append(entry)
    if not dry_run:
        for kind in ("index/", "log/", "base/"):
            bucket.delete([entry.name for entry in doomed if entry.name.startswith(kind)])
    sizes = [*unfinished, *(entry.size for entry in doomed)]
    return Pruned(len(sizes), sum(sizes), oldest.time)


def _check_numbers(bucket: Bucket) -> None:
    expected = first_number(bucket)
    for number, _ in log_entries(bucket, expected - 1 if expected else 0):
        # A list may lag, so the object itself is asked for.
        if expected and number != expected and not bucket.has(log_name(expected)):
            raise DamagedObject(f"{log_name(expected)} is missing")
        expected = number + 1


def _oldest_kept(bucket: Bucket, found: list[Index], before_us: int) -> tuple[Index | None, Ledger | None]:
    for index in reversed(found):
        if index.time <= before_us:
            ledger = index.read(bucket)
            # A partition without a base could not be restored if earlier log objects were deleted.
            if ledger is not None and _is_whole(ledger):
                return index, ledger
    return None, None


def _is_needed(name: str, ledger: Ledger) -> bool:
    """Whether a base may be needed by the point of a ledger, or by a later one."""
    uuid, _, rest = name.partition("/")
    written = rest.split("-")
    if len(written) < 2 or not written[1].isdecimal():
        return True  # an object of others
    since = int(written[1])
    line = ledger.lines.get(uuid)
    if line is None:
        # The partition no longer exists, or its first base was still being copied.
        return since > ledger.number - limits.ARCHIVE_INDEX_EVERY
    return since >= (line.base.since if line.base else line.void_at)


def try_store(bucket: Bucket) -> None:
    """Blocking. Checks that the store can be reached, allows what an archive needs, and refuses to create an object
    twice.

    Raises ArchiveError if it creates one twice, because two daemons could then own the archive. Raises Away.
    """
    name = f"probe/{uuid4()}"
    try:
        _try_creating(bucket, name)
    except (ArchiveError, Away):
        with contextlib.suppress(Away):  # what was refused first says more
            bucket.delete([name])
        raise
    bucket.delete([name])


def _try_creating(bucket: Bucket, name: str) -> None:
    if bucket.create(name, b"first") is not None:
        raise ArchiveError(f"{bucket.url} refuses to create an object that does not exist")
    if bucket.create(name, b"second") != b"first" or bucket.read(name) != b"first":
        raise ArchiveError(
            f"{bucket.url} overwrites objects that must only be created: it ignores conditional puts",
            hint="two daemons could own this archive; use another object store, or switch conditional puts on",
        )
