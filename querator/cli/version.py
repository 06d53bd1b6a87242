"""`querator version`: the version of this command, and of the daemon if it answers."""

from __future__ import annotations

import platform

import typer

from querator import __version__
from querator.cli.shell.options import command
from querator.cli.terminal.render import Format
from querator.cli.terminal.session import Session
from querator.errors import QueratorError

app = typer.Typer(add_completion=False, rich_markup_mode=None)

DAEMON_ANSWERS_SECONDS = 1.0


@command(app, "version")
def version(session: Session) -> None:
    """Print the version."""
    if session.format is Format.TABLE:
        session.streams.stdout.write(f"querator {__version__}\n")
        return
    session.output.record(
        {"version": __version__, "daemon_version": daemon_version(session), "python": platform.python_version()},
        name="version",
    )


def daemon_version(session: Session) -> str | None:
    try:
        client = session.make_client()
        client.timeout = DAEMON_ANSWERS_SECONDS
        return str(client.health().get("version"))
    except (QueratorError, OSError):
        return None
