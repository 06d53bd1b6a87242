"""The queues of one daemon: finds the queue that a request names, checks the request, hands it to the queue's Logical.

Calls that touch items are answered by the Logical through a callback, without a task; everything rarer is a coroutine
in `queues.py`, `stored.py` or `maintenance.py`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from querator import durations
from querator.clock import Clock, ManualClock
from querator.config import DaemonConfig
from querator.daemon import health, metrics
from querator.daemon.admin import item_calls, partition_calls, queue_calls, storage_calls, validation
from querator.daemon.catalog import Catalog
from querator.daemon.engine import Turns, Upkeep
from querator.daemon.jobs import backup, compaction, resize, restore, runner, to_storage, verify
from querator.daemon.queue.logical import Death, Logical
from querator.daemon.queue.partition import Partition
from querator.daemon.queue.requests import (
    EXACT_PREFIXES,
    Arrival,
    Complete,
    Delivery,
    Extend,
    LeaseItems,
    Move,
    Produce,
    Request,
    Respond,
    Retry,
    key_of,
)
from querator.daemon.store import Storage, StorageError, Store, open_storage
from querator.errors import InternalError, InvalidRequest, QueratorError, RequestFailed
from querator.items import Placement, Queue, Room, State
from querator.limits import NS_PER_SECOND, NS_PER_US, SHUTDOWN_SECONDS_MAX
from querator.wire import messages

log = logging.getLogger("querator.service")
deaths = logging.getLogger("querator.deaths")

RETRY_TIMEOUT_NS = 5 * 60 * NS_PER_SECOND
MOVE_TIMEOUT_NS = 30 * NS_PER_SECOND
T = TypeVar("T")
Abandon = Callable[[], None]

_enqueue_at_of = attrgetter("enqueue_at")
_UNTIMED = {None}


class Service:
    def __init__(self, config: DaemonConfig, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.stopping = False
        self.queues: dict[str, Queue] = {}
        self.logicals: dict[str, Logical] = {}
        self.storages: dict[str, Storage] = {}
        self.catalog: Catalog
        self.turns: Turns
        self.upkeep: Upkeep
        self.changing = asyncio.Lock()
        """Held by whoever changes which queues or partitions exist."""
        self.importing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Per partition: imports go one at a time, because each asks first what is here already."""
        self._reopening = threading.Lock()
        self._late: dict[str, Storage] = {}
        """Storages that could not be opened at the start, and since then were."""
        self.jobs = runner.Jobs(
            self, to_storage.KINDS | resize.KINDS | backup.KINDS | restore.KINDS | verify.KINDS | compaction.KINDS
        )
        self.altering: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Per queue: what is asked of its partitions is recorded and takes effect one after the other."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._hot: dict[str, Callable[[Any, Respond], Abandon | None]] = {
            "queue.produce": self._produce,
            "queue.lease": self._lease,
            "queue.complete": self._complete,
            "queue.retry": self._retry,
            "queue.extend": self._extend,
        }
        self._calls: dict[str, Callable[[Service, Any], Coroutine[Any, Any, Any]]] = {
            **queue_calls.CALLS,
            **item_calls.CALLS,
            **partition_calls.CALLS,
            **storage_calls.CALLS,
            **runner.CALLS,
            **to_storage.CALLS,
            **backup.CALLS,
            **restore.CALLS,
            **verify.CALLS,
            **compaction.CALLS,
            "clock.advance": _advance_clock,
            "clock.set": _set_clock,
        }

    # -- start and stop

    async def start(self) -> None:
        """Opens everything. A partition that cannot be opened is in error and does not stop the others."""
        self.catalog = await self.blocking(Catalog, self.config.data / "catalog.duckdb")
        for storage in self.config.storages:
            try:
                self.storages[storage.name] = await self.blocking(open_storage, storage.name, storage.directory)
            except (StorageError, OSError) as error:
                log.error("storage cannot be used", extra={"storage": storage.name, "reason": str(error)})
        self.turns = Turns(self.clock, self.storages.values(), self._deliver)
        self.upkeep = Upkeep(self.turns, self.config.limits.unapplied_bytes)
        self.queues = {queue.name: queue for queue in await self.blocking(self.catalog.queues)}
        placements: dict[str, list[Placement]] = {}
        for placement in await self.blocking(self.catalog.placements):
            placements.setdefault(placement.queue, []).append(placement)
        self._look_for_strangers({placement.uuid for known in placements.values() for placement in known})
        await self.jobs.load()
        counts = await self.blocking(self.catalog.counts)
        for queue in self.queues.values():
            logical = self.load(queue, placements.get(queue.name, []))
            for partition in logical.partitions:
                uuid = partition.placement.uuid
                if partition.placement.requested is State.UNAVAILABLE and uuid in counts:
                    partition.recall(counts[uuid])
                    noted = await self.blocking(self.catalog.offline_keys, uuid, EXACT_PREFIXES)
                    if noted is not None:
                        partition.keys_noted()
                        logical.keys_read(partition, *noted)
        self.jobs.prepare()
        await asyncio.gather(*(self.until_opened(logical) for logical in self.logicals.values()))
        await queue_calls.delete_leftovers(self)
        await queue_calls.create_configured(self)
        self.jobs.resume()
        await resize.catch_up(self)
        self.background(compaction.watch(self))

    def _look_for_strangers(self, known: set[str]) -> None:
        """Partition files that the catalog does not know: they are left alone, but nobody must think all is well."""
        for storage in self.storages.values():
            strangers = sorted(path for path in storage.directory.glob("*.duckdb") if path.stem not in known)
            if strangers and self.catalog.is_new:
                raise RequestFailed(
                    f"the catalog is missing, but there are partition files, such as {strangers[0]}",
                    hint="put catalog.duckdb back from a backup, or move these files away to start empty",
                )
            for path in strangers:
                log.warning("partition file is in no queue", extra={"storage": storage.name, "file": path.name})

    def load(self, queue: Queue, placements: list[Placement]) -> Logical:
        logical = Logical(
            queue,
            placements,
            self._open_store,
            lambda: self.turns.wake(logical),
            partial(self._died, queue.name),
            self._release_store,
            lambda placement: partition_calls.resumed(self, logical.partitions[placement.number], placement),
            bounds=self.config.limits,
            noted_keys=lambda placement, keys: self.catalog.remembered(placement.uuid, keys, self.clock.now_us()),
        )
        self.queues[queue.name] = queue
        self.logicals[queue.name] = logical
        self.turns.add(logical)
        return logical

    async def until_opened(self, logical: Logical) -> None:
        """Until every partition is open, or known to fail, or wanted closed."""

        def is_opened() -> bool:
            return not any(p.store is None and not p.error and p.should_be_open for p in logical.partitions)

        await self.turns.until(is_opened)

    def storage(self, name: str) -> Storage:
        """In a worker thread. One that has failed as a whole is opened again first, by whoever comes first."""
        with self._reopening:
            storage = self.storages.get(name) or self._late.get(name)
            if storage is None:
                storage = self._open_late(name)
            elif storage.failure:
                storage.reopen()
        return storage

    def _open_late(self, name: str) -> Storage:
        config = next((storage for storage in self.config.storages if storage.name == name), None)
        if config is None:
            raise StorageError(f"storage '{name}' is not configured")
        try:
            storage = self._late[name] = open_storage(config.name, config.directory)
        except (StorageError, OSError) as error:
            raise StorageError(f"storage '{name}' cannot be used: {error}") from error
        log.info("storage can be used now", extra={"storage": name})
        # Known to the loop before anything that is opened in it.
        self.turns.loop.call_soon_threadsafe(self._add_storage, storage)
        return storage

    def _add_storage(self, storage: Storage) -> None:
        self.storages[storage.name] = storage
        self.turns.add_storage(storage)

    def _open_store(self, placement: Placement) -> Store:
        """In a worker thread."""
        return self.storage(placement.storage).open(placement.uuid, placement.queue)

    def fold(self, placement: Placement) -> None:
        """Blocking: a closed partition's file gets what the journal still has of it."""
        self._open_store(placement).close()

    def _release_store(self, placement: Placement) -> None:
        storage = self.storages.get(placement.storage)
        if storage is not None:
            storage.release(placement.uuid)

    async def stop(self) -> None:
        """Answers every waiting client, then closes what is open. Ends in time, whatever hangs."""
        self.stopping = True
        await self.jobs.stop()
        for logical in self.logicals.values():
            logical.stop()
        for task in list(self._tasks):
            task.cancel()
        try:
            await asyncio.wait_for(self.turns.drain(), SHUTDOWN_SECONDS_MAX / 2)
        except TimeoutError:
            log.warning("storage did not come to rest in time; what is durable is safe")
        self.upkeep.close()
        self.turns.close()
        for storage in self.storages.values():
            await self.blocking(storage.close)
        await self.blocking(self.catalog.close)

    # -- calls

    def call(self, route: str, request: Any, respond: Respond) -> Abandon | None:
        hot = self._hot.get(route)
        try:
            if hot is not None:
                return hot(request, respond)
            call = self._calls.get(route)
            if call is None:
                raise InternalError(f"{route} is not served")
            self._spawn(call(self, request), respond)
        except QueratorError as error:
            respond(error)
        return None

    def _spawn(self, work: Coroutine[Any, Any, Any], respond: Respond) -> None:
        async def run() -> None:
            try:
                result = await work
            except QueratorError as error:
                result = error
            except asyncio.CancelledError:
                result = RequestFailed("service is shutting down")
            except StorageError as error:
                log.error("storage failed", extra={"reason": str(error)})
                result = InternalError()
            except Exception:
                log.exception("a call failed")
                result = InternalError()
            respond(result)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that nobody waits for; what goes wrong with it is logged."""
        self._spawn(work, _ignore)

    async def blocking(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, work, *args)

    def find(self, name: str) -> Logical:
        """The queue that a request names; every call that names one does this first."""
        if self.stopping:
            raise RequestFailed("service is shutting down")
        logical = self.logicals.get(name)
        if logical is None:
            validation.lookup_name(name)
            raise AssertionError("unreachable")
        return logical

    def partition(self, logical: Logical, number: int) -> Partition:
        if not 0 <= number < len(logical.partitions):
            raise InvalidRequest(f"partition is invalid; '{number}' is not a valid partition")
        return logical.partitions[number]

    # -- items

    @staticmethod
    def _submit(logical: Logical, request: Request) -> Abandon:
        logical.submit(request)
        return partial(logical.abandon, request)

    def _produce(self, request: messages.QueueProduceRequest, respond: Respond) -> Abandon:
        logical = self.find(request.queue_name)
        timeout_ns = validation.produce_timeout(request.request_timeout)
        items = request.items
        validation.produce_items(len(items))
        timed = set(map(_enqueue_at_of, items)) != _UNTIMED
        if timed:
            for item in items:
                validation.year("enqueue_at", item.enqueue_at)
        if request.request_id:
            validation.request_id(request.request_id)
        produce = Produce(
            respond,
            time.monotonic_ns() + timeout_ns,
            items,
            timed,
            key_of(request.request_id),
        )
        return self._submit(logical, produce)

    def _lease(self, request: messages.QueueLeaseRequest, respond: Respond) -> Abandon:
        logical = self.find(request.queue_name)
        complete_ids = request.complete_ids
        timeout_ns = validation.lease(request.request_timeout, request.client_id, request.batch_size, len(complete_ids))
        deadline_ns = time.monotonic_ns() + timeout_ns
        completes = Complete(_ignore, deadline_ns, 0, complete_ids) if complete_ids else None

        def delivered(result: Delivery | QueratorError) -> None:
            respond(_lease_reply(request.queue_name, result) if isinstance(result, Delivery) else result)

        return self._submit(
            logical, LeaseItems(delivered, deadline_ns, request.client_id, request.batch_size, completes)
        )

    def _complete(self, request: messages.QueueCompleteRequest, respond: Respond) -> Abandon:
        logical = self.find(request.queue_name)
        self.partition(logical, request.partition)
        timeout_ns = validation.complete(request.request_timeout, len(request.ids))
        complete = Complete(
            respond,
            time.monotonic_ns() + timeout_ns,
            request.partition,
            request.ids,
        )
        return self._submit(logical, complete)

    def _retry(self, request: messages.QueueRetryRequest, respond: Respond) -> Abandon:
        logical = self.find(request.queue_name)
        self.partition(logical, request.partition)
        validation.retry_items(len(request.items))
        for item in request.items:
            validation.year("retry_at", item.retry_at)
            validation.reason(item.reason)
        retry = Retry(
            respond,
            time.monotonic_ns() + RETRY_TIMEOUT_NS,
            request.partition,
            request.items,
        )
        return self._submit(logical, retry)

    def _extend(self, request: messages.QueueExtendRequest, respond: Respond) -> Abandon:
        logical = self.find(request.queue_name)
        self.partition(logical, request.partition)
        validation.ids(len(request.ids))
        timeout_ns = validation.lease_timeout(request.lease_timeout)

        def extended(result: Any) -> None:
            if not isinstance(result, QueratorError):
                result = messages.QueueExtendResponse(
                    items=[messages.QueueExtendItem(id=lease.id, lease_deadline=lease.deadline) for lease in result]
                )
            respond(result)

        deadline_ns = time.monotonic_ns() + RETRY_TIMEOUT_NS
        return self._submit(logical, Extend(extended, deadline_ns, request.partition, request.ids, timeout_ns))

    # -- dead letters

    def _deliver(self, source: Logical, move: Move) -> None:
        """Produces what leaves one queue to another one, like any client."""
        target = self.logicals.get(move.target)

        def ended(result: Any) -> None:
            source.end_move(move, result)

        if target is None:
            ended(RequestFailed(f"queue '{move.target}' is gone"))
            return
        deadline_ns = time.monotonic_ns() + MOVE_TIMEOUT_NS
        target.submit(Arrival(ended, deadline_ns, move.copies, move.keys, move.uncertain))

    def _died(self, queue: str, death: Death) -> None:
        deaths.warning(
            "item died",
            extra={
                "queue": queue,
                "partition": death.partition.number,
                "item_id": death.id,
                "kind": death.item.kind,
                "reference": death.item.reference,
                "attempts": death.attempts,
                "reason": death.reason,
                "dead_queue": death.dead_queue,
            },
        )

    # -- what others read

    def health(self) -> tuple[bool, str]:
        """Whether this daemon is healthy, and what is wrong; a healthy one with a text is worth a warning."""
        if self.stopping:
            return False, "service is shutting down"
        names = [storage.name for storage in self.config.storages if storage.name not in self.storages]
        warnings = [f"storage '{name}' cannot be used" for name in names] + self.upkeep.storage_warnings()
        return health.judge((one for logical in self.logicals.values() for one in logical.partitions), warnings)

    def rooms(self) -> Mapping[str, Room]:
        return self.upkeep.rooms()

    def statistics(self) -> Mapping[str, metrics.QueueStatistics]:
        return {name: item_calls.Statistics(logical) for name, logical in self.logicals.items()}


def _ignore(result: Any) -> None:
    pass


def _lease_reply(queue_name: str, delivery: Delivery) -> messages.QueueLeaseResponse:
    make = messages.QueueLeaseItem
    return messages.QueueLeaseResponse(
        queue_name,
        delivery.partition,
        [
            make(
                (item := lease.item).encoding,
                item.kind,
                item.reference,
                lease.id,
                lease.attempts,
                lease.deadline,
                item.payload,
            )
            for lease in delivery.leases
        ],
    )


# -- the test clock


def _manual(service: Service) -> ManualClock:
    assert isinstance(service.clock, ManualClock)
    return service.clock


async def _advance_clock(service: Service, request: messages.ClockAdvanceRequest) -> messages.ClockResponse:
    try:
        by_us = durations.parse(request.by) // NS_PER_US
    except ValueError as error:
        raise InvalidRequest(f"by is invalid; {error}") from None
    return await _move_clock(service, service.clock.now_us() + by_us)


async def _set_clock(service: Service, request: messages.ClockSetRequest) -> messages.ClockResponse:
    if request.now is None:
        raise InvalidRequest("now is invalid; cannot be empty")
    return await _move_clock(service, request.now)


async def _move_clock(service: Service, now_us: int) -> messages.ClockResponse:
    validation.year("now", now_us)
    _manual(service).set(now_us)
    for logical in service.logicals.values():
        # These run on real time, which whoever moves the clock does not want to wait for.
        logical.end_back_offs()
    await service.turns.until_idle()
    return messages.ClockResponse(now=service.clock.now_us())
