"""Calls about tokens: create, list, revoke, rotate, and who the caller is."""

from __future__ import annotations

from querator import durations
from querator.daemon import logs
from querator.daemon.access import Caller
from querator.daemon.registry import CallsByCaller, Registry
from querator.errors import InvalidRequest
from querator.items import Token
from querator.limits import NS_PER_US
from querator.wire import access_messages


async def create(
    registry: Registry, request: access_messages.TokensCreateRequest, caller: Caller
) -> access_messages.TokenSecret:
    made = await registry.access.create(
        request.name, request.role, request.queues, request.expires_at or 0, caller.name
    )
    token = made.tokens[-1]
    logs.changed("token created", "", details={"token": token.name, "role": token.role, "by": caller.name})
    return _secret(token, made.text)


async def rotate(
    registry: Registry, request: access_messages.TokensRotateRequest, caller: Caller
) -> access_messages.TokenSecret:
    try:
        grace_us = durations.parse_days(request.grace) // NS_PER_US if request.grace else 0
    except ValueError as error:
        raise InvalidRequest(f"grace is invalid; {error} - expected format: 15m, 1h or 7d") from None
    made = await registry.access.rotate(request.name, grace_us, caller.name)
    logs.changed("token rotated", "", details={"token": request.name, "grace": request.grace, "by": caller.name})
    return _secret(made.tokens[-1], made.text)


async def revoke(registry: Registry, request: access_messages.TokenRequest, caller: Caller) -> None:
    await registry.access.revoke(request.name)
    logs.changed("token revoked", "", details={"token": request.name, "by": caller.name})


async def list_(
    registry: Registry, request: access_messages.TokensListRequest, caller: Caller
) -> access_messages.TokensListResponse:
    tokens = registry.access.all_tokens()
    now_us = registry.clock.now_us()
    newest = {token.name: token for token in tokens}
    items = [_info(token, newest[token.name] is not token, now_us) for token in tokens]
    return access_messages.TokensListResponse(items=sorted(items, key=lambda item: (item.name, item.created_at or 0)))


async def whoami(
    registry: Registry, request: access_messages.TokensWhoamiRequest, caller: Caller
) -> access_messages.TokensWhoamiResponse:
    return access_messages.TokensWhoamiResponse(
        name=caller.name,
        kind=caller.kind,
        role=caller.role,
        queues=list(caller.patterns),
        expires_at=registry.access.expires_at(caller) or None,
    )


def _secret(token: Token, text: str) -> access_messages.TokenSecret:
    return access_messages.TokenSecret(
        name=token.name,
        token=text,
        prefix=token.prefix,
        role=token.role,
        queues=list(token.queues),
        expires_at=token.expires_at or None,
    )


def _info(token: Token, is_replaced: bool, now_us: int) -> access_messages.TokenInfo:
    is_expired = 0 < token.expires_at <= now_us
    return access_messages.TokenInfo(
        name=token.name,
        prefix=token.prefix,
        role=token.role,
        queues=list(token.queues),
        created_at=token.created_at,
        created_by=token.created_by,
        expires_at=token.expires_at or None,
        last_used_at=token.last_used_at or None,
        state="expired" if is_expired else "replaced" if is_replaced else "valid",
    )


CALLS_BY_CALLER: CallsByCaller = {
    "tokens.create": create,
    "tokens.list": list_,
    "tokens.revoke": revoke,
    "tokens.rotate": rotate,
    "tokens.whoami": whoami,
}
