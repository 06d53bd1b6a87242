"""`querator context`: names for the daemons you work with."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from querator import config
from querator.cli.shell.options import command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal.session import Session
from querator.client import parse_address
from querator.errors import Conflict, NotFound, UsageError

app = noun(NOUNS["context"].help)

COLUMNS = ("name", "current", "endpoint", "token_file")

Name = Annotated[str, typer.Argument(metavar="CONTEXT", help="Name of the context.")]


def context_record(name: str, contexts: config.Contexts) -> dict[str, Any]:
    context = contexts.by_name[name]
    return {
        "name": name,
        "current": name == contexts.current,
        "endpoint": context.endpoint or f"unix:{context.socket}",
        "token_file": context.token_file,
        "ca_file": context.ca_file,
        "client_cert": context.client_cert,
        "client_key": context.client_key,
    }


@command(app, "add")
def add(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new context.")],
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", metavar="URL", help="Address of the daemon: http://host:port or https://host:port."),
    ] = None,
    socket: Annotated[
        str | None, typer.Option("--socket", metavar="PATH", help="Path of the daemon's Unix socket.")
    ] = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help="Read the token from this file.")
    ] = None,
    ca_file: Annotated[
        str | None, typer.Option("--ca-file", metavar="FILE", help="Trust the CAs of this file, for https endpoints.")
    ] = None,
    client_cert: Annotated[
        str | None, typer.Option("--client-cert", metavar="FILE", help="Show this certificate to the daemon.")
    ] = None,
    client_key: Annotated[
        str | None, typer.Option("--client-key", metavar="FILE", help="Private key of the client certificate.")
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Use this context from now on.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a context with the same name.")] = False,
) -> None:
    """Add a context. The first context is used from then on."""
    if (endpoint is None) == (socket is None):
        raise UsageError("say where the daemon is: --endpoint URL or --socket PATH")
    if endpoint is not None:
        parse_address(endpoint)
    contexts = config.load_contexts()
    if name in contexts.by_name and not replace:
        raise Conflict(f"there is a context '{name}' already", hint="--replace overwrites it")
    contexts.by_name[name] = config.Context(
        endpoint=endpoint or "",
        socket=_absolute(socket),
        token_file=_absolute(token_file),
        ca_file=_absolute(ca_file),
        client_cert=_absolute(client_cert),
        client_key=_absolute(client_key),
    )
    if use or len(contexts.by_name) == 1:
        contexts.current = name
    config.save_contexts(contexts)
    session.done(f"added context '{name}'", context_record(name, contexts), name="name")


@command(app, "use")
def use(session: Session, name: Name) -> None:
    """Use a context from now on."""
    contexts = config.load_contexts()
    _check(name, contexts)
    contexts.current = name
    config.save_contexts(contexts)
    session.done(f"now working with '{name}'", context_record(name, contexts), name="name")


@command(app, "list")
def list_(session: Session) -> None:
    """List the contexts."""
    contexts = config.load_contexts()
    records = [context_record(name, contexts) for name in sorted(contexts.by_name)]
    session.output.records(
        records, COLUMNS, name="name", empty="no contexts; querator context add NAME --endpoint URL adds one"
    )


@command(app, "show")
def show(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(metavar="CONTEXT", help="Name of the context. Default: the current context.")
    ] = None,
) -> None:
    """Show a context."""
    contexts = config.load_contexts()
    chosen = name or contexts.current
    if not chosen:
        raise NotFound("no context is in use", hint="querator context use NAME")
    _check(chosen, contexts)
    session.output.record(context_record(chosen, contexts), name="name")


@command(app, "remove")
def remove(session: Session, name: Name) -> None:
    """Remove a context. The daemon itself is not touched."""
    contexts = config.load_contexts()
    _check(name, contexts)
    del contexts.by_name[name]
    if contexts.current == name:
        contexts.current = ""
    config.save_contexts(contexts)
    session.done(f"removed context '{name}'", {"name": name, "removed": True}, name="name")


def _absolute(path: str | None) -> str:
    return os.path.abspath(os.path.expanduser(path)) if path else ""


def _check(name: str, contexts: config.Contexts) -> None:
    if name not in contexts.by_name:
        raise NotFound(f"there is no context '{name}'", hint="querator context list")
