"""Decides whether a failed call is repeated, and when. It knows no sockets, no sleep and no event loop.

`Client` and `AsyncClient` both use `Attempts`, so they repeat the same calls in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from querator.client.connection import ConnectionLost
from querator.errors import QueratorError, RequestFailed, RetryRequest, TlsFailed, Unreachable
from querator.limits import NS_PER_SECOND, REQUEST_TIMEOUT_MAX_NS, REQUEST_TIMEOUT_MIN_NS
from querator.wire.messages import Message, QueueProduceRequest

T_co = TypeVar("T_co", covariant=True)

BACKOFF_SECONDS_MIN: Final = 0.05
BACKOFF_SECONDS_MAX: Final = 2.0
ANSWER_SLACK_SECONDS: Final = 5.0
"""The client waits this much longer than the request_timeout, because the daemon answers at the end of it."""

REQUEST_TIMEOUT_SECONDS_MIN: Final = REQUEST_TIMEOUT_MIN_NS / NS_PER_SECOND + 0.001
REQUEST_TIMEOUT_SECONDS_MAX: Final = REQUEST_TIMEOUT_MAX_NS / NS_PER_SECOND - 0.001


class Call(Generic[T_co]):
    """A request as data: its path, its message, how its answer is read, and whether it may be repeated."""

    __slots__ = ("carries_timeout", "path", "read", "repeatable", "request", "timeout")

    def __init__(
        self,
        path: str,
        request: Message,
        read: Callable[[bytes], T_co],
        *,
        repeatable: bool = True,
        timeout: float | None = None,
        carries_timeout: bool = False,
    ) -> None:
        self.path = path
        self.request = request
        self.read = read
        self.repeatable = repeatable
        """Whether the request may be sent again after a lost connection, when the first one may have arrived."""
        self.timeout = timeout
        self.carries_timeout = carries_timeout
        """Whether the request has a `request_timeout` field for the daemon."""


class Attempts:
    """The attempts of one call. Read `remaining` before each attempt, and call `delay_after` after a failure."""

    def __init__(
        self,
        call: Call[Any],
        timeout: float,
        *,
        patient: bool,
        now: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] | None = None,
    ) -> None:
        self._call = call
        self._patient = patient
        self._now = now
        self._jitter = jitter
        self._deadline = now() + timeout
        self._failures = 0

    @property
    def remaining(self) -> float:
        return max(self._deadline - self._now(), REQUEST_TIMEOUT_SECONDS_MIN)

    def delay_after(self, error: QueratorError) -> float:
        """Seconds to wait before the next attempt. Raises the error if there should be none."""
        request = self._call.request
        was_sent = isinstance(error, ConnectionLost) or not isinstance(error, Unreachable)
        if was_sent and isinstance(request, QueueProduceRequest):
            request.first_attempt = False
        if not self._may_repeat(error):
            raise error
        ceiling = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_MIN * 2.0**self._failures)
        delay = ceiling * (0.5 + 0.5 * (self._jitter or _chance())())
        if self._now() + delay >= self._deadline:
            raise error
        self._failures += 1
        return delay

    def _may_repeat(self, error: QueratorError) -> bool:
        if isinstance(error, ConnectionLost):
            return self._call.repeatable
        if isinstance(error, TlsFailed):
            return False
        if isinstance(error, Unreachable) or _is_restarting(error):
            return self._patient
        return isinstance(error, RetryRequest)


def _chance() -> Callable[[], float]:
    import random  # most calls succeed at once and need no random numbers, and this import is slow

    return random.random


def _is_restarting(error: QueratorError) -> bool:
    """Whether the daemon shuts down, which counts as unreachable. If only the queue is being deleted, the next attempt
    fails because the queue does not exist."""
    return isinstance(error, RequestFailed) and error.message in ("service is shutting down", "queue is shutting down")
