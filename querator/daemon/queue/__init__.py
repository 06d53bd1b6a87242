"""The decisions of a queue: which partition takes an item, who leases it, and what happens to it in the end.

Everything here is pure: it works on memory and on the store contract, and knows neither threads, sockets nor the wall
clock. Others use the Logical and its partitions through their methods and never assign to their attributes. Blocking
work is handed to the driver as a `Read`, and items for another queue as a `Move`.

`logical` runs the pass. `passes` holds what its planners work on: `inbox`, `producing`, `intake`, `leasing`,
`completing`, `repeats`, `timers`, `moves` and `settling`. `partition` is a partition's state, `storage_health` holds
the faults of its storage, and `opening` opens its file. `contents` has its items: the waiting ones in `window`, those
for later in `schedule`, the leased ones in `leases`, and those on their way to another partition or queue in
`departing`.
"""

from querator.daemon.queue import lifecycle, states
from querator.daemon.queue.agenda import NEVER
from querator.daemon.queue.loading import Snapshot, read_snapshot
from querator.daemon.queue.logical import STOPPING, Logical
from querator.daemon.queue.partition import Partition
from querator.daemon.queue.passes import Death, Pass
from querator.daemon.queue.requests import (
    BULK_PREFIX,
    EXACT_PREFIXES,
    JOB_PREFIX,
    LOST_PREFIX,
    SOURCE_PREFIX,
    AnswerInParts,
    Arrival,
    Change,
    Columns,
    Complete,
    Extend,
    Intake,
    LeaseItems,
    Move,
    Produce,
    Read,
    Request,
    Respond,
    Retry,
    failing,
    key_of,
)
from querator.daemon.queue.states import Event, Standing, refusal

__all__ = [
    "BULK_PREFIX",
    "EXACT_PREFIXES",
    "JOB_PREFIX",
    "LOST_PREFIX",
    "NEVER",
    "SOURCE_PREFIX",
    "STOPPING",
    "AnswerInParts",
    "Arrival",
    "Change",
    "Columns",
    "Complete",
    "Death",
    "Event",
    "Extend",
    "Intake",
    "LeaseItems",
    "Logical",
    "Move",
    "Partition",
    "Pass",
    "Produce",
    "Read",
    "Request",
    "Respond",
    "Retry",
    "Snapshot",
    "Standing",
    "failing",
    "key_of",
    "lifecycle",
    "read_snapshot",
    "refusal",
    "states",
]
