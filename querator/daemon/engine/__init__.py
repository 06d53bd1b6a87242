"""The engine drives the queues: it owns the event loop's turns, the writes and the threads.

`turns` plans, writes and settles. `upkeep` brings files up to date with the journal and watches the room on disk.
`threads` runs blocking work for partitions. `disks` holds what the engine knows about a storage. The engine decides
nothing about items (that is `queue/`) and knows no calls.
"""

from querator.daemon.engine.turns import Turns
from querator.daemon.engine.upkeep import Upkeep

__all__ = ["Turns", "Upkeep"]
