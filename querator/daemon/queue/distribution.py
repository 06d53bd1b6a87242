"""Chooses the partition for each request. Pure functions over lists and numbers.

The partitions are kept sorted by failures, then by load, both ascending, and stable on ties. A produce goes to the
first partition and a lease to the last one, which then moves to its new place. For a produce, the load of a partition
is the number of its waiting and scheduled items. For a lease, only waiting items count.

Partitions are compared by their weights, which are single numbers. Callers keep the weights in a list beside that of
the partitions, because asking each partition again would cost more than everything else here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from querator.daemon.queue.partition import Partition

T = TypeVar("T")

_FAILURE: Final = 1 << 44
"""One failure weighs more than all items that a partition can have."""


def weight(failures: int, load: int) -> int:
    return load + failures * _FAILURE if failures else load


def load(weight: int) -> int:
    return weight if weight < _FAILURE else weight % _FAILURE


def _with_load(own: int, load: int) -> int:
    return load if own < _FAILURE else own - own % _FAILURE + load


def weights(order: list[Partition]) -> list[int]:
    """The weight of each partition for a produce."""
    return [weight(partition.failures, partition.load) for partition in order]


def sort(order: list[T], weights: list[int]) -> None:
    """Sorts both lists by weight. Nearly always, few partitions are out of place."""
    for at in range(1, len(order)):
        own = weights[at]
        if weights[at - 1] > own:
            _move(order, weights, at, bisect_right(weights, own, 0, at))


def grew(order: list[T], weights: list[int], at: int, load: int) -> None:
    """Moves the partition at this place back, in front of those with the same load, after its load grew."""
    grown = _with_load(weights[at], load)
    low, high = at + 1, len(weights)
    while low < high:  # a call of bisect would cost more
        middle = (low + high) // 2
        if weights[middle] < grown:
            low = middle + 1
        else:
            high = middle
    weights[at] = grown
    _move(order, weights, at, low - 1)


def shrank(order: list[T], weights: list[int], at: int, load: int) -> None:
    """Moves the partition at this place forward, behind those with the same load, after its load shrank."""
    shrunk = weights[at] = _with_load(weights[at], load)
    _move(order, weights, at, bisect_right(weights, shrunk, 0, at))


def _move(order: list[T], weights: list[int], at: int, place: int) -> None:
    if place != at:
        order.insert(place, order.pop(at))
        weights.insert(place, weights.pop(at))


def deal(items: Sequence[T], wants: Sequence[int]) -> list[list[T]]:
    """Deals items in rounds, one item per hand and round, until each hand has as many as it wants (at least one)."""
    if len(wants) == 1:
        return [list(items[: wants[0]])]
    if len(items) <= len(wants):
        return [[item] for item in items] + [[] for _ in wants[len(items) :]]
    hands: list[list[T]] = []
    for dealt in deal_places(len(items), wants):
        hand: list[T] = []
        for places in dealt:
            hand += items[places.start : places.stop : places.step]
        hands.append(hand)
    return hands


def deal_places(count: int, wants: Sequence[int]) -> list[list[range]]:
    """The places of the items that each hand gets when so many items are dealt."""
    hands: list[list[range]] = [[] for _ in wants]
    left = list(wants)
    seats = list(range(len(wants)))
    at = 0
    while seats and at < count:
        # All rounds until the first hand is full are dealt with one range per hand.
        rounds = min([left[seat] for seat in seats])
        end = min(count, at + rounds * len(seats))
        for place, seat in enumerate(seats):
            places = range(at + place, end, len(seats))
            if places:
                hands[seat].append(places)
                left[seat] -= len(places)
        at = end
        seats = [seat for seat in seats if left[seat]]
    return hands
