"""How fast bulk writes may go: as fast as files take in what they bring, and slower when somebody else is served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from querator.errors import RetryRequest
from querator.limits import BULK_PAUSE_SECONDS, BULK_REST, BULK_REST_SECONDS_MAX

NO_ROOM = "the files cannot take in what was written; try again"


class Pace:
    """Of one write. It brings nothing while files catch up: with both at once, everybody else would wait for long."""

    def __init__(
        self,
        has_room: Callable[[], bool],
        is_catching_up: Callable[[], bool],
        ordinary_calls: Callable[[], int],
        patience_seconds: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ordinary_calls` counts what others were answered."""
        self._has_room = has_room
        self._is_catching_up = is_catching_up
        self._ordinary_calls = ordinary_calls
        self._patience_seconds = patience_seconds
        self._sleep = sleep
        self._clock = clock

    async def until_it_may_go_on(self) -> None:
        """Raises RetryRequest when files have no room for longer than it has patience."""
        started, calls = self._clock(), self._ordinary_calls()
        while not self._has_room():
            if self._clock() - started > self._patience_seconds:
                raise RetryRequest(NO_ROOM)
            await self._sleep(BULK_PAUSE_SECONDS)
        while self._is_catching_up() and self._clock() - started < BULK_REST_SECONDS_MAX:
            # Not for longer: where others write so much that files never have, bulk must get on all the same.
            await self._sleep(BULK_PAUSE_SECONDS)
        if self._ordinary_calls() > calls:
            # They had to put up with files catching up; now they have the machine to themselves for a while.
            await self._sleep(min(BULK_REST_SECONDS_MAX, BULK_REST * (self._clock() - started)))
