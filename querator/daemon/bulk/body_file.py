"""The body of a request as a file, for a reader in another thread."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from starlette.types import Receive

from querator.daemon.http import ClientGone
from querator.errors import InvalidRequest
from querator.limits import (
    BULK_AHEAD_BYTES_MAX,
    BULK_BATCH_BYTES_MAX,
)


class BodyFile:
    """The body of a request as a file. A worker thread reads it while the loop fills it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._broken: Exception | None = None
        self._changed = threading.Condition()
        self._drained = asyncio.Event()
        self.closed = False

    # On the loop.

    async def fill(self, receive: Receive) -> None:
        """Receives the body, a bounded amount ahead of the reader."""
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                more = bool(message.get("more_body", False))
                with self._changed:
                    self._parts.append(message.get("body", b""))
                    self._size += len(self._parts[-1])
                    self._ended = not more
                    self._drained.clear()
                    full = self._size > BULK_AHEAD_BYTES_MAX
                    self._changed.notify_all()
                if not more:
                    return
                if full:
                    await self._drained.wait()
        except BaseException as error:
            self.break_off(error if isinstance(error, ClientGone) else ConnectionError(str(error)))
            raise

    def break_off(self, reason: Exception) -> None:
        with self._changed:
            self._broken = self._broken or reason
            self._changed.notify_all()

    # In the worker thread.

    def read(self, size: int = -1) -> bytes:
        if size > BULK_BATCH_BYTES_MAX:
            raise InvalidRequest(
                f"stream is invalid; a record batch has {size:,} bytes, at most {BULK_BATCH_BYTES_MAX:,} are taken"
            )
        pieces: list[bytes] = []
        wanted = size
        with self._changed:
            while wanted > 0 or size < 0:
                while not self._parts and not self._ended and self._broken is None:
                    # A large record batch may need more than the bound. Without more room its rest would never arrive.
                    self._loop.call_soon_threadsafe(self._drained.set)
                    self._changed.wait()
                if self._broken is not None:
                    raise self._broken
                if not self._parts:
                    break
                part = self._parts.popleft()
                if 0 <= wanted < len(part):
                    self._parts.appendleft(part[wanted:])
                    part = part[:wanted]
                pieces.append(part)
                wanted -= len(part)
                self._size -= len(part)
            if self._size <= BULK_AHEAD_BYTES_MAX // 2:
                self._loop.call_soon_threadsafe(self._drained.set)
        return b"".join(pieces)

    def readable(self) -> bool:
        return True
