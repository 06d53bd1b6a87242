"""Which segments a journal has and which partitions still need them. Trims the segments that nobody needs.

A segment is trimmed, oldest first, once every partition has applied its records in that segment. If a partition does
not apply its records for a long time, they are copied to a file of its own (`Kept`), so that the journal can still
shrink.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from itertools import dropwhile
from pathlib import Path

from querator import limits
from querator.daemon.store.files import sync_directory
from querator.daemon.store.journal.head import Head
from querator.daemon.store.journal.history import History
from querator.daemon.store.journal.kept import Kept
from querator.daemon.store.journal.records import CLOSED, Record, magic_of, read_records
from querator.daemon.store.journal.spares import Spares
from querator.daemon.store.journal.trimmed import Skip, Trimmed
from querator.items import Room

_log = logging.getLogger(__name__)


def segment_path(directory: Path, number: int) -> Path:
    """Segments are named by their numbers, which rise."""
    return directory / f"{number:012d}.seg"


class Segment:
    """One file of the journal."""

    def __init__(self, number: int, path: Path, size: int) -> None:
        self.number = number
        self.magic = magic_of(number)
        self.path = path
        self.bytes = size
        self.room_for_records = 0
        """Up to this byte, an append and its tail fit into the file."""
        self.needs: dict[bytes, int] = {}
        """The last record that each partition still needs of this segment."""
        self.unneeded: dict[bytes, int] = {}
        """The last record of this segment that each partition needed once, and needs no longer."""


class Books:
    def __init__(self, directory: Path, head: Head, spares: Spares) -> None:
        self._directory = directory
        self._head = head
        self._spares = spares
        self.lock = threading.Lock()
        """Guards `segments`, `active` and the needs of segments. Never held during input or output."""
        self._trimming = threading.Lock()
        self.segments: list[Segment] = []
        self.active: Segment | None = None
        """The segment to which records are appended, if there is one."""
        self.last_number = 0
        """The number of the newest segment so far."""
        self._held_from: int | None = None
        """Segments from this number on are held for the archive; None if nothing is held."""
        self._expected = 0
        """How many closed segments are expected to wait."""
        self._kept = Kept(directory)
        self._trimmed = Trimmed(directory / "TRIMMED", directory.with_name(directory.name + ".trimmed"))

    def recover(self, has_trimmed: bool) -> History:
        """Starts over, and returns a history with the records that were copied out of their segments. `has_trimmed`
        says that segments have been trimmed.
        """
        self.segments = []
        is_known = self._trimmed.recover()
        history = self.no_history()
        if has_trimmed and not is_known:
            # Before all records: a partition whose first record here follows its last applied one lacks nothing.
            history.wound("TRIMMED and its copy are missing or damaged", None)
        self._kept.recover(history)
        return history

    def seal(self, has_trimmed: bool) -> None:
        """Writes TRIMMED or its copy again if one of them was lost."""
        if has_trimmed and not self._trimmed.is_whole:
            self._trimmed.write()

    def note(self, segment: Segment, record: Record) -> None:
        """Notes a record that was found in a segment."""
        if record.kind == CLOSED:
            self._drop_needs(record.partition)
        else:
            segment.needs[record.partition] = record.number

    def history(self) -> History:
        """Reads every durable record again, while the journal is in use."""
        with self._trimming:
            with self.lock:
                segments = [(segment.number, segment.path, segment.bytes) for segment in self.segments]
            history = self.no_history()
            self._kept.read(history)
            for number, path, end in segments:
                for found in read_records(path.read_bytes(), number, end).found:
                    history.add(path, found)
            return history

    def no_history(self) -> History:
        """The history of a partition that needs no record of the journal."""
        return History(self._trimmed.numbers, self._trimmed.skips)

    def is_needed_by(self, partition: bytes) -> bool:
        with self.lock:
            return partition in self._kept.numbers or any(partition in segment.needs for segment in self.segments)

    def known_partitions(self) -> set[bytes]:
        """The partitions that have, or had, a record in the journal."""
        with self.lock:
            there = [numbers for segment in self.segments for numbers in (segment.needs, segment.unneeded)]
            return set(self._kept.numbers).union(self._trimmed.numbers, *there)

    def applied(self, partition: bytes, number: int) -> None:
        """Called when the partition's file contains every record up to this one. Trims segments that are no longer
        needed.
        """
        with self.lock:
            self._drop_needs_through(partition, number)
            skip = self._trimmed.skips.get(partition)
            if skip is not None and skip.applied < number:
                del self._trimmed.skips[partition]
        if partition in self._kept.numbers:
            with self._trimming:
                # Read again under the lock: trimming may have kept more of the partition's records since.
                if self._kept.numbers.get(partition, number + 1) <= number:
                    self._kept.drop(partition)
        self.trim()

    def skip(self, partition: bytes, skip: Skip) -> bool:
        """Called when the partition's file need not contain these records, because they change nothing. False if the
        file must have them all the same. `trim` must follow at some time; it makes the skip durable before it trims.
        """
        with self.lock:
            if partition in self._kept.numbers:
                return False  # its records would be dropped before the skip is durable
            self._trimmed.skips[partition] = skip
            self._drop_needs_through(partition, skip.through)
        return True

    def _drop_needs_through(self, partition: bytes, number: int) -> None:
        for segment in self.segments:
            if segment.needs.get(partition, number + 1) <= number:
                segment.unneeded[partition] = segment.needs.pop(partition)

    def release(self, partition: bytes) -> None:
        """Called when the partition needs no record of the journal any more. Trims segments that nobody needs."""
        # Under the trim lock, because trimming may be about to keep records that the partition needed a moment ago.
        with self._trimming:
            with self.lock:
                self._drop_needs(partition)
            if partition in self._kept.numbers:
                self._kept.drop(partition)
        self.trim()

    def _drop_needs(self, partition: bytes) -> None:
        for segment in self.segments:
            segment.needs.pop(partition, None)
            segment.unneeded.pop(partition, None)
        self._trimmed.forget(partition)

    def lagging(self, expected: int = 0) -> set[bytes]:
        """The partitions that keep closed segments from being trimmed, if there are too many closed segments besides
        the `expected` ones."""
        self._expected = expected
        with self.lock:
            closed = [segment for segment in self._needed() if segment is not self.active]
            too_many = max(0, len(closed) - limits.SEGMENTS_WAITING_MAX - expected)
            return set().union(*[segment.needs for segment in closed[:too_many]])

    def holding(self) -> set[bytes]:
        """The partitions that keep closed segments from being trimmed, however few these are."""
        with self.lock:
            return set().union(*[segment.needs for segment in self._needed() if segment is not self.active])

    def hold_from(self, number: int | None) -> None:
        """Holds segments from this number on, until the archive has copied them. None holds nothing."""
        with self.lock:
            self._held_from = number
        self.trim()

    def _is_held(self, segment: Segment) -> bool:
        """Whether the archive still needs this segment. An archive that is too far behind loses its hold."""
        if self._held_from is None or segment.number < self._held_from:
            return False
        room = self._room()
        held = len([one for one in self.segments if one.number >= self._held_from])
        if held <= limits.SEGMENTS_HELD_MAX and not room.is_low:
            return True
        self._let_go(f"{room}" if room.is_low else f"{held} segments wait for it")
        return False

    def make_room(self) -> None:
        """Called before a new segment begins. If the segment would leave the disk nearly full, trims the segments that
        only the archive needs: a full disk stops the queue, and then files cannot be written to free any space.
        """
        if self._held_from is None:
            return
        room = self._room()
        after = Room(room.free_bytes - limits.SEGMENT_ALLOCATION_BYTES, room.size_bytes)
        if after.is_low:
            self._let_go(f"{room}")
            self.trim()

    def _room(self) -> Room:
        there = os.statvfs(self._directory)
        return Room(there.f_bavail * there.f_frsize, there.f_blocks * there.f_frsize)

    def _let_go(self, why: str) -> None:
        _log.warning("journal %s: segments are no longer kept for the archive: %s", self._directory, why)
        self._held_from = None

    def _needed(self) -> list[Segment]:
        """All segments from the first one that a partition needs. Call this under the lock."""
        return list(dropwhile(lambda segment: not segment.needs, self.segments))

    def trim(self) -> None:
        """Trims every closed segment that no partition needs and that is not held."""
        with self._trimming:
            deleted = False
            while segment := self._oldest_closed():
                if self._is_held(segment):
                    break
                if segment.needs:
                    if len(self.segments) <= limits.SEGMENTS_KEPT_MAX + self._expected:
                        break
                    try:
                        self._keep(segment)
                    except OSError as error:
                        _log.warning(
                            "journal %s: cannot copy records that are still needed: %s",
                            self._directory,
                            error,
                        )
                        break
                try:
                    with self.lock:
                        self._trimmed.numbers.update(segment.unneeded)
                    self._trimmed.write()
                    self._head.remove_through(segment.number)
                except OSError as error:
                    _log.warning("journal %s: cannot note that a segment is not needed: %s", self._directory, error)
                    break
                self._spares.put(segment.path)
                with self.lock:
                    self.segments.remove(segment)
                deleted = True
            if deleted:
                sync_directory(self._directory)

    def _oldest_closed(self) -> Segment | None:
        with self.lock:
            if self.segments and self.segments[0] is not self.active:
                return self.segments[0]
            return None

    def _keep(self, segment: Segment) -> None:
        """Copies the records of a segment that partitions still need to files of these partitions."""
        with self.lock:
            needs = dict(segment.needs)
        data = segment.path.read_bytes()
        records: dict[bytes, list[Record]] = {}
        for found in read_records(data, segment.number, segment.bytes).found:
            if isinstance(found, Record) and found.partition in needs:
                if found.kind == CLOSED:
                    records.pop(found.partition, None)
                elif found.number > self._kept.numbers.get(found.partition, 0):
                    records.setdefault(found.partition, []).append(found)
        for partition, number in needs.items():
            last = records[partition][-1].number if partition in records else self._kept.numbers.get(partition, 0)
            if last < number:
                raise OSError(errno.EIO, f"record {number} is no longer in {segment.path.name}")
        for partition, wanted in records.items():
            self._kept.add(partition, data, wanted)
        with self.lock:
            segment.unneeded.update(segment.needs)
            segment.needs.clear()
