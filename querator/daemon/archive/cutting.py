"""Cuts: everything in all journals and the catalog that the archive lacks at one moment, in pieces for log objects.

The catalog cannot change while a cut is made, so that a restore never finds items without their queue. A cut is usually
small and has one piece. After an outage of the object store it may have many. A restore ends only after a whole cut.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from querator import limits
from querator.clock import Clock
from querator.daemon.archive.ledger import Ledger
from querator.daemon.archive.objects import LOG, Base, JournalPart, LogHead, Owner
from querator.daemon.catalog import Catalog, leftovers_in, placements_in
from querator.daemon.store import FeedChunk, HoldLost, News, Opening, Position, Storage, Survey, take_together

log = logging.getLogger("querator.archive")


class Piece(NamedTuple):
    """The contents of one log object. Facts about a whole cut are in its last piece."""

    time_us: int
    chunks: list[tuple[str, FeedChunk]]
    """The chunks, each with the name of its storage."""
    is_last: bool
    openings: list[Opening] = []
    catalog: bytes = b""
    bases: list[Base] = []


class Cutter:
    def __init__(self, catalog: Catalog, storages: Mapping[str, Storage], clock: Clock) -> None:
        self.placements: dict[str, tuple[str, str]] = {}
        """The queue and the storage of each partition, as in the last catalog that was cut."""
        self.unchanged: Collection[str] = ()
        """Partitions whose files nobody changed between the last stop in order and this start."""
        self.must_agree = False
        """Whether the directory was made from the archive, so that its partitions must agree with the ledger."""
        self.is_stranger = False
        """Whether the directory was not made from what the archive has, so that everything needs a new base."""
        self._catalog = catalog
        self._storages = storages
        self._clock = clock
        self._changes_seen = -1
        self._starts = {name: storage.feed.end() for name, storage in storages.items()}
        """Where each journal ended before anything of this run was written to it."""
        self._positions: dict[str, Position] = {}
        self._closed: set[str] = set()
        """Partitions that the cut under way found closed."""
        self._gaps: set[str] = set()
        """Partitions whose records in the cut under way do not follow those in the archive."""
        self._lost: set[str] = set()
        """Storages whose journals no longer have what belongs to the cut under way: their partitions need new bases."""
        self._cut_begins = 0
        """The first log object of the cut under way. It may have records of partitions that the cut created."""
        self._judged: set[str] = set()
        """Partitions that were opened in this run."""

    def _hold(self, ledger: Ledger) -> None:
        """Finds the position in each journal where copying continues. A storage may have been opened late."""
        for name, storage in tuple(self._storages.items()):
            if name not in self._positions:
                start = self._starts.get(name) or storage.feed.end()
                self._positions[name] = position = ledger.position(name) or start
                storage.feed.hold(position)
                if position > start:
                    self._start_over(name, HoldLost("the directory is older than what it has shipped"))

    def without_base(self, ledger: Ledger) -> list[str]:
        """The partitions that are in use and cannot be restored yet."""
        found = ledger.without_base(self._judged & self.placements.keys())
        return sorted(uuid for uuid in found if uuid not in ledger.lines or not ledger.lines[uuid].is_closed)

    def take(self, ledger: Ledger, bases: list[Base], must_put: bool = False) -> list[Piece]:
        """A new cut; empty if nothing is new, unless it `must_put` an object. Every piece must be shipped before the
        next cut."""
        self._hold(ledger)
        self._cut_begins = ledger.number + 1
        time_us = self._clock.now_us()
        self._changes_seen, catalog, news = self._catalog.copied(self._changes_seen, self._news)
        if catalog:
            self.placements = placements_in(catalog)
        groups: list[list[tuple[str, FeedChunk]]] = [[]]
        size = 0
        for name, one in news.items():
            for chunk in one.chunks:
                if groups[-1] and size + chunk.end - chunk.begin > limits.SEGMENT_BYTES_MAX:
                    groups.append([])
                    size = 0
                groups[-1].append((name, chunk))
                size += chunk.end - chunk.begin
        openings = [opening for one in news.values() for opening in one.openings]
        if not (groups[0] or openings or self._lost or catalog or bases or must_put):
            return []
        return [
            *(Piece(time_us, group, is_last=False) for group in groups[:-1]),
            Piece(time_us, groups[-1], True, openings, catalog, bases),
        ]

    def _news(self) -> dict[str, News]:
        feeds = {name: (self._storages[name].feed, position) for name, position in self._positions.items()}
        news: dict[str, News] = {}
        for name, found in take_together(feeds).items():
            if isinstance(found, News):
                news[name] = found
            else:
                self._start_over(name, found)
                openings = self._storages[name].feed.take(self._positions[name]).openings
                self._gaps |= {opening.uuid for opening in openings}
                news[name] = News([], openings)
        return news

    def _start_over(self, name: str, reason: object) -> None:
        """The archive gets no more of this storage's journal until now, and new bases of its partitions instead."""
        log.error("archive starts over from fresh bases", extra={"storage": name, "reason": str(reason)})
        self._lost.add(name)
        feed = self._storages[name].feed
        self._positions[name] = feed.end()
        feed.hold(self._positions[name])

    def headed(
        self, piece: Piece, surveys: Sequence[Survey | str], ledger: Ledger, owner: Owner
    ) -> tuple[LogHead, list[int]]:
        """The head of the next log object, and which of the chunks are in its body.

        `surveys` tells what is in each chunk, or why it cannot be read. A segment may be gone by now, if the archive
        was away for long enough since the cut.
        """
        taken: list[int] = []
        parts: list[JournalPart] = []
        records: dict[str, int] = {}
        for at, ((name, chunk), found) in enumerate(zip(piece.chunks, surveys, strict=True)):
            if name in self._lost:
                continue
            if isinstance(found, str):
                self._start_over(name, found)
                continue
            for partition, last in found.numbers.items():
                uuid = str(UUID(bytes=partition))
                line = ledger.lines.get(uuid)
                before = max(line.last if line else 0, records.get(uuid, 0))
                # Nothing is missing before the first records of a partition that has no base yet: its base will have
                # what came before. Otherwise each cut would void the base that is being taken.
                is_known = bool(before) or (line is not None and line.base is not None)
                if is_known and found.first[partition] > before + 1:
                    self._gaps.add(uuid)
                records[uuid] = last
            self._closed |= {str(UUID(bytes=uuid)) for uuid in found.closed}
            taken.append(at)
            parts.append(JournalPart(name, chunk.segment, chunk.begin, chunk.end - chunk.begin))
        closed: set[str] = set()
        void: list[str] = []
        born: list[Base] = []
        if piece.is_last:
            closed, self._closed = self._closed, set()
            gaps, self._gaps = self._gaps, set()
            void, born = self._judge(piece, ledger, closed, gaps)
            closed -= {opening.uuid for opening in piece.openings}
        gone: list[str] = []
        if piece.catalog:
            known = self.placements.keys() | leftovers_in(piece.catalog)
            gone = [uuid for uuid in ledger.lines if uuid not in known]
        head = LogHead(
            number=ledger.number + 1,
            epoch=ledger.epoch,
            owner=owner,
            kind=LOG,
            # A clock that goes back must not make an object look older than the one before.
            time=max(piece.time_us, ledger.time),
            previous=ledger.sha256,
            is_point=piece.is_last,
            journal=parts,
            records=records,
            closed=sorted(closed),
            bases=[*piece.bases, *born],
            void=void,
            gone=gone,
            catalog_bytes=len(piece.catalog),
        )
        return head, taken

    def _judge(self, piece: Piece, ledger: Ledger, closed: set[str], gaps: set[str]) -> tuple[list[str], list[Base]]:
        """Which partitions need new bases after this cut, and which are new and need none."""
        void = gaps | {uuid for uuid, (_, storage) in self.placements.items() if storage in self._lost}
        if self.is_stranger:
            void |= ledger.lines.keys()
        born: dict[str, Base] = {}
        for uuid, queue, applied, is_new in piece.openings:
            line = ledger.lines.get(uuid)
            was_closed = uuid in closed or (line is not None and line.is_closed)
            is_first = uuid not in self._judged
            self._judged.add(uuid)
            if is_new:
                born[uuid] = Base(uuid, queue, 0, self._cut_begins)
            elif line is None:
                continue
            elif is_first and self.must_agree:
                if applied != line.last:
                    void.add(uuid)
            elif was_closed and not (is_first and uuid in self.unchanged):
                void.add(uuid)
        return sorted(void), [base for uuid, base in born.items() if uuid not in void]

    def shipped(self, piece: Piece) -> None:
        """Called when the archive has this piece. The journals need not hold its segments any longer."""
        for name, chunk in piece.chunks:
            if name not in self._lost:
                self._positions[name] = position = Position(chunk.segment, chunk.end)
                self._storages[name].feed.hold(position)
        if piece.is_last:
            self._lost.clear()
