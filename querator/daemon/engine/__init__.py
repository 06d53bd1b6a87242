"""The engine drives the queues: it owns the event loop's turns, the writes and the threads.

`turns` plans, writes and settles. `upkeep` brings files up to date with the journal and watches free space. `threads`
runs blocking work for partitions. `disks` holds what the engine knows about a storage. `waiting` has the coroutines
with which calls and jobs ask a queue for something. The engine decides nothing about items (that is `queue/`) and knows
no calls.
"""

from querator.daemon.engine.turns import Turns
from querator.daemon.engine.upkeep import Upkeep
from querator.daemon.engine.waiting import (
    ask,
    at_file,
    at_store,
    change,
    close_partition,
    open_partition,
    read,
)

__all__ = [
    "Turns",
    "Upkeep",
    "ask",
    "at_file",
    "at_store",
    "change",
    "close_partition",
    "open_partition",
    "read",
]
