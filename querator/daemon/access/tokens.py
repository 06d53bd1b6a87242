"""Creates, revokes and rotates tokens in the daemon's list of tokens, as pure functions.

Each function takes the list and returns the changed one. `admission` saves it before it takes effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from querator import limits
from querator.daemon.access import token_text
from querator.daemon.access.roles import EVERY_QUEUE
from querator.errors import Conflict, InvalidRequest, NotFound, RequestFailed
from querator.items import Role, Token

NAME_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.@")


class Made(NamedTuple):
    tokens: list[Token]
    text: str
    """The secret. It exists only here and in the answer to the call."""


def create(
    tokens: Sequence[Token], name: str, role: str, queues: Sequence[str], expires_at: int, by: str, now_us: int
) -> Made:
    _check_name(name)
    known = _role(role)
    patterns = _patterns(known, queues)
    if expires_at and expires_at <= now_us:
        raise InvalidRequest("expires_at is invalid; it has passed already")
    if any(token.name == name for token in valid(tokens, now_us)):
        raise Conflict(f"token '{name}' already exists")
    kept = [token for token in tokens if token.name != name or token.revoked_at]
    if len(kept) >= limits.TOKENS_MAX:
        raise RequestFailed(f"there are {limits.TOKENS_MAX:,} tokens already; revoke some that nobody uses")
    text = token_text.generate(known.value)
    return Made([*kept, _token(text, name, known, patterns, now_us, by, expires_at)], text)


def revoke(tokens: Sequence[Token], name: str, now_us: int) -> list[Token]:
    """Revokes every secret of a token. Only the last revoked secret stays in the list."""
    find(tokens, name)
    kept = [token for token in tokens if token.name != name and not token.revoked_at]
    last = next(token for token in reversed(tokens) if token.name == name and not token.revoked_at)
    return [*kept, msgspec.structs.replace(last, revoked_at=now_us)]


def rotate(tokens: Sequence[Token], name: str, grace_us: int, by: str, now_us: int) -> Made:
    """Makes a new secret with the same rights. The old one stays valid for the grace period."""
    old = find(tokens, name)
    if old.expires_at and old.expires_at <= now_us:
        raise Conflict(f"token '{name}' has expired; revoke it and create another one")
    if grace_us < 0:
        raise InvalidRequest("grace is invalid; cannot be negative")
    text = token_text.generate(old.role.value)
    new = _token(
        text, name, old.role, old.queues, now_us, by, old.expires_at and now_us + old.expires_at - old.created_at
    )
    ends_at = now_us + grace_us
    rest = [token for token in tokens if token.name != name or token.revoked_at]
    if grace_us:
        ends_at = min(ends_at, old.expires_at) if old.expires_at else ends_at
        rest.append(msgspec.structs.replace(old, expires_at=ends_at))
    return Made([*rest, new], text)


def find(tokens: Sequence[Token], name: str) -> Token:
    """The newest secret of a token, valid or expired."""
    found = [token for token in tokens if token.name == name and not token.revoked_at]
    if not found:
        raise NotFound(f"token does not exist; no such token '{name}'")
    return found[-1]


def valid(tokens: Sequence[Token], now_us: int) -> list[Token]:
    return [token for token in tokens if not token.revoked_at and not (token.expires_at and token.expires_at <= now_us)]


def without_leftovers(tokens: Sequence[Token], now_us: int) -> list[Token]:
    """Drops secrets whose grace period is over. An expired token that was not rotated stays, and lists show it as
    expired.
    """
    newest = {token.name: token for token in tokens if not token.revoked_at}
    alive = set(map(id, valid(tokens, now_us)))
    return [token for token in tokens if token.revoked_at or id(token) in alive or newest[token.name] is token]


def _token(text: str, name: str, role: Role, queues: tuple[str, ...], now_us: int, by: str, expires_at: int) -> Token:
    return Token(
        name=name,
        digest=token_text.digest(text.encode()),
        prefix=token_text.prefix(text),
        role=role,
        queues=queues,
        created_at=now_us,
        created_by=by,
        expires_at=expires_at,
    )


def _check_name(name: str) -> None:
    if not name:
        raise InvalidRequest("token name is invalid; cannot be empty")
    if len(name.encode()) > limits.TOKEN_NAME_BYTES_MAX:
        raise InvalidRequest(
            f"token name is invalid; cannot be greater than '{limits.TOKEN_NAME_BYTES_MAX}' characters"
        )
    if not NAME_CHARACTERS.issuperset(name):
        raise InvalidRequest("token name is invalid; it can have letters, digits, '-', '_', '.' and '@'")


def _role(text: str) -> Role:
    try:
        return Role(text)
    except ValueError:
        raise InvalidRequest(f"role is invalid; '{text}' is none of {', '.join(Role)}") from None


def _patterns(role: Role, queues: Sequence[str]) -> tuple[str, ...]:
    if role is Role.ADMIN and queues and tuple(queues) != EVERY_QUEUE:
        raise InvalidRequest("queues is invalid; an admin may do everything on every queue")
    if len(queues) > limits.TOKEN_PATTERNS_MAX:
        raise InvalidRequest(f"queues is invalid; a token can have {limits.TOKEN_PATTERNS_MAX} patterns")
    for pattern in queues:
        if not pattern or len(pattern.encode()) > limits.QUEUE_NAME_BYTES_MAX:
            raise InvalidRequest(
                f"queues is invalid; a pattern has 1 to {limits.QUEUE_NAME_BYTES_MAX} bytes, such as orders or mail-*"
            )
    return tuple(dict.fromkeys(queues)) or EVERY_QUEUE
