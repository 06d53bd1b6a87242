"""A daemon process whose TCP port needs tokens, and what tests ask of it."""

from __future__ import annotations

import contextlib
import http.client
import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.daemons import Daemon
from tests.waiting import PATIENCE_SECONDS

ROLES = ("viewer", "producer", "consumer", "operator", "admin")
MINE, OTHERS, MISSING = "mine", "others", "mine-missing"
"""A queue that the narrow tokens are for, one that they are not for, and one that does not exist but would match."""


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Guarded(Daemon):
    """A daemon with two queues, a token for each role, and one for each role on one of the queues."""

    def __init__(self, directory: Path, *options: str, tokens: bool = True) -> None:
        super().__init__(directory, *options, http=True)
        self.tokens: dict[str, str] = {}
        if tokens:
            for queue in (MINE, OTHERS):
                self.client.create_queue(queue)
            for role in ROLES:
                self.tokens[role] = self.create_token(f"{role}-all", role)
                if role != "admin":
                    self.tokens[f"{role} of mine"] = self.create_token(f"{role}-mine", role, ["mine*"])

    def create_token(self, name: str, role: str, queues: list[str] | None = None, **more: Any) -> str:
        body = {"name": name, "role": role, "queues": queues or [], **more}
        status, answer = self.call("/v1/tokens.create", body)
        assert status == 200, answer
        return str(answer["token"])

    def admin(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A call over the Unix socket, which needs no token."""
        status, answer = self.call(path, body)
        assert status == 200, answer
        return answer

    def admin_rows(self, queue: str, query: str) -> Any:
        """The rows of a query over the Unix socket."""
        return self.call("/v1/sql", {"queue_name": queue, "query": query})[1]

    def tcp(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.http, timeout=PATIENCE_SECONDS)

    def ask(
        self,
        path: str,
        body: dict[str, Any] | bytes | None = None,
        token: str | None = None,
        *,
        times: int = 1,
        method: str = "",
        **headers: str,
    ) -> Answer:
        """The last answer to a request over TCP that is sent `times` times on one connection.

        The second one with the same head takes the hot path, if there is one for it.
        """
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        with contextlib.closing(self.tcp()) as connection:
            for _ in range(times):
                connection.request(method or ("GET" if data is None else "POST"), path, data, headers)
                response = connection.getresponse()
                answer = Answer(response.status, response.read(), dict(response.getheaders()))
            return answer
