"""Scans partitions slice by slice while the queue keeps working. Each slice is one read of its partition.

The next slice is read while the last one is sent, and no earlier, so that a slow client slows the scan down. If the
partition closes or fails during the scan, the scan ends with 454.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, TypeVar, cast

from querator.daemon.engine import read
from querator.daemon.queue import Logical, Partition
from querator.daemon.registry import Registry
from querator.daemon.store import Scan, Slice, SlicedStore, Store
from querator.limits import SPLITS_MAX

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


async def flush(logical: Logical, partition: Partition) -> int:
    """Flushes everything into the partition's file. Returns the highest sequence that a scan can read now."""
    upto = partition.contents.last_seq
    await read(logical, partition, lambda store: None)
    return upto


async def split(logical: Logical, partition: Partition, table: str, upto: int, parts: int) -> tuple[int, list[int]]:
    """The number of rows, and the sequences at which parts of about the same number of rows end."""
    found = await read(
        logical,
        partition,
        lambda store: cast(SlicedStore, store).split(table, upto, min(parts, SPLITS_MAX)),
        flush=False,
    )
    return found.rows, found.bounds


async def slices(
    registry: Registry, logical: Logical, partition: Partition, scan: Scan, encode: Callable[[pa.RecordBatch], T]
) -> AsyncIterator[T]:
    """The encoded slices that have rows; `encode` runs in a worker thread. The caller has flushed the partition."""

    def read_slice(store: Store, position: Scan) -> tuple[T | None, Slice]:
        slice = cast(SlicedStore, store).slice(position, partition.number)
        return encode(slice.batch) if slice.batch.num_rows else None, slice

    async def next_slice(position: Scan) -> tuple[T | None, Slice]:
        async with registry.reading_on[partition.placement.uuid]:
            return await read(logical, partition, lambda store: read_slice(store, position), flush=False)

    def start(position: Scan) -> asyncio.Task[tuple[T | None, Slice]]:
        return asyncio.ensure_future(next_slice(position))

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
