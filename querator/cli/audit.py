"""`querator audit`: who changed what, and who was denied."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from querator.cli.shell.options import command
from querator.cli.terminal.render import Format, message_record
from querator.cli.terminal.session import Session
from querator.errors import UsageError

if TYPE_CHECKING:
    from querator.wire.access_messages import AuditEntry

app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS = ("at", "who", "address", "call", "queue_name", "partitions", "asked", "outcome", "duration")
POLL_SECONDS: Final = 1.0


@command(app, "audit")
def audit(
    session: Session,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="DURATION", help="Show entries that are at most this old, such as 1h or 7d."),
    ] = None,
    who: Annotated[
        str,
        typer.Option(
            "--who",
            metavar="NAME",
            help="Show what this token, user or certificate did. The name can be a pattern, such as team-*.",
        ),
    ] = "",
    queue: Annotated[
        str,
        typer.Option(
            "--queue", metavar="QUEUE", help="Show entries about this queue. The name can be a pattern, such as mail-*."
        ),
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=10_000, metavar="N", help="Show at most this many.")
    ] = 1_000,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new entries until interrupted.")] = False,
) -> None:
    """Show who changed what, and who was denied.

    The audit log has an entry for every change of queues, partitions, jobs and tokens, for deleted items, and for
    denials. Without --since, the command shows the latest entries. Entries never contain payloads or secrets.
    """
    from querator.limits import NS_PER_US

    if follow and session.format is Format.JSON:
        raise UsageError("--follow has no end, so it cannot be one JSON document", hint="-o ndjson prints line by line")
    begin_us = None if since is None else time.time_ns() // NS_PER_US - _age_us(since)
    entries = session.client.list_audit(since=begin_us, who=who, queue=queue, limit=limit)
    session.output.records(map(_record, entries), COLUMNS, name="at", empty="" if follow else "no entries")
    if not follow:
        return
    after_us = _end(entries, time.time_ns() // NS_PER_US if begin_us is None else begin_us)
    while True:
        time.sleep(POLL_SECONDS)
        entries = session.client.list_audit(since=after_us, who=who, queue=queue, limit=limit)
        if entries:
            session.output.records(map(_record, entries), COLUMNS, name="at")
            after_us = _end(entries, after_us)


def _end(entries: list[AuditEntry], otherwise_us: int) -> int:
    return (entries[-1].at or 0) + 1 if entries else otherwise_us


def _record(entry: AuditEntry) -> dict[str, Any]:
    import msgspec

    return message_record(entry, "at") | {"asked": msgspec.json.decode(entry.asked) if entry.asked else None}


def _age_us(text: str) -> int:
    from querator import durations
    from querator.limits import NS_PER_US

    try:
        age_us = durations.parse_days(text) // NS_PER_US
    except ValueError:
        raise UsageError(f"--since: '{text}' is not a duration", hint="durations look like 15m, 12h or 7d") from None
    if age_us < 0:
        raise UsageError(f"--since: '{text}' is negative")
    return age_us
