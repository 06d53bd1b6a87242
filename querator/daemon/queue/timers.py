"""Ends leases, expires items, and enqueues scheduled items that are due. Part of the Logical's pass.

A pass handles a bounded number of items, so that requests never wait long. The next pass handles the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from querator.daemon.queue import moves
from querator.daemon.queue.agenda import NEVER
from querator.daemon.queue.leases import TO_DIE_US, TO_MOVE_US, failed
from querator.daemon.queue.lifecycle import CLIENT, EXPIRED, LEASE_EXPIRED, cause_of_death
from querator.daemon.queue.partition import Partition
from querator.daemon.queue.passes import Pass
from querator.daemon.store import Due
from querator.items import Item, Lease, State
from querator.limits import LIFECYCLE_ITEMS_PER_PASS_MAX, SCHEDULED_WINDOW_ITEMS_MAX


def run(this: Pass) -> None:
    """Looks at all partitions. Called when something is due, or may be due because a partition has changed."""
    agenda = this.agenda
    for partition in this.partitions:
        if 0 < partition.placement.resume_at < this.now_us:
            _resume(this, partition)
        contents = partition.contents
        if contents.expiry.found and partition.allows.lifecycle:
            _expire_found(this, partition)
        if partition.next_event_us() < this.now_us:
            _end_leases(this, partition)
            _enqueue_due(this, partition)
            _search_expired(this, partition)
            if partition.next_event_us() < this.now_us:
                this.wake()
        if contents.schedule.count:
            agenda.look_at_all = True
            if partition.allows.lifecycle and contents.wants_scheduled():
                _load_scheduled(this, partition)
    agenda.event_us = next_event_us(this.partitions)


def next_event_us(partitions: Sequence[Partition]) -> int:
    """When, on the queue's clock, there is something to do without a request."""
    soonest = NEVER
    for partition in partitions:
        event_us = partition.next_event_us()
        if event_us < soonest:
            soonest = event_us
        if 0 < partition.placement.resume_at < soonest:
            soonest = partition.placement.resume_at
    return soonest


def _resume(this: Pass, partition: Partition) -> None:
    """Ends a pause with a time limit. If the catalog does not get to record this, the pause ends after a restart."""
    placement = msgspec.structs.replace(partition.placement, requested=State.AVAILABLE, since=this.now_us, resume_at=0)
    partition.change_placement(placement)
    this.resumed(placement)


def _end_leases(this: Pass, partition: Partition) -> None:
    now = this.now_us
    contents = partition.contents
    ended = contents.leases.take_ended(now, LIFECYCLE_ITEMS_PER_PASS_MAX)
    if not ended:
        return
    dead: dict[str, list[Lease]] = {}
    back: list[Lease] = []
    moving: list[Lease] = []
    for lease in map(_with_attempt, ended):
        cause = cause_of_death(lease.item, lease.attempts, now, this.queue.max_attempts)
        if lease.deadline == TO_DIE_US:
            dead.setdefault(CLIENT, []).append(lease)
        elif lease.deadline == TO_MOVE_US:
            moving.append(lease)
        elif cause:
            dead.setdefault(cause, []).append(lease)
        else:
            back.append(lease)
    if moving:
        moves.send_elsewhere(this, partition, moving)
    if back:
        contents.remove_lost(back, now)
        contents.requeue([(lease.item, lease.attempts) for lease in back], now)
    for cause, leases in dead.items():
        moves.let_die(this, partition, leases, cause)
    this.expired += sum([lease.deadline > TO_MOVE_US for lease in ended])


def _with_attempt(lease: Lease) -> Lease:
    """The ended lease, with this attempt in the history of its item."""
    if lease.hold.ended_at:
        return failed(lease, "", lease.hold.ended_at)
    if lease.deadline in (TO_DIE_US, TO_MOVE_US):
        return lease  # its holder gave it back unused
    return failed(lease, LEASE_EXPIRED, lease.deadline)


def _enqueue_due(this: Pass, partition: Partition) -> None:
    if partition.state is State.PAUSED:
        return
    contents = partition.contents
    due = contents.schedule.due(this.now_us, LIFECYCLE_ITEMS_PER_PASS_MAX)
    if not due:
        return
    if moves.must_leave(this, partition):
        moves.send_due_elsewhere(this, partition, due)
        return
    contents.unschedule(due)
    contents.requeue([(item, item.attempts) for item in due], this.now_us)


def _load_scheduled(this: Pass, partition: Partition) -> None:
    store = partition.store
    assert store is not None
    schedule = partition.contents.schedule
    schedule.loading = True

    def done(due: Due) -> None:
        if partition.store is store:
            schedule.loading = False
            partition.contents.scheduled_loaded(due)
            this.wake()

    this.files.read(partition, lambda: store.scheduled(SCHEDULED_WINDOW_ITEMS_MAX), done, flush=True)


def _search_expired(this: Pass, partition: Partition) -> None:
    """Starts a search for items past their expire deadline. The pass after it acts on what it finds."""
    now = this.now_us
    expiry = partition.contents.expiry
    if expiry.next_search_us() >= now:
        return
    store = partition.store
    assert store is not None
    expiry.begin()

    def work() -> tuple[list[Item], int | None]:
        return store.expired(now, LIFECYCLE_ITEMS_PER_PASS_MAX), store.next_expiry()

    def done(result: tuple[list[Item], int | None]) -> None:
        if partition.store is store:
            expiry.found.append(result)
            this.wake()

    this.files.read(partition, work, done, flush=True)


def _expire_found(this: Pass, partition: Partition) -> None:
    contents = partition.contents
    for expired, next_expiry in contents.expiry.take_found():
        if not expired:
            contents.expiry.nothing_found(next_expiry)
            continue
        contents.expiry.wait_for_departures()
        present = contents.waiting_among(expired)
        if present:
            moves.let_expire(this, partition, present, EXPIRED)
        contents.departures_ended(this.now_us)
