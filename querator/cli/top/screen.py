"""Draws the screen of `querator top` with Rich. Imported only on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import ConsoleDimensions, Group
from rich.table import Table
from rich.text import Text

from querator.cli.terminal.render import short_duration, state_style
from querator.cli.top.sampling import Row, Sampler, sparkline
from querator.texts import visible

if TYPE_CHECKING:
    from querator.cli.top import View

SPARK_COLUMNS: Final = 24
SPARK_COLUMNS_MIN: Final = 8
GAP_COLUMNS: Final = 2
HELP: Final = "n r l s i o a sort   ↑↓ choose   ⏎ open   esc back   q quit"
LINES_AROUND: Final = 6
"""Lines for the title, the table header and the help, which may take two."""


class Column(NamedTuple):
    title: str
    cell: Callable[[Row], str]
    left: bool = False


QUEUE, STATE, SPARK = "queue", "state", "last minutes"
COLUMNS: Final = (
    Column(QUEUE, lambda row: visible(row.name), left=True),
    Column(STATE, lambda row: row.state, left=True),
    Column("ready", lambda row: f"{row.ready:,}"),
    Column("leased", lambda row: f"{row.leased:,}"),
    Column("scheduled", lambda row: f"{row.scheduled:,}"),
    Column("in/s", lambda row: _rate(row.rate_in)),
    Column("out/s", lambda row: _rate(row.rate_out)),
    Column("oldest", lambda row: short_duration(row.oldest_seconds)),
    Column("waiting", lambda row: f"{row.waiting:,}"),
)
DISPENSABLE: Final = ("waiting", SPARK, "scheduled", "oldest", "out/s", "in/s", STATE, "leased")
"""Columns that a narrow terminal leaves out, in this order. If all are left out, names of queues are cut."""


def draw(sampler: Sampler, rows: list[Row], view: View, where: str, trouble: str, size: ConsoleDimensions) -> Group:
    opened = next((row for row in rows if row.name == view.opened), None)
    body = _queues(rows, view, size) if opened is None else _partitions(sampler, opened)
    title = Text(f"querator top  {where}", style="bold", no_wrap=True, overflow="ellipsis")
    chosen = opened or (rows[view.chosen] if view.chosen < len(rows) else None)
    trouble = trouble or (f"{chosen.name}: {chosen.trouble}" if chosen and chosen.trouble else "")
    footer = Text(visible(trouble), style="bold red") if trouble else Text(HELP, style="dim")
    return Group(title, body, footer)


def fitting(wanted: dict[str, int], width: int) -> dict[str, int]:
    """The columns that fit, each with its width. The sparkline gets the remaining width."""
    chosen = dict(wanted)
    for title in DISPENSABLE:
        if _taken(chosen) <= width:
            break
        del chosen[title]
    if SPARK in chosen:
        chosen[SPARK] = min(SPARK_COLUMNS, chosen[SPARK] + width - _taken(chosen))
    chosen[QUEUE] = max(1, min(chosen[QUEUE], chosen[QUEUE] + width - _taken(chosen)))
    return chosen


def _taken(widths: dict[str, int]) -> int:
    return sum(widths.values()) + GAP_COLUMNS * (len(widths) - 1)


def window(chosen: int, rows: int, room: int) -> range:
    """The rows to show if not all fit: those around the chosen row."""
    room = max(1, room)
    first = max(0, min(chosen - room // 2, rows - room))
    return range(first, min(rows, first + room))


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")


def _queues(rows: list[Row], view: View, size: ConsoleDimensions) -> Table:
    shown = [(number, rows[number]) for number in window(view.chosen, len(rows), size.height - LINES_AROUND)]
    wanted = {
        column.title: max(len(column.title), *(cell_len(column.cell(row)) for _, row in shown), 0) for column in COLUMNS
    }
    widths = fitting(wanted | {SPARK: max(len(SPARK), SPARK_COLUMNS_MIN)}, size.width)
    columns = [column for column in COLUMNS if column.title in widths]
    table = _table()
    for column in columns:
        justify: Literal["left", "right"] = "left" if column.left else "right"
        table.add_column(column.title, justify=justify, width=widths[column.title], no_wrap=True, overflow="ellipsis")
    if SPARK in widths:
        table.add_column(SPARK, width=widths[SPARK], no_wrap=True)
    for number, row in shown:
        cells = [
            Text(column.cell(row), style=state_style(row.state) if column.title == STATE else "") for column in columns
        ]
        if SPARK in widths:
            cells.append(Text(sparkline(row.history, widths[SPARK]), style="cyan"))
        table.add_row(*cells, style="reverse" if number == view.chosen else "")
    return table


def _partitions(sampler: Sampler, row: Row) -> Group:
    table = _table()
    for title in ("partition", "state", "ready", "leased", "scheduled", "reason"):
        justify: Literal["left", "right"] = "left" if title in ("state", "reason") else "right"
        table.add_column(title, justify=justify, no_wrap=title != "reason")
    for number, partition in sorted(sampler.views[row.name].partitions.items()):
        table.add_row(
            str(number),
            Text(partition.state, style=state_style(partition.state)),
            f"{partition.ready:,}",
            f"{partition.leased:,}",
            f"{partition.scheduled:,}",
            visible(partition.trouble),
        )
    summary = Text(
        f"{visible(row.name)}   in {_rate(row.rate_in)}/s   out {_rate(row.rate_out)}/s   "
        f"oldest {short_duration(row.oldest_seconds)}   {sparkline(row.history, SPARK_COLUMNS * 2)}"
    )
    return Group(summary, table)


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"
