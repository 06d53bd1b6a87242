"""The journal of a storage: segments to which every partition's batches are appended, and which go when applied.

One append is one write and one fdatasync, whatever it holds. A segment goes, oldest first, once every partition has
applied what it has there, and its file is written over by a later one; a partition that does not get on gets its
records copied to a file of its own, so that it does not keep the journal from shrinking. Nothing here knows what is in
a batch, or about SQL.

An append happens on one thread at a time; books (what is needed by whom) and trimming have locks of their own, because
partitions are applied by other threads meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from querator import limits
from querator.daemon.failpoints import failpoint
from querator.daemon.store.base import StorageError
from querator.daemon.store.files import make_directory, sync_directory
from querator.daemon.store.journal.head import NO_SEGMENTS, Head, Segments
from querator.daemon.store.journal.history import History, Place
from querator.daemon.store.journal.kept import KEPT_SEGMENT, Kept
from querator.daemon.store.journal.records import (
    CLOSED,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Record,
    SegmentContents,
    SegmentHeader,
    decode_segment_header,
    encode,
    encode_segment_header,
    encode_tail,
    magic_of,
    payload_in,
    read_records,
)
from querator.daemon.store.journal.spares import Spares
from querator.daemon.store.journal.syscalls import fdatasync_holding, pwrite_holding
from querator.daemon.store.journal.trimmed import Trimmed

_log = logging.getLogger(__name__)
_NO_SPACE = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class NewRecord(NamedTuple):
    """A record that is about to be appended."""

    kind: int
    number: int
    partition: bytes
    payload: bytes


class Segment:
    """One file of the journal. `needs` says up to which record each partition still needs it."""

    def __init__(self, number: int, path: Path, size: int) -> None:
        self.number = number
        self.magic = magic_of(number)
        self.path = path
        self.bytes = size
        self.room_for_records = 0
        """Up to this byte, an append and its tail fit into the file."""
        self.needs: dict[bytes, int] = {}
        self.partitions: dict[bytes, int] = {}
        """The last record of every partition that has one in it, needed or not."""


class Journal:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        make_directory(directory)
        self.is_new = False
        """Whether nothing says what there was before."""
        self._lock_fd = _lock(directory / "LOCK")
        self._appending = threading.Lock()
        self._trimming = threading.Lock()
        self._books = threading.Lock()
        self._segments: list[Segment] = []
        self._kept = Kept(directory)
        self._trimmed = Trimmed(directory / "TRIMMED")
        self._head = Head(directory / "HEAD", directory.with_name(directory.name + ".head"))
        self._spares = Spares(directory)
        self._active: Segment | None = None
        self._fd = -1
        self._initialised = 0
        """So much of the segment in use was written before it was a segment."""
        self._last_number = 0
        self.failure = ""
        self.shortage = ""
        """Why the last append found no room; empty once there was room again."""

    # Reading it back.

    def recover(self) -> History:
        """Reads everything, for a start. A torn append at the end is left out; the next append begins a new segment."""
        self._segments = []
        make_directory(self._directory)
        self._trimmed.recover()
        history = History(self._trimmed.numbers)
        self._kept.recover(history)
        numbers = sorted(int(path.stem) for path in self._directory.glob("*.seg") if path.stem.isdigit())
        known = self._head.read()
        self.is_new = known is None
        head = known or NO_SEGMENTS
        while numbers and numbers[0] < head.first:
            # Nobody needed it any more. A crash gave it its name back, and it may be written over already.
            self._path(numbers.pop(0)).unlink()
        if numbers and numbers[-1] > head.last and self._is_unborn(numbers[-1]):
            self._path(numbers.pop()).unlink()
        first_there = numbers[0] if numbers else head.last + 1
        if head.first < first_there and head.first <= head.last:
            history.wound(f"segments {head.first} to {min(head.last, first_there - 1)} are missing", None)
        headers = [self._header(number) for number in numbers]
        for at, number in enumerate(numbers):
            if at and number != numbers[at - 1] + 1:
                history.wound(f"segments {numbers[at - 1] + 1} to {number - 1} are missing", None)
            after = headers[at + 1] if numbers[at + 1 : at + 2] == [number + 1] else None
            end = after.previous_bytes if after else head.end if number == head.last and head.is_closed else None
            contents = self._recover_segment(number, headers[at], history, end, head.end if number == head.last else 0)
            if number == numbers[-1] and end is None:
                self._check_open(number, headers[at], history, contents)
            elif contents.torn:
                history.wound(f"a record at byte {contents.end} is cut off", self._path(number))
        if numbers and numbers[-1] < head.last:
            history.wound(f"segments {numbers[-1] + 1} to {head.last} are missing", None)
        self._last_number = numbers[-1] if numbers else head.last
        self._spares.find(self._last_number)
        return history

    def seal(self) -> None:
        """Whoever is concerned by what is missing has been put aside. Notes what there is, so that nothing is missed
        again, and gives back the space that was set aside for more."""
        segment = self._segments[-1] if self._segments else None
        last, end = self._last_number, segment.bytes if segment else 0
        self._head.is_now(Segments(self._segments[0].number if self._segments else last + 1, last, end, True))
        if segment and segment.path.stat().st_size != end:
            os.truncate(segment.path, end)

    def _header(self, number: int) -> SegmentHeader | None:
        header = decode_segment_header(_head(self._path(number)))
        return header if header and header.number == number else None

    def _is_unborn(self, number: int) -> bool:
        """Whether a crash left this segment before its header was durable, and so before anything was put into it."""
        has_anything = self._path(number).read_bytes()[SEGMENT_HEADER_BYTES:].strip(b"\0")
        return self._header(number) is None and not has_anything

    def _recover_segment(
        self, number: int, header: SegmentHeader | None, history: History, end: int | None, acknowledged: int
    ) -> SegmentContents:
        path = self._path(number)
        contents = read_records(path.read_bytes(), number, end, acknowledged, header.blank_from if header else None)
        segment = Segment(number, path, contents.end)
        self._segments.append(segment)
        for found in contents.found:
            history.add(path, found)
            if isinstance(found, Record):
                self._note(segment, found)
        return contents

    def _check_open(
        self, number: int, header: SegmentHeader | None, history: History, contents: SegmentContents
    ) -> None:
        """Tells what a crash leaves of the segment in use from what it does not."""
        path = self._path(number)
        size = path.stat().st_size
        if header is None and not contents.found:
            # A header is durable before there are records.
            history.wound("this is no segment", path)
        elif header and size < header.room:
            history.wound(f"the file has {size} bytes and had {header.room}", path)
        elif contents.torn:
            _log.warning("%s: cut off at byte %d, inside an append that was never acknowledged", path, contents.end)

    def _note(self, segment: Segment, record: Record) -> None:
        if record.kind == CLOSED:
            self._drop_needs(record.partition)
        else:
            segment.needs[record.partition] = segment.partitions[record.partition] = record.number

    def history(self) -> History:
        """Reads everything that is durable once more, while the journal is in use."""
        with self._trimming:
            with self._books:
                segments = [(segment.number, segment.path, segment.bytes) for segment in self._segments]
            history = History(self._trimmed.numbers)
            self._kept.read(history)
            for number, path, end in segments:
                for found in read_records(path.read_bytes(), number, end).found:
                    history.add(path, found)
            return history

    def no_history(self) -> History:
        """That of a partition which needs nothing of what is here."""
        return History(self._trimmed.numbers)

    def payloads(self, places: Iterable[Place]) -> Iterator[tuple[int, bytes]]:
        """Number and payload of each of these records. Raises FileNotFoundError when their segment is gone."""
        for path, there in groupby(places, key=attrgetter("path")):
            segment = int(path.stem) if path.suffix == ".seg" else KEPT_SEGMENT
            with path.open("rb", buffering=0) as file:
                for place in there:
                    size = RECORD_HEADER_BYTES + place.payload_bytes
                    data = os.pread(file.fileno(), size, place.payload_at - RECORD_HEADER_BYTES)
                    payload = payload_in(data, segment, place.number)
                    if payload is None:
                        raise FileNotFoundError(errno.ENOENT, "is written over", str(path))
                    yield place.number, payload

    def is_needed_by(self, partition: bytes) -> bool:
        with self._books:
            return partition in self._kept.numbers or any(partition in segment.needs for segment in self._segments)

    # Appending.

    def append(self, entries: list[NewRecord], numbers: Mapping[bytes, int], on_loop: bool = False) -> None:
        """Makes records durable. `numbers` is the last record number of each partition among them. `on_loop` says that
        everybody waits for it.

        Raises StorageError. When space ran out, nothing of it is there and the journal can be used again; after any
        other failure it cannot be known what is durable, and the journal refuses everything until `reopen`.
        """
        size = sum([RECORD_HEADER_BYTES + len(payload) for _, _, _, payload in entries])
        with self._appending:
            if self.failure:
                raise StorageError(self.failure)
            segment = self._active
            if segment is None or self._should_end(segment, size):
                segment = self._begin(size)
            magic, append = segment.magic, segment.bytes
            pieces: list[bytes] = []
            for entry in entries:
                pieces += encode(magic, append, *entry)
            pieces.append(encode_tail(magic, append, append + size))
            self._write(segment, b"".join(pieces), on_loop)
            with self._books:
                segment.bytes += size
                segment.needs.update(numbers)
                segment.partitions.update(numbers)

    def _should_end(self, segment: Segment, size: int) -> bool:
        begin = segment.bytes
        if begin + size <= segment.room_for_records and (begin < self._initialised or not self._spares.any):
            return False
        return begin > SEGMENT_HEADER_BYTES

    def append_closed(self, numbers: Mapping[bytes, int], always: bool = False) -> None:
        """Notes that these partitions are closed with everything in their files, where the journal has more of them.

        Without it, a file that is replaced by an older one would look like one that lacks records.
        """
        with self._books:
            known = set(self._kept.numbers).union(
                self._trimmed.numbers, *(segment.partitions for segment in self._segments)
            )
        entries = [
            NewRecord(CLOSED, number, partition, b"")
            for partition, number in numbers.items()
            if always or partition in known
        ]
        if entries:
            self.append(entries, {})
        for partition in numbers:
            self.release(partition)

    def _write(self, segment: Segment, data: bytes, on_loop: bool) -> None:
        pwrite, sync = (pwrite_holding, fdatasync_holding) if on_loop else (os.pwrite, os.fdatasync)
        written = 0
        try:
            written = pwrite(self._fd, data, segment.bytes)
            while written < len(data):
                written += pwrite(self._fd, data[written:], segment.bytes + written)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise self._fail(error) from error
            if written:
                self._cut(segment, error)
            self._spares.reduce(0)
            raise self._no_space(error) from error
        failpoint("journal.written")
        try:
            sync(self._fd)
        except OSError as error:
            raise self._fail(error) from error
        self.shortage = ""
        failpoint("journal.synced")

    def _no_space(self, error: OSError) -> StorageError:
        self.shortage = f"journal {self._directory}: {error.strerror}"
        return StorageError(self.shortage)

    def probe(self) -> None:
        """Finds out whether there is room, by writing zeros behind the last record, as an allocation does too."""
        with self._appending, contextlib.suppress(StorageError):
            if not self.failure:
                segment = self._active or self._begin(limits.ROOM_PROBE_BYTES)
                tail = encode_tail(segment.magic, segment.bytes, segment.bytes)
                self._write(segment, tail + bytes(limits.ROOM_PROBE_BYTES), on_loop=False)

    def _cut(self, segment: Segment, error: OSError) -> None:
        """Ends the segment: what was written of an append that failed must not stand behind the next one."""
        try:
            self._head.ends(segment.number, segment.bytes)
        except OSError:
            raise self._fail(error) from error
        self._end()

    def _set_aside(self, size: int) -> int:
        """Gives the new segment room for at least so much, and returns its size. On a full disk that may be less than
        was asked for; writing may still succeed."""
        there = os.fstat(self._fd).st_size
        for wanted in (max(size, limits.SEGMENT_BYTES_MAX), max(size, limits.SEGMENT_ALLOCATION_BYTES), size):
            if wanted <= there:
                break
            with contextlib.suppress(OSError):
                os.posix_fallocate(self._fd, there, wanted - there)
                break
        return os.fstat(self._fd).st_size

    def refuse(self, reason: str) -> None:
        """Takes nothing more until `reopen`."""
        with self._appending:
            self.failure = self.failure or reason

    def _fail(self, error: OSError) -> StorageError:
        self.failure = f"journal {self._directory}: {error.strerror}; nothing is written until it has been reopened"
        return StorageError(self.failure)

    def _begin(self, size: int) -> Segment:
        """A new segment with room for an append of this size, durable before anything is put into it."""
        previous_bytes = self._active.bytes if self._active else self._segments[-1].bytes if self._segments else 0
        self._end()
        segment = Segment(self._last_number + 1, self._path(self._last_number + 1), SEGMENT_HEADER_BYTES)
        spare = self._spares.take()
        place = spare or segment.path
        may_be_missed = False
        try:
            self._fd = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if spare else os.O_TRUNC), 0o600)
            self._initialised = os.fstat(self._fd).st_size
            was_segment = any(os.pread(self._fd, SEGMENT_HEADER_BYTES, 0))
            room = self._set_aside(SEGMENT_HEADER_BYTES + size + RECORD_HEADER_BYTES)
            segment.room_for_records = room - RECORD_HEADER_BYTES
            blank_from = self._initialised if was_segment else 0
            header = SegmentHeader(segment.number, previous_bytes, room, blank_from)
            tail = encode_tail(segment.magic, segment.bytes, segment.bytes)
            os.pwrite(self._fd, encode_segment_header(header) + tail, 0)
            os.fsync(self._fd)
            if spare:
                spare.rename(segment.path)
            sync_directory(self._directory)
            may_be_missed = True
            self._head.begins(segment.number)
        except OSError as error:
            self._close_fd()
            if not may_be_missed:
                with contextlib.suppress(OSError):
                    place.unlink()
                self._spares.reduce(0)
            if error.errno not in _NO_SPACE:
                raise self._fail(error) from error
            raise self._no_space(error) from error
        with self._books:
            self._last_number = segment.number
            self._active = segment
            self._segments.append(segment)
        return segment

    def _end(self) -> None:
        segment = self._active
        if segment is None:
            return
        # Gives back the space set aside. If HEAD cannot note the end, the file keeps its size, or it would be missed.
        with contextlib.suppress(OSError):
            self._head.ends(segment.number, segment.bytes)
            os.ftruncate(self._fd, max(segment.bytes, self._initialised))
        self._close_fd()
        with self._books:
            self._active = None

    def _close_fd(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # Letting go of what is applied.

    def roll(self) -> None:
        """Closes the segment in use, so that it can go; the next append begins another one."""
        with self._appending:
            self._end()
        self.trim()
        self._spares.reduce(limits.SPARES_AT_REST_MAX)

    def note_acknowledged(self) -> None:
        """Tells HEAD how far the segment in use goes. Damage to its last append is told from a torn append by that."""
        segment = self._active
        if segment is not None:
            self._head.reached(segment.number, segment.bytes)

    @property
    def wants_spare(self) -> bool:
        """Whether there is enough to do, and nothing that could be written over, now or next."""
        segment = self._active
        if segment is None or self._spares.any:
            return False
        return segment.bytes >= max(self._initialised, limits.SPARE_AFTER_BYTES)

    def make_spare(self) -> None:
        self._spares.make()

    def applied(self, partition: bytes, number: int) -> None:
        """The partition's file has everything up to this record."""
        with self._books:
            for segment in self._segments:
                if segment.needs.get(partition, number + 1) <= number:
                    del segment.needs[partition]
        if partition in self._kept.numbers:
            # Looked at again where nobody trims: more may be kept of it by now than was applied.
            with self._trimming:
                if self._kept.numbers.get(partition, number + 1) <= number:
                    self._kept.drop(partition)
        self.trim()

    def release(self, partition: bytes) -> None:
        """The partition needs nothing of what is here."""
        # Not while somebody trims, who may be about to keep what it needed a moment ago.
        with self._trimming:
            with self._books:
                self._drop_needs(partition)
            if partition in self._kept.numbers:
                self._kept.drop(partition)
        self.trim()

    def lagging(self) -> set[bytes]:
        """The partitions without which closed segments could go, of which there are too many."""
        with self._books:
            closed = [segment for segment in self._segments if segment is not self._active]
            return set().union(
                *[segment.needs for segment in closed[: max(0, len(closed) - limits.SEGMENTS_WAITING_MAX)]]
            )

    def trim(self) -> None:
        with self._trimming:
            deleted = False
            while segment := self._oldest_closed():
                if segment.needs:
                    if len(self._segments) <= limits.SEGMENTS_KEPT_MAX:
                        break
                    try:
                        self._keep(segment)
                    except OSError as error:
                        _log.warning("journal %s: cannot copy out what waits: %s", self._directory, error)
                        break
                try:
                    with self._books:
                        self._trimmed.numbers.update(segment.partitions)
                    self._trimmed.write()
                    self._head.goes(segment.number)
                except OSError as error:
                    _log.warning("journal %s: cannot note what is not needed: %s", self._directory, error)
                    break
                self._spares.put(segment.path)
                with self._books:
                    self._segments.remove(segment)
                deleted = True
            if deleted:
                sync_directory(self._directory)

    def _oldest_closed(self) -> Segment | None:
        with self._books:
            if self._segments and self._segments[0] is not self._active:
                return self._segments[0]
            return None

    def _keep(self, segment: Segment) -> None:
        """Copies what is still needed of a segment into files of the partitions concerned."""
        with self._books:
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
            there = records[partition][-1].number if partition in records else self._kept.numbers.get(partition, 0)
            if there < number:
                raise OSError(errno.EIO, f"record {number} is no longer in {segment.path.name}")
        for partition, wanted in records.items():
            self._kept.add(partition, data, wanted)
        with self._books:
            segment.needs.clear()

    def _drop_needs(self, partition: bytes) -> None:
        for segment in self._segments:
            segment.needs.pop(partition, None)
            segment.partitions.pop(partition, None)
        self._trimmed.numbers.pop(partition, None)

    # Starting over, and the end.

    def reopen(self) -> None:
        """After a failure: goes back to what is known to be durable. Raises StorageError when that fails too.

        What could not be synced was never acknowledged, and may not be on the disk even where it can be read.
        """
        with self._appending:
            try:
                if self._active and self._fd >= 0:
                    self._head.ends(self._active.number, self._active.bytes)
                    os.ftruncate(self._fd, self._active.bytes)
                    os.fsync(self._fd)
                self._end()
            except OSError as error:
                raise self._fail(error) from error
            self.failure = ""

    def close(self) -> None:
        self.roll()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:012d}.seg"


def _lock(path: Path) -> int:
    """Two daemons in one storage would each cut off what the other one writes."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise StorageError(f"journal {path.parent} is in use by another process") from error
    return fd


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(SEGMENT_HEADER_BYTES)
