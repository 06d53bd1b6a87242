"""Where the partitions of a queue go: shares of the storages by affinity, exactly as many as were asked for."""

from __future__ import annotations

from collections.abc import Sequence


def shares(affinities: Sequence[float], count: int) -> list[int]:
    """Largest remainder: as near to the affinities as whole numbers can be; empty list if nothing takes partitions."""
    total = sum(affinities)
    if total <= 0:
        return []
    exact = [affinity / total * count for affinity in affinities]
    given = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: exact[i] - given[i], reverse=True)
    for i in by_remainder[: count - sum(given)]:
        given[i] += 1
    return given
