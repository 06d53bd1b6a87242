"""Completes names that only the daemon knows: `querator __complete KIND PREFIX QUEUE WORDS…` prints one per line.

The shell runs it on every press of Tab. So it does not import typer, gives up after 300 ms, and prints no errors.
PREFIX is the part of the word that is typed already, QUEUE is the first argument of the command if there is one, and
WORDS is the whole command line, because its options may name a daemon.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

ANSWER_SECONDS_MAX: Final = 0.3
CANDIDATES_MAX: Final = 1_000
IDS_MAX: Final = 100
CONNECTION_OPTIONS: Final = {
    "--endpoint": "endpoint",
    "--socket": "socket",
    "--context": "context",
    "--token-file": "token_file",
    "--ca-file": "ca_file",
    "--client-cert": "client_cert",
    "--client-key": "client_key",
}


def answer(arguments: Sequence[str]) -> int:
    try:
        kind, prefix, queue, *words = arguments
        found = [text for text in _candidates(kind, queue, words) if text.startswith(prefix) and text.isprintable()]
        sys.stdout.write("".join(f"{text}\n" for text in found[:CANDIDATES_MAX]))
        sys.stdout.flush()
    except Exception:
        # An error message would disturb the prompt.
        return 1
    return 0


def _candidates(kind: str, queue: str, words: Sequence[str]) -> Iterable[str]:
    if kind == "contexts":
        from querator import config

        return config.load_contexts().by_name
    daemon = Daemon(words)
    if kind == "queues":
        return (one["queue_name"] for one in daemon.ask("queues.list", limit=CANDIDATES_MAX))
    if kind == "jobs":
        return (one["job_id"] for one in daemon.ask("jobs.list"))
    if kind == "storages":
        return (one["storage"] for one in daemon.ask("storages.list"))
    if not queue:
        return ()
    partitions = [int(one.get("partition", 0)) for one in daemon.ask("partitions.list", queue_name=queue)]
    if kind == "partitions":
        return map(str, partitions)
    return (
        item["id"]
        for partition in partitions
        for item in daemon.ask("storage/items.list", queue_name=queue, partition=partition, limit=IDS_MAX)
    )


class Daemon:
    """Sends requests without `Client`, because importing it takes too long."""

    def __init__(self, words: Sequence[str]) -> None:
        from querator import config
        from querator.client import ConnectionPool, parse_address

        given: dict[str, Any] = {}
        for word, following in zip(words, [*words[1:], ""], strict=True):
            name, equals, value = word.partition("=")
            if name in CONNECTION_OPTIONS:
                given[CONNECTION_OPTIONS[name]] = value if equals else following
        settings = config.client_settings(**given)
        token = settings.token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._pool = ConnectionPool(parse_address(str(settings.address.value)), headers, settings.tls)

    def ask(self, path: str, **request: Any) -> list[dict[str, Any]]:
        body = json.dumps(request).encode()
        headers = {"Content-Type": "application/json"}
        answer = self._pool.exchange("POST", f"/v1/{path}", body, headers, ANSWER_SECONDS_MAX)
        found: list[dict[str, Any]] = json.loads(answer.body).get("items", [])
        return found
