"""The requests that a Logical takes, and the work that it hands to its driver.

A request is answered exactly once, through `respond`, on the loop's thread. Its deadline (`deadline_ns`) is on the
monotonic clock. All other times of a queue are on the queue's clock.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence, Set
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from querator.errors import QueratorError
from querator.items import Item, Lease
from querator.wire.messages import Reply

if TYPE_CHECKING:
    from querator.daemon.queue.partition import Partition
    from querator.daemon.store import Found, Store
    from querator.wire.messages import Message, QueueProduceItem, QueueRetryItem

BULK_PREFIX: Final = "bulk "
DEAD_PREFIX: Final = "dead "
MOVED_PREFIX: Final = "moved "
LOST_PREFIX: Final = "lost "
JOB_PREFIX: Final = "move "
SOURCE_PREFIX: Final = "from "
"""Prefixes of the keys that are remembered beside the request ids of clients: chunks of bulk streams, items from other
queues or partitions, lost leases of removed partitions, and the progress of jobs."""
MOVE_PREFIXES: Final = (DEAD_PREFIX, MOVED_PREFIX, SOURCE_PREFIX)
EXACT_PREFIXES: Final = (JOB_PREFIX, LOST_PREFIX)
"""Memory keeps all keys with these prefixes: there are few, and planners need them without a read of storage."""
_CLIENT_PREFIX: Final = "client "
_RESERVED: Final = (BULK_PREFIX, DEAD_PREFIX, MOVED_PREFIX, LOST_PREFIX, JOB_PREFIX, SOURCE_PREFIX, _CLIENT_PREFIX)

REPEATED: Final = Reply(code=200, details={"repeated": "true"})
"""The answer to a produce whose request id is known: it added nothing."""

Respond = Callable[[Any], None]
"""Takes the result, or a QueratorError."""


def key_of(request_id: str) -> str:
    """The key under which a client's request id is remembered. It has none of the prefixes above."""
    return _CLIENT_PREFIX + request_id if request_id.startswith(_RESERVED) else request_id


class AnswerInParts:
    """An answer that is too large to be built at once: messages that together form one list."""

    def __init__(self, known: list[Message], rest: AsyncGenerator[Message, None]) -> None:
        self._known, self._rest = known, rest

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        return self._known.pop(0) if self._known else await anext(self._rest)


class Request:
    """Base of the requests in the inbox."""

    answered = False
    watched = False
    """Whether its deadline is watched."""
    is_first_attempt = False
    """Whether the client sends its request id for the first time, so that no partition can know the id."""

    deadline_ns = 0
    """When the request times out if it must wait. Complete, retry, extend and change never wait for other requests."""

    def __init__(self, respond: Respond) -> None:
        self.respond = respond

    def answer(self, result: Any) -> None:
        if not self.answered:
            self.answered = True
            self.respond(result)


class Produce(Request):
    """New items, which go to one partition, all or none."""

    followers: Sequence[Produce] = ()
    """Repetitions of this request that came before it was answered."""
    looked_up = 0
    """The version of the remembered keys when `found` was looked up; 0 before that."""
    found: Collection[str] = ()
    """Those of `keys` that a file remembers."""
    if_repeated: Reply | None = REPEATED
    """The answer if the same request was carried out before."""

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
        """Whether any of the drafts is scheduled for later."""
        self.request_id = request_id

    @property
    def keys(self) -> Sequence[str]:
        """The keys that are remembered once the request is carried out."""
        return (self.request_id,) if self.request_id else ()

    def answer(self, result: Any) -> None:
        if not self.answered:
            self.answered = True
            self.respond(result)
        for follower in self.followers:
            follower.answer(result if isinstance(result, QueratorError) else follower.if_repeated)


class Columns(NamedTuple):
    """Items that are ready at once, as an Arrow stream, with the sums that the loop needs."""

    rows: int
    stream: bytes
    created_sum: int
    """The sum of the creation times of all rows that have one."""
    rows_without_created_at: int
    first_expiry: int | None
    """The earliest expire deadline of all rows that have one."""
    has_rows_without_expiry: bool


class Intake(Produce):
    """A chunk of a bulk stream: items that lack only their sequences and times."""

    if_repeated: Reply | None = None

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
        """The items that are scheduled for later."""
        self.digest = digest
        """The digest of the chunk. It tells a repetition from another chunk with the same request id."""
        self.source_keys = source_keys
        """Keys that are stored with the items. A later import looks for them and skips items that it finds."""

    @property
    def witness(self) -> str:
        return f"{self.request_id} {self.digest}"

    @property
    def keys(self) -> Sequence[str]:
        return (self.request_id, self.witness) if self.request_id else ()


class Arrival(Request):
    """Items that come from another partition or queue. A repetition adds none of them twice."""

    looked_up = 0
    found: Collection[str] = ()

    def __init__(self, respond: Respond, deadline_ns: int, items: list[Item], keys: list[str], uncertain: bool) -> None:
        super().__init__(respond)
        self.deadline_ns = deadline_ns
        self.items = items
        self.keys = keys
        self.uncertain = uncertain
        """Whether an earlier attempt may have succeeded although its answer was lost."""
        self.checked: set[str] | None = None
        """The source ids that partitions were found to have; None before they were asked."""


class Complete(Request):
    def __init__(self, respond: Respond, number: int, ids: Sequence[str]) -> None:
        self.respond = respond
        self.number = number
        self.ids = ids
        self.known: dict[str, Found | None] = {}
        """The ids that are not leased, and what storage knows of each."""
        self.touched: set[Partition] = set()


_NOWHERE: Final[Set[Partition]] = frozenset()


class LeaseItems(Request):
    abandoned = False
    """Whether its client has disconnected."""
    order = 0
    """Its place among the parked requests; 0 if it was never parked."""
    completed_in: Set[Partition] = _NOWHERE
    """The partitions in which the ids that it carried were completed."""

    def __init__(
        self,
        respond: Respond,
        deadline_ns: int,
        client_id: str,
        batch_size: int,
        completes: Complete | None = None,
        token_name: str = "",
    ) -> None:
        self.respond = respond
        self.deadline_ns = deadline_ns
        self.client_id = client_id
        self.token_name = token_name
        self.batch_size = batch_size
        self.completes = completes
        """The ids to complete before anything is leased."""


class Retry(Request):
    def __init__(self, respond: Respond, number: int, items: Sequence[QueueRetryItem]) -> None:
        super().__init__(respond)
        self.number = number
        self.items = items
        self.known: dict[str, Found | None] = {}
        self.touched: set[Partition] = set()
        self.handed_back = 0
        """How many items the pass took back. A refused id ends the request; the ids before it count."""
        self.open_moves = 0
        """The number of moves of this request's items to another queue or partition that have not ended."""


class Extend(Request):
    def __init__(self, respond: Respond, number: int, ids: Sequence[str], lease_timeout_ns: int) -> None:
        super().__init__(respond)
        self.number = number
        self.ids = ids
        self.lease_timeout_ns = lease_timeout_ns
        self.known: dict[str, Found | None] = {}
        self.touched: set[Partition] = set()


class Change(Request):
    """A change of partitions by an operator or a job. It has a pass of its own.

    `run` is called while planning and changes the partitions. Its result is the answer once the batches are durable. If
    one of `partitions` is closed, the request is refused.
    """

    def __init__(self, respond: Respond, partitions: Sequence[Partition], run: Callable[[int], Any]) -> None:
        super().__init__(respond)
        self.partitions = partitions
        self.run = run


class Read:
    """Blocking work with a partition's storage.

    The driver runs `work` in a worker thread, one at a time per partition. Then it calls `done` with the result, or
    `failed`, on the loop's thread. Before the work, the file of the store `flush` gets everything from the journal. No
    request waits for `upkeep`: it runs one at a time per storage, because more would take the processor from the loop.
    Work with `beside_upkeep` may run while upkeep is under way in the same partition.
    """

    __slots__ = ("beside_upkeep", "done", "failed", "flush", "partition", "upkeep", "work")

    def __init__(
        self,
        partition: Partition,
        flush: Store | None,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
        upkeep: bool = False,
        beside_upkeep: bool = False,
    ) -> None:
        self.partition = partition
        self.beside_upkeep = beside_upkeep
        self.flush = flush
        self.work = work
        self.done = done
        self.failed = failed
        self.upkeep = upkeep


class Move:
    """Items that leave a partition for the dead queue or for another partition of their queue.

    They are produced at the destination first and then removed here. After a crash between the two steps, the move is
    repeated, and the destination recognizes the items by their keys.
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
        """Why the items died; empty if they only change partitions."""
        self.items = items
        self.copies = copies
        self.keys = keys
        self.leases: list[Lease] = []
        """The leases of the items, if they are leased."""
        self.scheduled = False
        """Whether the items are scheduled here."""
        self.uncertain = False
        """Whether an earlier attempt may have succeeded."""
        self.retry: Retry | None = None
        """The client's request that caused the move and waits for it."""
        self.tries = 0


def failing(number: int) -> str:
    """The error of a request that needs a partition which is closed or in error."""
    return f"partition not available; partition '{number}' is failing, retry again"
