"""`querator items redrive`: dead items go back to where they came from.

The daemon knows no redrive, so it is done here, item by item: produce to the origin queue, then delete from the dead
queue. The produce carries a request id made of the item's id, so that an interrupted run can be repeated: an item that
was produced but not yet deleted is not produced again. Leased items are left to those who hold them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from querator.cli.ids import count
from querator.cli.options import AtMost, DryRun, Queue, Where, command
from querator.cli.progress import Progress
from querator.cli.reading import open_partitions
from querator.cli.render import Format
from querator.cli.session import Session
from querator.errors import Interrupted, InvalidRequest, NotFound, PartlyDone, QueratorError, UsageError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

SIDE_BY_SIDE: Final = 8
BATCH_ITEMS: Final = 200
UNKNOWN_REASON: Final = "unknown"


class Dead(NamedTuple):
    """A dead item and what its history says of it."""

    record: dict[str, Any]
    origin: str
    reason: str


class Outcome(NamedTuple):
    dead: Dead
    error: QueratorError | None


def register(app: typer.Typer) -> None:
    command(app, "redrive")(redrive)


def redrive(
    session: Session,
    queue: Queue,
    to: Annotated[
        str | None, typer.Option("--to", metavar="QUEUE", help="Instead of each item's origin queue.")
    ] = None,
    where: Where = None,
    limit: AtMost = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, metavar="N", help="At most so many items a second.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Send dead items back to the queue where they died. Safe to interrupt and to repeat."""
    from concurrent.futures import ThreadPoolExecutor

    if to == queue:
        raise UsageError("a queue cannot be redriven into itself")
    if to is not None:
        session.client.queue_info(to)
    run = Run(session, queue, to, dry_run=dry_run)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool, Progress(session.streams, f"redriving '{queue}'") as progress:
        try:
            for batch in _batches(_candidates(session, queue, where, limit), rate):
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


def _candidates(session: Session, queue: str, where: str | None, limit: int | None) -> Iterator[dict[str, Any]]:
    from querator.cli.items import ItemState, stored_items

    client = session.client
    numbers = open_partitions(session, queue)
    if where is not None:
        from querator.cli.filters import matching_items

        found = matching_items(client, queue, None, ItemState.READY, None, where)
    else:
        found = stored_items(client, queue, numbers, ItemState.READY)
    return islice(found, limit)


def _batches(records: Iterator[dict[str, Any]], rate: float | None) -> Iterator[list[dict[str, Any]]]:
    size = BATCH_ITEMS if rate is None else max(1, min(BATCH_ITEMS, int(rate)))
    while batch := list(islice(records, size)):
        yield batch


class Run:
    """What has been done so far, and what failed."""

    def __init__(self, session: Session, queue: str, to: str | None, *, dry_run: bool) -> None:
        self._session = session
        self._client = session.client
        self._queue = queue
        self._to = to
        self._dry_run = dry_run
        self.redriven = 0
        self.groups: Counter[tuple[str, str, str]] = Counter()
        self.failed: dict[str, str] = {}
        self.interrupted = False
        self.stopped_by: QueratorError | None = None
        self._outcomes: list[Outcome] = []

    def handle(self, pool: ThreadPoolExecutor, batch: list[dict[str, Any]]) -> None:
        for _ in pool.map(self._send, batch):
            pass
        self.settle()

    def settle(self) -> None:
        """Delete what has been produced; after an interruption, what the threads got done until then."""
        outcomes = self._outcomes
        done = [outcome.dead for outcome in outcomes if outcome.error is None]
        self._delete(done)
        self._outcomes = []
        for dead in done:
            self.groups[(dead.record["kind"], dead.reason, dead.origin)] += 1
        self.redriven += len(done)
        for outcome in outcomes:
            if outcome.error is not None:
                self._fail(outcome.dead.record["id"], outcome.error)

    def _send(self, record: dict[str, Any]) -> None:
        dead = Dead(record, self._to or "", UNKNOWN_REASON)
        try:
            history = self._client.inspect_item(self._queue, record["id"]).history
            if history:
                last = max(history, key=lambda death: death.at or 0)
                dead = Dead(record, self._to or last.queue_name, last.reason)
            if not dead.origin:
                raise NotFound("its origin is not known", hint="--to says where to send it")
            if not self._dry_run:
                self._produce(dead)
        except QueratorError as error:
            self._outcomes.append(Outcome(dead, error))
        else:
            self._outcomes.append(Outcome(dead, None))

    def _produce(self, dead: Dead) -> None:
        from querator import calls

        record = dead.record
        item = calls.produce_item(
            bytes(record["payload"]), kind=record["kind"], reference=record["reference"], encoding=record["encoding"]
        )
        self._client.produce(dead.origin, item, request_id=f"redrive.{record['id']}")

    def _delete(self, done: Iterable[Dead]) -> None:
        groups: dict[tuple[int, str], list[str]] = {}
        for dead in done:
            groups.setdefault((dead.record["partition"], dead.origin), []).append(dead.record["id"])
        if self._dry_run:
            return
        for (partition, origin), ids in groups.items():
            self._client.delete_items(self._queue, ids, partition=partition, purpose=f"redrive to {origin}")

    def _fail(self, id: str, error: QueratorError) -> None:
        # A daemon that is gone stays gone for the rest; a single item may have its own trouble.
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
            {"kind": kind, "reason": reason, "origin": origin, "items": number}
            for (kind, reason, origin), number in self.groups.most_common()
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
            session.output.records(groups, ("kind", "reason", "origin", "items"), name="kind")
        go_on = "the same command goes on with the rest"
        if self.interrupted:
            raise Interrupted(f"interrupted: {text}", hint=go_on)
        if self.stopped_by is not None:
            raise PartlyDone(f"{text}, then: {self.stopped_by.message}", hint=go_on)
        if self.failed:
            raise PartlyDone(f"{text}, {len(self.failed):,} failed", hint="--to QUEUE sends items of unknown origin")
        session.note(text)
