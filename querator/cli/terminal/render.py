"""Prints answers as a table, JSON, NDJSON or names. Boxes and relative times appear only on a terminal.

Commands pass records (dicts of plain values, `Moment` and `bytes`) and the columns of the table. Nothing else in the
command line formats data.
"""

from __future__ import annotations

import base64
import enum
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from querator import times
from querator.cli.terminal.streams import Streams
from querator.errors import UsageError
from querator.items import ZERO_TIME_US
from querator.texts import visible, visible_json

Record = Mapping[str, Any]

EMPTY: Final = "-"
SHORT_COLUMNS: Final = 12
"""On a terminal, a cell of up to this width is never cut."""
BORDER_COLUMNS: Final = 3
PADDED_COLUMNS_MAX: Final = 100
"""Without a terminal, cells are padded to the width of their column, but at most to this width."""
COLUMNS_MIN: Final = 3
"""If not even this many columns fit, each record is printed as a block of lines."""


class Format(enum.StrEnum):
    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    NAME = "name"


class Moment(int):
    """A time in microseconds since 1970. It is printed as relative time on a terminal."""


class Payload(bytes):
    """The payload of an item: text in a table, and `utf8` or `bytes` in JSON, as in a produce request."""


def moment_or_none(us: int | None) -> Moment | None:
    return None if us is None or us == ZERO_TIME_US else Moment(us)


def message_record(message: msgspec.Struct, *times: str) -> dict[str, Any]:
    """The fields of a message of the daemon. Those named in `times` become moments."""
    record = msgspec.structs.asdict(message)
    return record | {name: moment_or_none(record[name]) for name in times}


def payload_fields(payload: bytes) -> dict[str, str]:
    try:
        return {"utf8": payload.decode()}
    except UnicodeDecodeError:
        return {"bytes": base64.b64encode(payload).decode()}


def plain(value: Any) -> Any:
    """The value as plain data for JSON."""
    if isinstance(value, Moment):
        return times.text(int(value))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        fields: dict[str, Any] = {}
        for key, inner in value.items():
            fields |= payload_fields(inner) if isinstance(inner, Payload) else {key: plain(inner)}
        return fields
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value


def json_line(value: Any) -> str:
    return visible_json(msgspec.json.encode(plain(value)).decode())


def relative(moment_us: int, now_us: int) -> str:
    """`3m ago`, `in 2h`: the two largest units, for a person."""
    seconds = (moment_us - now_us) / 1_000_000
    text = short_duration(abs(seconds))
    if text == "0s":
        return "now"
    return f"in {text}" if seconds > 0 else f"{text} ago"


def short_duration(seconds: float) -> str:
    if seconds < 1:
        return f"{int(seconds * 1000)}ms" if seconds >= 0.001 else "0s"
    whole = int(seconds)
    for unit, size, small_unit, small_size in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // small_size
            return f"{whole // size}{unit}{rest}{small_unit}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def cell(value: Any, *, fancy: bool, now_us: int) -> str:
    if value is None or value == "" or value == []:
        return EMPTY
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Moment):
        return relative(value, now_us) if fancy else times.text(int(value))
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, (dict, list, tuple)):
        value = json_line(value)
    return visible(str(value))


def check_columns(record: Record, columns: Sequence[str]) -> None:
    for column in columns:
        if column not in record:
            raise UsageError(f"there is no column '{column}'", hint=f"columns are {', '.join(record)}")


class Renderer:
    """Writes records to standard output in the chosen format."""

    def __init__(
        self, streams: Streams, form: Format = Format.TABLE, *, quiet: bool = False, columns: str | None = None
    ) -> None:
        self.streams = streams
        self.form = Format.NAME if quiet and form is Format.TABLE else form
        self.columns = [name.strip() for name in columns.split(",") if name.strip()] if columns is not None else None

    def records(self, records: Iterable[Record], columns: Sequence[str], *, name: str, empty: str = "") -> None:
        """Print a list. `columns` are those of the table. JSON has all fields, unless --columns is given."""
        if self.form is Format.NAME:
            for record in records:
                self._write(f"{visible(str(record[name]))}\n")
        elif self.form is Format.NDJSON:
            for record in records:
                self._write(json_line(self._chosen(record)) + "\n")
        elif self.form is Format.JSON:
            self._write_json([self._chosen(record) for record in records])
        else:
            self._table(list(records), columns, name, empty)

    def record(self, record: Record, *, name: str) -> None:
        """Print one record with all its fields."""
        if self.form is Format.TABLE:
            self._block(record, self.columns or list(record))
        elif self.form is Format.JSON:
            self._write_json(self._chosen(record))
        else:
            self.records([record], (), name=name)

    def _chosen(self, record: Record) -> Record:
        if self.columns is None:
            return record
        check_columns(record, self.columns)
        return {column: record[column] for column in self.columns}

    def _write(self, text: str) -> None:
        self.streams.stdout.write(text)

    def _write_json(self, value: Any) -> None:
        text = msgspec.json.format(msgspec.json.encode(plain(value)), indent=2).decode()
        self._write(f"{visible_json(text)}\n")

    def _table(self, records: Sequence[Record], columns: Sequence[str], name: str, empty: str) -> None:
        fancy = self.streams.fancy
        if not records:
            if fancy and empty:
                self.streams.note(empty)
            elif not fancy and columns:
                self._write("  ".join(map(header, self.columns or columns)) + "\n")
            return
        table = Columns(records, self.columns or columns, name, fancy=fancy)
        if not fancy:
            widths = [min(width, PADDED_COLUMNS_MAX) for width in table.widths()]
            for row in table.rows():
                line = "  ".join(
                    text.rjust(width) if right else text.ljust(width)
                    for text, width, right in zip(row, widths, table.numeric(), strict=True)
                )
                self._write(line.rstrip() + "\n")
            return
        left_out = table.fit(self.streams.width) if self.columns is None else []
        if table.least_width() > self.streams.width:
            for number, record in enumerate(records):
                if number:
                    self._write("\n")
                self._block(record, self.columns or columns)
            return
        self._boxed(table)
        if left_out:
            self.streams.note(f"columns that do not fit: {', '.join(left_out)}")

    def _boxed(self, table: Columns) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        boxed = Table(box=box.ROUNDED, header_style="bold", border_style="dim")
        headers, *rows = table.rows()
        for title, right, width in zip(headers, table.numeric(), table.shared_out(self.streams.width), strict=True):
            justify: Literal["left", "right"] = "right" if right else "left"
            boxed.add_column(title, justify=justify, width=width, no_wrap=True, overflow="ellipsis")
        for row in rows:
            boxed.add_row(*(Text(text, style=state_style(text)) for text in row))
        self.console().print(boxed)

    def console(self, *, resizable: bool = False) -> Any:
        """A Rich console. `resizable` follows the size of the terminal, for screens that are redrawn."""
        from rich.console import Console

        return Console(
            file=self.streams.stdout,
            width=None if resizable else self.streams.width,
            force_terminal=self.streams.fancy,
            color_system="auto" if self.streams.colour else None,
            highlight=False,
        )

    def _block(self, record: Record, columns: Sequence[str]) -> None:
        """Print one `field  value` line per field."""
        check_columns(record, columns)
        fancy, now_us = self.streams.fancy, time.time_ns() // 1_000
        width = max(len(visible(column)) for column in columns)
        for column in columns:
            value = record[column]
            text = cell(value, fancy=False, now_us=now_us)
            if fancy and isinstance(value, Moment):
                text += f"  ({relative(value, now_us)})"
            name = f"{visible(column):<{width}}"
            self._write(f"{bold(name) if self.streams.colour else name}  {text}\n")


class Columns:
    """The cells of a table by column, and the width they need."""

    def __init__(self, records: Sequence[Record], columns: Sequence[str], name: str, *, fancy: bool) -> None:
        check_columns(records[0], columns)
        now_us = time.time_ns() // 1_000
        self._name = name
        self._fancy = fancy
        self._first = records[0]
        self._cells = {
            column: [cell(record[column], fancy=fancy, now_us=now_us) for record in records] for column in columns
        }

    def rows(self) -> list[tuple[str, ...]]:
        """The header row, and then all other rows."""
        headers = tuple(header(column, stacked=self._fancy) for column in self._cells)
        return [headers, *zip(*self._cells.values(), strict=True)]

    def widths(self) -> list[int]:
        headers, *_ = self.rows()
        return [
            max(max(map(len, title.split("\n"))), *map(len, cells))
            for title, cells in zip(headers, self._cells.values(), strict=True)
        ]

    def numeric(self) -> list[bool]:
        return [type(self._first[column]) in (int, float) for column in self._cells]

    def _least(self) -> list[int]:
        """The minimum width of each column. Names are never cut, because users copy them, nor are short cells."""
        return [
            width if column == self._name else min(width, SHORT_COLUMNS)
            for column, width in zip(self._cells, self.widths(), strict=True)
        ]

    def least_width(self) -> int:
        return sum(self._least()) + BORDER_COLUMNS * len(self._cells) + 1

    def fit(self, width: int) -> list[str]:
        """Drop columns until the rest fits: first empty columns, then from the right. Returns the dropped ones."""
        dropped: list[str] = []
        empty = [column for column, cells in self._cells.items() if set(cells) == {EMPTY}]
        for column in [*reversed(empty), *reversed(list(self._cells))]:
            if self.least_width() <= width or len(self._cells) <= COLUMNS_MIN:
                break
            if column in self._cells and column != self._name:
                del self._cells[column]
                if column not in empty:
                    dropped.append(column)
        return dropped

    def shared_out(self, width: int) -> list[int]:
        """The width of each column: the minimum first, and then the remaining width from left to right."""
        given = self._least()
        left = width - self.least_width()
        for at, wanted in enumerate(self.widths()):
            more = min(left, wanted - given[at])
            given[at] += more
            left -= more
        return given


def header(column: str, *, stacked: bool = False) -> str:
    """The title of a column. `stacked` puts each word on its own line, to save width on a terminal."""
    title = visible(column.upper())
    return title.replace("_", "\n") if stacked else title


def bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m"


def state_style(text: str) -> str:
    return {
        "available": "green",
        "ok": "green",
        "done": "green",
        "paused": "yellow",
        "draining": "yellow",
        "warn": "yellow",
        "running": "cyan",
        "unavailable": "red",
        "error": "red",
        "failed": "red",
        "fail": "red",
    }.get(text, "")
