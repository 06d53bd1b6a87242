"""Parks lease requests and leases items to them. Part of the Logical's pass."""

from __future__ import annotations

from itertools import islice
from sys import intern

from querator import limits
from querator.daemon.queue import completing, distribution, lifecycle
from querator.daemon.queue.contents import lease_runs
from querator.daemon.queue.parked import ParkedLeases
from querator.daemon.queue.partition import Partition
from querator.daemon.queue.passes import Pass
from querator.daemon.queue.requests import LeaseItems
from querator.errors import InvalidRequest
from querator.items import Hold
from querator.wire.leased import LeaseReply

DUPLICATE_CLIENT = "duplicate client id; a client cannot make multiple leased requests to the same queue"


def arrive(this: Pass, request: LeaseItems) -> None:
    """Completes the ids that a lease request carries, then parks the request."""
    if request.abandoned:
        if request.order:
            this.parked.free_client(request)
        return
    if request.order == 0 and request.client_id in this.parked.clients:
        this.answer(request, InvalidRequest(DUPLICATE_CLIENT))
        return
    if request.completes is not None:
        this.parked.reserve(request)
        if not completing.complete_for_lease(this, request, request.completes):
            return
    this.parked.park(request)


def serve(this: Pass) -> None:
    """Leases waiting items to parked requests, in the order of arrival."""
    parked = this.parked
    if len(this.order) == 1:
        partition = this.order[0]
        waiting = partition.contents.window.waiting
        if waiting and partition.allows.lease:
            _deal(this, partition, _first(parked, waiting))
    else:
        for partition, requests in _assign(this):
            _deal(this, partition, requests)
    if parked.waiting:
        for request in parked.newly_parked:
            if request.order in parked.waiting:
                this.deadlines.watch(request)
    parked.newly_parked.clear()


def _first(parked: ParkedLeases, count: int) -> list[LeaseItems]:
    """At most `count` requests, in the order of arrival. Each of them takes at least one item."""
    waiting = parked.waiting
    return list(waiting.values()) if len(waiting) <= count else list(islice(waiting.values(), count))


def _assign(this: Pass) -> list[tuple[Partition, list[LeaseItems]]]:
    """Assigns each request to the partition with the highest load, and subtracts what it may take from that load.

    A partition whose next items are being read has none to give until the read ends.
    """
    order = [p for p in this.order if p.allows.lease and p.contents.window.has_next()]
    if not order:
        return []
    if len(order) == 1:
        waiting = order[0].contents.window.waiting
        return [(order[0], _first(this.parked, waiting))] if waiting else []
    if len(this.parked.waiting) == 1:
        partition = _fullest(order)
        waiting = partition.contents.window.waiting
        return [(partition, _first(this.parked, waiting))] if waiting else []
    standing = [_Standing(partition) for partition in order]
    weights = [distribution.weight(one.partition.failures, one.waiting) for one in standing]
    distribution.sort(standing, weights)
    for request in this.parked.waiting.values():
        last = standing[-1]
        load = distribution.load(weights[-1])
        if not load and len(last.requests) >= last.waiting:
            break
        last.requests.append(request)
        distribution.shrank(standing, weights, len(standing) - 1, max(0, load - request.batch_size))
    return [(s.partition, s.requests) for s in standing if s.requests]


def _fullest(order: list[Partition]) -> Partition:
    """The partition with the highest weight. Of equals the last one, as if they were sorted."""
    fullest, heaviest = order[0], -1
    for partition in order:
        own = distribution.weight(partition.failures, partition.contents.window.waiting)
        if own >= heaviest:
            fullest, heaviest = partition, own
    return fullest


def _deal(this: Pass, partition: Partition, requests: list[LeaseItems]) -> None:
    now = this.now_us
    deadline = lifecycle.deadline(now, this.queue.lease_timeout_ns)
    if len(requests) == 1:
        request = requests[0]
        hold = Hold(intern(request.client_id), now, 0, "", request.token_name)
        if request.batch_size >= limits.HAND_ITEMS_MIN and _deal_runs(this, partition, requests, [hold], deadline):
            return
        hands = partition.contents.lease([request.batch_size], [hold], deadline)
        if hands:
            this.parked.serve(request)
            this.answers.append((request, LeaseReply(this.queue.name, partition.number, hands[0]), partition))
            this.leased += len(hands[0])
        return
    sizes = [request.batch_size for request in requests]
    holds = [Hold(intern(request.client_id), now, 0, "", request.token_name) for request in requests]
    if sum(sizes) >= limits.HAND_ITEMS_MIN * len(sizes) and _deal_runs(this, partition, requests, holds, deadline):
        return
    hands = partition.contents.lease(sizes, holds, deadline)
    serve, answers, name, number = this.parked.serve, this.answers, this.queue.name, partition.number
    for request, hand in zip(requests, hands, strict=False):
        if hand:
            serve(request)
            answers.append((request, LeaseReply(name, number, hand), partition))
    this.leased += sum(map(len, hands))


def _deal_runs(this: Pass, partition: Partition, requests: list[LeaseItems], holds: list[Hold], deadline: int) -> bool:
    """Leases items of large requests to large requests. False if the items must be leased one by one."""
    hands = lease_runs(partition.contents, [request.batch_size for request in requests], holds, deadline)
    for request, hand in zip(requests, hands, strict=False):
        if hand is not None:
            this.parked.serve(request)
            reply = LeaseReply(this.queue.name, partition.number, [], hand)
            this.answers.append((request, reply, partition))
            this.leased += len(hand)
    return bool(hands)


class _Standing:
    """A partition while leases are assigned. Its load is the number of items that it would have left to lease."""

    __slots__ = ("partition", "requests", "waiting")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.waiting = partition.contents.window.waiting
        self.requests: list[LeaseItems] = []
