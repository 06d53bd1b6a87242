"""When producers wait because the files of a storage fall behind its journal.

An apply frees its memory only at its end. If producers could fill the room that is left at once, all of them would then
wait for that end, half a second or longer. So while a storage catches up that holds much, producers are let in evenly:
as many bytes as the apply has probably done by now.
"""

from __future__ import annotations

from typing import Final

from querator.limits import BACK_PRESSURE_MEASURED_BYTES_MIN

SLACK_SHARE: Final = 16
"""This part of the bound, or of twice the apply, may come in at once when an apply begins."""
SECONDS_PER_BYTE: Final = 20e-9
"""The speed of an apply before the first one was measured: 50 MB/s."""
WEIGHT: Final = 0.3
"""The weight of the latest apply in the average."""
WEIGHT_OF_SLOWER: Final = 0.02
"""The weight of the latest apply in `left_seconds_per_byte`, if it was slower."""


class BackPressure:
    """Decides for one storage whether producers wait. `absorbed` counts all bytes that the storage ever took."""

    def __init__(self) -> None:
        self.seconds_per_byte = SECONDS_PER_BYTE
        """How long an apply takes, on average."""
        self._is_measured = False
        self.left_seconds_per_byte = SECONDS_PER_BYTE
        """How long an apply of items that were left in the journal takes when little else runs. Beside a burst of such
        items it takes up to three times as long."""
        self.is_left_measured = False
        self._began = 0.0
        self._bytes = 0
        self._room = 0
        self._slack = 0
        self._absorbed = 0
        self._is_pacing = False

    def begins(self, applied_bytes: int, held_bytes: int, bytes_max: int, absorbed: int, now: float) -> None:
        """An apply of so many bytes begins, while memory holds `held_bytes` of at most `bytes_max`."""
        self._began, self._bytes, self._absorbed = now, applied_bytes, absorbed
        self._is_pacing = held_bytes >= bytes_max // 2
        left = max(0, bytes_max - held_bytes)
        # Twice as fast as the apply while half of the bound is left, and as fast as the apply with a quarter.
        self._room = min(left, 4 * applied_bytes * left // bytes_max)
        self._slack = min(bytes_max, 2 * applied_bytes) // SLACK_SHARE

    def ends(self, now: float, left_bytes: int = 0) -> None:
        """The apply has ended. So many of its bytes were left in the journal."""
        if self._bytes >= BACK_PRESSURE_MEASURED_BYTES_MIN:
            weight = WEIGHT if self._is_measured else 1.0
            self.seconds_per_byte += weight * ((now - self._began) / self._bytes - self.seconds_per_byte)
            self._is_measured = True
        if left_bytes >= BACK_PRESSURE_MEASURED_BYTES_MIN:
            latest = (now - self._began) / left_bytes
            weight = WEIGHT_OF_SLOWER if self.is_left_measured and latest > self.left_seconds_per_byte else 1.0
            self.left_seconds_per_byte += weight * (latest - self.left_seconds_per_byte)
            self.is_left_measured = True
        self._is_pacing = False

    def is_closed(self, held_bytes: int, bytes_max: int, absorbed: int, now: float) -> bool:
        """Whether producers wait now."""
        if held_bytes >= bytes_max:
            return True
        if not self._is_pacing:
            return False
        progress = (now - self._began) / (self._bytes * self.seconds_per_byte + 1e-9)
        return absorbed - self._absorbed > self._slack + self._room * min(1.0, progress)
