"""When items expire and die, and what a dead item looks like in its dead queue: pure functions."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from querator.daemon.queue import lifecycle
from querator.items import Hold, Item

SECOND_NS = 1_000_000_000
ITEM = Item(seq=7, created_at=100, expire_deadline=1_000, payload=b"p", kind="k", reference="r", encoding="e")


@pytest.mark.parametrize(
    ("attempts", "now", "max_attempts", "cause"),
    [
        (1, 500, 0, ""),
        (99, 500, 0, ""),
        (2, 500, 3, ""),
        (3, 500, 3, "max_attempts"),
        (4, 500, 3, "max_attempts"),
        (1, 1_000, 3, ""),
        (1, 1_001, 3, "expired"),
        (3, 1_001, 3, "max_attempts"),
    ],
)
def test_why_an_item_does_not_come_back(attempts, now, max_attempts, cause):
    assert lifecycle.cause_of_death(ITEM, attempts, now, max_attempts) == cause


def test_a_deadline_is_never_later_than_the_wire_can_carry():
    assert lifecycle.deadline(5, SECOND_NS) == 1_000_005
    assert lifecycle.deadline(lifecycle.LAST_US - 5, SECOND_NS) == lifecycle.LAST_US


def test_a_dead_item_keeps_its_content_and_gains_a_death():
    copy = lifecycle.dead_copy(ITEM, "id 1", 3, "orders", "max_attempts", 5_000)
    assert (copy.payload, copy.kind, copy.reference, copy.encoding) == (b"p", "k", "r", "e")
    assert (copy.seq, copy.created_at, copy.expire_deadline, copy.attempts, copy.source_id) == (0, 0, 0, 0, "id 1")
    again = lifecycle.dead_copy(msgspec.structs.replace(copy, seq=9), "id 2", 1, "retries", "client", 6_000)
    assert [(d.queue_name, d.source_id, d.reason, d.attempts, d.at) for d in lifecycle.history(again)] == [
        ("orders", "id 1", "max_attempts", 3, 5_000),
        ("retries", "id 2", "client", 1, 6_000),
    ]
    assert lifecycle.history(ITEM) == []


def tried(item: Item, attempts: int, reason: str = "", client: str = "ann") -> Item:
    hold = Hold(client, 1_000, 1_000 + attempts, reason)
    return msgspec.structs.replace(item, history=lifecycle.history_with_attempt(item, attempts, hold))


def test_an_attempt_is_remembered_with_who_when_how_long_and_why():
    (event,) = lifecycle.history(tried(ITEM, 3, "no route to host"))
    assert (event.client_id, event.attempts, event.at, event.held_us) == ("ann", 3, 1_003, 3)
    assert (event.reason, event.queue_name) == ("no route to host", "")


def test_an_item_remembers_its_last_ten_attempts_and_all_its_deaths():
    item = lifecycle.dead_copy(tried(ITEM, 1), "id 1", 1, "orders", "client", 5_000)
    for attempt in range(1, 13):
        item = tried(item, attempt)
    events = lifecycle.history(item)
    assert [event.attempts for event in events if not event.queue_name] == list(range(3, 13))
    assert events[0].queue_name == "orders"


def test_long_reasons_drop_the_oldest_attempts_and_never_the_last():
    item = ITEM
    for attempt in range(1, 7):
        item = tried(item, attempt, "é" * 1_000)
    assert [event.attempts for event in lifecycle.history(item)] == [3, 4, 5, 6]
    (only,) = lifecycle.history(tried(tried(ITEM, 1, "a"), 2, "x" * 9_000))
    assert only.attempts == 2


def test_an_attempt_that_is_recorded_twice_is_kept_once():
    item = tried(tried(ITEM, 1, "first"), 2, "second")
    assert [event.reason for event in lifecycle.history(tried(item, 2, "again"))] == ["first", "again"]


def test_a_very_long_client_id_is_cut_off_in_the_history():
    (event,) = lifecycle.history(tried(ITEM, 1, client="c" * 100_000))
    assert len(event.client_id) == 256


def test_a_dead_item_expires_only_by_retention_and_its_deadline_fits_every_tool():
    now = 1_800_000_000_000_000
    assert lifecycle.dead_deadline(now, 5_000_000_000) == now + 5_000_000
    kept = pa.table({"until": pa.array([lifecycle.dead_deadline(now, 0)], pa.timestamp("us"))})
    assert kept.column(0)[0].as_py().year == 2200
    kept.cast(pa.schema([("until", pa.timestamp("ns"))]))  # what PySpark does for pandas
    assert lifecycle.dead_deadline(lifecycle.NO_EXPIRY_US, 0) == lifecycle.LAST_US
