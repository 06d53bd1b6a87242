"""A scan reads a bounded number of bytes at a time, from every table and for all columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from querator.daemon.store.duck.slices import Scan
from querator.daemon.store.duck.storage import DuckStorage
from querator.limits import SLICE_BYTES_MAX
from tests.store.store_making import UUID, batch_of, item, leased, put


@pytest.mark.parametrize("table", ["items", "leases"])
@pytest.mark.parametrize("columns", [("payload",), ("text",), ("payload", "text")])
def test_a_slice_of_large_payloads_has_few_rows(tmp_path: Path, table: str, columns: tuple[str, ...]) -> None:
    storage = DuckStorage("disk", tmp_path)
    storage.recover()
    store = storage.create(UUID, "orders")
    put(storage, store, batch_of(add=[item(seq, payload=b"x" * 1_000_000) for seq in range(1, 21)], last_seq=20))
    put(storage, store, leased(*((seq, 1, 10**9) for seq in range(1, 21))))
    sizes, rows, after = [], 0, 0
    while after < 20:
        slice = store.slice(Scan(table, columns, after, 20), 0)
        sizes.append(slice.batch.nbytes)
        rows, after = rows + slice.batch.num_rows, slice.last
    storage.close()
    assert rows == 20
    assert max(sizes) <= SLICE_BYTES_MAX + 1_000
