"""What time brings about in a queue: leases end, items expire, scheduled items come due. Part of the Logical's pass.

Work per pass is bounded, so that requests never wait long behind it; what is left over is done in the next pass.
"""

from __future__ import annotations

import msgspec

from querator.daemon.queue import moves
from querator.daemon.queue.lifecycle import CLIENT, EXPIRED, LEASE_EXPIRED, cause_of_death
from querator.daemon.queue.partition import TO_DIE_US, TO_MOVE_US, Lease, Partition, Sweep, failed
from querator.daemon.queue.passes import Pass
from querator.daemon.queue.schedule import NEVER
from querator.daemon.store import Due
from querator.items import Item, State
from querator.limits import LIFECYCLE_ITEMS_PER_PASS_MAX, SCHEDULED_WINDOW_ITEMS_MAX


def run(this: Pass) -> None:
    for partition in this.partitions:
        if 0 < partition.placement.resume_at < this.now_us:
            _resume(this, partition)
        if partition.swept:
            _finish_sweeps(this, partition)
        if partition.next_event_us() < this.now_us:
            _end_leases(this, partition)
            _enqueue_due(this, partition)
            _sweep(this, partition)
            if partition.next_event_us() < this.now_us:
                this.wake()
        if partition.schedule.count and partition.allows.lifecycle and partition.wants_scheduled():
            _load_scheduled(this, partition)


def _resume(this: Pass, partition: Partition) -> None:
    """A pause that was asked for a time is over. Should this not be recorded, it is over again after a restart."""
    partition.placement = msgspec.structs.replace(
        partition.placement, requested=State.AVAILABLE, since=this.now_us, resume_at=0
    )
    this.resumed(partition.placement)


def _end_leases(this: Pass, partition: Partition) -> None:
    now = this.now_us
    ended = partition.ended_leases(now, LIFECYCLE_ITEMS_PER_PASS_MAX)
    if not ended:
        return
    dead: dict[str, list[Lease]] = {}
    back: list[Lease] = []
    moving: list[Lease] = []
    for lease in map(_remembering, ended):
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
        partition.lost(back, now)
        partition.requeue([(lease.item, lease.attempts) for lease in back], now)
    for cause, leases in dead.items():
        moves.let_die(this, partition, leases, cause)
    this.tally("expired", sum([lease.deadline > TO_MOVE_US for lease in ended]))


def _remembering(lease: Lease) -> Lease:
    """An ended lease whose item remembers the attempt."""
    if lease.hold.ended_at:
        return failed(lease, "", lease.hold.ended_at)
    if lease.deadline in (TO_DIE_US, TO_MOVE_US):
        return lease  # its holder gave it up unused
    return failed(lease, LEASE_EXPIRED, lease.deadline)


def _enqueue_due(this: Pass, partition: Partition) -> None:
    if partition.state is State.PAUSED:
        return
    due = partition.schedule.due(this.now_us, LIFECYCLE_ITEMS_PER_PASS_MAX)
    if not due:
        return
    if moves.must_leave(this, partition):
        moves.send_due_elsewhere(this, partition, due)
        return
    partition.unschedule(due)
    partition.requeue([(item, item.attempts) for item in due], this.now_us)


def _load_scheduled(this: Pass, partition: Partition) -> None:
    store = partition.store
    assert store is not None
    partition.schedule.loading = True

    def done(due: Due) -> None:
        if partition.store is store:
            partition.schedule.loading = False
            partition.scheduled_loaded(due)
            this.wake()

    this.files.read(partition, lambda: store.scheduled(SCHEDULED_WINDOW_ITEMS_MAX), done, flush=True)


def _sweep(this: Pass, partition: Partition) -> None:
    """Searches for what has passed its expire deadline; the pass after the search acts on it."""
    now = this.now_us
    if partition.sweep is not Sweep.IDLE or partition.next_expiry >= now:
        return
    store = partition.store
    assert store is not None
    partition.sweep = Sweep.READING
    partition.next_expiry = NEVER

    def work() -> tuple[list[Item], int | None]:
        return store.expired(now, LIFECYCLE_ITEMS_PER_PASS_MAX), store.next_expiry()

    def done(result: tuple[list[Item], int | None]) -> None:
        if partition.store is store:
            partition.swept.append(result)
            this.wake()

    this.files.read(partition, work, done, flush=True)


def _finish_sweeps(this: Pass, partition: Partition) -> None:
    for expired, next_expiry in partition.swept:
        if not expired:
            partition.sweep = Sweep.IDLE
            if next_expiry is not None:
                partition.next_expiry = min(partition.next_expiry, next_expiry)
            continue
        partition.sweep = Sweep.LEAVING
        present = partition.waiting_among(expired)
        if present:
            moves.let_expire(this, partition, present, EXPIRED)
        partition.sweep_ended(this.now_us)
    partition.swept.clear()
