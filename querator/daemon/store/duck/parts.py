"""Large payloads, which a partition file keeps in parts: rows of the table `parts`, of `PART_BYTES` or a little more.

DuckDB makes row groups of at least 2,048 rows, however large the rows are. It reads payloads 2,048 rows at a time, and
a checkpoint writes the last row group again from its first row. With payloads of 1 MB that would be 2 GB each time.
A row group of parts has about 8 MB. The item's row has the length of a payload that is in parts (`parts_bytes`); 0 if
the payload is in the row.

A part is in the column `content`, which is written as it is, or in `packed`, which DuckDB compresses with zstd. The
other column is empty. Compressing takes longer than writing, so only payloads that compress well are packed.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from querator import limits
from querator.daemon.store.stretches import Readable
from querator.limits import LARGE_PAYLOAD_BYTES, PART_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

Payload = bytes | memoryview
_VIEW_BYTES: Final = 16

_SAMPLES_MAX: Final = 16
_SAMPLE_BYTES: Final = 1_024


def cut(rows: pa.Table) -> tuple[pa.Table, list[tuple[int, bytes]]]:
    """Rows for `items` or `scheduled` without their large payloads, and these payloads with their sequences."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "payload" not in rows.column_names:
        return rows, []
    payload = rows.column("payload")
    lengths = pc.binary_length(payload)
    is_large = pc.greater(lengths, LARGE_PAYLOAD_BYTES)
    large = rows.select(["seq", "payload"]).filter(is_large)
    if not large.num_rows:
        return rows, []
    kept = pc.if_else(is_large, pa.scalar(b"", payload.type), payload)
    rows = rows.set_column(rows.column_names.index("payload"), "payload", kept)
    rows = rows.append_column("parts_bytes", pc.if_else(is_large, lengths.cast(pa.int64()), 0))
    return rows, list(zip(large.column("seq").to_pylist(), large.column("payload").to_pylist(), strict=True))


def rows_of(payloads: Iterable[tuple[int, Payload]]) -> Iterator[pa.Table]:
    """The rows for `parts`, as views of the payloads, which are not copied. An insert of one table of many parts costs
    much less than several inserts.
    """
    some: list[tuple[int, Payload]] = []
    size = 0
    for seq, payload in payloads:
        some.append((seq, payload))
        size += len(payload)
        if size >= limits.PARTS_BYTES_PER_INSERT_MAX:
            yield _views(some)
            some, size = [], 0
    if some:
        yield _views(some)


def _views(payloads: Sequence[tuple[int, Payload]]) -> pa.Table:
    import pyarrow as pa

    seqs, numbers = array("q"), array("q")
    lengths, starts, firsts, owners = array("I"), array("I"), array("I"), array("I")
    for owner, (seq, payload) in enumerate(payloads):
        count = len(payload) // PART_BYTES
        part_bytes = len(payload) // count & ~3  # so that the payload can be read as integers from part to part
        seqs += array("q", [seq]) * count
        numbers.extend(range(count))
        lengths += array("I", [part_bytes]) * count
        lengths[-1] += len(payload) - count * part_bytes
        firsts.extend(memoryview(payload)[: count * part_bytes].cast("I")[:: part_bytes // 4])
        owners += array("I", [owner]) * count
        starts.extend(range(0, count * part_bytes, part_bytes))
    count = len(seqs)
    views = array("I", bytes(_VIEW_BYTES)) * count
    views[0::4], views[1::4], views[2::4], views[3::4] = lengths, firsts, owners, starts
    buffers = [pa.py_buffer(payload) for _, payload in payloads]
    column_name = "packed" if _compress_well(payloads) else "content"
    return pa.table(
        {
            "seq": pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(seqs)]),
            "number": pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(numbers)]),
            column_name: pa.Array.from_buffers(pa.binary_view(), count, [None, pa.py_buffer(views), *buffers]),
        }
    )


def _compress_well(payloads: Sequence[tuple[int, Payload]]) -> bool:
    """Whether the middle of some of these payloads compresses to less than half. Takes a third of a millisecond."""
    step = -(-len(payloads) // _SAMPLES_MAX)
    sample = b"".join(
        [payload[len(payload) // 2 : len(payload) // 2 + _SAMPLE_BYTES] for _, payload in payloads[::step]]
    )
    return 2 * len(zlib.compress(sample, 1)) < len(sample)


def payloads(file: Readable, table: str, lengths: Mapping[int, int]) -> dict[int, bytes]:
    """The payloads of these items of `table`, by sequence.

    An item that was removed since the caller has read its row is left out. Raises ValueError if a payload of an item
    that is still there is not whole.
    """
    seqs = sorted(lengths)
    within = f"seq >= {seqs[0]:d} AND seq <= {seqs[-1]:d} AND seq IN (SELECT seq FROM wanted)"
    rows = file.select(f"SELECT seq, number, content, packed FROM {{file}}.parts WHERE {within}", wanted=seqs)
    found: dict[int, list[tuple[int, bytes]]] = {}
    for seq, number, content, packed in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        found.setdefault(seq, []).append((number, content or packed))
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
