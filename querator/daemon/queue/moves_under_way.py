"""The moves that a queue has started: to be carried out, ended, or waiting for their next attempt."""

from __future__ import annotations

import heapq
from collections.abc import Container
from typing import Any

from querator.daemon.queue.agenda import NEVER, Agenda
from querator.daemon.queue.partition import Partition
from querator.daemon.queue.requests import Move, Retry, failing
from querator.errors import RetryRequest
from querator.limits import RECOVERY_BACKOFF_MAX_NS, RECOVERY_BACKOFF_MIN_NS


class MovesUnderWay:
    __slots__ = ("_agenda", "_open", "ended", "outgoing", "retrying", "waiting")

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self.outgoing: list[Move] = []
        """Moves for the driver."""
        self.retrying: set[Retry] = set()
        """Retries whose items are on their way to another queue or partition."""
        self.ended: list[tuple[Move, Any]] = []
        """Moves with the destination's answer, for the next pass."""
        self.waiting: list[tuple[int, int, Move]] = []
        """A heap of the moves that failed, by the time of their next attempt."""
        self._open = 0
        """Moves that were started and have not ended."""

    def start(self, move: Move) -> None:
        if move.retry is not None:
            self.retrying.add(move.retry)
        self._send(move)

    def _send(self, move: Move) -> None:
        self.outgoing.append(move)
        self._agenda.asks_driver = True
        self._open += 1

    def take_outgoing(self) -> list[Move]:
        moves, self.outgoing = self.outgoing, []
        return moves

    def end(self, move: Move, result: Any) -> None:
        self.ended.append((move, result))

    def take_ended(self) -> list[tuple[Move, Any]]:
        ended, self.ended = self.ended, []
        self._open -= len(ended)
        return ended

    def postpone(self, move: Move, now_ns: int) -> None:
        """Resends the move after a back-off, which doubles with each attempt."""
        backoff = min(RECOVERY_BACKOFF_MAX_NS, RECOVERY_BACKOFF_MIN_NS << min(move.tries, 16))
        move.tries += 1
        heapq.heappush(self.waiting, (now_ns + backoff, id(move), move))

    def send_waiting(self, now_ns: int) -> None:
        """Resends the moves whose back-off is over."""
        while self.waiting and self.waiting[0][0] <= now_ns:
            self._send(heapq.heappop(self.waiting)[2])

    def end_back_offs(self) -> None:
        self.waiting = sorted((0, order, move) for _, order, move in self.waiting)

    def next_ns(self) -> int:
        return self.waiting[0][0] if self.waiting else NEVER

    def call_off(self, failed: Container[Partition]) -> None:
        """Drops the moves of partitions whose batch did not become durable. These moves were not sent yet."""
        stay = []
        for move in self.outgoing:
            if move.partition not in failed:
                stay.append(move)
                continue
            self._open -= 1
            if move.retry is not None:
                self.retrying.discard(move.retry)
                move.retry.answer(RetryRequest(failing(move.partition.number)))
        self.outgoing = stay

    @property
    def are_idle(self) -> bool:
        """Whether no move is to be sent or has ended. A move that waits for its next attempt does not count."""
        return not (self.outgoing or self.ended)

    @property
    def are_over(self) -> bool:
        """Whether every move has arrived or was called off."""
        return not (self._open or self.waiting)
