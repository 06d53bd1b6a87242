"""From bytes to calls and back: connections, request heads, the table of calls, and the ASGI app.

Nothing here knows a queue: the service behind `Calls` decides everything. `bulk` adds its streaming routes to
`application` and sends its answers with the functions below.
"""

from querator.daemon.http.asgi import (
    NOSNIFF,
    ClientGone,
    CutOff,
    application,
    cut_off,
    hold_back,
    read_body,
    send_body,
    send_reply,
    wait_until_read,
)
from querator.daemon.http.dispatch import Calls, Refused
from querator.daemon.http.gate import Gate
from querator.daemon.http.protocol import QueratorProtocol
from querator.daemon.http.routes import AUDITED_STREAMS, STREAMS, routes_by_path
from querator.daemon.http.sockets import Listeners

__all__ = [
    "AUDITED_STREAMS",
    "NOSNIFF",
    "STREAMS",
    "Calls",
    "ClientGone",
    "CutOff",
    "Gate",
    "Listeners",
    "QueratorProtocol",
    "Refused",
    "application",
    "cut_off",
    "hold_back",
    "read_body",
    "routes_by_path",
    "send_body",
    "send_reply",
    "wait_until_read",
]
