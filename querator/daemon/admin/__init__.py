"""Calls of operators: queues, partitions, items, storages and tokens, and what these calls share with jobs.

Each call is a coroutine on the registry, listed in its module's `CALLS`, or in `CALLS_BY_CALLER` if its answer depends
on who asks. Nothing here imports `jobs/`: a call starts a job by its kind, through the registry. The service uses the
calls and the functions that run at a start. Jobs use the other names below.
"""

from querator.daemon.admin import (
    audit_calls,
    daemon_calls,
    item_calls,
    partition_calls,
    queue_calls,
    storage_calls,
    token_calls,
)
from querator.daemon.admin.figures import statistics_of
from querator.daemon.admin.item_calls import remove_items
from querator.daemon.admin.partition_access import (
    check_free,
    check_readable,
    chosen_partitions,
    closed_partition,
    request_ids_in_file,
    save_state_after_reload,
    usable_storage,
)
from querator.daemon.admin.partition_files import delete_leftovers, file_name, file_sizes
from querator.daemon.admin.queue_calls import (
    check_restorable,
    create_configured,
    create_queue,
    queue_info,
    remove_queue,
)
from querator.daemon.admin.resizing import RESIZE, resume_shrinking
from querator.daemon.registry import Calls, CallsByCaller

CALLS: Calls = {**queue_calls.CALLS, **item_calls.CALLS, **partition_calls.CALLS, **audit_calls.CALLS}
CALLS_BY_CALLER: CallsByCaller = {
    **queue_calls.CALLS_BY_CALLER,
    **partition_calls.CALLS_BY_CALLER,
    **storage_calls.CALLS_BY_CALLER,
    **daemon_calls.CALLS_BY_CALLER,
    **token_calls.CALLS_BY_CALLER,
}

__all__ = [
    "CALLS",
    "CALLS_BY_CALLER",
    "RESIZE",
    "check_free",
    "check_readable",
    "check_restorable",
    "chosen_partitions",
    "closed_partition",
    "create_configured",
    "create_queue",
    "delete_leftovers",
    "file_name",
    "file_sizes",
    "queue_info",
    "remove_items",
    "remove_queue",
    "request_ids_in_file",
    "resume_shrinking",
    "save_state_after_reload",
    "statistics_of",
    "usable_storage",
]
