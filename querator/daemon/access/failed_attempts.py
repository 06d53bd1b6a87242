"""Counts failed attempts to authenticate per address, and decides whether the next answer is delayed.

A request with a valid token is never delayed: clients behind a proxy share one address, and one of them must not lock
the others out.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from typing import NamedTuple

from querator import limits


class _Count(NamedTuple):
    since: float
    failures: int


class FailedAttempts:
    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}
        self._waiting: dict[str, int] = {}

    async def hold_back(self, host: str) -> bool:
        """Records a failure now, and waits if the address failed too often. Returns whether the failure may be
        answered: false if too many answers to this address wait already.
        """
        if not self.failed(host, time.monotonic()):
            return True
        if not self.begin_wait(host):
            return False
        try:
            await asyncio.sleep(limits.FAILED_ATTEMPT_WAIT_SECONDS)
        finally:
            self.end_wait(host)
        return True

    def failed(self, host: str, now: float) -> bool:
        """Records a failure at `now`, in seconds. Returns whether the address failed too often, so that its answer must
        wait.
        """
        network = network_of(host)
        count = self._counts.pop(network, None)
        if count is None or now - count.since >= limits.FAILED_ATTEMPTS_SECONDS:
            count = _Count(now, 0)
        self._counts[network] = count = _Count(count.since, count.failures + 1)
        if len(self._counts) > limits.FAILED_ATTEMPTS_ADDRESSES_MAX:
            del self._counts[next(iter(self._counts))]
        return count.failures > limits.FAILED_ATTEMPTS_MAX

    def begin_wait(self, host: str) -> bool:
        """Whether one more answer to this address may wait. If not, the connection ends without an answer."""
        network = network_of(host)
        waiting = self._waiting.get(network, 0)
        if waiting >= limits.FAILED_ATTEMPTS_WAITING_MAX:
            return False
        self._waiting[network] = waiting + 1
        return True

    def end_wait(self, host: str) -> None:
        network = network_of(host)
        self._waiting[network] -= 1
        if not self._waiting[network]:
            del self._waiting[network]


def network_of(host: str) -> str:
    """What an address counts as. One customer usually has a whole /64 of IPv6 addresses, so they count as one."""
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))
