"""The audit log: a line of JSON for every change and every denial. The line is durable before the call is answered.

A separate thread writes and syncs the lines, so that the loop never waits. Lines that arrive during a write are written
together in the next one. The file is rotated by size, and old files are deleted after `audit_kept`. Lines never contain
payloads or secrets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from querator import limits, times
from querator.clock import Clock
from querator.daemon.access.callers import Caller, Peer
from querator.daemon.access.denials import DenialLimits
from querator.errors import QueratorError

log = logging.getLogger("querator.audit")

FILE_NAME: Final = "audit.log"
_ROTATED: Final = re.compile(r"audit-(\d+)\.log")
"""The name contains the time of the last line, in microseconds since 1970."""
_TEXT_CHARACTERS_MAX: Final = 200
_LIST_ENTRIES_MAX: Final = 20
_BLOCK_BYTES: Final = 65_536
_SHOWN_APART: Final = frozenset(("queue_name", "partition", "partitions"))


class AuditLine(msgspec.Struct, omit_defaults=True):
    at: str
    who: str
    """The name of the token, user or certificate."""
    kind: str
    address: str = msgspec.field(default="", name="from")
    call: str = ""
    queue: str = ""
    partitions: list[int] = []
    asked: dict[str, Any] = {}
    """The fields of the request, without payloads. Long ones are cut."""
    outcome: str = ""
    """`done`, or the code and the text of the error."""
    ms: float = 0.0
    unrecorded: int = 0
    """Denials that were left out before this line, because there were too many."""


class AuditLog:
    def __init__(self, data: Path, clock: Clock, kept_us: int) -> None:
        self.failure = ""
        """Why the last lines could not be written. They are tried again with the next ones."""
        self._path = data / FILE_NAME
        self._clock = clock
        self._kept_us = kept_us
        self._last_us = 0
        self._waiting: list[tuple[bytes, Callable[[], None]]] = []
        self._is_writing = self._is_closed = False
        self._idle = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="querator-audit")
        self._denials = DenialLimits(clock)
        self._unrecorded = 0

    # -- lines

    def changed(
        self, caller: Caller, peer: Peer, call: str, request: Any, result: Any, seconds: float, then: Callable[[], None]
    ) -> None:
        """Records a call that was carried out or refused. Calls `then` on the loop when the line is durable."""
        self._write(self._line(caller, peer, call, request, result, seconds), then)

    def denied(self, caller: Caller | None, peer: Peer, call: str, queues: Sequence[str], error: QueratorError) -> None:
        """Records a call that was denied, unless there are too many. Those are counted, and the next line has their
        number.
        """
        if not self._denials.admit(caller, peer):
            self._unrecorded += 1
            return
        line = AuditLine(
            at=self._moment(),
            who=caller.name if caller else "",
            kind=caller.kind if caller else "unknown",
            address=peer.address,
            call=call[:_TEXT_CHARACTERS_MAX],
            queue=",".join(queues)[: limits.QUEUE_NAME_BYTES_MAX],
            outcome=f"{error.code} {error.message}",
        )
        self._write(line, lambda: None)

    def _line(self, caller: Caller, peer: Peer, call: str, request: Any, result: Any, seconds: float) -> AuditLine:
        is_error = isinstance(result, QueratorError)
        return AuditLine(
            at=self._moment(),
            who=caller.name,
            kind=caller.kind,
            address=peer.address,
            call=call,
            queue=str(getattr(request, "queue_name", ""))[: limits.QUEUE_NAME_BYTES_MAX],
            partitions=_partitions(request),
            asked=_asked(request),
            outcome=f"{result.code} {result.message}"[:_TEXT_CHARACTERS_MAX] if is_error else "done",
            ms=round(seconds * 1_000, 3),
        )

    def _moment(self) -> str:
        """The time of a line. Every line has a different time, so that a reader can continue after any line."""
        self._last_us = max(self._last_us + 1, self._clock.now_us())
        return times.text(self._last_us)

    # -- writing

    def _write(self, line: AuditLine, then: Callable[[], None]) -> None:
        if self._is_closed:
            then()  # the daemon has stopped, and refuses the remaining calls
            return
        line.unrecorded, self._unrecorded = self._unrecorded, 0
        self._waiting.append((msgspec.json.encode(line) + b"\n", then))
        if not self._is_writing:
            self._is_writing = True
            self._idle.clear()
            self._start()

    def _start(self) -> None:
        lines, self._waiting = self._waiting, []
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(self._thread, self._append, b"".join([line for line, _ in lines]))
        done.add_done_callback(lambda done: self._written(lines, done))

    def _written(self, lines: list[tuple[bytes, Callable[[], None]]], done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        self.failure = str(error) if error is not None else ""
        if error is not None:
            log.error("the audit log cannot be written", extra={"reason": self.failure, "lines": len(lines)})
            kept = [(line, _nothing) for line, _ in lines][-limits.AUDIT_LINES_KEPT_MAX :]
            self._waiting = kept + self._waiting
        self._is_writing = False
        for _, then in lines:
            then()
        if self._waiting and error is None and not self._is_writing:
            self._is_writing = True
            self._start()
        elif not self._is_writing:
            self._idle.set()

    def _append(self, data: bytes) -> None:
        """Runs in the thread. The lines are durable when this returns."""
        is_new = not self._path.exists()
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # a crash cut the last line off
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)  # otherwise the next attempt would write these lines twice
                raise
        finally:
            os.close(descriptor)
        if is_new:
            self._sync_directory()
        if size + len(data) >= limits.AUDIT_FILE_BYTES:
            self._rotate()

    def _rotate(self) -> None:
        self._path.rename(self._path.with_name(f"audit-{self._last_us}.log"))
        before_us = self._clock.now_us() - self._kept_us
        for ended_us, path in _rotated(self._path.parent):
            if ended_us < before_us:
                path.unlink(missing_ok=True)
        self._sync_directory()

    def _sync_directory(self) -> None:
        descriptor = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    async def close(self) -> None:
        """Waits until every line is written. Later calls are not recorded."""
        self._is_closed = True
        if self._is_writing:
            await self._idle.wait()
        self._thread.shutdown(wait=False)

    # -- reading

    def read(
        self, since_us: int, limit: int, is_wanted: Callable[[AuditLine], bool], *, oldest: bool
    ) -> list[AuditLine]:
        """Blocking. The matching lines from a time on: the latest `limit` lines, or the first ones with `oldest`."""
        found: list[AuditLine] = []
        for line in self._lines(since_us, oldest=oldest):
            if times.parse(line.at) >= since_us and is_wanted(line):
                found.append(line)
                if len(found) == limit:
                    break
        return found if oldest else found[::-1]

    def _lines(self, since_us: int, *, oldest: bool) -> Iterator[AuditLine]:
        """The lines of all files from a time on, in the order in which they were written or the other way round."""
        paths = [*(path for ended_us, path in _rotated(self._path.parent) if ended_us >= since_us), self._path]
        decoder = msgspec.json.Decoder(AuditLine)
        for path in paths if oldest else reversed(paths):
            try:
                with open(path, "rb") as file:
                    for text in file if oldest else _backwards(file):
                        try:
                            yield decoder.decode(text)
                        except msgspec.MsgspecError:
                            continue  # a line that a crash cut off
            except FileNotFoundError:
                continue


def _nothing() -> None:
    pass


def _backwards(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, the last one first. Reads no more of the file than the caller takes."""
    end, rest = file.seek(0, os.SEEK_END), b""
    while end:
        begin = max(0, end - _BLOCK_BYTES)
        file.seek(begin)
        rest, *lines = (file.read(end - begin) + rest).split(b"\n")
        yield from reversed(lines)
        end = begin
    yield rest


def _rotated(directory: Path) -> list[tuple[int, Path]]:
    """The files that were rotated, oldest first, each with the time of its last line."""
    found = [(match, path) for path in directory.iterdir() if (match := _ROTATED.fullmatch(path.name))]
    return sorted((int(match[1]), path) for match, path in found)


def _partitions(request: Any) -> list[int]:
    numbers = getattr(request, "partitions", None)
    if isinstance(numbers, list) and all(isinstance(number, int) for number in numbers):
        return numbers[:_LIST_ENTRIES_MAX]
    number = getattr(request, "partition", None)
    return [number] if isinstance(number, int) else []


def _asked(request: Any) -> dict[str, Any]:
    """The fields of a request without payloads: a list of items becomes their number, and a long text is cut."""
    asked: dict[str, Any] = {}
    for field, value in msgspec.structs.asdict(request).items():
        name = field.rstrip("_")
        if not value or name in _SHOWN_APART or isinstance(value, bytes | dict | msgspec.Struct):
            continue
        if isinstance(value, list):
            if all(isinstance(one, str | int) for one in value):
                asked[name] = [_cut(one) for one in value[:_LIST_ENTRIES_MAX]]
            if len(value) > _LIST_ENTRIES_MAX or name not in asked:
                asked[f"{name}_count"] = len(value)
        else:
            asked[name] = _cut(value)
    return asked


def _cut(value: Any) -> Any:
    return value[:_TEXT_CHARACTERS_MAX] if isinstance(value, str) else value
