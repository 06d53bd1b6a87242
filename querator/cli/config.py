"""`querator config show`: every setting, and where it came from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from querator import config
from querator.cli.shell.options import command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal.session import Session

app = noun(NOUNS["config"].help)


@command(app, "show")
def show(
    session: Session,
    file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Read the settings from this TOML file.")
    ] = None,
) -> None:
    """Show every setting of the commands and the daemon, and where it came from."""
    session.output.records(_settings(session, file), ("name", "value", "origin"), name="name")


def _settings(session: Session, file: Path | None) -> Iterator[dict[str, Any]]:
    client = session.settings
    yield _row("client.address", client.address)
    yield _row("client.context", client.context)
    yield _row("client.token_file", client.token_file)
    yield _row("client.ca_file", client.ca_file)
    yield _row("client.client_cert", client.client_cert)
    yield _row("client.client_key", client.client_key)
    daemon = config.daemon_config(config=file)
    for name, setting in daemon.settings.items():
        yield _row(name if name == "config" else f"daemon.{name}", setting)
    given = daemon.settings["config"].value
    for storage in daemon.storages:
        origin = "default" if storage.name == "default" else str(given)
        yield _row(f"daemon.storages.{storage.name}", config.Setting(storage.directory, origin))
    for queue in daemon.queues:
        yield _row(f"daemon.queues.{queue.name}", config.Setting(f"{queue.partitions} partitions", str(given)))


def _row(name: str, setting: config.Setting) -> dict[str, Any]:
    value = setting.value
    return {
        "name": name,
        "value": value if isinstance(value, (bool, int)) else str(value),
        "origin": setting.origin,
    }
