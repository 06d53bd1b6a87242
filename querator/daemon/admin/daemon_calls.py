"""The call that reports on the daemon's process: its memory, its uptime, the speed of its disk, and recent warnings."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from querator import __version__
from querator.daemon import logs
from querator.daemon.access import Caller, Right
from querator.daemon.metrics import COMMIT_SECONDS
from querator.daemon.registry import CallsByCaller, Registry
from querator.limits import NS_PER_MS, US_PER_SECOND
from querator.wire import messages


async def status(registry: Registry, request: messages.DaemonStatusRequest, caller: Caller) -> messages.DaemonStatus:
    """Only admins get the directory and all warnings. Others get the warnings of their queues, without paths."""
    is_admin = caller.may(Right.ADMIN)
    commits = COMMIT_SECONDS.count
    shown = [logical for name, logical in registry.logicals.items() if caller.may(Right.VIEW, name)]
    return messages.DaemonStatus(
        version=__version__,
        pid=os.getpid(),
        started_at=registry.started_at,
        uptime_ms=time.time_ns() // NS_PER_MS - registry.started_at // 1_000,
        now=registry.clock.now_us(),
        data=str(registry.config.data) if is_admin else "",
        queues=len(shown),
        partitions=sum([len(logical.partitions) for logical in shown]),
        memory_bytes=_memory_bytes(),
        cpu_ms=round(time.process_time() * 1_000),
        commits=commits,
        commit_mean_us=round(COMMIT_SECONDS.seconds / commits * US_PER_SECOND) if commits else 0,
        commit_p99_us=round(COMMIT_SECONDS.quantile(0.99) * US_PER_SECOND) if commits else 0,
        warnings=[
            messages.LoggedWarning(
                at=one.at_us,
                level=one.level,
                message=one.message,
                fields={name: caller.readable(text) for name, text in one.fields.items()},
            )
            for one in logs.recent_warnings.latest()
            if is_admin or ("queue" in one.fields and caller.may(Right.VIEW, one.fields["queue"]))
        ],
    )


def _memory_bytes() -> int:
    """The process's pages in memory."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):  # a system without this file
        return 0


CALLS_BY_CALLER: CallsByCaller = {"daemon.status": status}
