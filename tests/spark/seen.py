"""The contents of a queue, for assertions."""

from __future__ import annotations

from querator.client.bulk_client import BulkClient


def payloads(bulk: BulkClient, queue: str, state: str = "stored") -> list[str]:
    return sorted(
        payload.decode()
        for partition in bulk.plan(queue, state=state)
        for batch in bulk.scan(queue, partition.partition, state=state, columns=["payload"])
        for payload in batch.column("payload").to_pylist()
    )


def numbers(bulk: BulkClient, queue: str, state: str = "stored") -> list[int]:
    return sorted(map(int, payloads(bulk, queue, state)))
