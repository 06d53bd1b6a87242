"""A box for read-only SQL over one queue, with the columns beside it. The address of a query can be shared."""

from __future__ import annotations

from typing import Any, Final

from querator import look
from querator.daemon.console.pages import ConsolePage, chart, command, number
from querator.daemon.console.visits import Visit
from querator.errors import QueratorError
from querator.limits import CONSOLE_SQL_ROWS_MAX
from querator.wire import arrow

EXAMPLE: Final = "select kind, count(*) as items\nfrom items\ngroup by kind\norder by items desc"
BARS_SHOWN: Final = 40
CELL_CHARACTERS: Final = 400
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
    shown = (rows or [])[:CONSOLE_SQL_ROWS_MAX]
    return ConsolePage(
        "sql.html",
        f"SQL on {queue}",
        {
            "query": query or EXAMPLE,
            "rows": None if rows is None else [[_cell(row[name]) for name in columns] for row in shown],
            "columns": columns,
            "is_number": [all(isinstance(row[name], int | float | None) for row in shown) for name in columns],
            "is_cut": rows is not None and len(rows) > CONSOLE_SQL_ROWS_MAX,
            "rows_max": CONSOLE_SQL_ROWS_MAX,
            "error": error,
            "tables": TABLES,
            "picture": _picture(columns, shown),
        },
        commands=(command("sql", queue, query or EXAMPLE),),
        queue=queue,
        tab="sql",
    )


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= CELL_CHARACTERS else text[:CELL_CHARACTERS] + "…"


def _picture(columns: list[str], rows: list[dict[str, Any]]) -> Any:
    """Bars, if there are two columns and the second has numbers."""
    if len(columns) != 2 or len(rows) < 2:
        return ""
    values = [row[columns[1]] for row in rows]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 for value in values):
        return ""
    labels = ["(empty)" if row[columns[0]] in (None, "") else str(row[columns[0]]) for row in rows]
    pairs = list(zip(labels, values, strict=True))[:BARS_SHOWN]
    return chart(look.bars(f"{columns[1]} by {columns[0]}", pairs, _figure))


def _figure(value: float) -> str:
    return number(value) if value == int(value) else f"{value:,.2f}"
