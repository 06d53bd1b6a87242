"""The journal of a storage: segments to which the batches of every partition are appended.

One append is one write and one fdatasync, however many records it contains. `Books` knows which partitions need a
segment, and trims it when none does. A later segment overwrites its file. The journal knows neither what a batch
contains nor SQL.

Appends run on one thread at a time. The books have locks of their own, because other threads apply partitions
meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

from querator import limits
from querator.daemon.failpoints import failpoint
from querator.daemon.store.base import StorageError
from querator.daemon.store.files import make_directory, sync_directory
from querator.daemon.store.journal.books import Books, Segment, segment_path
from querator.daemon.store.journal.feed import Feed
from querator.daemon.store.journal.head import Head, Segments
from querator.daemon.store.journal.history import History, Place
from querator.daemon.store.journal.kept import KEPT_SEGMENT
from querator.daemon.store.journal.records import (
    BATCH,
    CLOSED,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    NewRecord,
    SegmentHeader,
    encode,
    encode_segment_header,
    encode_tail,
    payload_in,
    size_of,
)
from querator.daemon.store.journal.recovery import recover
from querator.daemon.store.journal.spares import Spares
from querator.daemon.store.journal.syscalls import fdatasync_holding, pwrite_holding

_PIECES_MAX: Final = 1_024
"""The system takes this many pieces in one call."""
_NO_SPACE = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class Journal:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        make_directory(directory)
        self.is_new = False
        """Whether nothing tells which segments there were before."""
        self._lock_fd = _lock(directory / "LOCK")
        self._appending = threading.Lock()
        self._head = Head(directory / "HEAD", directory.with_name(directory.name + ".head"))
        self._spares = Spares(directory)
        self.books = Books(directory, self._head, self._spares)
        self.feed = Feed(self.books)
        self._books_lock = self.books.lock
        self._fd = -1
        self._initialised = 0
        """Up to this byte, the file of the active segment was written before it became this segment."""
        self.failure = ""
        """Why nothing can be appended until `reopen`; empty if appends work."""
        self.shortage = ""
        """Why the last append found no space; empty once an append has found space again."""

    # Reading.

    def recover(self) -> History:
        """Reads everything, for a start. The next append begins a new segment."""
        make_directory(self._directory)
        history, self.books.last_number, self.is_new = recover(self._directory, self.books, self._head)
        self._spares.find(self.books.last_number)
        return history

    def seal(self) -> None:
        """Notes which segments there are. Called after every partition that lacks records was put aside, so that the
        same records are not reported as missing again. Frees the space that was allocated for further records.
        """
        segments = self.books.segments
        last, end = self.books.last_number, segments[-1].bytes if segments else 0
        first = segments[0].number if segments else last + 1
        self.books.seal(has_trimmed=first > 1)
        self._head.replace(Segments(first, last, end, True))
        if segments and segments[-1].path.stat().st_size != end:
            os.truncate(segments[-1].path, end)

    def payloads(self, places: Iterable[Place]) -> Iterator[tuple[int, memoryview]]:
        """The number and the payload of each of these records. Raises FileNotFoundError if their segment is gone."""
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

    # Appending.

    def append(self, entries: Sequence[NewRecord], on_loop: bool = False) -> tuple[Path, int]:
        """Makes records durable, and returns in which file and at which byte they begin. Those of a partition are in
        the order of their numbers. `on_loop` says that this runs on the loop's thread.

        Raises StorageError. When space ran out, no record was written and the journal stays usable. After any other
        failure it is unknown what is durable, and the journal refuses everything until `reopen`.
        """
        size = len(entries) * RECORD_HEADER_BYTES
        for entry in entries:
            size += size_of(entry)
        with self._appending:
            if self.failure:
                raise StorageError(self.failure)
            segment = self.books.active
            if segment is None or self._should_end(segment, size):
                segment = self._begin(size)
            magic, append = segment.magic, segment.bytes
            pieces = encode(magic, append, entries)
            pieces.append(encode_tail(magic, append, append + size))
            self._write(segment, pieces, size + RECORD_HEADER_BYTES, on_loop)
            with self._books_lock:
                segment.bytes += size
                needs = segment.needs
                for entry in entries:
                    if entry.kind == BATCH:
                        needs[entry.partition] = entry.number
            return segment.path, append

    def _should_end(self, segment: Segment, size: int) -> bool:
        begin = segment.bytes
        if begin + size <= segment.room_for_records and (begin < self._initialised or not self._spares.any):
            return False
        return begin > SEGMENT_HEADER_BYTES

    def append_closed(self, numbers: Mapping[bytes, int], always: bool = False) -> None:
        """Notes that these partitions are closed with every record in their files.

        Without this note, a file that is replaced by an older one would look like a file that lacks records. Partitions
        of which the journal has no record need the note only if it must be there `always`.
        """
        known = self.books.known_partitions()
        entries = [
            NewRecord(CLOSED, number, partition, b"")
            for partition, number in numbers.items()
            if always or partition in known
        ]
        if entries:
            self.append(entries)
        for partition in numbers:
            self.books.release(partition)

    def _write(self, segment: Segment, pieces: list[bytes], size: int, on_loop: bool) -> None:
        written = 0
        data = b""
        try:
            if size >= limits.INLINE_WRITE_BYTES_MAX and len(pieces) <= _PIECES_MAX:
                # Joining large records would copy them once more.
                written = os.pwritev(self._fd, pieces, segment.bytes)
                if written < size:
                    data = b"".join(pieces)
            else:
                data = b"".join(pieces)
                if on_loop:
                    written = pwrite_holding(self._fd, data, segment.bytes)
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], segment.bytes + written)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise self._fail(error) from error
            if written:
                self._cut(segment, error)
            self._spares.reduce(0)
            raise self._no_space(error) from error
        failpoint("journal.written")
        try:
            if on_loop:
                fdatasync_holding(self._fd)
            else:
                os.fdatasync(self._fd)
        except OSError as error:
            raise self._fail(error) from error
        self.shortage = ""
        failpoint("journal.synced")

    def _no_space(self, error: OSError) -> StorageError:
        self.shortage = f"journal {self._directory}: {error.strerror}"
        return StorageError(self.shortage)

    def probe(self) -> None:
        """Finds out whether there is space, by writing zeros after the last record. An allocation writes zeros too."""
        with self._appending, contextlib.suppress(StorageError):
            if not self.failure:
                segment = self.books.active or self._begin(limits.ROOM_PROBE_BYTES)
                tail = encode_tail(segment.magic, segment.bytes, segment.bytes)
                zeros = bytes(limits.ROOM_PROBE_BYTES)
                self._write(segment, [tail, zeros], len(tail) + len(zeros), on_loop=False)

    def _cut(self, segment: Segment, error: OSError) -> None:
        """Ends the segment: the next append must not follow the remains of an append that failed."""
        try:
            self._head.ends(segment.number, segment.bytes)
        except OSError:
            raise self._fail(error) from error
        self._end()

    def refuse(self, reason: str) -> None:
        """Takes no further append until `reopen`."""
        with self._appending:
            self.failure = self.failure or reason

    def _fail(self, error: OSError) -> StorageError:
        self.failure = f"journal {self._directory}: {error.strerror}; nothing is written until it has been reopened"
        return StorageError(self.failure)

    # The active segment.

    def _begin(self, size: int) -> Segment:
        """A new segment with space for an append of this size; durable before the first record goes into it."""
        segments = self.books.segments
        previous_bytes = segments[-1].bytes if segments else 0
        self._end()
        number = self.books.last_number + 1
        segment = Segment(number, segment_path(self._directory, number), SEGMENT_HEADER_BYTES)
        spare = self._spares.take()
        place = spare or segment.path
        may_be_missed = False
        try:
            self.books.make_room()
            self._fd = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if spare else os.O_TRUNC), 0o600)
            self._initialised = os.fstat(self._fd).st_size
            was_segment = any(os.pread(self._fd, SEGMENT_HEADER_BYTES, 0))
            room = self._allocate(SEGMENT_HEADER_BYTES + size + RECORD_HEADER_BYTES)
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
        with self._books_lock:
            self.books.last_number = segment.number
            self.books.active = segment
            segments.append(segment)
        return segment

    def _allocate(self, size: int) -> int:
        """Allocates space for the new segment, and returns the size of its file. On a full disk the file may stay
        smaller than `size`, and writing may still succeed.
        """
        there = os.fstat(self._fd).st_size
        for wanted in (max(size, limits.SEGMENT_BYTES_MAX), max(size, limits.SEGMENT_ALLOCATION_BYTES), size):
            if wanted <= there or _has_extended(self._fd, there, wanted):
                break
        return os.fstat(self._fd).st_size

    def _end(self) -> None:
        segment = self.books.active
        if segment is None:
            return
        # Frees the allocated space. If HEAD cannot note the end, the file keeps its size: HEAD would report it as cut.
        with contextlib.suppress(OSError):
            self._head.ends(segment.number, segment.bytes)
            os.ftruncate(self._fd, max(segment.bytes, self._initialised))
        self._close_fd()
        with self._books_lock:
            self.books.active = None

    def _close_fd(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # Upkeep.

    def roll(self) -> None:
        """Ends the active segment, so that it can be trimmed. The next append begins another one."""
        with self._appending:
            self._end()
        self.books.trim()
        self._spares.reduce(limits.SPARES_AT_REST_MAX)

    def note_acknowledged(self) -> None:
        """Notes in HEAD how far the active segment is durable, so that a recovery can tell damage from a torn append.

        `bytes` grows after the sync of an append, so the note never covers bytes that are not durable.
        """
        segment = self.books.active
        if segment is not None:
            self._head.reached(segment.number, segment.bytes)

    @property
    def wants_spare(self) -> bool:
        """Whether the journal is busy, and neither the active segment nor the next one overwrites an old file."""
        segment = self.books.active
        if segment is None or self._spares.any:
            return False
        return segment.bytes >= max(self._initialised, limits.SPARE_AFTER_BYTES)

    def make_spare(self) -> None:
        self._spares.make()

    def reopen(self) -> None:
        """After a failure: goes back to the records that are known to be durable. Raises StorageError if that fails.

        A record that could not be synced was never acknowledged. It may be missing on the disk although it can be read.
        """
        with self._appending:
            segment = self.books.active
            try:
                if segment and self._fd >= 0:
                    self._head.ends(segment.number, segment.bytes)
                    os.ftruncate(self._fd, segment.bytes)
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


def _lock(path: Path) -> int:
    """Locks the journal: two daemons in one storage would each cut off the records of the other."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise StorageError(f"journal {path.parent} is in use by another process") from error
    return fd


def _has_extended(fd: int, size: int, wanted: int) -> bool:
    """Allocates space behind a file's `size` bytes, up to `wanted`. False if there is not enough."""
    try:
        os.posix_fallocate(fd, size, wanted - size)
    except OSError:
        return False
    return True
