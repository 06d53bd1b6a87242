"""Long work: migrate, resize, backup, restore, verify, compact, redrive, delete; and the runner that resumes it.

Each kind of job has a module with its `CALLS` and `KINDS`. Jobs work on the registry and never import the service,
which needs only the names below.
"""

from querator.daemon.jobs import backup, compaction, resize, restore, runner, selected_items, to_storage, verify
from querator.daemon.jobs.compaction import watch_free_space
from querator.daemon.jobs.runner import Jobs, Kind
from querator.daemon.registry import Calls, CallsByCaller

CALLS: Calls = {
    **to_storage.CALLS,
    **backup.CALLS,
    **restore.CALLS,
    **verify.CALLS,
    **compaction.CALLS,
    **selected_items.CALLS,
}
CALLS_BY_CALLER: CallsByCaller = {**runner.CALLS_BY_CALLER, **selected_items.CALLS_BY_CALLER}
KINDS: dict[str, Kind] = {
    **to_storage.KINDS,
    **resize.KINDS,
    **backup.KINDS,
    **restore.KINDS,
    **verify.KINDS,
    **compaction.KINDS,
    **selected_items.KINDS,
}

__all__ = ["CALLS", "CALLS_BY_CALLER", "KINDS", "Jobs", "watch_free_space"]
