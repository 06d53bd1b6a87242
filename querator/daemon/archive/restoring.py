"""Restores a data directory from an archive, as it was at a given moment.

The bases are fetched first. Then the store replays the records after them, as it does after a crash. All hashes are
checked. An interrupted restore can be resumed: a base that is in place was checked, and its file says which records it
has.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID, uuid4

import msgspec

from querator import times
from querator.daemon.archive.bucket import ArchiveError, Bucket, NothingYet
from querator.daemon.archive.ledger import Ledger, Line, check_gap, first_number, indexes, needed_logs, read_logs
from querator.daemon.archive.objects import Base, DamagedObject, LogObject, log_name
from querator.daemon.archive.ownership import Identity, save_identity
from querator.daemon.catalog import Catalog, placements_in
from querator.daemon.store import Storage, Store, open_storage, private, records_of, replace_file, sync_directory
from querator.errors import NotFound, UsageError

Progress = Callable[[int, int], None]
"""Called with the number of bytes that are done, and with their total."""

_STATE: Final = "restore.json"
_DEFAULT: Final = "default"


class _State(msgspec.Struct):
    """A restore under way."""

    url: str
    number: int
    queue: str


def is_unfinished(directory: Path) -> bool:
    """Whether a restore to this directory was interrupted."""
    return (directory / _STATE).exists()


class Restored(NamedTuple):
    time: int
    """The directory has the state of this moment."""
    number: int
    queues: int
    partitions: int
    left_out: list[str]
    """Partitions that the archive did not have at that moment."""


def point_at(bucket: Bucket, at_us: int | None, number: int | None = None) -> Ledger:
    """Blocking. The ledger at the last point up to a moment or a number; the last point of all if neither is given.

    Raises ArchiveError if the archive does not go back that far, or has lost a log object before that moment or number.
    """
    ledger = None
    for index in reversed(indexes(bucket)):
        if (at_us is None or index.time <= at_us) and (number is None or index.number <= number):
            ledger = index.read(bucket)
            if ledger is not None and ledger.is_point:
                break
            ledger = None
    if ledger is None:
        first = first_number(bucket)
        if not first:
            raise NothingYet(f"there is nothing in the archive {bucket.url}")
        if first > 1:
            found = indexes(bucket)
            if not found:
                # Pruning leaves an index. Perhaps the disk of the archive is not mounted.
                raise ArchiveError(
                    f"everything before {log_name(first)} is missing, so nothing can be restored",
                    hint="bring the objects back from a copy of the archive",
                )
            oldest = times.text(found[0].time)
            hint = "querator archive list" if number is None else "use a new, empty directory"
            raise ArchiveError(f"the archive does not go back that far; its oldest point is {oldest}", hint=hint)
        ledger = Ledger()
    pending: list[LogObject] = []
    end = ledger.number
    is_end_known = False
    for one in read_logs(bucket, ledger.number + 1, number):
        if at_us is not None and one.head.time > at_us:
            is_end_known = True
            break
        end, is_end_known = one.head.number, one.head.time == at_us
        pending.append(LogObject(one.head, one.catalog or b"", one.sha256, one.size))
        if one.head.is_point:
            for each in pending:
                ledger.advance(each)
            pending = []
    if not is_end_known and end != number:
        check_gap(bucket, end, number or 0)
    if not ledger.catalog:
        raise NothingYet("the archive has no complete state of that time", hint="querator archive status")
    return ledger


def restore(
    bucket: Bucket,
    directory: Path,
    *,
    at_us: int | None = None,
    queue: str = "",
    leave_out: bool = False,
    progress: Progress = lambda done, total: None,
) -> Restored:
    """Blocking. Makes a data directory. With `leave_out`, partitions that the archive lacks are left out."""
    state = _begin(directory, bucket.url, queue)
    ledger = point_at(bucket, at_us, state.number if state else None)
    wanted = {uuid: place for uuid, place in placements_in(ledger.catalog).items() if queue in ("", place[0])}
    if queue and not wanted:
        raise NotFound(f"queue '{queue}' was not there at {times.text(ledger.time)}", hint="querator archive list")
    left_out = ledger.without_base(wanted)
    if left_out and not leave_out:
        raise ArchiveError(
            f"the archive has no base of {len(left_out)} of {len(wanted)} partitions at {times.text(ledger.time)},"
            " because their files were about to be copied",
            hint="name another moment with --at, or restore the others with --leave-out",
        )
    if state is None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(directory / _STATE, msgspec.json.encode(_State(bucket.url, ledger.number, queue)))
    lines = {uuid: ledger.lines[uuid] for uuid in wanted if uuid not in left_out}
    places = {name: directory / ("partitions" if name == _DEFAULT else name) for _, name in wanted.values()}
    meter = _Meter(lines, ledger, progress)
    storages = {name: open_storage(name, place) for name, place in places.items()}
    try:
        stores = _take_bases(bucket, storages, wanted, lines, meter)
        _replay(bucket, storages, wanted, lines, ledger, meter)
        for store in stores:
            # No journal has what was replayed. Closing a storage would only log that the disk is full.
            store.flush()
            store.checkpoint(force=True)
    finally:
        for storage in storages.values():
            storage.close()
    _finish(directory, places, ledger, queue, bucket.url, left_out)
    names = {name for name, _ in wanted.values()}
    return Restored(ledger.time, ledger.number, len(names), len(lines), left_out)


def _begin(directory: Path, url: str, queue: str) -> _State | None:
    """Refuses a directory that is not empty, unless it holds an unfinished restore of the same kind."""
    # A restore that was killed in its first moment leaves only a state that is not in place.
    if not directory.exists() or not any(path.name != f"{_STATE}.new" for path in directory.iterdir()):
        return None
    try:
        state = msgspec.json.decode((directory / _STATE).read_bytes(), type=_State)
    except (FileNotFoundError, msgspec.MsgspecError):
        raise UsageError(f"{directory} is not empty", hint="restore to a new directory") from None
    if (state.url, state.queue) != (url, queue):
        raise UsageError(f"{directory} holds another restore that was not finished", hint="restore to a new directory")
    return state


class _Meter:
    """Counts bytes for the progress."""

    def __init__(self, lines: Mapping[str, Line], ledger: Ledger, progress: Progress) -> None:
        self.bases = sum(line.base.size for line in lines.values() if line.base)
        starts = [line.log_bytes_before for line in lines.values() if line.replay_from]
        self._total = self.bases + (ledger.log_bytes - min(starts) if starts else 0)
        self._progress = progress

    def at(self, done: int) -> None:
        self._progress(done, self._total)


def _take_bases(
    bucket: Bucket,
    storages: Mapping[str, Storage],
    wanted: Mapping[str, tuple[str, str]],
    lines: Mapping[str, Line],
    meter: _Meter,
) -> list[Store]:
    """Puts the bases of all partitions in place, and opens them."""
    done, stores = 0, []
    for uuid, line in lines.items():
        assert line.base is not None
        queue, name = wanted[uuid]
        place_base(bucket, storages[name], line.base, lambda size, before=done: meter.at(before + size))  # type: ignore[misc]
        done += line.base.size
        stores.append(storages[name].open(uuid, queue))
    return stores


def place_base(
    bucket: Bucket, storage: Storage, base: Base, progress: Callable[[int], None] = lambda done: None
) -> None:
    """Blocking. Makes the file of a partition from its base, unless it is there already. Checks the base's hash."""
    path = storage.directory / f"{base.uuid}.duckdb"
    if path.exists():
        return
    if not base.name:
        storage.create(base.uuid, base.queue).close()
        return
    fresh = storage.staging(base.uuid) / path.name
    digest = hashlib.sha256()
    done = 0
    with open(fresh, "xb", opener=private) as file:
        for piece in bucket.pieces(base.name):
            digest.update(piece)
            file.write(piece)
            done += len(piece)
            progress(done)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != base.sha256:
        raise DamagedObject(f"{base.name} is damaged: its hash is wrong")
    storage.adopt(base.uuid, fresh)
    fresh.parent.rmdir()


def _replay(
    bucket: Bucket,
    storages: Mapping[str, Storage],
    wanted: Mapping[str, tuple[str, str]],
    lines: Mapping[str, Line],
    ledger: Ledger,
    meter: _Meter,
) -> None:
    last = {uuid: line.base.applied for uuid, line in lines.items() if line.base}
    starts = [line.replay_from for line in lines.values() if line.replay_from]
    done = meter.bases
    for one in needed_logs(bucket, min(starts, default=ledger.number + 1), ledger.number):
        for uuid, record, payload in records_in(one):
            line = lines.get(uuid)
            if line and line.replay_from and one.head.number >= line.replay_from and record > last[uuid]:
                storages[wanted[uuid][1]].replay(uuid, record, payload)
                last[uuid] = record
        done += one.size
        meter.at(done)
    for uuid, line in lines.items():
        if last[uuid] != line.last:
            raise DamagedObject(f"records {last[uuid] + 1} to {line.last} of partition {uuid} are missing")


def records_in(one: LogObject) -> list[tuple[str, int, bytes]]:
    """The partition, the number and the payload of each record with a batch. Raises DamagedObject."""
    found = []
    for part, data in one.parts():
        try:
            for record, payload in records_of(part.segment, data):
                if record.is_batch:
                    found.append((str(UUID(bytes=record.partition)), record.number, payload))
        except ValueError as error:
            raise DamagedObject(f"{log_name(one.head.number)}: {error}") from None
    return found


def _finish(
    directory: Path, places: Mapping[str, Path], ledger: Ledger, queue: str, url: str, left_out: list[str]
) -> None:
    """Writes the catalog, last of all, because a daemon refuses to start on partition files without one."""
    catalog = Catalog(directory / "catalog.duckdb")
    try:
        catalog.load(ledger.catalog)
        catalog.forget_elsewhere(queue)
    finally:
        catalog.close()
    whole = not queue and not left_out
    number, sha256 = (ledger.number, ledger.sha256) if whole else (0, "")
    save_identity(directory, Identity(str(uuid4()), url, number, sha256))
    if set(places) - {_DEFAULT}:
        tables = [f'[[storages]]\nname = "{name}"\ndirectory = "{place.name}"\n' for name, place in places.items()]
        replace_file(directory / "config.toml", ('data = "."\n\n' + "\n".join(tables)).encode())
    (directory / _STATE).unlink()
    sync_directory(directory)
