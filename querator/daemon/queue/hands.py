"""What one lease request got, while its leases are treated alike.

A consumer of large batches nearly always completes what one request gave it, with one request. So these leases stay
together as a hand. They become objects of their own only when one of them is treated differently.
"""

from __future__ import annotations

from itertools import repeat
from typing import Final

from querator.daemon.store import Batch, LeasedStripe, Run, Stripe, joined, others_of
from querator.items import Hold, Item, Lease

FIRST_ATTEMPT: Final = 1


class Hand:
    """The leases of one request. Its items came with large requests, and were not leased before."""

    __slots__ = ("_leases", "_pieces", "deadline", "hold", "ids")

    def __init__(self, ids: list[str], pieces: list[tuple[Run, range]], deadline: int, hold: Hold) -> None:
        self.ids = ids
        self._pieces = pieces
        """The runs that the items are of, and the items' places there, in the order of the ids."""
        self.deadline = deadline
        self.hold = hold
        self._leases: list[Lease] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def attempts(self) -> int:
        return FIRST_ATTEMPT

    def leases(self) -> list[Lease]:
        """The leases one by one; the same objects each time."""
        if self._leases is None:
            items: list[Item] = []
            for run, places in self._pieces:
                items += run.items(places)
            self._leases = list(
                map(Lease, self.ids, items, repeat(FIRST_ATTEMPT), repeat(self.deadline), repeat(self.hold))
            )
        return self._leases

    def has(self, seq: int) -> bool:
        return any([seq - run.first_seq in places for run, places in self._pieces])

    @property
    def first_seq(self) -> int:
        run, places = self._pieces[0]
        return run.first_seq + places.start

    @property
    def created_sum(self) -> int:
        """The sum of the creation times of all items."""
        return sum([run.created_at * len(places) for run, places in self._pieces])

    def _stripes(self) -> list[Stripe]:
        return [Stripe(run.first_seq + places.start, len(places), places.step) for run, places in self._pieces]

    def write(self, batch: Batch) -> None:
        """Adds the leases to the batch."""
        leased = [LeasedStripe(stripe, self.deadline, self.hold) for stripe in self._stripes()]
        others = others_of(batch)
        others.leased_stripes = joined(others.leased_stripes, leased)

    def remove(self, batch: Batch) -> None:
        """Adds the removal of all items to the batch."""
        others = others_of(batch)
        others.removed_stripes = joined(others.removed_stripes, self._stripes())

    # -- for the answer

    def payloads(self) -> list[bytes]:
        found: list[bytes] = []
        for run, places in self._pieces:
            found += run.payloads[places.start : places.stop : places.step]
        return found

    def texts(self) -> list[tuple[str, str, str]] | None:
        """The encoding, the kind and the reference of each item. None if all of them are empty."""
        if not any([run.has_texts for run, _ in self._pieces]):
            return None
        found: list[tuple[str, str, str]] = []
        for run, places in self._pieces:
            found += run.texts(places)
        return found
