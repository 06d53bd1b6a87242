"""The page of the daemon itself: its process, its storages, and its recent warnings."""

from __future__ import annotations

from querator.daemon.console.pages import ConsolePage, command
from querator.daemon.console.visits import Visit
from querator.wire import messages


async def show(visit: Visit) -> ConsolePage:
    status = await visit.api.call("daemon.status", messages.DaemonStatusRequest(), messages.DaemonStatus)
    storages = await visit.api.call("storages.list", messages.StoragesListRequest(), messages.StoragesListResponse)
    health, warning = await visit.api.health()
    return ConsolePage(
        "daemon.html",
        "Daemon",
        {"status": status, "storages": storages.items, "health": health, "warning": warning},
        commands=(command("daemon", "status"), command("storages", "list"), command("doctor")),
        live=True,
    )
