"""Objects in a directory: an object gets its name when all of it is on the disk, and not before."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from querator import limits
from querator.daemon.archive import Away, Bucket, care
from querator.daemon.archive.objects import log_name


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def directory(root: Path) -> Bucket:
    return Bucket(root.as_uri())


def files_in(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_every_piece_is_synced_before_the_object_has_its_name(
    directory: Bucket, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_SYNC_BYTES", 4)
    steps: list[object] = []
    sync, link, sync_names = os.fdatasync, os.link, os.fsync

    def fdatasync(fd: int) -> None:
        sync(fd)
        steps.append(os.fstat(fd).st_size)

    def named(source: Path, target: Path) -> None:
        link(source, target)
        steps.append("named")

    def fsync(fd: int) -> None:
        sync_names(fd)
        steps.append(Path(os.readlink(f"/proc/self/fd/{fd}")).relative_to(root).as_posix())

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(os, "link", named)
    monkeypatch.setattr(os, "fsync", fsync)
    directory.create("log/1", b"ten bytes.")
    assert steps == [4, 8, 10, "named", "log", "."]
    assert directory.read("log/1") == b"ten bytes."


def test_an_object_that_cannot_be_written_leaves_nothing(
    directory: Bucket, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_SYNC_BYTES", 4)
    directory.replace("heartbeat", b"before")
    sync = os.fdatasync

    def full(fd: int) -> None:
        if os.fstat(fd).st_size > 4:
            raise OSError(28, "No space left on device")
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", full)
    for put in (lambda: directory.create("log/1", b"ten bytes."), lambda: directory.replace("heartbeat", b"after")):
        with pytest.raises(Away, match="No space left"):
            put()
    assert files_in(root) == ["heartbeat"]
    assert directory.read("heartbeat") == b"before"


def test_an_object_that_a_crash_left_unfinished_is_not_listed(
    directory: Bucket, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", lambda source, target: None)
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
    directory.create("log/1", b"unfinished")
    monkeypatch.undo()
    assert len(files_in(root)) == 1
    assert list(directory.entries("")) == []
    assert directory.read("log/1") is None
    directory.create("log/1", b"finished")
    assert [entry.name for entry in directory.entries("")] == ["log/1"]


def test_pruning_deletes_what_crashed_writers_left_and_nothing_else(directory: Bucket, root: Path) -> None:
    directory.create("log/1", b"an object")
    old = [root / "log" / "1#123", root / "base" / "a" / "b#456", root / "heartbeat#789"]
    for path in [*old, root / "log" / "2#123", root / "log" / "2#notes"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"part")
    long_ago = time.time() - limits.ARCHIVE_UNFINISHED_SECONDS - 60
    for path in [*old, root / "log" / "1", root / "log" / "2#notes"]:
        os.utime(path, (long_ago, long_ago))
    assert care.prune(directory, 0, dry_run=True)[:2] == (3, 12)
    assert len(files_in(root)) == 6
    assert care.prune(directory, 0)[:2] == (3, 12)
    assert files_in(root) == ["log/1", "log/2#123", "log/2#notes"]


def test_a_writer_whose_unfinished_file_was_deleted_fails_and_writes_it_again(
    directory: Bucket, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_UNFINISHED_SECONDS", -60)
    sync = os.fdatasync

    def suspended(fd: int) -> None:
        sync(fd)
        monkeypatch.undo()
        monkeypatch.setattr(limits, "ARCHIVE_UNFINISHED_SECONDS", -60)
        assert care.prune(directory, 0).objects == 1

    for name, put in (("log/1", directory.create), ("heartbeat", directory.replace)):
        monkeypatch.setattr(os, "fdatasync", suspended)
        with pytest.raises(Away):
            put(name, b"data")
        assert files_in(root) == ([] if name == "log/1" else ["log/1"])
        put(name, b"data")
    assert files_in(root) == ["heartbeat", "log/1"]


def test_of_two_writers_of_one_object_one_wins(directory: Bucket, root: Path) -> None:
    assert directory.create("log/1", b"mine") is None
    assert Bucket(root.as_uri()).create("log/1", b"yours") == b"mine"
    assert files_in(root) == ["log/1"]


def test_the_empty_mount_point_of_an_archive_takes_no_further_objects(directory: Bucket, root: Path) -> None:
    assert directory.create(log_name(1), b"one") is None
    shutil.rmtree(root)
    root.mkdir()
    with pytest.raises(Away, match=r"log is missing: mount the archive's disk"):
        directory.create(log_name(2), b"two")
    assert files_in(root) == []
    assert directory.create(log_name(1), b"another archive") is None
