"""Asks for confirmation before data is destroyed: the user types a name. Without a terminal, `--yes` is needed."""

from __future__ import annotations

from querator.cli.terminal.session import Session
from querator.errors import QueratorError, UsageError


def confirm_by_name(session: Session, name: str, what: str, *, yes: bool) -> None:
    """Ask the user to type a name. Raises unless the user confirms."""
    if yes:
        return
    if not session.streams.can_ask:
        raise UsageError(f"{what} needs a confirmation, and there is no terminal to ask on", hint="--yes confirms it")
    session.streams.note(what)
    session.streams.stderr.write("Type the name to continue: ")
    session.streams.stderr.flush()
    answer = session.streams.stdin_bytes.readline()
    if not answer:
        session.streams.note("")
        raise UsageError("no answer; nothing was done", hint="--yes confirms it")
    if answer.decode(errors="replace").rstrip("\r\n") != name:
        raise QueratorError(f"that is not '{name}'; nothing was done")
