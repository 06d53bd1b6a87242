"""The pass: the memory of a queue that its planners work on, and what they decide in one pass.

One Pass object serves all passes of a queue, one after the other. The planners (inbox, producing, leasing, completing,
timers, moves, intake, settling) get nothing else: they read its time and memory, and add answers, counts and deaths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from querator.daemon.queue.agenda import Agenda
from querator.daemon.queue.deadlines import Deadlines
from querator.daemon.queue.moves_under_way import MovesUnderWay
from querator.daemon.queue.opening import PartitionFiles
from querator.daemon.queue.parked import ParkedLeases
from querator.daemon.queue.partition import Partition
from querator.daemon.queue.remembered import Remembered
from querator.daemon.queue.repeats import Repeats
from querator.daemon.queue.requests import Arrival, Produce, Request
from querator.errors import QueratorError
from querator.items import Item, Placement, Queue
from querator.wire.leased import LeaseReply

MIXED: Final = 0
PRODUCES: Final = 1
COMPLETES: Final = 2
LEASE: Final = 3

# Most passes have none of these. One empty list for all queues stays in the processor's cache. It never changes: a pass
# gets a list of its own for its first entry.
_NO_PARTITIONS: Final[list[Partition]] = []
_NO_PRODUCES: Final[list[Produce | Arrival]] = []
_NO_REQUESTS: Final[list[Request]] = []
_NO_DEATHS: Final[list[Death]] = []


class Counters:
    """What the queue has done since it was loaded."""

    __slots__ = ("completed", "dead", "expired", "leased", "produced", "retried")

    def __init__(self) -> None:
        self.produced = self.leased = self.completed = self.retried = self.expired = 0
        self.dead: dict[str, int] = {"max_attempts": 0, "expired": 0, "client": 0}


class Death:
    """An item that died, to be logged and counted once its removal is durable."""

    __slots__ = ("attempts", "dead_queue", "id", "item", "partition", "reason")

    def __init__(self, partition: Partition, item: Item, item_id: str, attempts: int, reason: str, queue: str) -> None:
        self.partition = partition
        self.item = item
        self.id = item_id
        self.attempts = attempts
        self.reason = reason
        self.dead_queue = queue


class Pass:
    __slots__ = (
        "agenda", "answers", "by_prefix", "completed", "completes", "counters", "deadlines", "deaths", "died",
        "expire_timeout_ns", "expired", "files", "held_up", "inbox", "lease_timeout_ns", "leased", "looking_up",
        "moves", "now_ns", "now_us", "only", "order", "parked", "partitions", "produced", "produces", "queue",
        "remembered", "repeats", "resumed", "retried", "taken", "touched", "undelivered", "wake",
    )  # fmt: skip

    # A compiled object has its fields in the order in which they are declared. What every pass uses is declared here,
    # so that it takes few lines of the processor's cache.
    agenda: Agenda
    order: list[Partition]
    inbox: list[Request]
    taken: list[Request]
    only: int
    touched: list[Partition]
    answers: list[tuple[Request, Any, Partition | set[Partition] | None]]
    held_up: list[Produce | Arrival] | None
    produces: list[Produce | Arrival]
    completes: list[Request]
    deaths: list[Death]
    now_us: int
    now_ns: int
    produced: int
    leased: int
    completed: int
    retried: int
    expired: int
    counters: Counters
    expire_timeout_ns: int
    lease_timeout_ns: int

    def __init__(
        self,
        queue: Queue,
        files: PartitionFiles,
        wake: Callable[[], None],
        died: Callable[[Death], None],
        resumed: Callable[[Placement], None],
    ) -> None:
        self.configure(queue)
        self.files = files
        self.agenda = files.agenda
        self.partitions = files.partitions
        self.by_prefix = files.by_prefix
        self.order = list(files.partitions)
        """The partitions as `distribution` sorts them."""
        self.wake = wake
        """Asks the driver for another pass."""
        self.died = died
        """Called with each death whose removal is durable."""
        self.resumed = resumed
        """Called when a pause has ended by itself."""
        self.counters = Counters()
        self.inbox = []
        self.taken = []
        """The requests that the pass has taken in."""
        self.only = MIXED
        """PRODUCES if all of them are produces without a request id, whose items are ready at once. COMPLETES if all of
        them are completes. LEASE if it is one lease that need not be parked to be served. Otherwise MIXED, and the
        planners look at the next two lists."""
        self.produces = _NO_PRODUCES
        """The requests that bring items."""
        self.completes = _NO_REQUESTS
        """The requests of clients that hold leases."""
        self.touched = _NO_PARTITIONS
        """Partitions whose batch must become durable. It may be `order`, so do not change the list."""
        self.answers = []
        """Each request with its result, and the partitions that must be durable before it is answered."""
        self.parked = ParkedLeases(files.agenda)
        self.held_up = None
        """Produces that no partition takes at present."""
        self.undelivered: list[LeaseReply] = []
        """Leases whose client closed its connection before the answer. The next pass takes their items back."""
        self.looking_up = 0
        """The number of requests that wait for a read of storage."""
        self.deadlines = Deadlines(files.agenda)
        self.remembered: Remembered = files.remembered
        self.repeats = Repeats()
        self.moves = MovesUnderWay(files.agenda)
        self.deaths = _NO_DEATHS
        self.begin(0, 0)
        self.forget_counts()

    def configure(self, queue: Queue) -> None:
        """Uses these settings from now on."""
        self.queue = queue
        self.expire_timeout_ns = queue.expire_timeout_ns
        self.lease_timeout_ns = queue.lease_timeout_ns

    def begin(self, now_us: int, now_ns: int) -> None:
        """Starts the next pass. Nothing is decided yet."""
        self.now_us = self.agenda.now_us = now_us
        self.now_ns = self.agenda.now_ns = now_ns
        if self.taken or self.answers or self.touched:  # the last pass broke off
            self.end()

    def end(self) -> None:
        """Forgets what was decided. The lists stay, because the next pass needs them again."""
        if self.taken:
            self.taken.clear()
        if self.answers:
            self.answers.clear()
        self.produces = _NO_PRODUCES
        self.completes = _NO_REQUESTS
        self.touched = _NO_PARTITIONS
        self.deaths = _NO_DEATHS

    def forget_counts(self) -> None:
        """Forgets the number of items in this pass. They are added to the counters if the pass becomes durable."""
        self.produced = self.leased = self.completed = self.retried = self.expired = 0

    def stage(self) -> None:
        """Hands the batches of the pass to their stores. `touched` gets the partitions that had one."""
        agenda = self.agenda
        first = agenda.changed
        if first is None:
            return
        if len(self.order) == 1 and first is self.order[0] and agenda.also_changed is None and not self.touched:
            agenda.changed = None
            if first.contents.stage():
                self.touched = self.order
        else:
            changed = [partition for partition in agenda.take_changed() if partition.contents.stage()]
            self.touched = [*self.touched, *changed]

    def answer(self, request: Request, result: Any, after: Partition | set[Partition] | None = None) -> None:
        """Answers the request once the partitions that the answer depends on are durable."""
        self.answers.append((request, result, after))

    def repeats_success(self) -> bool:
        """Of a pass that touched nothing: whether it tells a client that an earlier request was carried out."""
        told = [result for request, result, _ in self.answers if isinstance(request, Produce)]
        return not all(isinstance(result, QueratorError) for result in told)

    def died_in_pass(self, death: Death) -> None:
        """Notes a death, to be counted and logged once the pass is durable."""
        if self.deaths is _NO_DEATHS:
            self.deaths = []
        self.deaths.append(death)

    def hold_up(self, request: Produce | Arrival) -> None:
        """Lets the request wait, until its deadline, for a partition that takes it."""
        self.hold_up_again([request])
        self.deadlines.watch(request)

    def hold_up_again(self, requests: Sequence[Produce | Arrival]) -> None:
        """The same for requests whose deadlines are watched already."""
        if self.held_up is None:
            self.held_up = []
        self.held_up += requests
