"""Calls that list partitions and change their states: pause, resume, drain, offline, reload, accept-loss.

A change is saved in the catalog first. Then it takes effect in a pass of its own of the queue's Logical, so that no
request sees half of it. The answer comes when the state is reached. For the states see docs/adr/0037. Long
work is in `jobs/`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from querator import durations, times
from querator.daemon import logs
from querator.daemon.access import Caller, Right
from querator.daemon.admin.figures import count_by_state
from querator.daemon.admin.partition_access import (
    check_free,
    check_open,
    chosen_partitions,
    closed_partition,
    request_ids_in_file,
    save_state_after_reload,
    usable_storage,
)
from querator.daemon.admin.partition_files import file_name, file_sizes
from querator.daemon.engine import change, close_partition, open_partition
from querator.daemon.queue import Event, Logical, Partition, Standing, states
from querator.daemon.registry import Calls, CallsByCaller, Registry
from querator.daemon.store import StorageError
from querator.errors import Conflict, InvalidRequest, RequestFailed
from querator.items import Job, Placement, State
from querator.limits import NS_PER_US
from querator.wire import messages
from querator.wire.messages import PartitionStatus, Reply

log = logging.getLogger("querator.maintenance")

CATCHING_UP: Final = "takes no new items until its storage has caught up with what was produced"
STATE_CHANGES: Final = {
    Event.PAUSE: "partitions paused",
    Event.RESUME: "partitions resumed",
    Event.DRAIN: "partitions are draining",
    Event.OFFLINE: "partitions taken offline",
}


# -- state changes


async def pause(registry: Registry, request: messages.PartitionsPauseRequest) -> Reply:
    logical = registry.find(request.queue_name)
    partitions = chosen_partitions(registry, logical, request.partitions)
    resume_at = 0
    if request.for_:
        try:
            for_us = durations.parse(request.for_) // NS_PER_US
        except ValueError as error:
            raise InvalidRequest(f"for is invalid; {error} - expected format: 30s, 15m or 1h") from None
        if for_us <= 0:
            raise InvalidRequest("for is invalid; must be greater than zero")
        resume_at = registry.clock.now_us() + for_us
    return await _alter(registry, logical, partitions, Event.PAUSE, resume_at)


async def resume(registry: Registry, request: messages.PartitionsRequest) -> Reply:
    logical = registry.find(request.queue_name)
    return await _alter(registry, logical, chosen_partitions(registry, logical, request.partitions), Event.RESUME)


async def drain(registry: Registry, request: messages.PartitionsRequest) -> Reply:
    logical = registry.find(request.queue_name)
    return await _alter(registry, logical, chosen_partitions(registry, logical, request.partitions), Event.DRAIN)


async def offline(registry: Registry, request: messages.PartitionsRequest) -> Reply:
    logical = registry.find(request.queue_name)
    return await _alter(registry, logical, chosen_partitions(registry, logical, request.partitions), Event.OFFLINE)


async def _alter(
    registry: Registry, logical: Logical, partitions: list[Partition], event: Event, resume_at: int = 0
) -> Reply:
    """Changes the state of all partitions, or of none."""
    async with registry.altering[logical.queue.name]:
        if event is Event.OFFLINE:
            check_free(registry, partitions)
        check_open(partitions)
        changed: list[tuple[Partition, Placement]] = []
        for partition in partitions:
            old = partition.placement
            target = states.after(
                event, Standing(old.requested, bool(partition.health.error)), partition.number
            ).requested
            if target is not old.requested or resume_at:
                since = old.since if target is old.requested else registry.clock.now_us()
                new = msgspec.structs.replace(old, requested=target, since=since, resume_at=resume_at, reason="")
                changed.append((partition, new))
        if changed:
            await registry.blocking(registry.catalog.save_placements, [placement for _, placement in changed])

        def run(now_us: int) -> None:
            for partition, placement in changed:
                partition.change_placement(placement)

        await change(logical, [], run)
        if event is Event.OFFLINE:
            still_open = [partition for partition in partitions if logical.files.has_file(partition)]
            reasons = await asyncio.gather(*(close_partition(logical, partition) for partition in still_open))
            for partition in still_open:
                await registry.blocking(_note_offline, registry, partition)
            if any(reasons):
                raise RequestFailed("partition cannot be closed; " + ", ".join(filter(None, reasons)))
    if changed:
        numbers = [partition.number for partition, _ in changed]
        resumes = times.text(resume_at) if resume_at else ""
        logs.changed(STATE_CHANGES[event], logical.queue.name, numbers, {"resume_at": resumes})
    return Reply(code=200, message=_warning(logical) if changed else "")


def _warning(logical: Logical) -> str:
    """A warning if no partition takes or gives items any more, or empty."""
    if any(p.allows.produce and p.allows.lease for p in logical.partitions):
        return ""
    name = logical.queue.name
    takes = any(p.allows.produce for p in logical.partitions)
    gives = any(p.allows.lease for p in logical.partitions)
    if not takes and not gives:
        return f"no partition of queue '{name}' takes or gives items now; clients wait until one does"
    if not takes:
        return f"no partition of queue '{name}' takes new items now; producers wait until one does"
    return ""


# -- what the catalog keeps of an offline partition


def _note_offline(registry: Registry, partition: Partition) -> None:
    """Blocking. Saves counts and request ids of an offline partition, because its file may not be read until it is
    back."""
    uuid, counts = partition.placement.uuid, partition.durable_counts
    try:
        registry.catalog.save_offline(uuid, counts, request_ids_in_file(registry, partition.placement))
    except StorageError as error:
        log.warning(
            "the request ids of a partition that goes offline cannot be read",
            extra={"queue": partition.placement.queue, "partition": partition.number, "reason": str(error)},
        )
        registry.catalog.save_offline(uuid, counts, None)
    else:
        partition.keys_noted()


# -- reload


async def reload(registry: Registry, request: messages.PartitionsReloadRequest) -> Reply:
    """With `keep_states`, each partition keeps its requested state, and offline partitions are skipped."""
    logical = registry.find(request.queue_name)
    partitions = chosen_partitions(registry, logical, request.partitions)
    if request.keep_states:
        partitions = [one for one in partitions if one.placement.requested is not State.UNAVAILABLE]
    return await _reload(registry, logical, partitions, keep_states=request.keep_states)


async def reload_queue(registry: Registry, request: messages.QueueReloadRequest) -> Reply:
    logical = registry.find(request.queue_name)
    return await _reload(registry, logical, list(logical.partitions))


async def _reload(
    registry: Registry, logical: Logical, partitions: list[Partition], *, keep_states: bool = False
) -> Reply:
    """Reloads one partition after the other. A partition that cannot be read ends in error and does not stop the
    rest."""
    reasons = []
    reloaded_ones = []
    with logical.reload():
        check_free(registry, partitions)
        try:
            for partition in partitions:
                reason = await _reload_one(registry, logical, partition, keep_states)
                if reason:
                    reasons.append(f"partition '{partition.number}': {reason}")
                else:
                    reloaded_ones.append(partition)
        finally:
            if reloaded_ones:
                numbers = [partition.number for partition in reloaded_ones]
                logs.changed("partitions reloaded", logical.queue.name, numbers, count_by_state(*reloaded_ones))
    if reasons:
        raise RequestFailed("reload failed; " + ", ".join(reasons))
    return Reply(code=200)


async def _reload_one(registry: Registry, logical: Logical, partition: Partition, keep_states: bool) -> str:
    async with registry.altering[logical.queue.name]:
        if keep_states and partition.placement.requested is State.UNAVAILABLE:
            return ""  # it was taken offline while other partitions were reloaded
        check_free(registry, [partition])
        new = partition.placement if keep_states else await save_state_after_reload(registry, partition)

        def run(now_us: int) -> None:
            partition.change_placement(new)
            partition.keep_closed("a reload", now_us)

        await change(logical, [], run)
        try:
            # If closing fails, opening releases the file; the journal has what the file lacks.
            await close_partition(logical, partition)
            return await open_partition(logical, partition)
        finally:
            partition.allow_opening()


# -- loss


async def accept_loss(
    registry: Registry, request: messages.PartitionsAcceptLossRequest
) -> messages.PartitionsAcceptLossResponse:
    logical = registry.find(request.queue_name)
    partition = registry.partition(logical, request.partition)
    check_free(registry, [partition])
    storage = await usable_storage(registry, partition.placement.storage)
    uuid = partition.placement.uuid
    try:
        loss = await registry.blocking(storage.loss, uuid)
        if loss is None:
            which = f"partition '{partition.number}' of queue '{logical.queue.name}'"
            raise Conflict(f"loss cannot be accepted; {which} has lost nothing")
        if not request.dry_run:
            async with closed_partition(registry, logical, partition, "accepting a loss"):
                loss = await registry.blocking(storage.accept_loss, uuid, logical.queue.name)
            logs.changed("loss accepted", logical.queue.name, [partition.number], loss._asdict())
    except StorageError as error:
        raise Conflict(f"loss cannot be accepted; {error}") from error
    return messages.PartitionsAcceptLossResponse(**loss._asdict())


# -- list


async def list_(
    registry: Registry, request: messages.PartitionsListRequest, caller: Caller
) -> messages.PartitionsListResponse:
    if request.queue_name:
        logicals = [registry.find(request.queue_name)]
    else:
        shown = [name for name in registry.logicals if caller.may(Right.VIEW, name)]
        logicals = [registry.logicals[name] for name in sorted(shown, key=str.encode)]
    found = [(logical, partition) for logical in logicals for partition in logical.partitions]
    placements = [partition.placement for _, partition in found]
    bytes_ = await registry.blocking(file_sizes, registry, placements)
    items = [
        describe(partition, size, registry.jobs.on(logical.queue.name, partition.number))
        for (logical, partition), size in zip(found, bytes_, strict=True)
    ]
    for item in items:
        item.reason = caller.readable(item.reason)
    return messages.PartitionsListResponse(items=items)


def describe(partition: Partition, size_bytes: int, job: Job | None) -> PartitionStatus:
    placement, health, counts = partition.placement, partition.health, partition.counts
    state = partition.reported_state
    since, reason = max(placement.since, health.recovered_at), placement.reason
    if partition.blocked:
        since, reason = health.shortage_since or health.error_since or since, partition.blocked
    elif partition.closed_for:
        since, reason = partition.closed_since, f"closed for {partition.closed_for}"
    elif state is not placement.requested:
        reason = "being opened"
    elif partition.store is not None:
        reason = reason or partition.trouble or (CATCHING_UP if health.congested else "")
    return PartitionStatus(
        queue_name=placement.queue,
        partition=partition.number,
        storage=placement.storage,
        state=str(state),
        requested_state=str(placement.requested),
        reason=reason,
        since=since or None,
        resume_at=placement.resume_at or None,
        total=counts.total,
        leased=counts.leased,
        scheduled=counts.scheduled,
        drained=state is State.DRAINING and partition.is_empty,
        bytes_=size_bytes,
        job_id=job.job_id if job else "",
        file=file_name(placement),
    )


CALLS_BY_CALLER: CallsByCaller = {"partitions.list": list_}
CALLS: Calls = {
    "partitions.pause": pause,
    "partitions.resume": resume,
    "partitions.drain": drain,
    "partitions.offline": offline,
    "partitions.reload": reload,
    "partitions.accept_loss": accept_loss,
    "queue.reload": reload_queue,
}
