"""`querator partitions backup` and `restore`."""

from __future__ import annotations

from typing import Annotated

import typer

from querator.cli import jobs
from querator.cli.partitions.selection import (
    OptionalQueue,
    Partitions,
    file_timeout,
    for_each_queue,
    named,
    one_queue,
)
from querator.cli.queues import all_queues
from querator.cli.shell.options import Queue, Wait, Yes
from querator.cli.terminal.confirm import confirm_by_name
from querator.cli.terminal.id_lists import count
from querator.cli.terminal.session import Session
from querator.errors import NotFound, UsageError


def backup(
    session: Session,
    to: Annotated[
        str, typer.Option("--to", metavar="DIR", help="Write the backup to this directory on the daemon's machine.")
    ],
    queue: OptionalQueue = None,
    partitions: Partitions = None,
    all_queues_: Annotated[
        bool, typer.Option("--all-queues", help="Back up all queues, each to its own subdirectory.")
    ] = False,
    wait: Wait = False,
) -> None:
    """Start a job that takes a consistent snapshot of live partitions.

    The backup also holds the queue's settings and the states of its partitions. It replaces an earlier backup in the
    same directory.

    Example: querator partitions backup orders --to /srv/backup/orders --wait
    """
    if all_queues_:
        if queue is not None or partitions:
            raise UsageError("--all-queues cannot be combined with a queue or partitions")
        _backup_all_queues(session, to, wait=wait)
        return
    name = one_queue(queue)
    job_id = session.client.backup_partitions(name, to, partitions or [])
    jobs.started(session, job_id, f"back up {named(name, partitions or [])}", wait=wait)


def _backup_all_queues(session: Session, to: str, *, wait: bool) -> None:
    """Back up one queue after another with --wait. Without it, start all jobs at once."""
    names = [info.queue_name for info in all_queues(session.client)]
    started = []

    def start(name: str) -> None:
        job_id = session.client.backup_partitions(name, f"{to}/{_directory_name(name)}")
        started.append(jobs.wait_for(session, job_id) if wait else session.client.show_job(job_id))

    try:
        for_each_queue(names, "backed up", start)
    finally:
        if not wait:
            session.output.records(map(jobs.job_record, started), jobs.COLUMNS, name="job_id", empty="no queues")
    if wait:
        session.done(
            f"backed up {count(len(names), 'queue')}", {"queues": names, "backed_up": len(names)}, name="backed_up"
        )


def _directory_name(queue: str) -> str:
    """A directory name for a queue: special characters are percent-encoded, and a long name is cut and hashed."""
    from hashlib import sha256
    from urllib.parse import quote

    name = quote(queue, safe="")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    return name if len(name) <= 200 else f"{name[:180]}-{sha256(queue.encode()).hexdigest()[:16]}"


def restore(
    session: Session,
    queue: Queue,
    from_: Annotated[
        str, typer.Option("--from", metavar="DIR", help="Read the backup from this directory on the daemon's machine.")
    ],
    partitions: Partitions = None,
    wait: Wait = False,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the whole backup and change nothing.")] = False,
) -> None:
    """Start a job that verifies a backup and restores it. The backup replaces what the partitions hold now.

    A queue that does not exist is created with the settings and states in the backup. Its name may differ from the
    name in the backup.

    Example: querator partitions restore orders-copy --from /srv/backup/orders --wait
    """
    what = named(queue, partitions or [])
    if dry_run:
        timeout = file_timeout(session)
        session.client.restore_partitions(queue, from_, partitions or [], dry_run=True, timeout=timeout)
        session.note(f"would restore {what} from {from_}: the backup is sound")
        return
    if not yes and _exists(session, queue):
        confirm_by_name(session, queue, f"replace {what} by the backup in {from_}", yes=yes)
    job_id = session.client.restore_partitions(queue, from_, partitions or [])
    jobs.started(session, job_id, f"restore {what}", wait=wait)


def _exists(session: Session, queue: str) -> bool:
    try:
        session.client.queue_info(queue)
    except NotFound:
        return False
    return True
