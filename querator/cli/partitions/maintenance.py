"""The verbs that start long work on a partition's file: migrate, verify, compact and accept-loss."""

from __future__ import annotations

from typing import Annotated

import typer

from querator.cli import jobs
from querator.cli.partitions.selection import FILE_SECONDS_MAX, Partition, Partitions, find, named, states_of
from querator.cli.shell.options import DryRun, Queue, Wait, Yes
from querator.cli.terminal.confirm import confirm_by_name
from querator.cli.terminal.id_lists import count
from querator.cli.terminal.session import Session
from querator.errors import UsageError


def migrate(
    session: Session,
    queue: Queue,
    partition: Partition,
    to: Annotated[
        int | None, typer.Option("--to", min=0, metavar="PARTITION", help="Move the items into this partition.")
    ] = None,
    to_storage: Annotated[
        str | None, typer.Option("--to-storage", metavar="STORAGE", help="Move the file to this storage.")
    ] = None,
    wait: Wait = False,
    dry_run: DryRun = False,
) -> None:
    """Start a job that moves a partition to another storage, or its items into another partition."""
    if (to is None) == (to_storage is None):
        raise UsageError("say where to: --to PARTITION or --to-storage NAME")
    found = find(session, queue, partition)
    what = f"migrate partition {partition} of '{queue}' to {f'partition {to}' if to_storage is None else to_storage}"
    if dry_run:
        if to is not None:
            find(session, queue, to)
        items = found["ready"] + found["leased"] + found["scheduled"]
        session.note(f"would {what}: {count(items, 'item')}, {found['bytes']:,} bytes")
        return
    job_id = session.client.migrate_partition(queue, partition, to_partition=to, to_storage=to_storage or "")
    jobs.started(session, job_id, what, wait=wait)


def accept_loss(
    session: Session, queue: Queue, partition: Partition, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Open a partition that cannot be trusted, without what it lost. Copies of its damaged files stay in quarantine.

    A backup may still have the lost items: see `querator partitions restore`.

    Example: querator partitions accept-loss orders 0 --dry-run
    """
    import msgspec

    where = named(queue, [partition])
    loss = session.client.accept_loss(queue, partition, dry_run=True)
    items = count(loss.ready + loss.leased + loss.scheduled, "item")
    what = (
        f"give up what {where} lost: {loss.reason}.\n"
        f"Its file has {items} and every record up to {loss.applied};"
        f" the journal still has {count(loss.replayed, 'later record')}."
        " How many items the missing records held is not known."
    )
    if dry_run:
        session.note(f"would {what}")
        return
    confirm_by_name(session, queue, what, yes=yes)
    loss = session.client.accept_loss(queue, partition, timeout=FILE_SECONDS_MAX)
    left = count(loss.ready + loss.leased + loss.scheduled, "item")
    session.done(
        f"{where}: gave up what it lost ({loss.reason}); {left} left",
        {"queue_name": queue, "partition": partition, **msgspec.structs.asdict(loss)},
        name="queue_name",
    )


def verify(session: Session, queue: Queue, partitions: Partitions = None, wait: Wait = False) -> None:
    """Start a job that reads all items and compares them with what the daemon has in memory."""
    job_id = session.client.verify_partitions(queue, partitions or [])
    jobs.started(session, job_id, f"verify {named(queue, partitions or [])}", wait=wait)


def compact(
    session: Session, queue: Queue, partitions: Partitions = None, wait: Wait = False, dry_run: DryRun = False
) -> None:
    """Start a job that returns the disk space of deleted items. The queue keeps working meanwhile."""
    if dry_run:
        states_of(session, queue, partitions or [])
        session.note(f"would compact {named(queue, partitions or [])}")
        return
    job_id = session.client.compact_partitions(queue, partitions or [])
    jobs.started(session, job_id, f"compact {named(queue, partitions or [])}", wait=wait)
