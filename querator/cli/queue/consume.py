"""`querator queue consume`: the options of the command, and its exit. `worker.py` does the work."""

from __future__ import annotations

import signal
from typing import Annotated, Any, Final

import typer

from querator import durations
from querator.cli.shell.options import Queue, command
from querator.cli.terminal.id_lists import count
from querator.cli.terminal.render import Format
from querator.cli.terminal.session import Session, duration
from querator.errors import Interrupted, PartlyDone, UsageError
from querator.limits import BATCH_ITEMS_MAX, NS_PER_SECOND

STDERR: Final = 2
"""Commands write to standard error if our standard output holds a JSON document."""


def register(app: typer.Typer) -> None:
    command(app, "consume")(consume)


def consume(
    session: Session,
    queue: Queue,
    exec_: Annotated[
        str,
        typer.Option(
            "--exec",
            metavar="CMD",
            help="Run this shell command for each item, with the payload on its standard input.",
        ),
    ],
    n: Annotated[
        int,
        typer.Option(
            "-n",
            "--batch-size",
            min=1,
            max=BATCH_ITEMS_MAX,
            metavar="N",
            help="Lease at most this many items at a time.",
        ),
    ] = 10,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency", min=1, max=1_000, metavar="N", help="Run at most this many commands at the same time."
        ),
    ] = 4,
    backoff: Annotated[
        str,
        typer.Option(
            "--backoff", metavar="MIN..MAX", help="Delay before a failed item is retried. It doubles with each attempt."
        ),
    ] = "1s..5m",
    exec_timeout: Annotated[
        str | None,
        typer.Option(
            "--exec-timeout", metavar="DURATION", help="End a command that runs longer than this, and retry its item."
        ),
    ] = None,
    client_id: Annotated[
        str | None, typer.Option("--client-id", metavar="TEXT", help="Name of this consumer. Default: a new name.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Stop after this many items.")
    ] = None,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="Stop when there is nothing to lease.")] = False,
) -> None:
    """Run a shell command for each item. Exit code 0 completes the item, any other code retries it.

    The command finds QUERATOR_ITEM_ID, QUERATOR_ITEM_KIND, QUERATOR_ITEM_REFERENCE, QUERATOR_ITEM_ATTEMPTS,
    QUERATOR_ITEM_ENCODING and QUERATOR_QUEUE in its environment. Leases are extended while it runs. On SIGINT or
    SIGTERM, running commands may finish, and items that have not started are returned to the queue. A second signal
    ends the running commands: they get SIGTERM, and SIGKILL after 5 more seconds.
    Commands print to standard output, or to standard error with -o json.
    """
    from querator.cli.queue.worker import Backoff, Plan, Worker

    shortest, longest = _range(backoff)
    info = session.client.queue_info(queue)
    plan = Plan(
        queue=queue,
        shell_command=exec_,
        batch_size=n,
        concurrency=concurrency,
        backoff=Backoff(shortest, longest),
        client_id=client_id,
        limit=limit,
        until_empty=until_empty,
        lease_seconds=durations.parse(info.lease_timeout) / NS_PER_SECOND,
        max_attempts=info.max_attempts,
        patience_seconds=session.timeout_seconds,
        commands_stdout=STDERR if session.for_a_script else None,
        exec_timeout_seconds=None if exec_timeout is None else _exec_timeout(exec_timeout),
    )
    worker = Worker(session.make_client(patient=True), session.make_client(patient=True), plan, session.note)
    signals: list[int] = []

    def on_signal(number: int, _: Any) -> None:
        signals.append(number)
        worker.stop(at_once=len(signals) > 1)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        tally = worker.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    record = {
        "queue_name": queue,
        "completed": tally.completed,
        "retried": tally.retried,
        "dead": tally.dead,
        "handed_back": tally.handed_back,
        "lost": tally.lost,
        "not_completed": tally.not_completed,
    }
    text = f"completed {count(tally.completed, 'item')}, {tally.retried:,} retried"
    text += f", {tally.dead:,} dead" if tally.dead else ""
    text += f", {tally.handed_back:,} handed back" if tally.handed_back else ""
    text += f", {tally.lost:,} lost their lease" if tally.lost else ""
    text += f", {tally.not_completed:,} not completed" if tally.not_completed else ""
    failure = worker.failure
    if failure is None and signals[:1] == [signal.SIGINT]:
        failure = Interrupted(f"interrupted: {text}")
    if failure is None and not signals and (tally.retried or tally.dead or tally.lost or tally.not_completed):
        failure = PartlyDone(text)
    if failure is None or session.format is not Format.TABLE or not isinstance(failure, PartlyDone | Interrupted):
        session.done(text, record, name="queue_name")
    if failure is not None:
        raise failure


def _exec_timeout(text: str) -> float:
    seconds = duration(text, "--exec-timeout")
    if seconds <= 0:
        raise UsageError(
            "--exec-timeout: must be more than 0", hint="without it, commands may run as long as they like"
        )
    return seconds


def _range(text: str) -> tuple[float, float]:
    first, dots, last = text.partition("..")
    shortest = duration(first, "--backoff")
    longest = duration(last, "--backoff") if dots else shortest
    if longest < shortest:
        raise UsageError(f"--backoff: {last} is less than {first}")
    return shortest, longest
