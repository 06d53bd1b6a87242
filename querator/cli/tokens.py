"""`querator tokens`: who may use the daemon over the network, and for what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from querator.cli.shell.options import command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal.render import Format, message_record
from querator.cli.terminal.session import Session
from querator.errors import NotFound, UsageError
from querator.items import Role

if TYPE_CHECKING:
    from querator.wire.access_messages import TokenInfo, TokenSecret

app = noun(NOUNS["tokens"].help)

COLUMNS = ("name", "prefix", "role", "queues", "state", "created_at", "expires_at", "last_used_at")

Name = Annotated[str, typer.Argument(metavar="TOKEN", help="Name of the token.")]


@command(app, "create")
def create(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new token: who will use it.")],
    role: Annotated[
        Role,
        typer.Option("--role", help="What the token is for."),
    ],
    queues: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", metavar="PATTERN", help="Only for queues whose names match, such as mail-*. Can be repeated."
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="DURATION", help="Valid for this long, such as 12h or 90d.")
    ] = None,
) -> None:
    """Create a token and print it. It is printed only this once.

    A viewer may look, a producer may produce, a consumer may lease, complete, retry and extend. An operator may do all
    of that and maintain queues. An admin may do everything on every queue.
    """
    import time

    from querator.limits import NS_PER_US

    expires_at = None
    if expires is not None:
        expires_at = time.time_ns() // NS_PER_US + _duration_us(expires, "--expires")
    made = session.client.create_token(name, role, queues=queues or (), expires_at=expires_at)
    _note_unmatched(session, queues or [])
    _print(session, made)


@command(app, "list")
def list_(session: Session) -> None:
    """List the tokens. The secrets are stored nowhere, so they cannot be listed."""
    records = [_record(token) for token in session.client.list_tokens()]
    session.output.records(
        records, COLUMNS, name="name", empty="no tokens; querator tokens create NAME --role ROLE makes one"
    )


@command(app, "show")
def show(session: Session, name: Name) -> None:
    """Show a token: its role, its queues, and when it was last used."""
    found = [token for token in session.client.list_tokens() if token.name == name]
    if not found:
        raise NotFound(f"token does not exist; no such token '{name}'")
    session.output.record(_record(found[-1]), name="name")


@command(app, "revoke")
def revoke(session: Session, name: Name) -> None:
    """Revoke a token. Its next request is refused, and its waiting leases end."""
    session.client.revoke_token(name)
    session.done(f"revoked token '{name}'", {"name": name, "revoked": True}, name="name")


@command(app, "rotate")
def rotate(
    session: Session,
    name: Name,
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="The old secret stays valid for this long; 0 for not.")
    ] = "1h",
) -> None:
    """Give a token a new secret and print it. The old one stays valid for --grace."""
    _duration_us(grace, "--grace")
    _print(session, session.client.rotate_token(name, grace=grace))


@command(app, "whoami")
def whoami(session: Session) -> None:
    """Show which caller the daemon sees in you, and what you may do."""
    session.output.record(message_record(session.client.whoami(), "expires_at"), name="name")


def _print(session: Session, made: TokenSecret) -> None:
    """Print only the token to standard output, so that it can be redirected to a file."""
    if session.format is Format.TABLE:
        session.streams.stdout.write(f"{made.token}\n")
        session.note(f"token '{made.name}' ({made.role}) is shown only now; keep it in a file that only you can read")
    else:
        session.output.record(message_record(made, "expires_at"), name="name")


def _note_unmatched(session: Session, patterns: list[str]) -> None:
    from fnmatch import fnmatchcase

    from querator.cli.queues import all_queues

    if not patterns:
        return
    names = [queue.queue_name for queue in all_queues(session.client)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            session.note(f"no queue matches '{pattern}' yet")


def _record(token: TokenInfo) -> dict[str, Any]:
    return message_record(token, "created_at", "expires_at", "last_used_at")


def _duration_us(text: str, option: str) -> int:
    from querator import durations
    from querator.limits import NS_PER_US

    try:
        microseconds = durations.parse_days(text) // NS_PER_US
    except ValueError:
        raise UsageError(f"{option}: '{text}' is not a duration", hint="durations look like 15m, 12h or 90d") from None
    if microseconds < 0:
        raise UsageError(f"{option}: '{text}' is negative")
    return microseconds
