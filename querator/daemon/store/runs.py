"""Items in columnar form, and what becomes of many of them at once.

This module is not compiled: mypyc drops the settings of a struct, such as `array_like`, with which the journal has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat

import msgspec

from querator.items import Hold, Item


class Rows(msgspec.Struct, array_like=True, gc=False, tag=0):
    """New items of a bulk write, with consecutive sequences. They become objects when they are about to be leased."""

    first_seq: int
    count: int
    created_at: int
    """Used for rows that carry no value of their own; the same goes for the next field."""
    expire_deadline: int
    columns: bytes
    """An Arrow stream with the payload and any other columns of the items table."""

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    @property
    def seqs(self) -> range:
        return range(self.first_seq, self.first_seq + self.count)

    @property
    def size_bytes(self) -> int:
        return len(self.columns)


class Run(msgspec.Struct, array_like=True, gc=False, tag=1):
    """New items of large requests, with consecutive sequences. They differ in their payloads and texts only.

    They are leased and removed in stripes, and become objects only if one of them needs a step of its own.
    """

    first_seq: int
    count: int
    created_at: int
    expire_deadline: int
    payloads: list[bytes]
    kinds: list[str] | None = None
    references: list[str] | None = None
    encodings: list[str] | None = None
    """None if all of these texts are empty."""

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    @property
    def seqs(self) -> range:
        return range(self.first_seq, self.first_seq + self.count)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.payloads))

    @property
    def has_texts(self) -> bool:
        return not (self.kinds is None and self.references is None and self.encodings is None)

    def texts(self, places: range) -> list[tuple[str, str, str]]:
        """The encoding, the kind and the reference of the items at these places."""
        part = slice(places.start, places.stop, places.step)
        columns = (self.encodings, self.kinds, self.references)
        return list(zip(*[[""] * len(places) if one is None else one[part] for one in columns], strict=True))

    def items(self, places: range) -> list[Item]:
        """The items at these places."""
        first = self.first_seq
        payloads = self.payloads[places.start : places.stop : places.step]
        seqs = range(first + places.start, first + places.stop, places.step)
        alike = repeat(self.created_at, len(places)), repeat(self.expire_deadline)
        if not self.has_texts:
            return list(map(Item, seqs, *alike, payloads))
        encodings, kinds, references = zip(*self.texts(places), strict=True)
        return list(map(Item, seqs, *alike, payloads, kinds, references, encodings))


GoneFrom = Callable[[Rows | Run], bytes | bytearray | None]
"""Says which of these items are gone, by a 1 for each of them. None if none is."""


class Stripe(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Every so many of the items of a run: what one of several consumers got when their items were dealt in rounds."""

    first_seq: int
    count: int
    step: int

    @property
    def seqs(self) -> range:
        return range(self.first_seq, self.first_seq + self.count * self.step, self.step)


class LeasedStripe(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Items of a run that were leased together, for the first time."""

    stripe: Stripe
    deadline: int
    hold: Hold

    def leases(self) -> Iterator[tuple[int, tuple[int, int, Hold]]]:
        """The sequence of each item with its number of attempts, its deadline and its hold."""
        return zip(self.stripe.seqs, repeat((1, self.deadline, self.hold)), strict=False)
