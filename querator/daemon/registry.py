"""What calls and jobs work with: the queues, the catalog, the storages, the engine, and a way to run blocking work.

The registry knows which queues exist and finds them. It serves no calls itself, and imports neither calls nor jobs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from querator import limits
from querator.clock import Clock
from querator.config import DaemonConfig
from querator.daemon import logs, validation
from querator.daemon.access import Access, Caller
from querator.daemon.catalog import Catalog
from querator.daemon.engine import Turns, Upkeep
from querator.daemon.queue import Death, Logical, Partition
from querator.daemon.storages import Storages
from querator.daemon.store import StorageError
from querator.errors import InternalError, InvalidRequest, QueratorError, RequestFailed, RetryRequest
from querator.items import Placement, Queue
from querator.limits import NS_PER_US

if TYPE_CHECKING:
    from querator.daemon.archive import Shipper
    from querator.daemon.jobs import Jobs
    from querator.daemon.trends import Trends

log = logging.getLogger("querator.service")
deaths = logging.getLogger(logs.DEATHS)
maintenance = logging.getLogger("querator.maintenance")

T = TypeVar("T")
SHUTTING_DOWN: Final = "service is shutting down"
PROMOTING: Final = "the standby is being promoted; try again"


class Registry:
    def __init__(self, config: DaemonConfig, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.access = Access(config.access, clock, config.data)
        self.stopping = False
        self.started_at = time.time_ns() // NS_PER_US
        self.queues: dict[str, Queue] = {}
        self.logicals: dict[str, Logical] = {}
        self.storages: Storages
        self.use_storages_of_config()
        self.owner: Callable[[], str] | None = None
        """On a standby: which daemon owns the archive. None if this daemon serves."""
        self.is_promoting = False
        """Whether this daemon was a standby, and is about to serve."""
        self.catalog: Catalog
        self.turns: Turns
        self.upkeep: Upkeep
        self.jobs: Jobs
        self.trends: Trends
        self.shipper: Shipper | None = None
        """Copies everything to the archive, if there is one."""
        self.changing = asyncio.Lock()
        """Held while the set of queues or partitions changes."""
        self.importing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One lock per partition: an import first reads what the partition has, so imports run one at a time."""
        self.reading_on: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One lock per partition, held while a part of a long answer is read: other reads wait for one such part."""
        self.altering: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One lock per queue: state changes of its partitions are recorded and take effect one at a time."""
        self._tasks: set[asyncio.Task[None]] = set()

    def use_storages_of_config(self) -> None:
        """Begins with the configured storages, none of which is open yet."""
        are_copied = self.config.archive is not None
        self.storages = Storages(self.config.storages, lambda storage: self.turns.add_storage(storage), are_copied)

    # -- queues

    def find(self, name: str) -> Logical:
        """The queue that a request names. Every call that names a queue does this first."""
        if self.stopping:
            raise RequestFailed(SHUTTING_DOWN)
        logical = self.logicals.get(name)
        if logical is None:
            if self.is_promoting:
                raise RetryRequest(PROMOTING)
            raise validation.unknown_queue(name)
        return logical

    def partition(self, logical: Logical, number: int) -> Partition:
        if not 0 <= number < len(logical.partitions):
            raise InvalidRequest(f"partition is invalid; '{number}' is not a valid partition")
        return logical.partitions[number]

    def load(self, queue: Queue, placements: list[Placement]) -> Logical:
        """Adds a queue. Its partitions open in its first pass."""
        logical = Logical(
            queue,
            placements,
            self.storages.open_store,
            self.turns.wake,
            partial(_log_death, queue.name),
            self.storages.release_store,
            lambda placement: self._pause_ended(logical.partitions[placement.number], placement),
            bounds=self.config.limits,
            noted_keys=lambda placement, keys: self.catalog.remembered(placement.uuid, keys, self.clock.now_us()),
        )
        self.queues[queue.name] = queue
        self.logicals[queue.name] = logical
        self.turns.add(logical)
        return logical

    async def until_opened(self, *logicals: Logical) -> None:
        """Waits until every partition of these queues is open, has failed, or should stay closed."""
        waiting = [partition for logical in logicals for partition in logical.partitions]

        def are_opened() -> bool:
            # Looks at each partition about once: this is called whenever one of thousands has been opened.
            while waiting and not (
                waiting[-1].store is None and not waiting[-1].health.error and waiting[-1].should_be_open
            ):
                waiting.pop()
            return not waiting

        await self.turns.until(are_opened)

    def _pause_ended(self, partition: Partition, placement: Placement) -> None:
        """Records that a pause has ended by itself, unless an operator changed the state meanwhile."""
        if self.owner is not None:
            return  # the owner of the archive records it

        async def record() -> None:
            async with self.altering[placement.queue]:
                if partition.placement is placement:
                    await self.blocking(self.catalog.save_placements, [placement])

        maintenance.info("partition resumed", extra={"queue": placement.queue, "partition": placement.number})
        self.run(record())

    # -- work

    async def blocking(self, work: Callable[..., T], *args: Any) -> T:
        """Runs work that blocks in a thread, and waits for its result."""
        return await asyncio.get_running_loop().run_in_executor(None, work, *args)

    def run(self, work: Coroutine[Any, Any, Any], respond: Callable[[Any], None] = lambda result: None) -> None:
        """Runs a coroutine as a task. `respond` gets its result, or the error that a client may see."""

        async def task() -> None:
            try:
                result = await work
            except QueratorError as error:
                result = error
            except asyncio.CancelledError:
                result = RequestFailed(SHUTTING_DOWN)
            except StorageError as error:
                log.error("storage failed", extra={"reason": str(error)})
                result = InternalError()
            except Exception:
                log.exception("a call failed")
                result = InternalError()
            respond(result)

        running = asyncio.get_running_loop().create_task(task())
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)

    def refuse_calls(self) -> None:
        """Refuses all calls from now on, because the daemon shuts down."""
        self.stopping = True

    async def end_tasks(self) -> None:
        """Cancels all tasks, and waits for a bounded time until they let go of the files that their threads use."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=limits.TASKS_END_SECONDS_MAX)

    def check_running(self) -> None:
        """Refuses while the daemon shuts down."""
        if self.stopping:
            raise RequestFailed(SHUTTING_DOWN)

    def check_serving(self) -> None:
        """Refuses changes on a standby, with an error that names the owner."""
        if self.is_promoting:
            raise RetryRequest(PROMOTING)
        if self.owner is not None:
            raise RequestFailed(
                f"this daemon is a standby and changes nothing; the owner of the archive is {self.owner()}"
            )


Calls: TypeAlias = Mapping[str, Callable[[Registry, Any], Coroutine[Any, Any, Any]]]
"""The calls of a module by their names in the route table."""
CallsByCaller: TypeAlias = Mapping[str, Callable[[Registry, Any, Caller], Coroutine[Any, Any, Any]]]
"""The calls whose answer depends on who asks."""


def _log_death(queue: str, death: Death) -> None:
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
