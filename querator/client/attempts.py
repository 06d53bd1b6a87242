"""One call and how often it may be tried: the part of the client that knows no sockets, no sleep and no event loop.

`Client` and `AsyncClient` drive the same `Attempts`, so that what is repeated, and for how long, is decided once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from querator.client.connection import ConnectionLost
from querator.errors import QueratorError, RequestFailed, RetryRequest, Unreachable
from querator.limits import NS_PER_SECOND, REQUEST_TIMEOUT_MAX_NS, REQUEST_TIMEOUT_MIN_NS
from querator.wire.messages import Message, QueueProduceRequest

T_co = TypeVar("T_co", covariant=True)

BACKOFF_SECONDS_MIN: Final = 0.05
BACKOFF_SECONDS_MAX: Final = 2.0
ANSWER_SLACK_SECONDS: Final = 5.0
"""How much longer than a request_timeout we listen: the daemon answers at its end, and that answer says more."""

REQUEST_TIMEOUT_SECONDS_MIN: Final = REQUEST_TIMEOUT_MIN_NS / NS_PER_SECOND + 0.001
REQUEST_TIMEOUT_SECONDS_MAX: Final = REQUEST_TIMEOUT_MAX_NS / NS_PER_SECOND - 0.001


class Call(Generic[T_co]):
    """A request, described: where it goes, what it carries, what it brings back and whether it may be repeated."""

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
        """Whether sending it again after the connection was lost does no harm if the first one had arrived."""
        self.timeout = timeout
        self.carries_timeout = carries_timeout
        """Whether the request tells the daemon, in `request_timeout`, how long to try."""


class Attempts:
    """The tries of one call. Ask `remaining` before each, and `delay_after` when one failed."""

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
        """How long to wait before the next try. Raises the error when there should not be one."""
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
        if isinstance(error, Unreachable) or _is_restarting(error):
            return self._patient
        return isinstance(error, RetryRequest)


def _chance() -> Callable[[], float]:
    import random  # most calls succeed at once, and a command should not wait for this

    return random.random


def _is_restarting(error: QueratorError) -> bool:
    """A daemon that is about to be gone is as good as one that is not there yet. If only the queue goes, the next try
    finds that it does not exist."""
    return isinstance(error, RequestFailed) and error.message in ("service is shutting down", "queue is shutting down")
