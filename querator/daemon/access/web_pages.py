"""Recognises requests that a web page of another site makes a browser send.

A browser on this machine reaches what its user reaches: a loopback port without tokens, or one that accepts the user's
client certificate. So a page from anywhere could use the daemon. Browsers say in `Origin` which site a POST comes from.
The owner of a site can also give its name the address 127.0.0.1. Its pages then reach the daemon under that name, as if
the daemon were part of the site. The name in `Host` shows this.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

Headers = Iterable[tuple[bytes, bytes]]


def is_of_another_site(headers: Headers) -> bool:
    """Whether `Origin` names another site than `Host`. Header names are in lower case."""
    found = dict(headers)
    origin = found.get(b"origin")
    return origin is not None and origin.partition(b"://")[2].lower() != found.get(b"host", b"").lower()


def names_this_machine(headers: Headers) -> bool:
    """Whether `Host` is a name that no site on the internet can have: an address, `localhost`, or a name without a dot.
    A request without `Host` does not come from a browser.
    """
    given = dict(headers).get(b"host")
    if given is None:
        return True
    try:
        name = (urlsplit("//" + given.decode("latin-1")).hostname or "").rstrip(".")
    except ValueError:
        return False
    if "." not in name and ":" not in name:
        return True
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name.endswith(".localhost")
    return True
