"""How fast bulk writes may go: as fast as files take in what they bring, and slower when somebody else is served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from querator.limits import BULK_PAUSE_SECONDS, BULK_REST, BULK_REST_SECONDS_MAX


class Pace:
    """Of one write. It brings nothing while files catch up: with both at once, everybody else would wait for long."""

    def __init__(
        self,
        has_room: Callable[[], bool],
        ordinary_calls: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ordinary_calls` counts what others were answered."""
        self._has_room = has_room
        self._ordinary_calls = ordinary_calls
        self._sleep = sleep
        self._clock = clock

    async def until_it_may_go_on(self) -> None:
        started, calls = self._clock(), self._ordinary_calls()
        while not self._has_room():
            await self._sleep(BULK_PAUSE_SECONDS)
        if self._ordinary_calls() > calls:
            # They had to put up with files catching up; now they have the machine to themselves for a while.
            await self._sleep(min(BULK_REST_SECONDS_MAX, BULK_REST * (self._clock() - started)))
