"""Ends a pass: answers its requests once its batches are durable, or plans them again. Part of the Logical's pass."""

from __future__ import annotations

from querator.daemon.queue import repeats
from querator.daemon.queue.partition import Partition
from querator.daemon.queue.passes import Death, Pass
from querator.daemon.queue.requests import Arrival, LeaseItems, Produce, Request, failing
from querator.errors import QueratorError, RetryRequest
from querator.wire.leased import LeaseReply


def succeed(this: Pass) -> None:
    """Answers the requests of a pass whose batches are all durable."""
    # The answers go first, because clients wait for them and for nothing that follows.
    for request, result, _ in this.answers:
        request.answer(result)
    for partition in this.touched:
        partition.settled()
    counters = this.counters
    if this.produced:
        counters.produced += this.produced
        this.produced = 0
    if this.leased:
        counters.leased += this.leased
        this.leased = 0
    if this.completed:
        counters.completed += this.completed
        this.completed = 0
    if this.retried or this.expired:
        counters.retried += this.retried
        counters.expired += this.expired
        this.retried = this.expired = 0
    if this.deaths:
        for death in this.deaths:
            _count_death(this, death)


def withhold(this: Pass, reason: str) -> None:
    """Turns every successful answer of the pass into an error. The next pass takes back the items of leases that were
    not answered.
    """
    error = RetryRequest(reason)
    for number, (request, result, after) in enumerate(this.answers):
        if isinstance(result, LeaseReply):
            this.undelivered.append(result)
            this.wake()
        if not isinstance(result, QueratorError):
            this.answers[number] = request, error, after


def fail(this: Pass, failed: dict[Partition, str]) -> None:
    """Settles a pass in which the batches of these partitions failed, for the given reasons.

    A produce or a lease that depends on one of them is planned again. Any other request that does is refused, and so is
    a lease whose completes depend on one of them.
    """
    this.forget_counts()
    for partition, reason in failed.items():
        this.files.fail(partition, reason)
    refused = _refuse_leases(this, failed)
    for request, result, after in this.answers:
        needed = after if isinstance(after, set) else {after}
        bad = next((partition for partition in failed if partition in needed), None)
        if request in refused:
            if bad is None and isinstance(result, LeaseReply):
                this.undelivered.append(result)
        elif bad is None:
            request.answer(result)
        elif isinstance(request, Produce | Arrival):
            repeats.take_back(this, request)
            this.hold_up(request)
        elif isinstance(request, LeaseItems):
            this.parked.park(request)
            this.deadlines.watch(request)
        else:
            request.answer(RetryRequest(failing(bad.number)))
    for death in this.deaths:
        if death.partition not in failed:
            _count_death(this, death)
    this.moves.call_off(failed)
    this.parked.restore_order()
    this.wake()


def _refuse_leases(this: Pass, failed: dict[Partition, str]) -> set[Request]:
    """Refuses the leases whose completes are not durable, whether they got items or wait for some."""
    refused: set[Request] = set()
    for request in this.taken:
        if isinstance(request, LeaseItems):
            bad = next((partition for partition in failed if partition in request.completed_in), None)
            if bad is not None:
                refused.add(request)
                this.parked.remove(request)
                request.answer(RetryRequest(failing(bad.number)))
    return refused


def break_off(this: Pass, error: QueratorError) -> None:
    """Answers every request that a pass has looked at, or would have taken in, after its plan broke off. A parked lease
    that it served is only among the answers.
    """
    for request, _, after in this.answers:
        if after is not None and isinstance(request, Produce | Arrival):
            repeats.take_back(this, request)
    for request in [*this.taken, *this.inbox, *[request for request, _, _ in this.answers]]:
        if isinstance(request, LeaseItems):
            request.abandoned = True  # a look-up that is under way must not park it
            this.parked.remove(request)
        request.answer(error)
    this.inbox.clear()
    this.moves.call_off(this.partitions)


def _count_death(this: Pass, death: Death) -> None:
    this.counters.dead[death.reason] += 1
    this.died(death)
