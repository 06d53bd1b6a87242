"""Reads the answer to `GET /health`."""

from __future__ import annotations

from typing import Any, Final

CERTIFICATE_WARN_DAYS: Final = 14
CERTIFICATE_CRITICAL_DAYS: Final = 3


def certificate_days(health: dict[str, Any]) -> float | None:
    """The days until the daemon's TLS certificate expires, or None without TLS."""
    for check in health.get("checks", {}).get("tls:certificate", ()):
        return float(check["observedValue"])
    return None
