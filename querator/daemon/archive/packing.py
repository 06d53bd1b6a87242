"""Makes the bytes of log objects: reads journals, and compresses and hashes what they have.

Large objects are made in a process of its own with low priority (`packing_process`), because a thread that makes them
takes the interpreter's lock and a processor from the loop. The process only computes: the daemon puts the object. If
the process dies or is too slow, the shipper's thread makes the object itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec

import querator
from querator import limits
from querator.daemon.archive.cutting import Cutter, Piece
from querator.daemon.archive.ledger import Ledger
from querator.daemon.archive.objects import LogObject, Owner, sealed_bytes
from querator.daemon.store import FeedChunk, Survey, survey

log = logging.getLogger("querator.archive")

LENGTH: Final = struct.Struct("<I")


class SealOrder(NamedTuple):
    """Which chunks of the last look are in an object, and what else is in it."""

    head: bytes
    taken: list[int]
    catalog: bytes


class Sealed(NamedTuple):
    data: bytes
    sha256: str


class Unusable(Exception):
    """The packing process is not there, or does not answer in time."""


class Packer:
    """Makes objects in the calling thread."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def look(self, chunks: Sequence[FeedChunk]) -> list[Survey | str]:
        """Blocking. Reads chunks for the next object. Returns what each contains, or why it cannot be used."""
        self._chunks = []
        found: list[Survey | str] = []
        for chunk in chunks:
            data = b""
            try:
                data = chunk.read()
                found.append(survey(chunk.segment, data))
            except (OSError, ValueError) as error:
                found.append(str(error))
            self._chunks.append(data)
        return found

    def seal(self, order: SealOrder) -> Sealed:
        """The object. The chunks that were read are forgotten."""
        body = [self._chunks[at] for at in order.taken]
        self._chunks = []
        if order.catalog:
            body.append(order.catalog)
        return Sealed(*sealed_bytes(order.head, body[0] if len(body) == 1 else b"".join(body)))


class PackingProcess:
    """Makes objects in another process. All methods may raise Unusable. Then the process must be closed."""

    def __init__(self) -> None:
        self._memory = os.memfd_create("querator-archive", os.MFD_CLOEXEC)
        """The process puts an object here. Through a pipe, the object would come in hundreds of pieces. The memory is
        kept for the next object: to free and clear it again takes the daemon longer than to copy the object."""
        # It gets no environment, because ours may hold secrets, and its own session, so that Ctrl-C spares it.
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "querator.daemon.archive.packing_process", str(self._memory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                cwd="/",
                env={"PYTHONPATH": str(Path(querator.__file__).parent.parent)},
                pass_fds=[self._memory],
                start_new_session=True,
            )
        except OSError:
            os.close(self._memory)
            raise
        self._is_ready = False
        self.pid = self._process.pid
        self.used_at = time.monotonic()

    def is_ready(self) -> bool:
        """Whether the process has started. That takes most of a second."""
        if not self._is_ready and self._has_answer(0):
            self._is_ready = self._receive() == b""
        return self._is_ready

    def look(self, chunks: Sequence[FeedChunk]) -> list[Survey | str]:
        self._send(msgspec.msgpack.encode([(*chunk[:3], str(chunk.path)) for chunk in chunks]))
        return msgspec.msgpack.decode(self._receive(), type=list[Survey | str])

    def seal(self, order: SealOrder) -> Sealed:
        self._send(msgspec.msgpack.encode(order))
        size, sha256 = msgspec.msgpack.decode(self._receive(), type=tuple[int, str])
        data = os.pread(self._memory, size, 0)
        self.used_at = time.monotonic()
        if len(data) != size:
            raise Unusable("its object is incomplete")
        return Sealed(data, sha256)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        os.close(self._memory)

    def _send(self, body: bytes) -> None:
        assert self._process.stdin is not None
        try:
            send(self._process.stdin, body)
        except OSError as error:
            raise Unusable(f"it has ended: {error}") from None

    def _has_answer(self, seconds: float) -> bool:
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def _receive(self) -> bytes:
        assert self._process.stdout is not None
        if not self._has_answer(limits.ARCHIVE_PACKING_SECONDS_MAX):
            raise Unusable("it does not answer")
        try:
            return receive(self._process.stdout)
        except EOFError:
            raise Unusable("it has ended") from None


class Packers:
    """Chooses who makes an object: the shipper's thread, or the packing process if the object is large."""

    def __init__(self, is_urgent: bool) -> None:
        """`is_urgent`: clients wait for the objects, so no process of low priority makes them."""
        self._may_start = not is_urgent and sys.platform == "linux"
        self._start_at = 0.0
        self._own = Packer()
        self._process: PackingProcess | None = None

    def made(self, cutter: Cutter, piece: Piece, ledger: Ledger, owner: Owner) -> tuple[LogObject, bytes]:
        """Blocking. The next log object, and its bytes. Of the body, the object itself has the catalog only."""
        chunks = [chunk for _, chunk in piece.chunks]
        packer = self._choose(sum(chunk.end - chunk.begin for chunk in chunks))
        try:
            surveys = packer.look(chunks)
        except Unusable as error:
            packer = self._give_up(error)
            surveys = packer.look(chunks)
        head, taken = cutter.headed(piece, surveys, ledger, owner)
        order = SealOrder(msgspec.json.encode(head), taken, piece.catalog)
        try:
            data, sha256 = packer.seal(order)
        except Unusable as error:
            packer = self._give_up(error)
            packer.look(chunks)
            data, sha256 = packer.seal(order)
        return LogObject(head, piece.catalog, sha256, len(data)), data

    def _choose(self, size: int) -> Packer | PackingProcess:
        """The packer of an object with this many bytes of journals."""
        process, now = self._process, time.monotonic()
        if size < limits.ARCHIVE_PACKING_BYTES_MIN:
            if process is not None and now - process.used_at > limits.ARCHIVE_PACKING_IDLE_SECONDS:
                self.close()
            return self._own
        try:
            if process is not None and process.is_ready():
                return process
            if process is None and self._may_start and now >= self._start_at:
                self._process = PackingProcess()
        except (Unusable, OSError) as error:
            self._give_up(error)
        return self._own

    def _give_up(self, error: Exception) -> Packer:
        """Ends the packing process after a failure. The shipper's thread makes all objects for a while."""
        log.warning("the archive's packing process cannot be used", extra={"reason": str(error)})
        self._start_at = time.monotonic() + limits.ARCHIVE_PACKING_IDLE_SECONDS
        self.close()
        return self._own

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()


def send(stream: IO[bytes], body: bytes) -> None:
    rest = memoryview(LENGTH.pack(len(body)) + body)
    while rest:
        rest = rest[stream.write(rest) :]


def receive(stream: IO[bytes]) -> bytes:
    """Raises EOFError at the end of the stream."""
    (size,) = LENGTH.unpack(_exactly(stream, LENGTH.size))
    return _exactly(stream, size)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = stream.read(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found
