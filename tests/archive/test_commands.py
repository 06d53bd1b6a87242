"""What the commands of an archive refuse, and what they say then."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from querator.config import ArchiveConfig
from querator.daemon.archive import Away, Bucket
from tests.archive.looking import shipped, shipper_of
from tests.archive.object_stores import S3
from tests.daemons import Daemon, querator
from tests.maintenance.house import House

OpenHouse = Callable[..., House]


@pytest.fixture
def archived(open_house: OpenHouse, archive: ArchiveConfig) -> ArchiveConfig:
    house = open_house("live", "default", archive=archive)
    house.create()
    house.produce("1")
    shipped(house)
    house.close()
    return archive


@pytest.mark.parametrize("words", [["status"], ["list"], ["verify"], ["prune"], ["restore", "--to", "restored"]])
def test_a_command_that_reads_makes_no_directory(tmp_path: Path, words: list[str]) -> None:
    missing = tmp_path / "missing"
    done = querator(tmp_path, "archive", *words, "--archive", f"file://{missing}")
    assert done.returncode != 0 and "the directory does not exist" in done.stderr
    assert "whether the disk is mounted" in done.stderr
    assert not missing.exists()


def test_a_url_without_a_bucket_says_what_it_should_look_like(tmp_path: Path) -> None:
    done = querator(tmp_path, "archive", "status", "--archive", "s3://")
    assert done.returncode == 1 and "hint: check the URL, such as s3://bucket/queue" in done.stderr


def test_the_status_of_an_empty_archive_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = querator(tmp_path, "archive", "status", "--archive", f"file://{tmp_path / 'empty'}")
    assert done.returncode != 0 and "there is nothing in the archive" in done.stderr


def test_a_bucket_that_does_not_exist_is_named(s3: S3) -> None:
    _, options = s3.archive()
    bucket = Bucket("s3://nowhere/queue", options)
    for attempt in (lambda: bucket.create("log/1", b"x"), lambda: bucket.read("log/1"), lambda: [*bucket.entries("")]):
        with pytest.raises(Away, match="there is no bucket 'nowhere'"):
            attempt()


def test_a_time_in_the_future_is_refused(tmp_path: Path, archived: ArchiveConfig) -> None:
    words = ["archive", "restore", "--archive", archived.url, "--to", str(tmp_path / "restored")]
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%d")
    for text in (tomorrow, f"{tomorrow} 23:59"):
        done = querator(tmp_path, *words, "--at", text)
        assert done.returncode != 0 and f"'{text}' is in the future" in done.stderr
    done = querator(tmp_path, *words, "--at", "2020-01-01")
    assert "in the future" not in done.stderr and "is not a time" not in done.stderr


def test_a_command_that_opened_files_ends_without_a_word_about_leaks(tmp_path: Path, archived: ArchiveConfig) -> None:
    for words in (["status"], ["list"], ["verify"], ["restore", "--to", str(tmp_path / "restored")]):
        done = querator(tmp_path, "archive", *words, "--archive", archived.url)
        assert done.returncode == 0 and (done.stdout or done.stderr)
        assert "leak" not in done.stderr


@pytest.mark.parametrize("text", ["yesterday", "2026-02-30", "2026-11-16 noon", "2026-11-16 25:00"])
def test_a_time_that_is_none_is_quoted_as_it_was_given(tmp_path: Path, text: str) -> None:
    words = ["archive", "restore", "--archive", f"file://{tmp_path}", "--to", str(tmp_path / "restored")]
    done = querator(tmp_path, *words, "--at", text)
    assert done.returncode == 2 and f"'{text}' is not a time" in done.stderr


def test_an_archive_is_not_kept_inside_the_data_that_it_copies(tmp_path: Path) -> None:
    with Daemon(tmp_path, "--archive", f"file://{tmp_path / 'data' / 'archive'}", may_fail=True) as daemon:
        assert daemon.exit_code == 1
        assert "is inside the data directory" in daemon.output


def test_a_restore_does_not_go_into_a_data_directory(tmp_path: Path, archived: ArchiveConfig) -> None:
    inside = tmp_path / "live" / "restored"
    done = querator(tmp_path, "archive", "restore", "--archive", archived.url, "--to", str(inside))
    assert done.returncode != 0 and "is inside the data directory" in done.stderr
    assert not inside.exists()


def test_salvage_names_the_daemon_that_still_runs(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'archive'}"
    with Daemon(tmp_path, "--archive", url) as daemon:
        done = querator(tmp_path, "archive", "salvage", "--archive", url, "--data", str(daemon.data))
        assert done.returncode != 0 and f"a daemon, PID {daemon.process.pid}, runs on" in done.stderr


def test_a_standby_is_not_promoted_when_the_archive_was_emptied(
    live: House, standby: House, archive: ArchiveConfig, tmp_path: Path
) -> None:
    shipped(live)
    number = shipper_of(live).ledger.number
    role = standby.service.archive.standby
    assert role is not None
    standby.until(lambda: role.standby.files.ledger.number >= number)
    live.close()
    (tmp_path / "archive").rename(tmp_path / "elsewhere")
    (tmp_path / "archive").mkdir()
    standby.run(role._promote(force=True))
    assert "is missing from the archive" in role.notes()[1]
    assert "bring its objects back" in role.notes()[1]
    assert not list((tmp_path / "archive").rglob("log/*"))
