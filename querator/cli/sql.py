"""`querator sql`: runs a SELECT over the live partitions of a queue, inside the daemon."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec
import typer

from querator.cli.lookups.readable import open_partitions
from querator.cli.shell.options import Queue, command
from querator.cli.terminal.session import Session
from querator.errors import RequestFailed, TimedOut, UsageError
from querator.texts import visible

app = typer.Typer(add_completion=False, rich_markup_mode=None)

ROWS_ON_A_TERMINAL = 10_000
EXAMPLE = "select kind, count(*) from items group by all"


class SqlFormat(enum.StrEnum):
    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    NAME = "name"
    CSV = "csv"
    ARROW = "arrow"


@command(app, "sql", formats=SqlFormat)
def sql(
    session: Session,
    queue: Queue,
    query: Annotated[str, typer.Argument(metavar="QUERY|-", help="The SELECT. - reads it from standard input.")],
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=0,
            metavar="N",
            help="Print at most this many rows, 0 for all. Default: 10000 on a terminal, else all.",
        ),
    ] = None,
) -> None:
    """Query the live partitions of a queue with SQL, read-only.

    The tables are items, leases and scheduled. Each has `partition`, `payload` (bytes) and `text`, which is the payload
    as text and null if the payload is not UTF-8. For JSON, text->>'field' gives a field, and null where there is none.
    The query runs in the daemon, with a limit on time (--timeout) and memory, and sees no other queue.
    """
    if query == "-":
        query = _read_query(session)
    if not query.strip():
        raise UsageError("the query is empty", hint=f'querator sql {queue} "{EXAMPLE}"')
    form = SqlFormat(str(session.format))
    if limit is None:
        limit = ROWS_ON_A_TERMINAL if session.streams.fancy and form is SqlFormat.TABLE else 0
    if form in (SqlFormat.CSV, SqlFormat.ARROW):
        if session.output.columns is not None:
            raise UsageError(f"--columns does not go with {form.value}", hint="name the columns in the query")
        if form is SqlFormat.ARROW and session.streams.terminals.stdout:
            raise UsageError("Arrow is binary, and this is a terminal", hint="send it to a file: > rows.arrow")
        answer = _ask(session, queue, query, form.value, limit)
        if session.streams.terminals.stdout:
            session.streams.stdout.write("".join(f"{visible(line)}\n" for line in answer.decode().splitlines()))
        else:
            session.streams.stdout_bytes.write(answer)
        return
    rows: list[dict[str, Any]] = msgspec.json.decode(_ask(session, queue, query, "json", limit) or b"[]")
    columns = list(rows[0]) if rows else []
    session.output.records(rows, columns, name=columns[0] if columns else "", empty="no rows")
    if limit and len(rows) >= limit and form is SqlFormat.TABLE:
        session.note(f"only the first {limit:,} rows; --limit 0 shows all")


def _read_query(session: Session) -> str:
    try:
        return session.streams.stdin_bytes.read().decode()
    except UnicodeDecodeError:
        raise UsageError("the query is not valid UTF-8") from None


def _ask(session: Session, queue: str, query: str, form: str, limit: int) -> bytes:
    open_partitions(session, queue)
    try:
        return session.client.sql_bytes(queue, query, format=form, limit=limit, timeout=session.timeout_seconds)
    except RequestFailed as error:
        if error.message.startswith("query timed out"):
            raise TimedOut(error.message, hint="--timeout gives it more time") from None
        raise
