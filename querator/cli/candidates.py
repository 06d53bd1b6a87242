"""What a shell may complete from the daemon: `querator __complete KIND WORDS…` prints one candidate per line.

Called on every press of Tab, so typer stays out of it, nothing takes longer than 300 ms, and nothing is ever said on
standard error. `WORDS` is the command line as typed so far; the last one is what is being completed.
"""

from __future__ import annotations

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
}


def answer(arguments: Sequence[str]) -> int:
    if not arguments:
        return 2
    kind, words = arguments[0], list(arguments[1:])
    try:
        prefix = words[-1] if words else ""
        found = [text for text in _candidates(kind, words) if text.startswith(prefix)]
        sys.stdout.write("".join(f"{text}\n" for text in found[:CANDIDATES_MAX]))
        sys.stdout.flush()
    except Exception:
        # Whatever it is, a prompt is no place to read about it.
        return 1
    return 0


def _candidates(kind: str, words: Sequence[str]) -> Iterable[str]:
    if kind == "contexts":
        from querator import config

        return config.load_contexts().by_name
    client = _client(words)
    positional = _positional(words)
    if kind == "queues":
        return (info.queue_name for info in client.list_queues(limit=CANDIDATES_MAX))
    if kind == "jobs":
        return (job.job_id for job in client.list_jobs())
    # querator NOUN VERB QUEUE …
    queue = positional[2]
    if kind == "partitions":
        return (str(one.partition) for one in client.list_partitions(queue))
    if kind == "storages":
        return sorted({one.storage for one in client.list_partitions()})
    if kind == "ids":
        return _ids(client, queue)
    return ()


def _ids(client: Any, queue: str) -> Iterable[str]:
    for one in client.stats(queue).logical_queues[0].partitions:
        for item in client.list_items(queue, partition=one.partition, limit=IDS_MAX):
            yield item.id


def _client(words: Sequence[str]) -> Any:
    from querator import config
    from querator.client import Client

    given: dict[str, Any] = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in CONNECTION_OPTIONS:
            given[CONNECTION_OPTIONS[name]] = value if equals else following
    settings = config.client_settings(**given)
    return Client(str(settings.address.value), token=settings.token(), timeout=ANSWER_SECONDS_MAX, patient=False)


def _positional(words: Sequence[str]) -> list[str]:
    """The words that are neither options nor, as far as one can tell without the tree, their values."""
    found: list[str] = []
    skip = False
    for word in words[:-1]:
        if skip:
            skip = False
        elif word in CONNECTION_OPTIONS or word in ("-o", "--output", "--columns", "--timeout", "-n"):
            skip = True
        elif not word.startswith("-"):
            found.append(word)
    return found[1:]
