"""Moves items to the dead queue or to another partition of the same queue. Part of the Logical's pass.

The items are first produced at the destination, through that queue's own Logical. When that is durable, they are
removed here. The destination remembers a key of each item, so that a repeated move adds nothing, even after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from querator import ids
from querator.daemon.queue import lifecycle, repeats
from querator.daemon.queue.leases import TO_DIE_US, TO_MOVE_US, write_leases
from querator.daemon.queue.partition import Partition
from querator.daemon.queue.passes import Death, Pass
from querator.daemon.queue.requests import DEAD_PREFIX, MOVED_PREFIX, Arrival, Move, Retry, failing
from querator.daemon.store import Store
from querator.errors import QueratorError, RetryRequest
from querator.items import Item, Lease, State
from querator.limits import MOVE_KEPT_US

# -- leaving


def must_leave(this: Pass, partition: Partition) -> bool:
    """Whether an item that comes back to this partition must go to another one, because this one is draining.

    False until the keys of all partitions are known, because one of them may already have the item from before a crash.
    """
    return (
        partition.state is State.DRAINING
        and any(p.allows.produce for p in this.partitions if p is not partition)
        and not this.remembered.unread
    )


def let_die(this: Pass, partition: Partition, leases: list[Lease], reason: str, *, retry: Retry | None = None) -> None:
    """Lets the items of leases that were taken out die: moves them to the dead queue, or removes them."""
    target = this.queue.dead_queue
    items = [lease.item for lease in leases]
    if not target:
        partition.contents.remove_lost(leases, this.now_us)
        _record_deaths(this, partition, items, reason, "", leases)
        return
    copies = [
        lifecycle.dead_copy(lease.item, lease.id, lease.attempts, this.queue.name, reason, this.now_us)
        for lease in leases
    ]
    move = Move(partition, target, reason, items, copies, [DEAD_PREFIX + lease.id for lease in leases])
    move.leases = leases
    # An earlier process may have moved the item of a lease that ended before this process opened the partition.
    move.uncertain = any(lease.deadline < partition.opened_at for lease in leases)
    _depart(this, move, retry)


def let_expire(this: Pass, partition: Partition, items: list[Item], reason: str) -> None:
    """Lets waiting items that have expired die: moves them to the dead queue, or removes them."""
    target = this.queue.dead_queue
    if not target:
        partition.contents.remove_waiting(items)
        _record_deaths(this, partition, items, reason, "")
        return
    texts = ids.encode_many(partition.prefix, [item.seq for item in items])
    copies = [
        lifecycle.dead_copy(item, text, item.attempts, this.queue.name, reason, this.now_us)
        for item, text in zip(items, texts, strict=True)
    ]
    move = Move(partition, target, reason, items, copies, [DEAD_PREFIX + text for text in texts])
    move.uncertain = any(item.expire_deadline < partition.opened_at for item in items)
    partition.contents.window.forget(items)
    _depart(this, move, None)


def send_elsewhere(this: Pass, partition: Partition, leases: list[Lease], *, retry: Retry | None = None) -> None:
    """Moves the items of leases that were taken out to another partition of this queue."""
    items = [lease.item for lease in leases]
    copies = [
        msgspec.structs.replace(lease.item, attempts=lease.attempts, enqueue_at=0, birth=0, imported_deadline=0)
        for lease in leases
    ]
    move = Move(partition, this.queue.name, "", items, copies, [MOVED_PREFIX + lease.id for lease in leases])
    move.leases = leases
    _depart(this, move, retry)


def send_due_elsewhere(this: Pass, partition: Partition, items: list[Item]) -> None:
    """Moves scheduled items that are due to another partition of this queue."""
    copies = [msgspec.structs.replace(item, enqueue_at=0, birth=0) for item in items]
    texts = ids.encode_many(partition.prefix, [item.seq for item in items])
    move = Move(partition, this.queue.name, "", items, copies, [MOVED_PREFIX + text for text in texts])
    move.scheduled = True
    _depart(this, move, None)


def _depart(this: Pass, move: Move, retry: Retry | None) -> None:
    contents = move.partition.contents
    if retry is not None:
        move.retry = retry
        retry.open_moves += 1
        write_leases(contents.changes(), move.leases, TO_DIE_US if move.reason else TO_MOVE_US)
    if not move.scheduled:
        contents.departing.start(move.items, leased=bool(move.leases))
    this.moves.start(move)


# -- after the destination has answered


def finish_moves(this: Pass) -> None:
    """Ends the moves that were answered, and repeats the moves whose back-off is over."""
    this.moves.send_waiting(this.now_ns)
    for move, result in this.moves.take_ended():
        if isinstance(result, QueratorError):
            _failed(this, move)
        else:
            _arrived(this, move)


def _arrived(this: Pass, move: Move) -> None:
    partition = move.partition
    contents = partition.contents
    if move.scheduled:
        contents.unschedule(_still_scheduled(move))
        return
    present = contents.departing.end(move.items)
    if present:
        contents.remove(present)
        contents.remember_lost(present, this.now_us, stay=not move.reason)
        if move.reason:
            _record_deaths(this, partition, present, move.reason, move.target, move.leases)
    contents.departures_ended(this.now_us)
    if move.retry is not None:
        move.retry.open_moves -= 1
        if move.retry.open_moves == 0:
            this.moves.retrying.discard(move.retry)
            this.answer(move.retry, None, {partition})


def _still_scheduled(move: Move) -> list[Item]:
    scheduled = move.partition.contents.schedule.items
    return [item for item in move.items if scheduled.get(item.seq) is item]


def _failed(this: Pass, move: Move) -> None:
    """Gives the leases back if a client asked for the move; any other move is tried again until it succeeds."""
    partition = move.partition
    contents = partition.contents
    if move.retry is not None:
        for lease in move.leases:
            if contents.departing.end([lease.item]):
                contents.leases.put_back(contents.changes(), lease)
        this.moves.retrying.discard(move.retry)
        this.answer(move.retry, RetryRequest(failing(partition.number)))
        return
    departing = contents.departing.items
    if not (_still_scheduled(move) if move.scheduled else any(departing.get(i.seq) is i for i in move.items)):
        return
    if move.reason and not this.queue.dead_queue:
        # The queue no longer has a dead queue, so the items die without a copy.
        present = contents.departing.end(move.items)
        if move.leases:
            let_die(this, partition, [lease for lease in move.leases if lease.item in present], move.reason)
        else:
            contents.remove(present)
            _record_deaths(this, partition, present, move.reason, "")
        return
    move.target = this.queue.dead_queue if move.reason else this.queue.name
    # The keys of a move within the queue are enough. In a dead queue, the items' sources are looked up as well.
    move.uncertain = bool(move.reason)
    this.moves.postpone(move, this.now_ns)


def _record_deaths(
    this: Pass,
    partition: Partition,
    items: Sequence[Item],
    reason: str,
    dead_queue: str,
    died_in: Sequence[Lease] = (),
) -> None:
    """Records deaths, to be counted and logged once the pass is durable. `died_in` are the leases of leased items."""
    attempts = {lease.item.seq: lease.attempts for lease in died_in}
    texts = ids.encode_many(partition.prefix, [item.seq for item in items])
    for item, text in zip(items, texts, strict=True):
        tried = attempts.get(item.seq, item.attempts)
        this.died_in_pass(Death(partition, item, text, tried, reason, dead_queue))


# -- arriving


def enter(this: Pass, request: Arrival, partition: Partition) -> bool:
    """Adds the items that are not here yet. False if the files must be asked first, or if the request is refused."""
    if request.uncertain and request.checked is None:
        _check(this, request)
        return False
    closed = repeats.unread(this, request) if request.keys[0].startswith(MOVED_PREFIX) else None
    if closed is not None:
        # The items may have arrived before a crash, in this partition that cannot be read.
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
        contents = partition.contents
        first = contents.allocate(len(fresh), now)
        # An item that only changes partitions has an expire deadline. An item without one has died.
        expire = lifecycle.dead_deadline(now, this.queue.retention_ns)
        items = [
            msgspec.structs.replace(
                item, seq=seq, created_at=item.created_at or now, expire_deadline=item.expire_deadline or expire
            )
            for seq, (item, _) in enumerate(fresh, first)
        ]
        ready = [item for item in items if not item.enqueue_at]
        if ready:
            contents.enter(ready)
        if len(ready) < len(items):
            contents.add_scheduled([item for item in items if item.enqueue_at])
        repeats.remember(this, partition, [key for _, key in fresh], MOVE_KEPT_US)
    this.answer(request, None, partition)
    return True


def _check(this: Pass, request: Arrival) -> None:
    """Asks every partition which of the items it has already. Refuses the request if one cannot be asked."""
    closed = next((p for p in this.partitions if not p.allows.storage), None)
    if closed is not None:
        this.answer(request, RetryRequest(failing(closed.number)))
        return
    sources = [item.source_id for item in request.items if item.source_id]
    this.looking_up += 1

    def ended(answers: dict[Partition, set[str]], errors: list[Exception]) -> None:
        this.looking_up -= 1
        if errors:
            request.answer(RetryRequest(str(errors[0])))
        else:
            request.checked = set().union(*answers.values())
            this.inbox.insert(0, request)

    this.files.ask({partition: partial(_sources_in, partition.store, sources) for partition in this.partitions}, ended)


def _sources_in(store: Store | None, sources: list[str]) -> set[str]:
    assert store is not None
    return store.sources(sources)
