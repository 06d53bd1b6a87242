"""Runs a daemon as a standby, and makes it serve when it is promoted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from querator import limits
from querator.clock import ManualClock, SetBackClock
from querator.daemon.archive.bucket import Away, NothingYet
from querator.daemon.archive.standby import Doubt, Promotion, Standby
from querator.daemon.archive.standby_reads import StandbyReads
from querator.daemon.metrics import ArchiveLag
from querator.daemon.registry import Registry
from querator.daemon.store import StorageError
from querator.errors import ConfigError, InternalError, QueratorError

log = logging.getLogger("querator.archive")

FORCE_HINT: Final = "--force takes over anyway"
"""Ends a refusal that --force overrules. `querator daemon promote` shows it as a hint."""


class StoppedEarly(Exception):
    """The daemon was stopped while it waited for the archive."""


class StandingBy:
    """All methods run on the loop's thread."""

    def __init__(
        self,
        registry: Registry,
        serve: Callable[[Promotion], Awaitable[None]],
        failed: Callable[[QueratorError], None],
    ) -> None:
        """`serve` makes the promoted daemon serve. `failed` is called if it cannot."""
        self._registry = registry
        self._serve = serve
        self._failed = failed
        config = registry.config
        if config.archive is None:
            raise ConfigError("a standby needs an archive", hint="--archive URL, or [archive] url in the config file")
        loop = asyncio.get_running_loop()

        def take_over() -> None:
            with contextlib.suppress(RuntimeError):  # the loop may have ended
                loop.call_soon_threadsafe(self.promote)

        address = str(config.http or "")
        self.standby = Standby(config.archive, config.data, config.storages, registry.clock, address, take_over)
        self.reads = StandbyReads(registry, self.standby)
        self.promotions = 0
        """How often somebody asked for a take-over, so that a command knows whether a refusal is an answer to it."""
        self._promoting = asyncio.Lock()
        self._stopping = asyncio.Event()
        self.is_over = False
        """Whether the daemon was promoted and serves."""

    async def start(self, addresses: Sequence[str]) -> None:
        registry, standby = self._registry, self.standby
        await self._start_standby()
        await registry.blocking(registry.access.load, standby.files.catalog)
        registry.access.check_addresses(addresses, has_tls=registry.config.tls is not None)
        registry.owner = lambda: standby.replayed().owner
        self.reads.start()
        await self.reads.refresh()

    async def _start_standby(self) -> None:
        """Waits for the object store, and for the first state that the owner copies to the archive. Machines start in
        any order. Raises StoppedEarly if the daemon is stopped meanwhile."""
        reason = ""
        while True:
            try:
                await self._registry.blocking(self.standby.start)
                return
            except (Away, NothingYet) as error:
                if reason != str(error):
                    reason = str(error)
                    log.warning("standby waits for the archive", extra={"reason": reason})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), limits.STANDBY_START_RETRY_SECONDS)
                raise StoppedEarly

    def stop_waiting(self) -> None:
        """Ends the wait for the archive, because the daemon is stopped."""
        self._stopping.set()

    async def stop(self) -> None:
        await self.reads.close()
        await self._registry.blocking(self.standby.stop)

    def promote(self, force: bool = False) -> None:
        """Takes over from the owner of the archive, in a task."""
        self._registry.run(self._promote_in_turn(force))

    async def _promote_in_turn(self, force: bool) -> None:
        """One attempt after the other: only one may end with a daemon that serves."""
        async with self._promoting:
            if not self.is_over:
                self.promotions += 1
                self.standby.refusal = ""
                await self._promote(force)

    async def _promote(self, force: bool) -> None:
        registry = self._registry
        try:
            promotion = await registry.blocking(self.standby.promote, force)
        except (QueratorError, StorageError, Away) as error:
            hint = f": {error.hint}" if isinstance(error, QueratorError) and error.hint else ""
            self.standby.refusal = f"{error}{hint}" + (f"; {FORCE_HINT}" if isinstance(error, Doubt) else "")
            log.error("standby was not promoted", extra={"reason": str(error)})
            return
        registry.is_promoting = True
        clock = self._registry.clock
        if isinstance(clock, SetBackClock):
            clock.behind_us += promotion.behind_us
        elif isinstance(clock, ManualClock):
            clock.set(clock.now_us() - promotion.behind_us)
        try:
            await self.reads.close()
            registry.owner = None
            await self._serve(promotion)
        except Exception as error:
            log.exception("the promoted standby cannot serve")
            self._failed(error if isinstance(error, QueratorError) else InternalError())
            return
        self.is_over, registry.is_promoting = True, False
        log.info("querator is promoted", extra={"behind_us": promotion.behind_us})

    def lag(self, is_of_answers: bool = False) -> ArchiveLag:
        """How far the files are behind the owner, or the answers, which are read from the files now and then."""
        found = self.reads.shown if is_of_answers else self.standby.replayed()
        owner_us = self._registry.clock.now_us() - (self.standby.heartbeats.skew_us() or 0)
        seconds = max(0, owner_us - found.until_us) / limits.US_PER_SECOND
        return ArchiveLag(True, found.owner, seconds, found.objects, self.standby.is_damaged, self.promotions)

    def notes(self) -> list[str]:
        """The notes of a standby in `/health`."""
        lag = self.lag()
        note = f"standby of {lag.owner}, {lag.seconds_text}s and {lag.objects} objects behind"
        if self.standby.heartbeats.skew_us() is None:
            note += "; it has not compared its clock with the owner's yet"
        return [note, f"not promoted: {self.standby.refusal}"] if self.standby.refusal else [note]

    def health(self) -> tuple[bool, str]:
        if self.standby.trouble:
            return True, f"the archive cannot be followed: {self.standby.trouble}"
        if self.lag().seconds > limits.ARCHIVE_BASE_SECONDS_MAX and self.standby.files.incomplete:
            return True, f"the archive has no copy of {len(self.standby.files.incomplete)} partitions"
        return True, ""
