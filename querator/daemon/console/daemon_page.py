"""The page of the daemon itself: its process, its storages, its recent warnings, and who did what."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from querator.daemon.access import Right
from querator.daemon.console.pages import LIVE_SECONDS, ConsolePage, command
from querator.daemon.console.visits import Visit
from querator.wire import access_messages, messages

AUDIT_ROWS: Final = 30


class AuditRow(NamedTuple):
    entry: access_messages.AuditEntry
    asked: str
    """What was asked for, for people."""


async def show(visit: Visit) -> ConsolePage:
    status = await visit.api.call("daemon.status", messages.DaemonStatusRequest(), messages.DaemonStatus)
    storages = await visit.api.call("storages.list", messages.StoragesListRequest(), messages.StoragesListResponse)
    health, warning = await visit.api.health()
    audit = await _audit(visit)
    commands = [command("daemon", "status"), command("storages", "list"), command("doctor")]
    if audit is not None:
        commands.append(command("audit", "--since", "7d"))
    return ConsolePage(
        "daemon.html",
        "Daemon",
        {"status": status, "storages": storages.items, "health": health, "warning": warning, "audit": audit},
        commands=tuple(commands),
        live_seconds=LIVE_SECONDS,
    )


async def _audit(visit: Visit) -> list[AuditRow] | None:
    """The latest entries of the audit log, the latest first. None for a visitor who may not read it."""
    if visit.caller is None or not visit.caller.may(Right.ADMIN):
        return None  # not even asked for, because every denial is recorded
    request = access_messages.AuditListRequest(limit=AUDIT_ROWS)
    found = await visit.api.call("audit.list", request, access_messages.AuditListResponse)
    return [AuditRow(entry, _asked(entry.asked)) for entry in reversed(found.items)]


def _asked(text: str) -> str:
    """The fields of a request, such as `for=15m`."""
    fields = msgspec.json.decode(text or "{}", type=dict[str, Any])
    shown = {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode() for name, value in fields.items()
    }
    return ", ".join(f"{name}={value}" for name, value in shown.items())
