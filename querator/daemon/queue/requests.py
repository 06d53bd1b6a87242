"""What the Logical loop is asked to do. A request is answered exactly once, through `respond`, on the loop's thread.

Deadlines of requests (`deadline_ns`) are real, monotonic time; everything else in the queue follows the queue's clock.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from querator.errors import QueratorError
from querator.items import Item
from querator.wire.messages import Reply

if TYPE_CHECKING:
    from querator.daemon.queue.leases import Lease
    from querator.daemon.queue.partition import Partition
    from querator.daemon.store import Found, Store
    from querator.wire.messages import Message, QueueProduceItem, QueueRetryItem

BULK_PREFIX: Final = "bulk "
DEAD_PREFIX: Final = "dead "
MOVED_PREFIX: Final = "moved "
LOST_PREFIX: Final = "lost "
JOB_PREFIX: Final = "move "
SOURCE_PREFIX: Final = "from "
"""What is remembered beside the request ids of clients: chunks of bulk streams, items that came from elsewhere, leases
of partitions that are gone, and how far jobs got."""
MOVE_PREFIXES: Final = (DEAD_PREFIX, MOVED_PREFIX, SOURCE_PREFIX)
EXACT_PREFIXES: Final = (JOB_PREFIX, LOST_PREFIX)
"""Keys that begin like this are few, and are asked for where nothing can be looked up: memory keeps all of them."""
_CLIENT_PREFIX: Final = "client "
_RESERVED: Final = (BULK_PREFIX, DEAD_PREFIX, MOVED_PREFIX, LOST_PREFIX, JOB_PREFIX, SOURCE_PREFIX, _CLIENT_PREFIX)

REPEATED: Final = Reply(code=200, details={"repeated": "true"})
"""The answer to a produce whose request id is known: it added nothing."""

Respond = Callable[[Any], None]
"""Takes the result, or a QueratorError."""


def key_of(request_id: str) -> str:
    """What a client's request id is remembered as. Whatever it says, it is none of ours."""
    return _CLIENT_PREFIX + request_id if request_id.startswith(_RESERVED) else request_id


class AnswerInParts:
    """An answer that is too large to be made at once: messages that together are one list."""

    def __init__(self, known: list[Message], rest: AsyncGenerator[Message, None]) -> None:
        self._known, self._rest = known, rest

    async def __aiter__(self) -> AsyncIterator[Message]:
        async with aclosing(self._rest) as rest:
            while self._known:
                yield self._known.pop(0)
            async for part in rest:
                yield part


class Request:
    """Base of what stands in the inbox."""

    abandoned = False
    answered = False
    watched = False
    """Whether the loop watches its deadline already."""
    is_first_attempt = False
    """Whether the client made the request id just now, so that no partition can know it."""

    deadline_ns = 0
    """When a request that waits times out. Complete, retry, extend and change never wait for other requests."""

    def __init__(self, respond: Respond) -> None:
        self.respond = respond

    def answer(self, result: Any) -> None:
        if not self.answered:
            self.answered = True
            self.respond(result)


class Produce(Request):
    """New items. They go to one partition, all or none."""

    followers: Sequence[Produce] = ()
    """The same request again, before this one was answered."""
    looked_up = 0
    """The version of what the queue remembers for which `found` is the answer; 0 if nothing was looked up."""
    found: Collection[str] = ()
    """Which of `keys` files were found to remember."""
    if_repeated: Reply | None = REPEATED
    """What it is answered if the same request was carried out before."""

    def __init__(
        self,
        respond: Respond,
        deadline_ns: int,
        drafts: Sequence[QueueProduceItem],
        timed: bool,
        request_id: str = "",
    ) -> None:
        self.respond = respond
        self.deadline_ns = deadline_ns
        self.drafts = drafts
        self.timed = timed
        """Whether any of the drafts has a time to be enqueued at."""
        self.request_id = request_id

    @property
    def keys(self) -> Sequence[str]:
        """What is remembered of this request."""
        return (self.request_id,) if self.request_id else ()

    def answer(self, result: Any) -> None:
        if not self.answered:
            self.answered = True
            self.respond(result)
        for follower in self.followers:
            follower.answer(result if isinstance(result, QueratorError) else follower.if_repeated)


class Columns(NamedTuple):
    """Items that are ready at once, as an Arrow stream, and what the loop must know of them."""

    rows: int
    stream: bytes
    created_sum: int
    """Of those that say when they were made."""
    created_unsaid: int
    """How many do not."""
    expires_first: int | None
    """Of those that say when they expire."""
    expires_unsaid: bool


class Intake(Produce):
    """A chunk of a bulk stream: items that are whole but for their sequences and times."""

    if_repeated = None

    def __init__(
        self,
        respond: Respond,
        deadline_ns: int,
        columns: Columns,
        items: list[Item],
        request_id: str,
        digest: str,
        source_keys: Sequence[str] = (),
    ) -> None:
        super().__init__(respond, deadline_ns, (), bool(items), request_id)
        self.columns = columns
        self.items = items
        """Those that have a time to be enqueued at."""
        self.digest = digest
        """Of what it says, so that a repetition that says something else is noticed."""
        self.source_keys = source_keys
        """Kept in the file with the items. A later import looks there for items that have left the queue since."""

    @property
    def witness(self) -> str:
        return f"{self.request_id} {self.digest}"

    @property
    def keys(self) -> Sequence[str]:
        return (self.request_id, self.witness) if self.request_id else ()


class Arrival(Request):
    """Items that come from another partition or queue. Each is taken in once, whatever is repeated."""

    looked_up = 0
    found: Collection[str] = ()

    def __init__(self, respond: Respond, deadline_ns: int, items: list[Item], keys: list[str], uncertain: bool) -> None:
        super().__init__(respond)
        self.deadline_ns = deadline_ns
        self.items = items
        self.keys = keys
        self.uncertain = uncertain
        """Whether an earlier try may have got through without our knowing."""
        self.checked: set[str] | None = None


class Complete(Request):
    def __init__(self, respond: Respond, number: int, ids: Sequence[str]) -> None:
        self.respond = respond
        self.number = number
        self.ids = ids
        self.known: dict[str, Found | None] = {}
        """What storage said of ids that are not leased."""
        self.touched: set[Partition] = set()


class LeaseItems(Request):
    order = 0
    """Its place among those who wait; 0 before it has one."""

    def __init__(
        self, respond: Respond, deadline_ns: int, client_id: str, batch_size: int, completes: Complete | None = None
    ) -> None:
        self.respond = respond
        self.deadline_ns = deadline_ns
        self.client_id = client_id
        self.batch_size = batch_size
        self.completes = completes
        """What is to be completed before anything is leased."""


class Retry(Request):
    def __init__(self, respond: Respond, number: int, items: Sequence[QueueRetryItem]) -> None:
        super().__init__(respond)
        self.number = number
        self.items = items
        self.known: dict[str, Found | None] = {}
        self.touched: set[Partition] = set()
        self.handed_back = 0
        """How many items the pass took back. An id that is refused ends the request, and those before it count."""
        self.open_moves = 0
        """Items of this request that are still on their way to another queue or partition."""


class Extend(Request):
    def __init__(self, respond: Respond, number: int, ids: Sequence[str], lease_timeout_ns: int) -> None:
        super().__init__(respond)
        self.number = number
        self.ids = ids
        self.lease_timeout_ns = lease_timeout_ns
        self.known: dict[str, Found | None] = {}
        self.touched: set[Partition] = set()


class Change(Request):
    """Anything rarer that changes a partition: runs alone, between two passes of the requests above.

    `run` is called while planning and changes partitions' memory and batches; what it returns is the answer, told once
    the batches are durable. `partitions` must all have an open store, or the request is refused.
    """

    def __init__(self, respond: Respond, partitions: Sequence[Partition], run: Callable[[int], Any]) -> None:
        super().__init__(respond)
        self.partitions = partitions
        self.run = run


class Delivery(NamedTuple):
    """The answer to a lease."""

    partition: int
    leases: list[Lease]


class Read(NamedTuple):
    """Something blocking that must be done with a partition's storage.

    The driver runs `work` in a worker thread, one at a time per partition, and then calls `done` with its result or
    `failed` on the loop's thread. `flush` is the store whose file must have everything first. What is `upkeep` nobody
    waits for: it is done one at a time per storage, since several at once would keep the loop from its processor.
    """

    partition: Partition
    flush: Store | None
    work: Callable[[], Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]
    upkeep: bool = False


class Move:
    """Items that leave a partition for another queue (the dead queue) or another partition of this one.

    First they are produced there, then removed here; a crash between the two is repaired by the keys of the arrival.
    """

    __slots__ = (
        "copies", "items", "keys", "leases", "partition", "reason", "retry", "scheduled", "target", "tries",
        "uncertain",
    )  # fmt: skip

    def __init__(
        self, partition: Partition, target: str, reason: str, items: list[Item], copies: list[Item], keys: list[str]
    ) -> None:
        self.partition = partition
        self.target = target
        self.reason = reason
        """Why they died; empty when they only change partitions."""
        self.items = items
        self.copies = copies
        self.keys = keys
        self.leases: list[Lease] = []
        """The leases in which the items are, if they are leased."""
        self.scheduled = False
        """Whether they leave the scheduled items."""
        self.uncertain = False
        self.retry: Retry | None = None
        """The client's request that caused it and waits for it."""
        self.tries = 0


def failing(number: int) -> str:
    return f"partition not available; partition '{number}' is failing, retry again"
