"""Refuses TCP addresses that other machines can reach, unless both tokens and TLS protect them."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from querator.errors import ConfigError


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address such as `127.0.0.1:2319` or `[::1]:2319`."""
    host = address.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_unprotected(addresses: Sequence[str], *, has_tokens: bool, has_tls: bool) -> None:
    """Raises ConfigError if another machine can reach an address, and tokens or TLS are missing."""
    reachable = [address for address in addresses if not is_loopback(address)]
    missing = ([] if has_tokens else ["tokens"]) + ([] if has_tls else ["TLS"])
    if not reachable or not missing:
        return
    todo = []
    if not has_tokens:
        todo.append("start it with --http localhost:2319 and run querator tokens create NAME --role admin")
    if not has_tls:
        todo.append("give it --tls-cert and --tls-key")
    raise ConfigError(
        f"the daemon does not listen on {', '.join(reachable)} without {' and '.join(missing)}",
        hint=f"{', then '.join(todo)}; or listen without them: --insecure",
    )
