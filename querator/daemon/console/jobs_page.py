"""The page of jobs: running jobs with their progress and a button that cancels them, and jobs that ended recently."""

from __future__ import annotations

from querator.daemon.console.pages import LIVE_SECONDS, ConsolePage, command
from querator.daemon.console.visits import Visit
from querator.wire import messages


async def show(visit: Visit) -> ConsolePage:
    found = await visit.api.call("jobs.list", messages.JobsListRequest(), messages.JobsListResponse)
    jobs = sorted(found.items, key=lambda job: (job.state != "running", -(job.created_at or 0)))
    return ConsolePage(
        "jobs.html", "Jobs", {"jobs": jobs}, commands=(command("jobs", "list", "--watch"),), live_seconds=LIVE_SECONDS
    )
