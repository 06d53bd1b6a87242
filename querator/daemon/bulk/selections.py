"""Helpers for jobs on many items: find the items of a queue that meet a condition, and import them elsewhere, each
once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from querator.daemon.bulk import scans
from querator.daemon.bulk.sql import Filter, workers_of
from querator.daemon.bulk.writes import Parameters, Write
from querator.daemon.queue import Logical, Partition
from querator.daemon.registry import Registry
from querator.daemon.store import ITEMS, Scan
from querator.limits import BULK_CHUNK_BYTES_MAX, BULK_CHUNK_ROWS_MAX, NS_PER_SECOND

if TYPE_CHECKING:
    import pyarrow as pa

    from querator.daemon.bulk.stream_chunks import StreamChunk

_TIMEOUT_NS: Final = 2 * NS_PER_SECOND
"""A job tries again after this time, and looks in between whether it was cancelled."""


async def check_condition(registry: Registry, where: str) -> None:
    """Raises InvalidRequest if the condition is not valid."""
    await Filter(workers_of(registry), ITEMS, ["id"], where).prepare()


async def matching_rows(
    registry: Registry, logical: Logical, partition: Partition, columns: Sequence[str], where: str, upto: int
) -> AsyncIterator[pa.Table]:
    """The ready items that meet the condition, in order, with these columns and in tables that fit one pass."""
    import pyarrow as pa

    from querator.wire import arrow

    await scans.flush(logical, partition)
    wanted = Scan(ITEMS, tuple(columns), 0, upto, "ready")
    if not where:
        async for batch in scans.slices(registry, logical, partition, wanted, lambda batch: batch):
            for table in _cut(pa.Table.from_batches([batch])):
                yield table
        return
    filter = Filter(workers_of(registry), ITEMS, list(columns), where)
    start, needed_columns = await filter.prepare()
    needed = arrow.chosen(arrow.ITEM, needed_columns)
    slices = scans.slices(
        registry,
        logical,
        partition,
        wanted._replace(columns=tuple(needed.names)),
        lambda batch: arrow.encode_batches([batch], needed),
    )
    async for part in filter.matching(slices):
        for table in _cut(pa.ipc.open_stream(start + part).read_all()):
            yield table


def _cut(rows: pa.Table) -> Iterator[pa.Table]:
    per_table = max(1, min(BULK_CHUNK_ROWS_MAX, rows.num_rows * BULK_CHUNK_BYTES_MAX // max(1, rows.nbytes)))
    for first in range(0, rows.num_rows, per_table):
        yield rows.slice(first, per_table)


class Importer:
    """Imports items into one queue. The queue remembers their sources for a month, and imports each only once."""

    def __init__(self, registry: Registry, logical: Logical) -> None:
        parameters = Parameters(logical.queue.name, "", _TIMEOUT_NS, remember_sources=True)
        self._registry = registry
        self._write = Write(registry, lambda: logical.counters.leased, logical, parameters)

    async def add(self, rows: pa.Table) -> None:
        """Imports rows, except those that were imported before. They are durable when this returns."""
        await self._write.add(await self._registry.blocking(_chunk, rows))


def _chunk(rows: pa.Table) -> StreamChunk:
    from querator.daemon.bulk.stream_chunks import chunk_of
    from querator.wire import arrow

    (batch,) = rows.combine_chunks().to_batches()
    return chunk_of(arrow.fitted(batch, arrow.IMPORTED), 0)
