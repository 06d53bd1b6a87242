"""Finds out who visits. A visitor without a certificate or a Unix socket signs in with a token, and then has a session.

A session is a random id in a cookie, and the caller whom the token named, in memory. The token itself is kept nowhere.
A token that is revoked or expires ends its sessions at once; a restart ends all of them.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from typing import NamedTuple

from querator import limits
from querator.daemon.access import Access, Caller, Peer
from querator.errors import Unauthorized


class _Session(NamedTuple):
    caller: Caller
    used_at: float


class Sessions:
    def __init__(self, access: Access) -> None:
        self._access = access
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        """By id, the one that was used last at the end."""
        access.on_ended.append(self._drop_ended)

    def caller_of(self, session_id: str, peer: Peer, authorization: str | None) -> Caller:
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
        return self._access.authenticate(peer, None if authorization is None else authorization.encode("latin-1"))

    async def sign_in(self, token: str, peer: Peer) -> str:
        """The id of a new session. Raises Unauthorized, after a pause if the address has failed often."""
        try:
            caller = self._access.caller_of_token(token.strip().encode())
        except Unauthorized:
            if self._access.failed_attempts.failed(peer.host, time.monotonic()):
                await asyncio.sleep(limits.FAILED_ATTEMPT_WAIT_SECONDS)
            raise
        session_id = secrets.token_urlsafe(32)
        self._sessions[session_id] = _Session(caller, time.monotonic())
        while len(self._sessions) > limits.CONSOLE_SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session_id

    def is_signed_in(self, session_id: str) -> bool:
        return session_id in self._sessions

    def sign_out(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)

    def _drop_ended(self) -> None:
        for session_id, session in list(self._sessions.items()):
            if session.caller.ended:
                del self._sessions[session_id]
