"""`querator items redrive`: returns dead items to the queues in which they died.

The daemon has no redrive call, so this module does it in batches: it scans the dead queue, imports the items into their
origin queue with their history, and then deletes them from the dead queue. An imported item keeps its dead id as its
source id, and the origin queue remembers source ids for a month. So an interrupted run can be repeated: an item that
was imported but not deleted yet is not imported again, even if a consumer has completed it since. Leased items are
skipped.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from querator.cli.lookups.readable import open_partitions
from querator.cli.shell.options import AtMost, DryRun, Queue, Where, command
from querator.cli.terminal.id_lists import count
from querator.cli.terminal.progress import Progress
from querator.cli.terminal.render import Format
from querator.cli.terminal.session import Session
from querator.errors import Interrupted, InvalidRequest, NotFound, PartlyDone, QueratorError, UsageError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from querator.client import BulkClient

BATCH_ITEMS: Final = 1_000
IMPORT_BYTES: Final = 4_000_000
UNKNOWN_REASON: Final = "unknown"
COLUMNS: Final = ("partition", "id", "kind", "reference", "encoding", "payload", "history")


class Dead(NamedTuple):
    """A dead item, and what its history says about its death."""

    record: dict[str, Any]
    origin: str
    reason: str
    last_reason: str = ""
    """The first line of the reason why the last attempt failed."""


class Outcome(NamedTuple):
    dead: Dead
    error: QueratorError | None


def register(app: typer.Typer) -> None:
    command(app, "redrive")(redrive)


def redrive(
    session: Session,
    queue: Queue,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="QUEUE", help="Send all items to this queue, instead of the queue in which each died."
        ),
    ] = None,
    where: Where = None,
    limit: AtMost = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, metavar="N", help="Send at most this many items per second.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Return dead items to the queue in which they died. Safe to interrupt and to repeat."""
    from concurrent.futures import ThreadPoolExecutor

    if to == queue:
        raise UsageError("a queue cannot be redriven into itself")
    if to is not None:
        session.client.queue_info(to)
    run = RedriveRun(session, queue, to, dry_run=dry_run)
    with ThreadPoolExecutor(1) as pool, Progress(session.streams, f"redriving '{queue}'") as progress:
        try:
            for batch in _batches(session, queue, where or "", limit, rate):
                started = time.monotonic()
                run.handle(pool, batch)
                progress.update(run.redriven + len(run.failed))
                if rate is not None and not dry_run:
                    time.sleep(max(0.0, len(batch) / rate - (time.monotonic() - started)))
        except KeyboardInterrupt:
            run.interrupted = True
            pool.shutdown(cancel_futures=True)
            run.settle()
        except QueratorError as error:
            run.stopped_by = error
    run.report()


def _batches(
    session: Session, queue: str, where: str, limit: int | None, rate: float | None
) -> Iterator[list[dict[str, Any]]]:
    """Ready items. They are read shortly before they are used, because a consumer may complete items meanwhile."""
    left = limit if limit is not None else sys.maxsize
    with session.make_bulk_client() as bulk:
        for partition in open_partitions(session, queue):
            after = ""
            while left:
                scan = bulk.scan(queue, partition, state="ready", columns=COLUMNS, where=where, after_id=after)
                with closing(scan):
                    slice = next(scan, None)
                if slice is None:
                    break
                rows = slice.slice(0, left if rate is None else min(left, max(1, int(rate)))).to_pylist()
                after = rows[-1]["id"]
                left -= len(rows)
                for first in range(0, len(rows), BATCH_ITEMS):
                    yield rows[first : first + BATCH_ITEMS]


def _runs(dead: list[Dead]) -> Iterator[list[Dead]]:
    """The items in groups that are imported together, each of limited size."""
    run: list[Dead] = []
    size = 0
    for one in dead:
        if run and size + len(one.record["payload"]) > IMPORT_BYTES:
            yield run
            run, size = [], 0
        run.append(one)
        size += len(one.record["payload"])
    if run:
        yield run


def _located(record: dict[str, Any], to: str | None) -> Dead:
    """The item with its origin, which is empty if its history does not tell where it died."""
    import msgspec

    from querator.items import Event

    events = msgspec.json.decode(record["history"] or "[]", type=list[Event])
    deaths = [event for event in events if event.queue_name]
    failed = [event.reason.partition("\n")[0] for event in events if not event.queue_name]
    if not deaths:
        return Dead(record, to or "", UNKNOWN_REASON)
    return Dead(record, to or deaths[-1].queue_name, deaths[-1].reason, failed[-1] if failed else "")


class RedriveRun:
    """One run of the command: what is done so far, and what has failed."""

    def __init__(self, session: Session, queue: str, to: str | None, *, dry_run: bool) -> None:
        self._session = session
        self._client = session.client
        self._queue = queue
        self._to = to
        self._dry_run = dry_run
        self.redriven = 0
        self.groups: Counter[tuple[str, str, str, str]] = Counter()
        self.failed: dict[str, str] = {}
        self.interrupted = False
        self.stopped_by: QueratorError | None = None
        self._outcomes: list[Outcome] = []

    def handle(self, pool: ThreadPoolExecutor, batch: list[dict[str, Any]]) -> None:
        by_origin: dict[str, list[Dead]] = {}
        for record in batch:
            dead = _located(record, self._to)
            by_origin.setdefault(dead.origin, []).append(dead)
        # A thread finishes its work even if Ctrl-C interrupts us, so that we know what was imported.
        pool.submit(self._import_all, by_origin).result()
        self.settle()

    def _import_all(self, by_origin: dict[str, list[Dead]]) -> None:
        for origin, dead in by_origin.items():
            for some in _runs(dead):
                error = self._import(origin, some)
                self._outcomes += [Outcome(one, error) for one in some]

    def settle(self) -> None:
        """Delete the imported items from the dead queue. Also called after an interruption, for the items imported so
        far.
        """
        outcomes = self._outcomes
        done = [outcome.dead for outcome in outcomes if outcome.error is None]
        self._delete(done)
        self._outcomes = []
        for dead in done:
            self.groups[(dead.record["kind"], dead.reason, dead.last_reason, dead.origin)] += 1
        self.redriven += len(done)
        for outcome in outcomes:
            if outcome.error is not None:
                self._fail(outcome.dead.record["id"], outcome.error)

    def _import(self, origin: str, dead: list[Dead]) -> QueratorError | None:
        if not origin:
            return NotFound("its origin is not known", hint="--to says where to send it")
        import hashlib

        import pyarrow as pa

        from querator.wire import arrow

        records = [one.record for one in dead]
        columns: dict[str, list[Any]] = {
            name: [record[name] for record in records]
            for name in ("kind", "reference", "encoding", "payload", "history")
        }
        columns["source_id"] = [record["id"] for record in records]
        items = arrow.fitted(pa.record_batch(columns), arrow.IMPORTED)
        if self._dry_run:
            return None
        request_id = "redrive." + hashlib.sha256(" ".join(columns["source_id"]).encode()).hexdigest()
        try:
            self._bulk.import_(origin, [items], request_id, remember_sources=True)
        except QueratorError as error:
            return error
        return None

    @cached_property
    def _bulk(self) -> BulkClient:
        return self._session.make_bulk_client()

    def _delete(self, done: Iterable[Dead]) -> None:
        groups: dict[tuple[int, str], list[str]] = {}
        for dead in done:
            groups.setdefault((dead.record["partition"], dead.origin), []).append(dead.record["id"])
        if self._dry_run:
            return
        for (partition, origin), ids in groups.items():
            self._client.delete_items(self._queue, ids, partition=partition, purpose=f"redrive to {origin}")

    def _fail(self, id: str, error: QueratorError) -> None:
        # Continue only if the error is about this item. If the daemon is gone, the other items would fail too.
        if not isinstance(error, InvalidRequest):
            raise error
        self.failed[id] = error.message
        if not self._session.for_a_script:
            self._session.streams.note(f"{id}: {error.message}")

    def report(self) -> None:
        session = self._session
        if self.stopped_by is not None and not self.redriven:
            raise self.stopped_by
        groups = [
            {"kind": kind, "reason": reason, "last_reason": last, "origin": origin, "items": number}
            for (kind, reason, last, origin), number in self.groups.most_common()
        ]
        verb = "would redrive" if self._dry_run else "redrove"
        text = f"{verb} {count(self.redriven, 'item')} of '{self._queue}'"
        if session.format in (Format.JSON, Format.NDJSON):
            session.output.record(
                {
                    "queue_name": self._queue,
                    "redriven": self.redriven,
                    "failed": len(self.failed),
                    "groups": groups,
                    "errors": [{"id": id, "error": text} for id, text in self.failed.items()],
                },
                name="queue_name",
            )
        elif groups and not session.quiet:
            session.output.records(groups, ("kind", "reason", "last_reason", "origin", "items"), name="kind")
        go_on = "the same command continues with the rest"
        if self.interrupted:
            raise Interrupted(f"interrupted: {text}", hint=go_on)
        if self.stopped_by is not None:
            raise PartlyDone(f"{text}, then: {self.stopped_by.message}", hint=go_on)
        if self.failed:
            raise PartlyDone(f"{text}, {len(self.failed):,} failed", hint="--to QUEUE sends items of unknown origin")
        session.note(text)
