"""Who is calling: a Caller is a name with a role and patterns of queue names. A Peer is one connection.

A caller can be ended, for example when its token is revoked. It then has no rights any more, and `ended` is the text of
its 401.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

from querator import limits
from querator.daemon.access.roles import EVERY_QUEUE, RIGHTS, Right, compiled
from querator.items import Role
from querator.texts import without_paths


class CallerKind(enum.StrEnum):
    """How a caller proved who it is."""

    USER = "user"
    """By the credentials of the process at the other end of the Unix socket."""
    TOKEN = "token"
    CERTIFICATE = "certificate"
    ANONYMOUS = "anonymous"
    """Not proved: the daemon serves TCP without tokens."""


class Caller:
    __slots__ = ("_matches", "ended", "granted", "kind", "last_used_at", "name", "patterns", "rights", "role", "token")

    def __init__(self, kind: CallerKind, name: str, role: Role, patterns: Sequence[str] = EVERY_QUEUE) -> None:
        self.kind = kind
        self.name = name
        self.token = name if kind is CallerKind.TOKEN else ""
        """The name of the token; empty if the caller came in without one."""
        self.role = role
        self.patterns = tuple(EVERY_QUEUE if role is Role.ADMIN else patterns)
        self.rights = RIGHTS[role]
        self.ended = ""
        """Why the caller has no rights any more, in the words of the wire contract; empty while it has them."""
        self.granted: dict[Right, set[str]] = {right: set() for right in Right}
        """Queue names that a check has allowed. The hot path looks only here."""
        self.last_used_at = 0
        self._matches = compiled(self.patterns).match

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}, {self.role}>"

    @property
    def is_unlimited(self) -> bool:
        """Whether no call of this caller needs a check. Never true for a token, which can end between two requests."""
        return self.role is Role.ADMIN and self.kind is not CallerKind.TOKEN

    def readable(self, text: str) -> str:
        """A text for this caller: only admins see paths of the daemon's machine."""
        return text if self.may(Right.ADMIN) else without_paths(text)

    def may(self, right: Right, queue: str | None = None) -> bool:
        """Whether the caller has a right, on this queue or on any queue. The queue need not exist."""
        if self.ended or right not in self.rights:
            return False
        return queue is None or queue in self.granted[right] or self._grant(right, queue)

    def _grant(self, right: Right, queue: str) -> bool:
        if not self._matches(queue):
            return False
        names = self.granted[right]
        if len(names) >= limits.GRANTED_NAMES_MAX:
            names.clear()
        names.add(queue)
        return True

    def end(self, reason: str) -> None:
        self.ended = reason
        self.forget_granted()

    def forget_granted(self) -> None:
        """Makes the hot path check the next request in full."""
        for names in self.granted.values():
            names.clear()


UNIX: Final = "unix"
"""The host of everybody who comes over the Unix socket."""


class Peer:
    """The other end of a connection."""

    __slots__ = ("address", "caller")

    def __init__(self, address: str, caller: Caller | None = None) -> None:
        self.address = address
        """Such as `10.0.0.7:41532`, or `unix` with the process id."""
        self.caller = caller
        """The user or the certificate that the connection itself proves. None if it proves neither."""

    @property
    def host(self) -> str:
        """The address without its port. Failed attempts are counted by it."""
        return self.address.rpartition(":")[0] or self.address
