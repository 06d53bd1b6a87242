"""Backups that an attacker has changed: links, forged manifests, and files with rows that no daemon writes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from querator.errors import InvalidRequest, RequestFailed
from tests.maintenance.house import House


@pytest.fixture
def to(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("backups") / "q"


@pytest.fixture
def backup(house: House, to: Path) -> Path:
    """A backup of two partitions with fifty items each."""
    house.create(partitions=2)
    for start in range(0, 100, 10):
        house.produce(*(str(n) for n in range(start, start + 10)))
    house.lease(3)
    house.job("backup", to=str(to))
    return to


def forge(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = directory / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


class TestManifest:
    @pytest.mark.parametrize(
        "content",
        [
            b"\xff\xfe not UTF-8",
            b'{"format": 2, "\xff": 1}',
            b'{"format": 2, "queue": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b'{"format": 2, "queue": {"a": ' * 20_000,
            b" " * 10_000_001,
            b"",
            b"[]",
        ],
        ids=["not UTF-8", "a key that is not UTF-8", "nested", "nested objects", "huge", "empty", "a list"],
    )
    def test_one_that_cannot_be_read_is_refused(self, house: House, backup: Path, content: bytes) -> None:
        (backup / "manifest.json").write_bytes(content)
        for what, more in (("restore", {"from_": str(backup)}), ("backup", {"to": str(backup)})):
            refusal = house.job_refusal(what, **more)
            assert isinstance(refusal, RequestFailed) and "cannot be read; manifest.json" in refusal.message
        assert house.states() == ["available"] * 2

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("file", "../../../etc/passwd"),
            ("file", "/etc/passwd"),
            ("file", "thesis.txt"),
            ("file", "partition-0-01234567.duckdb\n"),
            ("partition", -1),
            ("partition", 1),
            ("partition", 2**31),
            ("bytes", -1),
            ("state", "error"),
            ("state", "unavailable"),
            ("resume_at", -1),
        ],
    )
    def test_what_it_must_not_say(self, house: House, backup: Path, field: str, value: object) -> None:
        forge(backup, lambda content: content["partitions"][0].update({field: value}))
        assert "cannot be read; manifest.json" in house.job_refusal("restore", from_=str(backup)).message
        assert "cannot be read; manifest.json" in house.job_refusal("backup", to=str(backup)).message

    @pytest.mark.parametrize("queue", ["q", "copy"])
    def test_one_without_partitions_is_refused(self, house: House, backup: Path, queue: str) -> None:
        forge(backup, lambda content: content.update(partitions=[]))
        refusal = house.job_refusal("restore", queue=queue, from_=str(backup))
        assert isinstance(refusal, RequestFailed) and "manifest.json: it names no partitions" in refusal.message

    def test_settings_are_checked_like_those_of_a_request(self, house: House, backup: Path) -> None:
        forge(backup, lambda content: content["queue"].update(requested_partitions=2**31 - 1))
        refusal = house.job_refusal("restore", queue="copy", from_=str(backup))
        assert refusal.message == "partitions is invalid; cannot be greater than 1000"
        forge(backup, lambda content: content["queue"].update(nonsense=1))
        assert "cannot be read; manifest.json" in house.job_refusal("restore", queue="copy", from_=str(backup)).message

    def test_a_pipe_in_its_place_is_not_waited_for(self, house: House, backup: Path) -> None:
        (backup / "manifest.json").unlink()
        os.mkfifo(backup / "manifest.json")
        assert "there is no backup in" in house.job_refusal("restore", from_=str(backup)).message


class TestLinks:
    def test_a_manifest_that_is_a_link_is_not_read(self, house: House, backup: Path) -> None:
        elsewhere = backup.parent / "elsewhere.json"
        (backup / "manifest.json").rename(elsewhere)
        (backup / "manifest.json").symlink_to(elsewhere)
        assert "there is no backup in" in house.job_refusal("restore", from_=str(backup)).message

    def test_a_file_that_is_a_link_is_not_restored(self, house: House, backup: Path) -> None:
        (file,) = backup.glob("partition-1-*.duckdb")
        elsewhere = backup.parent / "elsewhere.duckdb"
        file.rename(elsewhere)
        file.symlink_to(elsewhere)
        job = house.job("restore", from_=str(backup))
        assert job.state == "failed" and "symbolic links" in job.reason

    def test_nothing_is_written_through_a_link(self, house: House, backup: Path) -> None:
        victim = backup.parent / "victim"
        victim.write_text("precious")
        (backup / "manifest.json.new").symlink_to(victim)
        (old,) = backup.glob("partition-1-*.duckdb")
        old.unlink()
        old.symlink_to(victim)
        assert house.job("backup", to=str(backup)).state == "done"
        assert victim.read_text() == "precious"
        assert not any(path.is_symlink() for path in backup.iterdir())
        assert house.job("restore", from_=str(backup)).state == "done"

    def test_a_loop(self, house: House, backup: Path) -> None:
        loop = backup.parent / "loop"
        loop.symlink_to(loop)
        for path in (loop, loop / "below"):
            assert isinstance(house.job_refusal("backup", to=str(path)), InvalidRequest)
            assert isinstance(house.job_refusal("restore", from_=str(path)), InvalidRequest)

    @pytest.mark.parametrize("path", ["/tmp/a\0b", "\0", "", "here"])
    def test_paths_that_are_none(self, house: House, path: str) -> None:
        house.create()
        for what, more in (("backup", {"to": path}), ("restore", {"from_": path})):
            refusal = house.job_refusal(what, **more)
            assert isinstance(refusal, InvalidRequest) and "must be an absolute path" in refusal.message


def test_a_backup_deletes_only_what_it_wrote(house: House, backup: Path) -> None:
    names = ["partition-0-notes.duckdb", "partition-7-01234567.duckdb", "partition-1.duckdb.wal", "building-01234567"]
    for name in names:
        (backup / name).write_text("not ours")
    before = {path.name for path in backup.glob("partition-?-????????.duckdb")} - set(names)
    assert house.job("backup", to=str(backup)).state == "done"
    assert all((backup / name).read_text() == "not ours" for name in names)
    assert not any((backup / name).exists() for name in before)
    assert len(list(backup.iterdir())) == len(names) + 3


def in_file(directory: Path, *statements: str) -> None:
    """Changes the file of partition 0, and then makes the manifest match the changed file."""
    (path,) = directory.glob("partition-0-*.duckdb")
    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        rows = {
            table: connection.execute(f"select count(*) from {table}").fetchall()[0][0]
            for table in ("items", "leases", "scheduled", "lost", "requests", "parts")
        }
    found = {"rows": rows, "bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    forge(directory, lambda content: content["partitions"][0].update(found))


IMPOSSIBLE = {
    "a negative sequence": ["update items set seq = -seq where seq = (select max(seq) from items)"],
    "sequence 0": ["update items set seq = 0 where seq = (select max(seq) from items)"],
    "a sequence at the end": ["update items set seq = 9223372036854775807 where seq = (select max(seq) from items)"],
    "a duplicate": ["insert into items select * from items limit 1"],
    "a duplicate among the scheduled": ["insert into scheduled select *, now()::timestamp from items limit 1"],
    "two leases of one item": ["insert into leases select * from leases limit 1"],
    "a time beyond all": ["update items set created_at = 'infinity'"],
    "a time long ago": ["update items set expire_deadline = timestamp '4000-01-01 (BC) 00:00:00'"],
    "a time in the far future": ["update leases set leased_at = timestamp '200000-01-01'"],
    "too many attempts": ["update items set attempts = 3000000000"],
    "negative attempts": ["update leases set attempts = -1"],
    "a last sequence at the end": ["update meta set last_seq = 9223372036854775807"],
    "a view": ["alter table items rename to hidden", "create view items as select * from hidden"],
    "another column": ["alter table items add column mine integer"],
    "a constraint": ["create or replace table lost (seq bigint primary key, birth bigint, until timestamp)"],
    "an index": ["create index mine on items (seq)"],
    "no meta": ["delete from meta"],
}


class TestImpossibleRows:
    @pytest.mark.parametrize("statements", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
    def test_the_file_is_refused_before_it_is_switched_in(
        self, house: House, backup: Path, statements: list[str]
    ) -> None:
        in_file(backup, *statements)
        before = house.contents()
        job = house.job("restore", from_=str(backup))
        assert job.state == "failed" and "cannot be used; partition-0-" in job.reason
        assert "internal" not in job.reason
        assert house.contents() == before and house.states() == ["available"] * 2

    def test_a_file_that_somebody_edited_with_care_is_restored(self, house: House, backup: Path) -> None:
        in_file(backup, "delete from items where seq in (select seq from items anti join leases using (seq) limit 1)")
        assert house.job("restore", from_=str(backup)).state == "done"
        assert len(house.contents()) == 99
