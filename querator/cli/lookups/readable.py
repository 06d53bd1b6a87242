"""Which partitions of a queue can be read. A note names the others, because their items are missing in the output."""

from __future__ import annotations

from typing import Final

from querator.cli.terminal.session import Session
from querator.errors import RetryRequest

CLOSED_STATES: Final = ("unavailable", "error")


def open_partitions(session: Session, queue: str) -> list[int]:
    partitions = session.client.list_partitions(queue)
    closed = [f"{one.partition} ({one.state})" for one in partitions if one.state in CLOSED_STATES]
    if partitions and len(closed) == len(partitions):
        raise RetryRequest(f"no partition of '{queue}' is open", hint=f"querator partitions list {queue}")
    if closed:
        session.streams.note(f"skipped, because it is not open: partition {', '.join(closed)} of '{queue}'")
    return [one.partition for one in partitions if one.state not in CLOSED_STATES]
