"""Puts new items into partitions. Part of the Logical's pass.

Each request goes to the first partition of the order that takes items. All requests of a pass for one partition become
items together, because the cost per request is higher than the cost per item.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from querator import limits
from querator.daemon.queue import distribution, intake, lifecycle, moves, repeats
from querator.daemon.queue.contents import Contents
from querator.daemon.queue.partition import Partition
from querator.daemon.queue.passes import PRODUCES, Pass
from querator.daemon.queue.requests import Arrival, Intake, Produce
from querator.daemon.store import Run
from querator.items import Item
from querator.limits import ROWS_ITEMS_MIN, SCHEDULE_AHEAD_MIN_US

if TYPE_CHECKING:
    from querator.wire.messages import QueueProduceItem

_new_item: Final[Callable[..., Item]] = Item  # compiled code would look up the imported name in every call
_kind_of = attrgetter("kind")
_reference_of = attrgetter("reference")
_encoding_of = attrgetter("encoding")


def place(this: Pass, requests: list[Produce | Arrival]) -> None:
    """Gives each request to a partition. A request that no partition takes waits until its deadline."""
    if len(this.order) > 1:
        _place_in_several(this, requests)
        return
    partition = this.order[0]
    takes = partition.allows.produce and not partition.health.congested
    if takes and this.only == PRODUCES:
        _produce(this, requests, partition)  # type: ignore[arg-type]
        return
    together: list[Produce] = []
    for request in requests:
        if request.answered:
            continue
        if not takes:
            this.hold_up(request)
        elif type(request) is Produce and not request.timed:
            together.append(request)
        else:
            # Items enter in the order of their requests.
            if together:
                _produce(this, together, partition)
                together = []
            _enter(this, request, partition)
    if together:
        _produce(this, together, partition)


def _place_in_several(this: Pass, requests: Sequence[Produce | Arrival]) -> None:
    order = this.order
    weights = distribution.weights(order)
    together: dict[Partition, list[Produce]] = {}
    all_take = all([_takes(partition) for partition in order])
    at = _front(order)
    for request in requests:
        if request.answered:
            continue
        if at is None:
            this.hold_up(request)
            continue
        partition = order[at]
        if type(request) is Produce and not request.timed:
            load = distribution.load(weights[at]) + len(request.drafts)
            if partition in together:
                together[partition].append(request)
            else:
                together[partition] = [request]
        else:
            _produce_all(this, together)
            if not _enter(this, request, partition):
                continue
            load = partition.load
        distribution.grew(order, weights, at, load)
        at = 0 if all_take else _front(order)
    _produce_all(this, together)


def _enter(this: Pass, request: Produce | Arrival, partition: Partition) -> bool:
    """Gives a request to a partition on its own. False if it must wait for a look-up."""
    if isinstance(request, Arrival):
        return moves.enter(this, request, partition)
    if isinstance(request, Intake):
        intake.enter(this, request, partition)
    else:
        _produce_timed(this, request, partition)
    return True


def _front(order: Sequence[Partition]) -> int | None:
    for at, partition in enumerate(order):
        if _takes(partition):
            return at
    return None


def _takes(partition: Partition) -> bool:
    return partition.allows.produce and not partition.health.congested


def _produce_all(this: Pass, together: dict[Partition, list[Produce]]) -> None:
    for partition, requests in together.items():
        _produce(this, requests, partition)
    together.clear()


def _produce(this: Pass, requests: list[Produce], partition: Partition) -> None:
    now = this.now_us
    expire = lifecycle.deadline(now, this.expire_timeout_ns)
    drafts = requests[0].drafts
    if len(requests) > 1:
        drafts = list(chain.from_iterable([request.drafts for request in requests]))
    count = len(drafts)
    contents = partition.contents
    first = contents.allocate(count, now)
    if count == 1:
        d = drafts[0]
        payload = d.bytes_ or d.utf8.encode()
        item = _new_item(first, now, expire, payload, d.kind, d.reference, d.encoding)
        contents.add([item], len(payload), now, expire, first)
    else:
        _produce_many(drafts, len(requests), contents, first, now, expire)
    answers = this.answers
    for request in requests:
        if request.request_id:
            repeats.remember(this, partition, request.keys)
        answers.append((request, None, partition))
    this.produced += count


def _produce_many(
    drafts: Sequence[QueueProduceItem], requests: int, contents: Contents, first: int, now: int, expire: int
) -> None:
    count = len(drafts)
    if count < limits.RUN_ITEMS_MIN * requests and (count < ROWS_ITEMS_MIN or contents.window.is_open()):
        _produce_few(drafts, contents, first, now, expire)
        return
    # Whoever makes large requests probably leases and completes with large requests, too. And many items that wait
    # behind others take less memory and are applied faster this way.
    payloads = [d.bytes_ or d.utf8.encode() for d in drafts]
    texts = (list(map(_kind_of, drafts)), list(map(_reference_of, drafts)), list(map(_encoding_of, drafts)))
    kinds, references, encodings = [some if any(some) else None for some in texts]
    run = Run(first, count, now, expire, payloads, kinds, references, encodings)
    contents.add_rows(run, now * count, expire)


def _produce_few(drafts: Sequence[QueueProduceItem], contents: Contents, first: int, now: int, expire: int) -> None:
    """Makes items one by one. In compiled code that costs less than columns, in plain code a little more."""
    items: list[Item] = []
    size = 0
    # Any: compiled code would unbox and box an integer of known type for each item.
    same_now: Any = now
    same_expire: Any = expire
    for seq, d in enumerate(drafts, first):
        payload = d.bytes_ or d.utf8.encode()
        size += len(payload)
        items.append(_new_item(seq, same_now, same_expire, payload, d.kind, d.reference, d.encoding))
    contents.add(items, size, now * len(items), expire, first + len(items) - 1)


def _produce_timed(this: Pass, request: Produce, partition: Partition) -> None:
    """A request in which some items are scheduled for later."""
    now = this.now_us
    expire = lifecycle.deadline(now, this.queue.expire_timeout_ns)
    soon = now + SCHEDULE_AHEAD_MIN_US
    contents = partition.contents
    first = contents.allocate(len(request.drafts), now)
    ready: list[Item] = []
    later: list[Item] = []
    for seq, d in enumerate(request.drafts, first):
        item = Item(seq, now, expire, d.bytes_ or d.utf8.encode(), d.kind, d.reference, d.encoding)
        if d.enqueue_at is not None and d.enqueue_at >= soon:
            item.enqueue_at = d.enqueue_at
            later.append(item)
        else:
            ready.append(item)
    if ready:
        contents.enter(ready)
    if later:
        contents.add_scheduled(later)
    if request.request_id:
        repeats.remember(this, partition, request.keys)
    this.answer(request, None, partition)
    this.produced += len(request.drafts)
