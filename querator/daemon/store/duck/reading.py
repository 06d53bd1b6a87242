"""The queries of a store: what each read of the contract asks of a partition file."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING

from querator import limits
from querator.daemon.store.base import Due, Found, Leased, Summary
from querator.daemon.store.columnar import ItemColumns
from querator.daemon.store.duck import parts, tables
from querator.daemon.store.duck.partition_file import PartitionFile
from querator.daemon.store.fingerprints import FINGERPRINT_SQL, Fingerprints, ascending
from querator.daemon.store.stretches import LAST_SEQ, count_fitting, first_seqs, pieces, rows_of, small_items
from querator.items import NOBODY, Hold, Item

if TYPE_CHECKING:
    import pyarrow as pa

_seq_of = attrgetter("seq")


def count_leases(file: PartitionFile) -> int:
    """How many leases have an item."""
    count: int = file.rows("SELECT count(*) FROM {file}.leases SEMI JOIN {file}.items USING (seq)")[0][0]
    return count


def summary(file: PartitionFile) -> Summary:
    ((count, created_sum, last_item),) = file.rows(
        "SELECT count(*), coalesce(sum(epoch_us(created_at)::HUGEINT), 0), max(seq) FROM {file}.items"
    )
    ((scheduled, next_due, last_scheduled),) = file.rows(
        "SELECT count(*), epoch_us(min(enqueue_at)), max(seq) FROM {file}.scheduled"
    )
    leased = count_leases(file)
    return Summary(
        ready=count - leased,
        leased=leased,
        scheduled=scheduled,
        created_sum=created_sum,
        # Rows that an operator added by hand may have higher sequences than we handed out.
        last_seq=max(file.meta().last_seq, last_item or 0, last_scheduled or 0),
        next_expiry=next_expiry(file),
        next_due=next_due,
    )


def ready(file: PartitionFile, after: int, before: int | None, items_max: int, bytes_max: int) -> list[Item]:
    found = ready_ahead(file, after, before, items_max, bytes_max)
    return found if isinstance(found, list) else found.items(0, found.count)


def ready_ahead(
    file: PartitionFile, after: int, before: int | None, items_max: int, bytes_max: int
) -> list[Item] | ItemColumns:
    before = LAST_SEQ if before is None else before
    rows = small_items(file, after, before, items_max, bytes_max)
    if rows is not None:
        found = ItemColumns(rows)
        has_parts = "parts_bytes" in rows.column_names
        lengths = parts.lengths_in(rows.column("seq"), rows.column("parts_bytes")) if has_parts else {}
        if not lengths:
            return found
        if items := _with_parts(file, "items", found.items(0, found.count), lengths):
            return items
    unleased = "{file}.items ANTI JOIN {file}.leases USING (seq)"
    while seqs := first_seqs(file, f"{unleased} WHERE seq > {after:d} AND seq < {before:d}", items_max):
        if items := _first_items(file, "items", seqs, bytes_max):
            return items
        # An apply has removed all of them since they were chosen, and there may be others behind them.
    return []


def _first_items(file: PartitionFile, table: str, seqs: Sequence[int], bytes_max: int) -> list[Item]:
    """The first of these items that together unpack to at most `bytes_max`; ascending."""
    return _items(file, table, seqs[: count_fitting(file, table, seqs, bytes_max)])


def _all_items(file: PartitionFile, table: str, seqs: Sequence[int]) -> Iterator[Item]:
    """The items with these sequences, however large they are together."""
    for piece in pieces(file, table, seqs, limits.READY_WINDOW_BYTES_MAX):
        yield from _items(file, table, piece)


def _items(file: PartitionFile, table: str, seqs: Sequence[int], columns: str = tables.ITEM) -> list[Item]:
    """The items with these sequences, ascending. The caller knows that they fit in memory."""
    if not seqs:
        return []
    is_due = table == "scheduled"
    rows = rows_of(file, table, columns + (", epoch_us(items.enqueue_at)" if is_due else ""), seqs)
    return _items_of(file, table, rows, tables.column(rows, tables.ITEM_COLUMNS) if is_due else repeat(0))


def _items_of(file: PartitionFile, table: str, rows: pa.Table, enqueue_at: Iterable[int] = repeat(0)) -> list[Item]:
    """The items of a result that begins with the columns `ITEM`, ascending."""
    items = sorted(tables.items_of(rows, enqueue_at), key=_seq_of)
    lengths = parts.lengths_in(rows.column(0), rows.column(tables.ITEM_COLUMNS - 1))
    return _with_parts(file, table, items, lengths) if lengths else items


def _with_parts(file: PartitionFile, table: str, items: list[Item], lengths: dict[int, int]) -> list[Item]:
    """These items with the payloads that are kept in parts. Leaves out items whose parts an apply has removed."""
    payloads = parts.payloads(file, table, lengths)
    for item in items:
        if item.seq in payloads:
            item.payload = payloads[item.seq]
    return [item for item in items if item.seq in payloads or item.seq not in lengths]


def _leases_among(file: PartitionFile, condition: str, wanted: Sequence[int] = ()) -> dict[int, tuple[int, int, Hold]]:
    """Attempts, deadlines and holds of leases, by sequence."""
    rows = file.select(
        f"SELECT seq, attempts, epoch_us(deadline), {tables.HOLD} FROM {{file}}.leases WHERE {condition}",
        wanted=wanted,
    )
    terms = zip(tables.column(rows, 1), tables.column(rows, 2), tables.holds_in(rows, 3), strict=True)
    return dict(zip(tables.column(rows), terms, strict=True))


def leased(file: PartitionFile) -> list[Leased]:
    leases = _leases_among(file, "seq IN (SELECT seq FROM {file}.items)")
    found = [Leased(item, *leases[item.seq]) for item in _all_items(file, "items", sorted(leases))]
    return sorted(found, key=lambda leased: (leased.deadline, leased.item.seq))


def scheduled(file: PartitionFile, items_max: int) -> Due:
    query = f"SELECT seq FROM {{file}}.scheduled ORDER BY enqueue_at, seq LIMIT {items_max + 1:d}"
    seqs = tables.column(file.select(query))
    items = _first_items(file, "scheduled", seqs[:items_max], limits.SCHEDULED_WINDOW_BYTES_MAX)
    return Due(sorted(items, key=lambda item: (item.enqueue_at, item.seq)), are_all=len(items) == len(seqs))


def expired(file: PartitionFile, now_us: int, items_max: int) -> list[Item]:
    rows = file.select(
        "SELECT seq FROM {file}.items WHERE expire_deadline < make_timestamp(?)"
        f" AND seq NOT IN (SELECT seq FROM {{file}}.leases) ORDER BY seq LIMIT {items_max:d}",
        now_us,
    )
    return _first_items(file, "items", tables.column(rows), limits.SLICE_BYTES_MAX)


def next_expiry(file: PartitionFile) -> int | None:
    earliest: int | None = file.rows(
        "SELECT epoch_us(min(expire_deadline)) FROM {file}.items WHERE seq NOT IN (SELECT seq FROM {file}.leases)"
    )[0][0]
    return earliest


def find(file: PartitionFile, seqs: Iterable[int], *, payloads: bool = True) -> dict[int, Found]:
    found: dict[int, Found] = {}
    rest = sorted({seq for seq in seqs if seq <= LAST_SEQ})
    leases = _leases_among(file, "seq IN (SELECT seq FROM wanted)", rest) if rest else {}
    for table in tables.MEASURED_TABLES:
        if not rest:
            break
        present = file.select(
            f"SELECT DISTINCT seq FROM {{file}}.{table} WHERE seq IN (SELECT seq FROM wanted)", wanted=rest
        )
        here = sorted(tables.column(present))
        read = _all_items(file, table, here) if payloads else _items(file, table, here, tables.ITEM_WITHOUT_CONTENT)
        for item in read:
            if table == "scheduled":
                found[item.seq] = Found("scheduled", item, item.attempts, 0)
            elif item.seq in leases:
                found[item.seq] = Found("leased", item, *leases[item.seq])
            else:
                found[item.seq] = Found("ready", item, item.attempts, 0)
        rest = [seq for seq in rest if seq not in found]
    if rest:
        lost = file.select("SELECT seq FROM {file}.lost WHERE seq IN (SELECT seq FROM wanted)", wanted=rest)
        found.update((seq, Found("lost", None, 0, 0)) for seq in tables.column(lost))
    return found


def page(file: PartitionFile, scheduled: bool, from_seq: int, items_max: int) -> list[Leased]:
    table = "scheduled" if scheduled else "items"
    seqs = first_seqs(file, f"{{file}}.{table} WHERE seq >= {from_seq:d}", items_max)
    items = _first_items(file, table, seqs, limits.PAGE_BYTES_MAX)
    if scheduled or not items:
        return [Leased(item, item.attempts, 0) for item in items]
    leases = _leases_among(file, f"seq >= {from_seq:d} AND seq <= {items[-1].seq:d}")
    return [Leased(item, *leases.get(item.seq, (item.attempts, 0, NOBODY))) for item in items]


def sources(file: PartitionFile, source_ids: Iterable[str]) -> set[str]:
    rows = file.rows(
        "SELECT source_id FROM {file}.items WHERE source_id IN (SELECT unnest($1::VARCHAR[])) UNION"
        " SELECT source_id FROM {file}.scheduled WHERE source_id IN (SELECT unnest($1::VARCHAR[]))",
        [source_id for source_id in source_ids if source_id],
    )
    return {source_id for (source_id,) in rows}


def request_ids(file: PartitionFile, now_us: int, newest_max: int, always: tuple[str, ...]) -> list[tuple[str, int]]:
    is_always = " OR ".join(f"starts_with(request_id, '{prefix}')" for prefix in always) or "false"
    rows = file.select(
        "SELECT request_id, epoch_us(until) AS until_us FROM {file}.requests"
        f" WHERE until >= make_timestamp(?) AND ({is_always}"
        f" OR rowid IN (SELECT rowid FROM {{file}}.requests ORDER BY until DESC LIMIT {newest_max:d}))"
        " ORDER BY until_us",
        now_us,
    )
    return list(zip(tables.column(rows), tables.column(rows, 1), strict=True))


def request_fingerprints(file: PartitionFile, now_us: int) -> Fingerprints:
    ((until,),) = file.rows("SELECT coalesce(epoch_us(max(until)), 0) FROM {file}.requests")
    if until < now_us:
        return Fingerprints(array("Q"))
    values = file.select(
        f"SELECT {FINGERPRINT_SQL} FROM {{file}}.requests WHERE until >= make_timestamp(?) ORDER BY 1", now_us
    )
    return Fingerprints(ascending(values.column(0)), until)


def remembered(file: PartitionFile, request_ids: Sequence[str], now_us: int) -> set[str]:
    rows = file.rows(
        "SELECT request_id FROM {file}.requests"
        " WHERE request_id IN (SELECT unnest(?::VARCHAR[])) AND until >= make_timestamp(?)",
        list(request_ids),
        now_us,
    )
    return {request_id for (request_id,) in rows}
