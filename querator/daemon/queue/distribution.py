"""Chooses the partition for each request. Pure functions over anything that has `failures` and `load`.

The partitions are kept sorted by failures, then by load, both ascending, and stable on ties. A produce goes to the
first partition and a lease to the last one, which then moves to its new place. For a produce, the load of a partition
is the number of its waiting and scheduled items. For a lease, only waiting items count.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Protocol, TypeVar


class Weighed(Protocol):
    @property
    def failures(self) -> int: ...
    @property
    def load(self) -> int: ...


W = TypeVar("W", bound=Weighed)
T = TypeVar("T")


weight: Callable[[Weighed], tuple[int, int]] = attrgetter("failures", "load")


def sort(order: list[W]) -> None:
    order.sort(key=weight)


def weights(order: Sequence[Weighed]) -> list[tuple[int, int]]:
    """The failures and the load of each partition."""
    return list(map(weight, order))


def grew(order: list[W], weights: list[tuple[int, int]], at: int, load: int) -> None:
    """Moves the partition at this place back after its load grew to `load`, in front of partitions with the same load.

    The caller keeps the weights, because asking each partition again would cost more than everything else here.
    """
    partition, grown = order.pop(at), (weights.pop(at)[0], load)
    place = bisect_left(weights, grown, at)
    order.insert(place, partition)
    weights.insert(place, grown)


def shrank(order: list[W], at: int) -> None:
    """Moves the partition at this place forward after it gave items, behind partitions with the same load."""
    partition = order.pop(at)
    order.insert(bisect_right(order, weight(partition), hi=at, key=weight), partition)


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
