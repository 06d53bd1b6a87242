"""`querator version`: the version of this command, and of the daemon if it answers."""

from __future__ import annotations

import platform
from typing import Any

import typer

from querator import __version__, build
from querator.cli.shell.options import command
from querator.cli.terminal.render import Format
from querator.cli.terminal.session import Session
from querator.errors import QueratorError

app = typer.Typer(add_completion=False, rich_markup_mode=None)

DAEMON_ANSWERS_SECONDS = 1.0


@command(app, "version")
def version(session: Session) -> None:
    """Print the version and the build.

    The build is `compiled` if the modules that each request passes through are compiled, otherwise `plain`.
    """
    if session.format is Format.TABLE:
        session.streams.stdout.write(f"{sentence()}\n")
        return
    health = daemon_health(session)
    session.output.record(
        {
            "version": __version__,
            "build": build.name(),
            "daemon_version": health.get("version"),
            "daemon_build": health.get("releaseId"),
            "python": platform.python_version(),
        },
        name="version",
    )


def sentence() -> str:
    return f"querator {__version__} ({build.name()})"


def daemon_health(session: Session) -> dict[str, Any]:
    """What the daemon says about itself. Empty if it does not answer."""
    try:
        client = session.make_client()
        client.timeout = DAEMON_ANSWERS_SECONDS
        return client.health()
    except (QueratorError, OSError):
        return {}
