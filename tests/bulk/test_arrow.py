"""Arrow on the wire: columns of ids, and which schemas are accepted."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from querator import ids
from querator.wire import arrow

PREFIXES = st.integers(0, (1 << 64) - 1)
SEQUENCES = st.lists(
    st.one_of(st.integers(0, 1 << 53), st.integers(1_759_999_999_999_000, 1_760_000_000_001_000)), max_size=50
)


@settings(deadline=None)
@given(PREFIXES, SEQUENCES)
def test_a_column_of_ids_is_the_ids_one_by_one(prefix: int, seqs: list[int]) -> None:
    column = arrow.id_column(prefix, pa.array(seqs, pa.int64()))
    assert column.to_pylist() == [ids.encode(prefix, seq) for seq in seqs]


def test_a_stream_is_its_parts() -> None:
    batches = [pa.record_batch({"a": [1, 2]}), pa.record_batch({"a": [3]})]
    parts = [arrow.stream_start(batches[0].schema), *map(arrow.stream_part, batches), arrow.STREAM_END]
    assert list(arrow.read_batches(b"".join(parts))) == batches
    assert arrow.encode_batches(batches, batches[0].schema) == b"".join(parts)


def test_batches_are_brought_into_the_types_of_the_wire() -> None:
    given = pa.record_batch({"payload": pa.array(["a"], pa.large_string()), "kind": pa.array([None], pa.null())})
    assert arrow.fitted(given, arrow.PRODUCED).schema.types == [pa.binary(), pa.string()]
    with pytest.raises(arrow.SchemaError, match="column 'payload' is missing"):
        arrow.check(pa.schema([("kind", pa.string())]), arrow.PRODUCED)
    with pytest.raises(arrow.SchemaError, match="column 'odd' is unknown"):
        arrow.chosen(arrow.ITEM, ["odd"])
