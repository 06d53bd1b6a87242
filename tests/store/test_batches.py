"""Batches in the journal. The payloads of a large record stand behind its fields, as they are."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest

from querator.daemon.store.batches import (
    Batch,
    Others,
    decode,
    encode,
    encode_apart,
    has_large_payloads,
    others_of,
    spread_lease,
)
from querator.daemon.store.journal import size_of
from querator.daemon.store.runs import Rows, Run
from querator.daemon.store.unapplied import StagedBatches, Unapplied
from querator.items import Hold, Item
from querator.limits import LARGE_PAYLOAD_BYTES, LEFT_ITEM_BYTES_MIN, LEFT_RECORD_BYTES_MIN
from tests.store.store_making import UUID, batch_of, item

LARGE = [bytes([seq]) * (20_000 + seq) for seq in range(1, 9)]


def everything() -> Batch:
    return batch_of(
        add=[item(1, payload=LARGE[0], kind="k"), item(2, payload=b""), item(3, payload=LARGE[1], reference="r")],
        rows=[
            Run(4, 3, 10, 20, LARGE[2:5], kinds=["a", "b", "c"]),
            Rows(7, 2, 10, 20, b"an Arrow stream"),
            Run(9, 3, 10, 20, LARGE[5:8]),
        ],
        schedule=[item(12, payload=b"later", enqueue_at=99)],
        lease_seqs=[1],
        lease_attempts=[1],
        lease_deadlines=[99],
        holds=[Hold("c")],
        hold_counts=[1],
        remove=[2],
        last_seq=12,
    )


def joined(pieces: tuple[bytes, list[bytes]]) -> bytes:
    return pieces[0] + b"".join(pieces[1])


def fields(batch: Batch) -> list[Any]:
    own = ("add", "lease_seqs", "lease_attempts", "lease_deadlines", "holds", "hold_counts", "remove", "last_seq")
    others = [name for name in dir(Others) if not name.startswith("_")]
    return [getattr(batch, name) for name in own] + [getattr(others_of(batch), name) for name in others]


def staged(batch: Batch) -> Batch:
    Unapplied(UUID, StagedBatches(), 0, 0).commit(batch)
    return batch


def test_a_large_record_comes_back_whole() -> None:
    batch = everything()
    assert has_large_payloads(batch)
    record = joined(encode_apart(batch))
    assert fields(batch) == fields(everything())
    assert fields(decode(record)) == fields(decode(encode(batch))) == fields(everything())
    assert fields(decode(memoryview(record))) == fields(everything())


def test_the_payloads_of_a_record_are_the_very_bytes_of_the_request() -> None:
    batch = everything()
    staged(batch)
    assert [id(piece) for piece in batch.following or ()] == [id(payload) for payload in (LARGE[0], b"", *LARGE[1:])]
    assert size_of(batch) == len(joined((batch.payload, batch.following or [])))
    assert len(batch.payload) < 1_000


def test_an_apply_gets_views_of_the_record_for_payloads_that_are_kept_in_parts() -> None:
    record = joined(encode_apart(everything()))
    batch = decode(record, in_place=True)
    found: list[Any] = [one.payload for one in batch.add or ()]
    for rows in others_of(batch).rows or ():
        found += rows.payloads if isinstance(rows, Run) else []
    assert all(isinstance(view, memoryview) and view.obj is record for view in found if view)
    assert [bytes(payload) for payload in found] == [LARGE[0], b"", *LARGE[1:]]
    in_rows = batch_of(add=[item(seq, payload=b"x" * LARGE_PAYLOAD_BYTES) for seq in range(1, 9)])
    for one in decode(joined(encode_apart(in_rows)), in_place=True).add or ():
        assert type(one.payload) is bytes


@pytest.mark.parametrize(
    "batch",
    [
        batch_of(remove=[1]),
        batch_of(add=[Item(1, 2, 3, b"x" * (LEFT_ITEM_BYTES_MIN - 1))] * 100),
        batch_of(add=[Item(1, 2, 3, b"x" * (LEFT_RECORD_BYTES_MIN - 1))]),
        batch_of(rows=[Run(1, 100, 2, 3, [b"x" * 100] * 100)]),
        batch_of(rows=[Rows(1, 2, 3, 4, b"x" * 1_000_000)]),
    ],
)
def test_other_records_are_encoded_in_one_piece(batch: Batch) -> None:
    staged(batch)
    assert batch.following is None
    assert batch.payload == encode(batch)
    assert size_of(batch) == len(batch.payload)


def test_a_record_that_is_cut_or_longer_is_not_a_batch() -> None:
    record = joined(encode_apart(everything()))
    for wrong in (b"", record[:5], record[:20], record[:-1], record + b"x"):
        with pytest.raises(msgspec.MsgspecError):
            decode(wrong)


@pytest.mark.parametrize("count", [3, 5])
def test_a_record_with_more_or_fewer_payloads_than_items_is_not_a_batch(count: int) -> None:
    """Only a defect could write it. Items must not get the payloads of others, or none."""
    record = joined(encode_apart(batch_of(add=[item(9)], rows=[Run(1, count, 10, 20, [b"x" * 20_000] * 4)])))
    with pytest.raises(msgspec.MsgspecError):
        decode(record)


def test_a_record_whose_items_lack_payloads_is_not_a_batch() -> None:
    record = joined(encode_apart(batch_of(add=[item(1, payload=b"x" * 20_000), item(2)])))
    count, size, *lengths = struct.unpack_from("<IIII", record, 1)
    assert (count, lengths) == (2, [20_000, 0])
    with pytest.raises(msgspec.MsgspecError):
        decode(record[:1] + struct.pack("<III", 1, size, 20_000) + record[17:])


def test_a_single_lease_has_the_same_record_as_lists_with_one_lease() -> None:
    alone, listed = Batch(), batch_of(lease_seqs=[7], lease_attempts=[2], lease_deadlines=[99])
    alone.lease_seq, alone.lease = 7, (2, 99, Hold("ann", 5))
    listed.holds, listed.hold_counts = [Hold("ann", 5)], [1]
    record = encode(alone)
    assert record == encode(listed)
    spread_lease(alone)
    assert (alone.lease, encode(alone)) == (None, record)
    assert fields(decode(record)) == fields(alone)
