"""Leases wait for items, and get them. Part of the Logical's pass."""

from __future__ import annotations

from itertools import islice
from sys import intern
from typing import TYPE_CHECKING

from querator.daemon.queue import completing, distribution, lifecycle
from querator.daemon.queue.partition import Partition
from querator.daemon.queue.requests import Delivery, LeaseItems
from querator.errors import InvalidRequest
from querator.items import Hold

if TYPE_CHECKING:
    from querator.daemon.queue.logical import Logical

DUPLICATE_CLIENT = "duplicate client id; a client cannot make multiple leased requests to the same queue"


def arrive(logical: Logical, request: LeaseItems) -> None:
    """A lease comes in: it completes what it brings along, then it waits with the others."""
    if request.abandoned:
        if request.order:
            logical.clients.discard(request.client_id)
        return
    if request.order == 0 and request.client_id in logical.clients:
        logical.answer(request, InvalidRequest(DUPLICATE_CLIENT))
        return
    if request.completes is not None:
        request.order = request.order or next(logical.orders)
        logical.clients.add(request.client_id)
        if not completing.complete_for_lease(logical, request, request.completes):
            return
    park(logical, request)


def park(logical: Logical, request: LeaseItems) -> None:
    if request.abandoned:
        logical.clients.discard(request.client_id)
        return
    if request.order == 0:
        request.order = next(logical.orders)
    logical.parked[request.order] = request
    logical.clients.add(request.client_id)
    logical.newly_parked.append(request)


def serve(logical: Logical) -> None:
    """Deals what waits to those who wait, in arrival order."""
    if not logical.parked:
        return
    for partition, requests in _assign(logical):
        _deal(logical, partition, requests)
    for request in logical.newly_parked:
        if request.order in logical.parked:
            logical.watch(request)
    logical.newly_parked.clear()


def _assign(logical: Logical) -> list[tuple[Partition, list[LeaseItems]]]:
    """Which partition serves whom: each request the last healthy one, whose count drops by what it may take."""
    order = [p for p in logical.order if p.allows.lease and p.failures == 0]
    if not order:
        return []
    if len(order) == 1:
        only = order[0]
        return [(only, list(islice(logical.parked.values(), only.waiting)))] if only.waiting else []
    standing = [_Standing(partition) for partition in order]
    distribution.sort(standing)
    for request in logical.parked.values():
        last = standing[-1]
        if not last.load and len(last.requests) >= last.partition.waiting:
            break
        last.requests.append(request)
        last.load -= min(last.load, request.batch_size)
        distribution.shrank(standing, len(standing) - 1)
    return [(s.partition, s.requests) for s in standing if s.requests]


def _deal(logical: Logical, partition: Partition, requests: list[LeaseItems]) -> None:
    now = logical.now_us
    sizes = [request.batch_size for request in requests]
    holds = [Hold(intern(request.client_id), now) for request in requests]
    hands = partition.lease(sizes, holds, lifecycle.deadline(now, logical.queue.lease_timeout_ns))
    for request, hand in zip(requests, hands, strict=False):
        if hand:
            del logical.parked[request.order]
            logical.clients.discard(request.client_id)
            logical.answer(request, Delivery(partition.number, hand), partition)
    logical.tally("leased", sum(map(len, hands)))


class _Standing:
    """A partition while leases are assigned. Its load is what it would have left to lease."""

    __slots__ = ("failures", "load", "partition", "requests")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.failures = partition.failures
        self.load = partition.waiting
        self.requests: list[LeaseItems] = []
