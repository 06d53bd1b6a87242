"""Scans of a queue's partitions while the queue goes on: slice after slice, each a read in its partition's turn.

A slice is fetched while the one before it is on its way to whoever asked, and no earlier: that is the back-pressure.
A partition that is closed or fails in the middle ends the scan with 454.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar, cast

import pyarrow as pa

from querator.daemon.admin import item_calls
from querator.daemon.queue.logical import Logical
from querator.daemon.queue.partition import Partition
from querator.daemon.store import Scan, Slice, SlicedStore, Store

T = TypeVar("T")


async def flush(logical: Logical, partition: Partition) -> int:
    """Brings everything into the partition's file; returns the highest sequence that a scan may now ask for."""
    upto = partition.last_seq
    await item_calls.read(logical, partition, lambda store: None)
    return upto


async def slices(
    logical: Logical, partition: Partition, scan: Scan, encode: Callable[[pa.RecordBatch], T]
) -> AsyncIterator[T]:
    """What `encode`, in a worker thread, makes of each slice that has rows. The partition has been flushed."""

    def read(store: Store, position: Scan) -> tuple[T | None, Slice]:
        slice = cast(SlicedStore, store).slice(position, partition.number)
        return encode(slice.batch) if slice.batch.num_rows else None, slice

    def start(position: Scan) -> asyncio.Task[tuple[T | None, Slice]]:
        return asyncio.ensure_future(
            item_calls.read(logical, partition, lambda store: read(store, position), flush=False)
        )

    coming = start(scan)
    try:
        while True:
            encoded, slice = await coming
            is_last = slice.last >= scan.upto
            if not is_last:
                scan = scan._replace(after=slice.last)
                coming = start(scan)
            if encoded is not None:
                yield encoded
            if is_last:
                return
    finally:
        coming.cancel()
