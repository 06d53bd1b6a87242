"""Which rows of a partition file to read next, so that one read fits in memory.

DuckDB unpacks the payloads of 2,048 neighbouring rows together, and a LIMIT, an ORDER BY or a join keeps every payload
that passes through it. So a read has three steps: choose sequences without looking at payloads, measure what their rows
unpack to, and read the rows that fit as one range of sequences. Where DuckDB's own statistics say that no row is large,
nothing needs to be measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from querator import limits
from querator.limits import SLICE_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow as pa

LAST_SEQ: Final = (1 << 63) - 1
VECTOR_ROWS: Final = 2_048
"""DuckDB reads rows in vectors of this size. Measuring fewer rows than this unpacks just as much."""
VETTED_READS: Final = 16
"""One look at the sequences of waiting items is good for this many reads."""
_SIZE: Final = "octet_length(payload) + parts_bytes + octet_length(history) + strlen(kind) + strlen(encoding)"
"""The columns that have no limit of their own."""
_SIZE_MAX: Final = " + ".join(
    (
        *(f"stats({name}).max_string_length" for name in ("payload", "history", "kind", "encoding")),
        "stats(parts_bytes).max::BIGINT",
    )
)
"""An upper bound of `_SIZE` over all rows that a table ever had. Reads no row. NULL if DuckDB does not know it."""
_HAS_VALUES: Final = {
    **{
        name: f"coalesce(stats({name}).max_string_length::BIGINT, 1) > 0"
        for name in ("kind", "reference", "encoding", "source_id", "history")
    },
    **{
        name: f"coalesce(stats({name}).min::BIGINT, 1) <> 0 OR coalesce(stats({name}).max::BIGINT, 1) <> 0"
        for name in ("attempts", "max_attempts", "birth", "parts_bytes")
    },
    "imported_deadline": "coalesce(stats(imported_deadline).has_no_null::BOOLEAN, true)",
}
"""For each column that is empty in most files: whether a row may ever have had a value there. Reads no row."""


class Readable(Protocol):
    """The part of a partition file or a snapshot that is needed here. `{file}` in a query stands for its name."""

    def select(self, query: str, *parameters: object, wanted: Sequence[int] = ()) -> pa.Table:
        """The rows of a query as columns. The query can read the sequences `wanted` from the table `wanted`."""

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]: ...


class Stretch(NamedTuple):
    """The rows with after < seq <= last."""

    after: int
    last: int

    @property
    def condition(self) -> str:
        return f"seq > {self.after:d} AND seq <= {self.last:d}"


class Vetted(NamedTuple):
    """The items with after < seq <= last can be read from the first one on, without looking at the rest of the file:
    they have the order of their sequences in the file, and none of them is leased.
    """

    after: int
    last: int
    rows: int
    """There are at most this many."""
    size_max: int
    """No item is larger."""
    columns: str
    """The columns in which an item may have a value."""


class InOrder(Readable, Protocol):
    """A partition file whose waiting items are read one after the other."""

    vetted: Vetted | None
    """What is known about the items behind the last read of `small_items`."""


def first_seqs(file: Readable, source: str, rows_max: int) -> list[int]:
    """The lowest sequences of `source`, which is a FROM clause that ends in a WHERE clause; ascending.

    Without an order DuckDB stops at the first rows that it finds, instead of looking at the millions behind them. They
    have the lowest sequences, because sequences rise as rows are added. Only rows that an operator added by hand can
    break that rule. Then more rows turn up below the highest sequence, and DuckDB has to sort.
    """
    query = f"SELECT seq FROM {source}"
    seqs = _seqs(file.select(f"{query} LIMIT {rows_max:d}"))
    if seqs:
        ((present,),) = file.rows(f"SELECT count(*) FROM {source} AND seq <= {seqs[-1]:d}")
        if present > len(seqs):
            seqs = _seqs(file.select(f"{query} ORDER BY seq LIMIT {rows_max:d}"))
    return seqs


def small_items(file: InOrder, after: int, before: int, rows_max: int, bytes_max: int) -> pa.Table | None:
    """The first items with after < seq < before, ascending, if they need neither measuring nor sorting and none of them
    is leased. None if one of this does not hold, or if there are no such items. Columns without any value are left out.

    A partition reads this way while consumers wait, so most reads are one query that stops at its last row. A query
    that cannot stop looks at the statistics of every row group behind it.
    """
    vetted = file.vetted
    if vetted is None or vetted.after != after or vetted.last <= after:
        vetted = _vet(file, after, before, rows_max * VETTED_READS) or _vet(file, after, before, rows_max)
    file.vetted = None
    if vetted is None or vetted.size_max * min(vetted.rows, rows_max) > bytes_max:
        return None
    stretch = Stretch(after, min(vetted.last, before - 1))
    rows = file.select(f"SELECT {vetted.columns} FROM {{file}}.items WHERE {stretch.condition} LIMIT {rows_max:d}")
    if not _is_ascending(rows.column(0)):
        return None
    last: int = rows.column(0)[-1].as_py()
    file.vetted = vetted._replace(after=last)
    return rows


def _vet(file: Readable, after: int, before: int, rows_max: int) -> Vetted | None:
    """What is vetted stays so: an apply only removes rows from these sequences, and adds rows behind all others."""
    seqs = file.select(
        f"SELECT seq FROM {{file}}.items WHERE seq > {after:d} AND seq < {before:d} LIMIT {rows_max:d}"
    ).column(0)
    if not _is_ascending(seqs):
        return None
    last: int = seqs[-1].as_py()
    condition = Stretch(after, last).condition
    used = ", ".join([f"CASE WHEN {has_values} THEN '{name}' END" for name, has_values in _HAS_VALUES.items()])
    ((present, leased, size_max, names),) = file.rows(
        f"SELECT (SELECT count(*) FROM {{file}}.items WHERE {condition}),"
        f" (SELECT count(*) FROM {{file}}.leases WHERE {condition}),"
        f" (SELECT {_SIZE_MAX} FROM {{file}}.items LIMIT 1),"
        f" (SELECT [{used}] FROM {{file}}.items LIMIT 1)"
    )
    if present > len(seqs) or leased or size_max is None or names is None:
        return None
    columns = ", ".join(["seq, created_at, expire_deadline, payload", *filter(None, names)])
    return Vetted(after, last, len(seqs), size_max, columns)


def _is_ascending(seqs: pa.ChunkedArray) -> bool:
    """False also if there are none."""
    import pyarrow.compute as pc

    found = seqs.combine_chunks()
    return len(found) == 1 or (len(found) > 1 and bool(pc.all(pc.less(found[:-1], found[1:])).as_py()))


def _seqs(rows: pa.Table) -> list[int]:
    return sorted(rows.column(0).to_pylist())


def rows_of(file: Readable, table: str, columns: str, seqs: Sequence[int]) -> pa.Table:
    """The rows with these sequences, unordered. `columns` name the table as `items`."""
    stretch = f"{{file}}.{table} AS items WHERE items.seq >= {min(seqs):d} AND items.seq <= {max(seqs):d}"
    if file.rows(f"SELECT count(*) FROM {stretch}")[0][0] == len(seqs):
        return file.select(f"SELECT {columns} FROM {stretch}")
    return file.select(f"SELECT {columns} FROM {stretch} AND items.seq IN (SELECT seq FROM wanted)", wanted=seqs)


def count_fitting(file: Readable, table: str, seqs: Sequence[int], bytes_max: int) -> int:
    """How many of these rows, from the first one on, unpack to at most `bytes_max` in total; at least one."""
    import pyarrow.compute as pc

    measured = size = 0
    step = VECTOR_ROWS
    while measured < len(seqs):
        part = seqs[measured : measured + step]
        sizes = _sizes(file, table, part)
        fitting: int = pc.sum(pc.less_equal(pc.cumulative_sum(sizes), bytes_max - size)).as_py()
        if fitting < len(part):
            return max(1, measured + fitting)
        size += pc.sum(sizes).as_py()
        measured += len(part)
        # The rows so far tell how many more may fit.
        step = max(VECTOR_ROWS, (bytes_max - size) * measured // max(size, 1))
    return measured


def pieces(file: Readable, table: str, seqs: Sequence[int], bytes_max: int) -> Iterator[Sequence[int]]:
    """These sequences in pieces. The rows of a piece unpack to at most `bytes_max`, or the piece has one row."""
    for start in range(0, len(seqs), VECTOR_ROWS):
        part = seqs[start : start + VECTOR_ROWS]
        first = size = 0
        for place, row_bytes in enumerate(_sizes(file, table, part).to_pylist()):
            if size + row_bytes > bytes_max and place > first:
                yield part[first:place]
                first, size = place, 0
            size += row_bytes
        yield part[first:]


def _sizes(file: Readable, table: str, seqs: Sequence[int]) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = rows_of(file, table, f"items.seq, {_SIZE}", seqs)
    places = pc.index_in(pa.array(seqs, pa.int64()), value_set=rows.column(0))
    return pc.fill_null(rows.column(1).combine_chunks().take(places), 0)


def next_stretch(
    file: Readable, table: str, after: int, upto: int, *, content_of: str = "", bytes_max: int = SLICE_BYTES_MAX
) -> Stretch:
    """The rows that a read of (after, upto] takes next. The last stretch ends at `upto`, and may be empty.

    `content_of` is the table whose payloads the read wants: their rows have at most `bytes_max`.
    """
    seqs = first_seqs(file, f"{{file}}.{table} WHERE seq > {after:d} AND seq <= {upto:d}", limits.SLICE_ROWS_MAX)
    fitting = count_fitting(file, content_of, seqs, bytes_max) if content_of else len(seqs)
    is_last = fitting == len(seqs) < limits.SLICE_ROWS_MAX
    return Stretch(after, upto if is_last else seqs[fitting - 1])


def stretches(file: Readable, table: str) -> Iterator[Stretch]:
    """The stretches of a whole table; each fits in memory."""
    last = -LAST_SEQ
    while last < LAST_SEQ:
        stretch = next_stretch(file, table, last, LAST_SEQ, content_of=table)
        yield stretch
        last = stretch.last
