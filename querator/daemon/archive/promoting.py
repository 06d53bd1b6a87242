"""Runs a daemon as a standby, and makes it serve when it is promoted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from querator.clock import ManualClock, SetBackClock
from querator.daemon.archive.bucket import Away
from querator.daemon.archive.standby import Promotion, Standby
from querator.daemon.registry import Registry
from querator.errors import ConfigError, InternalError, QueratorError, RequestFailed

log = logging.getLogger("querator.archive")


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
        self.is_over = False
        """Whether the daemon was promoted and serves."""

    async def start(self, addresses: Sequence[str]) -> None:
        registry, standby = self._registry, self.standby
        await registry.blocking(standby.start)
        registry.catalog = standby.catalog
        await registry.blocking(registry.access.load, standby.catalog)
        registry.access.check_addresses(addresses, has_tls=registry.config.tls is not None)

    def promote(self, force: bool = False) -> None:
        """Takes over from the owner of the archive, in a task."""
        if not self.is_over:
            self._registry.run(self._promote(force))

    async def _promote(self, force: bool) -> None:
        try:
            promotion = await self._registry.blocking(self.standby.promote, force)
        except (QueratorError, Away) as error:
            log.error("standby was not promoted", extra={"reason": str(error)})
            return
        clock = self._registry.clock
        if isinstance(clock, SetBackClock):
            clock.behind_us = promotion.behind_us
        elif isinstance(clock, ManualClock):
            clock.set(clock.now_us() - promotion.behind_us)
        try:
            await self._serve(promotion)
        except Exception as error:
            log.exception("the promoted standby cannot serve")
            self._failed(error if isinstance(error, QueratorError) else InternalError())
            return
        self.is_over = True
        log.info("querator is promoted", extra={"behind_us": promotion.behind_us})

    def refuse(self) -> None:
        """Refuses a call with an error that names the owner of the archive."""
        raise RequestFailed(f"{self.notes()[0]}; it serves when it is promoted")

    def notes(self) -> list[str]:
        """The notes of a standby in `/health`."""
        lag = self.standby.lag()
        note = f"standby of {lag.owner}, {lag.seconds:.1f}s and {lag.objects} objects behind"
        if self.standby.skew_us() is None:
            note += "; it has not compared its clock with the owner's yet"
        return [note, f"not promoted: {self.standby.refusal}"] if self.standby.refusal else [note]

    def health(self) -> tuple[bool, str]:
        trouble = self.standby.trouble
        return True, f"the archive cannot be followed: {trouble}" if trouble else ""
