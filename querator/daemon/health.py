"""What `/health` reports about partitions and their storages.

The daemon passes if all of them work. It warns if some partitions do not work, or if a storage is nearly full. It fails
if none of the partitions that should be open works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from querator.daemon.queue import Partition
from querator.limits import HEALTH_PARTITIONS_MAX, HEALTH_REASONS_MAX


def judge(
    partitions: Iterable[Partition], storage_warnings: Iterable[str], is_shown: Callable[[str], bool]
) -> tuple[bool, str]:
    """Whether the daemon is healthy, and what is wrong. Names only partitions of queues that are shown."""
    wanted = [partition for partition in partitions if partition.should_be_open]
    by_reason: dict[str, list[str]] = {}
    for partition in wanted:
        if reason := partition.blocked or partition.health.apply_error:
            queue = partition.placement.queue
            name, why = (f"{queue}/{partition.number}", reason) if is_shown(queue) else ("a partition", "does not work")
            by_reason.setdefault(why, []).append(name)
    reasons = [*storage_warnings, *(f"{_listed(names)}: {reason}" for reason, names in by_reason.items())]
    if len(reasons) > HEALTH_REASONS_MAX:
        reasons[HEALTH_REASONS_MAX:] = [f"and {len(reasons) - HEALTH_REASONS_MAX} more"]
    is_healthy = not wanted or not all(partition.blocked for partition in wanted)
    return is_healthy, "; ".join(reasons)


def _listed(names: list[str]) -> str:
    more = len(names) - HEALTH_PARTITIONS_MAX
    return ", ".join(names[:HEALTH_PARTITIONS_MAX]) + (f" and {more} more" if more > 0 else "")
