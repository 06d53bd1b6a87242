"""The calls of one daemon: the service checks a request, finds its queue, and submits it to the queue's Logical.

Calls on the hot path (produce, lease, complete, retry, extend) are answered by the Logical through a callback, without
a task. All other calls are coroutines in `admin/` and `jobs/`. The service also starts and stops the queues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from querator import durations, limits
from querator.clock import Clock, ManualClock, monotonic_ns
from querator.config import DaemonConfig
from querator.daemon import admin, health, jobs, logs, metrics, trends, validation
from querator.daemon.access import Caller, Right
from querator.daemon.archive import (
    READS,
    AnswerGate,
    ArchiveRole,
    Promotion,
    Shipper,
    StandingBy,
    bases,
    restoring,
    stop_following,
)
from querator.daemon.catalog import Catalog
from querator.daemon.engine import Turns, Upkeep
from querator.daemon.queue import (
    EXACT_PREFIXES,
    Arrival,
    Complete,
    Extend,
    LeaseItems,
    Logical,
    Move,
    Produce,
    Respond,
    Retry,
    key_of,
)
from querator.daemon.registry import SHUTTING_DOWN, Calls, CallsByCaller, Registry
from querator.errors import Conflict, InternalError, InvalidRequest, QueratorError, RequestFailed
from querator.items import Placement, Room, State
from querator.limits import MOVE_TIMEOUT_NS, NS_PER_US, PURPOSE_CHARACTERS_MAX, SHUTDOWN_SECONDS_MAX
from querator.wire import messages

log = logging.getLogger("querator.service")

Abandon = Callable[[], None]

_enqueue_at_of = attrgetter("enqueue_at")
_UNTIMED = {None}


class Service:
    def __init__(self, config: DaemonConfig, clock: Clock) -> None:
        self.registry = Registry(config, clock)
        self.registry.jobs = jobs.Jobs(self.registry, jobs.KINDS)
        self.registry.trends = trends.Trends(config.data / "history", clock)
        self.lost_archive: Callable[[QueratorError], None] = lambda error: None
        """Called when another daemon owns the archive, or when it is damaged."""
        self.archive = ArchiveRole(self.registry)
        self._gate: AnswerGate | None = None
        self._addresses: Sequence[str] = ()
        self._logicals = self.registry.logicals
        self._partition = self.registry.partition
        self._hot: dict[str, Callable[[Any, Respond, Caller], Abandon | None]] = {}
        self._calls: Calls = {}
        self._calls_by_caller: CallsByCaller = {}

    # -- start and stop

    async def start(self, addresses: Sequence[str] = ()) -> None:
        """Opens the catalog, the storages and the queues, and resumes jobs. A partition that cannot be opened goes into
        error and does not stop the others. Raises ConfigError if the daemon must not listen on these TCP addresses."""
        self._addresses = addresses
        await self.registry.blocking(_check_directory, self.registry)
        if self.registry.config.standby:
            role = StandingBy(self.registry, self._serve, lambda error: self.lost_archive(error))
            self.archive.standing_by = role
            await role.start(addresses)
            self._offer_reads()
        else:
            await self._serve(None)

    def _offer_reads(self) -> None:
        """Makes the calls available that a standby answers."""
        self._calls = {name: call for name, call in {**admin.CALLS, **trends.CALLS}.items() if name in READS}
        by_caller = {**admin.CALLS_BY_CALLER, **jobs.CALLS_BY_CALLER, **trends.CALLS_BY_CALLER}
        self._calls_by_caller = {name: call for name, call in by_caller.items() if name in READS}

    def _offer_calls(self) -> None:
        """Makes all calls available."""
        self._hot = {
            "queue.produce": self._produce,
            "queue.lease": self._lease,
            "queue.complete": self._complete,
            "queue.retry": self._retry,
            "queue.release": self._retry,
            "queue.extend": self._extend,
        }
        self._calls = {
            **admin.CALLS,
            **jobs.CALLS,
            **trends.CALLS,
            "clock.advance": _advance_clock,
            "clock.set": _set_clock,
        }
        self._calls_by_caller = {**admin.CALLS_BY_CALLER, **jobs.CALLS_BY_CALLER, **trends.CALLS_BY_CALLER}

    async def _serve(self, promotion: Promotion | None) -> None:
        registry = self.registry
        self._calls, self._calls_by_caller = {}, {}
        shipper = registry.shipper = _shipper_of(registry, self._lose_archive)
        if shipper is not None:
            if promotion is not None:
                shipper.before, shipper.owner = promotion.before, promotion.owner
            config = registry.config
            await registry.blocking(shipper.claim, str(config.http or ""), config.claim, config.start_over)
        await registry.blocking(stop_following, registry.config.data)
        catalog = registry.catalog = await registry.blocking(_opened_catalog, registry, promotion is not None)
        await registry.blocking(registry.access.load, catalog)
        registry.access.check_addresses(self._addresses, has_tls=registry.config.tls is not None)
        await registry.blocking(registry.storages.open_all)
        if shipper is not None:
            shipper.begin(catalog, registry.storages)
        registry.turns = Turns(registry.clock, registry.storages.values(), self._deliver)
        registry.upkeep = Upkeep(registry.turns, registry.config.limits.unapplied_bytes)
        if shipper is not None:
            self._gate = registry.turns.gate = AnswerGate(shipper, registry.turns, registry.storages)
            registry.turns.gather_seconds = limits.ARCHIVE_GATHER_SECONDS if shipper.config.wait else 0.0
        queues = await registry.blocking(catalog.queues)
        registry.queues = {queue.name: queue for queue in queues}
        placements: dict[str, list[Placement]] = {}
        for placement in await registry.blocking(catalog.placements):
            placements.setdefault(placement.queue, []).append(placement)
        known = {placement.uuid for some in placements.values() for placement in some}
        registry.storages.log_unknown_files(known)
        await registry.jobs.load()
        counts = await registry.blocking(catalog.counts)
        for queue in queues:
            logical = registry.load(queue, placements.get(queue.name, []))
            for partition in logical.partitions:
                uuid = partition.placement.uuid
                if partition.placement.requested is State.UNAVAILABLE and uuid in counts:
                    noted = await registry.blocking(catalog.offline_keys, uuid, EXACT_PREFIXES)
                    logical.recall(partition, counts[uuid], noted)
        registry.jobs.prepare()
        await registry.until_opened(*registry.logicals.values())
        if shipper is not None:
            registry.run(bases.watch(registry, shipper))
        await admin.delete_leftovers(registry)
        await admin.create_configured(registry)
        registry.jobs.resume()
        await admin.resume_shrinking(registry)
        registry.run(jobs.watch_free_space(registry))
        registry.run(registry.trends.watch(registry))
        registry.run(registry.access.keep_time())
        registry.run(_checkpoint_catalog(registry))
        # Last, because a standby's connections are open: a call must meet the tokens and queues that were just loaded.
        self._offer_calls()

    def _lose_archive(self, error: QueratorError) -> None:
        """Stops all acknowledgements, because another daemon owns the archive, or because it is damaged."""
        if self._gate is not None:
            self._gate.halt(error.message)
        self.lost_archive(error)

    async def stop(self) -> None:
        """Answers every waiting client, then closes all files. Waits only for a bounded time if a storage hangs."""
        registry = self.registry
        registry.refuse_calls()
        if self.archive.standby is not None:
            await self.archive.standby.stop()
            await registry.access.audit.close()
            return
        await registry.jobs.stop()
        for logical in registry.logicals.values():
            logical.stop()
        await registry.end_tasks()
        try:
            await asyncio.wait_for(registry.turns.drain(), SHUTDOWN_SECONDS_MAX / 2)
        except TimeoutError:
            log.warning("a storage did not finish its writes in time; what was acknowledged is durable")
        if self._gate is not None:
            self._gate.close()
        registry.upkeep.close()
        registry.turns.close()
        for storage in registry.storages.values():
            await registry.blocking(storage.close)
        await registry.access.save_last_used()
        await registry.access.audit.close()
        if registry.shipper is not None:
            await registry.blocking(registry.shipper.stop)
        await registry.blocking(registry.catalog.close)

    # -- calls

    def call(
        self, route: str, request: Any, respond: Respond, caller: Caller, is_alone: bool = False
    ) -> Abandon | None:
        """Starts a call. `http` has already checked that the caller may make it."""
        hot = self._hot.get(route)
        try:
            if hot is not None:
                if not is_alone:
                    return hot(request, respond, caller)
                turns = self.registry.turns
                turns.hold()
                try:
                    return hot(request, respond, caller)
                finally:
                    turns.run_held()
            respond = _readable_errors(respond, caller)
            if (by_caller := self._calls_by_caller.get(route)) is not None:
                work = by_caller(self.registry, request, caller)
            elif (call := self._calls.get(route)) is not None:
                work = call(self.registry, request)
            else:
                self.registry.check_serving()
                raise InternalError(f"{route} is not served")
            self.registry.run(work if route in READS else self._acknowledged(work), respond)
        except QueratorError as error:
            respond(error)
        return None

    async def _acknowledged(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of a change, once the archive allows to acknowledge it."""
        result = await work
        if self._gate is not None:
            await self._gate.until_acknowledged()
        return result

    # -- items

    def _find(self, name: str) -> Logical:
        logical = self._logicals.get(name)
        return self.registry.find(name) if logical is None or self.registry.stopping else logical

    # Only a lease is abandoned: a client that is gone must not get items. Every other call takes effect in any case.

    def _produce(self, request: messages.QueueProduceRequest, respond: Respond, caller: Caller) -> None:
        logical = self._find(request.queue_name)
        timeout_ns = validation.produce_timeout(request.request_timeout)
        items = request.items
        validation.produce_items(len(items))
        timed = items[0].enqueue_at is not None if len(items) == 1 else set(map(_enqueue_at_of, items)) != _UNTIMED
        if timed:
            for item in items:
                validation.year("enqueue_at", item.enqueue_at)
        key = ""
        if request.request_id:
            validation.request_id(request.request_id)
            key = key_of(request.request_id)
        produce = Produce(respond, monotonic_ns() + timeout_ns, items, timed, key)
        if request.first_attempt:
            produce.is_first_attempt = True
        logical.submit(produce)

    def _lease(self, request: messages.QueueLeaseRequest, respond: Respond, caller: Caller) -> Abandon:
        logical = self._find(request.queue_name)
        complete_ids = request.complete_ids
        timeout_ns = validation.lease(request.request_timeout, request.client_id, request.batch_size, len(complete_ids))
        deadline_ns = monotonic_ns() + timeout_ns
        completes = Complete(_ignore, 0, complete_ids) if complete_ids else None
        lease = LeaseItems(respond, deadline_ns, request.client_id, request.batch_size, completes, caller.token)
        logical.submit(lease)
        return partial(logical.abandon, lease)

    def _complete(self, request: messages.QueueCompleteRequest, respond: Respond, caller: Caller) -> None:
        logical = self._find(request.queue_name)
        if request.partition:  # every queue has partition 0
            self._partition(logical, request.partition)
        validation.complete(request.request_timeout, len(request.ids))
        logical.submit(Complete(respond, request.partition, request.ids))

    def _retry(self, request: messages.QueueRetryRequest, respond: Respond, caller: Caller) -> None:
        logical = self._find(request.queue_name)
        if request.partition:  # every queue has partition 0
            self._partition(logical, request.partition)
        validation.retry_items(len(request.items))
        for item in request.items:
            validation.year("retry_at", item.retry_at)
            validation.reason(item.reason)

        def logged(result: Any) -> None:
            if retry.handed_back and (result is None or isinstance(result, InvalidRequest)):
                purpose = request.purpose[:PURPOSE_CHARACTERS_MAX]
                details = {"items": retry.handed_back, "purpose": purpose}
                logs.changed("items handed back", logical.queue.name, details=details)
            respond(result)

        retry = Retry(logged if request.purpose else respond, request.partition, request.items)
        logical.submit(retry)

    def _extend(self, request: messages.QueueExtendRequest, respond: Respond, caller: Caller) -> None:
        logical = self._find(request.queue_name)
        if request.partition:  # every queue has partition 0
            self._partition(logical, request.partition)
        validation.ids(len(request.ids))
        timeout_ns = validation.lease_timeout(request.lease_timeout)

        def extended(result: Any) -> None:
            if not isinstance(result, QueratorError):
                result = messages.QueueExtendResponse(
                    items=[messages.QueueExtendItem(id=lease.id, lease_deadline=lease.deadline) for lease in result]
                )
            respond(result)

        logical.submit(Extend(extended, request.partition, request.ids, timeout_ns))

    # -- dead letters

    def _deliver(self, source: Logical, move: Move) -> None:
        """Produces the items of a move to its target queue, like any client."""
        target = self.registry.logicals.get(move.target)

        def ended(result: Any) -> None:
            source.end_move(move, result)

        if target is None:
            ended(RequestFailed(f"queue '{move.target}' is gone"))
            return
        deadline_ns = monotonic_ns() + MOVE_TIMEOUT_NS
        target.submit(Arrival(ended, deadline_ns, move.copies, move.keys, move.uncertain))

    # -- health and metrics

    def health(self, caller: Caller) -> tuple[bool, str]:
        """Whether the daemon is healthy, and what is wrong. A healthy daemon with a text has a warning.

        The text names only partitions of queues that the caller may see.
        """
        registry = self.registry
        if registry.stopping:
            return False, SHUTTING_DOWN
        if self.archive.standby is not None:
            return self.archive.standby.health()
        can_acknowledge, trouble = self.archive.trouble()
        if not can_acknowledge:
            return False, trouble
        warnings = [f"storage '{name}' cannot be used" for name in registry.storages.unusable()]
        warnings += [trouble] if trouble else []
        warnings += registry.upkeep.storage_warnings()
        if registry.access.audit.failure:
            warnings.append("the audit log cannot be written")
        partitions = [partition for logical in registry.logicals.values() for partition in logical.partitions]
        return health.judge(partitions, warnings, lambda queue: caller.may(Right.VIEW, queue))

    def rooms(self) -> Mapping[str, Room]:
        return {} if self.archive.is_standby else self.registry.upkeep.rooms()

    def statistics(self) -> Mapping[str, metrics.QueueStatistics]:
        return {name: admin.statistics_of(logical) for name, logical in self.registry.logicals.items()}


def _readable_errors(respond: Respond, caller: Caller) -> Respond:
    """Removes paths of the daemon's machine from errors, unless the caller is an admin."""

    def readable(result: Any) -> None:
        # Other errors are about the request, and repeat parts of it.
        if isinstance(result, RequestFailed | Conflict):
            result = type(result)(caller.readable(result.message))
        respond(result)

    return readable


def _check_directory(registry: Registry) -> None:
    """Blocking. Refuses a directory on which a daemon cannot serve, before it takes an archive from another daemon."""
    data = registry.config.data
    if restoring.is_unfinished(data):
        raise Conflict(
            f"a restore to {data} was interrupted", hint="repeat the same querator archive restore command to finish it"
        )
    if registry.config.archive is not None and not registry.config.standby:
        if (data / "catalog.duckdb").exists():
            _opened_catalog(registry, is_copied=False).close()
        else:
            registry.storages.check_catalog(False)


def _opened_catalog(registry: Registry, is_copied: bool) -> Catalog:
    """Blocking. Refuses to start if the catalog was lost, before an archive takes an empty one for what the daemon has.
    `is_copied` says that the catalog has just come from an archive."""
    path = registry.config.data / "catalog.duckdb"
    registry.storages.check_catalog(path.exists())
    catalog = Catalog(path)
    try:
        registry.storages.check_catalog(is_copied or bool(catalog.placements() or catalog.leftovers()))
    except RequestFailed:
        catalog.close()  # its log would not fit the catalog that is put back
        raise
    return catalog


def _shipper_of(registry: Registry, lose: Callable[[QueratorError], None]) -> Shipper | None:
    """What copies everything to the archive; None if there is none. `lose` is called when the archive is lost."""
    config, loop = registry.config, asyncio.get_running_loop()
    if config.archive is None:
        return None

    def failed(error: QueratorError) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may have ended
            loop.call_soon_threadsafe(lose, error)

    directories = [storage.directory for storage in config.storages]
    return Shipper(config.archive, config.data, directories, registry.clock, failed)


async def _checkpoint_catalog(registry: Registry) -> None:
    """Writes changes of the catalog into its file, until cancelled."""
    while True:
        await asyncio.sleep(limits.CATALOG_CHECKPOINT_SECONDS)
        await registry.blocking(registry.catalog.checkpoint)


def _ignore(result: Any) -> None:
    pass


# -- the test clock


async def _advance_clock(registry: Registry, request: messages.ClockAdvanceRequest) -> messages.ClockResponse:
    try:
        by_us = durations.parse(request.by) // NS_PER_US
    except ValueError as error:
        raise InvalidRequest(f"by is invalid; {error}") from None
    return await _move_clock(registry, registry.clock.now_us() + by_us)


async def _set_clock(registry: Registry, request: messages.ClockSetRequest) -> messages.ClockResponse:
    if request.now is None:
        raise InvalidRequest("now is invalid; cannot be empty")
    return await _move_clock(registry, request.now)


async def _move_clock(registry: Registry, now_us: int) -> messages.ClockResponse:
    validation.year("now", now_us)
    assert isinstance(registry.clock, ManualClock)
    registry.clock.set(now_us)
    registry.access.tick()
    for logical in registry.logicals.values():
        # Back-offs run on real time, and a test that moves the clock must not wait for them.
        logical.end_back_offs()
    await registry.turns.until_idle()
    return messages.ClockResponse(now=registry.clock.now_us())
