"""Columnar items as rows of the items table."""

from __future__ import annotations

from itertools import chain

import pyarrow as pa

from querator.daemon.store.columnar import items_from
from querator.daemon.store.duck.arrow_rows import tables_of
from querator.daemon.store.runs import Rows, Run
from querator.items import Item
from querator.wire.arrow import encode_batches

BATCH = pa.record_batch({"payload": pa.array([b"h", b"i"], pa.binary())})
ALL: list[Rows | Run] = [
    Run(1, 2, 10, 20, [b"a", b"b"]),
    Run(5, 2, 11, 21, [b"c", b"d"]),
    Run(9, 2, 12, 22, [b"e", b"f"], kinds=["k", "l"]),
    Run(20, 1, 13, 23, [b"g"], kinds=["m"], encodings=["n"]),
    Rows(30, 2, 14, 24, encode_batches([BATCH], BATCH.schema)),
    Run(40, 1, 15, 25, [b"j"]),
]


def found(gone: dict[int, bytes]) -> list[list[Item]]:
    tables = tables_of(ALL, lambda rows: gone.get(rows.first_seq))
    return [items_from(table, table.column("seq").to_pylist()) for table in tables]


def test_runs_with_the_same_texts_are_one_table() -> None:
    assert [[one.seq for one in items] for items in found({})] == [[1, 2, 5, 6], [9, 10], [20], [30, 31], [40]]
    assert list(chain.from_iterable(found({}))) == [
        *[Item(1, 10, 20, b"a"), Item(2, 10, 20, b"b"), Item(5, 11, 21, b"c"), Item(6, 11, 21, b"d")],
        *[Item(9, 12, 22, b"e", kind="k"), Item(10, 12, 22, b"f", kind="l")],
        Item(20, 13, 23, b"g", kind="m", encoding="n"),
        *[Item(30, 14, 24, b"h"), Item(31, 14, 24, b"i")],
        Item(40, 15, 25, b"j"),
    ]


def test_removed_items_are_left_out() -> None:
    assert [[one.seq for one in items] for items in found({5: b"\1\0", 9: b"\1\1"})] == [
        [1, 2, 6],
        [20],
        [30, 31],
        [40],
    ]
