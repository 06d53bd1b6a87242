"""Makes items from Arrow columns. This needs only pyarrow, so the queue can use it without DuckDB."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from querator import limits
from querator.daemon.store.runs import Rows, Run
from querator.items import Item

if TYPE_CHECKING:
    import pyarrow as pa


def read_columns(rows: Rows) -> pa.Table:
    import pyarrow as pa

    return pa.ipc.open_stream(rows.columns).read_all()


def values_of(column: pa.ChunkedArray, default: Any = None) -> list[Any]:
    """The values of a column in Python, with `default` for NULL. Times are microseconds."""
    import pyarrow as pa

    if column.type == pa.timestamp("us"):
        # As numbers: pyarrow would make a datetime of each time, which takes fifty times as long.
        column = column.combine_chunks().view(pa.int64())
    if column.null_count:
        column = column.fill_null(default)
    listed: list[Any]
    if column.type == pa.int64():
        # From the buffers, which takes a third of the time.
        listed = []
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            listed += memoryview(chunk.buffers()[1]).cast("q")[chunk.offset : chunk.offset + len(chunk)].tolist()
    else:
        listed = column.to_pylist()
    return listed


def items_in(rows: Rows | Run) -> list[Item]:
    """The items of a batch that is kept in columnar form."""
    if isinstance(rows, Run):
        return rows.items(range(rows.count))
    seqs = range(rows.first_seq, rows.last_seq + 1)
    return items_from(read_columns(rows), seqs, rows.created_at, rows.expire_deadline)


def items_from(
    table: pa.Table, seqs: Iterable[int] = repeat(0), created_at: int = 0, expire_deadline: int = 0
) -> list[Item]:
    """The items of a table that has some columns of the items table.

    `created_at` and `expire_deadline` are for rows that carry no value of their own.
    """

    def values(name: str, default: Any) -> Iterable[Any]:
        return values_of(table.column(name), default) if name in table.column_names else repeat(default)

    return list(
        map(
            Item,
            seqs,
            values("created_at", created_at),
            values("expire_deadline", expire_deadline),
            values("payload", b""),
            values("kind", ""),
            values("reference", ""),
            values("encoding", ""),
            values("attempts", 0),
            values("max_attempts", 0),
            values("source_id", ""),
            values("enqueue_at", 0),
            repeat(0),
            values("history", b""),
        )
    )


ITEM_FIELDS: Final[dict[str, int | str | bytes]] = {
    "seq": 0,
    "created_at": 0,
    "expire_deadline": 0,
    "payload": b"",
    "kind": "",
    "reference": "",
    "encoding": "",
    "attempts": 0,
    "max_attempts": 0,
    "source_id": "",
    "enqueue_at": 0,
    "birth": 0,
    "history": b"",
    "imported_deadline": 0,
}
"""The fields of an Item in their order, each with the value for rows that have none."""
CREATED_AT, EXPIRE_DEADLINE, PAYLOAD, KIND, REFERENCE, ENCODING = range(1, 7)


class ItemColumns:
    """Waiting items in columnar form, with rising sequences. They become objects a piece at a time.

    A thread that reads from a file makes this almost without the interpreter's lock. Making the items takes the lock,
    so whoever leases them does it for a few hundred at a time. Items of large requests are runs again, and need not
    become objects.
    """

    def __init__(self, table: pa.Table) -> None:
        """The table has at least one row. It may lack columns in which no row has a value."""
        import pyarrow as pa
        import pyarrow.compute as pc

        self.count: int = table.num_rows
        self._seqs = _numbers(table.column("seq"))
        self.first_seq: int = self._seqs[0]
        self.last_seq: int = self._seqs[self.count - 1]
        self.payload_bytes = 0
        self._columns: list[Any] = []
        """For each field a buffer of numbers, an array of texts, or the value that all rows have."""
        for name, default in ITEM_FIELDS.items():
            if name not in table.column_names:
                self._columns.append(default)
                continue
            column = table.column(name)
            if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
                texts = column.combine_chunks()
                size: int = pc.sum(pc.binary_length(texts)).as_py()
                if name == "payload":
                    self.payload_bytes = size
                self._columns.append(texts if size else default)
            else:
                self._columns.append(_numbers(column) if _has_number(column) else default)
        self._runs = self._find_runs(table)

    def runs(self) -> list[RunColumns]:
        """All of these items as runs, in order. Empty if some differ in other fields, or if the runs would be short.

        Made anew each time: kept here, they would be a reference cycle, and the collector runs too rarely for the bytes
        of the columns.
        """
        return [RunColumns(self, *places_and_size) for places_and_size in self._runs]

    def _find_runs(self, table: pa.Table) -> list[tuple[int, int, int]]:
        """For each run the places where it begins and ends, and the bytes of its payloads."""
        import pyarrow as pa
        import pyarrow.compute as pc

        others = self._columns[ENCODING + 1 :]
        if any([isinstance(column, memoryview | pa.Array) for column in others]):
            return []
        breaks = None
        for name, step in (("seq", 1), ("created_at", 0), ("expire_deadline", 0)):
            numbers = table.column(name).combine_chunks().view(pa.int64())
            differs = pc.not_equal(pc.subtract(numbers[1:], numbers[:-1]), step)
            breaks = differs if breaks is None else pc.or_(breaks, differs)
        last_places = [*pc.indices_nonzero(breaks).to_pylist(), self.count - 1]
        if len(last_places) * limits.RUN_ITEMS_MIN > self.count:
            return []
        payloads = self._columns[PAYLOAD]
        ends = pa.array([0] * self.count) if payloads == b"" else pc.cumulative_sum(pc.binary_length(payloads))
        found: list[tuple[int, int, int]] = []
        start = begin = 0
        for last, end in zip(last_places, ends.take(pa.array(last_places)).to_pylist(), strict=True):
            found.append((start, last + 1, end - begin))
            start, begin = last + 1, end
        return found

    def run(self, start: int, stop: int) -> Run:
        """The rows from `start` up to `stop`, which are a run."""
        columns = self._columns
        created_at, expire_deadline = [
            column[start] if isinstance(column, memoryview) else column
            for column in (columns[CREATED_AT], columns[EXPIRE_DEADLINE])
        ]
        kinds, references, encodings = [
            None if isinstance(column, str) else list(_piece(column, start, stop))
            for column in (columns[KIND], columns[REFERENCE], columns[ENCODING])
        ]
        payloads = list(_piece(columns[PAYLOAD], start, stop))
        return Run(self._seqs[start], stop - start, created_at, expire_deadline, payloads, kinds, references, encodings)

    def seqs(self, start: int = 0) -> list[int]:
        """The sequences from this row on."""
        return self._seqs[start:].tolist()

    def seq_at(self, place: int) -> int:
        seq: int = self._seqs[place]
        return seq

    def items(self, start: int, stop: int) -> list[Item]:
        """The items of the rows from `start` up to `stop`."""
        return list(map(Item, *[_piece(column, start, stop) for column in self._columns]))


class RunColumns:
    """Rows of `ItemColumns` that are a run."""

    def __init__(self, columns: ItemColumns, start: int, stop: int, size_bytes: int) -> None:
        self._columns = columns
        self._start, self._stop = start, stop
        self.count = stop - start
        self.first_seq: int = columns.seq_at(start)
        self.last_seq = self.first_seq + self.count - 1
        self.size_bytes = size_bytes
        """The bytes of the payloads."""

    def run(self) -> Run:
        return self._columns.run(self._start, self._stop)


def _numbers(column: pa.ChunkedArray) -> memoryview:
    """The numbers of a column, with 0 for NULL. Times are microseconds."""
    import pyarrow as pa

    array = column.combine_chunks()
    if array.type != pa.int64():
        array = array.view(pa.int64())
    if array.null_count:
        array = array.fill_null(0)
    return memoryview(array.buffers()[1]).cast("q")[array.offset : array.offset + len(array)]


def _has_number(column: pa.ChunkedArray) -> bool:
    """Whether a value is neither NULL nor 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count == len(column):
        return False
    extremes: dict[str, int] = pc.min_max(column.cast(pa.int64())).as_py()
    return any(extremes.values())


def _piece(column: Any, start: int, stop: int) -> Iterable[Any]:
    if isinstance(column, memoryview):
        numbers: list[Any] = column[start:stop].tolist()
        return numbers
    if isinstance(column, int | bytes | str):
        return repeat(column, stop - start)
    texts: list[Any] = column.slice(start, stop - start).to_pylist()
    return texts
