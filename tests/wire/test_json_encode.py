"""Encoding to JSON: names, no zero values, times in UTC, padded base64."""

from __future__ import annotations

import pytest

from querator import times
from querator.items import ZERO_TIME_US
from querator.wire import json
from querator.wire.messages import (
    ItemDeath,
    ItemsInspectResponse,
    Message,
    QueueInfo,
    QueueLeaseItem,
    QueueLeaseResponse,
    QueueLogicalStats,
    QueuePartitionStats,
    QueuesListResponse,
    QueueStatsResponse,
    Reply,
    StorageItem,
    StorageItemsListResponse,
)


@pytest.mark.parametrize(
    "message,text",
    [
        (Reply(200), '{"code":200}'),
        (Reply(400, "Bad Request", "no"), '{"code":400,"code_text":"Bad Request","message":"no"}'),
        (QueuesListResponse(), "{}"),
        (QueuesListResponse([QueueInfo()]), '{"items":[{}]}'),
        (QueueLeaseResponse("q", 0, []), '{"queue_name":"q"}'),
        (
            QueueLeaseResponse("q", 1, [QueueLeaseItem("", "", "", "i", 1, 1_500_000, b"\xfb\xff")]),
            '{"queue_name":"q","partition":1,"items":[{"id":"i","attempts":1,'
            '"lease_deadline":"1970-01-01T00:00:01.500Z","bytes":"+/8="}]}',
        ),
        (
            QueueStatsResponse("q", [QueueLogicalStats(0, 0, 0, 1, [QueuePartitionStats(average_age="0s")])]),
            '{"queue_name":"q","logicalQueues":[{"in_flight":1,"partitions":[{"average_age":"0s"}]}]}',
        ),
        (
            ItemsInspectResponse(StorageItem(id="i", created_at=0), "ready", 0, [ItemDeath("q", "s", "expired", 2, 1)]),
            '{"item":{"id":"i","created_at":"1970-01-01T00:00:00Z"},"state":"ready","history":[{"queue_name":"q",'
            '"source_id":"s","reason":"expired","attempts":2,"at":"1970-01-01T00:00:00.000001Z"}]}',
        ),
        (QueueInfo(reference='<é&"\\\n\u2028'), '{"reference":"<é&\\"\\\\\\n\u2028"}'),
    ],
)
def test_a_message_is_written_without_its_zero_values(message: Message, text: str) -> None:
    assert json.encode(message).decode() == text


def test_year_one_and_1970_are_times_and_not_zero_values() -> None:
    item = StorageItem(lease_deadline=ZERO_TIME_US, created_at=0)
    assert json.encode(item) == b'{"lease_deadline":"0001-01-01T00:00:00Z","created_at":"1970-01-01T00:00:00Z"}'


def test_every_item_of_a_list_has_its_own_times() -> None:
    at = [0, 0, 5, 1_000_000, None, 5]
    written = json.encode(StorageItemsListResponse([StorageItem(id=str(n), created_at=us) for n, us in enumerate(at)]))
    assert [item.created_at for item in json.decode(StorageItemsListResponse, written).items] == at


def test_writing_a_message_does_not_change_it() -> None:
    reply = QueueLeaseResponse("q", 1, [QueueLeaseItem(lease_deadline=5)])
    first = json.encode(reply)
    assert reply == QueueLeaseResponse("q", 1, [QueueLeaseItem(lease_deadline=5)])
    assert json.encode(reply) == first


def test_a_time_without_a_text_is_refused() -> None:
    with pytest.raises(times.OutOfRange):
        json.encode(StorageItem(created_at=times.MAX_US + 1))
