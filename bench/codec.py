"""The speed of the codecs: items per second and microseconds per item, for the most frequent messages.

    python bench/codec.py [part of a name ...]

It uses one core, no network and no queue. "strict" is the slow JSON decoder, for bodies that the fast one refuses.
"""

from __future__ import annotations

import base64
import json as stdlib_json
import sys
import timeit
from collections.abc import Callable, Iterator
from functools import partial

from querator.wire import json, protobuf, strict
from querator.wire.messages import (
    QueueCompleteRequest,
    QueueLeaseItem,
    QueueLeaseRequest,
    QueueLeaseResponse,
    QueueProduceRequest,
    StorageItem,
    StorageItemsListResponse,
    payloads,
)

PAYLOAD = b"x" * 200
ID = "2QfVqxTnIdYxq8MTKDpzcnwvtH0"
NOW_US = 1_893_456_000_123_456
REPEATS = 5

Case = tuple[str, Callable[[], object]]


def produce_cases(items: int) -> Iterator[Case]:
    def body(**item: str) -> bytes:
        request = {"queue_name": "bench", "request_timeout": "5s", "items": [item] * items}
        return stdlib_json.dumps(request, separators=(",", ":")).encode()

    document = stdlib_json.dumps({"name": "n" * 60, "address": "a" * 60, "note": "b" * 30})
    bodies = {
        "utf8": body(utf8=PAYLOAD.decode(), kind="k"),
        "bytes": body(bytes=base64.b64encode(PAYLOAD).decode(), kind="k"),
        "utf8 of JSON": body(utf8=document, kind="k"),
        "scheduled": body(utf8=PAYLOAD.decode(), enqueue_at="2030-01-01T00:00:00.123456Z"),
        "with zeros": body(utf8=PAYLOAD.decode(), kind="", reference=""),
    }
    for name, data in bodies.items():
        yield f"produce json {name}", partial(lambda data: payloads(json.decode(QueueProduceRequest, data)), data)
    yield "produce strict utf8", partial(strict.decode, QueueProduceRequest, bodies["utf8"])
    binary = protobuf.encode(json.decode(QueueProduceRequest, bodies["bytes"]))
    yield "produce protobuf", partial(lambda data: payloads(protobuf.decode(QueueProduceRequest, data)), binary)


def complete_cases(items: int) -> Iterator[Case]:
    body = json.encode(QueueCompleteRequest("bench", 0, "5s", [ID] * items))
    yield "complete json", partial(json.decode, QueueCompleteRequest, body)
    with_zero = body.replace(b'"ids"', b'"partition":0,"ids"')
    yield "complete json partition 0", partial(json.decode, QueueCompleteRequest, with_zero)
    yield "complete strict", partial(strict.decode, QueueCompleteRequest, body)


def reply_cases(items: int) -> Iterator[Case]:
    leased = QueueLeaseResponse("bench", 1, [QueueLeaseItem("", "k", "", ID, 1, NOW_US, PAYLOAD) for _ in range(items)])
    yield "lease reply encode json", partial(json.encode, leased)
    yield "lease reply decode json", partial(json.decode, QueueLeaseResponse, json.encode(leased))
    yield "lease reply encode protobuf", partial(protobuf.encode, leased)
    stored = [
        StorageItem(ID, lease_deadline=0, expire_deadline=NOW_US + n, created_at=NOW_US + n, payload=PAYLOAD)
        for n in range(items)
    ]
    yield "storage list encode json", partial(json.encode, StorageItemsListResponse(stored))


def lease_cases() -> Iterator[Case]:
    body = b'{"queue_name":"bench","batch_size":100,"client_id":"client-1","request_timeout":"5s"}'
    yield "lease json", partial(json.decode, QueueLeaseRequest, body)


def cases() -> Iterator[tuple[int, Case]]:
    yield from ((1, case) for case in lease_cases())
    for items in (1, 100, 1000):
        for make in (produce_cases, complete_cases, reply_cases):
            yield from ((items, case) for case in make(items))


def seconds(call: Callable[[], object]) -> float:
    timer = timeit.Timer(call)
    number, _ = timer.autorange()
    return min(timer.repeat(REPEATS, number)) / number


def main(wanted: list[str]) -> None:
    print(f"{'':32}{'items':>6}{'µs/item':>10}{'items/s':>14}")
    for items, (name, call) in cases():
        if all(part in name for part in wanted):
            each = seconds(call) / items
            print(f"{name:32}{items:>6}{each * 1e6:>10.2f}{1 / each:>14,.0f}")


if __name__ == "__main__":
    main(sys.argv[1:])
