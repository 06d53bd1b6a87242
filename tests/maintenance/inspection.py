"""Questions that tests ask a daemon process about its jobs and items."""

from __future__ import annotations

from querator import Client
from querator.wire import messages as m
from tests.waiting import until


def jobs_ended(client: Client) -> list[m.Job]:
    """Waits until no job runs, and returns all jobs."""
    until(lambda: all(job.state != "running" for job in client.list_jobs()), "a job does not end")
    return client.list_jobs()


def contents(client: Client, queue: str = "q") -> list[str]:
    """The payloads of all stored items of a queue."""
    found = []
    for status in client.list_partitions(queue):
        for list_ in (client.list_items, client.list_scheduled):
            found += [item.payload.decode() for item in list_(queue, partition=status.partition, limit=100_000)]
    return found
