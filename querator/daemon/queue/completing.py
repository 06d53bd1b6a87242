"""Completes, retries and extends leases. Part of the Logical's pass.

Leased ids are in memory. Any other id is looked up in storage first, because the answer depends on its item: a complete
of a removed item is ignored, a waiting item is refused, and an item that came back under a new id means that the lease
was lost. A request changes nothing before all its ids are known, so that it takes effect in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import repeat

import msgspec

from querator import ids
from querator.daemon.queue import lifecycle, moves
from querator.daemon.queue.contents import remove_hand, returned
from querator.daemon.queue.leases import failed
from querator.daemon.queue.partition import Partition
from querator.daemon.queue.passes import Pass
from querator.daemon.queue.requests import LOST_PREFIX, Complete, Extend, LeaseItems, Request, Retry, failing
from querator.daemon.store import Found, Store
from querator.errors import InvalidRequest, QueratorError, RetryRequest
from querator.items import Lease
from querator.limits import SCHEDULE_AHEAD_MIN_US

LOST = Found("lost", None, 0, 0)
Held = tuple[Partition, Lease]


class Unknown(Exception):
    """Ids that storage must be asked about, by partition."""

    def __init__(self, wanted: dict[Partition, dict[str, int]]) -> None:
        self.wanted = wanted


def proceed(this: Pass, request: Request) -> None:
    """Carries out a complete, retry or extend, or starts to look up its unknown ids."""
    try:
        if isinstance(request, Complete):
            this.answer(request, _complete(this, request), request.touched)
        elif isinstance(request, Retry):
            _retry(this, request)
        elif isinstance(request, Extend):
            this.answer(request, _extend(this, request), request.touched)
    except Unknown as unknown:
        assert isinstance(request, Complete | Retry | Extend)
        _look_up(this, request, unknown, resume=request)


def complete_for_lease(this: Pass, lease: LeaseItems, completes: Complete) -> bool:
    """Completes the ids that a lease request carries. False if the lease must wait for a look-up, or was refused."""
    try:
        error = _complete(this, completes)
    except Unknown as unknown:
        this.parked.reserve(lease)
        _look_up(this, completes, unknown, resume=lease)
        return False
    lease.completes, lease.completed_in = None, completes.touched
    if error is not None:
        this.parked.free_client(lease)
        this.answer(lease, error, completes.touched)
        return False
    return True


def _holder(this: Pass, number: int, item_id: str) -> Partition:
    """The partition in which an id is leased, or the partition with the given number if none has it."""
    if len(this.order) == 1:
        return this.order[0]
    # The queue may have lost partitions since the number was checked.
    named = this.partitions[min(number, len(this.partitions) - 1)]
    if item_id in named.contents.leases.by_id:
        return named
    return next((partition for partition in this.partitions if partition.contents.leases.holds(item_id)), named)


def _separate(this: Pass, wanted: Sequence[str]) -> None:
    """Makes single leases of the hands that have one of these ids, because their leases are treated one by one."""
    for partition in this.partitions:
        if partition.contents.leases.hands:
            partition.contents.leases.separate(wanted)


def _complete(this: Pass, request: Complete) -> QueratorError | None:
    hint = _holder(this, request.number, request.ids[0])
    here = hint.contents.leases
    if here.in_hands and hint.allows.complete:
        hand = here.take_hand(request.ids)
        if hand is not None:
            remove_hand(hint.contents, hand)
            request.touched.add(hint)
            this.completed += len(hand)
            return None
    if here.in_hands or len(this.order) > 1:
        _separate(this, request.ids)
    by_id = here.by_id
    if len(request.ids) == 1 and hint.allows.complete:
        lease = by_id.pop(request.ids[0], None)
        if lease is not None:
            _completed(this, request, hint, [lease])
            return None
    elif by_id and hint.allows.complete:
        leases = list(map(by_id.pop, request.ids, repeat(None)))
        if None not in leases:
            _completed(this, request, hint, leases)  # type: ignore[arg-type]
            return None
        by_id.update([(lease.id, lease) for lease in leases if lease is not None])
    held, error = _find(this, request.known, hint, request.ids, "completed", ignore_absent=True)
    by_partition: dict[Partition, list[Lease]] = {}
    for partition, lease in held:
        if partition.contents.leases.by_id.pop(lease.id, None) is not None:
            by_partition.setdefault(partition, []).append(lease)
    for partition, leases_here in by_partition.items():
        _completed(this, request, partition, leases_here)
    return error


def _completed(this: Pass, request: Complete, partition: Partition, leases: list[Lease]) -> None:
    partition.contents.remove_completed(leases)
    request.touched.add(partition)
    this.completed += len(leases)


def _retry(this: Pass, request: Retry) -> None:
    wanted = [item.id for item in request.items]
    _separate(this, wanted)
    hint = _holder(this, request.number, wanted[0])
    held, error = _find(this, request.known, hint, wanted, "retried", once=True)
    request.handed_back = len(held)
    now = this.now_us
    soon = now + SCHEDULE_AHEAD_MIN_US
    moving: dict[tuple[Partition, str], list[Lease]] = {}
    for (partition, lease), item in zip(held, request.items, strict=False):
        contents = partition.contents
        del contents.leases.by_id[lease.id]
        request.touched.add(partition)
        if item.unused and not item.dead:
            lease = _without_this_attempt(lease)
        else:
            lease = failed(lease, item.reason, now)
        if item.dead:
            moving.setdefault((partition, lifecycle.CLIENT), []).append(lease)
        elif item.retry_at is not None and item.retry_at >= soon:
            contents.remove_lost([lease], now)
            seq = contents.allocate(1, now)
            contents.add_scheduled([returned(lease.item, seq, lease.attempts, enqueue_at=item.retry_at)])
        elif moves.must_leave(this, partition):
            moving.setdefault((partition, ""), []).append(lease)
        else:
            contents.remove_lost([lease], now)
            contents.requeue([(lease.item, lease.attempts)], now)
    this.retried += len(held)
    for (partition, reason), leases in moving.items():
        if reason:
            moves.let_die(this, partition, leases, reason, retry=request)
        else:
            moves.send_elsewhere(this, partition, leases, retry=request)
    if not request.open_moves or error is not None:
        this.answer(request, error, request.touched)


def _without_this_attempt(lease: Lease) -> Lease:
    """The same lease, not counted as an attempt, because nobody worked on its item."""
    return msgspec.structs.replace(lease, attempts=max(0, lease.attempts - 1))


def take_back_undelivered(this: Pass) -> None:
    """Requeues the items of leases whose client closed its connection before the answer was ready."""
    undelivered, this.undelivered = this.undelivered, []
    for delivery in undelivered:
        partition = this.partitions[delivery.partition]
        contents = partition.contents
        by_id = contents.leases.by_id
        delivered = delivery.leases
        if delivery.hand is not None:
            delivered = delivery.hand.leases()
            contents.leases.separate(delivery.hand.ids)
        leases = [lease for lease in delivered if lease.id in by_id and by_id[lease.id] is lease]
        if not leases or not partition.allows.complete:
            continue
        for lease in leases:
            del by_id[lease.id]
        contents.remove_lost(leases, this.now_us)
        contents.requeue([(one.item, one.attempts) for one in map(_without_this_attempt, leases)], this.now_us)


def _extend(this: Pass, request: Extend) -> QueratorError | list[Lease]:
    _separate(this, request.ids)
    hint = _holder(this, request.number, request.ids[0])
    held, error = _find(this, request.known, hint, request.ids, "extended")
    if error is not None:
        return error
    timeout_ns = request.lease_timeout_ns or this.queue.lease_timeout_ns
    deadline = lifecycle.deadline(this.now_us, timeout_ns)
    by_partition: dict[Partition, dict[str, Lease]] = {}
    for partition, lease in held:
        by_partition.setdefault(partition, {})[lease.id] = lease
    for partition, leases in by_partition.items():
        contents = partition.contents
        contents.leases.extend(contents.changes(), list(leases.values()), deadline)
        request.touched.add(partition)
    return [lease for _, lease in held]


def _find(
    this: Pass,
    known: dict[str, Found | None],
    hint: Partition,
    wanted: Sequence[str],
    verb: str,
    *,
    ignore_absent: bool = False,
    once: bool = False,
) -> tuple[list[Held], QueratorError | None]:
    """Returns the leases with these ids up to the first bad id, and the error for the bad id.

    A complete (`ignore_absent`) skips ids of partitions that are not available and completes the others. The answer is
    still an error. Raises Unknown if storage must be asked first.
    """
    held: list[Held] = []
    seen: set[str] = set()
    unknown: dict[Partition, dict[str, int]] = {}
    error: QueratorError | None = None
    unavailable: QueratorError | None = None
    for item_id in wanted:
        if item_id not in hint.contents.leases.by_id:
            hint = _holder(this, hint.number, item_id)
        lease = hint.contents.leases.by_id.get(item_id) if hint.allows.complete else None
        partition: Partition | None = hint
        if lease is None:
            try:
                decoded = ids.decode(item_id)
            except ValueError as reason:
                error = InvalidRequest(f"invalid storage id; '{item_id}': {reason}")
                break
            partition = this.by_prefix.get(decoded.prefix)
            if partition is None or not ids.is_own(partition.prefix, item_id, decoded):
                # The partition may have been removed. The ids that it remembered as lost were kept as keys.
                found: Found | None = LOST if LOST_PREFIX + item_id in this.remembered.exact else None
            elif not partition.allows.complete:
                unavailable = unavailable or RetryRequest(failing(partition.number))
                if ignore_absent:
                    continue
                break
            elif (lease := partition.contents.leases.by_id.get(item_id)) is not None:
                found = None
            elif decoded.seq in partition.contents.departing.items:
                found = LOST
            elif item_id in known:
                found = known[item_id]
            else:
                unknown.setdefault(partition, {})[item_id] = decoded.seq
                continue
        if lease is not None and partition is not None and not (once and item_id in seen):
            seen.add(item_id)
            held.append((partition, lease))
            continue
        error = _refusal(item_id, LOST if item_id in seen else found, verb, ignore_absent)
        if error is not None:
            break
    if unknown:
        raise Unknown(unknown)
    return held, unavailable or error


def _refusal(item_id: str, found: Found | None, verb: str, ignore_absent: bool) -> QueratorError | None:
    if found is None:
        return None if ignore_absent else InvalidRequest(f"invalid storage id; '{item_id}' does not exist")
    if found.state == "lost":
        return InvalidRequest(f"invalid storage id; '{item_id}' does not exist, its lease was lost")
    return InvalidRequest(f"item(s) cannot be {verb}; '{item_id}' is not marked as leased")


def _look_up(this: Pass, request: Complete | Retry | Extend, unknown: Unknown, resume: Request) -> None:
    """Asks storage about the ids, then puts the request back at the front of the inbox."""
    this.looking_up += 1

    def ended(answers: dict[Partition, dict[int, Found]], errors: list[Exception]) -> None:
        # A partition that could not be read is in error now. The next pass therefore refuses the request.
        this.looking_up -= 1
        for partition, found in answers.items():
            request.known.update({text: found.get(seq) for text, seq in unknown.wanted[partition].items()})
        this.inbox.insert(0, resume)

    this.files.ask({p: partial(_find_in, p.store, seqs) for p, seqs in unknown.wanted.items()}, ended)


def _find_in(store: Store | None, seqs: dict[str, int]) -> dict[int, Found]:
    assert store is not None
    return store.find(list(seqs.values()), payloads=False)
