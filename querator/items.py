"""The types that all layers share: a stored item, its lease, a queue, a partition.

Times are microseconds since 1970 (UTC), durations nanoseconds. State that exists only in memory, such as windows, lives
with the partition in the daemon and not here.
"""

from __future__ import annotations

import enum
from typing import Any, Final, NamedTuple

import msgspec

from querator import limits

ZERO_TIME_US: Final = -62_135_596_800_000_000
"""0001-01-01T00:00:00Z, which the wire uses for "no deadline"."""


class Item(msgspec.Struct, array_like=True, gc=False):
    """A stored item. It never changes: a retried item is a new Item with a new seq."""

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
    """The sequence with which the item first entered this queue; 0 if it is still the same."""
    history: bytes = b""
    """A JSON list of `Event`: the last failed attempts and the deaths, oldest first. Empty if there are none."""
    imported_deadline: int = 0
    """The lease deadline that came with the import of an item that is not leased. Lists show it until a lease."""


class Hold(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True, gc=False):
    """The holder of a lease. All items of one lease request share one Hold."""

    client_id: str = ""
    leased_at: int = 0
    ended_at: int = 0
    """When the holder gave the item up; 0 while the holder has the lease."""
    reason: str = ""
    """The reason that the holder gave."""
    token_name: str = ""
    """The token with which the holder took the lease; empty if without one."""


NOBODY: Final = Hold()
"""The hold of an imported lease that names no holder."""


class Lease(msgspec.Struct, gc=False):
    """An item that a client holds. `attempts` counts this lease."""

    id: str
    item: Item
    attempts: int
    deadline: int
    hold: Hold = NOBODY


class Event(msgspec.Struct, omit_defaults=True):
    """An entry of an item's history: a failed attempt or, if it has a queue_name, a death in that queue."""

    at: int
    reason: str
    attempts: int
    """The number of the attempt. For a death: how many attempts there were."""
    client_id: str = ""
    """Only for an attempt: the client that held the item, and for how long."""
    held_us: int = 0
    queue_name: str = ""
    """Only for a death: the queue where the item died, and its id there."""
    source_id: str = ""


class Queue(msgspec.Struct, kw_only=True):
    """The settings of a queue, as the catalog stores them."""

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
    """How long this queue keeps items that died in another queue; 0 means forever."""


class State(enum.StrEnum):
    """The state of a partition (ADR 37). A failing storage sets `error` on top of the operator's choice."""

    AVAILABLE = "available"
    PAUSED = "paused"
    DRAINING = "draining"
    UNAVAILABLE = "unavailable"
    ERROR = "error"


class Role(enum.StrEnum):
    """What a caller may do on the queues that its patterns match. `daemon/access/roles.py` has the rights of each."""

    VIEWER = "viewer"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    OPERATOR = "operator"
    ADMIN = "admin"


class Token(msgspec.Struct, kw_only=True, frozen=True):
    """One secret that lets a caller in, as the catalog stores it. While a token is rotated, two have its name."""

    name: str
    digest: str
    """The SHA-256 of the whole text. The text itself is stored nowhere."""
    prefix: str
    """The first characters of the text, so that an operator can tell tokens apart."""
    role: Role
    queues: tuple[str, ...]
    """Glob patterns of queue names."""
    created_at: int
    created_by: str
    expires_at: int = 0
    """0 means never."""
    last_used_at: int = 0
    revoked_at: int = 0
    """0 unless the token was revoked. One revoked token is kept, so that a daemon that had tokens stays closed."""


class Job(msgspec.Struct, kw_only=True):
    """Long work on partitions. The catalog stores it, so that it continues after a restart."""

    job_id: str
    kind: str
    queue: str
    partition: int
    """The partition that the job works on now, if it has several."""
    state: str = "running"  # or "done", "failed", "cancelled"
    done: int = 0
    total: int = 0
    reason: str = ""
    created_at: int = 0
    ended_at: int = 0
    details: dict[str, Any] = {}
    """Parameters of this kind of job. `partitions` are the ones that no other job may work on meanwhile."""


class Counts(NamedTuple):
    """The number of items in a partition, and the sum of the creation times of those that are not scheduled."""

    ready: int
    leased: int
    scheduled: int
    created_sum: int

    @property
    def total(self) -> int:
        """The number of items that are not scheduled."""
        return self.ready + self.leased

    @property
    def stored(self) -> int:
        return self.total + self.scheduled


class Placement(msgspec.Struct, kw_only=True):
    """A partition as the catalog stores it: its file, its storage, and the state that the operator asked for."""

    queue: str
    number: int
    uuid: str
    storage: str
    requested: State = State.AVAILABLE
    since: int = 0
    resume_at: int = 0
    reason: str = ""


class Room(NamedTuple):
    """The free space on the file system of a storage."""

    free_bytes: int
    size_bytes: int

    @property
    def is_low(self) -> bool:
        return self.free_bytes < min(limits.ROOM_LOW_BYTES, limits.ROOM_LOW_SHARE * self.size_bytes)

    @property
    def free_percent(self) -> int:
        return 100 * self.free_bytes // self.size_bytes

    def __str__(self) -> str:
        return f"{self.free_bytes / 1e6:,.1f} MB of {self.size_bytes / 1e6:,.1f} MB are left"
