"""`querator queue produce`: produces one payload, or a stream of lines in batches.

The main thread reads lines and makes items. One other thread sends them, which keeps their order. Each request takes
all items that are ready, so a slow pipe is sent line by line, and a fast one in batches of a thousand.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final, NamedTuple

import msgspec
import typer

from querator.cli.shell.options import DryRun, Queue, command
from querator.cli.terminal.id_lists import count, there_already
from querator.cli.terminal.lines import TooLong, read_lines
from querator.cli.terminal.progress import Progress
from querator.cli.terminal.session import Session, duration, moment
from querator.client import new_request_id
from querator.errors import (
    ContentError,
    Interrupted,
    InvalidRequest,
    NotFound,
    PartlyDone,
    QueratorError,
    UsageError,
)
from querator.limits import BATCH_ITEMS_MAX, PRODUCE_BODY_BYTES_MAX, REQUEST_ID_BYTES_MAX, US_PER_SECOND
from querator.wire.messages import QueueProduceItem

if TYPE_CHECKING:
    from querator.client import Client

PAYLOAD_BYTES_MAX: Final = PRODUCE_BODY_BYTES_MAX * 3 // 4 - 10_000
"""A payload of this size fits into one request as base64, with space for the other fields."""
BATCH_BYTES_MAX: Final = PAYLOAD_BYTES_MAX
ITEM_OVERHEAD_BYTES: Final = 80
WAITING_BATCHES_MAX: Final = 8
ERRORS_SHOWN_MAX: Final = 20
REQUEST_ID_SUFFIX_BYTES: Final = 12


class Numbered(NamedTuple):
    line: int
    item: QueueProduceItem
    size: int


class LineError(NamedTuple):
    first: int
    last: int
    message: str

    def __str__(self) -> str:
        where = f"line {self.first}" if self.first == self.last else f"lines {self.first}-{self.last}"
        return f"{where}: {self.message}"


def register(app: typer.Typer) -> None:
    command(app, "produce")(produce)


def produce(
    session: Session,
    queue: Queue,
    payload: Annotated[
        str | None, typer.Argument(metavar="PAYLOAD|-", help="The payload. - reads it from standard input.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="Read the payload from this file.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Produce one item per line.")] = False,
    ndjson: Annotated[
        bool,
        typer.Option(
            "--ndjson", help="Produce one item per line, each a JSON object with utf8 or bytes, kind, reference, …"
        ),
    ] = False,
    kind: Annotated[str, typer.Option("--kind", metavar="TEXT", help="Kind of the item, such as welcome.")] = "",
    reference: Annotated[
        str, typer.Option("--reference", metavar="TEXT", help="Any note about the item, such as customer-7.")
    ] = "",
    encoding: Annotated[
        str, typer.Option("--encoding", metavar="TEXT", help="Encoding of the payload, such as application/json.")
    ] = "",
    enqueue_at: Annotated[
        str | None,
        typer.Option(
            "--enqueue-at", metavar="TIME", help="Make the item ready at this time, such as 2026-01-31T08:00:00Z."
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="DURATION", help="Make the item ready after this much time, such as 1h."),
    ] = None,
    request_id: Annotated[
        str | None,
        typer.Option(
            "--request-id", metavar="TEXT", help="Repeating the command with the same id within an hour adds nothing."
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Produce items from an argument, a file, or standard input."""
    draft = _draft(kind, reference, encoding, enqueue_at, delay)
    _check_request_id(request_id)
    if lines and ndjson:
        raise UsageError("--lines and --ndjson exclude each other")
    if payload is not None and payload != "-" and (file is not None or lines or ndjson):
        raise UsageError("a payload, --file, --lines and --ndjson do not go together", hint="use - for standard input")
    if payload is not None and payload != "-":
        _produce_one(session, queue, draft, os.fsencode(payload), request_id, dry_run=dry_run)
        return
    with _source(session, file, payload) as stream:
        if not (lines or ndjson):
            whole = stream.read(PAYLOAD_BYTES_MAX + 1)
            if not whole and file is None:
                raise UsageError(
                    "standard input is empty", hint=f"querator queue produce {queue} '' is an empty payload"
                )
            _produce_one(session, queue, draft, whole, request_id, dry_run=dry_run)
            return
        run = StreamRun(session, queue, request_id, dry_run=dry_run)
        run.send_all(_json_items(stream, draft, run) if ndjson else _line_items(stream, draft, run))


def _draft(kind: str, reference: str, encoding: str, enqueue_at: str | None, delay: str | None) -> QueueProduceItem:
    """An item with the fields that all items of this command share."""
    if enqueue_at is not None and delay is not None:
        raise UsageError("--enqueue-at and --delay exclude each other")
    when: int | None = None
    if enqueue_at is not None:
        when = moment(enqueue_at, "--enqueue-at")
    elif delay is not None:
        import time

        when = time.time_ns() // 1_000 + round(duration(delay, "--delay") * US_PER_SECOND)
    return QueueProduceItem(kind=kind, reference=reference, encoding=encoding, enqueue_at=when)


def _check_request_id(request_id: str | None) -> None:
    if (
        request_id is not None
        and not 0 < len(os.fsencode(request_id)) <= REQUEST_ID_BYTES_MAX - REQUEST_ID_SUFFIX_BYTES
    ):
        raise UsageError(f"--request-id must have 1 to {REQUEST_ID_BYTES_MAX - REQUEST_ID_SUFFIX_BYTES} bytes")


@contextlib.contextmanager
def _source(session: Session, file: str | None, payload: str | None) -> Iterator[BinaryIO]:
    if file is not None:
        with open(file, "rb") as stream:
            yield stream
        return
    if session.streams.terminals.stdin and payload != "-":
        raise UsageError("there is nothing to produce", hint="give a payload, --file F, or - for standard input")
    yield session.streams.stdin_bytes


def _produce_one(
    session: Session, queue: str, draft: QueueProduceItem, payload: bytes, request_id: str | None, *, dry_run: bool
) -> None:
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise UsageError(
            f"the payload is larger than {PAYLOAD_BYTES_MAX:,} bytes", hint="--lines makes an item of every line"
        )
    if dry_run:
        session.client.queue_info(queue)
        session.note(f"would produce an item of {count(len(payload), 'byte')} to '{queue}'")
        return
    draft.bytes_ = payload
    added = session.client.produce(queue, draft, request_id=request_id) or request_id is None
    record = {"queue_name": queue, "produced": int(added), "repeated": int(not added), "failed": 0}
    text = f"produced {count(int(added), 'item')} to '{queue}'{there_already(int(not added))}"
    session.done(text, record, name="queue_name")


# Streams


def _line_items(stream: BinaryIO, draft: QueueProduceItem, run: StreamRun) -> Iterator[list[Numbered]]:
    kind, reference, encoding, when = draft.kind, draft.reference, draft.encoding, draft.enqueue_at
    overhead = ITEM_OVERHEAD_BYTES + len(kind) + len(reference) + len(encoding)
    for some in read_lines(stream, PAYLOAD_BYTES_MAX):
        if isinstance(some, TooLong):
            run.refuse(some.number, f"{some.bytes:,} bytes are too many for an item")
            continue
        yield [
            Numbered(number, QueueProduceItem(encoding, kind, reference, when, line), len(line) + overhead)
            for number, line in enumerate(some.lines, some.first)
        ]


class JsonItem(msgspec.Struct, forbid_unknown_fields=True):
    """A line of NDJSON: an item with the fields of the produce request."""

    utf8: str | None = None
    bytes: str | None = None
    kind: str | None = None
    reference: str | None = None
    encoding: str | None = None
    enqueue_at: str | None = None


def _json_items(stream: BinaryIO, draft: QueueProduceItem, run: StreamRun) -> Iterator[list[Numbered]]:
    decode = msgspec.json.Decoder(JsonItem).decode
    for some in read_lines(stream, PAYLOAD_BYTES_MAX):
        if isinstance(some, TooLong):
            run.refuse(some.number, f"{some.bytes:,} bytes are too many for an item")
            continue
        found: list[Numbered] = []
        for number, line in enumerate(some.lines, some.first):
            if not line.strip():
                continue
            try:
                found.append(_json_item(number, decode(line), draft))
            except (ValueError, QueratorError) as error:
                run.refuse(number, str(error))
        if found:
            yield found


def _json_item(number: int, given: JsonItem, draft: QueueProduceItem) -> Numbered:
    import base64

    if given.utf8 is not None and given.bytes is not None:
        raise ValueError("utf8 and bytes exclude each other")
    payload = (given.utf8 or "").encode() if given.bytes is None else base64.b64decode(given.bytes, validate=True)
    item = QueueProduceItem(
        encoding=draft.encoding if given.encoding is None else given.encoding,
        kind=draft.kind if given.kind is None else given.kind,
        reference=draft.reference if given.reference is None else given.reference,
        enqueue_at=draft.enqueue_at if given.enqueue_at is None else moment(given.enqueue_at, "enqueue_at"),
        bytes_=payload,
    )
    size = len(payload) + len(item.kind) + len(item.reference) + len(item.encoding) + ITEM_OVERHEAD_BYTES
    return Numbered(number, item, size)


class StreamRun:
    """Sends a stream of items to a queue: the batches that wait, the thread that sends them, and the results."""

    def __init__(self, session: Session, queue: str, request_id: str | None, *, dry_run: bool) -> None:
        self._session = session
        self._queue = queue
        self._request_id = request_id
        self._dry_run = dry_run
        self._waiting: deque[list[Numbered]] = deque()
        self._changed = threading.Condition()
        self._reading = True
        self._stopped_by: QueratorError | None = None
        self._numbers = 0
        self.produced = 0
        self.repeated = 0
        """Items in requests that the daemon had accepted before, under the same request id."""
        self.failed = 0
        self.errors: list[LineError] = []
        self.last_line = 0

    def refuse(self, line: int, message: str, last: int | None = None, *, items: int = 1) -> None:
        self.failed += items
        error = LineError(line, last or line, message)
        if len(self.errors) <= ERRORS_SHOWN_MAX and not self._session.for_a_script:
            shown = len(self.errors) < ERRORS_SHOWN_MAX
            self._session.streams.note(str(error) if shown else "further errors are only counted")
        if len(self.errors) <= ERRORS_SHOWN_MAX:
            self.errors.append(error)

    def send_all(self, source: Iterator[list[Numbered]]) -> None:
        self._session.client.queue_info(self._queue)  # report an unknown queue before reading any input
        sender = threading.Thread(target=self._send_waiting, name="produce", daemon=True)
        sender.start()
        interrupted = False
        progress = Progress(self._session.streams, f"producing to '{self._queue}'")
        try:
            for batch in self._batched(source):
                self._put(batch)
                progress.update(self.produced + self.repeated)
                if self._stopped_by is not None:
                    break
        except KeyboardInterrupt:
            interrupted = True
            with self._changed:
                self._waiting.clear()
        finally:
            with self._changed:
                self._reading = False
                self._changed.notify_all()
            while sender.is_alive():
                sender.join(0.1)
                progress.update(self.produced + self.repeated)
            progress.clear()
        self._report(interrupted=interrupted)

    def _batched(self, source: Iterator[list[Numbered]]) -> Iterator[list[Numbered]]:
        """Cut the items into requests. With a request id, the cuts depend only on the input, so that a repeated run
        sends the same requests.
        """
        batch: list[Numbered] = []
        size = 0
        for some in source:
            for one in some:
                if len(batch) == BATCH_ITEMS_MAX or (batch and size + one.size > BATCH_BYTES_MAX):
                    yield batch
                    batch, size = [], 0
                batch.append(one)
                size += one.size
            if batch and self._request_id is None and not self._waiting:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _put(self, batch: list[Numbered]) -> None:
        with self._changed:
            while len(self._waiting) >= WAITING_BATCHES_MAX and self._stopped_by is None:
                self._changed.wait()
            self._waiting.append(batch)
            self._changed.notify_all()

    def _take(self) -> list[Numbered] | None:
        with self._changed:
            while not self._waiting and self._reading:
                self._changed.wait()
            batch = self._waiting.popleft() if self._waiting else None
            self._changed.notify_all()
            return batch

    def _send_waiting(self) -> None:
        client = self._session.client
        while (batch := self._take()) is not None:
            try:
                self._send(client, batch)
            except (InvalidRequest, ContentError) as error:
                if isinstance(error, NotFound):
                    self._stop(error)
                    return
                self._refuse_batch(batch, error)
            except QueratorError as error:
                self._stop(error)
                return
            except BaseException as error:
                self._stop(QueratorError(f"{type(error).__name__}: {error}"))
                raise
            self.last_line = batch[-1].line

    def _refuse_batch(self, batch: list[Numbered], error: QueratorError) -> None:
        self.refuse(batch[0].line, error.message, batch[-1].line, items=len(batch))

    def _stop(self, error: QueratorError) -> None:
        with self._changed:
            self._stopped_by = error
            self._waiting.clear()
            self._changed.notify_all()

    def _send(self, client: Client, batch: list[Numbered]) -> None:
        if not self._dry_run:
            self._numbers += 1
            request_id = new_request_id() if self._request_id is None else f"{self._request_id}.{self._numbers}"
            added = client.produce(self._queue, [one.item for one in batch], request_id=request_id)
            # A generated id is always new. If it counts as repeated, only the answer to an earlier attempt was lost.
            if not added and self._request_id is not None:
                self.repeated += len(batch)
                return
        self.produced += len(batch)

    def _report(self, *, interrupted: bool) -> None:
        session, queue = self._session, self._queue
        verb = "would produce" if self._dry_run else "produced"
        done = f"{verb} {count(self.produced, 'item')} to '{queue}'{there_already(self.repeated)}"
        record = {
            "queue_name": queue,
            "produced": self.produced,
            "repeated": self.repeated,
            "failed": self.failed,
            "last_line": self.last_line,
            "errors": [{"first_line": one.first, "last_line": one.last, "error": one.message} for one in self.errors],
        }
        if interrupted or self._stopped_by is not None or self.failed:
            if session.for_a_script:
                session.output.record(record, name="queue_name")
        else:
            session.done(done, record, name="queue_name")
            return
        go_on = f"all lines up to {self.last_line} are done; continue with line {self.last_line + 1}"
        if interrupted:
            raise Interrupted(f"interrupted: {done}", hint=go_on)
        if self._stopped_by is not None:
            if not self.produced + self.repeated:
                raise self._stopped_by
            raise PartlyDone(f"{done}, then: {self._stopped_by.message}", hint=go_on)
        raise (
            PartlyDone(f"{done}, {count(self.failed, 'line')} failed")
            if self.produced + self.repeated
            else InvalidRequest(f"{done}, {count(self.failed, 'line')} failed")
        )
