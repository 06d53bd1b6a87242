"""What only a replaced daemon has, and one queue that comes back beside the live one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from querator import times
from querator.client import produce_item
from querator.config import ArchiveConfig
from querator.daemon.archive import Bucket, restoring, salvaging
from querator.errors import NotFound
from querator.wire import messages as m
from querator.wire.access_messages import TokensCreateRequest
from tests.archive.looking import bucket_of, shipped
from tests.daemons import Daemon, querator
from tests.maintenance.house import House
from tests.waiting import until

OpenHouse = Callable[..., House]


def test_salvage_lists_what_a_replaced_daemon_had_not_shipped(open_house: OpenHouse, archive: ArchiveConfig) -> None:
    archive = dataclasses.replace(archive, heartbeat=60)
    house = open_house("live", archive=archive)
    house.create()
    house.produce("shipped")
    (lease,) = house.lease()
    shipped(house)
    lost: list[object] = []
    house.service.lost_archive = lost.append
    open_house("other").close()
    open_house("other", archive=archive, claim=True, start_over=True)
    house.begin_produce("not shipped")  # it gets no answer if the daemon learns first that it was replaced
    house.complete(lease.id)
    house.until(lambda: bool(lost))
    house.close()
    found = list(salvaging.salvage(bucket_of(archive), house.directory, house.config.storages))
    assert ("q", "produced", b"not shipped") in [(one.queue, one.what, one.payload) for one in found]
    assert b"shipped" not in [one.payload for one in found]


def test_salvage_lists_changes_of_queues_and_tokens(open_house: OpenHouse, archive: ArchiveConfig) -> None:
    archive = dataclasses.replace(archive, heartbeat=60, interval=60)
    house = open_house("live", archive=archive)
    house.create("kept")
    house.create("changed")
    house.create("gone")
    shipped(house)
    house.service.lost_archive = lambda error: None
    open_house("other").close()
    open_house("other", archive=archive, claim=True, start_over=True)
    house.create("new")
    house.call("queues.update", m.QueueInfo(queue_name="changed", max_attempts=9))
    house.call("queues.delete", m.QueuesDeleteRequest(queue_name="gone"))
    house.call("tokens.create", TokensCreateRequest(name="bob", role="viewer", queues=["*"]))
    house.close()
    found = [one[:2] for one in salvaging.salvage(bucket_of(archive), house.directory, house.config.storages)]
    assert ("new", "queue created") in found and ("new", "partition 0 created") in found
    assert ("changed", "queue changed") in found
    assert ("gone", "queue deleted") in found and ("gone", "partition 0 deleted") in found
    assert ("", "token created") in found
    assert "kept" not in [queue for queue, _ in found]


def test_a_directory_that_never_had_an_archive_has_nothing_to_salvage(
    open_house: OpenHouse, archive: ArchiveConfig
) -> None:
    house = open_house("live")
    with pytest.raises(NotFound, match="never had an archive") as caught:
        list(salvaging.salvage(bucket_of(archive), house.directory, house.config.storages))
    assert "--data" in caught.value.hint


def test_a_queue_that_was_cleared_comes_back_under_another_name(tmp_path: Path) -> None:
    archive = f"file://{tmp_path / 'archive'}"

    def run(*words: str) -> str:
        done = querator(tmp_path, *words, "--socket", str(daemon.socket))
        assert done.returncode == 0, done.stderr
        return done.stdout

    with Daemon(tmp_path, "--archive", archive) as daemon:
        daemon.client.create_queue("mail")
        daemon.client.produce("mail", ["1", "2"])
        until(lambda: _restorable(tmp_path, archive, 2))
        run("archive", "restore", "--archive", archive, "--queue", "mail", "--into", "mail-before")
        assert sorted(item.payload for item in daemon.client.list_items("mail-before", limit=10)) == [b"1", b"2"]
        assert len(list(daemon.client.list_items("mail", limit=10))) == 2
        assert daemon.client.queue_info("mail-before").reference.startswith("restored 'mail' as of ")
        words = ["archive", "restore", "--archive", archive, "--queue", "nothing", "--into", "mail"]
        done = querator(tmp_path, *words, "--socket", str(daemon.socket))
        assert done.returncode == 5 and "choose another name" in done.stderr


def test_an_interrupted_import_is_resumed_and_scheduled_items_stay_scheduled(tmp_path: Path) -> None:
    archive = f"file://{tmp_path / 'archive'}"
    with Daemon(tmp_path, "--archive", archive) as daemon:
        client = daemon.client
        client.create_queue("mail")
        client.produce("mail", ["1", "2", "3"])
        client.produce("mail", [produce_item("later", enqueue_at=datetime.now(UTC) + timedelta(hours=1))])
        until(lambda: _restorable(tmp_path, archive, 4))
        # What a command leaves that was killed after its first page.
        first = restoring.restore(Bucket(archive), tmp_path / "first", queue="mail")
        client.create_queue("back", reference=f"restoring 'mail' as of {times.text(first.time)}")
        client.import_items("back", next(salvaging.items_of(tmp_path / "first", 2)))
        client.produce("mail", ["after the first attempt"])
        until(lambda: _restorable(tmp_path, archive, 5 + 2))
        words = ["archive", "restore", "--archive", archive, "--queue", "mail", "--into", "back"]
        done = querator(tmp_path, *words, "--socket", str(daemon.socket))
        assert done.returncode == 0, done.stderr
        assert sorted(item.payload for item in client.list_items("back", limit=10)) == [b"1", b"2", b"3"]
        assert [item.payload for item in client.list_scheduled("back", limit=10)] == [b"later"]
    assert not list((tmp_path / ".local" / "state" / "querator" / "restores").iterdir())


def _restorable(directory: Path, archive: str, items: int) -> bool:
    """Whether a restore finds this many items already."""
    target = next(path for n in count() if not (path := directory / f"try-{n}").exists())
    try:
        restoring.restore(Bucket(archive), target)
    except Exception:  # nothing is shipped yet
        return False
    return sum(len(page) for page in salvaging.items_of(target, 100)) == items


def test_doctor_tries_the_archive(tmp_path: Path) -> None:
    archive = f"file://{tmp_path / 'archive'}"
    with Daemon(tmp_path, environment={"QUERATOR_ARCHIVE": archive}) as daemon:
        config = tmp_path / ".config" / "querator" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(f'[archive]\nurl = "{archive}"\n')
        done = querator(tmp_path, "doctor", "--socket", str(daemon.socket), "--data", str(daemon.data), "-o", "ndjson")
    assert "creates no object twice" in done.stdout
