"""Decides which denials get a line in the audit log, because anybody who reaches the port can cause them.

Each caller and each address has its own share per minute, so that one of them cannot hide the others. Requests of
unknown callers and those of known callers are limited apart: a flood from many addresses hides no denied token.
"""

from __future__ import annotations

from querator import limits
from querator.clock import Clock
from querator.daemon.access.callers import Caller, Peer
from querator.daemon.access.failed_attempts import network_of


class DenialLimits:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_us = 0
        self._known: dict[str, int] = {}
        """The denials of this minute that were recorded, by caller."""
        self._unknown: dict[str, int] = {}
        """The same for requests without a caller, by address."""

    def admit(self, caller: Caller | None, peer: Peer) -> bool:
        """Whether one more denial is recorded."""
        now_us = self._clock.now_us()
        if abs(now_us - self._since_us) >= limits.AUDIT_DENIALS_EVERY_US:
            self._since_us, self._known, self._unknown = now_us, {}, {}
        if caller is None:
            counts, source = self._unknown, network_of(peer.host)
        else:
            counts, source = self._known, f"{caller.kind} {caller.name}"
        count = counts.get(source, 0)
        if count >= limits.AUDIT_DENIALS_PER_SOURCE_MAX or sum(counts.values()) >= limits.AUDIT_DENIALS_MAX:
            return False
        counts[source] = count + 1
        return True
