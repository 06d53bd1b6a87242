"""Finds out who is at the other end of a connection: the user or the address that the kernel reports, or the name in a
client certificate that TLS has verified.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final

from querator.config import HttpAddress
from querator.daemon.access import UNIX, Access, Caller, Peer

_CREDENTIALS: Final = struct.Struct("3i")
"""`struct ucred`: process, user and group."""


def peer_of(transport: asyncio.BaseTransport, access: Access) -> Peer:
    found = transport.get_extra_info("socket")
    if found is None:
        return Peer("unknown")
    if found.family == socket.AF_UNIX:
        raw = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(raw)
        return Peer(f"{UNIX}:{pid}", access.caller_of_user(uid))
    name = transport.get_extra_info("peername")
    address = str(HttpAddress(name[0], name[1])) if name else "unknown"
    return Peer(address, _caller_of_certificate(transport.get_extra_info("peercert"), access))


def _caller_of_certificate(certificate: Mapping[str, Any] | None, access: Access) -> Caller | None:
    """The caller with the common name of the certificate. A certificate with several names could mean anybody."""
    if not certificate:
        return None
    names = [value for parts in certificate["subject"] for key, value in parts if key == "commonName"]
    return access.caller_of_certificate(names[0]) if len(names) == 1 else None
