"""Rows of a partition file's tables as Arrow, for inserts and lookups.

Importing this module imports pyarrow, which takes a third of an idle daemon's memory. So functions import it when
there are rows to write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from querator import limits
from querator.daemon.store.columnar import read_columns
from querator.daemon.store.runs import GoneFrom, Rows, Run
from querator.items import Hold, Item

_MICROSECONDS: Final = pa.timestamp("us")


def _times(values: Sequence[int]) -> pa.Array:
    return pa.array(values, pa.int64()).view(_MICROSECONDS)


def item_rows(items: Sequence[Item]) -> dict[str, pa.Array]:
    """Rows of the items table, without the payloads that are kept in parts."""
    large = [len(item.payload) if len(item.payload) > limits.LARGE_PAYLOAD_BYTES else 0 for item in items]
    payloads = [b"" if parts_bytes else item.payload for item, parts_bytes in zip(items, large, strict=True)]
    return {
        "seq": pa.array([item.seq for item in items], pa.int64()),
        "created_at": _times([item.created_at for item in items]),
        "expire_deadline": _times([item.expire_deadline for item in items]),
        "payload": pa.array(payloads, pa.binary()),
        "kind": pa.array([item.kind for item in items], pa.string()),
        "reference": pa.array([item.reference for item in items], pa.string()),
        "encoding": pa.array([item.encoding for item in items], pa.string()),
        "attempts": pa.array([item.attempts for item in items], pa.int64()),
        "max_attempts": pa.array([item.max_attempts for item in items], pa.int64()),
        "source_id": pa.array([item.source_id for item in items], pa.string()),
        "birth": pa.array([item.birth for item in items], pa.int64()),
        "history": pa.array([item.history for item in items], pa.binary()),
        "imported_deadline": pa.array([item.imported_deadline or None for item in items], _MICROSECONDS),
        "parts_bytes": pa.array(large, pa.int64()),
    }


def tables_of(all_rows: Iterable[Rows | Run], gone_from: GoneFrom) -> Iterator[pa.Table]:
    """Columnar items as rows of the items table, without removed items. Rows with the same columns come together."""
    together: list[Rows | Run] = []
    contents: list[Run | pa.Table] = []
    shape: object = None
    size = 0
    for rows in all_rows:
        content = rows if isinstance(rows, Run) else read_columns(rows)
        shape_before, shape = shape, list(_texts_of(content)) if isinstance(content, Run) else content.schema
        if together and (size >= limits.APPLY_BYTES_PER_INSERT_MAX or shape != shape_before):
            yield from _joined(together, _content_of(contents), gone_from)
            together, contents, size = [], [], 0
        together.append(rows)
        contents.append(content)
        size += rows.size_bytes
    if together:
        yield from _joined(together, _content_of(contents), gone_from)


def _texts_of(run: Run) -> dict[str, list[str]]:
    """The columns of a run besides the payload."""
    columns = {"kind": run.kinds, "reference": run.references, "encoding": run.encodings}
    return {name: texts for name, texts in columns.items() if texts is not None}


def _content_of(together: Sequence[Run | pa.Table]) -> pa.Table:
    """The columns of runs with the same texts, or of tables with the same schema. Each column is one piece, because
    DuckDB takes twice as long for a hundred small pieces."""
    runs = [one for one in together if isinstance(one, Run)]
    if not runs:
        return pa.concat_tables(together).combine_chunks()
    columns = {"payload": pa.array(list(chain.from_iterable([run.payloads for run in runs])), pa.binary())}
    for name in _texts_of(runs[0]):
        texts = chain.from_iterable([_texts_of(run)[name] for run in runs])
        columns[name] = pa.array(list(texts), pa.string())
    return pa.table(columns)


def _joined(together: Sequence[Rows | Run], table: pa.Table, gone_from: GoneFrom) -> Iterator[pa.Table]:
    """The table of these rows, or nothing if all of them were removed. Columns that are missing get their defaults."""
    ends = list(accumulate([rows.count for rows in together]))

    def repeated(values: Sequence[int]) -> pa.Array:
        """One value for all items of each Rows."""
        runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values, pa.int64()))
        return pc.run_end_decode(runs)

    firsts = [rows.first_seq + rows.count - end for rows, end in zip(together, ends, strict=True)]
    seqs = pc.add(repeated(firsts), pa.arange(0, ends[-1]))
    table = table.append_column("seq", seqs)
    for name in ("created_at", "expire_deadline"):
        defaults = repeated([getattr(rows, name) for rows in together]).view(_MICROSECONDS)
        if name in table.column_names:
            at = table.column_names.index(name)
            table = table.set_column(at, name, pc.coalesce(table.column(at), defaults))
        else:
            table = table.append_column(name, defaults)
    gone = [gone_from(rows) for rows in together]
    if any([one is not None for one in gone]):
        marks = b"".join([bytes(rows.count) if one is None else one for rows, one in zip(together, gone, strict=True)])
        present = pc.equal(pa.Array.from_buffers(pa.uint8(), len(marks), [None, pa.py_buffer(marks)]), 0)
        table = table.filter(present)
    if table.num_rows:
        yield table


def scheduled_rows(items: Sequence[Item]) -> dict[str, pa.Array]:
    return item_rows(items) | {"enqueue_at": _times([item.enqueue_at for item in items])}


def lease_rows(leases: Iterable[tuple[int, tuple[int, int, Hold]]]) -> dict[str, pa.Array]:
    seqs, terms = zip(*leases, strict=True)
    attempts, deadlines, holds = zip(*terms, strict=True)
    return {
        "seq": keys(seqs),
        "attempts": pa.array(attempts, pa.int64()),
        "deadline": _times(deadlines),
        "client_id": pa.array([hold.client_id for hold in holds], pa.string()),
        "leased_at": pa.array([hold.leased_at or None for hold in holds], pa.int64()).view(_MICROSECONDS),
        "ended_at": pa.array([hold.ended_at or None for hold in holds], pa.int64()).view(_MICROSECONDS),
        "reason": pa.array([hold.reason for hold in holds], pa.string()),
        "token_name": pa.array([hold.token_name for hold in holds], pa.string()),
    }


def lost_rows(lost: Iterable[tuple[int, tuple[int, int]]]) -> dict[str, pa.Array]:
    seqs, terms = zip(*lost, strict=True)
    births, until = zip(*terms, strict=True)
    return {"seq": keys(seqs), "birth": pa.array(births, pa.int64()), "until": _times(until)}


def request_rows(requests: Iterable[tuple[str, int]]) -> dict[str, pa.Array]:
    ids, until = zip(*requests, strict=True)
    return {"request_id": pa.array(ids, pa.string()), "until": _times(until)}


def keys(values: Sequence[int] | Sequence[str]) -> pa.Array:
    return pa.array(values, pa.string() if isinstance(values[0], str) else pa.int64())
