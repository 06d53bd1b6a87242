"""The memory that all connections share: bodies that are still arriving, and answers that clients have not read.

Small requests need none of this. A large body that finds no room waits in the kernel: its connection is not read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from querator import limits

log = logging.getLogger("querator.transport")

PEAK_BYTES: Final = 64_000_000
"""After a peak of at least this size, the daemon returns its free memory to the system."""
_UNREAD_LOOK_SECONDS: Final = 1.0


class MemoryUser(Protocol):
    def enter_room(self) -> None:
        """There is room for the body now."""
        ...

    def unread_bytes(self) -> int:
        """Bytes of answers that the client has not read yet."""
        ...

    def cut(self) -> None:
        """Ends the connection at once. Its body leaves soon after, or its answer."""
        ...


class BodyRoom:
    """The room for large bodies that are still arriving. A body enters with its whole length, so it can always finish.

    Bodies that find no room wait in order. While they wait, a body inside that takes too long loses its connection.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.had_peak = False
        self._inside: dict[MemoryUser, tuple[int, float]] = {}
        """The size of each body and the time when it entered, in the order of these times."""
        self._waiting: dict[MemoryUser, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, connection: MemoryUser, size: int) -> bool:
        """Whether the body may enter now. Otherwise it waits, until the connection's `enter_room` is called."""
        self._waiting[connection] = size
        if len(self._waiting) == 1 and self._fits(size):
            self._enter(connection)
            return True
        self._watch()
        return False

    def leave(self, connection: MemoryUser) -> None:
        """Ends the stay of a body, or its wait. Does nothing for a connection that has no large body."""
        if self._waiting.pop(connection, None) is None:
            size, _ = self._inside.pop(connection, (0, 0.0))
            self.bytes -= size
        while self._waiting:
            following = next(iter(self._waiting))
            if not self._fits(self._waiting[following]):
                self._watch()
                return
            self._enter(following)
            following.enter_room()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fits(self, size: int) -> bool:
        return not self._inside or self.bytes + size <= limits.ARRIVING_BYTES_MAX

    def _enter(self, connection: MemoryUser) -> None:
        size = self._waiting.pop(connection)
        self._inside[connection] = (size, asyncio.get_running_loop().time())
        self.bytes += size
        if self.bytes >= PEAK_BYTES:
            self.had_peak = True

    def _watch(self) -> None:
        """Looks at the body that entered first when its time is over."""
        if self._timer is None and self._inside:
            _, entered = next(iter(self._inside.values()))
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(entered + limits.ARRIVING_SECONDS_MAX, self._end_slow)

    def _end_slow(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        since = asyncio.get_running_loop().time() - limits.ARRIVING_SECONDS_MAX
        slow = [connection for connection, (_, entered) in self._inside.items() if entered <= since]
        for connection in slow:
            connection.cut()
            self.leave(connection)
        if slow:
            log.warning("bodies that arrived too slowly were given up", extra={"connections": len(slow)})
        self._watch()


class _Unread:
    def __init__(self, size: int, now: float) -> None:
        self.size = size
        self.left = size
        self.since = now
        """When the client was last seen to read."""


class UnreadAnswers:
    """The answers that do not fit into their sockets. While they take too much memory, clients that read nothing lose
    their connections."""

    def __init__(self) -> None:
        self.bytes = 0
        self.had_peak = False
        self._unread: dict[MemoryUser, _Unread] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: MemoryUser) -> None:
        self.remove(connection)
        unread = _Unread(connection.unread_bytes(), asyncio.get_running_loop().time())
        self._unread[connection] = unread
        self.bytes += unread.size
        if self.bytes >= PEAK_BYTES:
            self.had_peak = True
        self._watch()

    def remove(self, connection: MemoryUser) -> None:
        unread = self._unread.pop(connection, None)
        if unread is not None:
            self.bytes -= unread.size

    def _watch(self) -> None:
        if self._timer is None and self.bytes > limits.UNREAD_BYTES_MAX:
            self._timer = asyncio.get_running_loop().call_later(_UNREAD_LOOK_SECONDS, self._end_unread)

    def _end_unread(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        ended = 0
        for connection, unread in list(self._unread.items()):
            left = connection.unread_bytes()
            if left < unread.left:
                unread.left, unread.since = left, now
            elif self.bytes > limits.UNREAD_BYTES_MAX and now - unread.since >= limits.UNREAD_CROWDED_SECONDS_MAX:
                connection.cut()
                self.remove(connection)
                ended += 1
        if ended:
            log.warning("clients that do not read their answers were cut off", extra={"connections": ended})
        self._watch()
