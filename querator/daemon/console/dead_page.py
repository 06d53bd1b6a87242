"""The page of dead items, grouped by reason, origin and more, and over time. Groups can be redriven or deleted as a
job.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from querator import look
from querator.daemon.console.asking import conditions
from querator.daemon.console.pages import ConsolePage, Redirect, chart, command, number
from querator.daemon.console.visits import Visit, address
from querator.errors import QueratorError
from querator.limits import CONSOLE_DEAD_ITEMS_MAX, CONSOLE_GROUPS_MAX, US_PER_SECOND
from querator.wire import messages

DEATHS: Final = "[one for one in from_json(if(history = '', '[]', history), '[\"json\"]') if one->>'queue_name' != '']"
EXPRESSIONS: Final = {
    "kind": "kind",
    "reason": f"{DEATHS}[-1]->>'reason'",
    "failure": "split_part(last_reason, chr(10), 1)",
    "origin": f"{DEATHS}[-1]->>'queue_name'",
    "reference": "reference",
}
"""What items can be grouped by. `reason` is why the queue gave up, `failure` what the last consumer said."""
TITLES: Final = {
    "kind": "Kind",
    "reason": "Reason",
    "failure": "Last failure",
    "origin": "Origin",
    "reference": "Reference",
}
USUAL: Final = ("kind", "reason", "failure", "origin")
SPANS: Final = {
    "1h": ("an hour", 3_600, 60),
    "24h": ("a day", 86_400, 1_800),
    "7d": ("a week", 7 * 86_400, 4 * 3_600),
    "30d": ("30 days", 30 * 86_400, 86_400),
}
GROUPS_SHOWN: Final = 100
KINDS_SHOWN: Final = 7
QUERY_TIME: Final = "60s"


class Group(NamedTuple):
    values: dict[str, str | None]
    items: int
    first: int
    last: int
    key: str
    """The values as JSON, which a form sends back."""
    where: str
    """The condition that picks the items of the group."""


async def show(visit: Visit) -> ConsolePage | Redirect:
    """The items of a dead queue. For a queue that has a dead queue, the items that died in this queue."""
    queue, origin = visit.get("name"), visit.get("origin")
    info = await _info(visit, queue)
    if info.dead_queue:
        return Redirect(address("/dead", name=info.dead_queue, origin=queue))
    by = tuple(name for name in EXPRESSIONS if name in visit.all("by")) or USUAL
    span = visit.get("last", "24h")
    span = span if span in SPANS else "24h"
    status = await visit.api.call("daemon.status", messages.DaemonStatusRequest(), messages.DaemonStatus)
    now = (status.now or 0) // US_PER_SECOND
    if origin:
        by = tuple(dict.fromkeys((*by, "origin")))
    rows, error = await _counted(visit, queue, origin, by, now - SPANS[span][1], SPANS[span][2])
    groups = _groups(rows, by)
    only = ("--where", conditions({"origin": origin}, EXPRESSIONS)) if origin else ()
    return ConsolePage(
        "dead.html",
        f"Dead letters of {queue}",
        {
            "groups": groups[:GROUPS_SHOWN],
            "hidden": max(0, len(groups) - GROUPS_SHOWN),
            "is_cut": len(rows) >= CONSOLE_GROUPS_MAX,
            "total": sum(group.items for group in groups),
            "stored": info.figures.ready if info.figures and info.figures.ready > CONSOLE_DEAD_ITEMS_MAX else 0,
            "by": by,
            "origin": origin,
            "titles": TITLES,
            "span": span,
            "spans": SPANS,
            "error": error,
            "picture": _picture(rows, now, *SPANS[span][1:]),
        },
        commands=(
            command("items", "redrive", queue, *only, "--dry-run"),
            command("pipeline", "report", queue),
        ),
        queue=queue,
        tab="dead",
    )


async def _counted(
    visit: Visit, queue: str, origin: str, by: tuple[str, ...], since: int, step: int
) -> tuple[list[dict[str, Any]], str]:
    """Counts by group and step of time, in one query; items before `since` in one step of their own (null)."""
    chosen = ", ".join(f"{EXPRESSIONS[name]} as {name}" for name in dict.fromkeys((*by, "kind")))
    only = f" and {conditions({'origin': origin}, EXPRESSIONS)}" if origin else ""
    query = (
        f"select {chosen}, case when epoch_us(created_at) >= {since * US_PER_SECOND}"
        f" then epoch_us(created_at) // {step * US_PER_SECOND} end as step,"
        " count(*) as items, epoch_us(min(created_at)) as first, epoch_us(max(created_at)) as last"
        f" from items where state = 'ready'{only} group by all order by items desc limit {CONSOLE_GROUPS_MAX}"
    )
    try:
        found = await visit.api.sql(
            queue, query, limit=CONSOLE_GROUPS_MAX, within=QUERY_TIME, latest=CONSOLE_DEAD_ITEMS_MAX
        )
        return found, ""
    except QueratorError as error:
        return [], error.message


def _groups(rows: list[dict[str, Any]], by: tuple[str, ...]) -> list[Group]:
    found: dict[tuple[str | None, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in by), []).append(row)
    groups = []
    for values, some in found.items():
        named = dict(zip(by, values, strict=True))
        groups.append(
            Group(
                named,
                sum(row["items"] for row in some),
                min(row["first"] for row in some),
                max(row["last"] for row in some),
                msgspec.json.encode(named).decode(),
                conditions(named, EXPRESSIONS),
            )
        )
    return sorted(groups, key=lambda group: -group.items)


def _picture(rows: list[dict[str, Any]], now: int, seconds: int, step: int) -> Any:
    """Deaths over time by kind. Kinds beyond the most frequent ones are drawn together."""
    first, last = (now - seconds) // step, now // step
    totals: dict[str, int] = {}
    for row in rows:
        if row["step"] is not None:
            kind = row["kind"] or "(no kind)"
            totals[kind] = totals.get(kind, 0) + row["items"]
    names = sorted(totals, key=lambda kind: -totals[kind])
    shown = names[:KINDS_SHOWN]
    counts = {name: [0] * (last - first + 1) for name in [*shown, *(["others"] if len(names) > len(shown) else [])]}
    for row in rows:
        if row["step"] is not None and first <= row["step"] <= last:
            kind = row["kind"] or "(no kind)"
            counts[kind if kind in shown else "others"][row["step"] - first] += row["items"]
    if not counts:
        return ""
    times = [number_ * step for number_ in range(first, last + 1)]
    return chart(look.time_bars("Deaths over time, by kind", times, counts, step, number))


def condition(keys: list[str]) -> str:
    """The condition that picks the items of groups, which a form names by their keys."""
    picked = []
    for key in keys:
        try:
            values = msgspec.json.decode(key, type=dict[str, str | None])
        except msgspec.MsgspecError:
            continue
        known = {name: value for name, value in values.items() if name in EXPRESSIONS}
        if known:
            picked.append(f"({conditions(known, EXPRESSIONS)})")
    return " or ".join(picked)


async def count(visit: Visit, queue: str, where: str) -> tuple[int, bool]:
    """How many ready items meet a condition now, and whether all items were counted or only the latest ones."""
    info = await _info(visit, queue)
    query = f"select count(*) as items from items where state = 'ready' and ({where}\n)"
    rows = await visit.api.sql(queue, query, within=QUERY_TIME, latest=CONSOLE_DEAD_ITEMS_MAX)
    return int(rows[0]["items"]), info.figures is None or info.figures.ready <= CONSOLE_DEAD_ITEMS_MAX


async def _info(visit: Visit, queue: str) -> messages.QueueInfo:
    request = messages.QueuesInfoRequest(queue_name=queue, extended=True)
    return await visit.api.call("queues.info", request, messages.QueueInfo)
