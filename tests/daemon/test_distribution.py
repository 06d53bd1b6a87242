"""The choice of the partition for a request, and of the client for an item: pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from querator.daemon.admin.partition_files import shares
from querator.daemon.queue import distribution


@dataclass
class Place:
    name: str
    load: int = 0
    failures: int = 0


def names(order: list[Place]) -> str:
    return "".join(place.name for place in order)


class TestOrder:
    def test_failures_weigh_more_than_items(self):
        order = [Place("a", load=9), Place("b", failures=1), Place("c", load=3)]
        distribution.sort(order)
        assert names(order) == "cab"

    def test_equals_keep_their_places(self):
        order = [Place("a", 1), Place("b"), Place("c", 1), Place("d")]
        distribution.sort(order)
        assert names(order) == "bdac"

    def test_a_partition_that_took_items_moves_back_in_front_of_its_equals(self):
        order = [Place("a", 1), Place("b", 2), Place("c", 5)]
        weights = distribution.weights(order)
        distribution.grew(order, weights, 0, 5)
        assert names(order) == "bac"
        assert weights == [(0, 2), (0, 5), (0, 5)]

    def test_a_partition_that_gave_items_moves_forward_behind_its_equals(self):
        order = [Place("a", 2), Place("b", 5), Place("c", 2)]
        distribution.shrank(order, 2)
        assert names(order) == "acb"


def dealt_by_hand(items: list[int], wants: list[int]) -> list[list[int]]:
    hands: list[list[int]] = [[] for _ in wants]
    left = list(items)
    while left and any(len(hand) < want for hand, want in zip(hands, wants, strict=True)):
        for hand, want in zip(hands, wants, strict=True):
            if left and len(hand) < want:
                hand.append(left.pop(0))
    return hands


@given(st.integers(0, 60), st.lists(st.integers(1, 12), min_size=1, max_size=9))
def test_items_are_dealt_in_rounds(count, wants):
    items = list(range(count))
    assert distribution.deal(items, wants) == dealt_by_hand(items, wants)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=6), st.integers(0, 50))
def test_exactly_as_many_partitions_are_placed_as_were_asked_for(affinities, count):
    given_out = shares(affinities, count)
    if sum(affinities) <= 0:
        assert given_out == []
        return
    assert sum(given_out) == count
    exact = [affinity / sum(affinities) * count for affinity in affinities]
    assert all(abs(share - wanted) < 1 + 1e-9 for share, wanted in zip(given_out, exact, strict=True))
