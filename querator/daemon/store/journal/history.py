"""What a journal says about each partition: its records in order, and whether any of them may be missing.

A partition is trusted only if none of its records can be missing. Their numbers rise by one, so that a missing record
shows as a gap, except at the end. Damage that may concern any partition therefore concerns every partition without a
later record that continues its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from querator.daemon.store.journal.records import BATCH, CLOSED, Damage, Record
from querator.daemon.store.journal.trimmed import Skip


class Place(NamedTuple):
    """Where a record is that may have to be replayed."""

    number: int
    order: int
    path: Path
    payload_at: int
    payload_bytes: int


class Wound(NamedTuple):
    """Damage or a missing segment. `partition` is None if it may concern any partition."""

    order: int
    partition: bytes | None
    number: int
    reason: str
    path: Path | None


class History:
    def __init__(self, trimmed: Mapping[bytes, int] | None = None, skips: Mapping[bytes, Skip] | None = None) -> None:
        """`trimmed` is the last record of each partition that was trimmed."""
        self.places: dict[bytes, list[Place]] = {}
        self.wounds: list[Wound] = []
        self._trimmed = dict(trimmed or {})
        self._skips = dict(skips or {})
        self._closed: dict[bytes, int] = {}
        self._order = 0

    def add(self, path: Path, found: Record | Damage) -> None:
        """Adds the next record or the next damage in the journal. A record that was copied out of its segment counts
        once.
        """
        self._order += 1
        if isinstance(found, Damage):
            self.wound(found.reason, path, found.partition, found.number)
        elif found.kind == CLOSED:
            self._closed[found.partition] = self._order
            self.places.pop(found.partition, None)
            self._trimmed.pop(found.partition, None)
            self._skips.pop(found.partition, None)
        elif found.kind == BATCH:
            places = self.places.setdefault(found.partition, [])
            if not places or found.number > places[-1].number:
                places.append(Place(found.number, self._order, path, found.payload_at, found.payload_bytes))
        else:
            self.wound(f"a record of unknown kind {found.kind}", path, found.partition, found.number)

    def wound(self, reason: str, path: Path | None, partition: bytes | None = None, number: int = 0) -> None:
        self._order += 1
        where = f"{path.name}: {reason}" if path else reason
        self.wounds.append(Wound(self._order, partition, number, where, path))

    def skip(self, partition: bytes, applied: int) -> Skip | None:
        """The records after `applied` that the partition's file need not contain, because they change nothing."""
        skip = self._skips.get(partition)
        return skip if skip is not None and skip.applied == applied else None

    def replay(self, partition: bytes, applied: int) -> list[Place]:
        after = self._reached(partition, applied)
        return [place for place in self.places.get(partition, ()) if place.number > after]

    def _reached(self, partition: bytes, applied: int) -> int:
        skip = self.skip(partition, applied)
        return applied if skip is None else skip.through

    def missing(self, partition: bytes, applied: int) -> str:
        """Why records of this partition may be missing; "" when none can be.

        `applied` is the number of the last record that the partition's file contains.
        """
        reasons: list[str] = []
        applied = self._reached(partition, applied)
        expected = applied + 1
        for place in self.replay(partition, applied):
            if place.number != expected:
                reasons.append(f"records {expected} to {place.number - 1} are missing")
            expected = place.number + 1
        if expected <= self._trimmed.get(partition, 0):
            reasons.append(f"records {expected} to {self._trimmed[partition]} were stored and are missing")
        for wound in self.wounds:
            if wound.order > self._closed.get(partition, 0) and not self._is_past(partition, applied, wound):
                reasons.append(wound.reason)
                places = self.places.get(partition, ())
                if not wound.number and not any(place.order > wound.order for place in places):
                    reasons.append(f"records after {self._last_before(partition, applied, wound)} may be missing")
        return "; ".join(dict.fromkeys(reasons))

    def _is_past(self, partition: bytes, applied: int, wound: Wound) -> bool:
        places = self.places.get(partition, [])
        if wound.partition is not None and wound.number:
            # The wound names its record. It is harmless if the file or a copy has it, or if it is another partition's.
            return (
                wound.partition != partition
                or wound.number <= applied
                or any(place.number == wound.number for place in places)
            )
        if wound.partition not in (None, partition):
            return True
        before = self._last_before(partition, applied, wound)
        after = next((place.number for place in places if place.order > wound.order), None)
        return after is not None and after <= before + 1

    def _last_before(self, partition: bytes, applied: int, wound: Wound) -> int:
        places = self.places.get(partition, ())
        return max([applied, *(place.number for place in places if place.order < wound.order)])
