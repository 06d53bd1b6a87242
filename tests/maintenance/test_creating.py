"""Creating queues and partitions: how many statements it takes, and what happens when the disk is full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from querator.daemon.catalog import Catalog
from querator.daemon.store.duck.instance import Instance
from querator.daemon.store.duck.storage import DuckStorage
from querator.errors import RequestFailed
from querator.wire import messages as m
from tests.maintenance.house import House


def wanted(name: str, partitions: int) -> m.QueueInfo:
    return m.QueueInfo(queue_name=name, requested_partitions=partitions, lease_timeout="1m", expire_timeout="24h")


class TestCost:
    @pytest.fixture
    def statements(self, house: House, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The DuckDB statements on partition files, and an entry for each write to the catalog."""
        asked: list[str] = []
        cursor, transaction = Instance.cursor, Catalog._transaction

        class Counted:
            def __init__(self, real: duckdb.DuckDBPyConnection) -> None:
                self._real = real

            def execute(self, query: str, *parameters: object) -> object:
                asked.append(query.split()[0])
                return self._real.execute(query, *parameters)

            def __getattr__(self, name: str) -> object:
                asked.append(name)
                return getattr(self._real, name)

        house.create("first")
        monkeypatch.setattr(Instance, "cursor", lambda instance: Counted(cursor(instance)))
        monkeypatch.setattr(Catalog, "_transaction", lambda catalog: (asked.append("catalog"), transaction(catalog))[1])
        return asked

    def test_fifty_partitions_are_made_in_one_step(self, house: House, statements: list[str]) -> None:
        house.create("wide", partitions=50)
        assert statements.count("catalog") == 2
        assert statements.count("ATTACH") == 50 and statements.count("CREATE") == 0
        assert len(statements) <= 2 + 50 * 4
        house.produce("x", queue="wide")
        assert len(house.lease(queue="wide")) == 1

    def test_so_are_those_of_a_resize(self, house: House, statements: list[str]) -> None:
        house.call("queues.update", wanted("first", 21))
        assert statements.count("catalog") == 2 and statements.count("ATTACH") == 20
        for n in range(21):
            house.produce(str(n), queue="first")
        assert [status.total for status in house.statuses("first")] == [1] * 21
        house.restart()
        assert sorted(house.contents("first"), key=int) == [str(n) for n in range(21)]


def with_storage_on(disk: Path, tmp_path: Path) -> House:
    """A service with its storage on this disk, and its catalog on another."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "default").symlink_to(disk)
    return House(tmp_path / "data")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system of limited size")
class TestFullDisk:
    @pytest.fixture
    def disk(self, tmp_path: Path) -> Iterator[Path]:
        disk = tmp_path / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)], check=True)
        yield disk
        subprocess.run(["umount", "-l", str(disk)], check=True)

    @staticmethod
    def fill(disk: Path) -> Path:
        """Fills the disk to its last byte."""
        path = disk / "filler"
        with open(path, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return path

    @pytest.mark.parametrize("what", ["a storage", "everything"])
    def test_a_create_says_why_it_failed_and_leaves_nothing_behind(self, tmp_path: Path, disk: Path, what: str) -> None:
        house = House(disk) if what == "everything" else with_storage_on(disk, tmp_path)
        try:
            house.create("before", partitions=2)
            filler = self.fill(disk)
            for _ in range(2):
                refusal = house.refusal("queues.create", wanted("q", 50))
                assert isinstance(refusal, RequestFailed) and "No space left on device" in refusal.message
            assert isinstance(house.refusal("queues.update", wanted("before", 50)), RequestFailed)
            assert sorted(house.registry.queues) == ["before"]
            filler.unlink()
            assert len(list((house.directory / "default").glob("*.duckdb"))) == 2
            house.create("q", partitions=4)
            house.produce("x")
            house.restart()
            assert house.contents() == ["x"] and len(house.statuses("before")) == 2
        finally:
            house.close()

    def test_half_the_files_fit(self, tmp_path: Path, disk: Path) -> None:
        """If the disk has room for only some of the partitions, none is kept."""
        house = with_storage_on(disk, tmp_path)
        try:
            refusal = house.refusal("queues.create", wanted("q", 900))
            assert isinstance(refusal, RequestFailed) and "No space left on device" in refusal.message
            assert list(disk.glob("*.duckdb")) == []
            house.create("q", partitions=4)
        finally:
            house.close()


def test_a_file_that_was_being_made_when_the_process_ended(tmp_path: Path) -> None:
    """A half-made file belongs to no partition. It is never opened, and the daemon deletes it as a leftover."""
    uuid = "0e1a4a52-9d9c-4a8b-8a0a-0d2f7ad8b1f3"
    storage = DuckStorage("disk", tmp_path)
    storage.recover()
    (tmp_path / f"{uuid}.duckdb").write_bytes(storage._files._empty_file())
    with pytest.raises(Exception, match="its meta table has 0 rows"):
        storage.open(uuid, "q")
    storage.delete(uuid)
    assert storage.create(uuid, "q").summary().ready == 0
    storage.close()
