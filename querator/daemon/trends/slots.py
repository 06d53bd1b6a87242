"""Which slot of the rings belongs to which queue: a small file, rewritten when queues are created or deleted."""

from __future__ import annotations

import contextlib
import heapq
import os
import zlib
from collections.abc import Collection
from pathlib import Path

import msgspec

from querator.items import Queue


def tag_of(queue: Queue) -> int:
    """Tells a queue from an earlier one of the same name. Never 0, which marks an empty slot."""
    return zlib.crc32(f"{queue.name} {queue.created_at}".encode()) or 1


class Slots:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._by_name: dict[str, int] = {}
        self._free: list[int] = []
        self._changed = False

    def load(self) -> None:
        """Blocking. If the file is missing or damaged, the history begins now."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            self._by_name = msgspec.json.decode(self._path.read_bytes(), type=dict[str, int])
        taken = set(self._by_name.values())
        self._free = [slot for slot in range(max(taken, default=-1) + 1) if slot not in taken]

    def __len__(self) -> int:
        """How many slots the files have, free ones included."""
        return len(self._by_name) + len(self._free)

    def find(self, name: str) -> int | None:
        return self._by_name.get(name)

    def of(self, name: str) -> int:
        """The slot of a queue. A queue without a slot gets one."""
        slot = self._by_name.get(name)
        if slot is None:
            slot = heapq.heappop(self._free) if self._free else len(self._by_name)
            self._by_name[name] = slot
            self._changed = True
        return slot

    def keep_only(self, names: Collection[str]) -> None:
        """Frees the slots of queues that are gone."""
        if len(self._by_name) > len(names):
            for name in [name for name in self._by_name if name not in names]:
                heapq.heappush(self._free, self._by_name.pop(name))
                self._changed = True

    def changes(self) -> bytes:
        """The bytes that `save` should write; empty if the file is up to date."""
        if not self._changed:
            return b""
        self._changed = False
        return msgspec.json.encode(self._by_name)

    def save(self, content: bytes) -> None:
        """Blocking."""
        if content:
            new = self._path.with_suffix(".new")
            new.write_bytes(content)
            os.replace(new, self._path)
