"""Counts and totals of queues and partitions, from memory alone: for answers, metrics and the log."""

from __future__ import annotations

from collections import Counter

from querator.daemon.metrics import PartitionStatistics, QueueStatistics
from querator.daemon.queue import Logical, Partition


def count_by_state(*partitions: Partition) -> Counter[str]:
    """Counts the ready, leased and scheduled items of the partitions."""
    counts = Counter(ready=0, leased=0, scheduled=0)
    for partition in partitions:
        here = partition.counts
        counts.update(ready=here.ready, leased=here.leased, scheduled=here.scheduled)
    return counts


def statistics_of(logical: Logical) -> QueueStatistics:
    counters = logical.counters
    return QueueStatistics(
        produced=counters.produced,
        leased=counters.leased,
        completed=counters.completed,
        retried=counters.retried,
        expired=counters.expired,
        dead_lettered=dict(counters.dead),
        waiting=logical.waiting_requests(),
        oldest_created_at=logical.oldest_created_at(),
        partitions=[
            PartitionStatistics(one.number, str(one.reported_state), one.trouble, **count_by_state(one))
            for one in logical.partitions
        ],
    )
