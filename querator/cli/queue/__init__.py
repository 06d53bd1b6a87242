"""`querator queue`: the daily work on one queue. `produce`, `consume` and `leases` have modules of their own."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from querator import times
from querator.cli.queue import consume, leases, produce
from querator.cli.shell.options import DryRun, Interval, Queue, Watch, Yes, command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal import id_lists
from querator.cli.terminal.confirm import confirm_by_name
from querator.cli.terminal.id_lists import Ids, Verdicts
from querator.cli.terminal.progress import Progress
from querator.cli.terminal.render import Format, Moment, Payload, message_record, short_duration
from querator.cli.terminal.session import Session, duration, moment
from querator.cli.terminal.waiting import poll, repeat
from querator.errors import QueratorError, RetryRequest, UsageError
from querator.limits import BATCH_ITEMS_MAX, REASON_BYTES_MAX, US_PER_SECOND

if TYPE_CHECKING:
    from querator.client import Client
    from querator.wire.messages import QueueLeaseResponse

app = noun(NOUNS["queue"].help)
produce.register(app)


@command(app, "lease")
def lease(
    session: Session,
    queue: Queue,
    n: Annotated[
        int,
        typer.Option(
            "-n", "--batch-size", min=1, max=BATCH_ITEMS_MAX, metavar="N", help="Lease at most this many items."
        ),
    ] = 10,
    client_id: Annotated[
        str | None, typer.Option("--client-id", metavar="TEXT", help="Name of this consumer. Default: a new name.")
    ] = None,
    complete_ids: Annotated[
        list[str] | None,
        typer.Option("--complete", metavar="ID", help="Complete this item in the same request. May be repeated."),
    ] = None,
) -> None:
    """Lease items. If there are none, wait for the first one, at most for --timeout."""
    try:
        reply = session.client.lease(queue, n, client_id=client_id, complete_ids=complete_ids or ())
    except RetryRequest as error:
        raise RetryRequest(
            error.message, hint=f"querator queue stats {queue}; --timeout says how long to wait"
        ) from None
    session.output.records(
        lease_records(reply), ("id", "attempts", "kind", "reference", "lease_deadline", "payload"), name="id"
    )


def lease_records(reply: QueueLeaseResponse) -> list[dict[str, Any]]:
    return [
        {
            "id": item.id,
            "partition": reply.partition,
            "attempts": item.attempts,
            "kind": item.kind,
            "reference": item.reference,
            "encoding": item.encoding,
            "lease_deadline": Moment(item.lease_deadline or 0),
            "payload": Payload(item.bytes_),
        }
        for item in reply.items
    ]


@command(app, "complete")
def complete(session: Session, queue: Queue, item_ids: Ids, dry_run: DryRun = False) -> None:
    """Complete leased items, which removes them from the queue. Safe to repeat."""
    _settle(
        session,
        queue,
        item_ids,
        "completed",
        lambda some: session.client.complete(queue, some),
        keeps_earlier=True,
        dry_run=dry_run,
    )


def _settle(
    session: Session,
    queue: str,
    item_ids: list[str],
    done: str,
    send: Callable[[list[str]], Any],
    *,
    keeps_earlier: bool,
    dry_run: bool,
) -> None:
    """Send the ids in batches, and report the result for each item."""
    verdicts = Verdicts()
    stopped_by: BaseException | None = None
    try:
        for batch in id_lists.batches(id_lists.given(session, item_ids)):
            if dry_run:
                verdicts.foresee(session, queue, batch)
            else:
                verdicts.apply(batch, send, keeps_earlier=keeps_earlier)
    except (QueratorError, KeyboardInterrupt) as error:
        if not verdicts.done and not verdicts.failed:
            raise
        stopped_by = error
    verdicts.report(session, f"would have {done}" if dry_run else done, stopped_by)


@command(app, "retry")
def retry(
    session: Session,
    queue: Queue,
    item_ids: Ids,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="Retry not before this time, such as 2026-01-31T08:00:00Z."),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="DURATION", help="Retry not before this much time has passed, such as 5m."),
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Move the items to the dead queue.")] = False,
    unused: Annotated[bool, typer.Option("--unused", help="Do not count the lease as an attempt.")] = False,
    reason: Annotated[
        str,
        typer.Option(
            "--reason", metavar="TEXT", help="Why the attempt failed, at most 2,000 bytes. The items keep the reason."
        ),
    ] = "",
    dry_run: DryRun = False,
) -> None:
    """Return leased items to the queue, for another attempt now or later."""
    if (size := len(reason.encode(errors="surrogateescape"))) > REASON_BYTES_MAX:
        raise UsageError(f"--reason: has {size:,} bytes, at most {REASON_BYTES_MAX:,} are allowed")
    if sum((at is not None, delay is not None, dead)) > 1:
        raise UsageError("--at, --delay and --dead exclude each other")
    if unused and (dead or reason):
        raise UsageError("--unused excludes --dead and --reason")
    when = later(at, delay, "--at")
    _settle(
        session,
        queue,
        item_ids,
        "retried",
        lambda some: session.client.retry(queue, some, at=when, dead=dead, unused=unused, reason=reason),
        keeps_earlier=True,
        dry_run=dry_run,
    )


def later(at: str | None, delay: str | None, option: str) -> int | None:
    """The time that `--at` or `--delay` means, in microseconds."""
    if at is not None:
        return moment(at, option)
    if delay is not None:
        return time.time_ns() // 1_000 + round(duration(delay, "--delay") * US_PER_SECOND)
    return None


@command(app, "extend")
def extend(
    session: Session,
    queue: Queue,
    item_ids: Ids,
    by: Annotated[
        str | None,
        typer.Option(
            "--by", metavar="DURATION", help="New lease time from now. Default: the lease timeout of the queue."
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Extend the leases of items."""
    if by is not None:
        duration(by, "--by")

    def send(some: list[str]) -> None:
        extended = session.client.extend(queue, some, lease_timeout=by)
        if session.format is Format.TABLE:
            session.note(f"leased until {times.text(min(item.lease_deadline or 0 for item in extended))}")

    _settle(session, queue, item_ids, "extended", send, keeps_earlier=False, dry_run=dry_run)


consume.register(app)
leases.register(app)


@command(app, "stats")
def stats(
    session: Session,
    queue: Queue,
    watch: Watch = False,
    interval: Interval = "2s",
) -> None:
    """Count the items of a queue by partition, and the requests that wait.

    AVERAGE_AGE is the mean age of items that are ready or leased. AVERAGE_LEASE_LEFT is the mean time until a lease
    expires. FAILURES counts how often the storage of the partition has failed since it last worked.
    """
    repeat(session, watch, interval, lambda: _stats(session, queue), lambda found: _show_stats(session, found))


STATS_COLUMNS = (
    "partition",
    "ready",
    "leased",
    "scheduled",
    "average_age",
    "average_lease_left",
    "failures",
    "state",
    "reason",
)


def stats_record(client: Client, queue: str) -> dict[str, Any]:
    reply = client.stats(queue)
    logical = reply.logical_queues[0]
    partitions: list[dict[str, Any]] = [
        {
            "partition": one.partition,
            "ready": one.total - one.total_leased,
            "leased": one.total_leased,
            "scheduled": one.scheduled,
            "average_age": one.average_age,
            # The wire contract calls it average_leased_age, but it is the time until the leases expire.
            "average_lease_left": one.average_leased_age,
            "failures": one.failures,
        }
        for one in logical.partitions
    ]
    totals = {key: sum(one[key] for one in partitions) for key in ("ready", "leased", "scheduled")}
    return {
        "queue_name": reply.queue_name or queue,
        **totals,
        "produce_waiting": logical.produce_waiting,
        "lease_waiting": logical.lease_waiting,
        "complete_waiting": logical.complete_waiting,
        "in_flight": logical.in_flight,
        "partitions": partitions,
    }


def _stats(session: Session, queue: str) -> dict[str, Any]:
    record = stats_record(session.client, queue)
    statuses = {one.partition: one for one in session.client.list_partitions(queue)}
    for one in record["partitions"]:
        status = statuses.get(one["partition"])
        one["state"], one["reason"] = (status.state, status.reason) if status else ("", "")
    return record


def _show_stats(session: Session, record: dict[str, Any]) -> None:
    if session.output.form is not Format.TABLE:
        session.output.record(record, name="queue_name")
        return
    session.output.records(record["partitions"], STATS_COLUMNS, name="partition")
    session.note(
        f"{record['queue_name']}: {record['ready']:,} ready, {record['leased']:,} leased, "
        f"{record['scheduled']:,} scheduled; "
        f"waiting: {record['produce_waiting']} produce, {record['lease_waiting']} lease"
    )


HISTORY_COLUMNS = ("at", "ready", "leased", "scheduled", "produced", "completed", "dead", "oldest", "wait", "held")


@command(app, "history")
def history(
    session: Session,
    queue: Queue,
    last: Annotated[
        str, typer.Option("--last", metavar="DURATION", help="How far back to go, at most 168h, a week.")
    ] = "15m",
) -> None:
    """Show what a queue held and did over time.

    Steps are 10 seconds long for the last 15 minutes, 5 minutes for the last day, and 30 minutes for the last week. The
    daemon keeps the history across restarts. WAIT is how long an item waits for its lease, and HELD is how long a
    consumer holds it. Both are computed from the counts in the step.
    """
    duration(last, "--last")
    reply = session.client.queue_history(queue, last=last)
    if session.output.form in (Format.JSON, Format.NDJSON):
        samples = [message_record(one, "at") for one in reply.samples]
        session.output.record({"queue_name": queue, "step": reply.step, "samples": samples}, name="queue_name")
        return
    records = [
        message_record(one, "at")
        | {
            "oldest": short_duration(one.oldest_age_ms / 1_000),
            "wait": "" if one.wait_ms is None else short_duration(one.wait_ms / 1_000),
            "held": "" if one.held_ms is None else short_duration(one.held_ms / 1_000),
        }
        for one in reply.samples
    ]
    session.output.records(records, HISTORY_COLUMNS, name="at", empty=f"no history of '{queue}' yet")


@command(app, "clear")
def clear(
    session: Session,
    queue: Queue,
    items: Annotated[bool, typer.Option("--queue", help="Delete the items that are ready.")] = False,
    scheduled: Annotated[bool, typer.Option("--scheduled", help="Delete the scheduled items.")] = False,
    destructive: Annotated[
        bool, typer.Option("--destructive", help="With --queue: delete everything, leased and scheduled items too.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete items of a queue, after a confirmation. The queue itself stays."""
    if not (items or scheduled):
        raise UsageError("say what to clear", hint="--queue, --scheduled or both; --destructive takes leased items too")
    if destructive and not items:
        raise UsageError("--destructive goes with --queue", hint=f"querator queue clear {queue} --queue --destructive")
    wanted = {"ready": items, "leased": destructive, "scheduled": scheduled or destructive}
    states = [state for state, is_wanted in wanted.items() if is_wanted]
    there = stats_record(session.client, queue)
    what = f"delete {_counted(there, states)} of queue '{queue}'"
    if dry_run:
        session.note(f"would {what}")
        return
    confirm_by_name(session, queue, what, yes=yes)
    deleted = session.client.clear(queue, items=items, scheduled=scheduled, destructive=destructive)
    text = f"deleted {_counted(deleted, states)} of '{queue}'"
    session.done(text, {"queue_name": queue, "deleted": deleted}, name="queue_name")


def _counted(counts: Mapping[str, int], states: Sequence[str]) -> str:
    """`1,200 ready, 3 leased and 1 scheduled items`"""
    *first, last = [f"{counts[state]:,} {state}" for state in states]
    word = "item" if sum(counts[state] for state in states) == 1 else "items"
    return f"{', '.join(first)} and {last} {word}" if first else f"{last} {word}"


class Condition(enum.StrEnum):
    EMPTY = "empty"
    IDLE = "idle"


@command(app, "wait")
def wait(
    session: Session,
    queue: Queue,
    condition: Annotated[
        Condition, typer.Option("--for", help="empty: no items of any kind; idle: nothing ready and nothing leased.")
    ] = Condition.EMPTY,
) -> None:
    """Wait until a queue is empty or idle, without a limit unless --timeout is given."""
    limit = session.waiting_limit()
    left: dict[str, Any] = {}
    with Progress(session.streams, f"waiting for '{queue}'") as progress:
        for _ in poll(limit, f"'{queue}' is not {condition.value}", f"querator queue stats {queue}"):
            left = stats_record(session.client, queue)
            busy = left["ready"] + left["leased"]
            if busy == 0 and (condition is Condition.IDLE or left["scheduled"] == 0):
                break
            progress.update(busy + left["scheduled"])
    session.done(f"'{queue}' is {condition.value}", left, name="queue_name")
