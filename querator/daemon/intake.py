"""Bulk items enter a queue: a chunk of a stream goes to one partition, all or none, like a produce.

The items are built in a worker thread; the loop only gives them their sequences and times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from querator.daemon import lifecycle
from querator.daemon.partition import Partition
from querator.daemon.requests import Intake
from querator.errors import InvalidRequest
from querator.limits import BULK_REQUEST_ID_KEPT_US, SCHEDULE_AHEAD_MIN_US

if TYPE_CHECKING:
    from querator.daemon.logical import Logical


OTHER_CONTENT = "request id is invalid; it was used before for other items"


def repeated(logical: Logical, request: Intake) -> InvalidRequest | None:
    """The answer to a chunk whose id is known: it was added before, or something else was."""
    return None if request.witness in logical.lasting_ids else InvalidRequest(OTHER_CONTENT)


def enter(logical: Logical, request: Intake, partition: Partition) -> None:
    """Answers with how many items were added, once they are durable. (A repetition is answered with None.)"""
    now = logical.now_us
    items = request.items
    expire = lifecycle.deadline(now, logical.queue.expire_timeout_ns)
    first = partition.allocate(len(items), now)
    for seq, item in enumerate(items, first):
        item.seq = seq
        # Kept from an earlier try that failed, or told by an import.
        item.created_at = item.created_at or now
        item.expire_deadline = item.expire_deadline or expire
    ready = items
    if request.timed:
        soon = now + SCHEDULE_AHEAD_MIN_US
        later = [item for item in items if item.enqueue_at >= soon]
        ready = [item for item in items if item.enqueue_at < soon]
        for item in ready:
            item.enqueue_at = 0
        if later:
            partition.add_scheduled(later)
    if ready:
        partition.enter(ready)
    if request.request_id:
        logical.remember(partition, [request.request_id, request.witness], BULK_REQUEST_ID_KEPT_US)
    logical.answer(request, len(items), partition)
    logical.tally("produced", len(items))
