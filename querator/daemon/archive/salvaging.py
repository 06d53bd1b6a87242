"""What is only here: records that a replaced daemon had not shipped, and the items of a restored directory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from querator import ids
from querator.config import StorageConfig
from querator.daemon.archive.bucket import Bucket
from querator.daemon.archive.ledger import Ledger, indexes, log_entries, read_log, read_logs
from querator.daemon.archive.ownership import identity_path, read_identity
from querator.daemon.catalog import Catalog, rows_in
from querator.daemon.lock import holder
from querator.daemon.store import Batch, Storage, decode_batch, items_in, open_storage, others_of, records_left
from querator.errors import Conflict, NotFound
from querator.items import Item
from querator.wire.messages import StorageItem


class Salvaged(NamedTuple):
    """A change that the archive lacks."""

    queue: str
    what: str
    """`produced`, or `removed` for an item that was completed, retried, died or was deleted. Otherwise what happened to
    the queue, to its partitions or to a token."""
    item_id: str = ""
    kind: str = ""
    reference: str = ""
    """Of the item, or the name of the token."""
    payload: bytes = b""


def salvage(bucket: Bucket, data: Path, storages: tuple[StorageConfig, ...]) -> Iterator[Salvaged]:
    """Blocking. The changes in the journals of a directory that never got to the archive. Changes nothing."""
    if not identity_path(data).exists():
        raise NotFound(f"{data} never had an archive", hint="--data DIR names the directory of the old owner")
    if (running := holder(data)) is not None:
        raise Conflict(f"a daemon, PID {running.pid}, runs on {data}", hint=f"querator daemon stop --data {data}")
    ledger = _last_owned(bucket, read_identity(data).data)
    catalog = Catalog(data / "catalog.duckdb")
    queues = {placement.uuid: placement.queue for placement in catalog.placements()}
    _, copy, _ = catalog.copied(-1, lambda: None)
    catalog.close()
    if ledger.catalog:
        yield from _catalog_changes(ledger.catalog, copy)
    for storage in storages:
        for record, payload in records_left(storage.directory / "journal", ledger.position(storage.name)):
            uuid = str(UUID(bytes=record.partition))
            line = ledger.lines.get(uuid)
            if record.is_batch and (line is None or record.number > line.last):
                yield from _changes(queues.get(uuid, ""), uuid, decode_batch(payload))


def _last_owned(bucket: Bucket, data: str) -> Ledger:
    """The ledger after the last log object that this directory has written."""
    last = 0
    for number, _ in log_entries(bucket):
        one = read_log(bucket, number)
        if one is not None and one.head.owner.data == data:
            last = number
    if not last:
        raise NotFound("this directory has written nothing to the archive")
    ledger = next(
        (found for index in reversed(indexes(bucket)) if index.number <= last and (found := index.read(bucket))),
        Ledger(),
    )
    for one in read_logs(bucket, ledger.number + 1, last):
        ledger.advance(one)
    return ledger


def _catalog_changes(before: bytes, after: bytes) -> Iterator[Salvaged]:
    """What differs between two copies of a catalog. Nobody needs the jobs of a daemon that was replaced."""
    for what, row in _differences(before, after, "queues", "name"):
        yield Salvaged(row["name"], f"queue {what}")
    for what, row in _differences(before, after, "partitions", "uuid"):
        yield Salvaged(row["queue"], f"partition {row['number']} {what}")
    for what, row in _differences(before, after, "tokens", "prefix"):
        yield Salvaged("", f"token {what}", reference=row["name"])


def _differences(before: bytes, after: bytes, table: str, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """What happened to each row of a table that is not as it was, with the row."""
    old, new = ({row[key]: _significant(row) for row in rows_in(copy, table)} for copy in (before, after))
    for name in old | new:
        if name not in old:
            yield "created", new[name]
        elif name not in new:
            yield "deleted", old[name]
        elif old[name] != new[name]:
            yield "changed", new[name]


def _significant(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "last_used_at"}


def _changes(queue: str, uuid: str, batch: Batch) -> Iterator[Salvaged]:
    prefix = int(uuid.replace("-", "")[:16], 16)
    others = others_of(batch)
    in_columns = (item for rows in others.rows or () for item in items_in(rows))
    for item in [*(batch.add or ()), *(others.schedule or ()), *in_columns]:
        yield Salvaged(queue, "produced", ids.encode(prefix, item.seq), item.kind, item.reference, item.payload)
    in_stripes = chain.from_iterable([stripe.seqs for stripe in others.removed_stripes or ()])
    for seq in chain(batch.remove or (), in_stripes):
        yield Salvaged(queue, "removed", ids.encode(prefix, seq))


def items_of(directory: Path, page: int) -> Iterator[list[StorageItem]]:
    """Blocking. Every item of a directory that was restored, in lists of at most `page`, ready for an import."""
    catalog = Catalog(directory / "catalog.duckdb")
    placements = catalog.placements()
    catalog.close()
    storages: dict[str, Storage] = {}
    try:
        for placement in placements:
            name = placement.storage
            if name not in storages:
                place = "partitions" if name == "default" else name
                storages[name] = open_storage(name, directory / place)
            store = storages[name].open(placement.uuid, placement.queue)
            for is_scheduled in (False, True):
                after = 0
                while found := store.page(is_scheduled, after, page):
                    yield [_imported(store.prefix, one.item, one.attempts) for one in found]
                    after = found[-1].item.seq + 1
    finally:
        for storage in storages.values():
            storage.close()


def _imported(prefix: int, item: Item, attempts: int) -> StorageItem:
    return StorageItem(
        source_id=ids.encode(prefix, item.seq),
        created_at=item.created_at,
        enqueue_at=item.enqueue_at or None,
        attempts=max(item.attempts, attempts),
        kind=item.kind,
        reference=item.reference,
        encoding=item.encoding,
        payload=item.payload,
    )
