"""Which partitions a command is about: the arguments that name them, and how messages name them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from querator.cli.queues import partition_record
from querator.cli.terminal.id_lists import count
from querator.cli.terminal.session import Session
from querator.errors import NotFound, PartlyDone, QueratorError, UsageError

FILE_SECONDS_MAX: Final = 3_600.0
"""Reading a large partition file takes long. A command that waits for it gives up after this time without --timeout."""

OptionalQueue = Annotated[str | None, typer.Argument(metavar="QUEUE", help="Name of the queue.", show_default=False)]
Partition = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Number of the partition.")]
Partitions = Annotated[
    list[int] | None, typer.Argument(metavar="PARTITION", min=0, help="Numbers of partitions.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="Choose all partitions of the queue.")]


def chosen(partitions: list[int] | None, all_: bool) -> list[int]:
    """The partitions that a command names, or an empty list for --all, as the daemon expects it."""
    if bool(partitions) == all_:
        raise UsageError("name partitions, or say --all", hint="querator partitions list QUEUE shows their numbers")
    return partitions or []


def named(queue: str, partitions: list[int]) -> str:
    if not partitions:
        return f"all partitions of '{queue}'"
    numbers = ", ".join(map(str, partitions))
    return f"partition {numbers} of '{queue}'" if len(partitions) == 1 else f"partitions {numbers} of '{queue}'"


def find(session: Session, queue: str, partition: int) -> dict[str, Any]:
    session.client.queue_info(queue)
    for one in session.client.list_partitions(queue):
        if one.partition == partition:
            return partition_record(one)
    raise _missing(queue, partition)


def states_of(session: Session, queue: str, partitions: list[int]) -> list[str]:
    found = {one.partition: one.state for one in session.client.list_partitions(queue)}
    for number in partitions:
        if number not in found:
            raise _missing(queue, number)
    return [state for number, state in found.items() if not partitions or number in partitions]


def _missing(queue: str, partition: int) -> NotFound:
    return NotFound(f"queue '{queue}' has no partition {partition}", hint=f"querator partitions list {queue}")


def file_timeout(session: Session) -> float:
    return session.timeout_seconds if session.timeout_given else FILE_SECONDS_MAX


def one_queue(queue: str | None) -> str:
    if queue is None:
        raise UsageError("name a queue, or say --all-queues", hint="querator queues list")
    return queue


def for_each_queue(names: list[str], done: str, work: Callable[[str], Any]) -> None:
    """Call `work` for every queue, also after it failed for one.

    Raises PartlyDone if it failed for some queues, and the error itself if it failed for all in the same way.
    """
    failures: dict[str, QueratorError] = {}
    for name in names:
        try:
            work(name)
        except QueratorError as error:
            failures[name] = error
    if not failures:
        return
    text = "; ".join(f"'{name}': {error.message}" for name, error in failures.items())
    if len({type(error) for error in failures.values()}) == 1 and len(failures) == len(names):
        first = next(iter(failures.values()))
        raise type(first)(text, hint=first.hint)
    raise PartlyDone(f"{done} {len(names) - len(failures)} of {count(len(names), 'queue')}; {text}")
