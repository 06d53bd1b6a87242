"""Who is at the other end of a connection, as the kernel says: the user of a process, or an address."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

from querator.config import HttpAddress
from querator.daemon.access import Access, Peer

_CREDENTIALS: Final = struct.Struct("3i")
"""`struct ucred`: process, user and group."""


def peer_of(transport: asyncio.BaseTransport, access: Access) -> Peer:
    found = transport.get_extra_info("socket")
    if found is None:
        return Peer("unknown")
    if found.family == socket.AF_UNIX:
        raw = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(raw)
        return Peer(f"unix:{pid}", access.caller_of_user(uid))
    name = transport.get_extra_info("peername")
    return Peer(str(HttpAddress(name[0], name[1])) if name else "unknown")
