"""Decides who is calling, and keeps the tokens: in the catalog, and all of them in memory by their SHA-256.

A change of tokens is durable before it takes effect, and takes effect with the next request: the functions in
`on_ended` make connections forget callers that have ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from querator import limits
from querator.clock import Clock
from querator.config import AccessConfig
from querator.daemon.access import token_text, tokens
from querator.daemon.access.addresses import refuse_unprotected
from querator.daemon.access.audit import AuditLog
from querator.daemon.access.callers import Caller, CallerKind, Peer
from querator.daemon.access.failed_attempts import FailedAttempts
from querator.daemon.access.roles import Right
from querator.daemon.access.web_pages import Headers, is_of_another_site, names_this_machine
from querator.errors import Forbidden, QueratorError, Unauthorized
from querator.items import Role, Token

if TYPE_CHECKING:
    from querator.daemon.catalog import Catalog

log = logging.getLogger("querator.access")

BEARER: Final = b"Bearer "
INVALID_HEADER: Final = "invalid authorization header format"
INVALID_KEY: Final = "api key is invalid"
UNKNOWN_KEY: Final = "api key does not exist"
EXPIRED_KEY: Final = "api key has expired"
NO_KEY: Final = "authentication required"
OTHER_SITE: Final = f"{NO_KEY}; the request comes from a web page of another site"
OTHER_HOST: Final = f"{NO_KEY}; without a token, use localhost or an IP address as the daemon's host name"
ACCESS_DENIED: Final = "access denied"
ROOT: Final = 0


class _Known(NamedTuple):
    token: Token
    caller: Caller


class Access:
    def __init__(self, config: AccessConfig, clock: Clock, data: Path) -> None:
        self.config = config
        self.audit = AuditLog(data, clock, config.audit_kept_ns // limits.NS_PER_US)
        self.on_ended: list[Callable[[], None]] = []
        """Called after callers have ended, so that connections forget the callers whose `ended` is set."""
        self.failed_attempts = FailedAttempts()
        self._clock = clock
        self._catalog: Catalog | None = None
        self._changing = asyncio.Lock()
        self._tokens: list[Token] = []
        self._by_digest: dict[str, _Known] = {}
        self._users: dict[int, Caller] = {}
        self._certificates = {
            one.name: Caller(CallerKind.CERTIFICATE, one.name, Role(one.role), one.queues)
            for one in config.certificates
        }
        self._anonymous = Caller(CallerKind.ANONYMOUS, "anonymous", Role.ADMIN)
        self._stamped_at = 0

    # -- start

    def load(self, catalog: Catalog) -> None:
        """Blocking. Reads the tokens. Called once, before the daemon serves requests."""
        self._catalog = catalog
        self._take_over(tokens.without_leftovers(catalog.tokens(), self._clock.now_us()))

    def follow(self, found: list[Token]) -> None:
        """Uses these tokens, which another daemon manages: this one is its standby."""
        self._take_over(tokens.without_leftovers(found, self._clock.now_us()))

    def check_addresses(self, addresses: Sequence[str], *, has_tls: bool) -> None:
        """Raises ConfigError if the daemon must not listen there, and logs what an operator should know."""
        if not addresses:
            return
        if self.config.insecure:
            log.warning("INSECURE: %s", self.warning(), extra={"addresses": ",".join(addresses)})
            return
        refuse_unprotected(addresses, has_tokens=self.needs_token, has_tls=has_tls)
        if not self.needs_token:
            log.warning(
                "every user of this machine may do everything over TCP, until the first token is created",
                extra={"addresses": ",".join(addresses), "hint": "querator tokens create NAME --role admin"},
            )

    def warning(self) -> str:
        """What --insecure exposes at present, for the log, `daemon status`, `doctor` and `check daemon`; empty without
        it.
        """
        if not self.config.insecure:
            return ""
        if self.admits_anonymous:
            return "the daemon runs with --insecure: whoever reaches its TCP port may do everything without a token"
        return "the daemon runs with --insecure: it listens on TCP although TLS or tokens are missing"

    # -- who is calling

    @property
    def needs_token(self) -> bool:
        """Whether tokens are checked: a token exists or was revoked, or access is `required`."""
        return bool(self._tokens) or self.config.required

    @property
    def admits_anonymous(self) -> bool:
        """Whether a TCP client without a token may do everything."""
        return not self.needs_token or (self.config.insecure and not self.config.required)

    def authenticate(self, peer: Peer, headers: Headers) -> Caller:
        """The caller who sent a request with these headers, whose names are in lower case. Raises Unauthorized."""
        given = [value.strip() for name, value in headers if name == b"authorization"]
        if len(given) > 1 or (given and given[0] and not given[0].startswith(BEARER)):
            raise Unauthorized(INVALID_HEADER)
        if given and given[0] and self.needs_token:
            return self.caller_of_token(given[0][len(BEARER) :])
        caller = peer.caller or (self._anonymous if self.admits_anonymous else None)
        if caller is None:
            raise Unauthorized(NO_KEY)
        # A browser lends the rights of its user to every web page, except those that need a token.
        if is_of_another_site(headers):
            raise Unauthorized(OTHER_SITE)
        if caller is self._anonymous and not self.config.insecure and not names_this_machine(headers):
            raise Unauthorized(OTHER_HOST)
        return caller

    def caller_of_token(self, text: bytes) -> Caller:
        """The caller who owns this token. Raises Unauthorized."""
        if not token_text.is_well_formed(text):
            raise Unauthorized(INVALID_KEY)
        known = self._by_digest.get(token_text.digest(text))
        if known is None:
            raise Unauthorized(UNKNOWN_KEY)
        if known.token.expires_at and known.token.expires_at <= self._clock.now_us():
            raise Unauthorized(EXPIRED_KEY)
        known.caller.last_used_at = self._clock.now_us()
        return known.caller

    def caller_of_user(self, uid: int) -> Caller | None:
        """The caller for a user whom the kernel reports for the Unix socket. None if the user has no access."""
        found = self._users.get(uid)
        if found is None:
            if uid in (ROOT, os.geteuid()):
                found = Caller(CallerKind.USER, _user_name(uid), Role.ADMIN)
            elif self.config.socket_group:
                found = Caller(
                    CallerKind.USER, _user_name(uid), Role(self.config.socket_role), self.config.socket_queues
                )
            else:
                return None
            self._users[uid] = found
        return found

    def caller_of_certificate(self, name: str) -> Caller | None:
        """The caller with a client certificate of this name, which TLS has verified. None if the name has no role."""
        return self._certificates.get(name)

    # -- what they may do

    def check(self, caller: Caller, right: Right, queues: Iterable[str] = ()) -> None:
        """Raises Unauthorized or Forbidden unless the caller has the right, on each of the queues.

        Every call, page and stream is checked here, before any of the names is looked up.
        """
        if caller.ended:
            raise Unauthorized(caller.ended)
        if caller.kind is CallerKind.TOKEN:
            caller.last_used_at = self._clock.now_us()
        if not caller.may(right) or not all([caller.may(right, queue) for queue in queues]):
            raise Forbidden(ACCESS_DENIED)

    def admit(self, caller: Caller, peer: Peer, call: str, right: Right, queues: Sequence[str] = ()) -> None:
        """Calls `check` for a request, and records a denial in the audit log."""
        try:
            self.check(caller, right, queues)
        except QueratorError as error:
            self.audit.denied(caller, peer, call, queues, error)
            raise

    # -- tokens

    def all_tokens(self) -> list[Token]:
        """Every token that was not revoked, with the time of its last use."""
        return [self._stamped(token) for token in self._tokens if not token.revoked_at]

    async def create(self, name: str, role: str, queues: Sequence[str], expires_at: int, by: str) -> tokens.Made:
        async with self._changing:
            made = tokens.create(self._current(), name, role, queues, expires_at, by, self._clock.now_us())
            await self._save(made.tokens)
        return made

    async def revoke(self, name: str) -> None:
        async with self._changing:
            await self._save(tokens.revoke(self._current(), name, self._clock.now_us()))

    async def rotate(self, name: str, grace_us: int, by: str) -> tokens.Made:
        async with self._changing:
            made = tokens.rotate(self._current(), name, grace_us, by, self._clock.now_us())
            await self._save(made.tokens)
        return made

    def _current(self) -> list[Token]:
        return tokens.without_leftovers([self._stamped(token) for token in self._tokens], self._clock.now_us())

    def _stamped(self, token: Token) -> Token:
        known = self._by_digest.get(token.digest)
        if known is None or known.caller.last_used_at <= token.last_used_at:
            return token
        return msgspec.structs.replace(token, last_used_at=known.caller.last_used_at)

    async def _save(self, changed: list[Token]) -> None:
        assert self._catalog is not None
        await asyncio.get_running_loop().run_in_executor(None, self._catalog.save_tokens, changed)
        self._take_over(changed)

    def _take_over(self, changed: list[Token]) -> None:
        """Uses this list of tokens from now on. Ends the callers of tokens that are not in it, and the anonymous caller
        if TCP now needs a token.
        """
        old = self._by_digest
        self._tokens = changed
        self._by_digest = {}
        for token in changed:
            if not token.revoked_at:
                known = old.pop(token.digest, None)
                caller = known.caller if known else Caller(CallerKind.TOKEN, token.name, token.role, token.queues)
                self._by_digest[token.digest] = _Known(token, caller)
        closes = not self.admits_anonymous and not self._anonymous.ended
        if closes:
            self._anonymous.end(NO_KEY)
        for known in old.values():
            known.caller.end(UNKNOWN_KEY)
        if old or closes:
            self._tell_ended()

    def _tell_ended(self) -> None:
        for tell in self.on_ended:
            tell()

    # -- time

    def tick(self) -> bool:
        """Ends the callers of expired tokens. Returns whether it is time to save when tokens were last used."""
        now_us = self._clock.now_us()
        expired = [
            known.caller
            for known in self._by_digest.values()
            if 0 < known.token.expires_at <= now_us and not known.caller.ended
        ]
        for caller in expired:
            caller.end(EXPIRED_KEY)
        if expired:
            self._tell_ended()
        if now_us - self._stamped_at < limits.TOKENS_STAMPED_EVERY_US:
            return False
        self._stamped_at = now_us
        for known in self._by_digest.values():
            known.caller.forget_granted()
        return True

    async def keep_time(self) -> None:
        """Ends expired tokens and saves times of last use, until cancelled."""
        while True:
            await asyncio.sleep(self.seconds_until_check())
            if self.tick():
                await self.save_last_used()

    def expires_at(self, caller: Caller) -> int:
        """When the token of a caller expires; 0 if it has none, or one that does not expire."""
        return next((known.token.expires_at for known in self._by_digest.values() if known.caller is caller), 0)

    def seconds_until_check(self) -> float:
        """The time until the next token expires, but at most a second: the clock may jump, and tokens may be added."""
        now_us = self._clock.now_us()
        left_us = [known.token.expires_at - now_us for known in self._by_digest.values()]
        return min([limits.TOKENS_CHECKED_EVERY_SECONDS, *[us / limits.US_PER_SECOND for us in left_us if us > 0]])

    async def save_last_used(self) -> None:
        """Saves when each token was last used, if that has changed."""
        async with self._changing:
            stamped = [self._stamped(token) for token in self._tokens]
            if stamped == self._tokens:
                return
            try:
                await self._save(stamped)
            except QueratorError as error:
                log.warning("the last uses of tokens cannot be saved", extra={"reason": error.message})


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
