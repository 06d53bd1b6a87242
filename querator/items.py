"""The types that everything shares: an item as it is stored, a queue, a partition.

Times are microseconds since 1970 (UTC), durations nanoseconds. What is only remembered in memory (leases held,
windows, states) lives with the partition in the daemon, not here.
"""

from __future__ import annotations

import enum
from typing import Any, Final, NamedTuple

import msgspec

from querator import limits

ZERO_TIME_US: Final = -62_135_596_800_000_000
"""0001-01-01T00:00:00Z, which the wire uses for "no deadline"."""


class Item(msgspec.Struct, array_like=True, gc=False):
    """One item as storage keeps it. It is replaced, never changed: a retried item is a new Item with a new seq."""

    seq: int
    created_at: int
    expire_deadline: int
    payload: bytes = b""
    kind: str = ""
    reference: str = ""
    encoding: str = ""
    attempts: int = 0
    max_attempts: int = 0
    source_id: str = ""
    enqueue_at: int = 0
    """When a scheduled item is due; 0 for an item that is not scheduled."""
    birth: int = 0
    """The sequence under which the item first entered this queue; 0 when it still has it."""
    history: bytes = b""
    """JSON list of `Event`: its last failed attempts and its deaths, oldest first. Empty for an item without either."""
    imported_deadline: int = 0
    """The lease deadline with which an item was imported that is not leased: told in lists until it is leased."""


class Hold(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True, gc=False):
    """Who holds a lease. All items that one lease request got share one Hold."""

    client_id: str = ""
    leased_at: int = 0
    ended_at: int = 0
    """When the holder gave the item up, if it did; 0 while the lease is held."""
    reason: str = ""
    """What the holder said when it gave the item up."""


NOBODY: Final = Hold()
"""The hold of an imported lease that names no holder."""


class Event(msgspec.Struct, omit_defaults=True):
    """One entry of an item's history: an attempt that failed or, if it has a queue_name, a death in that queue."""

    at: int
    reason: str
    attempts: int
    """The number of the attempt; of a death, how many attempts there were."""
    client_id: str = ""
    """Who held the item, and how long; an attempt has these."""
    held_us: int = 0
    queue_name: str = ""
    """Where the item died, and its id there; a death has these."""
    source_id: str = ""


class Queue(msgspec.Struct, kw_only=True):
    """A queue's settings as the catalog keeps them."""

    name: str
    namespace: str = "_system"
    lease_timeout_ns: int
    expire_timeout_ns: int
    max_attempts: int = 0
    dead_queue: str = ""
    reference: str = ""
    requested_partitions: int = 1
    created_at: int = ZERO_TIME_US
    updated_at: int = ZERO_TIME_US
    retention_ns: int = 0
    """How long items are kept that died in another queue and came here; 0 is for ever."""


class State(enum.StrEnum):
    """What a partition allows (ADR 23). `error` is laid over what the operator asked for by a failing storage."""

    AVAILABLE = "available"
    PAUSED = "paused"
    DRAINING = "draining"
    UNAVAILABLE = "unavailable"
    ERROR = "error"


class Job(msgspec.Struct, kw_only=True):
    """Long work on partitions as the catalog keeps it, so that it goes on after a restart."""

    job_id: str
    kind: str
    queue: str
    partition: int
    """The one that it works on at present, if it has several."""
    state: str = "running"  # or "done", "failed", "cancelled"
    done: int = 0
    total: int = 0
    reason: str = ""
    created_at: int = 0
    ended_at: int = 0
    details: dict[str, Any] = {}
    """What this kind of job needs to know; `partitions` are all that nobody else may work on meanwhile."""


class Counts(NamedTuple):
    """How many items a partition holds, and the sum of the times at which those that are not scheduled were made."""

    ready: int
    leased: int
    scheduled: int
    created_sum: int


class Placement(msgspec.Struct, kw_only=True):
    """A partition as the catalog keeps it: which file, where, and what the operator asked for."""

    queue: str
    number: int
    uuid: str
    storage: str
    requested: State = State.AVAILABLE
    since: int = 0
    resume_at: int = 0
    reason: str = ""


class Room(NamedTuple):
    """What is left of the file system of a storage."""

    free_bytes: int
    size_bytes: int

    @property
    def is_low(self) -> bool:
        return self.free_bytes < min(limits.ROOM_LOW_BYTES, limits.ROOM_LOW_SHARE * self.size_bytes)

    def __str__(self) -> str:
        return f"{self.free_bytes / 1e6:,.1f} MB of {self.size_bytes / 1e6:,.1f} MB are left"
