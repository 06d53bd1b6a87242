"""The first read of a partition's file: everything that memory needs before the partition can be used."""

from __future__ import annotations

from array import array

import msgspec

from querator import limits
from querator.config_file import LimitsConfig
from querator.daemon.queue.requests import EXACT_PREFIXES
from querator.daemon.store import Due, Fingerprints, Leased, Store, Summary
from querator.items import Item
from querator.limits import LIFECYCLE_ITEMS_PER_PASS_MAX, SCHEDULED_WINDOW_ITEMS_MAX


class Snapshot(msgspec.Struct):
    summary: Summary
    leased: list[Leased]
    scheduled: Due
    ready: list[Item]
    expired: list[Item]
    """Waiting items that have expired, at most as many as a search finds. Some may have been on their way to the dead
    queue when the file was closed, so they must leave again before a lease can give them to a client.
    """
    newest_keys: list[tuple[str, int]]
    keys: Fingerprints
    """All remembered keys, including the newest."""


def read_snapshot(store: Store, bounds: LimitsConfig, now_us: int) -> Snapshot:
    """Blocking. Reads a partition whose store was opened just now."""
    store.flush()
    summary = store.summary()
    keys = store.request_fingerprints(now_us)
    # A query takes milliseconds even if it finds nothing, which adds up when a thousand empty partitions are opened.
    newest_keys = store.request_ids(now_us, limits.REQUEST_IDS_NEWEST_MAX, EXACT_PREFIXES) if keys else []
    if not (summary.ready or summary.leased or summary.scheduled):
        return Snapshot(summary, [], Due([], True), [], [], newest_keys, keys)
    has_expired = summary.next_expiry is not None and summary.next_expiry < now_us
    return Snapshot(
        summary=summary,
        leased=store.leased(),
        scheduled=store.scheduled(SCHEDULED_WINDOW_ITEMS_MAX),
        ready=store.ready(0, None, bounds.ready_window_items, bounds.ready_window_bytes),
        expired=store.expired(now_us, LIFECYCLE_ITEMS_PER_PASS_MAX) if has_expired else [],
        newest_keys=newest_keys,
        keys=keys,
    )


def empty_snapshot() -> Snapshot:
    """The snapshot of a file that was created just now. Reading the file would take milliseconds."""
    return Snapshot(Summary(0, 0, 0, 0, 0, None, None), [], Due([], True), [], [], [], Fingerprints(array("Q")))
