"""Large payloads, which a partition file keeps in parts: rows of at most `PART_BYTES` in the table `parts`.

DuckDB makes row groups of at least 2,048 rows, however large the rows are. It reads payloads 2,048 rows at a time, and
a checkpoint writes the last row group again from its first row. With payloads of 1 MB that would be 2 GB each time.
A row group of parts has 8 MB. The item's row has the length of a payload that is in parts (`parts_bytes`); 0 if
the payload is in the row.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING

from querator.daemon.store.stretches import Readable
from querator.limits import LARGE_PAYLOAD_BYTES, PART_BYTES

if TYPE_CHECKING:
    import pyarrow as pa


def cut(rows: pa.Table) -> tuple[pa.Table, pa.Table | None]:
    """Rows for `items` or `scheduled` without their large payloads, and the rows for `parts`, if there are any."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "payload" not in rows.column_names:
        return rows, None
    payload = rows.column("payload")
    lengths = pc.binary_length(payload)
    is_large = pc.greater(lengths, LARGE_PAYLOAD_BYTES)
    large = rows.select(["seq", "payload"]).filter(is_large)
    if not large.num_rows:
        return rows, None
    kept = pc.if_else(is_large, pa.scalar(b"", payload.type), payload)
    rows = rows.set_column(rows.column_names.index("payload"), "payload", kept)
    rows = rows.append_column("parts_bytes", pc.if_else(is_large, lengths.cast(pa.int64()), 0))
    return rows, _parts(large.column("seq").to_pylist(), large.column("payload").to_pylist())


def _parts(seqs: list[int], payloads: list[bytes]) -> pa.Table:
    """The parts of these payloads. All of them are one array: DuckDB takes many small arrays slowly."""
    import pyarrow as pa

    places = [
        (seq, number) for seq, payload in zip(seqs, payloads, strict=True) for number in range(_count(len(payload)))
    ]
    offsets, end = array("i"), 0
    for payload in payloads:
        offsets.extend(range(end, end + len(payload), PART_BYTES))
        end += len(payload)
    offsets.append(end)
    content = pa.py_buffer(b"".join(payloads))
    return pa.table(
        {
            "seq": pa.array([seq for seq, _ in places], pa.int64()),
            "number": pa.array([number for _, number in places], pa.int64()),
            "content": pa.Array.from_buffers(pa.binary(), len(places), [None, pa.py_buffer(offsets), content]),
        }
    )


def _count(payload_bytes: int) -> int:
    return -(-payload_bytes // PART_BYTES)


def payloads(file: Readable, table: str, lengths: Mapping[int, int]) -> dict[int, bytes]:
    """The payloads of these items of `table`, by sequence.

    An item that was removed since the caller has read its row is left out. Raises ValueError if a payload of an item
    that is still there is not whole.
    """
    seqs = sorted(lengths)
    within = f"seq >= {seqs[0]:d} AND seq <= {seqs[-1]:d} AND seq IN (SELECT seq FROM wanted)"
    rows = file.select(f"SELECT seq, number, content FROM {{file}}.parts WHERE {within}", wanted=seqs)
    found: dict[int, list[tuple[int, bytes]]] = {}
    for seq, number, content in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        found.setdefault(seq, []).append((number, content))
    joined = {seq: b"".join([content for _, content in sorted(parts)]) for seq, parts in found.items()}
    whole = {seq: payload for seq, payload in joined.items() if len(payload) == lengths[seq]}
    if len(whole) < len(seqs):
        lacking = [seq for seq in seqs if seq not in whole]
        left = file.select(f"SELECT seq FROM {{file}}.{table} WHERE seq IN (SELECT seq FROM wanted)", wanted=lacking)
        if left.num_rows:
            raise ValueError(f"the payloads of {left.num_rows} items are not whole in its table 'parts'")
    return whole


def lengths_in(seqs: pa.ChunkedArray, parts_bytes: pa.ChunkedArray) -> dict[int, int]:
    """The lengths of the payloads that are kept in parts, by sequence."""
    import pyarrow.compute as pc

    if not pc.max(parts_bytes).as_py():
        return {}
    is_large = pc.greater(parts_bytes, 0)
    large = seqs.filter(is_large).to_pylist()
    return dict(zip(large, parts_bytes.filter(is_large).to_pylist(), strict=True))


def filled(file: Readable, table: str, rows: pa.Table) -> pa.Table:
    """The rows of a result with the payloads that are kept in parts. The result has the columns seq and parts_bytes."""
    import pyarrow as pa

    lengths = lengths_in(rows.column("seq"), rows.column("parts_bytes"))
    if not lengths:
        return rows
    found = payloads(file, table, lengths)
    seqs = rows.column("seq").to_pylist()
    if len(found) < len(lengths):
        rows = rows.filter(pa.array([seq in found or seq not in lengths for seq in seqs]))
        seqs = rows.column("seq").to_pylist()
    for name, convert in (("payload", bytes), ("text", _text)):
        if name in rows.column_names:
            at = rows.column_names.index(name)
            values = [
                convert(found[seq]) if seq in found else value
                for seq, value in zip(seqs, rows.column(at).to_pylist(), strict=True)
            ]
            rows = rows.set_column(at, name, pa.chunked_array([pa.array(values, rows.column(at).type)]))
    return rows


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None
