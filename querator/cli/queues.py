"""`querator queues`: create, list, show, update and delete queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from querator.cli.shell.options import AtMost, DryRun, NewName, Queue, Yes, command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal.confirm import confirm_by_name
from querator.cli.terminal.render import Format, Moment, moment_or_none
from querator.cli.terminal.session import Session, duration
from querator.errors import Conflict, NotFound, UsageError
from querator.limits import LIST_LIMIT_DEFAULT, PARTITIONS_MAX

if TYPE_CHECKING:
    from querator.client import Client
    from querator.wire.messages import PartitionStatus, QueueInfo

app = noun(NOUNS["queues"].help)

COLUMNS = (
    "queue_name",
    "partitions",
    "ready",
    "leased",
    "scheduled",
    "produced_last_minute",
    "completed_last_minute",
    "oldest_age",
    "dead_queue",
)

Partitions = Annotated[
    int | None,
    typer.Option("--partitions", min=1, metavar="N", help=f"Number of partitions, at most {PARTITIONS_MAX}."),
]
LeaseTimeout = Annotated[
    str | None,
    typer.Option(
        "--lease-timeout",
        metavar="DURATION",
        help="A consumer may hold an item for this time without extending its lease.",
    ),
]
ExpireTimeout = Annotated[
    str | None,
    typer.Option(
        "--expire-timeout", metavar="DURATION", help="An item that is not completed within this time is dead."
    ),
]
MaxAttempts = Annotated[
    int | None,
    typer.Option(
        "--max-attempts", min=0, metavar="N", help="An item is dead after this many attempts. 0 means no limit."
    ),
]
DeadQueue = Annotated[
    str | None, typer.Option("--dead-queue", metavar="QUEUE", help="Move dead items to this queue. Empty: delete them.")
]
Retention = Annotated[
    str | None,
    typer.Option(
        "--retention",
        metavar="DURATION",
        help="For a dead queue: delete items this long after they arrived, such as 30d. 0 keeps them.",
    ),
]
Reference = Annotated[str | None, typer.Option("--reference", metavar="TEXT", help="Any note about the queue.")]


def record_of(info: QueueInfo) -> dict[str, Any]:
    """The record of a queue. `info` must have been requested with its figures."""
    figures = info.figures
    assert figures is not None
    return {
        "queue_name": info.queue_name,
        "partitions": info.requested_partitions,
        "ready": figures.ready,
        "leased": figures.leased,
        "scheduled": figures.scheduled,
        "produced_last_minute": figures.produced_last_minute,
        "completed_last_minute": figures.completed_last_minute,
        "oldest_age": figures.oldest_age,
        "lease_timeout": info.lease_timeout,
        "expire_timeout": info.expire_timeout,
        "max_attempts": info.max_attempts,
        "dead_queue": info.dead_queue,
        "retention": info.retention,
        "reference": info.reference,
        "namespace": info.namespace,
        "created_at": Moment(info.created_at or 0),
        "updated_at": Moment(info.updated_at or 0),
    }


def all_queues(client: Client, limit: int | None = None, contains: str = "") -> Iterator[QueueInfo]:
    """The queues with this in their name, in the order of their names, page by page. A page starts with the last name
    of the page before."""
    pivot, seen = "", 0
    while True:
        page = client.list_queues(pivot=pivot, limit=LIST_LIMIT_DEFAULT)
        for info in page:
            if info.queue_name == pivot or contains.lower() not in info.queue_name.lower():
                continue
            if limit is not None and seen >= limit:
                return
            seen += 1
            yield info
        if len(page) < LIST_LIMIT_DEFAULT:
            return
        pivot = page[-1].queue_name


@command(app, "create")
def create(
    session: Session,
    name: NewName,
    partitions: Partitions = 1,
    lease_timeout: LeaseTimeout = "1m",
    expire_timeout: ExpireTimeout = "24h",
    max_attempts: MaxAttempts = 0,
    dead_queue: DeadQueue = "",
    reference: Reference = "",
    retention: Retention = "0",
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the queue exists already.")
    ] = False,
) -> None:
    """Create a queue."""
    _check_durations(lease_timeout, expire_timeout, retention)
    try:
        session.client.create_queue(
            name,
            partitions=partitions or 1,
            lease_timeout=lease_timeout or "",
            expire_timeout=expire_timeout or "",
            max_attempts=max_attempts or 0,
            dead_queue=dead_queue or "",
            reference=reference or "",
            retention=retention or "0",
        )
        text = f"created queue '{name}'"
    except Conflict:
        if not if_not_exists:
            raise Conflict(
                f"queue '{name}' already exists", hint=f"querator queues show {name}, or add --if-not-exists"
            ) from None
        text = f"queue '{name}' already exists"
    _tell(session, name, text)


@command(app, "list")
def list_(
    session: Session,
    limit: AtMost = None,
    contains: Annotated[
        str, typer.Option("--contains", metavar="TEXT", help="Only queues with this in their name.")
    ] = "",
) -> None:
    """List the queues with the number of their items.

    READY items wait for a consumer, LEASED ones are with a consumer, SCHEDULED ones wait for their time.
    PRODUCED_LAST_MINUTE counts new items; COMPLETED_LAST_MINUTE counts items that consumers completed. OLDEST_AGE is
    the age of the oldest item that is ready or leased.
    """
    records = map(record_of, all_queues(session.client, limit, contains))
    session.output.records(
        records, COLUMNS, name="queue_name", empty="no queues yet; querator queues create NAME makes one"
    )


@command(app, "show")
def show(session: Session, name: Queue) -> None:
    """Show a queue's settings and its partitions.

    WAITING_CLIENTS are the consumers that wait for items, at most 100, the one that waits longest first.
    """
    info = session.client.queue_info(name)
    record = record_of(info) | {"waiting_clients": info.figures.waiting_clients if info.figures else []}
    partitions = [partition_record(one) for one in session.client.list_partitions(name)]
    if session.output.form is not Format.TABLE:
        session.output.record(record | {"partition_details": partitions}, name="queue_name")
        return
    session.output.record(record, name="queue_name")
    if session.output.columns is not None:
        return
    session.streams.stdout.write("\n")
    session.output.records(
        partitions,
        ("partition", "state", "reason", "ready", "leased", "scheduled", "storage", "bytes"),
        name="partition",
    )


def partition_record(status: PartitionStatus) -> dict[str, Any]:
    return {
        "queue_name": status.queue_name,
        "partition": status.partition,
        "storage": status.storage,
        "state": status.state,
        "requested_state": status.requested_state,
        "reason": status.reason,
        "since": moment_or_none(status.since),
        "resume_at": moment_or_none(status.resume_at),
        "ready": status.total - status.leased,
        "leased": status.leased,
        "scheduled": status.scheduled,
        "drained": status.drained,
        "bytes": status.bytes_,
        "file": status.file,
        "job_id": status.job_id,
    }


@command(app, "update")
def update(
    session: Session,
    name: Queue,
    partitions: Partitions = None,
    lease_timeout: LeaseTimeout = None,
    expire_timeout: ExpireTimeout = None,
    max_attempts: MaxAttempts = None,
    dead_queue: DeadQueue = None,
    reference: Reference = None,
    retention: Retention = None,
    dry_run: DryRun = False,
) -> None:
    """Change the settings of a queue. Settings that are not given stay as they are."""
    _check_durations(lease_timeout, expire_timeout, retention)
    changes = {
        "requested_partitions": partitions,
        "lease_timeout": lease_timeout,
        "expire_timeout": expire_timeout,
        "max_attempts": max_attempts,
        "dead_queue": dead_queue,
        "reference": reference,
        "retention": retention,
    }
    changes = {field: value for field, value in changes.items() if value is not None}
    if not changes:
        raise UsageError("nothing to change", hint="querator queues update --help")
    # An update resets every setting that it leaves out, so send all of them.
    info = session.client.queue_info(name)
    before = {field: getattr(info, field) for field in changes}
    for field, value in changes.items():
        setattr(info, field, value)
    if dry_run:
        for field, value in changes.items():
            session.note(f"would change {field} of '{name}' from {before[field] or '-'} to {value or '-'}")
        return
    session.client.update_queue(info)
    text = f"updated queue '{name}'"
    if partitions is not None and partitions < before["requested_partitions"]:
        text += "; a job empties the partitions to be removed, see querator jobs list"
    _tell(session, name, text)


@command(app, "delete")
def delete(
    session: Session,
    name: Queue,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if there is no such queue.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Delete it even if other queues use it as their dead queue.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete a queue and all its items."""
    try:
        counts = item_counts(session.client, name)
        if dry_run:
            session.note(f"would delete queue '{name}' with {counts}")
            return
        confirm_by_name(session, name, f"delete queue '{name}' with {counts}", yes=yes)
        session.client.delete_queue(name, force=force)
    except NotFound:
        if not if_exists:
            raise
        session.note(f"there is no queue '{name}'")
        return
    session.done(f"deleted queue '{name}'", {"queue_name": name, "deleted": True}, name="queue_name")


def item_counts(client: Client, name: str) -> str:
    """`12 items (3 leased) and 2 scheduled`, for a question or a dry run."""
    partitions = [one for logical in client.stats(name).logical_queues for one in logical.partitions]
    total = sum(one.total for one in partitions)
    leased = sum(one.total_leased for one in partitions)
    scheduled = sum(one.scheduled for one in partitions)
    return f"{total:,} items ({leased:,} leased) and {scheduled:,} scheduled"


def _check_durations(lease_timeout: str | None, expire_timeout: str | None, retention: str | None) -> None:
    if lease_timeout is not None:
        duration(lease_timeout, "--lease-timeout")
    if expire_timeout is not None:
        duration(expire_timeout, "--expire-timeout")
    if retention is not None:
        from querator import durations

        try:
            durations.parse_days(retention)
        except ValueError:
            hint = "durations look like 12h, 7d, 30d; 0 keeps them"
            raise UsageError(f"--retention: '{retention}' is not a duration", hint=hint) from None


def _tell(session: Session, name: str, text: str) -> None:
    if session.format is Format.TABLE:
        session.note(text)
    else:
        session.output.record(record_of(session.client.queue_info(name)), name="queue_name")
