"""`querator archive`: the copy of everything in an object store. These commands need no daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from querator.cli.shell.options import DryRun, command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal.id_lists import count
from querator.cli.terminal.progress import Progress
from querator.cli.terminal.render import Moment, short_duration
from querator.cli.terminal.session import Session, duration, moment
from querator.errors import Conflict, NotFound, UsageError
from querator.limits import NS_PER_US, US_PER_SECOND

if TYPE_CHECKING:
    from querator.config import ArchiveConfig
    from querator.daemon.archive import Bucket

app = noun(NOUNS["archive"].help)

IMPORT_ITEMS: Final = 500

Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Read the settings from this TOML file.")]
Url = Annotated[
    str | None, typer.Option("--archive", metavar="URL", help="Use this archive, such as s3://bucket/queue.")
]


def _settings(config: Path | None, url: str | None) -> ArchiveConfig:
    from querator.config import daemon_config

    found = daemon_config(config=config, archive=url).archive
    if found is None:
        raise UsageError("no archive is configured", hint="--archive URL, or [archive] url in the config file")
    return found


def _bucket(config: Path | None, url: str | None) -> Bucket:
    from querator.daemon.archive import Bucket

    settings = _settings(config, url)
    return Bucket(settings.url, settings.options, is_made=False)


@command(app, "status")
def status(session: Session, config: Config = None, archive: Url = None) -> None:
    """Show who owns the archive, how far it goes back, and how large it is.

    LAG is the time since the last heartbeat of the owner.
    """
    from querator.daemon.archive import care, failures

    with failures():
        bucket = _bucket(config, archive)
        found = care.status(bucket)
    if not found.number:
        raise NotFound(f"there is nothing in the archive {bucket.url}", hint="perhaps the URL is wrong")
    now_us = time.time_ns() // NS_PER_US
    lag = short_duration((now_us - found.last_heartbeat) / US_PER_SECOND) if found.last_heartbeat else None
    session.output.record(
        {
            "archive": bucket.url,
            "owner": str(found.owner or ""),
            "epoch": found.epoch,
            "number": found.number,
            "lag": lag,
            "last_point": _when(found.last_point),
            "oldest_point": _when(found.oldest_point),
            "last_base": _when(found.last_base),
            "partitions": found.partitions,
            "without_base": found.without_base,
            "objects": found.objects,
            "size_bytes": found.size,
        },
        name="archive",
    )


def _when(us: int) -> Moment | None:
    """0 means never."""
    return Moment(us) if us else None


@command(app, "list")
def list_(session: Session, config: Config = None, archive: Url = None) -> None:
    """List the points that are fastest to restore. Any moment between two points can be restored too.

    If an object is missing or damaged, the points before it are listed, and the exit code is 1.
    """
    from querator.daemon.archive import ArchiveError, care, failures

    records = []
    columns = ("number", "time", "epoch", "owner", "queues", "partitions", "base_bytes", "log_bytes")
    try:
        with failures():
            for point in care.points(_bucket(config, archive)):
                records.append({**point._asdict(), "time": Moment(point.time)})
    except ArchiveError as error:
        if records:
            session.output.records(records, columns, name="number")
            raise ArchiveError(error.message, hint="the points above can be restored with --at TIME") from error
        raise
    session.output.records(records, columns, name="number", empty="no points")


@command(app, "verify")
def verify(session: Session, config: Config = None, archive: Url = None) -> None:
    """Read the whole archive and check every hash. Names the first object that is wrong."""
    from querator.daemon.archive import care, failures

    with failures(), Progress(session.streams, "verify") as progress:
        found = care.verify(_bucket(config, archive), lambda done, total: progress.update(done, total, unit="bytes"))
    text = f"{count(found.log_objects, 'log object')} and {count(found.bases, 'base')} are sound"
    session.done(text, {**found._asdict(), "sound": True}, name="log_objects")


@command(app, "prune")
def prune(
    session: Session,
    keep: Annotated[
        str | None, typer.Option("--keep", metavar="DURATION", help="Keep this much instead of [archive] keep.")
    ] = None,
    config: Config = None,
    archive: Url = None,
    dry_run: DryRun = False,
) -> None:
    """Delete objects that are older than [archive] keep and that no later point needs. The daemon also does this
    itself.
    """
    from querator.daemon.archive import care, failures

    settings = _settings(config, archive)
    seconds = settings.keep if keep is None else duration(keep, "--keep")
    with failures():
        before_us = time.time_ns() // NS_PER_US - int(seconds * US_PER_SECOND)
        found = care.prune(_bucket(config, archive), before_us, dry_run)
    verb = "would delete" if dry_run else "deleted"
    session.done(
        f"{verb} {count(found.objects, 'object')} with {found.size:,} bytes",
        {"objects": found.objects, "size_bytes": found.size, "dry_run": dry_run},
        name="objects",
    )


@command(app, "salvage")
def salvage(
    session: Session,
    config: Config = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="The data directory of the daemon that was replaced.")
    ] = None,
    archive: Url = None,
) -> None:
    """List the changes that a replaced daemon had made and not shipped. Changes nothing.

    With `wait = true` nothing of this was acknowledged. The daemon must not run.
    """
    from querator.config import daemon_config
    from querator.daemon.archive import failures, salvaging

    found = daemon_config(config=config, data=data, archive=archive)
    with failures():
        changes = list(salvaging.salvage(_bucket(config, archive), found.data, found.storages))
    records = [{**change._asdict(), "payload": change.payload.decode(errors="replace")} for change in changes]
    columns = ("queue", "what", "item_id", "kind", "reference", "payload")
    session.output.records(records, columns, name="item_id", empty="the archive has everything")


@command(app, "restore")
def restore(
    session: Session,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Make a new data directory here.")] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="Restore the state at this time (UTC) instead of the last one."),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="QUEUE", help="Restore only this queue.")] = None,
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="QUEUE", help="With --queue: import the items into this new queue instead."),
    ] = None,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Leave out partitions that the archive lacks at that time.")
    ] = False,
    config: Config = None,
    archive: Url = None,
) -> None:
    """Rebuild the data directory as it was at a given time, ready for `querator daemon run --data DIR`.

    All hashes are checked. The same command resumes a restore that was interrupted. A daemon that is started on the new
    directory needs --claim to become the owner of the archive.

    With --into, the running daemon gets the items of one queue as a new queue beside the live one, to look at and to
    redrive. They are ready there, whoever held them. Scheduled items stay scheduled. Its files are in
    ~/.local/state/querator/restores meanwhile.
    """
    from querator.daemon.archive import failures, restoring

    if into is not None:
        if queue is None or to is not None:
            raise UsageError("--into needs --queue, and no --to")
        _restore_into(session, into, queue, at, config, archive)
        return
    if to is None:
        raise UsageError("--to DIR or --into QUEUE is missing")
    _check_outside(to)
    at_us = _at_us(at)
    with failures(), _naming(to), Progress(session.streams, "restore") as progress:
        found = restoring.restore(
            _bucket(config, archive),
            to.absolute(),
            at_us=at_us,
            queue=queue or "",
            leave_out=leave_out,
            progress=lambda done, total: progress.update(done, total, unit="bytes"),
        )
    from querator import times

    if found.left_out:
        session.note(f"left out {count(len(found.left_out), 'partition')}: {', '.join(found.left_out)}")
    session.done(
        f"restored {count(found.queues, 'queue')} to {to} as of {times.text(found.time)}",
        {
            "directory": str(to),
            "time": Moment(found.time),
            "number": found.number,
            "queues": found.queues,
            "partitions": found.partitions,
            "left_out": found.left_out,
        },
        name="directory",
    )


@contextmanager
def _naming(directory: Path) -> Iterator[None]:
    """Names the directory in an error of the system that names no file, as when the disk is full.

    What the store then logs while it closes only repeats this, and would stand between the lines of JSON.
    """
    import logging

    logging.getLogger("querator").addHandler(logging.NullHandler())
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(directory)) from error
        raise


def _restore_into(
    session: Session, into: str, queue: str, at: str | None, config: Path | None, archive: str | None
) -> None:
    """Restore a queue to a directory that a repeated command finds again, and import its items.

    Until all items are imported, the new queue's reference says what is being restored. An import skips the items that
    are there already.
    """
    import shutil

    from querator import times
    from querator.daemon.archive import failures, restoring, salvaging

    at_us = _at_us(at)
    mark = f"restoring '{queue}' as of "
    resumed_us = _resumed_us(session, into, mark)
    with failures(), Progress(session.streams, "restore") as progress:
        bucket = _bucket(config, archive)
        place = _import_directory(bucket.url, queue, into, at)
        directory = place / "data"
        if resumed_us is None or not (directory / "catalog.duckdb").exists() or restoring.is_unfinished(directory):
            if not restoring.is_unfinished(directory):
                shutil.rmtree(place, ignore_errors=True)
            with _naming(place):
                found = restoring.restore(
                    bucket,
                    directory,
                    at_us=resumed_us if at_us is None else at_us,
                    queue=queue,
                    progress=lambda done, total: progress.update(done, total, unit="bytes"),
                )
            if resumed_us not in (None, found.time):
                raise Conflict(
                    f"'{into}' has a part of '{queue}' as of {times.text(resumed_us)}",
                    hint="repeat the command with the same --at, or choose another name",
                )
            if resumed_us is None:
                session.client.create_queue(into, reference=mark + times.text(found.time))
            resumed_us = found.time
        items = 0
        for page in salvaging.items_of(directory, IMPORT_ITEMS):
            session.client.import_items(into, page)
            items += len(page)
            progress.update(items, unit="items")
        info = session.client.queue_info(into)
        info.reference = info.reference.replace("restoring", "restored", 1)
        session.client.update_queue(info)
        shutil.rmtree(place)
    session.done(
        f"imported {count(items, 'item')} of '{queue}' into '{into}'",
        {"queue_name": into, "items": items, "time": Moment(resumed_us)},
        name="queue_name",
    )


def _resumed_us(session: Session, into: str, mark: str) -> int | None:
    """The moment of an interrupted restore of the same queue; None if the new queue does not exist."""
    from querator import times

    try:
        reference = session.client.queue_info(into).reference
    except NotFound:
        return None
    if reference.startswith(mark):
        return times.parse(reference.removeprefix(mark))
    raise Conflict(f"queue '{into}' already exists", hint="choose another name for --into")


def _import_directory(url: str, queue: str, into: str, at: str | None) -> Path:
    import hashlib
    import os

    from querator.config import state_directory

    key = hashlib.sha256("\0".join((url, queue, into, at or "")).encode()).hexdigest()[:16]
    return state_directory(os.environ) / "restores" / key


def _check_outside(to: Path) -> None:
    """Refuses a place inside a data directory, where a daemon would take the new files for its own."""
    for parent in to.absolute().parents:
        if (parent / "catalog.duckdb").exists():
            raise UsageError(f"{to} is inside the data directory {parent}", hint="restore to a directory outside of it")


def _at_us(at: str | None) -> int | None:
    if at is None:
        return None
    try:
        at_us = moment(_as_time(at), "--at")
    except UsageError:
        raise UsageError(
            f"--at: '{at}' is not a time", hint='times look like "2026-11-16 14:02" and are in UTC'
        ) from None
    if at_us > time.time_ns() // NS_PER_US:
        raise UsageError(f"--at: '{at}' is in the future", hint="times are in UTC; without --at the last state is used")
    return at_us


def _as_time(text: str) -> str:
    """`2026-11-16 14:02` means UTC; the time of day, seconds and the zone may be left out."""
    date, _, clock = text.strip().replace("T", " ").partition(" ")
    clock = clock or "00:00"
    if clock.count(":") == 1 and clock.replace(":", "").isdigit():
        clock += ":00"
    return f"{date}T{clock}" + ("" if clock[-1] in "Zz" or "+" in clock or "-" in clock else "Z")
