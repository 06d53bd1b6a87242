"""The choice of the partition for a request, and of the client for an item: pure functions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from querator.daemon.admin.partition_files import shares
from querator.daemon.queue import distribution


def sorted_by_weight(*places: tuple[str, int, int]) -> tuple[list[str], list[int]]:
    """The names of places, each with its failures and its load, in order, and their weights."""
    names = [name for name, _, _ in places]
    weights = [distribution.weight(failures, load) for _, failures, load in places]
    distribution.sort(names, weights)
    return names, weights


class TestOrder:
    def test_failures_weigh_more_than_items(self):
        names, weights = sorted_by_weight(("a", 0, 9), ("b", 1, 0), ("c", 0, 3))
        assert "".join(names) == "cab"
        assert list(map(distribution.load, weights)) == [3, 9, 0]

    def test_equals_keep_their_places(self):
        names, _ = sorted_by_weight(("a", 0, 1), ("b", 0, 0), ("c", 0, 1), ("d", 0, 0))
        assert "".join(names) == "bdac"

    @given(st.lists(st.integers(0, 3), max_size=12))
    def test_an_order_is_stable_whatever_the_weights_were(self, loads: list[int]):
        names, weights = sorted_by_weight(*[(str(at), 0, load) for at, load in enumerate(loads)])
        assert list(map(int, names)) == sorted(range(len(loads)), key=loads.__getitem__)
        assert weights == sorted(loads)

    def test_a_partition_that_took_items_moves_back_in_front_of_its_equals(self):
        names, weights = sorted_by_weight(("a", 0, 1), ("b", 0, 2), ("c", 0, 5))
        distribution.grew(names, weights, 0, 5)
        assert "".join(names) == "bac"
        assert list(map(distribution.load, weights)) == [2, 5, 5]

    def test_a_partition_that_gave_items_moves_forward_behind_its_equals(self):
        names, weights = sorted_by_weight(("a", 0, 2), ("b", 0, 5), ("c", 0, 7))
        distribution.shrank(names, weights, 2, 2)
        assert "".join(names) == "acb"
        assert list(map(distribution.load, weights)) == [2, 2, 5]


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
