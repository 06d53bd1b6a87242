"""One queue: charts of its history, its partitions with their buttons, who holds leases, and its settings."""

from __future__ import annotations

from typing import Any, Final

from querator import durations, look
from querator.daemon.console.pages import LIVE_SECONDS, ConsolePage, chart, command, number, span
from querator.daemon.console.visits import Visit
from querator.limits import NS_PER_MS, US_PER_SECOND
from querator.wire import messages

WINDOWS: Final = {"15m": ("15 minutes", 900), "24h": ("a day", 86_400), "168h": ("a week", 7 * 86_400)}
FIRST_AFTER_MS: Final = {"15m": 10_000, "24h": 300_000, "168h": 1_800_000}
"""When the charts of a new queue get their first value."""
ROWS: Final = 200
HELD: Final = "deadline > timestamp '0001-01-02'"
"""Leaves out items that are being moved to another queue or partition: no client holds them any more."""


async def show(visit: Visit) -> ConsolePage:
    name = visit.get("name")
    window = visit.get("last", "15m")
    window = window if window in WINDOWS else "15m"
    info = await visit.api.call("queues.info", messages.QueuesInfoRequest(queue_name=name, extended=True), QueueInfo)
    stats = await visit.api.call(
        "queue.stats", messages.QueueStatsRequest(queue_name=name), messages.QueueStatsResponse
    )
    listed = await visit.api.call(
        "partitions.list", messages.PartitionsListRequest(queue_name=name), messages.PartitionsListResponse
    )
    history = await visit.api.call(
        "queues.history", messages.QueuesHistoryRequest(queue_name=name, last=window), messages.QueuesHistoryResponse
    )
    end = (history.now or 0) // US_PER_SECOND
    return ConsolePage(
        "queue.html",
        name,
        {
            "info": info,
            "figures": info.figures,
            "oldest_ms": durations.parse(age) / NS_PER_MS
            if info.figures and (age := info.figures.oldest_age)
            else None,
            "waiting": stats.logical_queues[0],
            "partitions": listed.items,
            "charts": charts(history.samples, end, WINDOWS[window][1]),
            "is_empty": not history.samples,
            "first_after": span(FIRST_AFTER_MS[window]),
            "window": window,
            "windows": WINDOWS,
        },
        commands=(
            command("queue", "history", name, "--last", window),
            command("queue", "stats", name),
            command("partitions", "list", name),
        ),
        queue=name,
        tab="queue",
        live_seconds=LIVE_SECONDS,
    )


QueueInfo = messages.QueueInfo


def charts(samples: list[messages.HistorySample], end: int, seconds: int) -> list[Any]:
    """Charts of depth, rates, age and times, over this many seconds."""
    step = {900: 10, 86_400: 300}.get(seconds, 1_800)
    times = [(sample.at or 0) // US_PER_SECOND for sample in samples]
    begin = end - seconds

    def draw(title: str, tell: Any, **series: list[Any]) -> Any:
        lines = [look.Series(name.replace("_", " "), values) for name, values in series.items()]
        return chart(look.line_chart(title, times, lines, begin, end, step, tell, NICE[tell]))

    def per_second(counts: list[int]) -> list[float]:
        return [count / max(1, sample.seconds) for count, sample in zip(counts, samples, strict=True)]

    return [
        draw(
            "Depth",
            number,
            ready=[one.ready for one in samples],
            leased=[one.leased for one in samples],
            scheduled=[one.scheduled for one in samples],
        ),
        draw(
            "Rate",
            _per_second,
            produced=per_second([one.produced for one in samples]),
            completed=per_second([one.completed for one in samples]),
            died=per_second([one.dead for one in samples]),
        ),
        draw("Age of the oldest item", span, oldest=[one.oldest_age_ms for one in samples]),
        draw(
            "Time per item",
            span,
            waiting=[one.wait_ms for one in samples],
            held_by_a_consumer=[one.held_ms for one in samples],
        ),
    ]


def _per_second(value: float) -> str:
    return f"{value:,.0f}/s" if value >= 10 else f"{value:.3g}/s"


NICE: Final = {number: look.nice_count, _per_second: look.nice_rate, span: look.nice_duration}
"""The top of a chart's axis, by how its values are told."""


async def show_leases(visit: Visit) -> ConsolePage:
    """Who holds items, and who waits for items."""
    name = visit.get("name")
    info = await visit.api.call("queues.info", messages.QueuesInfoRequest(queue_name=name, extended=True), QueueInfo)
    stats = await visit.api.call(
        "queue.stats", messages.QueueStatsRequest(queue_name=name), messages.QueueStatsResponse
    )
    rows = await visit.api.sql(
        name,
        "select client_id, token_name, count(*) as leased, epoch_us(min(leased_at)) as since, epoch_us(min(deadline))"
        f" as next_deadline, epoch_us(max(deadline)) as last_deadline from leases where {HELD}"
        " group by client_id, token_name order by since, client_id, token_name",
        limit=ROWS + 1,
    )
    return ConsolePage(
        "leases.html",
        f"Leases of {name}",
        {
            "rows": rows[:ROWS],
            "is_cut": len(rows) > ROWS,
            "waiting": info.figures.waiting_clients if info.figures else [],
            "waiting_total": stats.logical_queues[0].lease_waiting,
        },
        commands=(command("queue", "leases", name), command("queues", "show", name)),
        queue=name,
        tab="leases",
    )


async def show_settings(visit: Visit) -> ConsolePage:
    name = visit.get("name")
    info = await visit.api.call("queues.info", messages.QueuesInfoRequest(queue_name=name, extended=True), QueueInfo)
    return ConsolePage(
        "settings.html",
        f"Settings of {name}",
        {"info": info},
        commands=(command("queues", "show", name), command("queues", "update", name, "--help")),
        queue=name,
        tab="settings",
    )
