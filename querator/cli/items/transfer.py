"""`querator items export` and `items import`: stored items as NDJSON, one item per line."""

from __future__ import annotations

import base64
import contextlib
import os
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, TextIO

import msgspec
import typer

from querator import times
from querator.cli.shell.options import AtMost, DryRun, OnlyPartition, Queue, Where, command
from querator.cli.terminal.id_lists import count, there_already
from querator.cli.terminal.lines import TooLong, read_lines
from querator.cli.terminal.progress import Progress
from querator.cli.terminal.render import json_line
from querator.cli.terminal.session import Session
from querator.errors import Interrupted, InvalidRequest, PartlyDone, QueratorError, UsageError
from querator.limits import IMPORT_BODY_BYTES_MAX

if TYPE_CHECKING:
    from querator.wire.messages import StorageItem

LINE_BYTES_MAX: Final = 16_000_000
BATCH_ITEMS: Final = 1_000
BATCH_BYTES_MAX: Final = IMPORT_BODY_BYTES_MAX // 4


def register(app: typer.Typer) -> None:
    command(app, "export")(export)
    command(app, "import")(import_)


def export(
    session: Session,
    queue: Queue,
    to: Annotated[
        str | None, typer.Option("--to", metavar="FILE", help="Write to this new file. Default: standard output.")
    ] = None,
    partition: OnlyPartition = None,
    where: Where = None,
    limit: AtMost = None,
) -> None:
    """Write stored items as NDJSON, one per line, including scheduled items. The items stay in the queue."""
    records = _records(session, queue, partition, where)
    number = 0
    with _target(session, to) as stream, Progress(session.streams, f"exporting '{queue}'") as progress:
        for record in islice(records, limit):
            stream.write(json_line(record) + "\n")
            number += 1
            progress.update(number)
    session.note(f"exported {count(number, 'item')} of '{queue}'")


def _records(session: Session, queue: str, partition: int | None, where: str | None) -> Iterator[dict[str, Any]]:
    from querator.cli.items import ItemState, partition_numbers, stored_items

    numbers = partition_numbers(session.client, queue)
    chosen = numbers if partition is None else [partition]
    if where is not None:
        from querator.cli.lookups.filters import matching_items

        return matching_items(session.client, queue, None if partition is None else chosen, ItemState.ALL, None, where)
    return stored_items(session.client, queue, chosen, ItemState.ALL)


@contextlib.contextmanager
def _target(session: Session, to: str | None) -> Iterator[TextIO]:
    """Standard output, or a file that gets its final name when it is complete."""
    if to is None:
        yield session.streams.stdout
        return
    if os.path.lexists(to):
        raise UsageError(f"{to} exists already", hint="choose another name, or remove it first")
    draft = f"{to}.{os.getpid()}.part"
    try:
        with open(draft, "x", encoding="utf-8") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(draft, to)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


class Exported(msgspec.Struct, forbid_unknown_fields=True):
    """A line of an export."""

    id: str = ""
    partition: int = 0
    state: str = ""
    kind: str = ""
    reference: str = ""
    encoding: str = ""
    attempts: int = 0
    max_attempts: int = 0
    created_at: str | None = None
    expire_deadline: str | None = None
    lease_deadline: str | None = None
    client_id: str | None = None
    token_name: str | None = None
    leased_at: str | None = None
    enqueue_at: str | None = None
    source_id: str = ""
    utf8: str | None = None
    bytes: str | None = None


def import_(
    session: Session,
    queue: Queue,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="File of an export. - reads standard input.")] = "-",
    dry_run: DryRun = False,
) -> None:
    """Import the items of an export. They keep their kind, reference, attempts and deadlines, but no leases.

    Every item keeps its old id as its source id, so repeating an import does not add an item that is still there.
    """
    if file == "-" and session.streams.terminals.stdin:
        raise UsageError("there is nothing to import", hint="give a FILE, or - and something on standard input")
    run = ImportRun(session, queue, dry_run=dry_run)
    with contextlib.ExitStack() as stack:
        stream = session.streams.stdin_bytes if file == "-" else stack.enter_context(open(file, "rb"))
        progress = stack.enter_context(Progress(session.streams, f"importing to '{queue}'"))
        interrupted = False
        try:
            for _ in run.read(stream):
                progress.update(run.imported + run.repeated)
        except KeyboardInterrupt:
            interrupted = True
    run.report(interrupted=interrupted)


class ImportRun:
    def __init__(self, session: Session, queue: str, *, dry_run: bool) -> None:
        from querator.cli.items import partition_numbers

        self._session = session
        self._queue = queue
        self._dry_run = dry_run
        self._partitions = partition_numbers(session.client, queue)
        self._batches: dict[int, list[StorageItem]] = {number: [] for number in self._partitions}
        self._sizes = dict.fromkeys(self._partitions, 0)
        self.imported = 0
        self.repeated = 0
        """Items that the queue had already, from an earlier import."""
        self.failed = 0

    def read(self, stream: BinaryIO) -> Iterator[None]:
        """Read and import all lines. Yields after each read, so that the caller can show progress."""
        decode = msgspec.json.Decoder(Exported).decode
        for some in read_lines(stream, LINE_BYTES_MAX):
            if isinstance(some, TooLong):
                self._refuse(some.number, f"{some.bytes:,} bytes are too many for an item")
                continue
            for number, line in enumerate(some.lines, some.first):
                if line.strip():
                    try:
                        self._add(decode(line))
                    except (ValueError, InvalidRequest) as error:
                        self._refuse(number, str(error))
            yield
        for partition in self._partitions:
            self._flush(partition)

    def _refuse(self, line: int, message: str) -> None:
        self.failed += 1
        self._session.streams.note(f"line {line}: {message}")

    def _add(self, line: Exported) -> None:
        from querator.wire.messages import StorageItem

        payload = (line.utf8 or "").encode() if line.bytes is None else base64.b64decode(line.bytes, validate=True)
        source_id = line.source_id or line.id
        if line.enqueue_at is not None or line.state == "scheduled":
            self._schedule(line, payload)
            return
        item = StorageItem(
            source_id=source_id,
            expire_deadline=None if line.expire_deadline is None else times.parse(line.expire_deadline),
            attempts=line.attempts,
            max_attempts=line.max_attempts,
            reference=line.reference,
            encoding=line.encoding,
            kind=line.kind,
            payload=payload,
        )
        # Always choose the same partition for an item, because each partition knows only its own source ids.
        partition = self._partitions[zlib.crc32(source_id.encode()) % len(self._partitions)]
        self._batches[partition].append(item)
        self._sizes[partition] += len(payload) + len(line.reference) + len(line.kind)
        if len(self._batches[partition]) >= BATCH_ITEMS or self._sizes[partition] >= BATCH_BYTES_MAX:
            self._flush(partition)

    def _schedule(self, line: Exported, payload: bytes) -> None:
        """Produce a scheduled item: an import cannot schedule. The request id prevents duplicates for an hour."""
        from querator.client import produce_item

        item = produce_item(
            payload, kind=line.kind, reference=line.reference, encoding=line.encoding, enqueue_at=line.enqueue_at
        )
        added = True
        if not self._dry_run:
            added = self._session.client.produce(self._queue, item, request_id=f"import.{line.id}" if line.id else None)
        self.imported += added
        self.repeated += not added

    def _flush(self, partition: int) -> None:
        batch = self._batches[partition]
        repeated = 0
        if batch and not self._dry_run:
            answer = self._session.client.import_items(self._queue, batch, partition=partition)
            repeated = sum(not item.id for item in answer)  # an item that was there already gets no id
        self.imported += len(batch) - repeated
        self.repeated += repeated
        self._batches[partition], self._sizes[partition] = [], 0

    def report(self, *, interrupted: bool) -> None:
        verb = "would import" if self._dry_run else "imported"
        text = f"{verb} {count(self.imported, 'item')} to '{self._queue}'{there_already(self.repeated)}"
        if interrupted:
            raise Interrupted(f"interrupted: {text}", hint="the same command adds what is missing")
        if self.failed:
            text += f", {count(self.failed, 'line')} failed"
            raise PartlyDone(text) if self.imported + self.repeated else QueratorError(text)
        counts = {"imported": self.imported, "repeated": self.repeated, "failed": self.failed}
        self._session.done(text, {"queue_name": self._queue, **counts}, name="queue_name")
