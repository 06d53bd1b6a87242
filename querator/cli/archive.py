"""`querator archive`: the copy of everything in an object store. These commands need no daemon."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from querator.cli.shell.options import DryRun, command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal.id_lists import count
from querator.cli.terminal.progress import Progress
from querator.cli.terminal.render import Moment, short_duration
from querator.cli.terminal.session import Session, duration, moment
from querator.errors import UsageError
from querator.limits import NS_PER_US, US_PER_SECOND

if TYPE_CHECKING:
    from querator.config import ArchiveConfig
    from querator.daemon.archive import Bucket

app = noun(NOUNS["archive"].help)

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
    return Bucket(settings.url, settings.options)


@command(app, "status")
def status(session: Session, config: Config = None, archive: Url = None) -> None:
    """Show who owns the archive, how far it goes back, and how large it is.

    LAG is the time since the last heartbeat of the owner.
    """
    from querator.daemon.archive import care, failures

    with failures():
        bucket = _bucket(config, archive)
        found = care.status(bucket)
    now_us = time.time_ns() // NS_PER_US
    lag = short_duration((now_us - found.last_heartbeat) / US_PER_SECOND) if found.last_heartbeat else None
    session.output.record(
        {
            "archive": bucket.url,
            "owner": str(found.owner or ""),
            "epoch": found.epoch,
            "number": found.number,
            "lag": lag,
            "last_point": Moment(found.last_point),
            "oldest_point": Moment(found.oldest_point),
            "last_base": Moment(found.last_base),
            "partitions": found.partitions,
            "without_base": found.without_base,
            "objects": found.objects,
            "size_bytes": found.size,
        },
        name="archive",
    )


@command(app, "list")
def list_(session: Session, config: Config = None, archive: Url = None) -> None:
    """List the points that are fastest to restore. Any moment between two points can be restored too."""
    from querator.daemon.archive import care, failures

    with failures():
        found = care.points(_bucket(config, archive))
    records = [{**point._asdict(), "time": Moment(point.time)} for point in found]
    columns = ("number", "time", "epoch", "owner", "queues", "partitions", "base_bytes", "log_bytes")
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

    Example: querator archive prune --keep 48h --dry-run
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


@command(app, "restore")
def restore(
    session: Session,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Make a new data directory here.")],
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="Restore the state at this time instead of the last state."),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="QUEUE", help="Restore only this queue.")] = None,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Leave out partitions that the archive lacks at that time.")
    ] = False,
    config: Config = None,
    archive: Url = None,
) -> None:
    """Rebuild the data directory as it was at a given time, ready for `querator daemon run --data DIR`.

    All hashes are checked. The same command resumes a restore that was interrupted. A daemon that is started on the new
    directory needs --claim to become the owner of the archive.

    Example: querator archive restore --at "2026-11-16 14:02" --to /srv/querator
    """
    from querator.daemon.archive import failures, restoring

    at_us = None if at is None else moment(_as_time(at), "--at")
    with failures(), Progress(session.streams, "restore") as progress:
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


def _as_time(text: str) -> str:
    """`2026-11-16 14:02` means UTC; seconds and the zone may be left out."""
    date, _, clock = text.strip().replace("T", " ").partition(" ")
    if not clock:
        raise UsageError(f"--at: '{text}' is not a time", hint='times look like "2026-11-16 14:02" and are in UTC')
    if clock.count(":") == 1 and clock.replace(":", "").isdigit():
        clock += ":00"
    return f"{date}T{clock}" + ("" if clock[-1] in "Zz" or "+" in clock or "-" in clock else "Z")
