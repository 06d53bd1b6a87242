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
from querator.items import Hold, Lease
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
    if request.completes is None or completing.complete_for_lease(this, request, request.completes):
        this.parked.park(request)


def serve_at_once(this: Pass, request: LeaseItems) -> None:
    """Serves the only request of a pass, which is new, while nobody waits. It is parked only if it gets nothing."""
    if request.completes is not None and not completing.complete_for_lease(this, request, request.completes):
        return
    partition = this.order[0]
    if not (partition.contents.window.waiting and partition.allows.lease and _deal_to_one(this, partition, request)):
        this.parked.park(request)
        serve(this)


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


def can_go_on(this: Pass) -> bool:
    """Whether the next pass can serve requests that still wait. Corrects the agenda if nobody waits any more."""
    this.parked.note_if_none()
    if not this.parked.waiting:
        return False
    return any(partition.allows.lease and partition.contents.window.has_next() for partition in this.order)


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
    if len(requests) == 1:
        _deal_to_one(this, partition, requests[0])
        return
    now = this.now_us
    deadline = lifecycle.deadline(now, this.lease_timeout_ns)
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


def _deal_to_one(this: Pass, partition: Partition, request: LeaseItems) -> bool:
    """Leases items to a single request. False if it gets nothing."""
    now = this.now_us
    deadline = lifecycle.deadline(now, this.lease_timeout_ns)
    hold = Hold(intern(request.client_id), now, 0, "", request.token_name)
    if request.batch_size >= limits.HAND_ITEMS_MIN and _deal_runs(this, partition, [request], [hold], deadline):
        return True
    hand: list[Lease] = []
    if request.batch_size == 1:
        lease = partition.contents.lease_one(hold, deadline)
        if lease is not None:
            hand.append(lease)
    else:
        hands = partition.contents.lease([request.batch_size], [hold], deadline)
        if hands:
            hand = hands[0]
    if not hand:
        return False
    if request.order:
        this.parked.serve(request)
    this.answers.append((request, LeaseReply(this.queue.name, partition.number, hand), partition))
    this.leased += len(hand)
    return True


def _deal_runs(this: Pass, partition: Partition, requests: list[LeaseItems], holds: list[Hold], deadline: int) -> bool:
    """Leases items of large requests to large requests. False if the items must be leased one by one."""
    hands = lease_runs(partition.contents, [request.batch_size for request in requests], holds, deadline)
    for request, hand in zip(requests, hands, strict=False):
        if hand is not None:
            if request.order:
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
