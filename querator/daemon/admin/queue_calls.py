"""Creating, changing and removing queues: queues.*, and queue.stats."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from querator import durations
from querator.daemon import logs
from querator.daemon.admin import item_calls, placement, validation
from querator.daemon.admin.item_calls import count_by_state
from querator.daemon.jobs import resize
from querator.daemon.queue.partition import Partition
from querator.daemon.store import StorageError, Store
from querator.errors import InvalidRequest, QueratorError, RequestFailed
from querator.items import Placement, Queue
from querator.limits import CREATE_THREADS, LIST_LIMIT_DEFAULT, NS_PER_US
from querator.wire import messages

if TYPE_CHECKING:
    from querator.config_file import QueueConfig
    from querator.daemon.queue.logical import Logical
    from querator.daemon.service import Service

log = logging.getLogger("querator.queues")

DURATION_US_MAX = (1 << 63) // NS_PER_US - 1
SYSTEM_NAMESPACE = "_system"


async def create(service: Service, request: messages.QueueInfo, closed_for: str = "") -> None:
    """With `closed_for` nobody can use the partitions until whoever said so lets them be opened."""
    async with service.changing:
        queue = _new_queue(service, request, is_restored=bool(closed_for))
        placements = place(service, queue.name, queue.requested_partitions, first=0)
        stores = await create_files(service, placements)
        await service.blocking(service.catalog.add, queue, placements)
        logical = service.load(queue, placements)
        if closed_for:
            for partition in logical.partitions:
                partition.keep_closed(closed_for, queue.created_at)
        else:
            logical.open_new(stores, queue.created_at)
    logs.changed("queue created", queue.name, range(len(placements)))


def check_restored(service: Service, settings: messages.QueueInfo) -> list[Placement]:
    """Refuses what `create` would refuse for a restore; returns where it would put the partitions."""
    queue = _new_queue(service, settings, is_restored=True)
    return place(service, queue.name, queue.requested_partitions, first=0)


def _new_queue(service: Service, request: messages.QueueInfo, *, is_restored: bool) -> Queue:
    validation.queue_name(request.queue_name)
    if not is_restored:
        # A backup has timeouts as `queues.info` spells them, which may be longer than a client may write them.
        validation.timeout_lengths(request)
    lease_ns, expire_ns = validation.queue_texts(request)
    retention_ns = validation.retention(request.retention)
    if service.stopping:
        raise RequestFailed("service is shutting down")
    if request.queue_name in service.queues:
        raise InvalidRequest(f"invalid queue; '{request.queue_name}' already exists")
    validation.dead_queue(request.queue_name, request.dead_queue, service.queues)
    now = service.clock.now_us()
    queue = Queue(
        name=request.queue_name,
        namespace=request.namespace or SYSTEM_NAMESPACE,
        lease_timeout_ns=lease_ns,
        expire_timeout_ns=expire_ns,
        max_attempts=request.max_attempts,
        dead_queue=request.dead_queue,
        reference=request.reference,
        requested_partitions=request.requested_partitions,
        created_at=now,
        updated_at=now,
        retention_ns=retention_ns or 0,
    )
    validation.queue_values(queue)
    validation.new_timeouts(queue)
    validation.timeouts_agree(queue)
    return queue


def place(service: Service, queue: str, count: int, first: int) -> list[Placement]:
    """New partitions, numbered from `first`, spread over the storages by affinity."""
    storages = [storage for storage in service.config.storages if storage.name in service.storages]
    given = placement.shares([storage.affinity for storage in storages], count)
    if not given:
        raise RequestFailed("queue has no available partitions")
    names = [storage.name for storage, n in zip(storages, given, strict=True) for _ in range(n)]
    return [
        Placement(queue=queue, number=first + i, uuid=str(uuid.uuid4()), storage=name, since=service.clock.now_us())
        for i, name in enumerate(names)
    ]


async def create_files(service: Service, placements: list[Placement]) -> list[Store]:
    """Makes the files of new partitions, all of them or none; their stores are open."""

    def create_some(some: list[Placement]) -> list[Store]:
        return [service.storages[one.storage].create(one.uuid, one.queue) for one in some]

    await service.blocking(service.catalog.announce, placements)
    size = -(-len(placements) // CREATE_THREADS)
    shares = [placements[first : first + size] for first in range(0, len(placements), size)]
    made = await asyncio.gather(*(service.blocking(create_some, share) for share in shares), return_exceptions=True)
    for error in made:
        if isinstance(error, StorageError):
            await delete_leftovers(service)
            raise RequestFailed(f"partition cannot be created; {error}") from error
        if isinstance(error, BaseException):
            raise error
    return [store for stores in made if isinstance(stores, list) for store in stores]


async def create_configured(service: Service) -> None:
    """Queues that the config file names, unless they exist."""
    for wanted in service.config.queues:
        if wanted.name not in service.queues:
            try:
                await create(service, _as_request(wanted))
            except QueratorError as error:
                log.error(
                    "queue of the config file cannot be created", extra={"queue": wanted.name, "reason": str(error)}
                )


def _as_request(wanted: QueueConfig) -> messages.QueueInfo:
    return messages.QueueInfo(
        queue_name=wanted.name,
        lease_timeout=wanted.lease_timeout,
        expire_timeout=wanted.expire_timeout,
        max_attempts=wanted.max_attempts,
        dead_queue=wanted.dead_queue,
        reference=wanted.reference,
        requested_partitions=wanted.partitions,
        retention=wanted.retention,
    )


async def update(service: Service, request: messages.QueueInfo) -> None:
    validation.queue_name(request.queue_name)
    validation.timeout_lengths(request)
    lease_ns, expire_ns = validation.queue_texts(request)
    retention_ns = validation.retention(request.retention)
    async with service.changing:
        logical = service.find(request.queue_name)
        old = service.queues[request.queue_name]
        validation.dead_queue(request.queue_name, request.dead_queue, service.queues)
        queue = msgspec.structs.replace(
            old,
            lease_timeout_ns=lease_ns or old.lease_timeout_ns,
            expire_timeout_ns=expire_ns or old.expire_timeout_ns,
            max_attempts=request.max_attempts,
            dead_queue=request.dead_queue,
            reference=request.reference,
            requested_partitions=request.requested_partitions or old.requested_partitions,
            updated_at=service.clock.now_us(),
            retention_ns=old.retention_ns if retention_ns is None else retention_ns,
        )
        validation.queue_values(queue)
        validation.timeouts_agree(queue)
        count = queue.requested_partitions
        resizes = count != old.requested_partitions
        if resizes:
            resize.check(service, logical, count)
        if resizes and count > len(logical.partitions):
            await resize.grow(service, logical, queue)
        else:
            await service.blocking(service.catalog.save_queues, [queue])
        service.queues[queue.name] = queue
        logical.configure(queue)
        if resizes and count < len(logical.partitions):
            await resize.shrink(service, logical, count)
    logs.changed("queue updated", queue.name, details=_differences(old, queue))


def _differences(old: Queue, new: Queue) -> dict[str, str]:
    """Each setting that differs, as `old to new`, by its name on the wire."""
    before, after = msgspec.structs.asdict(describe(old)), msgspec.structs.asdict(describe(new))
    return {
        name: f"{before[name] or '-'} to {value or '-'}"
        for name, value in after.items()
        if value != before[name] and name != "updated_at"
    }


async def delete(service: Service, request: messages.QueuesDeleteRequest) -> None:
    name = request.queue_name
    validation.queue_name(name)
    _check_deletable(service, request)
    # Before the lock is taken: a job may be waiting for it.
    await service.jobs.abandon(name)
    async with service.changing:
        await _remove(service, _check_deletable(service, request))


async def remove(service: Service, logical: Logical) -> None:
    """Takes a queue back that a job has made and could not fill."""
    async with service.changing:
        if service.logicals.get(logical.queue.name) is logical:
            await _remove(service, logical)


async def _remove(service: Service, logical: Logical) -> None:
    """With the lock on what queues there are."""
    name = logical.queue.name
    changed = [
        msgspec.structs.replace(queue, dead_queue="", updated_at=service.clock.now_us())
        for queue in service.queues.values()
        if queue.dead_queue == name
    ]
    await service.blocking(service.catalog.remove, name, changed)
    for queue in changed:
        log.warning("dead queue is gone", extra={"queue": queue.name, "dead_queue": name})
        service.queues[queue.name] = queue
        service.logicals[queue.name].configure(queue)
    counts = count_by_state(*logical.partitions)
    del service.queues[name], service.logicals[name]
    logical.stop()
    await until_at_rest(service, logical)
    service.turns.remove(logical)
    await delete_leftovers(service)
    logs.changed("queue deleted", name, details=counts)


def _check_deletable(service: Service, request: messages.QueuesDeleteRequest) -> Logical:
    logical = service.find(request.queue_name)
    user = validation.user_of_dead_queue(request.queue_name, service.queues)
    if user and not request.force:
        raise InvalidRequest(f"invalid queue; '{request.queue_name}' is the dead_queue of '{user}'")
    return logical


async def until_at_rest(service: Service, logical: Logical) -> None:
    """Until nothing of a queue is being written or read any more."""
    await service.turns.until(lambda: not service.turns.is_busy(logical) and logical.is_at_rest())


async def delete_leftovers(service: Service) -> None:
    """Removes the files of partitions that the catalog no longer has, also those that a crash left behind."""
    gone = []
    for leftover in await service.blocking(service.catalog.leftovers):
        storage = service.storages.get(leftover.storage)
        if storage is None:
            continue
        try:
            await service.blocking(storage.delete, leftover.uuid)
            gone.append(leftover)
        except (StorageError, OSError) as error:
            # It is nobody's any more, so that it can wait for the next time.
            log.warning("file cannot be deleted yet", extra={"storage": leftover.storage, "reason": str(error)})
    if gone:
        await service.blocking(service.catalog.forget_leftovers, gone)


async def list_(service: Service, request: messages.QueuesListRequest) -> messages.QueuesListResponse:
    validation.list_limit(request.limit)
    validation.list_pivot(request.pivot)
    namespace = request.namespace or SYSTEM_NAMESPACE
    pivot = "" if validation.is_blank(request.pivot) else request.pivot
    found = sorted(
        (
            queue
            for queue in service.queues.values()
            if queue.namespace == namespace and _at_or_after(queue.name, pivot)
        ),
        key=lambda queue: queue.name.encode(),
    )
    return messages.QueuesListResponse(
        items=[_told(service, queue, request.extended) for queue in found[: request.limit or LIST_LIMIT_DEFAULT]]
    )


def _at_or_after(name: str, pivot: str) -> bool:
    return name.encode() >= pivot.encode()


async def info(service: Service, request: messages.QueuesInfoRequest) -> messages.QueueInfo:
    return _told(service, service.find(request.queue_name).queue, request.extended)


def _figures(service: Service, name: str) -> messages.QueueFigures:
    """From memory alone."""
    logical = service.logicals[name]
    now = service.clock.now_us()
    counts = item_calls.count_by_state(*logical.partitions)
    done = logical.recent.last_minute(now, logical.counters)
    oldest = item_calls.Statistics(logical).oldest_created_at
    return messages.QueueFigures(
        ready=counts["ready"],
        leased=counts["leased"],
        scheduled=counts["scheduled"],
        produced_last_minute=done.produced,
        completed_last_minute=done.completed,
        oldest_age="" if oldest is None else durations.text(max(0, now - oldest) * NS_PER_US),
    )


def describe(queue: Queue) -> messages.QueueInfo:
    return messages.QueueInfo(
        queue_name=queue.name,
        created_at=queue.created_at,
        updated_at=queue.updated_at,
        dead_queue=queue.dead_queue,
        reference=queue.reference,
        lease_timeout=durations.text(queue.lease_timeout_ns),
        expire_timeout=durations.text(queue.expire_timeout_ns),
        max_attempts=queue.max_attempts,
        requested_partitions=queue.requested_partitions,
        namespace=queue.namespace,
        retention=durations.text_days(queue.retention_ns) if queue.retention_ns else "",
    )


def _told(service: Service, queue: Queue, extended: bool) -> messages.QueueInfo:
    """Clients of the original service refuse an answer with a field that they do not know."""
    info = describe(queue)
    if extended:
        info.figures = _figures(service, queue.name)
    else:
        info.retention = ""
    return info


async def stats(service: Service, request: messages.QueueStatsRequest) -> messages.QueueStatsResponse:
    logical = service.find(request.queue_name)
    waiting = logical.waiting_requests()
    now = service.clock.now_us()
    return messages.QueueStatsResponse(
        queue_name=request.queue_name,
        logical_queues=[
            messages.QueueLogicalStats(
                produce_waiting=waiting["produce"],
                lease_waiting=waiting["lease"],
                complete_waiting=waiting["complete"],
                in_flight=sum(waiting.values()),
                partitions=[_partition_stats(partition, now) for partition in logical.partitions],
            )
        ],
    )


def _partition_stats(partition: Partition, now: int) -> messages.QueuePartitionStats:
    total = partition.total
    age_us = max(0, now - partition.created_sum // total) if total else 0
    leases = partition.leased.values()
    left_us = sum(lease.deadline - now for lease in leases) // len(leases) if leases else 0
    return messages.QueuePartitionStats(
        partition=partition.number,
        total=total,
        total_leased=partition.total_leased,
        failures=partition.failures,
        average_age=durations.text(age_us * NS_PER_US),
        average_leased_age=durations.text(min(left_us, DURATION_US_MAX) * NS_PER_US),
        scheduled=partition.scheduled_count,
    )


CALLS: dict[str, Callable[[Service, Any], Coroutine[Any, Any, Any]]] = {
    "queues.create": create,
    "queues.update": update,
    "queues.delete": delete,
    "queues.list": list_,
    "queues.info": info,
    "queue.stats": stats,
}
