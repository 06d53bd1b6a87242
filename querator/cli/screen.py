"""What `querator top` draws, with Rich. Only imported on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from querator.cli.render import short_duration, state_style, visible
from querator.cli.sampling import Row, Sampler, sparkline

if TYPE_CHECKING:
    from querator.cli.top import View

SPARK_COLUMNS: Final = 24
HELP: Final = "n r l s i o a sort   ↑↓ choose   ⏎ open   esc back   q quit"


def draw(sampler: Sampler, rows: list[Row], view: View, where: str, trouble: str) -> Group:
    opened = next((row for row in rows if row.name == view.opened), None)
    body = _queues(rows, view) if opened is None else _partitions(sampler, opened)
    title = Text(f"querator top  {where}", style="bold")
    footer = Text(trouble, style="bold red") if trouble else Text(HELP, style="dim")
    return Group(title, body, footer)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, expand=True, header_style="bold", padding=(0, 1))
    for name in columns:
        left = name in ("queue", "state", "last minutes")
        table.add_column(name, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")
    return table


def _queues(rows: list[Row], view: View) -> Table:
    table = _table(
        "queue", "state", "ready", "leased", "scheduled", "in/s", "out/s", "oldest", "waiting", "last minutes"
    )
    for number, row in enumerate(rows):
        table.add_row(
            Text(visible(row.name)),
            Text(row.state, style=state_style(row.state)),
            f"{row.ready:,}",
            f"{row.leased:,}",
            f"{row.scheduled:,}",
            _rate(row.rate_in),
            _rate(row.rate_out),
            short_duration(row.oldest_seconds),
            f"{row.waiting:,}",
            Text(sparkline(row.history, SPARK_COLUMNS), style="cyan"),
            style="reverse" if number == view.chosen else "",
        )
    return table


def _partitions(sampler: Sampler, row: Row) -> Group:
    table = _table("partition", "state", "ready", "leased", "scheduled")
    for number, partition in sorted(sampler.views[row.name].partitions.items()):
        table.add_row(
            str(number),
            Text(partition.state, style=state_style(partition.state)),
            f"{partition.ready:,}",
            f"{partition.leased:,}",
            f"{partition.scheduled:,}",
        )
    summary = Text(
        f"{visible(row.name)}   in {_rate(row.rate_in)}/s   out {_rate(row.rate_out)}/s   "
        f"oldest {short_duration(row.oldest_seconds)}   {sparkline(row.history, SPARK_COLUMNS * 2)}"
    )
    return Group(summary, table)


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"
