"""How fast bulk writes may go: as fast as files take in what they bring, and slower when somebody else is served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from querator.errors import RetryRequest
from querator.limits import (
    BULK_APPLY_BYTES,
    BULK_CLIENT_ACTIVE_SECONDS,
    BULK_POLL_SECONDS,
    BULK_SLEEP_FACTOR,
    BULK_SLEEP_SECONDS_MAX,
    BULK_UNAPPLIED_BYTES_MAX,
)

NO_ROOM = "the files cannot take in what was written; try again"


class Pace:
    """Of one write. Beside others it brings nothing while files catch up: with both at once they would wait long."""

    def __init__(
        self,
        waiting_bytes: Callable[[], int],
        is_catching_up: Callable[[], bool],
        ordinary_calls: Callable[[], int],
        patience_seconds: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`waiting_bytes` is what files lack, and `ordinary_calls` counts what others were answered."""
        self._waiting_bytes = waiting_bytes
        self._is_catching_up = is_catching_up
        self._ordinary_calls = ordinary_calls
        self._patience_seconds = patience_seconds
        self._sleep = sleep
        self._clock = clock
        self._calls = ordinary_calls()
        self._others_until = 0.0

    async def until_it_may_go_on(self) -> None:
        """Raises RetryRequest when files have no room for longer than it has patience."""
        started = self._clock()
        are_others = self._are_others(started)
        while self._waiting_bytes() > (BULK_APPLY_BYTES if are_others else BULK_UNAPPLIED_BYTES_MAX):
            if self._clock() - started > self._patience_seconds:
                raise RetryRequest(NO_ROOM)
            await self._sleep(BULK_POLL_SECONDS)
        while are_others and self._is_catching_up() and self._clock() - started < BULK_SLEEP_SECONDS_MAX:
            # Not for longer: where others write so much that files never have, bulk must get on all the same.
            await self._sleep(BULK_POLL_SECONDS)
        if self._ordinary_calls() > self._calls:
            # They had to put up with files catching up; now they have the machine to themselves for a while.
            await self._sleep(min(BULK_SLEEP_SECONDS_MAX, BULK_SLEEP_FACTOR * (self._clock() - started)))

    def _are_others(self, now: float) -> bool:
        """Whether anybody was answered lately."""
        calls, before = self._ordinary_calls(), self._calls
        if calls > before:
            self._others_until = now + BULK_CLIENT_ACTIVE_SECONDS
        self._calls = calls
        return now < self._others_until
