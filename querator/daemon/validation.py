"""Checks of requests, in the order of the wire contract. They raise errors with the texts of the contract."""

from __future__ import annotations

from typing import Final

from querator import durations, times
from querator.errors import InvalidRequest, NotFound, QueratorError
from querator.items import Queue
from querator.limits import (
    BATCH_ITEMS_MAX,
    LIST_LIMIT_MAX,
    MAX_ATTEMPTS_MAX,
    NAMESPACE_BYTES_MAX,
    NS_PER_US,
    PARTITIONS_MAX,
    QUEUE_NAME_BYTES_MAX,
    REASON_BYTES_MAX,
    REFERENCE_BYTES_MAX,
    REQUEST_ID_BYTES_MAX,
    REQUEST_TIMEOUT_MAX_NS,
    REQUEST_TIMEOUT_MIN_NS,
    TIMEOUT_TEXT_BYTES_MAX,
)
from querator.wire.messages import QueueInfo

# The characters with the Unicode property White_Space. str.isspace() would also accept U+001C to U+001F.
WHITESPACE = frozenset(
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029"
    "\u202f\u205f\u3000"
)

_TIMEOUTS_MAX: Final = 1_024
TIMEOUT_REQUIRED: Final = "request timeout is required; '5m' is recommended, 15m is the maximum"


def is_blank(text: str) -> bool:
    return not text or (text[0] in WHITESPACE and WHITESPACE.issuperset(text))


def has_whitespace(text: str) -> bool:
    return not WHITESPACE.isdisjoint(text)


def size(text: str) -> int:
    return len(text.encode())


# -- names


def unknown_queue(name: str) -> QueratorError:
    """The error for the name of a queue that does not exist."""
    if is_blank(name):
        return InvalidRequest("queue name is invalid; queue name cannot be empty")
    if "~" in name:
        return InvalidRequest(f"queue name is invalid; '{name}' cannot contain '~' character")
    return NotFound(f"queue does not exist; no such queue named '{name}'")


def queue_name(name: str) -> None:
    if size(name) > QUEUE_NAME_BYTES_MAX:
        raise InvalidRequest(f"queue name is invalid; cannot be greater than '{QUEUE_NAME_BYTES_MAX}' characters")
    if is_blank(name):
        raise InvalidRequest("queue name is invalid; queue name cannot be empty")
    if has_whitespace(name):
        raise InvalidRequest(f"queue name is invalid; '{name}' cannot contain whitespace")
    if "~" in name:
        raise InvalidRequest(f"queue name is invalid; '{name}' cannot contain '~' character")


def namespace(name: str) -> None:
    if size(name) > NAMESPACE_BYTES_MAX:
        raise InvalidRequest(f"namespace name is invalid; cannot be greater than '{NAMESPACE_BYTES_MAX}' characters")
    if is_blank(name):
        raise InvalidRequest("namespace name is invalid; cannot be empty")
    if has_whitespace(name):
        raise InvalidRequest(f"namespace name is invalid; '{name}' cannot contain whitespace")
    for character in "~:":
        if character in name:
            raise InvalidRequest(f"namespace name is invalid; '{name}' cannot contain '{character}' character")


def dead_queue_name(name: str) -> None:
    if size(name) > QUEUE_NAME_BYTES_MAX:
        raise InvalidRequest(f"dead queue is invalid; cannot be greater than '{QUEUE_NAME_BYTES_MAX}' characters")
    if has_whitespace(name):
        raise InvalidRequest(f"dead queue is invalid; '{name}' cannot contain whitespace")
    if "~" in name:
        raise InvalidRequest(f"dead queue is invalid; '{name}' cannot contain '~' character")


def dead_queue(name: str, dead: str, queues: dict[str, Queue]) -> None:
    """Refuses a dead queue that does not exist, is the queue itself, or has a dead queue of its own. Refuses any dead
    queue for a queue that is one."""
    if not dead:
        return
    dead_queue_name(dead)
    if dead == name:
        raise InvalidRequest("dead_queue cannot reference itself")
    target = queues.get(dead)
    if target is None:
        raise InvalidRequest(f"dead_queue does not exist; '{dead}' was not found, create it first")
    if target.dead_queue:
        raise InvalidRequest(f"dead_queue is invalid; '{dead}' already has its own dead_queue configured")
    user = user_of_dead_queue(name, queues)
    if user:
        raise InvalidRequest(f"dead_queue is invalid; '{name}' is the dead_queue of '{user}'")


def user_of_dead_queue(name: str, queues: dict[str, Queue]) -> str:
    """The first queue, by name, whose dead queue this is; empty if there is none."""
    return min((queue.name for queue in queues.values() if queue.dead_queue == name), default="")


# -- queue settings


def queue_timeout(field: str, text: str, example: str) -> int:
    try:
        parsed = durations.parse(text) if text else 0
    except ValueError as error:
        raise InvalidRequest(f"{field} timeout is invalid; {error} - expected format: {example}") from None
    if parsed < 0:
        raise InvalidRequest(f"{field} timeout is invalid; cannot be negative")
    return parsed


def timeout_length(field: str, text: str) -> None:
    if size(text) > TIMEOUT_TEXT_BYTES_MAX:
        raise InvalidRequest(
            f"{field} timeout is invalid; cannot be greater than '{TIMEOUT_TEXT_BYTES_MAX}' characters"
        )


def lease_timeout(text: str) -> int:
    timeout_length("lease", text)
    return queue_timeout("lease", text, "8m, 15m or 1h")


def timeout_lengths(info: QueueInfo) -> None:
    """Steps 2 and 3 of queues.create in the wire contract. An update has them too."""
    timeout_length("lease", info.lease_timeout)
    timeout_length("expire", info.expire_timeout)


def queue_texts(info: QueueInfo) -> tuple[int, int]:
    """Steps 4 to 6 of queues.create, which an update has too. Returns lease and expire timeout in nanoseconds."""
    expire_ns = queue_timeout("expire", info.expire_timeout, "60m, 2h or 24h")
    lease_ns = queue_timeout("lease", info.lease_timeout, "8m, 15m or 1h")
    if info.namespace:
        namespace(info.namespace)
    return lease_ns, expire_ns


def retention(text: str) -> int | None:
    """Nanoseconds; None if the text is empty."""
    if not text:
        return None
    try:
        parsed = durations.parse_days(text)
    except ValueError as error:
        raise InvalidRequest(f"retention is invalid; {error} - expected format: 12h, 7d or 30d") from None
    if parsed < 0:
        raise InvalidRequest("retention is invalid; cannot be negative")
    return parsed


def queue_values(queue: Queue) -> None:
    """Steps 11 to 13 of queues.create."""
    if size(queue.reference) > REFERENCE_BYTES_MAX:
        raise InvalidRequest(f"reference field is invalid; cannot be greater than '{REFERENCE_BYTES_MAX}' characters")
    if queue.max_attempts > MAX_ATTEMPTS_MAX:
        raise InvalidRequest(f"max attempts is invalid; cannot be greater than {MAX_ATTEMPTS_MAX}")
    if queue.max_attempts < 0:
        raise InvalidRequest("max attempts is invalid; cannot be negative number")
    if queue.requested_partitions < 1:
        raise InvalidRequest("partitions is invalid; cannot be less than 1")
    if queue.requested_partitions > PARTITIONS_MAX:
        raise InvalidRequest(f"partitions is invalid; cannot be greater than {PARTITIONS_MAX}")


def new_timeouts(queue: Queue) -> None:
    """Steps 14 and 15 of queues.create."""
    if queue.lease_timeout_ns < NS_PER_US:
        raise InvalidRequest("lease timeout is invalid; cannot be empty")
    if queue.expire_timeout_ns < NS_PER_US:
        raise InvalidRequest("expire timeout is invalid; cannot be empty")


def timeouts_agree(queue: Queue) -> None:
    if queue.lease_timeout_ns > queue.expire_timeout_ns:
        lease, expire = durations.text(queue.lease_timeout_ns), durations.text(queue.expire_timeout_ns)
        raise InvalidRequest(f"lease timeout is too long; {lease} cannot be greater than the expire timeout {expire}")


# -- requests


_TIMEOUTS: Final[dict[str, int]] = {}
"""The nanoseconds of valid, short texts. Most clients send the same few."""


def request_timeout(text: str) -> int:
    known = _TIMEOUTS.get(text)
    if known is not None:
        return known
    try:
        parsed = durations.parse(text) if text else 0
    except ValueError as error:
        raise InvalidRequest(f"request timeout is invalid; {error} - expected format: 900ms, 5m or 15m") from None
    if len(_TIMEOUTS) >= _TIMEOUTS_MAX:
        _TIMEOUTS.clear()
    if len(text) <= TIMEOUT_TEXT_BYTES_MAX:
        _TIMEOUTS[text] = parsed
    return parsed


def _too_long(timeout_ns: int) -> InvalidRequest:
    return InvalidRequest(
        f"request timeout is invalid; maximum timeout is '15m' but '{durations.text(timeout_ns)}' was requested"
    )


def _too_short(timeout_ns: int) -> InvalidRequest:
    return InvalidRequest(
        f"request timeout is invalid; minimum timeout is '10ms' but '{durations.text(timeout_ns)}' was requested"
    )


def produce_timeout(text: str) -> int:
    timeout_ns = request_timeout(text)
    if timeout_ns == 0:
        raise InvalidRequest(TIMEOUT_REQUIRED)
    if timeout_ns >= REQUEST_TIMEOUT_MAX_NS:
        raise _too_long(timeout_ns)
    if timeout_ns <= REQUEST_TIMEOUT_MIN_NS:
        raise _too_short(timeout_ns)
    return timeout_ns


def produce_items(count: int) -> None:
    if count == 0:
        raise InvalidRequest("items cannot be empty; at least one item is required")
    if count > BATCH_ITEMS_MAX:
        raise InvalidRequest(f"items is invalid; max_produce_batch_size is {BATCH_ITEMS_MAX} but received {count}")


def request_id(text: str) -> None:
    if len(text) * 4 > REQUEST_ID_BYTES_MAX and size(text) > REQUEST_ID_BYTES_MAX:
        raise InvalidRequest(f"request id is invalid; cannot be greater than '{REQUEST_ID_BYTES_MAX}' characters")


def reason(text: str) -> None:
    if len(text) * 4 > REASON_BYTES_MAX and size(text) > REASON_BYTES_MAX:
        raise InvalidRequest(f"reason is invalid; cannot be greater than '{REASON_BYTES_MAX}' bytes")


def lease(timeout_text: str, client_id: str, batch_size: int, complete_ids: int) -> int:
    timeout_ns = request_timeout(timeout_text)
    if is_blank(client_id):
        raise InvalidRequest("invalid client id; cannot be empty")
    if batch_size <= 0:
        raise InvalidRequest("invalid batch size; must be greater than zero")
    if batch_size > BATCH_ITEMS_MAX:
        raise InvalidRequest(
            f"invalid batch size; max_lease_batch_size is {BATCH_ITEMS_MAX}, but {batch_size} was requested"
        )
    if timeout_ns == 0:
        raise InvalidRequest(TIMEOUT_REQUIRED)
    if timeout_ns > REQUEST_TIMEOUT_MAX_NS:
        raise _too_long(timeout_ns)
    if timeout_ns <= REQUEST_TIMEOUT_MIN_NS:
        raise _too_short(timeout_ns)
    if complete_ids > BATCH_ITEMS_MAX:
        raise InvalidRequest(
            f"complete_ids is invalid; max_complete_batch_size is {BATCH_ITEMS_MAX} but received {complete_ids}"
        )
    return timeout_ns


def ids(count: int) -> None:
    if count == 0:
        raise InvalidRequest("ids is invalid; list of ids cannot be empty")
    if count > BATCH_ITEMS_MAX:
        raise InvalidRequest(f"ids is invalid; max_complete_batch_size is {BATCH_ITEMS_MAX} but received {count}")


def complete(timeout_text: str, count: int) -> None:
    """Checks the timeout because the contract does. A complete never waits, so nothing uses it."""
    timeout_ns = request_timeout(timeout_text)
    ids(count)
    if timeout_ns > REQUEST_TIMEOUT_MAX_NS:
        raise _too_long(timeout_ns)
    if timeout_ns == 0:
        raise InvalidRequest(TIMEOUT_REQUIRED)
    if timeout_ns < 0:
        raise _too_short(timeout_ns)


def retry_items(count: int) -> None:
    if count == 0:
        raise InvalidRequest("items is invalid; list of items cannot be empty")
    if count > BATCH_ITEMS_MAX:
        raise InvalidRequest(f"items is invalid; max_complete_batch_size is {BATCH_ITEMS_MAX} but received {count}")


def list_limit(limit: int) -> None:
    if limit < 0:
        raise InvalidRequest("limit is invalid; limit cannot be negative")
    if limit > LIST_LIMIT_MAX:
        raise InvalidRequest(f"limit is invalid; cannot be greater than {LIST_LIMIT_MAX}")


def list_pivot(pivot: str) -> None:
    if "~" in pivot:
        raise InvalidRequest(f"pivot is invalid; '{pivot}' cannot contain '~' character")


def year(field: str, time_us: int | None) -> None:
    """Refuses a time outside the years 1 to 9999, which a protobuf request can carry."""
    if time_us is not None and not times.is_expressible(time_us):
        raise InvalidRequest(f"{field} is invalid; year must be between 1 and 9999")
