"""Damages each file of a storage whose process was killed. Afterwards a partition has everything that was acknowledged,
or the storage refuses to open it and copies its files to the quarantine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from querator.daemon.store.base import StorageError
from querator.daemon.store.duck.storage import DuckStorage
from tests.store.store_making import OTHER_UUID, UUID, in_a_process_that_is_killed, ready_seqs

ACKNOWLEDGED = {UUID: [1, 2, 3, 4], OTHER_UUID: [1, 2]}
JOURNAL_IN_USE = """
    other = storage.create(OTHER_UUID, "orders")
    put(storage, store, added(1))
    store.checkpoint(force=True)
    put(storage, store, added(2))
    put(storage, other, added(1))
    storage.roll()
    write(storage, store, added(3))
    write(storage, other, added(2))
    write(storage, store, added(4))
"""
"""One item is in the file, one is in the log of the file, and two are in the journal."""
AT_REST = (
    JOURNAL_IN_USE
    + """
    store.flush()
    other.flush()
    storage.roll()
"""
)

Damage = Callable[[Path], None]


def segment(directory: Path) -> Path:
    (path,) = (directory / "journal").glob("*.seg")
    return path


def cut_to(size: Callable[[bytes], int]) -> Damage:
    return lambda directory: os.truncate(segment(directory), size(segment(directory).read_bytes()))


def records_end(data: bytes) -> int:
    return len(data.rstrip(b"\0"))


def delete(*names: str) -> Damage:
    def damage(directory: Path) -> None:
        for name in names:
            path = segment(directory) if name == "segment" else directory / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    return damage


def zero(begin: Callable[[bytes], int]) -> Damage:
    def damage(directory: Path) -> None:
        data = segment(directory).read_bytes()
        segment(directory).write_bytes(data[: begin(data)] + bytes(len(data) - begin(data)))

    return damage


def emptied(name: str) -> Damage:
    return lambda directory: os.truncate(directory / name, 0)


def in_turn(*damages: Damage) -> Damage:
    def damage(directory: Path) -> None:
        for one in damages:
            one(directory)

    return damage


WAL = f"{UUID}.duckdb.wal"
HEAD, COPY = "journal/HEAD", "journal.head"
TRIMMED, TRIMMED_COPY = "journal/TRIMMED", "journal.trimmed"
IN_USE: dict[str, tuple[Damage, str]] = {
    "the segment is emptied": (cut_to(lambda data: 0), "told"),
    "the segment is cut to its header": (cut_to(lambda data: 44), "told"),
    "the segment is cut in the middle": (cut_to(lambda data: records_end(data) // 2), "told"),
    "the segment is cut in its last record": (cut_to(lambda data: records_end(data) - 60), "told"),
    "the segment is cut behind its records": (cut_to(records_end), "told"),
    "the segment is cut to half its size": (cut_to(lambda data: len(data) // 2), "told"),
    "the segment is turned into zeros": (zero(lambda data: 0), "told"),
    "the last record is turned into zeros": (zero(lambda data: records_end(data) - 60), "told"),
    "the segment is gone": (delete("segment"), "told"),
    "HEAD is gone": (delete(HEAD), "repaired"),
    "the copy of HEAD is gone": (delete(COPY), "repaired"),
    "HEAD and its copy are gone": (delete(HEAD, COPY), "told"),
    "HEAD and the segment are gone": (delete(HEAD, "segment"), "told"),
    "HEAD, its copy and the segment are gone": (delete(HEAD, COPY, "segment"), "told"),
    "TRIMMED is gone": (delete(TRIMMED), "repaired"),
    "the copy of TRIMMED is gone": (delete(TRIMMED_COPY), "repaired"),
    "TRIMMED and its copy are gone": (delete(TRIMMED, TRIMMED_COPY), "repaired"),
    "TRIMMED and the log are gone": (delete(TRIMMED, WAL), "told"),
    "LOCK is gone": (delete("journal/LOCK"), "repaired"),
    "the journal is gone": (delete("journal"), "told"),
    "the journal and its note are gone": (delete("journal", COPY), "told"),
    "the log is gone": (delete(WAL), "told"),
    "the log is emptied": (lambda directory: os.truncate(directory / WAL, 0), "told"),
    "the log is cut": (lambda directory: os.truncate(directory / WAL, 100), "told"),
}
RESTING: dict[str, tuple[Damage, str]] = {
    "HEAD is gone": (delete(HEAD), "repaired"),
    "TRIMMED is gone": (delete(TRIMMED), "repaired"),
    "the copy of TRIMMED is gone": (delete(TRIMMED_COPY), "repaired"),
    "TRIMMED and its copy are gone": (delete(TRIMMED, TRIMMED_COPY), "told"),
    "TRIMMED and the log are gone": (delete(TRIMMED, WAL), "told"),
    "TRIMMED and all logs are gone": (delete(TRIMMED, WAL, f"{OTHER_UUID}.duckdb.wal"), "told"),
    "TRIMMED is emptied and the log is gone": (in_turn(emptied(TRIMMED), delete(WAL)), "told"),
    "the journal and the log are gone": (delete("journal", WAL), "told"),
    "the journal, the log and the copy of TRIMMED are gone": (delete("journal", WAL, TRIMMED_COPY), "told"),
    "the journal is gone": (delete("journal"), "repaired"),
    "the journal and its note are gone": (delete("journal", COPY), "told"),
    "the log is gone": (delete(WAL), "told"),
    "the log is emptied": (lambda directory: os.truncate(directory / WAL, 0), "told"),
    "the log is cut": (lambda directory: os.truncate(directory / WAL, 100), "told"),
}


@pytest.fixture(scope="module")
def in_use(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("in_use")
    in_a_process_that_is_killed(directory, JOURNAL_IN_USE + "    storage.note_acknowledged()\n")
    return directory


@pytest.fixture(scope="module")
def resting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("resting")
    in_a_process_that_is_killed(directory, AT_REST)
    return directory


def open_all(directory: Path) -> dict[str, str]:
    """For each partition "there", or why it is refused. Fails if an open partition lacks an item."""
    storage = DuckStorage("disk", directory)
    storage.recover()
    outcomes = {}
    try:
        for uuid, acknowledged in ACKNOWLEDGED.items():
            try:
                store = storage.open(uuid, "orders")
            except StorageError as error:
                outcomes[uuid] = str(error)
            else:
                assert ready_seqs(store) == acknowledged
                outcomes[uuid] = "there"
    finally:
        storage.close()
    return outcomes


def check(directory: Path, damage: Damage, expected: str) -> None:
    damage(directory)
    for _ in range(2):
        outcomes = open_all(directory)
        refused = [uuid for uuid, outcome in outcomes.items() if outcome != "there"]
        assert bool(refused) == (expected == "told"), outcomes
        for uuid in refused:
            assert "cannot be trusted" in outcomes[uuid]
            aside = {path.name for path in (directory / "quarantine").iterdir()}
            assert f"{uuid}.reason" in aside
            assert any(name.startswith(f"{uuid}.duckdb.") for name in aside)


@pytest.mark.parametrize("kind", IN_USE)
def test_damage_while_the_journal_is_in_use(kind: str, in_use: Path, tmp_path: Path) -> None:
    shutil.copytree(in_use, tmp_path / "storage")
    check(tmp_path / "storage", *IN_USE[kind])


@pytest.mark.parametrize("kind", RESTING)
def test_damage_at_rest(kind: str, resting: Path, tmp_path: Path) -> None:
    shutil.copytree(resting, tmp_path / "storage")
    check(tmp_path / "storage", *RESTING[kind])


@pytest.mark.parametrize(
    ("kind", "given_up", "left"),
    [
        ("the log is gone", "records 2 to 2 are missing", [1, 3, 4]),
        ("the log is cut", "wal is damaged", [1, 3, 4]),
        ("the journal is gone", "records after 2 may be missing", [1, 2]),
        ("the segment is emptied", "records after 2 may be missing", [1, 2]),
    ],
)
def test_a_loss_that_is_accepted(kind: str, given_up: str, left: list[int], in_use: Path, tmp_path: Path) -> None:
    directory = tmp_path / "storage"
    shutil.copytree(in_use, directory)
    IN_USE[kind][0](directory)
    open_all(directory)
    before = {path.name: path.read_bytes() for path in directory.glob("*.duckdb*")}
    storage = DuckStorage("disk", directory)
    storage.recover()
    loss = storage.loss(UUID)
    assert loss is not None and given_up in loss.reason
    assert before == {path.name: path.read_bytes() for path in directory.glob("*.duckdb*")}
    assert storage.accept_loss(UUID, "orders").ready == len(left)
    assert storage.loss(UUID) is None
    storage.close()
    for _ in range(2):
        storage = DuckStorage("disk", directory)
        storage.recover()
        assert ready_seqs(storage.open(UUID, "orders")) == left
        storage.close()
    kept = [path.read_bytes() for path in (directory / "quarantine").glob(f"{UUID}.duckdb.*")]
    assert before[f"{UUID}.duckdb"] in kept
