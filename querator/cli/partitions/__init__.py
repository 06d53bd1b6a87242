"""`querator partitions`: take partitions out of service and bring them back, move them, back them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from querator.cli import jobs
from querator.cli.queues import all_queues, partition_record
from querator.cli.shell.options import DryRun, Queue, Wait, Yes, command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal.id_lists import count
from querator.cli.terminal.progress import Progress
from querator.cli.terminal.session import Session, duration
from querator.cli.terminal.waiting import poll
from querator.errors import NotFound, PartlyDone, QueratorError, UsageError

app = noun(NOUNS["partitions"].help)

COLUMNS = ("queue_name", "partition", "state", "reason", "ready", "leased", "scheduled", "storage", "since", "bytes")

RELOAD_SECONDS_MAX = 3_600.0
"""Reading a large file again takes its time; --timeout says otherwise."""

OptionalQueue = Annotated[str | None, typer.Argument(metavar="QUEUE", help="Only this queue.", show_default=False)]
Partition = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Number of the partition.")]
Partitions = Annotated[
    list[int] | None, typer.Argument(metavar="PARTITION", min=0, help="Numbers of partitions.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="All partitions of the queue.")]


@command(app, "list")
def list_(session: Session, queue: OptionalQueue = None) -> None:
    """List partitions with storage, state and counts."""
    if queue is not None:
        session.client.queue_info(queue)
    records = [partition_record(one) for one in session.client.list_partitions(queue or "")]
    session.output.records(records, COLUMNS, name="partition", empty="no partitions")


@command(app, "show")
def show(session: Session, queue: Queue, partition: Partition) -> None:
    """Show everything known of one partition, with the path of its file."""
    found = _find(session, queue, partition)
    directories = {one.storage: one.directory for one in session.client.list_storages()}
    if found["file"] and found["storage"] in directories:
        found["file"] = f"{directories[found['storage']]}/{found['file']}"
    session.output.record(found, name="partition")


def _find(session: Session, queue: str, partition: int) -> dict[str, Any]:
    session.client.queue_info(queue)
    for one in session.client.list_partitions(queue):
        if one.partition == partition:
            return partition_record(one)
    raise NotFound(f"queue '{queue}' has no partition {partition}", hint=f"querator partitions list {queue}")


def _chosen(partitions: list[int] | None, all_: bool) -> list[int]:
    """An empty list is all of them, to the daemon; on the command line that has to be said."""
    if bool(partitions) == all_:
        raise UsageError("name partitions, or say --all", hint="querator partitions list QUEUE shows their numbers")
    return partitions or []


def _named(queue: str, partitions: list[int]) -> str:
    if not partitions:
        return f"all partitions of '{queue}'"
    numbers = ", ".join(map(str, partitions))
    return f"partition {numbers} of '{queue}'" if len(partitions) == 1 else f"partitions {numbers} of '{queue}'"


def _change(
    session: Session,
    queue: str,
    partitions: list[int],
    verb: str,
    done: str,
    send: Callable[[list[int]], Any],
    *,
    dry_run: bool,
) -> None:
    """Send a change of state and tell the outcome."""
    if dry_run:
        states = _states(session, queue, partitions)
        session.note(f"would {verb} {_named(queue, partitions)}, now {', '.join(sorted(set(states)))}")
        return
    _warn_if_last(session, queue, partitions, verb)
    send(partitions)
    session.done(
        f"{_named(queue, partitions)}: {done}",
        {"queue_name": queue, "partitions": partitions, "done": done},
        name="queue_name",
    )


def _states(session: Session, queue: str, partitions: list[int]) -> list[str]:
    found = {one.partition: one.state for one in session.client.list_partitions(queue)}
    for number in partitions:
        if number not in found:
            raise NotFound(f"queue '{queue}' has no partition {number}", hint=f"querator partitions list {queue}")
    return [state for number, state in found.items() if not partitions or number in partitions]


def _warn_if_last(session: Session, queue: str, partitions: list[int], verb: str) -> None:
    """Taking the last available partition away is allowed, but it should be meant."""
    if verb in ("resume", "reload"):
        return
    others = [
        one
        for one in session.client.list_partitions(queue)
        if one.state == "available" and partitions and one.partition not in partitions
    ]
    if not others:
        session.note(f"warning: no partition of '{queue}' is left to take items; producers wait until one is")


@command(app, "pause")
def pause(
    session: Session,
    queue: Queue,
    partitions: Partitions = None,
    all_: All = False,
    wait: Wait = False,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="Resume by itself after so long.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """No produce and no lease; what is leased can be completed."""
    if for_ is not None:
        duration(for_, "--for")

    def send(chosen: list[int]) -> None:
        session.client.pause_partitions(queue, chosen, for_=for_)

    until = f"paused for {for_}" if for_ else "paused"
    chosen = _chosen(partitions, all_)
    _change(session, queue, chosen, "pause", until, send, dry_run=dry_run)
    if wait and not dry_run:
        _wait_for_state(session, queue, chosen, "paused")


@command(app, "resume")
def resume(
    session: Session,
    queue: Queue,
    partitions: Partitions = None,
    all_: All = False,
    wait: Wait = False,
    dry_run: DryRun = False,
) -> None:
    """Back to available, after pause or drain."""
    chosen = _chosen(partitions, all_)
    _change(
        session,
        queue,
        chosen,
        "resume",
        "available",
        lambda some: session.client.resume_partitions(queue, some),
        dry_run=dry_run,
    )
    if wait and not dry_run:
        _wait_for_state(session, queue, chosen, "available")


@command(app, "drain")
def drain(
    session: Session,
    queue: Queue,
    partitions: Partitions = None,
    all_: All = False,
    wait: Wait = False,
    dry_run: DryRun = False,
) -> None:
    """No produce; what is there is leased until nothing is left."""
    chosen = _chosen(partitions, all_)
    if wait:
        session.waiting_limit()
    _change(
        session,
        queue,
        chosen,
        "drain",
        "draining",
        lambda some: session.client.drain_partitions(queue, some),
        dry_run=dry_run,
    )
    if wait and not dry_run:
        _wait_until_drained(session, queue, chosen)


def _wait_for_state(session: Session, queue: str, partitions: list[int], state: str) -> None:
    """The daemon answers when the state is reached; a storage that fails meanwhile lays `error` over it."""
    limit = session.waiting_limit()
    for _ in poll(limit, f"{_named(queue, partitions)} is not {state}", f"querator partitions list {queue}"):
        if all(one == state for one in _states(session, queue, partitions)):
            return


def _wait_until_drained(session: Session, queue: str, partitions: list[int]) -> None:
    limit = session.waiting_limit()
    hint = f"draining goes on; querator partitions list {queue} shows how far it is"
    with Progress(session.streams, f"draining '{queue}'") as progress:
        for _ in poll(limit, f"{_named(queue, partitions)} is not drained", hint):
            some = [o for o in session.client.list_partitions(queue) if not partitions or o.partition in partitions]
            if all(one.drained for one in some):
                session.note(f"{_named(queue, partitions)}: drained")
                return
            progress.update(sum(one.total + one.scheduled for one in some))


@command(app, "offline")
def offline(
    session: Session,
    queue: Queue,
    partitions: Partitions = None,
    all_: All = False,
    wait: Wait = False,
    dry_run: DryRun = False,
) -> None:
    """Close the files, so that you may touch them; reload takes them back."""
    chosen = _chosen(partitions, all_)
    _change(
        session,
        queue,
        chosen,
        "take offline",
        "unavailable",
        lambda some: session.client.offline_partitions(queue, some),
        dry_run=dry_run,
    )
    if wait and not dry_run:
        _wait_for_state(session, queue, chosen, "unavailable")


@command(app, "reload")
def reload(
    session: Session,
    queue: OptionalQueue = None,
    partitions: Partitions = None,
    all_: All = False,
    all_queues_: Annotated[
        bool, typer.Option("--all-queues", help="All partitions of all queues, for cron. Implies --keep-states.")
    ] = False,
    keep_states: Annotated[
        bool, typer.Option("--keep-states", help="Paused partitions stay paused. Offline partitions are skipped.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Close, reopen and read partitions again, one after another.

    A partition is available after its reload, even if it was paused or offline before; only a draining partition keeps
    draining. With --keep-states or --all-queues, every partition keeps the state that was asked for, and offline
    partitions are skipped. The exit code is 5 while another reload runs.
    """
    limit = session.timeout_seconds if session.timeout_given else RELOAD_SECONDS_MAX
    if all_queues_:
        if queue is not None or partitions or all_:
            raise UsageError("--all-queues stands alone")
        _reload_all_queues(session, limit, dry_run=dry_run)
        return
    if queue is None:
        raise UsageError("name a queue, or say --all-queues", hint="querator queues list")
    _change(
        session,
        queue,
        _chosen(partitions, all_),
        "reload",
        "reloaded",
        lambda chosen: session.client.reload_partitions(queue, chosen, keep_states=keep_states, timeout=limit),
        dry_run=dry_run,
    )


def _reload_all_queues(session: Session, limit: float, *, dry_run: bool) -> None:
    names = [info.queue_name for info in all_queues(session.client)]
    if dry_run:
        session.note(f"would reload all partitions of {count(len(names), 'queue')} that are not offline")
        return
    _for_each(names, "reloaded", lambda name: session.client.reload_partitions(name, keep_states=True, timeout=limit))
    session.done(f"reloaded {count(len(names), 'queue')}", {"queues": names, "reloaded": len(names)}, name="reloaded")


def _for_each(names: list[str], done: str, work: Callable[[str], Any]) -> None:
    """Does something with every queue, even if it fails for some. If it fails for all, the kind of error is theirs."""
    failures: dict[str, QueratorError] = {}
    for name in names:
        try:
            work(name)
        except QueratorError as error:
            failures[name] = error
    if not failures:
        return
    told = "; ".join(f"'{name}': {error.message}" for name, error in failures.items())
    if len({type(error) for error in failures.values()}) == 1 and len(failures) == len(names):
        only = next(iter(failures.values()))
        raise type(only)(told, hint=only.hint)
    raise PartlyDone(f"{done} {len(names) - len(failures)} of {count(len(names), 'queue')}; {told}")


@command(app, "migrate")
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
    """Move a partition to another storage, or its items into another partition, as a job."""
    if (to is None) == (to_storage is None):
        raise UsageError("say where to: --to PARTITION or --to-storage NAME")
    found = _find(session, queue, partition)
    what = f"migrate partition {partition} of '{queue}' to {f'partition {to}' if to_storage is None else to_storage}"
    if dry_run:
        if to is not None:
            _find(session, queue, to)
        items = found["ready"] + found["leased"] + found["scheduled"]
        session.note(f"would {what}: {count(items, 'item')}, {found['bytes']:,} bytes")
        return
    job_id = session.client.migrate_partition(queue, partition, to_partition=to, to_storage=to_storage or "")
    jobs.started(session, job_id, what, wait=wait)


@command(app, "backup")
def backup(
    session: Session,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="Directory on the daemon's machine.")],
    queue: OptionalQueue = None,
    partitions: Partitions = None,
    all_queues_: Annotated[
        bool, typer.Option("--all-queues", help="All queues, each into a subdirectory of its own.")
    ] = False,
    wait: Wait = False,
) -> None:
    """Take a consistent snapshot of live partitions, as a job.

    The backup also holds the queue's settings and the states of its partitions. It replaces an earlier backup in the
    same directory.

    Example: querator partitions backup orders --to /srv/backup/orders --wait
    """
    if all_queues_:
        if queue is not None or partitions:
            raise UsageError("--all-queues stands alone")
        _backup_all_queues(session, to, wait=wait)
        return
    if queue is None:
        raise UsageError("name a queue, or say --all-queues", hint="querator queues list")
    job_id = session.client.backup_partitions(queue, to, partitions or [])
    jobs.started(session, job_id, f"back up {_named(queue, partitions or [])}", wait=wait)


def _backup_all_queues(session: Session, to: str, *, wait: bool) -> None:
    """With --wait one queue after the other; without it all jobs are started at once."""
    names = [info.queue_name for info in all_queues(session.client)]
    started = []

    def start(name: str) -> None:
        job_id = session.client.backup_partitions(name, f"{to}/{_directory_name(name)}")
        started.append(jobs.wait_for(session, job_id) if wait else session.client.show_job(job_id))

    try:
        _for_each(names, "backed up", start)
    finally:
        if not wait:
            session.output.records(map(jobs.job_record, started), jobs.COLUMNS, name="job_id", empty="no queues")
    if wait:
        session.done(
            f"backed up {count(len(names), 'queue')}", {"queues": names, "backed_up": len(names)}, name="backed_up"
        )


def _directory_name(queue: str) -> str:
    """A queue's name as a file system takes it: special characters in percent notation, and not too long."""
    from hashlib import sha256
    from urllib.parse import quote

    name = quote(queue, safe="")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    return name if len(name) <= 200 else f"{name[:180]}-{sha256(queue.encode()).hexdigest()[:16]}"


@command(app, "restore")
def restore(
    session: Session,
    queue: Queue,
    from_: Annotated[str, typer.Option("--from", metavar="DIR", help="A backup on the daemon's machine.")],
    partitions: Partitions = None,
    wait: Wait = False,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the whole backup, and change nothing.")] = False,
) -> None:
    """Verify a backup and restore it, as a job. What the partitions hold now is replaced.

    A queue that does not exist is created, with the settings and states in the backup, under any name.

    Example: querator partitions restore orders-copy --from /srv/backup/orders --wait
    """
    named = _named(queue, partitions or [])
    if dry_run:
        limit = session.timeout_seconds if session.timeout_given else RELOAD_SECONDS_MAX
        session.client.restore_partitions(queue, from_, partitions or [], dry_run=True, timeout=limit)
        session.note(f"would restore {named} from {from_}: the backup is sound")
        return
    if not yes and _exists(session, queue):
        from querator.cli.terminal.confirm import confirm_by_name

        confirm_by_name(session, queue, f"replace {named} by the backup in {from_}", yes=yes)
    job_id = session.client.restore_partitions(queue, from_, partitions or [])
    jobs.started(session, job_id, f"restore {named}", wait=wait)


def _exists(session: Session, queue: str) -> bool:
    try:
        session.client.queue_info(queue)
    except NotFound:
        return False
    return True


@command(app, "accept-loss")
def accept_loss(
    session: Session, queue: Queue, partition: Partition, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Open a partition that cannot be trusted, without what it lost. Copies of its damaged files stay in quarantine.

    A backup may have more of it: see `querator partitions restore`.

    Example: querator partitions accept-loss orders 0 --dry-run
    """
    import msgspec

    from querator.cli.terminal.confirm import confirm_by_name

    named = _named(queue, [partition])
    loss = session.client.accept_loss(queue, partition, dry_run=True)
    items = count(loss.ready + loss.leased + loss.scheduled, "item")
    what = (
        f"give up what {named} lost: {loss.reason}\n"
        f"Its file has {items} and every record up to {loss.applied};"
        f" the journal still has {count(loss.replayed, 'later record')}."
        " How many items the missing records held is not known."
    )
    if dry_run:
        session.note(f"would {what}")
        return
    confirm_by_name(session, queue, what, yes=yes)
    loss = session.client.accept_loss(queue, partition, timeout=RELOAD_SECONDS_MAX)
    left = count(loss.ready + loss.leased + loss.scheduled, "item")
    session.done(
        f"{named}: gave up {loss.reason}; {left} left",
        {"queue_name": queue, "partition": partition, **msgspec.structs.asdict(loss)},
        name="queue_name",
    )


@command(app, "verify")
def verify(session: Session, queue: Queue, partitions: Partitions = None, wait: Wait = False) -> None:
    """Read everything and compare it with what the daemon believes, as a job."""
    job_id = session.client.verify_partitions(queue, partitions or [])
    jobs.started(session, job_id, f"verify {_named(queue, partitions or [])}", wait=wait)


@command(app, "compact")
def compact(
    session: Session, queue: Queue, partitions: Partitions = None, wait: Wait = False, dry_run: DryRun = False
) -> None:
    """Give the space of deleted items back, as a job, while the queue goes on."""
    if dry_run:
        _states(session, queue, partitions or [])
        session.note(f"would compact {_named(queue, partitions or [])}")
        return
    job_id = session.client.compact_partitions(queue, partitions or [])
    jobs.started(session, job_id, f"compact {_named(queue, partitions or [])}", wait=wait)


# Jobs are reached from here too: that is where an operator has just started one.
command(app, "jobs")(jobs.list_)
command(app, "cancel")(jobs.cancel)
