"""Lease requests that wait for items, in the order in which they arrived."""

from __future__ import annotations

from querator.daemon.queue.agenda import Agenda
from querator.daemon.queue.requests import LeaseItems


class ParkedLeases:
    """Keeps the waiting lease requests. A client may have only one of them at a time.

    The planners read the attributes, and change them only through the methods.
    """

    __slots__ = ("_agenda", "_last_order", "clients", "newly_parked", "waiting")

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self.waiting: dict[int, LeaseItems] = {}
        """By their place in the order of arrival."""
        self.clients: set[str] = set()
        """Client ids that are in use."""
        self.newly_parked: list[LeaseItems] = []
        """Requests whose deadlines are not watched yet."""
        self._last_order = 0

    def reserve(self, request: LeaseItems) -> None:
        """Gives the request its place, and its client id, while the request waits for a look-up."""
        self._place(request)
        self.clients.add(request.client_id)

    def park(self, request: LeaseItems) -> None:
        if request.abandoned:
            self.clients.discard(request.client_id)
            return
        self._place(request)
        self.waiting[request.order] = request
        self.clients.add(request.client_id)
        self.newly_parked.append(request)

    def _place(self, request: LeaseItems) -> None:
        if request.order == 0:
            self._last_order += 1
            request.order = self._last_order
        self._agenda.has_parked = True

    def remove(self, request: LeaseItems) -> bool:
        """Removes a request and frees its client id. False if it is not parked."""
        if self.waiting.pop(request.order, None) is None:
            return False
        self.clients.discard(request.client_id)
        return True

    def serve(self, request: LeaseItems) -> None:
        """Removes a parked request that gets items now."""
        del self.waiting[request.order]
        self.clients.discard(request.client_id)

    def free_client(self, request: LeaseItems) -> None:
        """Frees the client id of a request that will not be parked, so that the client may send another one."""
        self.clients.discard(request.client_id)

    def note_if_none(self) -> None:
        """Tells the agenda if nobody waits any more."""
        self._agenda.has_parked = bool(self.waiting or self.clients)

    def restore_order(self) -> None:
        """Sorts the requests after some were parked again because their write failed."""
        self.waiting = dict(sorted(self.waiting.items()))

    def clear(self) -> None:
        self.waiting.clear()
        self.clients.clear()
