"""A box for read-only SQL over one queue, with the columns beside it. The address of a query can be shared.

A result of two columns, the second of which has numbers, is also a chart: a line if the first has times, else bars.
"""

from __future__ import annotations

import datetime
import itertools
import re
from typing import Any, Final

from querator import look
from querator.daemon.console.pages import ConsolePage, chart, command, number
from querator.daemon.console.visits import Visit
from querator.errors import QueratorError
from querator.limits import CONSOLE_SQL_CELLS_MAX, CONSOLE_SQL_CHARACTERS_MAX, CONSOLE_SQL_ROWS_MAX
from querator.wire import arrow

EXAMPLE: Final = "select kind, count(*) as items\nfrom items\ngroup by kind\norder by items desc"
BARS_SHOWN: Final = 40
CELL_CHARACTERS: Final = 400
TIME: Final = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d|$)")
TABLES: Final = {
    "items": [field.name for field in arrow.ITEM],
    "leases": [field.name for field in arrow.LEASE],
    "scheduled": [field.name for field in arrow.ITEM],
}


async def show(visit: Visit) -> ConsolePage:
    queue, query = visit.get("name"), visit.get("query").strip()
    rows: list[dict[str, Any]] | None = None
    error = ""
    if query:
        try:
            rows = await visit.api.sql(queue, query, limit=CONSOLE_SQL_ROWS_MAX + 1)
        except QueratorError as raised:
            error = raised.message
    columns = list(rows[0]) if rows else []
    shown = _shown(rows or [], columns)
    cells = [[_cell(row[name]) for name in columns] for row in shown]
    while len(cells) > 1 and sum(len(cell) for row in cells for cell in row) > CONSOLE_SQL_CHARACTERS_MAX:
        del cells[len(cells) // 2 :]
    return ConsolePage(
        "sql.html",
        f"SQL on {queue}",
        {
            "query": query or EXAMPLE,
            "rows": None if rows is None else cells,
            "columns": columns,
            "is_number": [all(isinstance(row[name], int | float | None) for row in shown) for name in columns],
            "is_cut": len(cells) < len(rows or []),
            "error": error,
            "tables": TABLES,
            "picture": _picture(columns, shown),
        },
        commands=(command("sql", queue, query or EXAMPLE),),
        queue=queue,
        tab="sql",
    )


def _shown(rows: list[dict[str, Any]], columns: list[str]) -> list[dict[str, Any]]:
    return rows[: min(CONSOLE_SQL_ROWS_MAX, CONSOLE_SQL_CELLS_MAX // max(1, len(columns)))]


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= CELL_CHARACTERS else text[:CELL_CHARACTERS] + "…"


def _picture(columns: list[str], rows: list[dict[str, Any]]) -> Any:
    if len(columns) != 2 or len(rows) < 2:
        return ""
    values = [row[columns[1]] for row in rows]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 for value in values):
        return ""
    times = [_second(row[columns[0]]) for row in rows]
    known = {at: value for at, value in sorted(zip(times, values, strict=True)) if at is not None}
    if len(known) == len(rows):
        return _line(columns[1], columns[0], known)
    labels = ["(empty)" if row[columns[0]] in (None, "") else str(row[columns[0]]) for row in rows]
    pairs = list(zip(labels, values, strict=True))[:BARS_SHOWN]
    return chart(look.bars(f"{columns[1]} by {columns[0]}", pairs, _figure))


def _second(value: Any) -> int | None:
    """A timestamp or a date as seconds since 1970; None if it is neither."""
    if not isinstance(value, str) or not TIME.match(value):
        return None
    try:
        at = datetime.datetime.fromisoformat(value)
    except ValueError:
        return None
    return int((at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp())


def _line(name: str, time_name: str, values: dict[int, float]) -> Any:
    """Values over time. Neighbours in a series of equal steps are connected; a missing step is a gap."""
    times = list(values)
    step = min(later - at for at, later in itertools.pairwise(times))
    nice = look.nice_count if all(value == int(value) for value in values.values()) else look.nice_rate
    series = [look.Series(name, list(values.values()))]
    title, begin, end = f"{name} by {time_name}", times[0], times[-1]
    return chart(look.line_chart(title, times, series, begin, end, step, _figure, nice, look.BROAD_WIDTH))


def _figure(value: float) -> str:
    return number(value) if value == int(value) else f"{value:,.2f}"
