"""When the search for expired items begins, and when the next one does."""

from __future__ import annotations

from querator.daemon.queue.agenda import NEVER
from querator.daemon.queue.expiry import ExpirySearch


def searching(expiry: int = 50) -> ExpirySearch:
    search = ExpirySearch()
    search.expect(expiry)
    search.begin()
    return search


def test_the_earliest_deadline_starts_a_search():
    search = ExpirySearch()
    assert search.next_search_us() == NEVER
    search.expect(70)
    search.expect(50)
    search.expect(60)
    assert search.next_search_us() == 50


def test_no_search_starts_while_one_is_under_way():
    search = searching()
    search.expect(60)
    assert search.next_search_us() == NEVER
    search.nothing_found(80)
    assert search.next_search_us() == 60


def test_a_search_that_finds_nothing_waits_for_the_next_deadline():
    search = searching()
    search.nothing_found(None)
    assert search.next_search_us() == NEVER


def test_a_search_that_found_items_is_repeated_when_all_of_them_have_departed():
    search = searching()
    search.wait_for_departures()
    assert search.next_search_us() == NEVER
    search.all_departed(100)
    assert search.next_search_us() < 100


def test_departures_without_a_search_start_none():
    search = ExpirySearch()
    search.all_departed(100)
    assert search.next_search_us() == NEVER
