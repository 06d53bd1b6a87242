"""When waiting requests time out, on the monotonic clock."""

from __future__ import annotations

import heapq
import itertools
from typing import Final

from querator.daemon.queue.agenda import NEVER, Agenda
from querator.daemon.queue.requests import Request

ANSWERED_KEPT: Final = 1_000
"""The heap may hold this many answered requests, and as many again as there are waiting ones."""


class Deadlines:
    """The requests that wait. An answered request stays in the heap until its deadline or the next clean-up."""

    __slots__ = ("_agenda", "_clean_up_at", "_heap", "_orders")

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._heap: list[tuple[int, int, Request]] = []
        """By deadline and arrival."""
        self._orders = itertools.count()
        self._clean_up_at = ANSWERED_KEPT

    def watch(self, request: Request) -> None:
        """Adds a request. It times out at its deadline, unless it is answered before."""
        if request.watched:
            return
        request.watched = True
        heapq.heappush(self._heap, (request.deadline_ns, next(self._orders), request))
        if request.deadline_ns < self._agenda.timeout_ns:
            self._agenda.timeout_ns = request.deadline_ns
        if len(self._heap) > self._clean_up_at:
            self._heap = [entry for entry in self._heap if not entry[2].answered]
            heapq.heapify(self._heap)
            self._clean_up_at = 2 * len(self._heap) + ANSWERED_KEPT

    def take_overdue(self, now_ns: int) -> list[Request]:
        """Removes and returns the unanswered requests whose deadline has passed, in the order of deadlines."""
        heap = self._heap
        overdue = []
        while heap and heap[0][0] <= now_ns:
            _, _, request = heapq.heappop(heap)
            if not request.answered:
                overdue.append(request)
        self.next_ns()
        return overdue

    def next_ns(self) -> int:
        """When the next request times out. Corrects the agenda."""
        heap = self._heap
        while heap and heap[0][2].answered:
            heapq.heappop(heap)
        next_ns = self._agenda.timeout_ns = heap[0][0] if heap else NEVER
        return next_ns
