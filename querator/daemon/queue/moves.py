"""Items that change places: to the dead queue, or to another partition of the same queue.

A move is produced at its destination first, through that queue's own loop, and removed here when that is durable. Each
item carries a key that the destination remembers, so a move that is repeated, even after a crash, adds nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from querator import ids
from querator.daemon.queue import lifecycle, repeats
from querator.daemon.queue.partition import TO_DIE_US, TO_MOVE_US, Lease, Partition
from querator.daemon.queue.passes import Death, Pass
from querator.daemon.queue.requests import DEAD_PREFIX, MOVED_PREFIX, Arrival, Move, Retry, failing
from querator.errors import QueratorError, RetryRequest
from querator.items import Item, State
from querator.limits import MOVE_KEPT_US

# -- leaving


def must_leave(this: Pass, partition: Partition) -> bool:
    """What comes back to a draining partition goes elsewhere, if there is an elsewhere.

    The keys of all partitions must be known for that: one of them may say that it went there before a crash.
    """
    return (
        partition.state is State.DRAINING
        and any(p.allows.produce for p in this.partitions if p is not partition)
        and not this.remembered.unread
    )


def let_die(this: Pass, partition: Partition, leases: list[Lease], reason: str, *, retry: Retry | None = None) -> None:
    """These leases, taken out of `leased`, end in death."""
    target = this.queue.dead_queue
    if not target:
        partition.lost(leases, this.now_us)
        _tell(this, partition, [(lease.item, lease.id, lease.attempts) for lease in leases], reason, "")
        return
    items = [lease.item for lease in leases]
    copies = [
        lifecycle.dead_copy(lease.item, lease.id, lease.attempts, this.queue.name, reason, this.now_us)
        for lease in leases
    ]
    move = Move(partition, target, reason, items, copies, [DEAD_PREFIX + lease.id for lease in leases])
    move.leases = leases
    # A lease that ended before this process opened the partition may have been moved by the one before it.
    move.uncertain = any(lease.deadline < partition.opened_at for lease in leases)
    _depart(this, move, retry)


def let_expire(this: Pass, partition: Partition, items: list[Item], reason: str) -> None:
    """These items, which wait, die without having been leased."""
    target = this.queue.dead_queue
    texts = ids.encode_many(partition.prefix, [item.seq for item in items])
    if not target:
        partition.remove_waiting(items)
        told = [(item, text, item.attempts) for item, text in zip(items, texts, strict=True)]
        _tell(this, partition, told, reason, "")
        return
    copies = [
        lifecycle.dead_copy(item, text, item.attempts, this.queue.name, reason, this.now_us)
        for item, text in zip(items, texts, strict=True)
    ]
    move = Move(partition, target, reason, items, copies, [DEAD_PREFIX + text for text in texts])
    move.uncertain = any(item.expire_deadline < partition.opened_at for item in items)
    _depart(this, move, None)


def send_elsewhere(this: Pass, partition: Partition, leases: list[Lease], *, retry: Retry | None = None) -> None:
    """These leases, taken out of `leased`, come back in another partition of this queue."""
    items = [lease.item for lease in leases]
    copies = [
        msgspec.structs.replace(lease.item, attempts=lease.attempts, enqueue_at=0, birth=0, imported_deadline=0)
        for lease in leases
    ]
    move = Move(partition, this.queue.name, "", items, copies, [MOVED_PREFIX + lease.id for lease in leases])
    move.leases = leases
    _depart(this, move, retry)


def send_due_elsewhere(this: Pass, partition: Partition, items: list[Item]) -> None:
    """These scheduled items, which are due, enter another partition of this queue."""
    copies = [msgspec.structs.replace(item, enqueue_at=0, birth=0) for item in items]
    texts = ids.encode_many(partition.prefix, [item.seq for item in items])
    move = Move(partition, this.queue.name, "", items, copies, [MOVED_PREFIX + text for text in texts])
    move.scheduled = True
    _depart(this, move, None)


def _depart(this: Pass, move: Move, retry: Retry | None) -> None:
    if retry is not None:
        move.retry = retry
        retry.open_moves += 1
        move.partition.let_go(move.leases, TO_DIE_US if move.reason else TO_MOVE_US)
    if not move.scheduled:
        move.partition.start_dying(move.items, leased=bool(move.leases))
    this.moves.start(move)


# -- having arrived


def finish_moves(this: Pass) -> None:
    """Acts on what became of moves, and starts those again whose time has come."""
    this.moves.send_waiting(this.now_ns)
    for move, result in this.moves.take_ended():
        if isinstance(result, QueratorError):
            _try_again(this, move)
        else:
            _arrived(this, move)


def _arrived(this: Pass, move: Move) -> None:
    partition = move.partition
    if move.scheduled:
        partition.unschedule([item for item in move.items if partition.schedule.items.get(item.seq) is item])
        return
    present = partition.stop_dying(move.items)
    if present:
        partition.changes().remove += [item.seq for item in present]
        partition.created_sum -= sum([item.created_at for item in present])
        partition.remember_lost(present, this.now_us, stay=not move.reason)
        if move.reason:
            attempts = {lease.item.seq: lease.attempts for lease in move.leases}
            texts = ids.encode_many(partition.prefix, [item.seq for item in present])
            told = [(i, text, attempts.get(i.seq, i.attempts)) for i, text in zip(present, texts, strict=True)]
            _tell(this, partition, told, move.reason, move.target)
    partition.sweep_ended(this.now_us)
    if move.retry is not None:
        move.retry.open_moves -= 1
        if move.retry.open_moves == 0:
            this.moves.retrying.discard(move.retry)
            this.answer(move.retry, None, {partition})


def _try_again(this: Pass, move: Move) -> None:
    """A move that failed: the client's own is handed back to it, any other is tried again until it succeeds."""
    partition = move.partition
    if move.retry is not None:
        for lease in move.leases:
            if partition.stop_dying([lease.item]):
                partition.take_back(lease)
        this.moves.retrying.discard(move.retry)
        this.answer(move.retry, RetryRequest(failing(partition.number)))
        return
    still_here = partition.schedule.items if move.scheduled else partition.dying
    if not any(still_here.get(item.seq) is item for item in move.items):
        return
    if move.reason and not this.queue.dead_queue:
        # The dead queue is gone: what is left to do is what happens without one.
        present = partition.stop_dying(move.items)
        if move.leases:
            let_die(this, partition, [lease for lease in move.leases if lease.item in present], move.reason)
        else:
            partition.changes().remove += [item.seq for item in present]
            partition.created_sum -= sum([item.created_at for item in present])
            texts = ids.encode_many(partition.prefix, [item.seq for item in present])
            told = [(item, text, item.attempts) for item, text in zip(present, texts, strict=True)]
            _tell(this, partition, told, move.reason, "")
        return
    move.target = this.queue.dead_queue if move.reason else this.queue.name
    # Within the queue keys say it all; an item's source is found at its old place, too.
    move.uncertain = bool(move.reason)
    this.moves.postpone(move, this.now_ns)


def _tell(this: Pass, partition: Partition, dead: list[tuple[Item, str, int]], reason: str, dead_queue: str) -> None:
    for item, item_id, attempts in dead:
        this.deaths.append(Death(partition, item, item_id, attempts, reason, dead_queue))


# -- arriving


def enter(this: Pass, request: Arrival, partition: Partition) -> bool:
    """Takes items in that come from elsewhere, those that are not here yet. False if that must be looked up first."""
    if request.uncertain and request.checked is None:
        _check(this, request)
        return False
    closed = repeats.unread(this, request) if request.keys[0].startswith(MOVED_PREFIX) else None
    if closed is not None:
        # It may have been here before a crash, and that partition may be where it went.
        this.answer(request, RetryRequest(failing(closed.number)))
        return False
    here = request.checked or set()
    now = this.now_us
    known = this.remembered
    fresh = [
        (item, key)
        for item, key in zip(request.items, request.keys, strict=True)
        if not (known.has(key, now) or key in request.found or (item.source_id and item.source_id in here))
    ]
    if fresh:
        first = partition.allocate(len(fresh), now)
        # What only changes partitions has its deadline; what has none has died.
        expire = lifecycle.dead_deadline(now, this.queue.retention_ns)
        items = [
            msgspec.structs.replace(
                item, seq=seq, created_at=item.created_at or now, expire_deadline=item.expire_deadline or expire
            )
            for seq, (item, _) in enumerate(fresh, first)
        ]
        ready = [item for item in items if not item.enqueue_at]
        if ready:
            partition.enter(ready)
        if len(ready) < len(items):
            partition.add_scheduled([item for item in items if item.enqueue_at])
        repeats.remember(this, partition, [key for _, key in fresh], MOVE_KEPT_US)
    this.answer(request, None, partition)
    return True


def _check(this: Pass, request: Arrival) -> None:
    """Asks every partition whether it has one of these items already; one that cannot be asked makes it fail."""
    closed = next((p for p in this.partitions if not p.allows.storage), None)
    if closed is not None:
        this.answer(request, RetryRequest(failing(closed.number)))
        return
    sources = [item.source_id for item in request.items if item.source_id]
    found: set[str] = set()
    open_reads = len(this.partitions)
    this.looking_up += 1

    def ended(here: set[str]) -> None:
        nonlocal open_reads
        found.update(here)
        open_reads -= 1
        if open_reads == 0:
            this.looking_up -= 1
            request.checked = found
            this.inbox.appendleft(request)
            this.wake()

    def failed(error: Exception) -> None:
        request.answer(RetryRequest(str(error)))
        ended(set())

    for partition in this.partitions:
        store = partition.store
        assert store is not None

        def work(store: Any = store) -> set[str]:
            here: set[str] = store.sources(sources)
            return here

        this.files.read(partition, work, ended, flush=True, failed=failed)
