"""How answers look: table, JSON, NDJSON or names; boxes and relative times only for a person at a terminal.

Commands hand over records (dicts of plain values, `Moment` and `bytes` included) and say which columns matter;
nothing else in the command line formats data.
"""

from __future__ import annotations

import base64
import enum
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from querator import times
from querator.cli.streams import Streams
from querator.errors import UsageError

Record = Mapping[str, Any]

EMPTY: Final = "-"
NARROW_COLUMNS: Final = 60
"""Below this width a table that does not fit is shown as one block of lines per record."""


class Format(enum.StrEnum):
    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    NAME = "name"


class Moment(int):
    """A time in microseconds since 1970: absolute in data, relative for a person."""


class Payload(bytes):
    """An item's payload: text in a table; in JSON `utf8` or `bytes`, as the produce request spells it."""


def payload_fields(payload: bytes) -> dict[str, str]:
    try:
        return {"utf8": payload.decode()}
    except UnicodeDecodeError:
        return {"bytes": base64.b64encode(payload).decode()}


def plain(value: Any) -> Any:
    """The value as JSON has it."""
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
    return msgspec.json.encode(plain(value)).decode()


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


def visible(text: str) -> str:
    """Control characters spelled out: a cell stays on its line, and a payload cannot drive the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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


class Renderer:
    """Writes records to standard output in the form that was asked for."""

    def __init__(
        self, streams: Streams, form: Format = Format.TABLE, *, quiet: bool = False, columns: str | None = None
    ) -> None:
        self.streams = streams
        self.form = Format.NAME if quiet and form is Format.TABLE else form
        self.columns = [name.strip() for name in columns.split(",") if name.strip()] if columns is not None else None

    @property
    def streaming(self) -> bool:
        """Whether records can be written one by one without waiting for the last."""
        return self.form in (Format.NDJSON, Format.NAME)

    def records(self, records: Iterable[Record], columns: Sequence[str], *, name: str, empty: str = "") -> None:
        """A list of alike things. `columns` are those of the table; JSON has all fields unless --columns says less."""
        if self.form is Format.NAME:
            for record in records:
                self._write(f"{record[name]}\n")
        elif self.form is Format.NDJSON:
            for record in records:
                self._write(json_line(self._chosen(record)) + "\n")
        elif self.form is Format.JSON:
            self._write_json([self._chosen(record) for record in records])
        else:
            self._table(list(records), self.columns or list(columns), empty)

    def record(self, record: Record, *, name: str, columns: Sequence[str] = ()) -> None:
        """One thing with many fields."""
        if self.form is Format.NAME:
            self._write(f"{record[name]}\n")
        elif self.form is Format.NDJSON:
            self._write(json_line(self._chosen(record)) + "\n")
        elif self.form is Format.JSON:
            self._write_json(self._chosen(record))
        else:
            self._block(record, self.columns or list(columns) or list(record))

    def _chosen(self, record: Record) -> Record:
        if self.columns is None:
            return record
        self._check(record, self.columns)
        return {column: record[column] for column in self.columns}

    def _check(self, record: Record, columns: Sequence[str]) -> None:
        for column in columns:
            if column not in record:
                raise UsageError(f"there is no column '{column}'", hint=f"columns are {', '.join(record)}")

    def _write(self, text: str) -> None:
        self.streams.stdout.write(text)

    def _write_json(self, value: Any) -> None:
        self._write(msgspec.json.format(msgspec.json.encode(plain(value)), indent=2).decode() + "\n")

    def _table(self, records: Sequence[Record], columns: Sequence[str], empty: str) -> None:
        fancy, now_us = self.streams.fancy, time.time_ns() // 1_000
        if not records:
            if fancy and empty:
                self.streams.note(empty)
            elif not fancy:
                self._write("  ".join(map(header, columns)) + "\n")
            return
        self._check(records[0], columns)
        rows = [[cell(record[column], fancy=fancy, now_us=now_us) for column in columns] for record in records]
        headers = [header(column) for column in columns]
        widths = [max(map(len, texts)) for texts in zip(headers, *rows, strict=True)]
        numeric = [type(records[0][column]) in (int, float) for column in columns]
        if not fancy:
            for row in [headers, *rows]:
                line = "  ".join(
                    text.rjust(width) if right else text.ljust(width)
                    for text, width, right in zip(row, widths, numeric, strict=True)
                )
                self._write(line.rstrip() + "\n")
        elif sum(widths) + 3 * len(widths) + 1 > self.streams.width < NARROW_COLUMNS:
            for number, record in enumerate(records):
                if number:
                    self._write("\n")
                self._block(record, columns)
        else:
            self._boxed(headers, rows, numeric)

    def _boxed(self, headers: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.ROUNDED, header_style="bold", border_style="dim")
        for title, right in zip(headers, numeric, strict=True):
            table.add_column(title, justify="right" if right else "left", overflow="fold" if right else "ellipsis")
        for row in rows:
            table.add_row(*(Text(text, style=state_style(text)) for text in row))
        self.console().print(table)

    def console(self) -> Any:
        """Rich, for a person at a terminal."""
        from rich.console import Console

        return Console(
            file=self.streams.stdout,
            width=self.streams.width,
            force_terminal=self.streams.fancy,
            no_color=not self.streams.colour,
            highlight=False,
        )

    def _block(self, record: Record, columns: Sequence[str]) -> None:
        """`field  value` lines, one per field."""
        self._check(record, columns)
        fancy, now_us = self.streams.fancy, time.time_ns() // 1_000
        width = max(map(len, columns))
        for column in columns:
            value = record[column]
            text = cell(value, fancy=False, now_us=now_us)
            if fancy and isinstance(value, Moment):
                text += f"  ({relative(value, now_us)})"
            name = f"{column:<{width}}"
            self._write(f"{bold(name) if self.streams.colour else name}  {text}\n")


def header(column: str) -> str:
    return column.upper()


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
