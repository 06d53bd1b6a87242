"""Stored items: a page of them by state and condition, and one item in full.

A page without a condition reads no more rows than it shows. A condition is evaluated range by range, in the order of
ids, until the page is full or its time is up. The next page continues from there. No queue is ever loaded as a whole.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

from querator import ids
from querator.daemon.console.asking import literal
from querator.daemon.console.pages import ConsolePage, command
from querator.daemon.console.payloads import shown_payload
from querator.daemon.console.queue_page import HELD
from querator.daemon.console.visits import Visit
from querator.errors import InvalidRequest, NotFound
from querator.limits import US_PER_SECOND
from querator.wire import bulk_messages, messages

ROWS: Final = 50
SEARCH_SECONDS: Final = 4.0
RANGE_ITEMS: Final = 100_000
"""About how many items are searched at a time."""
PREVIEW_BYTES: Final = 120
NEVER_US: Final = 7_258_118_400_000_000
"""2200-01-01, the deadline of items that do not expire."""
STATES: Final = {"stored": "ready and leased", "ready": "ready", "leased": "leased", "scheduled": "scheduled"}
STORED: Final = "state != 'scheduled'"
COLUMNS: Final = [
    "id", "partition", "state", "kind", "reference", "encoding", "attempts", "created_at", "lease_deadline",
    "client_id", "enqueue_at", "payload",
]  # fmt: skip


class PagePosition:
    """Where a page begins: a partition, and the id after which the page continues."""

    def __init__(self, text: str) -> None:
        number, _, self.after = text.partition(".")
        try:
            self.partition = int(number or 0)
        except ValueError:
            raise InvalidRequest(f"from is invalid; '{text}' is no position") from None

    @staticmethod
    def text(partition: int, after: str) -> str:
        return f"{partition}.{after}"


async def show(visit: Visit) -> ConsolePage:
    queue, state, where = visit.get("name"), visit.get("state", "stored"), visit.get("where").strip()
    state = state if state in STATES else "stored"
    listed = await visit.api.call(
        "partitions.list", messages.PartitionsListRequest(queue_name=queue), messages.PartitionsListResponse
    )
    only = visit.get("partition")
    start = PagePosition(visit.get("from"))
    closed = [one.partition for one in listed.items if one.state in ("unavailable", "error")]
    numbers = [one.partition for one in listed.items if one.partition not in closed]
    if only:
        numbers = [number for number in numbers if number == visit.number("partition")]
    rows: list[dict[str, Any]] = []
    following, searched_all, error = "", True, ""
    try:
        rows, following, searched_all = await _page(visit, queue, state, where, numbers, start)
    except InvalidRequest as raised:
        if not where:
            raise
        error = raised.message  # beside the condition, so that it can be corrected
    return ConsolePage(
        "items.html",
        f"Items of {queue}",
        {
            "rows": rows,
            "state": state,
            "states": STATES,
            "where": where,
            "error": error,
            "only": only,
            "closed": closed,
            "partitions": [one.partition for one in listed.items],
            "position": visit.get("from"),
            "following": following,
            "searched_all": searched_all,
        },
        commands=(_command(queue, state, where, only),),
        queue=queue,
        tab="items",
    )


def _command(queue: str, state: str, where: str, only: str) -> str:
    words = ["items", "list", queue]
    if state == "stored":  # the command has no such state, and lists scheduled items too
        where = f"{STORED} and ({where})" if where else STORED
    else:
        words += ["--state", state]
    if only:
        words += ["--partition", only]
    if where:
        words += ["--where", where]
    return command(*words)


async def _page(
    visit: Visit, queue: str, state: str, where: str, numbers: list[int], start: PagePosition
) -> tuple[list[dict[str, Any]], str, bool]:
    """The rows, where the next page begins (empty at the end), and whether the search was complete."""
    found: list[dict[str, Any]] = []
    until = time.monotonic() + SEARCH_SECONDS
    for number in numbers:
        if number < start.partition:
            continue
        after = start.after if number == start.partition else ""
        if state == "leased" and not where:
            found += await _leased(visit, queue, number, after, ROWS + 1 - len(found))
        elif state == "stored" and not where:
            found += await _listed(visit, queue, number, after, ROWS + 1 - len(found))
        else:
            reached = await _search(visit, queue, state, where, number, after, found, until)
            if reached is not None:
                return found[:ROWS], PagePosition.text(number, reached), len(found) > ROWS
        if len(found) > ROWS:
            last = found[ROWS - 1]
            return found[:ROWS], PagePosition.text(last["partition"], last["id"]), True
    return found, "", True


async def _listed(visit: Visit, queue: str, number: int, after: str, limit: int) -> list[dict[str, Any]]:
    request = messages.StorageItemsListRequest(
        queue_name=queue, partition=number, pivot=after, limit=limit + bool(after), extended=True
    )
    listed = await visit.api.call("storage/items.list", request, messages.StorageItemsListResponse)
    return [_row(item, number) for item in listed.items if item.id != after][:limit]


async def _leased(visit: Visit, queue: str, number: int, after: str, limit: int) -> list[dict[str, Any]]:
    """Finds leased items by their leases, because a scan would read all items."""
    leases = await visit.api.sql(
        queue,
        f"select id from leases where partition = {number} and id > {literal(after)} and {HELD} order by id",
        limit=limit,
    )
    rows = []
    for lease in leases:
        request = messages.ItemsInspectRequest(queue_name=queue, id=lease["id"])
        with contextlib.suppress(NotFound, InvalidRequest):  # completed in the meantime
            found = await visit.api.call("items.inspect", request, messages.ItemsInspectResponse)
            if found.item is not None:
                rows.append(_row(found.item, number))
    return rows


def _row(item: messages.StorageItem, number: int) -> dict[str, Any]:
    return {
        "id": item.id,
        "partition": number,
        "state": "leased" if item.is_leased else "ready",
        "kind": item.kind,
        "reference": item.reference,
        "attempts": item.attempts,
        "created_at": item.created_at,
        "client_id": item.client_id,
        "enqueue_at": None,
        "preview": _preview(item.payload),
    }


async def _search(
    visit: Visit, queue: str, state: str, where: str, number: int, after: str, found: list[dict[str, Any]], until: float
) -> str | None:
    """Adds matching rows of a partition to `found`, one more than a page at most. Returns the id up to which it has
    searched if the time is up first."""
    stats = await visit.api.call(
        "queue.stats", messages.QueueStatsRequest(queue_name=queue), messages.QueueStatsResponse
    )
    one = next(one for one in stats.logical_queues[0].partitions if one.partition == number)
    total = one.scheduled if state == "scheduled" else one.total
    bounds = await visit.api.plan(queue, state, number, max(1, min(1_000, total // RANGE_ITEMS)), where)
    for bound in bounds:
        if after and ids.decode(bound).seq <= ids.decode(after).seq:
            continue
        request = bulk_messages.ScanRequest(queue, number, state, COLUMNS, where, after, bound)
        rows = await visit.api.scan(request, ROWS + 1 - len(found), until + SEARCH_SECONDS)
        found += map(_scanned, rows)
        if len(found) > ROWS:
            return None
        after = bound
        if time.monotonic() >= until and bound != bounds[-1]:
            return bound
    return None


def _scanned(row: dict[str, Any]) -> dict[str, Any]:
    payload = row.pop("payload") or b""
    for name in ("created_at", "lease_deadline", "enqueue_at"):
        at = row[name]
        row[name] = None if at is None else round(at.timestamp() * US_PER_SECOND)
    return row | {"preview": _preview(payload)}


def _preview(payload: bytes) -> str:
    text = payload[:PREVIEW_BYTES].decode(errors="replace")
    if "\ufffd" in text[:-4] or any(not (c.isprintable() or c.isspace()) for c in text[:-4]):
        return payload[: PREVIEW_BYTES // 3].hex(" ")
    return text


async def show_one(visit: Visit) -> ConsolePage:
    queue, item_id = visit.get("name"), visit.get("id")
    found = await visit.api.call(
        "items.inspect", messages.ItemsInspectRequest(queue_name=queue, id=item_id), messages.ItemsInspectResponse
    )
    item = found.item
    assert item is not None
    return ConsolePage(
        "item.html",
        f"Item {item_id}",
        {"found": found, "never": NEVER_US, "item": item, "payload": shown_payload(item.payload, item.encoding)},
        commands=(command("items", "inspect", queue, item_id),),
        queue=queue,
        tab="items",
    )
