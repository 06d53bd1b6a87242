"""The first page: all queues, those with problems first, with their figures and a line of their depth."""

from __future__ import annotations

from typing import Final

from querator.daemon.console.pages import LIVE_SECONDS, ConsolePage, command
from querator.daemon.console.visits import Visit
from querator.wire import messages

ROWS: Final = 50
QUEUES_PER_LIVE_SECONDS: Final = 2_500
SORTS: Final = {
    "trouble": "Trouble",
    "name": "Queue",
    "ready": "Ready",
    "leased": "Leased",
    "scheduled": "Scheduled",
    "in": "In",
    "out": "Out",
    "age": "Oldest",
    "dead": "Died, 15m",
}


def live_seconds(queues: int) -> int:
    """How often the page is loaded again. With thousands of queues that is rarer, because the daemon looks at each of
    them for the order and the sums, and an open page shall stay below a hundredth of a core."""
    return LIVE_SECONDS * (1 + queues // QUEUES_PER_LIVE_SECONDS)


async def show(visit: Visit) -> ConsolePage:
    sort, contains, offset = visit.get("sort", "trouble"), visit.get("contains"), max(0, visit.number("offset"))
    request = messages.QueuesOverviewRequest(contains=contains, sort=sort, offset=offset, limit=ROWS)
    found = await visit.api.call("queues.overview", request, messages.QueuesOverviewResponse)
    health, warning = await visit.api.health()
    return ConsolePage(
        "overview.html",
        "Queues",
        {
            "found": found,
            "health": health,
            "warning": warning,
            "sort": sort,
            "sorts": SORTS,
            "contains": contains,
            "offset": offset,
            "rows": ROWS,
        },
        commands=(command("top"), command("queues", "list", *(("--contains", contains) if contains else ()))),
        live_seconds=live_seconds(found.queues),
    )
