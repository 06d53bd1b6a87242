"""`querator top`: a live view of queues and partitions on a terminal, and NDJSON without one."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from querator.cli.lookups import metrics
from querator.cli.shell.options import command
from querator.cli.terminal.render import Format, short_duration
from querator.cli.terminal.session import Session, duration
from querator.cli.top.sampling import Order, Sampler, row_record
from querator.errors import QueratorError

if TYPE_CHECKING:
    from querator.cli.top.keys import Keyboard

app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS: Final = ("queue_name", "state", "ready", "leased", "scheduled", "oldest", "waiting", "reason")
ORDER_KEYS: Final = {
    "n": Order.NAME,
    "r": Order.READY,
    "l": Order.LEASED,
    "s": Order.SCHEDULED,
    "i": Order.IN,
    "o": Order.OUT,
    "a": Order.AGE,
}


@command(app, "top")
def top(
    session: Session,
    once: Annotated[bool, typer.Option("--once", help="Print one table without rates, and exit.")] = False,
    interval: Annotated[str, typer.Option("--interval", metavar="DURATION", help="Time between two updates.")] = "1s",
    sort: Annotated[Order, typer.Option("--sort", help="Sort by this column at first.")] = Order.NAME,
) -> None:
    """Watch queues and partitions live.

    The keys n r l s i o a sort by name, ready, leased, scheduled, in, out and age. The arrows choose a queue, Return
    opens it, Escape goes back, and q quits. Without a terminal, the command prints a JSON document per queue and
    update; with --once it prints a table.
    """
    pause = max(0.1, duration(interval, "--interval"))
    if not session.streams.fancy and not once and session.output.form in (Format.TABLE, Format.JSON):
        session.output.form = Format.NDJSON
    sampler = Sampler()
    if once or not session.streams.fancy or session.output.form is not Format.TABLE:
        _print(session, sampler, sort, pause, once=once)
    else:
        _show(session, sampler, sort, pause)


def _look(session: Session, sampler: Sampler) -> None:
    sampler.take(metrics.queues(session.client.metrics()), time.monotonic())


def _print(session: Session, sampler: Sampler, order: Order, pause: float, *, once: bool) -> None:
    while True:
        _look(session, sampler)
        records: list[dict[str, Any]] = []
        for row in sampler.sorted_rows(order):
            record = row_record(row)
            if session.output.form is Format.TABLE:
                record["oldest"] = short_duration(row.oldest_seconds)
            records.append(record)
        session.output.records(records, COLUMNS, name="queue_name", empty="no queues")
        session.streams.stdout.flush()
        if once:
            return
        time.sleep(pause)


class View:
    """The state of the screen: the sort order, the chosen row and the opened queue."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.chosen = 0
        self.opened: str | None = None
        self.ended = False

    def press(self, key: str, names: list[str]) -> None:
        if key == "q":
            self.ended = True
        elif key == "escape":
            self.opened = None
        elif key in ORDER_KEYS:
            self.order = ORDER_KEYS[key]
        elif key == "up":
            self.chosen = max(0, self.chosen - 1)
        elif key == "down":
            self.chosen = min(max(0, len(names) - 1), self.chosen + 1)
        elif key == "enter" and self.opened is None and self.chosen < len(names):
            self.opened = names[self.chosen]


def _show(session: Session, sampler: Sampler, order: Order, pause: float) -> None:
    from rich.live import Live

    from querator.cli.top import keys, screen

    view = View(order)
    descriptor = sys.stdin.fileno() if session.streams.terminals.stdin else None
    keyboard = None if descriptor is None else keys.Keyboard(descriptor)
    _look(session, sampler)
    trouble = ""
    live = Live(console=session.output.console(resizable=True), screen=True, auto_refresh=False)
    with live, keys.unbuffered(descriptor) if descriptor is not None else contextlib.nullcontext():
        next_look = time.monotonic() + pause
        while not view.ended:
            rows = sampler.sorted_rows(view.order)
            where = str(session.settings.address.value)
            live.update(screen.draw(sampler, rows, view, where, trouble, live.console.size), refresh=True)
            key = _wait_for_key(keyboard, next_look - time.monotonic())
            if key is not None:
                view.press(key, [row.name for row in rows])
            if time.monotonic() >= next_look:
                try:
                    _look(session, sampler)
                    trouble = ""
                except QueratorError as error:
                    trouble = error.message  # shown on the screen until the daemon answers again
                next_look = time.monotonic() + pause


def _wait_for_key(keyboard: Keyboard | None, seconds: float) -> str | None:
    if keyboard is None:
        time.sleep(max(0.0, seconds))
        return None
    return keyboard.key(seconds)
