"""The keys of requests that a queue has carried out: request ids of clients, and keys of items from other partitions.

The file of the partition that took a request has its key. Memory keeps the newest keys, and a fingerprint of each older
one. A key with a known fingerprint is looked up in the files before its request is decided. A key without one is new.
Until the files of all partitions have been read after the start, a file may know any key, so requests with a key wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from querator import limits
from querator.daemon.queue.requests import (
    BULK_PREFIX,
    EXACT_PREFIXES,
    MOVE_PREFIXES,
)
from querator.daemon.store import DroppedFingerprints, Fingerprints, fingerprint
from querator.limits import (
    BULK_REQUEST_ID_KEPT_US,
    EXACT_KEYS_CHECKED_EVERY_US,
    MOVE_KEPT_US,
    REQUEST_ID_GENERATIONS,
    REQUEST_ID_KEPT_US,
    REQUEST_IDS_FORGOTTEN_MAX,
    US_PER_SECOND,
)

if TYPE_CHECKING:
    from querator.daemon.queue.agenda import Agenda
    from querator.daemon.queue.partition import Partition

_DROPPED: Final = "dropped"
"""Stands in place of a partition's UUID."""


class _Keys:
    """Keys with the same time to live: the newest in the order of their times, the others as fingerprints.

    Fingerprints are kept in generations and expire with them, because a fingerprint does not tell its key.
    """

    def __init__(self, kept_us: int) -> None:
        self.kept_us = kept_us
        self.newest: dict[str, int] = {}
        self.older: deque[Fingerprints] = deque()
        self._generation_ends = 0
        self._expired_at = 0

    def forget(self, now_us: int) -> bool:
        """Returns whether there are more fingerprints now."""
        # Finding the first key of a dictionary that has lost thousands of keys is slow, so it is done once a second.
        if abs(now_us - self._expired_at) >= US_PER_SECOND:
            self._expired_at = now_us
            self._expire(now_us)
        excess = len(self.newest) - limits.REQUEST_IDS_NEWEST_MAX
        if excess <= limits.REQUEST_IDS_NEWEST_MAX // 100:
            return False
        for key in list(islice(self.newest, excess)):
            self._add_older(key, self.newest.pop(key))
        return True

    def _expire(self, now_us: int) -> None:
        newest = self.newest
        last_us = now_us + self.kept_us
        for key, until in list(islice(newest.items(), REQUEST_IDS_FORGOTTEN_MAX)):
            if now_us <= until <= last_us:
                break
            del newest[key]
            if until > last_us:
                newest[key] = last_us  # the clock went back: this key must not keep later keys from expiring
        while self.older and self.older[0].until < now_us:
            self.older.popleft()

    def _add_older(self, key: str, until: int) -> None:
        if not self.older or until > self._generation_ends:
            self.older.append(Fingerprints())
            self._generation_ends = until + self.kept_us // REQUEST_ID_GENERATIONS
        self.older[-1].add(fingerprint(key), until)


class Remembered:
    """The keys of one queue."""

    def __init__(self, unread: Iterable[Partition], agenda: Agenda) -> None:
        self._agenda = agenda
        self.unread = list(unread)
        """Partitions whose files have not been read since the start, so that their keys are unknown."""
        self.loaded_at = 0
        """When the queue was loaded. A file that has not been read has no key from after this time."""
        self.exact: dict[str, int] = {}
        """The keys that begin with one of EXACT_PREFIXES."""
        self._exact_checked_at = 0
        self._clients = _Keys(REQUEST_ID_KEPT_US)
        self._bulk = _Keys(BULK_REQUEST_ID_KEPT_US)
        self._moves = _Keys(MOVE_KEPT_US)
        self._kinds = (self._clients, self._bulk, self._moves)
        self._in_files: dict[str, Fingerprints] = {}
        """By the UUID of the partition, all keys that its file had when it was opened."""
        self.version = 1
        """Rises with each file that is read, because earlier look-ups did not ask that file."""

    def put(self, key: str, until: int) -> None:
        self._agenda.has_keys = True
        if key.startswith(EXACT_PREFIXES):
            self.exact[key] = until
            return
        newest = self._kind(key).newest
        # A key that is put again moves to the end, so that the oldest keys stay in front.
        newest.pop(key, None)
        newest[key] = until

    def _kind(self, key: str) -> _Keys:
        if key.startswith(BULK_PREFIX):
            return self._bulk
        return self._moves if key.startswith(MOVE_PREFIXES) else self._clients

    def drop(self, key: str) -> None:
        self.exact.pop(key, None)
        self._kind(key).newest.pop(key, None)

    def exact_keys(self, prefix: str) -> list[str]:
        """All keys with this prefix, which is one of EXACT_PREFIXES or longer."""
        return [key for key in self.exact if key.startswith(prefix)]

    def read(self, partition: Partition, newest: Iterable[tuple[str, int]], everything: Fingerprints) -> None:
        """Adds the keys of a partition's file. They stay known when the partition fails or is closed.

        Memory keeps as many of the newest keys as there is room for.
        """
        if partition in self.unread:
            self.unread.remove(partition)
        uuid = partition.placement.uuid
        self.version += 1
        for key, until in newest:
            kind = self._kind(key)
            if key.startswith(EXACT_PREFIXES) or len(kind.newest) < limits.REQUEST_IDS_NEWEST_MAX:
                known = self.exact.get(key) or kind.newest.get(key, 0)
                self.put(key, max(until, known))
        self._in_files.pop(uuid, None)
        if everything:
            self._agenda.has_keys = True
            self._in_files[uuid] = everything
            self._drop_excess()

    def has(self, key: str, now_us: int) -> bool:
        """Whether memory knows the key. If not, `may_have` says whether to look further."""
        until = self._kind(key).newest.get(key)
        return until is not None and until >= now_us

    def may_have(self, keys: Iterable[str]) -> bool:
        """Whether one of the files that have been read may remember one of these keys."""
        older = [*self._in_files.values(), *[one for kind in self._kinds for one in kind.older]]
        if not older:
            return False
        return any(value in one for value in map(fingerprint, keys) for one in older)

    def forget(self, now_us: int) -> None:
        """Drops expired keys, and turns keys that are no longer among the newest into fingerprints."""
        for kind in self._kinds:
            if kind.forget(now_us):
                self._drop_excess()
        for uuid in [uuid for uuid, one in self._in_files.items() if one.until < now_us]:
            del self._in_files[uuid]
        if abs(now_us - self._exact_checked_at) > EXACT_KEYS_CHECKED_EVERY_US:
            self._exact_checked_at = now_us
            self.exact = {key: until for key, until in self.exact.items() if until >= now_us}

    def _drop_excess(self) -> None:
        """Drops the oldest fingerprints beyond the maximum. Until their keys expire, every key is looked up."""
        groups = [*self._in_files.values(), *[one for kind in self._kinds for one in kind.older]]
        excess = sum(map(len, groups)) - limits.FINGERPRINTS_MAX
        if excess <= 0:
            return
        until = 0
        for group in sorted(groups, key=lambda one: one.until):
            if excess > 0 and len(group):
                excess -= len(group)
                until = group.until
                for kind in self._kinds:
                    kind.older = deque([one for one in kind.older if one is not group])
                self._in_files = {uuid: one for uuid, one in self._in_files.items() if one is not group}
        dropped = self._in_files.get(_DROPPED)
        self._in_files[_DROPPED] = DroppedFingerprints(until=max(until, dropped.until if dropped else 0))
