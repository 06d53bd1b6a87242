"""Which partition gets which request. Pure functions over anything that has `failures` and `load`.

The list of partitions is kept sorted: failures ascending, then load ascending, stable on ties. A produce goes to the
front of it, a lease to its back; the one that changed then moves to where it belongs now. To a produce, the load of a
partition is its un-leased and its scheduled items; to a lease only the former, because only they can be leased.
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


def grew(order: list[W], at: int) -> None:
    """The partition at this place took items: it moves back, staying in front of its equals."""
    partition = order.pop(at)
    order.insert(bisect_left(order, weight(partition), lo=at, key=weight), partition)


def shrank(order: list[W], at: int) -> None:
    """The partition at this place gave items away: it moves forward, staying behind its equals."""
    partition = order.pop(at)
    order.insert(bisect_right(order, weight(partition), hi=at, key=weight), partition)


def deal(items: Sequence[T], wants: Sequence[int]) -> list[list[T]]:
    """Deals items one at a time, round and round, to everyone who still wants some; everyone wants at least one."""
    if len(wants) == 1:
        return [list(items[: wants[0]])]
    if len(items) <= len(wants):
        return [[item] for item in items] + [[] for _ in wants[len(items) :]]
    hands: list[list[T]] = [[] for _ in wants]
    seats = list(range(len(wants)))
    at = 0
    while seats and at < len(items):
        # So many rounds until the first one has enough, all of them in one go.
        rounds = min([wants[seat] - len(hands[seat]) for seat in seats])
        dealt = items[at : at + rounds * len(seats)]
        for place, seat in enumerate(seats):
            hands[seat] += dealt[place :: len(seats)]
        at += len(dealt)
        seats = [seat for seat in seats if len(hands[seat]) < wants[seat]]
    return hands
