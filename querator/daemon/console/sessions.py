"""Finds out who visits. A visitor without a certificate or a Unix socket signs in with a token, and then has a session.

A session is a random id in a cookie, and the caller whom the token named, in memory. The token itself is kept nowhere.
A token that is revoked or expires ends its sessions at once; a restart ends all of them.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from typing import NamedTuple

from querator import limits
from querator.daemon.access import Access, Caller, Headers, Peer
from querator.errors import Forbidden, Unauthorized


class _Session(NamedTuple):
    caller: Caller
    used_at: float


class Sessions:
    def __init__(self, access: Access) -> None:
        self._access = access
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        """By id, the one that was used last at the end."""
        access.on_ended.append(self._drop_ended)

    def caller_of(self, session_id: str, peer: Peer, headers: Headers) -> Caller:
        """The caller of a request: the caller who signed in, or the one that the connection proves. Raises
        Unauthorized.
        """
        session = self._sessions.get(session_id)
        now = time.monotonic()
        if session is not None and now - session.used_at < limits.CONSOLE_SESSION_SECONDS_MAX:
            self._sessions[session_id] = session._replace(used_at=now)
            self._sessions.move_to_end(session_id)
            return session.caller
        self._sessions.pop(session_id, None)
        return self._access.authenticate(peer, headers)

    async def sign_in(self, token: str, peer: Peer) -> str:
        """The id of a new session. Raises Unauthorized, after a pause if the address has failed often."""
        try:
            caller = self._access.caller_of_token(token.strip().encode())
        except Unauthorized as error:
            await self.record_failure(peer, error)
            raise
        session_id = secrets.token_urlsafe(32)
        self._sessions[session_id] = _Session(caller, time.monotonic())
        while len(self._sessions) > limits.CONSOLE_SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session_id

    async def record_failure(self, peer: Peer, error: Unauthorized) -> None:
        """Records a token that was refused, and waits if the address fails often."""
        self._access.audit.denied(None, peer, "console", (), error)
        if not await self._access.failed_attempts.hold_back(peer.host):
            raise Forbidden("too many failed attempts to come in from this address")

    def is_signed_in(self, session_id: str) -> bool:
        return session_id in self._sessions

    def sign_out(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)

    def _drop_ended(self) -> None:
        for session_id, session in list(self._sessions.items()):
            if session.caller.ended:
                del self._sessions[session_id]
