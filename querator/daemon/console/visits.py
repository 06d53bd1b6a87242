"""One request of a browser: what it asks for, who sends it, and whether a change really comes from our own page.

A change must come from one of our own pages. The browser says so in `Sec-Fetch-Site` and `Origin`, and the form carries
a token that only a page of the same visitor knows. The next page reports the result of a change, from memory.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from starlette.types import Receive, Scope

from querator.daemon.access import Caller, Peer, Right
from querator.daemon.console.asking import Api
from querator.daemon.console.sessions import Sessions
from querator.errors import Forbidden, InvalidRequest, Unauthorized
from querator.limits import CONSOLE_FORM_BYTES_MAX, CONSOLE_REMARKS_MAX


class Remark(NamedTuple):
    """A message at the top of the next page."""

    kind: str
    """`good`, `warn` or `bad`."""
    text: str
    link: str = ""
    link_text: str = ""


class Desk:
    """The state that all visits share: a secret for tokens, and remarks for the next page of a visitor."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._remarks: OrderedDict[str, Remark] = OrderedDict()

    def token(self, visitor: str) -> str:
        """The token that a form of this visitor must carry."""
        return hmac.new(self._secret, visitor.encode(), hashlib.sha256).hexdigest()

    def leave(self, remark: Remark) -> str:
        name = secrets.token_urlsafe(9)
        self._remarks[name] = remark
        while len(self._remarks) > CONSOLE_REMARKS_MAX:
            self._remarks.popitem(last=False)
        return name

    def remark(self, name: str) -> Remark | None:
        return self._remarks.get(name)


class Visit:
    def __init__(self, desk: Desk, sessions: Sessions, scope: Scope, receive: Receive) -> None:
        self.desk = desk
        self.sessions = sessions
        self.peer: Peer = scope["state"]["peer"]
        self.method: str = scope["method"]
        self.path: str = scope["path"].removeprefix("/console").rstrip("/") or "/"
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.query = _parameters(scope["query_string"])
        self.place = f"{self.path}?{scope['query_string'].decode('latin-1')}" if self.query else self.path
        """The address of the page below /console, as the browser asked for it."""
        self.form: dict[str, list[str]] = {}
        self.is_secure = scope.get("scheme") == "https"
        self._receive = receive
        port = re.search(r":([0-9]{1,5})$", self.headers.get("host", ""))
        self.cookie_name = f"querator_console_{port[1] if port else 80}"
        """Cookies do not tell ports apart, and several daemons may run on a machine."""
        known = _cookies(self.headers.get("cookie", "")).get(self.cookie_name, "")
        self.is_new = not known
        self.visitor = known or secrets.token_urlsafe(24)
        self.caller: Caller | None = None
        """Who the visitor is. None for somebody who has to sign in first."""
        self.refusal: Unauthorized | None = None
        """Why there is no caller."""
        try:
            self.caller = sessions.caller_of(self.visitor, self.peer, scope["headers"])
        except Unauthorized as error:
            self.refusal = error
        self.api = Api(scope, receive, Peer(self.peer.address, self.caller))

    def may_operate(self, queue: str = "") -> bool:
        """Whether the visitor sees buttons: on a queue, or at all."""
        return self.caller is not None and self.caller.may(Right.OPERATE, queue or None)

    @property
    def token(self) -> str:
        return self.desk.token(self.visitor)

    def get(self, name: str, default: str = "") -> str:
        """A field of the form or of the address."""
        for fields in (self.form, self.query):
            if name in fields:
                return fields[name][-1]
        return default

    def all(self, name: str) -> list[str]:
        return self.form.get(name) or self.query.get(name) or []

    def number(self, name: str, default: int = 0) -> int:
        text = self.get(name)
        try:
            return int(text) if text else default
        except ValueError:
            raise InvalidRequest(f"{name} is invalid; '{text}' is not a number") from None

    async def read_body(self) -> bytes:
        """The whole body. A GET has an empty one, which must be received too: the next message after it means that the
        visitor is gone.
        """
        chunks, size = [], 0
        while True:
            message = await self._receive()
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > CONSOLE_FORM_BYTES_MAX:
                raise InvalidRequest("the form is too long")
            if not message.get("more_body", False):
                return b"".join(chunks)

    def take_form(self, body: bytes) -> None:
        """Takes the form of a change. Refuses a change that did not come from one of our own pages."""
        if not self._is_same_origin():
            raise Forbidden("this change does not come from a page of this console")
        self.form = _parameters(body)
        if self.is_new or not hmac.compare_digest(self.get("token").encode(), self.token.encode()):
            raise Forbidden("this page is out of date: go back, load it again, and repeat what you did")

    def _is_same_origin(self) -> bool:
        site, origin = self.headers.get("sec-fetch-site"), self.headers.get("origin")
        if site is None and origin is None:
            return False
        if site is not None and site != "same-origin":
            return False
        return origin is None or origin.partition("://")[2] == self.headers.get("host")


def address(path: str, **fields: object) -> str:
    """The address of a page. Fields without a value are left out."""
    query = urlencode({name: value for name, value in fields.items() if value not in ("", None)})
    return f"/console{path}" + (f"?{query}" if query else "")


def _parameters(text: bytes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    try:
        for name, value in parse_qsl(text.decode(), keep_blank_values=True, max_num_fields=2_000):
            found.setdefault(name, []).append(value)
    except ValueError:
        raise InvalidRequest("the address or the form cannot be read") from None
    return found


def _cookies(header: str) -> Mapping[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(header).items()}
    except CookieError:
        return {}
