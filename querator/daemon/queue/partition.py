"""One partition of a queue: where its file is, which state it is in, and what operators and jobs ask of it.

`contents.py` has what memory knows of its items, `storage_health.py` what goes wrong with its file.
"""

from __future__ import annotations

from sys import intern
from typing import Final

from querator.config_file import LimitsConfig
from querator.daemon.queue.agenda import NEVER, Agenda
from querator.daemon.queue.contents import Contents
from querator.daemon.queue.loading import Snapshot
from querator.daemon.queue.states import ALLOWS, HELD, LEAVING, Allows, restricted
from querator.daemon.queue.storage_health import StorageHealth
from querator.daemon.store import Store
from querator.items import Counts, Placement, State

DEFAULT_BOUNDS: Final = LimitsConfig()


class Partition:
    # What every pass uses is declared first: see `Pass`.
    storage: str
    number: int
    contents: Contents
    allows: Allows
    health: StorageHealth
    relapses: int
    _durable_counts: tuple[int, int, int, int]

    def __init__(
        self, placement: Placement, bounds: LimitsConfig = DEFAULT_BOUNDS, agenda: Agenda | None = None
    ) -> None:
        self.placement = placement
        self.storage = intern(placement.storage)
        """The name of the storage. Kept here too, because every turn compares it. All partitions share one text."""
        self.number = placement.number
        self.prefix = int(placement.uuid.replace("-", "")[:16], 16)
        """The part of each item id that says in which partition the item is."""
        self.bounds = bounds
        self.agenda = agenda or Agenda()
        """The agenda of the queue."""
        self.contents = Contents(self)
        self.health = StorageHealth()
        self.failures = 0
        """Failures since the file was last open."""
        self.relapses = 0
        """Failures since the last durable write. Opening the file does not reset the number, because that works even
        on a full disk. It is here and not in `health`, because every durable write resets it.
        """
        self._durable_counts = (0, 0, 0, 0)
        self.closed_for = ""
        """The job or reload that keeps the file closed, whatever the operator asked for."""
        self.closed_since = 0
        self.opened_at = 0
        self.keys_are_noted = False
        """Whether the catalog has the keys of the file, because the file is offline."""
        self._overlay: Allows | None = None
        """The restriction by a job that moves the items into other partitions."""
        self.allows = self._allowed()
        """What clients, timers and jobs may do. Kept up to date by every method that changes the state."""

    # -- state

    @property
    def store(self) -> Store | None:
        """The open store; None while the partition is closed or in error."""
        return self.contents.store

    @property
    def state(self) -> State:
        if self.health.error:
            return State.ERROR
        return State.UNAVAILABLE if self.contents.store is None else self.placement.requested

    @property
    def reported_state(self) -> State:
        """The state as operators see it: a full storage is an error even while nobody writes."""
        return State.ERROR if self.blocked else self.state

    @property
    def blocked(self) -> str:
        """Why the partition takes no items although it should; empty if it takes them."""
        health = self.health
        if self.contents.store is None:
            return health.error
        return health.shortage or (health.apply_error if health.congested else "")

    @property
    def trouble(self) -> str:
        """What an operator should know: why the partition is blocked, or what may block it soon."""
        return self.blocked or self.health.apply_error or self.health.warning

    @property
    def should_be_open(self) -> bool:
        return not self.closed_for and self.placement.requested is not State.UNAVAILABLE

    def _allowed(self) -> Allows:
        allows = ALLOWS[State.UNAVAILABLE if self.contents.store is None else self.placement.requested]
        return allows if self._overlay is None else restricted(allows, self._overlay)

    # -- counts

    @property
    def counts(self) -> Counts:
        return Counts(*(self._durable_counts if self.contents.store is None else self.contents.counts()))

    @property
    def durable_counts(self) -> Counts:
        """The counts after the last durable write. They are reported while the partition is closed."""
        return Counts(*self._durable_counts)

    @property
    def is_empty(self) -> bool:
        return not self.counts.stored

    @property
    def load(self) -> int:
        """The number of items to give out, now or later. A new item goes to the partition with the lowest load."""
        contents = self.contents
        return contents.window.waiting + contents.schedule.count

    # -- what operators and jobs ask for

    def change_placement(self, placement: Placement) -> None:
        """Takes over a storage or a requested state that the catalog has recorded."""
        self.placement = placement
        self.storage = intern(placement.storage)
        self._state_changed()

    def keep_closed(self, reason: str, now_us: int | None = None) -> None:
        """Keeps the file closed until `allow_opening`. Pass no time if the partition was closed before."""
        self.closed_for = reason
        if now_us is not None:
            self.closed_since = now_us

    def allow_opening(self) -> None:
        self.closed_for = ""
        self.agenda.look_at_all = True

    def keys_noted(self) -> None:
        """Notes that the catalog has the keys of the file, which is offline."""
        self.keys_are_noted = True

    def begin_leaving(self) -> None:
        """Stops taking new items, because a job moves the items into other partitions."""
        if self._overlay is None:
            self._restrict(LEAVING)

    def hold(self) -> None:
        """Gives no items to clients until the job knows which items have arrived at their destination."""
        self._restrict(HELD)

    def release(self) -> None:
        self._restrict(LEAVING)

    def end_leaving(self) -> None:
        self._restrict(None)

    @property
    def is_held(self) -> bool:
        return self._overlay is HELD

    def _restrict(self, overlay: Allows | None) -> None:
        self._overlay = overlay
        self._state_changed()

    def _state_changed(self) -> None:
        self.allows = self._allowed()
        self.agenda.look_at_all = True

    # -- opening and closing

    def opened(self, store: Store, snapshot: Snapshot, now_us: int) -> None:
        """Takes over the store that was opened, and the contents that were read from it."""
        self.opened_at = now_us
        self.keys_are_noted = False
        self.failures = 0
        self.health.opened(now_us)
        self.contents = Contents(self, self.contents.last_seq)
        self.contents.load(store, snapshot)
        self._durable_counts = self.contents.counts()
        # An item that was moved away may still be in the file. The job must remove it before anyone gets it.
        self._restrict(None if self._overlay is None else HELD)

    def close(self) -> None:
        """Forgets the contents. The counts of the last durable write are still reported."""
        self.contents = Contents(self, self.contents.last_seq)
        self._state_changed()

    def fail(self, reason: str, now_us: int, retry_at_ns: int) -> None:
        """Drops everything in memory, which cannot be trusted after a failure of the storage."""
        self.close()
        self.failures += 1
        self.relapses += 1
        self.health.fail(reason, now_us, retry_at_ns)

    def recall(self, counts: Counts) -> None:
        """Takes over the counts with which an earlier process closed the partition."""
        self._durable_counts = counts.ready, counts.leased, counts.scheduled, counts.created_sum

    # -- the pass

    def settled(self) -> None:
        """Called when the pass's batch is durable. Updates the counts that are reported."""
        contents = self.contents
        if contents.store is not None:
            self._durable_counts = contents.counts()
        self.relapses = 0

    def applied(self) -> None:
        """Called when the file has everything durable. Drops the part of the tail that is now on disk."""
        self.health.applied()
        contents = self.contents
        if contents.store is not None:
            contents.window.applied(contents.store.applied_through)

    def next_event_us(self) -> int:
        """When, on the queue's clock, a lease ends, an item expires or a scheduled item is due."""
        if not self.allows.lifecycle:
            return NEVER
        contents = self.contents
        soonest = min(contents.expiry.next_search_us(), contents.leases.next_end())
        next_due = contents.schedule.next_due
        return next_due if next_due < soonest and self.placement.requested is not State.PAUSED else soonest
