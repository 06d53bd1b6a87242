"""The sockets that a daemon listens on.

uvicorn does not bind them: it would give everybody access to a Unix socket, and take over the socket of a live daemon.
"""

from __future__ import annotations

import errno
import grp
import logging
import os
import socket
import stat
from pathlib import Path

from querator import limits
from querator.config import HttpAddress
from querator.errors import ConfigError, QueratorError

log = logging.getLogger("querator.daemon")


class Listeners:
    """The sockets of a daemon. They listen from the start, so that early clients wait instead of failing."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self._unix: tuple[Path, int] | None = None

    def listen_unix(self, path: Path, group: str = "") -> None:
        """Listens on a Unix socket, for this user and the members of a group.

        Replaces a stale socket file, never the socket of a live daemon.
        """
        gid = _group_id(group) if group else None
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_stale(path)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sockets.append(listener)
            umask = os.umask(0o177)
            try:
                listener.bind(str(path))
            finally:
                os.umask(umask)
            if gid is not None:
                # The socket listens only after this, and nobody can connect before it listens.
                os.chown(path, -1, gid)
                os.chmod(path, 0o660)
                _warn_if_unreachable(path, gid)
            self._unix = (path, path.stat().st_ino)
            listener.listen(limits.LISTEN_BACKLOG)
        except OSError as error:
            raise QueratorError(f"cannot listen on {path}: {error.strerror or error}") from None

    def listen_tcp(self, address: HttpAddress) -> list[str]:
        """Listens on every address of the host name. Returns the addresses as `host:port`."""
        bound: list[str] = []
        port = address.port
        try:
            found = socket.getaddrinfo(
                address.host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
            )
            for family, kind, protocol, _, place in dict.fromkeys(found):
                listener = socket.socket(family, kind, protocol)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                _notice_dead_clients(listener)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                try:
                    # Port 0: the kernel chooses the port of the first address, and the others take the same.
                    listener.bind((place[0], port, *place[2:]))
                    listener.listen(limits.LISTEN_BACKLOG)
                except OSError as error:
                    listener.close()
                    if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and len(found) > 1:
                        continue  # a host name can have an IPv6 address that this machine lacks
                    raise
                self.sockets.append(listener)
                port = listener.getsockname()[1]
                bound.append(str(HttpAddress(listener.getsockname()[0], port)))
        except OSError as error:
            raise QueratorError(f"cannot listen on {address}: {error.strerror or error}") from None
        if not bound:
            raise QueratorError(f"cannot listen on {address}: this machine has no such address")
        return bound

    def close(self) -> None:
        for listener in self.sockets:
            listener.close()
        if self._unix is not None:
            path, inode = self._unix
            try:
                if path.stat().st_ino == inode:
                    path.unlink()
            except FileNotFoundError:
                pass


def _group_id(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(
            f"there is no group '{name}' on this machine", hint=f"groupadd {name}, or choose another --socket-group"
        ) from None


def _warn_if_unreachable(path: Path, gid: int) -> None:
    """The members of the group need to enter every directory on the way to the socket."""
    for directory in path.absolute().parents:
        status = directory.stat()
        is_open = status.st_mode & (stat.S_IXGRP if status.st_gid == gid else stat.S_IXOTH)
        if not is_open:
            log.warning(
                "the members of --socket-group cannot reach the socket",
                extra={"socket": str(path), "directory": str(directory), "hint": "put the socket elsewhere: --socket"},
            )
            return


def _notice_dead_clients(listener: socket.socket) -> None:
    """Turns TCP keep-alive on, so that a machine that disappears does not keep its waiting leases."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", limits.TCP_IDLE_SECONDS),
        ("TCP_KEEPINTVL", limits.TCP_PROBE_SECONDS),
        ("TCP_KEEPCNT", limits.TCP_PROBES_MAX),
    ):
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise QueratorError(f"cannot listen on {path}: it exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except (BlockingIOError, TimeoutError):
            pass  # the daemon is so busy that its backlog is full
    raise QueratorError(f"cannot listen on {path}: another daemon is listening there")
