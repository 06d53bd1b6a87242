"""The catalog on a disk that fails for a while."""

from __future__ import annotations

import contextlib
import hashlib
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from querator import limits
from querator.daemon.catalog import SCHEMA_VERSION, Catalog, CatalogError
from querator.items import Queue


@contextlib.contextmanager
def no_file_grows_beyond(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def columns_fingerprint(path: Path) -> str:
    """A digest of the names and types of all columns of a file."""
    with duckdb.connect(str(path), read_only=True) as connection:
        names = connection.sql(
            "select table_name, column_name, data_type from duckdb_columns() where not internal order by all"
        ).fetchall()
    return hashlib.sha256(repr(names).encode()).hexdigest()[:16]


def queue(name: str, reference: str = "") -> Queue:
    return Queue(name=name, lease_timeout_ns=1, expire_timeout_ns=1, requested_partitions=1, reference=reference)


def test_it_goes_on_after_a_checkpoint_had_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CATALOG_LOG_BYTES_MAX", 0)  # a checkpoint after every change
    path = tmp_path / "catalog.duckdb"
    catalog = Catalog(path)
    catalog.add(queue("a"), [])
    with no_file_grows_beyond(path.stat().st_size):
        for number in range(10):
            catalog.save_queues([queue("a", f"{number}" * 2_000)])
    catalog.add(queue("b"), [])
    assert [one.name for one in catalog.queues()] == ["a", "b"]
    catalog.close()
    catalog = Catalog(path)
    assert [one.reference[:1] for one in catalog.queues()] == ["9", ""]
    catalog.close()


def test_a_change_that_finds_no_room_is_an_error_and_the_next_one_is_not(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "catalog.duckdb")
    failures = 0
    with no_file_grows_beyond(0):
        try:
            catalog.add(queue("a"), [])
        except Exception:
            failures += 1
    catalog.add(queue("b"), [])
    assert failures == 1
    assert [one.name for one in catalog.queues()] == ["b"]
    catalog.close()


@pytest.fixture
def always_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every catalog counts as large, so its changes stay in the log for a while."""
    monkeypatch.setattr(limits, "CATALOG_SMALL_BYTES_MAX", 0)


@pytest.mark.usefixtures("always_large")
def test_its_log_is_written_into_the_file_when_it_has_grown_long(tmp_path: Path) -> None:
    path = tmp_path / "catalog.duckdb"
    log = tmp_path / "catalog.duckdb.wal"
    catalog = Catalog(path)
    lengths = []
    for number in range(20):
        catalog.add(queue(f"q{number}", "x" * 30_000), [])
        lengths.append(log.stat().st_size if log.exists() else 0)
    assert 30_000 < max(lengths) <= limits.CATALOG_LOG_BYTES_MAX + 40_000
    assert min(lengths[1:]) < 100_000
    catalog.close()
    assert not log.exists()


def copied(path: Path, directory: Path, log: bytes) -> Path:
    """A catalog as a crash leaves it, with this log."""
    directory.mkdir()
    shutil.copy(path, directory / path.name)
    (directory / "catalog.duckdb.wal").write_bytes(log)
    return directory / path.name


@pytest.mark.usefixtures("always_large")
class TestLogAfterACrash:
    def test_a_change_that_was_cut_off_is_left_out(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        path = tmp_path / "catalog.duckdb"
        log = tmp_path / "catalog.duckdb.wal"
        catalog = Catalog(path)
        catalog.add(queue("a"), [])
        before = log.stat().st_size
        catalog.add(queue("b"), [])
        whole = log.read_bytes()
        for size in range(before + 1, len(whole), 11):
            caplog.clear()
            there = copied(path, tmp_path / str(size), whole[:size])
            after = Catalog(there)
            assert [one.name for one in after.queues()] == ["a"]
            assert "a crash interrupted the last change of the catalog" in caplog.text
            after.add(queue("c"), [])
            again = Catalog(copied(there, there.parent / "again", there.with_name("catalog.duckdb.wal").read_bytes()))
            assert [one.name for one in again.queues()] == ["a", "c"]
            assert there.with_name("catalog.duckdb.wal.torn").read_bytes() == whole[:size]
            after.close()
            again.close()
        catalog.close()

    @pytest.mark.parametrize("zeros", [1, 8, 13, 4_096])
    def test_zeros_at_the_end_after_a_power_cut_are_left_out(
        self, zeros: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "catalog.duckdb"
        log = tmp_path / "catalog.duckdb.wal"
        catalog = Catalog(path)
        catalog.add(queue("a"), [])
        before = log.stat().st_size
        catalog.add(queue("b"), [])
        whole = log.read_bytes()
        for size in (before, before + 8, before + 50, len(whole) - 10):
            caplog.clear()
            there = copied(path, tmp_path / str(size), whole[:size] + bytes(zeros))
            with contextlib.closing(Catalog(there)) as after:
                assert [one.name for one in after.queues()] == ["a"]
            assert "a crash interrupted the last change of the catalog" in caplog.text
            assert there.with_name("catalog.duckdb.wal.torn").read_bytes() == whole[:size] + bytes(zeros)
        catalog.close()

    def test_a_log_of_zeros_alone_is_left_out(self, tmp_path: Path) -> None:
        path = tmp_path / "catalog.duckdb"
        with contextlib.closing(Catalog(path)) as catalog:
            catalog.add(queue("a"), [])
        with contextlib.closing(Catalog(copied(path, tmp_path / "there", bytes(512)))) as after:
            assert [one.name for one in after.queues()] == ["a"]

    def test_zeros_before_a_change_end_the_start(self, tmp_path: Path) -> None:
        """The change behind the zeros was acknowledged, and so was the one that they replace."""
        path = tmp_path / "catalog.duckdb"
        log = tmp_path / "catalog.duckdb.wal"
        catalog = Catalog(path)
        catalog.add(queue("a"), [])
        begin = log.stat().st_size
        catalog.add(queue("b"), [])
        end = log.stat().st_size
        catalog.add(queue("c"), [])
        whole = log.read_bytes()
        for tail in (b"", bytes(100)):
            damaged = whole[:begin] + bytes(end - begin) + whole[end:] + tail
            there = copied(path, tmp_path / f"there-{len(tail)}", damaged)
            with pytest.raises(CatalogError, match="cannot be opened"):
                Catalog(there)
            assert there.with_name("catalog.duckdb.wal").read_bytes() == damaged
        catalog.close()

    def test_a_change_that_was_altered_ends_the_start(self, tmp_path: Path) -> None:
        path = tmp_path / "catalog.duckdb"
        catalog = Catalog(path)
        catalog.add(queue("a"), [])
        catalog.add(queue("b"), [])
        altered = bytearray((tmp_path / "catalog.duckdb.wal").read_bytes())
        altered[len(altered) // 2] ^= 1
        there = copied(path, tmp_path / "there", bytes(altered))
        with pytest.raises(CatalogError, match="cannot be opened"):
            Catalog(there)
        catalog.close()

    def test_a_change_whose_length_was_altered_ends_the_start(self, tmp_path: Path) -> None:
        """It looks like a change that was cut off. But the change behind it was acknowledged."""
        path = tmp_path / "catalog.duckdb"
        log = tmp_path / "catalog.duckdb.wal"
        catalog = Catalog(path)
        catalog.add(queue("a"), [])
        before = log.stat().st_size
        catalog.add(queue("b"), [])
        catalog.add(queue("c"), [])
        for offset in range(before, before + 8):
            altered = bytearray(log.read_bytes())
            altered[offset] ^= 1
            there = copied(path, tmp_path / str(offset), bytes(altered))
            with pytest.raises(CatalogError, match="cannot be opened"):
                Catalog(there)
            assert there.with_name("catalog.duckdb.wal").read_bytes() == altered
        catalog.close()

    def test_a_checkpoint_puts_the_log_into_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "catalog.duckdb"
        catalog = Catalog(path)
        catalog.add(queue("a"), [])
        catalog.checkpoint()
        with_file_only = tmp_path / "copy.duckdb"
        shutil.copy(path, with_file_only)
        with contextlib.closing(Catalog(with_file_only)) as copy:
            assert [one.name for one in copy.queues()] == ["a"]
        catalog.close()


class TestVersions:
    def test_a_catalog_of_another_version_is_refused_and_left_as_it_is(self, tmp_path: Path) -> None:
        path = tmp_path / "catalog.duckdb"
        with duckdb.connect(str(path)) as connection:
            connection.execute("create table meta as select 2 as schema_version")
            connection.execute("create table queues (name varchar)")  # without `retention_ns`
        with pytest.raises(CatalogError, match=r"catalog .* has schema version 2, this daemon knows 4"):
            Catalog(path)
        with duckdb.connect(str(path)) as connection:
            assert connection.sql("select table_name from duckdb_tables() order by 1").fetchall() == [
                ("meta",),
                ("queues",),
            ]

    def test_the_version_belongs_to_these_columns(self, tmp_path: Path) -> None:
        """If this fails, raise SCHEMA_VERSION and change the fingerprint here in the same commit."""
        Catalog(tmp_path / "catalog.duckdb").close()
        assert (SCHEMA_VERSION, columns_fingerprint(tmp_path / "catalog.duckdb")) == (4, "ad72623f1c657949")
