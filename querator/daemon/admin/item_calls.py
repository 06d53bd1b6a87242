"""Calls that read and change stored items directly: storage/*, items.inspect, queue.clear."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from operator import methodcaller

from querator import durations, ids, limits
from querator.daemon import logs, validation
from querator.daemon.admin.figures import count_by_state
from querator.daemon.engine import change, read
from querator.daemon.queue import AnswerInParts, Logical, Partition, lifecycle
from querator.daemon.registry import Calls, Registry
from querator.daemon.store import Found, Leased
from querator.errors import InvalidRequest
from querator.items import ZERO_TIME_US, Hold, Item
from querator.limits import LIST_LIMIT_DEFAULT, NS_PER_US, PURPOSE_CHARACTERS_MAX
from querator.wire import messages
from querator.wire.messages import StorageItem

_TIMES = ("lease_deadline", "expire_deadline", "dead_deadline", "created_at", "updated_at", "enqueue_at", "leased_at")


# -- lists


Listed = messages.StorageItemsListResponse | AnswerInParts


async def list_items(registry: Registry, request: messages.StorageItemsListRequest) -> Listed:
    return await _list(registry, request, scheduled=False)


async def list_scheduled(registry: Registry, request: messages.StorageItemsListRequest) -> Listed:
    return await _list(registry, request, scheduled=True)


async def _list(registry: Registry, request: messages.StorageItemsListRequest, scheduled: bool) -> Listed:
    logical = registry.find(request.queue_name)
    partition = registry.partition(logical, request.partition)
    from_seq = 0
    if not validation.is_blank(request.pivot):
        decode(request.pivot)
        from_seq = ids.first_sequence_from(partition.prefix, request.pivot)
    if request.limit < 0:
        return messages.StorageItemsListResponse()
    pages = _pages(registry, logical, partition, request, scheduled, from_seq)
    first = await anext(pages, messages.StorageItemsListResponse())
    second = await anext(pages, None)
    return first if second is None else AnswerInParts([first, second], pages)


async def _pages(
    registry: Registry,
    logical: Logical,
    partition: Partition,
    request: messages.StorageItemsListRequest,
    scheduled: bool,
    from_seq: int,
) -> AsyncGenerator[messages.StorageItemsListResponse, None]:
    """Yields the items of a list, one page of the store at a time."""
    limit = request.limit or LIST_LIMIT_DEFAULT
    rows: list[Leased] = await read(logical, partition, methodcaller("page", scheduled, from_seq, limit))
    while True:
        if not rows:
            return
        seqs = [row.item.seq for row in rows]
        items = [
            _for_client(describe(*one), request.extended)
            for one in zip(ids.encode_many(partition.prefix, seqs), rows, strict=True)
        ]
        yield messages.StorageItemsListResponse(items=items)
        from_seq, limit = seqs[-1] + 1, limit - len(rows)
        if limit <= 0:
            return
        async with registry.reading_on[partition.placement.uuid]:
            page = methodcaller("page", scheduled, from_seq, limit)
            rows = await read(logical, partition, page, flush=False)


def decode(text: str) -> ids.Decoded:
    try:
        return ids.decode(text)
    except ValueError as error:
        raise InvalidRequest(f"invalid storage id; '{text}': {error}") from None


def describe(item_id: str, row: Leased) -> StorageItem:
    item = row.item
    return StorageItem(
        id=item_id,
        source_id=item.source_id,
        is_leased=row.deadline != 0,
        lease_deadline=row.deadline or item.imported_deadline or ZERO_TIME_US,
        client_id=row.hold.client_id,
        leased_at=row.hold.leased_at or None,
        token_name=row.hold.token_name,
        expire_deadline=item.expire_deadline,
        created_at=item.created_at,
        attempts=row.attempts,
        max_attempts=item.max_attempts,
        reference=item.reference,
        encoding=item.encoding,
        kind=item.kind,
        payload=item.payload,
    )


def _for_client(item: StorageItem, extended: bool) -> StorageItem:
    """Drops fields that the original service lacks, unless the request asks for them: existing clients refuse them."""
    if not extended:
        item.client_id, item.leased_at, item.token_name = "", None, ""
    return item


async def inspect(registry: Registry, request: messages.ItemsInspectRequest) -> messages.ItemsInspectResponse:
    logical = registry.find(request.queue_name)
    decoded = decode(request.id)
    partition = logical.partition_with(decoded.prefix)
    found: Found | None = None
    if partition is not None and ids.is_own(partition.prefix, request.id, decoded):
        found = (await read(logical, partition, lambda store: store.find([decoded.seq]))).get(decoded.seq)
    if partition is None or found is None:
        raise InvalidRequest(f"invalid storage id; '{request.id}' does not exist")
    if found.item is None:
        raise InvalidRequest(f"invalid storage id; '{request.id}' does not exist, its lease was lost")
    item = describe(request.id, Leased(found.item, found.attempts, found.deadline, found.hold))
    item.enqueue_at = found.item.enqueue_at or None
    events = lifecycle.history(found.item)
    return messages.ItemsInspectResponse(
        item=item,
        state=found.state,
        partition=partition.number,
        history=[
            messages.ItemDeath(
                queue_name=death.queue_name,
                source_id=death.source_id,
                reason=death.reason,
                attempts=death.attempts,
                at=death.at,
            )
            for death in events
            if death.queue_name
        ],
        failed_attempts=[
            messages.FailedAttempt(
                attempt=event.attempts,
                at=event.at,
                client_id=event.client_id,
                held=durations.text(event.held_us * NS_PER_US),
                reason=event.reason,
            )
            for event in events
            if not event.queue_name
        ],
    )


# -- import and delete


async def import_items(
    registry: Registry, request: messages.StorageItemsImportRequest
) -> messages.StorageItemsImportResponse:
    logical = registry.find(request.queue_name)
    partition = registry.partition(logical, request.partition)
    if not request.items:
        raise InvalidRequest("items is invalid; cannot be empty")
    for item in request.items:
        for field in _TIMES:
            validation.year(field, getattr(item, field))
        for field in ("attempts", "max_attempts"):
            if getattr(item, field) < 0:
                raise InvalidRequest(f"{field} is invalid; cannot be negative")
    sources = [item.source_id for item in request.items if item.source_id]
    async with registry.importing[partition.placement.uuid]:
        known = await read(logical, partition, lambda store: store.sources(sources)) if sources else set()
        keeps, answer, count = request.extended, [], 0
        for begin in range(0, len(request.items), limits.IMPORT_CHUNK_ITEMS):
            wanted = request.items[begin : begin + limits.IMPORT_CHUNK_ITEMS]
            items, added = await change(
                logical,
                [partition],
                lambda now, wanted=wanted: _import(logical, partition, wanted, known, now, keeps),  # type: ignore[misc]
            )
            answer += [_for_client(item, keeps) for item in items]
            count += added
    if count:
        logs.changed("items imported", logical.queue.name, [partition.number], {"items": count})
    return messages.StorageItemsImportResponse(items=answer)


def _import(
    logical: Logical,
    partition: Partition,
    wanted: Sequence[StorageItem],
    known: set[str],
    now: int,
    keeps_schedule: bool,
) -> tuple[list[StorageItem], int]:
    """Adds the items whose source is not `known` yet, and notes it there. Returns all items, as stored or as sent, and
    how many were added.

    Clients of the original service also send an `enqueue_at`, and expect the items to be ready.
    """
    fresh: list[StorageItem] = []
    for one in wanted:
        if not one.source_id or one.source_id not in known:
            fresh.append(one)
            known.add(one.source_id)
    contents = partition.contents
    first = contents.allocate(len(fresh), now) if fresh else 0
    expire = lifecycle.deadline(now, logical.queue.expire_timeout_ns)
    ready: list[Item] = []
    later: list[Item] = []
    leased: list[Leased] = []
    rows: dict[int, Leased] = {}
    for seq, one in enumerate(fresh, first):
        item = Item(
            seq=seq,
            created_at=now,
            expire_deadline=one.expire_deadline or expire,
            payload=one.payload,
            kind=one.kind,
            reference=one.reference,
            encoding=one.encoding,
            attempts=one.attempts,
            max_attempts=one.max_attempts,
            source_id=one.source_id,
        )
        deadline = one.lease_deadline or 0
        if one.is_leased and deadline:
            row = Leased(
                item, item.attempts, deadline, Hold(one.client_id, one.leased_at or 0, token_name=one.token_name)
            )
            leased.append(row)
            rows[id(one)] = row
        elif keeps_schedule and one.enqueue_at is not None and one.enqueue_at > now:
            item.enqueue_at = one.enqueue_at
            later.append(item)
            rows[id(one)] = Leased(item, item.attempts, 0)
        else:
            item.imported_deadline = deadline
            ready.append(item)
            rows[id(one)] = Leased(item, item.attempts, 0)
    if ready:
        contents.enter(ready)
    if later:
        contents.add_scheduled(later)
    if leased:
        contents.add_leased(leased)
    return [_echo(partition, one, rows.get(id(one))) for one in wanted], len(fresh)


def _echo(partition: Partition, sent: StorageItem, stored: Leased | None) -> StorageItem:
    if stored is not None:
        return describe(ids.encode(partition.prefix, stored.item.seq), stored)
    for field in ("lease_deadline", "expire_deadline", "created_at"):
        if getattr(sent, field) is None:
            setattr(sent, field, 0)
    return sent


async def delete_items(registry: Registry, request: messages.StorageItemsDeleteRequest) -> None:
    logical = registry.find(request.queue_name)
    partition = registry.partition(logical, request.partition)
    if not request.ids:
        raise InvalidRequest("ids is invalid; cannot be empty")
    wanted: dict[int, str] = {}
    for text in request.ids:
        decoded = decode(text)
        if ids.is_own(partition.prefix, text, decoded):
            wanted[decoded.seq] = text
    found = await read(logical, partition, lambda store: store.find(wanted, payloads=False))
    deleted = await change(logical, [partition], lambda now: remove_items(partition, wanted, found))
    if deleted:
        purpose = request.purpose[:PURPOSE_CHARACTERS_MAX]
        logs.changed("items deleted", logical.queue.name, [partition.number], {"items": deleted, "purpose": purpose})


def remove_items(partition: Partition, wanted: Mapping[int, str], found: Mapping[int, Found]) -> int:
    """Removes the items, also those whose state changed since they were found. Returns how many were removed."""
    before = sum(count_by_state(partition).values())
    contents = partition.contents
    gone = contents.remove_leased(list(wanted.values()))
    items = [one.item for seq, one in found.items() if one.item is not None and seq not in gone]
    contents.remove_waiting([item for item in items if not item.enqueue_at])
    contents.remove_scheduled([item for item in items if item.enqueue_at])
    return before - sum(count_by_state(partition).values())


async def clear(registry: Registry, request: messages.QueueClearRequest) -> messages.Reply:
    logical = registry.find(request.queue_name)
    if not request.queue and not request.scheduled:
        raise InvalidRequest("invalid clear request; one of 'queue', 'scheduled' must be true")
    destructive = request.queue and request.destructive

    def run(now: int) -> Counter[str]:
        before = count_by_state(*logical.partitions)
        for partition in logical.partitions:
            partition.contents.remove_all(
                ready=request.queue, leased=destructive, scheduled=request.scheduled or destructive
            )
        before.subtract(count_by_state(*logical.partitions))
        return before

    deleted = await change(logical, logical.partitions, run)
    logs.changed("queue cleared", logical.queue.name, details=deleted)
    details = {state: str(number) for state, number in deleted.items()} if request.counts else {}
    return messages.Reply(code=200, details=details)


CALLS: Calls = {
    "storage/items.list": list_items,
    "storage/scheduled.list": list_scheduled,
    "storage/items.import": import_items,
    "storage/items.delete": delete_items,
    "items.inspect": inspect,
    "queue.clear": clear,
}
