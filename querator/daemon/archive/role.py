"""What this daemon is to its archive: its owner, or a standby of its owner. For health, metrics and answers."""

from __future__ import annotations

from querator import limits
from querator.daemon.archive.promoting import StandingBy
from querator.daemon.metrics import ArchiveLag
from querator.daemon.registry import Registry


class ArchiveRole:
    """All methods run on the loop's thread."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.standing_by: StandingBy | None = None
        """Set if the daemon was started as a standby."""

    @property
    def standby(self) -> StandingBy | None:
        """The standby while this daemon only follows an archive; None once it serves."""
        return None if self.standing_by is None or self.standing_by.is_over else self.standing_by

    @property
    def is_standby(self) -> bool:
        return self.standby is not None

    def promote(self, force: bool = False) -> None:
        """Makes a standby take over from the owner of the archive."""
        if self.standby is not None:
            self.standby.promote(force)

    def stop_waiting(self) -> None:
        """Ends a start that waits for the archive."""
        if self.standing_by is not None:
            self.standing_by.stop_waiting()

    async def catch_up(self) -> ArchiveLag | None:
        """On a standby: makes the next answers as new as they can be, and returns their lag."""
        if self.standby is not None and not self._registry.is_promoting:
            await self.standby.reads.refresh()
        return None if self.standby is None else self.standby.lag(is_of_answers=True)

    def lag(self) -> ArchiveLag | None:
        """How far the archive is behind this daemon, or this standby behind the owner. None without an archive."""
        if self.standby is not None:
            return self.standby.lag()
        shipper = self._registry.shipper
        return None if shipper is None else ArchiveLag(False, "", shipper.lag_seconds(), 0, shipper.is_damaged)

    def notes(self) -> list[str]:
        """Facts for a person that report no trouble."""
        if self.standby is not None:
            return self.standby.notes()
        return [] if self._registry.shipper is None else [self._registry.shipper.note()]

    def trouble(self) -> tuple[bool, str]:
        """Whether something can be acknowledged, and why the archive cannot be used or is not complete; empty if
        neither is so."""
        shipper = self._registry.shipper
        if shipper is None or not shipper.trouble:
            return True, "" if shipper is None else shipper.lack()
        is_blocked = shipper.config.wait and shipper.away_seconds() > limits.ARCHIVE_WAIT_SECONDS_MAX
        return not is_blocked, f"the archive cannot be reached: {shipper.trouble}"
