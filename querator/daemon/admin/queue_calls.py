"""Calls that create, change, remove and list queues: queues.*, and queue.stats."""

from __future__ import annotations

import logging

import msgspec

from querator import durations
from querator.config_file import QueueConfig
from querator.daemon import logs, validation
from querator.daemon.access import Caller, Right
from querator.daemon.admin import partition_files, resizing
from querator.daemon.admin.figures import count_by_state
from querator.daemon.queue import Logical, Partition
from querator.daemon.registry import Calls, CallsByCaller, Registry
from querator.errors import InvalidRequest, QueratorError
from querator.items import Placement, Queue
from querator.limits import LIST_LIMIT_DEFAULT, NS_PER_US, WAITING_CLIENTS_LISTED_MAX
from querator.wire import messages

log = logging.getLogger("querator.queues")

_DURATION_US_MAX = (1 << 63) // NS_PER_US - 1
SYSTEM_NAMESPACE = "_system"


async def create(registry: Registry, request: messages.QueueInfo, caller: Caller) -> None:
    _check_dead_queue_user(registry, request, caller)
    await create_queue(registry, request)


def _check_dead_queue_user(registry: Registry, request: messages.QueueInfo, caller: Caller) -> None:
    """Denies a request whose refusal would name a queue that the caller may not see."""
    user = validation.user_of_dead_queue(request.queue_name, registry.queues)
    if request.dead_queue and user:
        registry.access.check(caller, Right.VIEW, [user])


async def create_queue(registry: Registry, request: messages.QueueInfo, closed_for: str = "") -> None:
    """Creates a queue. With `closed_for`, its partitions stay closed until they may be opened."""
    async with registry.changing:
        queue = _new_queue(registry, request, is_restored=bool(closed_for))
        placements = partition_files.place(registry, queue.name, queue.requested_partitions, first=0)
        stores = await partition_files.create_files(registry, placements)
        await registry.blocking(registry.catalog.add, queue, placements)
        logical = registry.load(queue, placements)
        if closed_for:
            for partition in logical.partitions:
                partition.keep_closed(closed_for, queue.created_at)
        else:
            logical.open_new(stores, queue.created_at)
    logs.changed("queue created", queue.name, range(len(placements)))


def check_restorable(registry: Registry, settings: messages.QueueInfo) -> list[Placement]:
    """Refuses what `create` would refuse for a restore. Returns the placements that it would choose."""
    queue = _new_queue(registry, settings, is_restored=True)
    return partition_files.place(registry, queue.name, queue.requested_partitions, first=0)


def _new_queue(registry: Registry, request: messages.QueueInfo, *, is_restored: bool) -> Queue:
    validation.queue_name(request.queue_name)
    if not is_restored:
        # A backup has timeouts as `queues.info` prints them, which may be longer than the texts a client may send.
        validation.timeout_lengths(request)
    lease_ns, expire_ns = validation.queue_texts(request)
    retention_ns = validation.retention(request.retention)
    registry.check_running()
    if request.queue_name in registry.queues:
        raise InvalidRequest(f"invalid queue; '{request.queue_name}' already exists")
    validation.dead_queue(request.queue_name, request.dead_queue, registry.queues)
    now = registry.clock.now_us()
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


async def create_configured(registry: Registry) -> None:
    """Creates the queues of the config file that do not exist yet."""
    for wanted in registry.config.queues:
        if wanted.name not in registry.queues:
            try:
                await create_queue(registry, _as_request(wanted))
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


async def update(registry: Registry, request: messages.QueueInfo, caller: Caller) -> None:
    _check_dead_queue_user(registry, request, caller)
    validation.queue_name(request.queue_name)
    validation.timeout_lengths(request)
    lease_ns, expire_ns = validation.queue_texts(request)
    retention_ns = validation.retention(request.retention)
    async with registry.changing:
        logical = registry.find(request.queue_name)
        old = registry.queues[request.queue_name]
        validation.dead_queue(request.queue_name, request.dead_queue, registry.queues)
        queue = msgspec.structs.replace(
            old,
            lease_timeout_ns=lease_ns or old.lease_timeout_ns,
            expire_timeout_ns=expire_ns or old.expire_timeout_ns,
            max_attempts=request.max_attempts,
            dead_queue=request.dead_queue,
            reference=request.reference,
            requested_partitions=request.requested_partitions or old.requested_partitions,
            updated_at=registry.clock.now_us(),
            retention_ns=old.retention_ns if retention_ns is None else retention_ns,
        )
        validation.queue_values(queue)
        validation.timeouts_agree(queue)
        count = queue.requested_partitions
        resizes = count != old.requested_partitions
        if resizes:
            resizing.check(registry, logical, count)
        if resizes and count > len(logical.partitions):
            await resizing.grow(registry, logical, queue)
        else:
            await registry.blocking(registry.catalog.save_queues, [queue])
        registry.queues[queue.name] = queue
        logical.configure(queue)
        if resizes and count < len(logical.partitions):
            await resizing.shrink(registry, logical, count)
    logs.changed("queue updated", queue.name, details=_differences(old, queue))


def _differences(old: Queue, new: Queue) -> dict[str, str]:
    """Each setting that differs, as `old to new`, by its name on the wire."""
    before, after = msgspec.structs.asdict(queue_info(old)), msgspec.structs.asdict(queue_info(new))
    return {
        name: f"{before[name] or '-'} to {value or '-'}"
        for name, value in after.items()
        if value != before[name] and name != "updated_at"
    }


async def delete(registry: Registry, request: messages.QueuesDeleteRequest, caller: Caller) -> None:
    name = request.queue_name
    validation.queue_name(name)
    _check_deletable(registry, request, caller)
    # Before the lock is taken: a job may be waiting for it.
    await registry.jobs.abandon(name)
    async with registry.changing:
        await _remove(registry, _check_deletable(registry, request, caller))


async def remove_queue(registry: Registry, logical: Logical) -> None:
    """Removes a queue that a restore created and could not fill."""
    async with registry.changing:
        if registry.logicals.get(logical.queue.name) is logical:
            await _remove(registry, logical)


async def _remove(registry: Registry, logical: Logical) -> None:
    """Removes a queue. The caller holds the lock `changing`."""
    name = logical.queue.name
    changed = [
        msgspec.structs.replace(queue, dead_queue="", updated_at=registry.clock.now_us())
        for queue in registry.queues.values()
        if queue.dead_queue == name
    ]
    await registry.blocking(registry.catalog.remove, name, changed)
    for queue in changed:
        log.warning("dead queue is gone", extra={"queue": queue.name, "dead_queue": name})
        registry.queues[queue.name] = queue
        registry.logicals[queue.name].configure(queue)
    counts = count_by_state(*logical.partitions)
    del registry.queues[name], registry.logicals[name]
    logical.stop()
    await until_at_rest(registry, logical)
    registry.turns.remove(logical)
    await partition_files.delete_leftovers(registry)
    logs.changed("queue deleted", name, details=counts)


def _check_deletable(registry: Registry, request: messages.QueuesDeleteRequest, caller: Caller) -> Logical:
    logical = registry.find(request.queue_name)
    # Deleting a dead queue changes the queues that use it.
    users = [queue.name for queue in registry.queues.values() if queue.dead_queue == request.queue_name]
    registry.access.check(caller, Right.OPERATE, users)
    user = validation.user_of_dead_queue(request.queue_name, registry.queues)
    if user and not request.force:
        raise InvalidRequest(f"invalid queue; '{request.queue_name}' is the dead_queue of '{user}'")
    return logical


async def until_at_rest(registry: Registry, logical: Logical) -> None:
    """Waits until no write and no read of the queue is under way."""
    await registry.turns.until(lambda: not registry.turns.is_busy(logical) and logical.is_at_rest())


async def list_(registry: Registry, request: messages.QueuesListRequest, caller: Caller) -> messages.QueuesListResponse:
    validation.list_limit(request.limit)
    validation.list_pivot(request.pivot)
    namespace = request.namespace or SYSTEM_NAMESPACE
    pivot = "" if validation.is_blank(request.pivot) else request.pivot
    found = sorted(
        (
            queue
            for queue in registry.queues.values()
            if queue.namespace == namespace and _at_or_after(queue.name, pivot) and caller.may(Right.VIEW, queue.name)
        ),
        key=lambda queue: queue.name.encode(),
    )
    return messages.QueuesListResponse(
        items=[_for_client(registry, queue, request.extended) for queue in found[: request.limit or LIST_LIMIT_DEFAULT]]
    )


def _at_or_after(name: str, pivot: str) -> bool:
    return name.encode() >= pivot.encode()


async def info(registry: Registry, request: messages.QueuesInfoRequest) -> messages.QueueInfo:
    logical = registry.find(request.queue_name)
    info = _for_client(registry, logical.queue, request.extended)
    if info.figures is not None:
        info.figures.waiting_clients = logical.waiting_clients(WAITING_CLIENTS_LISTED_MAX)
    return info


def _figures(registry: Registry, name: str) -> messages.QueueFigures:
    """From memory alone."""
    logical = registry.logicals[name]
    now = registry.clock.now_us()
    counts = count_by_state(*logical.partitions)
    done = logical.last_minute(now)
    oldest = logical.oldest_created_at()
    return messages.QueueFigures(
        ready=counts["ready"],
        leased=counts["leased"],
        scheduled=counts["scheduled"],
        produced_last_minute=done.produced,
        completed_last_minute=done.completed,
        oldest_age="" if oldest is None else durations.text(max(0, now - oldest) * NS_PER_US),
    )


def queue_info(queue: Queue) -> messages.QueueInfo:
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


def _for_client(registry: Registry, queue: Queue, extended: bool) -> messages.QueueInfo:
    """Adds the fields that the original service lacks only on request, because existing clients refuse them."""
    info = queue_info(queue)
    if extended:
        info.figures = _figures(registry, queue.name)
    else:
        info.retention = ""
    return info


async def stats(registry: Registry, request: messages.QueueStatsRequest) -> messages.QueueStatsResponse:
    logical = registry.find(request.queue_name)
    waiting = logical.waiting_requests()
    now = registry.clock.now_us()
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
    counts = partition.counts
    total = counts.total
    age_us = max(0, now - counts.created_sum // total) if total else 0
    leases = partition.contents.leases
    left_us = leases.time_left(now) // leases.count if leases.count else 0
    return messages.QueuePartitionStats(
        partition=partition.number,
        total=total,
        total_leased=counts.leased,
        failures=partition.failures,
        average_age=durations.text(age_us * NS_PER_US),
        average_leased_age=durations.text(min(left_us, _DURATION_US_MAX) * NS_PER_US),
        scheduled=counts.scheduled,
    )


CALLS: Calls = {
    "queues.info": info,
    "queue.stats": stats,
}
CALLS_BY_CALLER: CallsByCaller = {
    "queues.create": create,
    "queues.update": update,
    "queues.delete": delete,
    "queues.list": list_,
}
