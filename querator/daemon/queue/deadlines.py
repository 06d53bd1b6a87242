"""When waiting requests time out, on the monotonic clock."""

from __future__ import annotations

import heapq
import itertools
from typing import Final

from querator.daemon.queue.agenda import NEVER
from querator.daemon.queue.requests import Request

ANSWERED_KEPT: Final = 1_000
"""The heap may hold this many answered requests, and as many again as there are waiting ones."""


class Deadlines:
    """The requests that wait. An answered request stays in the heap until its deadline or the next clean-up."""

    __slots__ = ("_clean_up_at", "_orders", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Request]] = []
        """By deadline and arrival."""
        self._orders = itertools.count()
        self._clean_up_at = ANSWERED_KEPT

    def watch(self, request: Request) -> None:
        """Adds a request. It times out at its deadline, unless it is answered before."""
        if request.watched:
            return
        request.watched = True
        heapq.heappush(self.heap, (request.deadline_ns, next(self._orders), request))
        if len(self.heap) > self._clean_up_at:
            self.heap = [entry for entry in self.heap if not entry[2].answered]
            heapq.heapify(self.heap)
            self._clean_up_at = 2 * len(self.heap) + ANSWERED_KEPT

    def take_overdue(self, now_ns: int) -> list[Request]:
        """Removes and returns the unanswered requests whose deadline has passed, in the order of deadlines."""
        heap = self.heap
        overdue = []
        while heap and heap[0][0] <= now_ns:
            _, _, request = heapq.heappop(heap)
            if not request.answered:
                overdue.append(request)
        return overdue

    def next_ns(self) -> int:
        heap = self.heap
        while heap and heap[0][2].answered:
            heapq.heappop(heap)
        return heap[0][0] if heap else NEVER
