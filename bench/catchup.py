"""How fast a new standby reads the log of an archive: from a directory, from a slow store and from moto.

`python -m bench.archive --parts catchup` runs it.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from querator import limits
from querator.clock import SystemClock
from querator.config import ArchiveConfig, StorageConfig
from querator.daemon.archive import Bucket
from querator.daemon.archive.ledger import last_readable, read_logs
from querator.daemon.archive.standby import Standby
from tests.daemons import Daemon

GET_MS = 20.0
ONE_BY_ONE = 200
"""So many objects are read one after the other, for comparison."""
PAYLOAD_BYTES = 200

Store = Callable[[int], subprocess.Popen[bytes]]
"""Starts an object store on a port, with a bucket `bench`."""
Figure = tuple[str, float, str, float, bool]
"""What, its value and unit, its goal, and whether that is a ceiling."""


def catching_up(
    directory: Path, objects: int, port: Callable[[], int], stores: dict[str, Store], keys: dict[str, str]
) -> Iterator[Figure]:
    """The bases of the partitions are empty, so that a standby reads all of the log."""
    archive = f"file://{directory / 'archive'}"
    _fill(directory, archive, objects)
    yield _figure("a directory", archive, {}, directory)
    for name, start in stores.items():
        at = port()
        process = start(at)
        try:
            url, options = "s3://bench/catchup", {**keys, "endpoint": f"http://127.0.0.1:{at}"}
            _copy(Bucket(archive), Bucket(url, options))
            yield _figure(name, url, options, directory)
            if "ms" in name:
                yield "  one after the other", _one_by_one(Bucket(url, options)), "objects/s", 40, False
        finally:
            process.terminate()
            process.wait()


def _fill(directory: Path, archive: str, objects: int) -> None:
    """One item per log object, as a quiet queue with an interval of a second has after some hours."""
    config = directory / "filled.toml"
    config.write_text(f'[archive]\nurl = "{archive}"\ninterval = "1ms"\n')
    (directory / "filled").mkdir()
    with Daemon(directory / "filled", "--config", str(config)) as owner:
        owner.client.create_queue("bench")
        while _shipped(owner) < objects:
            for _ in range(50):
                owner.client.produce("bench", [os.urandom(PAYLOAD_BYTES)])
        owner.stop()


def _shipped(owner: Daemon) -> int:
    found = re.search(r"object (\d+)", owner.client.health()["archive"][0])
    return int(found[1]) if found else 0


def _copy(source: Bucket, target: Bucket) -> None:
    for entry in source.entries(""):
        target.replace(entry.name, source.read(entry.name) or b"")


def _figure(name: str, url: str, options: dict[str, str], directory: Path) -> Figure:
    data = directory / f"standby-{time.monotonic_ns()}"
    data.mkdir()
    storage = StorageConfig("default", data / "partitions", 1.0)
    standby = Standby(ArchiveConfig(url, options=options), data, [storage], SystemClock(), "", lambda: None)
    begun = time.monotonic()
    standby.start()
    seconds = time.monotonic() - begun
    number = standby.files.ledger.number
    standby.stop()
    return f"catch-up over {number:,} objects from {name} ({seconds:.1f} s)", number / seconds, "objects/s", 100, False


def _one_by_one(bucket: Bucket) -> float:
    end = last_readable(bucket).number
    at_once, limits.ARCHIVE_READS_AHEAD_MAX = limits.ARCHIVE_READS_AHEAD_MAX, 1
    begun = time.monotonic()
    try:
        read = sum(1 for _ in read_logs(bucket, end - ONE_BY_ONE + 1, end))
    finally:
        limits.ARCHIVE_READS_AHEAD_MAX = at_once
    return read / (time.monotonic() - begun)
