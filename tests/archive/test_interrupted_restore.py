"""Restores that are killed and resumed, archives with a damaged object, and what pruning leaves."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from querator import limits
from querator.config import ArchiveConfig
from querator.daemon.archive import care, restoring
from querator.daemon.archive.ledger import read_log
from querator.daemon.archive.objects import DamagedObject
from querator.daemon.store import files
from tests.archive.looking import bucket_of, restored, shipped
from tests.archive.object_stores import S3, FaultyProxy, Handler
from tests.daemons import QUERATOR, clean_environment, querator
from tests.maintenance.house import SECOND, House

OpenHouse = Callable[..., House]


def filled(open_house: OpenHouse, archive: ArchiveConfig, partitions: int) -> list[str]:
    """A queue that is in the archive as bases and as log objects after them. Returns its contents."""
    house = open_house("live", "default")
    house.create(partitions=partitions)
    house.produce(*(f"{number}" for number in range(20)))
    house.close()
    house = open_house("live", "default", archive=archive)
    shipped(house)
    for number in range(3):
        house.produce(f"later {number}")
        shipped(house)
    there = sorted(house.contents())
    house.close()
    return there


def test_a_restore_that_is_killed_again_and_again_goes_on(
    open_house: OpenHouse, s3: S3, proxy: FaultyProxy, tmp_path: Path
) -> None:
    url, options = s3.archive(proxy.endpoint)
    archive = ArchiveConfig(url, interval=0.01, options=options)
    there = filled(open_house, archive, partitions=2)
    config = tmp_path / "config.toml"
    lines = [f'{name} = "{value}"' for name, value in options.items()]
    config.write_text("\n".join(["[archive]", f'url = "{url}"', "[archive.options]", *lines]))
    target = tmp_path / "restored"
    words = ["archive", "restore", "--to", str(target), "--config", str(config)]

    def kill_while_fetching(kind: str) -> None:
        process = subprocess.Popen([*QUERATOR, *words], env=clean_environment(tmp_path), stdin=subprocess.DEVNULL)
        fetched: list[str] = []

        def fault(handler: Handler, body: bytes) -> bool:
            fetched.append(handler.path)
            # Log objects are read twice: first for the ledger, and then, after the bases, for their records.
            if f"/{kind}/" not in handler.path or not any("/base/" in path for path in fetched):
                return False
            handler.answer_half(body)
            process.kill()
            process.wait()
            return handler.hang_up()

        proxy.fault = fault
        assert process.wait(60) == -9

    for kind in ("base", "base", "log"):
        kill_while_fetching(kind)
    proxy.fault = None
    done = querator(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    (target / "partitions").rename(target / "default")
    again = House(target, ("default",))
    assert sorted(again.contents()) == there
    again.close()


@pytest.mark.parametrize(
    "step", ["write", "rename", "open_storage", "place_base", "needed_logs", "Catalog", "save_identity", "unlink"]
)
def test_a_restore_that_was_killed_at_any_step_goes_on(
    open_house: OpenHouse, archive: ArchiveConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    there = filled(open_house, archive, partitions=1)
    rename, unlink = Path.rename, Path.unlink

    class Killed(Exception):
        pass

    def kill(*words: object) -> None:
        raise Killed

    def write(path: Path, data: bytes) -> None:
        path.write_bytes(data[:5])
        raise Killed

    def rename_others(path: Path, to: Path) -> Path:
        return kill() if path.name == "restore.json.new" else rename(path, to)  # type: ignore[return-value]

    def unlink_others(path: Path, missing_ok: bool = False) -> None:
        return kill() if path.name == "restore.json" else unlink(path, missing_ok)

    target = tmp_path / "restored"
    with pytest.raises(Killed), monkeypatch.context() as patch:
        if step == "write":
            patch.setattr(files, "write_file", write)
        elif step in ("rename", "unlink"):
            patch.setattr(Path, step, rename_others if step == "rename" else unlink_others)
        else:
            patch.setattr(restoring, step, kill)
        restoring.restore(bucket_of(archive), target)
    restoring.restore(bucket_of(archive), target)
    assert not restoring.is_unfinished(target)
    (target / "partitions").rename(target / "default")
    again = House(target, ("default",))
    assert sorted(again.contents()) == there
    again.close()


@pytest.mark.parametrize("kind", ["log/", "base/", "index/"])
def test_a_restore_names_the_object_that_is_damaged(
    kind: str, open_house: OpenHouse, archive: ArchiveConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_INDEX_EVERY", 2)
    filled(open_house, archive, partitions=1)
    bucket = bucket_of(archive)
    name = [entry.name for entry in bucket.entries(kind)][-1]
    data = bytearray(bucket.read(name) or b"")
    data[len(data) // 2] ^= 1
    bucket.replace(name, bytes(data))
    with pytest.raises(DamagedObject, match=name):
        restoring.restore(bucket, tmp_path / "restored")
    done = querator(tmp_path, "archive", "restore", "--archive", archive.url, "--to", str(tmp_path / "again"))
    assert done.returncode != 0 and f"{name} is damaged" in done.stderr


def test_pruning_at_any_moment_leaves_every_later_point(
    open_house: OpenHouse, archive: ArchiveConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues come, grow at different speeds, and go. Bases are taken and indexes are written all the time."""
    monkeypatch.setattr(limits, "ARCHIVE_INDEX_EVERY", 3)
    monkeypatch.setattr(limits, "ARCHIVE_BASE_LOG_BYTES", 4_000)
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    house = open_house("live", "default", archive=archive)
    house.create("a", partitions=2)
    house.create("b")
    recorded: dict[int, dict[str, list[str]]] = {}
    for step in range(16):
        for _ in range(chance.randint(0, 3)):
            house.produce(f"{step} {'x' * chance.randint(1, 500)}", queue="a")
        if chance.random() < 0.2:
            house.produce(f"{step}", queue="b")
        if step == 8:
            house.restart()
        shipped(house)
        recorded[house.clock.now_us()] = {name: sorted(house.contents(name)) for name in ("a", "b")}
        house.advance("1s")
    house.close()
    bucket = bucket_of(archive)
    moments = sorted(recorded)
    for before_us in sorted(chance.sample(moments, 3)):
        care.prune(bucket, before_us)
        care.verify(bucket)
        left = [moment for moment in moments if moment >= before_us]
        moment = chance.choice([left[0], chance.choice(left)])
        again = restored(archive, tmp_path / f"{before_us}-{moment}", at_us=moment + chance.randrange(SECOND))
        assert {name: sorted(again.contents(name)) for name in ("a", "b")} == recorded[moment]
        again.close()
    assert read_log(bucket, 2) is None, "nothing was pruned"
