"""The page of jobs: running jobs with their progress and a button that cancels them, and jobs that ended recently."""

from __future__ import annotations

from typing import Final

from querator.daemon.console.pages import LIVE_SECONDS, ConsolePage, command
from querator.daemon.console.visits import Visit
from querator.wire import messages

BYTE_KINDS: Final = ("migrate to storage", "restore")
"""Jobs that count bytes. `compact` counts partitions, and all others count items."""


async def show(visit: Visit) -> ConsolePage:
    found = await visit.api.call("jobs.list", messages.JobsListRequest(), messages.JobsListResponse)
    jobs = sorted(found.items, key=lambda job: (job.state != "running", -(job.created_at or 0)))
    return ConsolePage(
        "jobs.html",
        "Jobs",
        {"jobs": jobs, "byte_kinds": BYTE_KINDS},
        commands=(command("jobs", "list", "--watch"),),
        live_seconds=LIVE_SECONDS,
    )
