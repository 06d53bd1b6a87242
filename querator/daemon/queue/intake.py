"""Adds a chunk of a bulk stream to one partition, all of it or nothing. Part of the Logical's pass.

The pass sets the sequences and times of the items. It handles items one by one only if they are scheduled for later.
"""

from __future__ import annotations

from querator.daemon.queue import lifecycle, repeats
from querator.daemon.queue.contents import Contents
from querator.daemon.queue.partition import Partition
from querator.daemon.queue.passes import Pass
from querator.daemon.queue.requests import Columns, Intake
from querator.daemon.store import Rows
from querator.items import Item
from querator.limits import BULK_REQUEST_ID_KEPT_US, MOVE_KEPT_US, SCHEDULE_AHEAD_MIN_US


def enter(this: Pass, request: Intake, partition: Partition) -> None:
    """Answers with how many items were added, once they are durable. (A repetition is answered with None.)"""
    now = this.now_us
    expire = lifecycle.deadline(now, this.queue.expire_timeout_ns)
    if request.columns.rows:
        _enter_columns(request.columns, partition.contents, now, expire)
    if request.items:
        _enter_items(request.items, partition.contents, now, expire)
    if request.request_id:
        repeats.remember(this, partition, request.keys, BULK_REQUEST_ID_KEPT_US)
    if request.source_keys:
        # Only in the file: imports, which ask for these keys, read the files anyway.
        partition.contents.remember_keys(request.source_keys, [now + MOVE_KEPT_US] * len(request.source_keys))
    count = request.columns.rows + len(request.items)
    this.answer(request, count, partition)
    this.produced += count


def _enter_columns(columns: Columns, contents: Contents, now: int, expire: int) -> None:
    rows = Rows(contents.allocate(columns.rows, now), columns.rows, now, expire, columns.stream)
    expiries = [expire] if columns.has_rows_without_expiry else []
    if columns.first_expiry is not None:
        expiries.append(columns.first_expiry)
    contents.add_rows(rows, columns.created_sum + columns.rows_without_created_at * now, min(expiries))


def _enter_items(items: list[Item], contents: Contents, now: int, expire: int) -> None:
    for seq, item in enumerate(items, contents.allocate(len(items), now)):
        item.seq = seq
        # These times may be set already: by an import, or by an earlier attempt of this request.
        item.created_at = item.created_at or now
        item.expire_deadline = item.expire_deadline or expire
    soon = now + SCHEDULE_AHEAD_MIN_US
    later = [item for item in items if item.enqueue_at >= soon]
    ready = [item for item in items if item.enqueue_at < soon]
    for item in ready:
        item.enqueue_at = 0
    if later:
        contents.add_scheduled(later)
    if ready:
        contents.enter(ready)
