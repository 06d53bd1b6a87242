"""Reads the answer to `GET /health`."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

CERTIFICATE_WARN_DAYS: Final = 14
CERTIFICATE_CRITICAL_DAYS: Final = 3


class ArchiveLag(NamedTuple):
    role: str
    """`owner` or `standby` of the archive."""
    seconds: float
    objects: int
    is_damaged: bool
    """Whether the archive lacks what was written to it."""


def archive_lag(health: dict[str, Any]) -> ArchiveLag | None:
    """How far the archive is behind the daemon, or the standby behind the owner; None without an archive."""
    found = health.get("lag")
    return (
        None
        if found is None
        else ArchiveLag(found["role"], found["seconds"], found["objects"], found.get("is_damaged", False))
    )


def certificate_days(health: dict[str, Any]) -> float | None:
    """The days until the daemon's TLS certificate expires, or None without TLS."""
    for check in health.get("checks", {}).get("tls:certificate", ()):
        return float(check["observedValue"])
    return None
