"""Batches that change nothing, all in all, need no transaction in the file: the journal notes that it skipped them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from querator import limits
from querator.daemon.store.base import StorageError
from querator.daemon.store.batches import Batch
from querator.daemon.store.duck.duckstore import DuckStore
from querator.daemon.store.duck.storage import DuckStorage
from tests.store.store_making import (
    UUID,
    added,
    batch_of,
    in_a_process_that_is_killed,
    item,
    leased,
    put,
    ready_seqs,
    write,
)
from tests.store.test_duckdb_storage import opened, segments

JOURNAL = "limits.SEGMENT_BYTES_MAX = limits.SEGMENT_ALLOCATION_BYTES = 2048; limits.SPARES_MAX = 0"
COME_AND_GO = f"""
from querator import limits
{JOURNAL}
def come_and_go(*seqs):
    for seq in seqs:
        write(storage, store, added(seq))
        write(storage, store, leased((seq, 1, 99)))
        write(storage, store, batch_of(remove=[seq], last_seq=seq))
"""


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEGMENT_BYTES_MAX", "SEGMENT_ALLOCATION_BYTES"):
        monkeypatch.setattr(limits, name, 2048)
    monkeypatch.setattr(limits, "SPARES_MAX", 0)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[DuckStorage]:
    with opened(tmp_path) as storage:
        yield storage


@pytest.fixture
def store(storage: DuckStorage) -> DuckStore:
    return storage.create(UUID, "orders")


def come_and_go(storage: DuckStorage, store: DuckStore, *seqs: int) -> None:
    for seq in seqs:
        write(storage, store, added(seq))
        write(storage, store, leased((seq, 1, 99)))
        write(storage, store, batch_of(remove=[seq], last_seq=seq))


def applied(directory: Path) -> int:
    """The last record in the closed file."""
    with opened(directory) as storage:
        return storage._files.record_applied(UUID)


def test_items_that_came_and_went_let_segments_go_without_a_transaction(
    storage: DuckStorage, store: DuckStore, tmp_path: Path
) -> None:
    come_and_go(storage, store, *range(1, 60))
    assert len(segments(tmp_path)) > 3
    assert storage.lagging() == {UUID}
    assert store.skip()
    storage.trim()
    assert len(segments(tmp_path)) == 1
    assert storage.lagging() == set()
    assert store.record_applied == 0 and store.is_resting
    assert store.unapplied_bytes == store.held_bytes == 0
    assert not store.skip()  # there is nothing more


@pytest.mark.parametrize(
    "batch",
    [
        added(7),
        leased((1, 1, 99)),
        batch_of(remove=[1]),
        batch_of(schedule=[item(7, enqueue_at=99)]),
        batch_of(request_ids=["id"], request_until=[99]),
        batch_of(lost_seqs=[7], lost_births=[7], lost_until=99),
        batch_of(clear_ready=True),
        batch_of(clear_leased=True),
        batch_of(clear_scheduled=True),
    ],
    ids=["add", "lease", "remove", "schedule", "request id", "lost", "clear ready", "clear leased", "clear scheduled"],
)
def test_a_batch_that_changes_the_file_is_not_skipped(storage: DuckStorage, store: DuckStore, batch: Batch) -> None:
    put(storage, store, added(1))
    come_and_go(storage, store, 2, 3)
    write(storage, store, batch)
    assert not store.skip()
    assert store.unapplied_bytes


def test_what_came_before_and_after_a_skip_survives_a_kill(tmp_path: Path) -> None:
    in_a_process_that_is_killed(
        tmp_path,
        COME_AND_GO
        + """
put(storage, store, added(1, 2))
come_and_go(*range(3, 60))
assert store.skip()
storage.trim()
write(storage, store, added(100), batch_of(remove=[1], last_seq=100))
come_and_go(101)
assert store.record_applied == 1
""",
    )
    assert len(segments(tmp_path)) == 1
    with opened(tmp_path) as storage:
        store = storage.open(UUID, "orders")
        assert ready_seqs(store) == [2, 100]
        assert store.record_applied == 1 + 57 * 3 + 5
        assert store.summary().last_seq == 101
        put(storage, store, added(200))
    with opened(tmp_path) as storage:
        assert ready_seqs(storage.open(UUID, "orders")) == [2, 100, 200]


@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
def test_a_sequence_is_remembered_although_nothing_is_left_of_it(tmp_path: Path, again: bool) -> None:
    in_a_process_that_is_killed(
        tmp_path, COME_AND_GO + "come_and_go(*range(1, 60))\nassert store.skip()\nstorage.trim()\n"
    )
    if again:  # before the first start has noted anything else
        in_a_process_that_is_killed(
            tmp_path, COME_AND_GO + "come_and_go(*range(60, 99))\nassert store.skip()\nstorage.trim()\n"
        )
    with opened(tmp_path) as storage:
        store = storage.open(UUID, "orders")
        assert store.summary().last_seq == (98 if again else 59)
        assert not ready_seqs(store)
    assert applied(tmp_path) == (98 * 3 if again else 59 * 3)


@pytest.mark.parametrize(
    "place",
    ["querator.daemon.store.journal.trimmed.replace_file", "querator.daemon.store.journal.head.Head.remove_through"],
    ids=["before the skip is durable", "before the segments go"],
)
def test_a_kill_while_segments_are_trimmed_loses_nothing(tmp_path: Path, place: str) -> None:
    in_a_process_that_is_killed(
        tmp_path,
        COME_AND_GO
        + f"""
put(storage, store, added(1, 2))
come_and_go(*range(3, 60))
assert store.skip()
import unittest.mock
with unittest.mock.patch({place!r}, lambda *args: os.kill(os.getpid(), signal.SIGKILL)):
    storage.trim()
""",
    )
    assert len(segments(tmp_path)) > 1
    with opened(tmp_path) as storage:
        store = storage.open(UUID, "orders")
        assert ready_seqs(store) == [1, 2]
        assert store.summary().last_seq == 59


def test_a_kill_between_the_two_copies_of_the_note_loses_nothing(tmp_path: Path) -> None:
    in_a_process_that_is_killed(
        tmp_path,
        COME_AND_GO
        + """
come_and_go(*range(1, 60))
assert store.skip()
from querator.daemon.store.journal import trimmed
import unittest.mock
replace = trimmed.replace_file
def once(path, data):
    if path.name != "TRIMMED":
        os.kill(os.getpid(), signal.SIGKILL)
    replace(path, data)
with unittest.mock.patch("querator.daemon.store.journal.trimmed.replace_file", once):
    storage.trim()
""",
    )
    with opened(tmp_path) as storage:
        assert storage.open(UUID, "orders").summary().last_seq == 59


def _lose_the_log(directory: Path) -> None:
    (directory / f"{UUID}.duckdb.wal").unlink()


def _lose_the_notes(directory: Path) -> None:
    (directory / "journal" / "TRIMMED").unlink()
    (directory / "journal.trimmed").unlink()


def _lose_the_last_segment(directory: Path) -> None:
    segments(directory)[-1].unlink()


@pytest.mark.parametrize("lose", [_lose_the_log, _lose_the_notes, _lose_the_last_segment])
def test_a_loss_is_noticed_behind_a_skip_too(tmp_path: Path, lose: object) -> None:
    in_a_process_that_is_killed(
        tmp_path,
        COME_AND_GO
        + """
put(storage, store, added(1, 2))
come_and_go(*range(3, 60))
assert store.skip()
storage.trim()
write(storage, store, added(100))
""",
    )
    lose(tmp_path)  # type: ignore[operator]
    with opened(tmp_path) as storage, pytest.raises(StorageError, match="cannot be trusted"):
        storage.open(UUID, "orders")


def test_a_file_that_lost_what_was_applied_after_a_skip_is_noticed(tmp_path: Path) -> None:
    in_a_process_that_is_killed(
        tmp_path,
        COME_AND_GO
        + """
put(storage, store, added(1))
store.checkpoint(force=True)
come_and_go(*range(2, 60))
assert store.skip()
storage.trim()
put(storage, store, added(100))
come_and_go(*range(101, 160))
assert store.skip()
storage.trim()
""",
    )
    _lose_the_log(tmp_path)
    with opened(tmp_path) as storage, pytest.raises(StorageError, match="are missing"):
        storage.open(UUID, "orders")


def test_an_orderly_stop_notes_everything_in_the_file(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        store = storage.create(UUID, "orders")
        come_and_go(storage, store, *range(1, 60))
        assert store.skip()
        storage.trim()
    assert applied(tmp_path) == 59 * 3


def test_a_partition_that_is_read_again_takes_the_skip_into_account(
    storage: DuckStorage, store: DuckStore, tmp_path: Path
) -> None:
    put(storage, store, added(1))
    come_and_go(storage, store, *range(2, 60))
    assert store.skip()
    storage.trim()
    write(storage, store, added(100))
    storage.release(UUID)
    again = storage.open(UUID, "orders")
    assert ready_seqs(again) == [1, 100]
    assert again.record_applied == 1 + 58 * 3 + 1


def test_nothing_is_skipped_while_an_apply_is_under_way_or_has_failed(storage: DuckStorage, store: DuckStore) -> None:
    write(storage, store, added(1))
    assert store.freeze()
    come_and_go(storage, store, 2, 3)
    assert not store.skip()
    store.apply()
    assert store.skip()
    assert ready_seqs(store) == [1]


def test_nothing_is_skipped_for_a_file_that_was_replaced(
    storage: DuckStorage, store: DuckStore, tmp_path: Path
) -> None:
    put(storage, store, added(1))
    come_and_go(storage, store, 2, 3)
    path = tmp_path / f"{UUID}.duckdb"
    path.rename(tmp_path / "elsewhere")
    assert not store.skip()
    (tmp_path / "elsewhere").rename(path)
    assert store.skip()
