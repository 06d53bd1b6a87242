"""Throttles bulk writes to the rate at which files are applied, and further while other clients are active."""

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
    """The pace of one bulk write. While clients are active, it adds nothing during an apply, so that they wait less."""

    def __init__(
        self,
        waiting_bytes: Callable[[], int],
        is_catching_up: Callable[[], bool],
        ordinary_calls: Callable[[], int],
        patience_seconds: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`waiting_bytes` are not applied to files yet. `ordinary_calls` counts the answered requests of clients."""
        self._waiting_bytes = waiting_bytes
        self._is_catching_up = is_catching_up
        self._ordinary_calls = ordinary_calls
        self._patience_seconds = patience_seconds
        self._sleep = sleep
        self._clock = clock
        self._calls = ordinary_calls()
        self._active_until = 0.0

    async def wait_for_turn(self) -> None:
        """Waits until the next chunk may be written. Raises RetryRequest if this takes longer than the patience."""
        started = self._clock()
        has_active_clients = self._has_active_clients(started)
        while self._waiting_bytes() > (BULK_APPLY_BYTES if has_active_clients else BULK_UNAPPLIED_BYTES_MAX):
            if self._clock() - started > self._patience_seconds:
                raise RetryRequest(NO_ROOM)
            await self._sleep(BULK_POLL_SECONDS)
        while has_active_clients and self._is_catching_up() and self._clock() - started < BULK_SLEEP_SECONDS_MAX:
            # The wait has a bound: clients may write so much that an apply always runs, and bulk must progress too.
            await self._sleep(BULK_POLL_SECONDS)
        if self._ordinary_calls() > self._calls:
            # Clients were slowed down by the apply. Now they have the machine to themselves for a while.
            await self._sleep(min(BULK_SLEEP_SECONDS_MAX, BULK_SLEEP_FACTOR * (self._clock() - started)))

    def _has_active_clients(self, now: float) -> bool:
        """Whether a client was answered recently."""
        calls, before = self._ordinary_calls(), self._calls
        if calls > before:
            self._active_until = now + BULK_CLIENT_ACTIVE_SECONDS
        self._calls = calls
        return now < self._active_until
