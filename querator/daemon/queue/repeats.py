"""Tells new produce requests from repetitions of earlier ones. Part of the Logical's pass.

`remembered.py` keeps the keys of requests that were carried out. A request with a known key is answered at once. If its
first attempt is still under way, the request waits for that answer. If a file may know its key, the files are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from querator.daemon.queue.partition import Partition
from querator.daemon.queue.requests import REPEATED, Arrival, Intake, Produce
from querator.daemon.store import joined, others_of
from querator.errors import InvalidRequest
from querator.limits import BULK_REQUEST_ID_KEPT_US, MOVE_KEPT_US, REQUEST_ID_KEPT_US

if TYPE_CHECKING:
    from querator.daemon.queue.passes import Pass

OTHER_CONTENT: Final = "request id is invalid; it was used before for other items"


class Repeats:
    """Requests with a key that are not carried out yet."""

    __slots__ = ("looking_up", "to_look_up", "under_way")

    def __init__(self) -> None:
        self.under_way: dict[str, Produce] = {}
        """By request id, the first request that came with it."""
        self.to_look_up: list[Produce | Arrival] = []
        """Requests that the files may remember."""
        self.looking_up = 0
        """The number of requests that wait for an answer from the files."""

    def give_up(self, request: Produce) -> None:
        """Forgets a request that was answered without being carried out. The next one with its id counts as new."""
        if self.under_way.get(request.request_id) is request:
            del self.under_way[request.request_id]


def remember(this: Pass, partition: Partition, keys: Sequence[str], kept_us: int = REQUEST_ID_KEPT_US) -> None:
    """Remembers the keys of a request that the partition takes in this pass."""
    until = this.now_us + kept_us
    others = others_of(partition.contents.changes())
    others.request_ids = joined(others.request_ids, list(keys))
    others.request_until = joined(others.request_until, [until] * len(keys))
    for key in keys:
        this.repeats.under_way.pop(key, None)
        this.remembered.put(key, until)


def take_back(this: Pass, request: Produce | Arrival) -> None:
    """Forgets the keys of a request whose write failed."""
    for key in request.keys:
        this.remembered.drop(key)
    if isinstance(request, Produce) and request.request_id:
        this.repeats.under_way[request.request_id] = request


def may_enter(this: Pass, request: Produce | Arrival) -> bool:
    """Whether a request is new. If not, it is answered, or waits for its first attempt or for the files."""
    if isinstance(request, Produce) and _is_repeated(this, request):
        return False
    ids = this.remembered
    if request.looked_up != ids.version and ids.may_have(request.keys):
        this.repeats.to_look_up.append(request)
        this.deadlines.watch(request)
        return False
    if isinstance(request, Produce) and unread(this, request) is not None:
        this.hold_up(request)
        return False
    return True


def _is_repeated(this: Pass, request: Produce) -> bool:
    key = request.request_id
    if this.remembered.has(key, this.now_us) or key in request.found:
        this.repeats.give_up(request)
        this.answer(request, _repeated(this, request) if isinstance(request, Intake) else REPEATED)
        return True
    first = this.repeats.under_way.get(key)
    if first is None or first.answered or first is request:
        this.repeats.under_way[key] = request
        return False
    if isinstance(request, Intake) and not (isinstance(first, Intake) and first.digest == request.digest):
        this.answer(request, InvalidRequest(OTHER_CONTENT))
    else:
        first.followers = [*first.followers, request]
        this.deadlines.watch(request)
    return True


def _repeated(this: Pass, request: Intake) -> InvalidRequest | None:
    """The answer to a chunk with a known id: an error if other items were added under that id."""
    is_same = this.remembered.has(request.witness, this.now_us) or request.witness in request.found
    return None if is_same else InvalidRequest(OTHER_CONTENT)


def unread(this: Pass, request: Produce | Arrival) -> Partition | None:
    """A partition that may know this request and has not been read since the start; None if there is none."""
    if not this.remembered.unread or not request.keys or request.is_first_attempt:
        return None
    if isinstance(request, Arrival):
        kept_us = MOVE_KEPT_US
    else:
        kept_us = BULK_REQUEST_ID_KEPT_US if isinstance(request, Intake) else REQUEST_ID_KEPT_US
    return this.remembered.unread[0] if this.now_us <= this.remembered.loaded_at + kept_us else None


def look_up(this: Pass) -> None:
    """Asks every partition about keys that files may know, then puts the requests back at the front of the inbox."""
    requests, this.repeats.to_look_up = this.repeats.to_look_up, []
    if any(not (partition.allows.storage or partition.keys_are_noted) for partition in this.partitions):
        this.hold_up_again(requests)
        return
    keys = [key for request in requests for key in request.keys]
    version = this.remembered.version
    this.repeats.looking_up += len(requests)

    def ended(answers: dict[Partition, Iterable[str]], errors: list[Exception]) -> None:
        this.repeats.looking_up -= len(requests)
        found = set(chain.from_iterable(answers.values()))
        for request in requests:
            request.found = found
            if not errors:
                request.looked_up = version
        this.inbox[:0] = [request for request in requests if not request.answered]

    this.files.ask({partition: _question(this, partition, keys) for partition in this.partitions}, ended)


def _question(this: Pass, partition: Partition, keys: list[str]) -> Callable[[], Iterable[str]]:
    """Blocking work that says which of the keys the partition's file, or the catalog for an offline one, remembers."""
    if partition.store is None:
        return partial(this.files.noted_keys, partition.placement, keys)
    return partial(partition.store.remembered, keys, this.now_us)
