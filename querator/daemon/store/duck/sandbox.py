"""The process in which a query of `querator sql` runs: `python -m querator.daemon.store.duck.sandbox`.

The query runs in a DuckDB instance of its own, which has three tables only. The daemon sends their rows as the query
scans them. The kernel bounds the memory of the process and forbids it to write files. The daemon kills the process when
its time is up or its client is gone. A SELECT could still call functions that read files, list settings or take raw
pointers. So a query may use only these three tables and the table functions below.

Frames go both ways on stdin and stdout: one byte of kind, four of length, then the body.
"""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import io
import math
import os
import re
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.dataset

from querator import limits
from querator.daemon.store.duck.slices import schemas
from querator.wire import arrow

FRAME: Final = struct.Struct(">cI")
QUERY, SLICE, END, ERROR = b"Q", b"S", b"Z", b"E"
"""Frames of the daemon: a query, and a slice, the end or the failure of a scan that the worker asked for."""
OPEN, NEXT, CLOSE, ROWS, DONE, REFUSED, FAILED = b"O", b"N", b"C", b"R", b"D", b"X", b"F"
"""Frames of the worker: its scans, rows of the result, and how the query ended."""

FORMATS: Final = ("json", "ndjson", "csv", "arrow")
ROWS_AT_ONCE: Final = 10_000
TABLE_FUNCTIONS: Final = frozenset(
    {"unnest", "range", "generate_series", "json_each", "json_tree", "repeat", "repeat_row"}
)
SETTINGS: Final = (
    "threads = 1",
    f"memory_limit = '{limits.SQL_MEMORY_BYTES_MAX} B'",
    "temp_directory = ''",
    "TimeZone = 'UTC'",
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "python_enable_replacements = false",
    "enable_external_access = false",
    "lock_configuration = true",
)


JSON_MACRO: Final = "CREATE MACRO json(value) AS CASE WHEN starts_with(value, '') AND json_valid(value) THEN value END"
"""Replaces DuckDB's own `json`: a text that is not JSON gives null, where DuckDB would fail the whole query.

`starts_with` is always true. It makes DuckDB refuse bytes, in which its JSON functions would silently find nothing.
"""
JSON_READERS: Final = frozenset(
    {
        "->>", "json_array_length", "json_contains", "json_each", "json_exists", "json_extract", "json_extract_path",
        "json_extract_path_text", "json_extract_string", "json_keys", "json_structure", "json_transform", "json_tree",
        "json_type", "json_value",
    }
)  # fmt: skip


class Query(msgspec.Struct):
    query: str
    format: str
    limit: int
    where: str = ""
    """The condition from which the query was built, if any. It must be valid on its own."""


class OpenScan(msgspec.Struct):
    number: int
    table: str
    columns: list[str]


class Refusal(Exception):
    """This query may not run."""


class ScanFailed(Exception):
    """The daemon could not continue a scan."""


# Which queries may run.


def check(connection: duckdb.DuckDBPyConnection, query: str) -> str:
    """Raises Refusal unless the query is one SELECT over our tables; returns the query to run for it."""
    statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise Refusal("a query must be exactly one SELECT statement")
    ((text,),) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    tree = msgspec.json.decode(text)
    if tree.get("error"):
        raise Refusal(str(tree.get("error_message", "the query cannot be read")))
    nodes = list(_nodes(tree))
    known = set(schemas())
    for node in nodes:
        for entry in _entries(node.get("cte_map")):
            known.add(str(entry.get("key", "")).lower())
        if node.get("type") == "RECURSIVE_CTE_NODE":
            known.add(str(node.get("cte_name", "")).lower())
    for node in nodes:
        kind = node.get("type")
        if kind == "BASE_TABLE":
            _check_table(node, known)
        elif kind == "TABLE_FUNCTION":
            name = str(node.get("function", {}).get("function_name", "")).lower()
            if name not in TABLE_FUNCTIONS:
                raise Refusal(f"table function '{name}' cannot be used here")
        elif kind == "SHOW_REF" and node.get("show_type") not in ("DESCRIBE", "SUMMARY"):
            raise Refusal("only DESCRIBE and SUMMARIZE of a table can be used here")
    return _with_json_calls(query, nodes)


def _with_json_calls(query: str, nodes: list[dict[str, Any]]) -> str:
    """The query with `json(…)` around every column that a JSON operator or function reads."""
    text = query.encode()
    spans = {span for node in nodes if (span := _column_read_as_json(node, text)) is not None}
    for start, end in sorted(spans, reverse=True):
        text = text[:start] + b"json(" + text[start:end] + b")" + text[end:]
    return text.decode()


def _column_read_as_json(node: dict[str, Any], query: bytes) -> tuple[int, int] | None:
    """Where the query names the column that a node reads as JSON; None if the node does not read a column as JSON."""
    read: Any = None
    if node.get("class") == "LAMBDA" and node.get("syntax_type") == "SINGLE_ARROW":  # DuckDB parses `->` as a lambda
        read = node.get("lhs")
    elif node.get("class") == "FUNCTION" and str(node.get("function_name", "")).lower() in JSON_READERS:
        read = next((one.get("expression") for one in node.get("arguments", [])), None)
    if not isinstance(read, dict) or read.get("class") != "COLUMN_REF":
        return None
    start = read.get("query_location", 0)
    end = start + read.get("query_location_length", 0)
    name = ".".join(map(str, read.get("column_names", [])))
    return (start, end) if query[start:end].replace(b'"', b"").decode("utf-8", "replace") == name else None


def check_condition(connection: duckdb.DuckDBPyConnection, where: str) -> None:
    """Raises Refusal unless `where` is one condition that looks at one row at a time.

    The query puts `where` in parentheses. A text that also parses without them cannot close them early.
    """
    ((text,),) = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT NULL WHERE {where}\n"]).fetchall()
    tree = msgspec.json.decode(text)
    if tree.get("error"):
        raise Refusal(str(tree.get("error_message", "the condition cannot be read")))
    if any(node.get("class") == "SUBQUERY" for node in _nodes(tree)):
        raise Refusal("a condition is about one item at a time, and cannot contain a subquery")


def _check_table(node: dict[str, Any], known: set[str]) -> None:
    name = str(node.get("table_name", ""))
    if node.get("schema_name") or node.get("catalog_name") or name.lower() not in known:
        path = ".".join(filter(None, (node.get("catalog_name"), node.get("schema_name"), name)))
        raise Refusal(f"there is no table '{path}'; the tables are {', '.join(schemas())}")


def _entries(cte_map: Any) -> list[dict[str, Any]]:
    entries = cte_map.get("map") if isinstance(cte_map, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object of the parsed query, however deep."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


# Where rows come from.


class LiveTable(pa.dataset.Dataset):  # type: ignore[misc]
    """A table whose rows come from the daemon each time DuckDB scans it, with only the columns that DuckDB needs."""

    def __init__(self, name: str, scan: Callable[[str, list[str]], Iterator[pa.RecordBatch]]) -> None:
        self._name = name
        self._scan = scan

    @property
    def schema(self) -> pa.Schema:
        return schemas()[self._name]

    def scanner(self, columns: list[str] | None = None, filter: Any = None, **_: Any) -> Scanned:
        names = self.schema.names if columns is None else list(columns)
        text = "" if filter is None else str(filter)
        needed = [name for name in self.schema.names if name in names or re.search(rf"\b{name}\b", text)]
        return Scanned(self._scan(self._name, needed or ["partition"]), arrow.chosen(self.schema, names), filter)


class Scanned:
    """One scan, in the form that DuckDB expects. Arrow's own scanner would read ahead in a thread, even after the query
    ends.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, filter: Any) -> None:
        self._batches, self._schema, self._filter = batches, schema, filter

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._schema, self._fitting())

    def _fitting(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            matching = batch if self._filter is None else batch.filter(self._filter)
            yield matching.select(self._schema.names)


# The formats of a result.


def _plain(value: Any) -> Any:
    """A value as JSON can express it: bytes in base64, numbers as numbers, times with their zone."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, datetime.datetime):
        text = value.isoformat()
        return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def written(reader: pa.RecordBatchReader, form: str, limit: int) -> Iterator[bytes]:
    """The result in pieces; at most `limit` rows, or all if `limit` is 0."""
    schema = reader.schema
    if len(set(schema.names)) != len(schema.names) and form != "csv":
        raise Refusal("two columns of the result have the same name; rename one with AS")
    if form == "arrow":
        yield arrow.stream_start(schema)
        for batch in _limited(reader, limit):
            yield arrow.stream_part(batch)
        yield arrow.STREAM_END
    elif form == "csv":
        yield _csv_lines([schema.names])
        for batch in _limited(reader, limit):
            yield _csv_lines([[_cell(value) for value in row] for row in zip(*_columns(batch), strict=True)])
    else:
        start, between, end = (b"[", b",", b"]") if form == "json" else (b"", b"\n", b"\n")
        names, rows = schema.names, 0
        for batch in _limited(reader, limit):
            lines = [
                msgspec.json.encode(dict(zip(names, [_plain(value) for value in row], strict=True)))
                for row in zip(*_columns(batch), strict=True)
            ]
            if lines:
                yield (between if rows else start) + between.join(lines)
                rows += len(lines)
        yield end if rows else start + end.strip()


def _limited(reader: pa.RecordBatchReader, limit: int) -> Iterator[pa.RecordBatch]:
    left = limit or sys.maxsize
    for batch in reader:
        if batch.num_rows:
            yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return


def _columns(batch: pa.RecordBatch) -> list[list[Any]]:
    return [column.to_pylist() for column in batch.columns]


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    plain = _plain(value)
    if isinstance(plain, dict | list):
        return msgspec.json.encode(plain).decode()
    return "true" if plain is True else "false" if plain is False else plain


def _csv_lines(rows: list[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


# The process.


class Pipe:
    """Frames to and from the daemon."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink
        self._scans = 0

    def send(self, kind: bytes, body: bytes = b"") -> None:
        self._sink.write(FRAME.pack(kind, len(body)) + body)
        self._sink.flush()

    def receive(self) -> tuple[bytes, bytes]:
        head = self._source.read(FRAME.size)
        if len(head) < FRAME.size:
            raise EOFError
        kind, length = FRAME.unpack(head)
        return kind, self._source.read(length)

    def scan(self, table: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        self._scans += 1
        number = self._scans
        self.send(OPEN, msgspec.json.encode(OpenScan(number, table, columns)))
        try:
            while True:
                self.send(NEXT, str(number).encode())
                kind, body = self.receive()
                if kind == END:
                    return
                if kind == ERROR:
                    raise ScanFailed(body.decode())
                yield from arrow.read_batches(body)
        finally:
            self.send(CLOSE, str(number).encode())


def run(pipe: Pipe, query: Query) -> None:
    """Runs one query in an instance of its own."""
    with duckdb.connect(":memory:") as connection:
        connection.execute(JSON_MACRO)
        for setting in SETTINGS:
            connection.execute(f"SET {setting}")
        checked = check(connection, query.query)
        if query.where:
            check_condition(connection, query.where)
        for name in schemas():
            connection.register(name, LiveTable(name, pipe.scan))
        reader = connection.sql(checked).to_arrow_reader(ROWS_AT_ONCE)
        names = connection.sql(query.query).columns
        reader = pa.RecordBatchReader.from_batches(
            pa.schema([field.with_name(name) for field, name in zip(reader.schema, names, strict=True)]),
            (batch.rename_columns(names) for batch in reader),
        )
        for piece in written(reader, query.format, query.limit):
            for start in range(0, len(piece), limits.SQL_FRAME_BYTES_MAX):
                pipe.send(ROWS, piece[start : start + limits.SQL_FRAME_BYTES_MAX])


def answer(pipe: Pipe, query: Query) -> None:
    try:
        run(pipe, query)
    except (Refusal, duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
        pipe.send(REFUSED, _reason(error).encode())
    except (duckdb.OutOfMemoryException, MemoryError):
        pipe.send(REFUSED, f"it needs more than {limits.SQL_MEMORY_BYTES_MAX // 1_000_000} MB of memory".encode())
    except ScanFailed as error:
        pipe.send(FAILED, str(error).encode())
    except (duckdb.Error, pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        # DuckDB and Arrow wrap the error of a scan in errors of their own.
        failed = re.search(r"ScanFailed: (.*)", str(error))
        pipe.send(FAILED if failed else REFUSED, (failed[1] if failed else _reason(error)).encode())
    else:
        pipe.send(DONE)


def _reason(error: Exception) -> str:
    text = str(error).strip()
    if not text:
        return type(error).__name__
    first_line = re.sub(r"^[A-Z][\w ]* Error: ", "", text.splitlines()[0])
    if first_line.startswith("No function matches"):
        if "BLOB" in first_line:
            return "payload is bytes, not text; use the column text instead, as in text->>'field' = 'value'"
        if "json_extract(" in first_line and ", BOOLEAN)" in first_line:
            return "the right side of -> includes the comparison; add parentheses, as in (text->'a'->>'b') = 'value'"
    return first_line


def confine() -> None:
    """Sets the limits that the kernel enforces on this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (limits.SQL_PROCESS_BYTES_MAX, limits.SQL_PROCESS_BYTES_MAX))


def main() -> None:
    confine()
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # anything printed goes to the log, not between frames
    pipe = Pipe(source, sink)
    try:
        while True:
            kind, body = pipe.receive()
            if kind == QUERY:
                answer(pipe, msgspec.json.decode(body, type=Query))
    except (EOFError, BrokenPipeError):
        return


if __name__ == "__main__":
    main()
