"""Faults of one partition's storage: its file fails, its disk is full, or its file falls behind the journal.

The queue and the engine report faults here. Operators see them in the partition's state and its reason.
"""

from __future__ import annotations


class StorageHealth:
    def __init__(self) -> None:
        self.error = ""
        """Why the file cannot be used. Empty if the file is open or closed on purpose."""
        self.error_since = 0
        """When the file failed; 0 once it is open again."""
        self.recovered_at = 0
        """When the partition last recovered from an error, in this process."""
        self.retry_at_ns = 0
        """When the file is opened again after a failure."""
        self.shortage = ""
        """Why nothing can be written to the storage: it is full."""
        self.shortage_since = 0
        self.warning = ""
        """What may go wrong with the storage soon."""
        self.congested = False
        """Whether the partition takes no new items because too much waits to be applied to the storage's files."""
        self.apply_error = ""
        """Why the last attempt to apply changes to the file failed."""
        self.apply_failures = 0
        self.apply_retry_at = 0.0
        """When, on the monotonic clock, applying is tried again."""
        self.old_keys_deleted_at = 0
        """When expired lost leases and request ids were last deleted from the file."""

    def fail(self, reason: str, now_us: int, retry_at_ns: int) -> None:
        if not self.error:
            self.error_since = now_us
        self.error = reason
        self.retry_at_ns = retry_at_ns

    def opened(self, now_us: int) -> None:
        if self.error_since and not self.shortage:
            self.recovered_at = now_us
        self.error, self.error_since = "", 0
        self.applied()  # opening a file applies everything to it

    def clear_error(self) -> None:
        """Forgets the last error, because the partition was closed on purpose."""
        self.error = ""

    def applied(self) -> None:
        """Called when the file contains every durable change. Forgets earlier failures to apply."""
        self.apply_failures, self.apply_error = 0, ""

    def apply_failed(self, reason: str, retry_at: float) -> None:
        self.apply_failures += 1
        self.apply_error = reason
        self.apply_retry_at = retry_at

    def set_room(self, shortage: str, since_us: int, warning: str) -> None:
        """Records whether the storage is full, since when, and whether it is nearly full."""
        self.shortage, self.shortage_since, self.warning = shortage, since_us, warning

    def set_congested(self, congested: bool) -> None:
        self.congested = congested

    def old_keys_deleted(self, now_us: int) -> None:
        self.old_keys_deleted_at = now_us
