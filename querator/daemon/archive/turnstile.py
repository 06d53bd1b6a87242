"""Holds answers back until the archive has what they acknowledge, and after this daemon was replaced.

With `wait`, every answer waits until the archive has everything that was durable when the answer was ready. If that
takes too long, requests get 454, and partitions are in error until the archive has caught up. Without `wait`, answers
pass at once, except after the process was suspended for a while: another daemon may have taken over, so the gate asks
the archive first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from querator import limits
from querator.daemon.archive.shipping import Shipper
from querator.daemon.engine import Turns
from querator.daemon.storages import Storages
from querator.errors import RequestFailed

log = logging.getLogger("querator.archive")


class Waiting(NamedTuple):
    """An answer, or a turn of the loop, that waits for the archive."""

    ticket: int
    since: float
    go_on: Callable[[str], None]
    """Gets the reason if the archive does not have it; empty if it has."""


class AnswerGate:
    """All methods run on the loop's thread."""

    def __init__(self, shipper: Shipper, turns: Turns, storages: Storages) -> None:
        self._shipper = shipper
        self._turns = turns
        self._storages = storages
        self._loop = asyncio.get_running_loop()
        self._waits = shipper.config.wait
        self._waiting: deque[Waiting] = deque()
        self._halted = ""
        """Why no answer passes any more."""
        self._away_until = 0
        """The archive was away. It is back when it has this cut; 0 if it was not away."""
        self._doubted_until = 0
        """The process stood still. It is known to be the owner when the archive has this cut; 0 if it did not."""
        self._alive_at = time.monotonic()
        shipper.confirmed = self._confirmed_in_thread
        self._timer = self._loop.call_later(limits.UPKEEP_SECONDS, self._look)

    def close(self) -> None:
        """Called when the daemon stops. Requests that still wait are answered with an error."""
        self._timer.cancel()
        self.halt("service is shutting down")

    # -- what the turns of the loop ask

    def is_open(self) -> bool:
        """Whether a turn may begin."""
        self._notice_standstill()
        return not (self._halted or self._doubted_until)

    def call_when_open(self, turn: Callable[[], None]) -> None:
        if not self._halted:
            self._waiting.append(Waiting(self._doubted_until, time.monotonic(), lambda reason: turn()))

    def after_write(self, ended: Callable[[str], None]) -> None:
        """Calls `ended` when the write may be acknowledged."""
        self._notice_standstill()
        if self._halted or self._away_until:
            ended(self._halted or self._storages.withheld)
        elif self._waits:
            self._waiting.append(Waiting(self._shipper.ask(), time.monotonic(), ended))
        elif self._doubted_until:
            self._waiting.append(Waiting(self._doubted_until, time.monotonic(), ended))
        else:
            ended("")

    async def until_acknowledged(self) -> None:
        """Returns when a change that is durable here may be acknowledged. Raises RequestFailed if it may not be."""
        ended: asyncio.Future[str] = self._loop.create_future()
        self.after_write(lambda reason: None if ended.done() else ended.set_result(reason))
        if reason := await ended:
            # Not RetryRequest: the change was made, so a client that repeats it would be told that it exists already.
            raise RequestFailed(f"the change was made on this machine only; {reason}")

    def halt(self, reason: str) -> None:
        """Stops all answers for good."""
        self._halted = self._halted or reason
        self._let_go(self._halted)

    # -- what the archive says

    def _confirmed_in_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._confirmed)

    def _confirmed(self) -> None:
        done = self._shipper.cuts_done
        if 0 < self._doubted_until <= done:
            self._doubted_until = 0
        if 0 < self._away_until <= done:
            self._come_back()
        while self._waiting and self._waiting[0].ticket <= done and not self._halted:
            self._waiting.popleft().go_on("")

    def _look(self) -> None:
        self._timer = self._loop.call_later(limits.UPKEEP_SECONDS, self._look)
        self._notice_standstill()
        now = self._alive_at = time.monotonic()
        if not self._waiting or now - self._waiting[0].since < limits.ARCHIVE_WAIT_SECONDS_MAX:
            return
        if self._waits:
            self._go_away()
        else:
            log.warning("the archive does not tell whether this daemon was replaced; it serves on")
            self._doubted_until = 0
            self._let_go("")

    def _notice_standstill(self) -> None:
        now = time.monotonic()
        stood_still = now - self._alive_at
        if stood_still > limits.STANDSTILL_SECONDS and not self._waits:
            self._doubted_until = self._shipper.ask(must_put=True)
            log.warning("the process stood still; asking the archive for its owner", extra={"seconds": stood_still})
        self._alive_at = now

    def _go_away(self) -> None:
        shipper = self._shipper
        why = shipper.trouble or shipper.lack() or "a put or a copy of partition files takes long"
        reason = f"the archive does not have it yet: {why}"
        log.error("nothing is acknowledged", extra={"reason": reason})
        self._storages.withheld = reason
        self._away_until = self._shipper.ask()
        self._let_go(reason)
        self._fail_partitions(reason)

    def _come_back(self) -> None:
        log.warning("the archive has everything again")
        self._away_until = 0
        self._storages.withheld = ""
        for logical in self._turns.logicals:
            logical.end_back_offs()
            logical.wake()

    def _fail_partitions(self, reason: str) -> None:
        """Puts every partition in error. They recover when their stores can be opened again."""
        for logical in self._turns.logicals:
            for partition in logical.partitions:
                if partition.store is not None:
                    logical.files.fail(partition, reason)
            logical.wake()

    def _let_go(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            one.go_on(reason)
