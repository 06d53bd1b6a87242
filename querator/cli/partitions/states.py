"""The verbs that change a partition's state: pause, resume, drain, offline and reload."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from querator.cli.partitions.selection import (
    All,
    OptionalQueue,
    Partitions,
    chosen,
    file_timeout,
    for_each_queue,
    named,
    one_queue,
    states_of,
)
from querator.cli.queues import all_queues
from querator.cli.shell.options import DryRun, Queue, Wait
from querator.cli.terminal.id_lists import count
from querator.cli.terminal.progress import Progress
from querator.cli.terminal.session import Session, duration
from querator.cli.terminal.waiting import poll
from querator.errors import UsageError

if TYPE_CHECKING:
    from querator.client import Client


def pause(
    session: Session,
    queue: Queue,
    partitions: Partitions = None,
    all_: All = False,
    wait: Wait = False,
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="Resume the partitions after this time (15m)."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Stop producing to partitions and leasing from them. Leased items can still be completed."""
    if for_ is not None:
        duration(for_, "--for")
    some = chosen(partitions, all_)
    done = f"paused for {for_}" if for_ else "paused"

    def send() -> None:
        session.client.pause_partitions(queue, some, for_=for_)

    _change(session, queue, some, "pause", done, send, dry_run=dry_run)
    if wait and not dry_run:
        _wait_for_state(session, queue, some, "paused")


def _verb(
    verb: str,
    state: str,
    help: str,
    send: Callable[[Client, str, list[int]], None],
    until: Callable[[Session, str, list[int], str], None],
) -> Callable[..., None]:
    """A command that brings partitions into a state. `until` waits for the state if the command has --wait."""

    def run(
        session: Session,
        queue: Queue,
        partitions: Partitions = None,
        all_: All = False,
        wait: Wait = False,
        dry_run: DryRun = False,
    ) -> None:
        some = chosen(partitions, all_)
        if wait:
            session.waiting_limit()
        _change(session, queue, some, verb, state, lambda: send(session.client, queue, some), dry_run=dry_run)
        if wait and not dry_run:
            until(session, queue, some, state)

    run.__doc__ = help
    return run


def reload(
    session: Session,
    queue: OptionalQueue = None,
    partitions: Partitions = None,
    all_: All = False,
    all_queues_: Annotated[
        bool, typer.Option("--all-queues", help="Reload all partitions of all queues. Implies --keep-states.")
    ] = False,
    keep_states: Annotated[
        bool, typer.Option("--keep-states", help="Paused partitions stay paused. Offline partitions are skipped.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Close, reopen and read partitions again, one after another.

    A partition is available after its reload, even if it was paused or offline before; only a draining partition keeps
    draining. With --keep-states or --all-queues, every partition keeps the state that was asked for, and offline
    partitions are skipped. The exit code is 5 while another reload runs.
    """
    timeout = file_timeout(session)
    if all_queues_:
        if queue is not None or partitions or all_:
            raise UsageError("--all-queues cannot be combined with a queue or partitions")
        _reload_all_queues(session, timeout, dry_run=dry_run)
        return
    name, some = one_queue(queue), chosen(partitions, all_)

    def send() -> None:
        session.client.reload_partitions(name, some, keep_states=keep_states, timeout=timeout)

    _change(session, name, some, "reload", "reloaded", send, dry_run=dry_run)


def _reload_all_queues(session: Session, timeout: float, *, dry_run: bool) -> None:
    names = [info.queue_name for info in all_queues(session.client)]
    if dry_run:
        session.note(f"would reload all partitions of {count(len(names), 'queue')} that are not offline")
        return

    def reload_one(name: str) -> None:
        session.client.reload_partitions(name, keep_states=True, timeout=timeout)

    for_each_queue(names, "reloaded", reload_one)
    session.done(f"reloaded {count(len(names), 'queue')}", {"queues": names, "reloaded": len(names)}, name="reloaded")


def _change(
    session: Session,
    queue: str,
    partitions: list[int],
    verb: str,
    done: str,
    send: Callable[[], Any],
    *,
    dry_run: bool,
) -> None:
    """Change the state of partitions and report it, or report what a dry run would change."""
    if dry_run:
        states = states_of(session, queue, partitions)
        session.note(f"would {verb} {named(queue, partitions)}, now {', '.join(sorted(set(states)))}")
        return
    if verb not in ("resume", "reload"):
        _warn_if_last(session, queue, partitions)
    send()
    session.done(
        f"{named(queue, partitions)}: {done}",
        {"queue_name": queue, "partitions": partitions, "done": done},
        name="queue_name",
    )


def _warn_if_last(session: Session, queue: str, partitions: list[int]) -> None:
    """Warn an operator who takes the last available partition away, which is allowed but may be a mistake."""
    others = [
        one
        for one in session.client.list_partitions(queue)
        if one.state == "available" and partitions and one.partition not in partitions
    ]
    if not others:
        session.note(f"warning: no partition of '{queue}' is left to take items; producers wait until one is")


def _wait_for_state(session: Session, queue: str, partitions: list[int], state: str) -> None:
    """Wait for a state. The daemon answers when it is reached, but a storage that fails puts `error` in its place."""
    limit = session.waiting_limit()
    for _ in poll(limit, f"{named(queue, partitions)} is not {state}", f"querator partitions list {queue}"):
        if all(one == state for one in states_of(session, queue, partitions)):
            return


def _wait_until_drained(session: Session, queue: str, partitions: list[int], state: str) -> None:
    limit = session.waiting_limit()
    hint = f"the partitions are still draining; querator partitions list {queue} shows how many items are left"
    with Progress(session.streams, f"draining '{queue}'") as progress:
        for _ in poll(limit, f"{named(queue, partitions)} is not drained", hint):
            some = [o for o in session.client.list_partitions(queue) if not partitions or o.partition in partitions]
            if all(one.drained for one in some):
                session.note(f"{named(queue, partitions)}: drained")
                return
            progress.update(sum(one.total + one.scheduled for one in some))


resume = _verb(
    "resume",
    "available",
    "Make partitions available again that are paused or draining.",
    lambda client, queue, some: client.resume_partitions(queue, some),
    _wait_for_state,
)
drain = _verb(
    "drain",
    "draining",
    "Stop producing to partitions, and let consumers empty them.",
    lambda client, queue, some: client.drain_partitions(queue, some),
    _wait_until_drained,
)
offline = _verb(
    "take offline",
    "unavailable",
    "Close the files of partitions, so that you can work on them. `partitions reload` opens them again.",
    lambda client, queue, some: client.offline_partitions(queue, some),
    _wait_for_state,
)
