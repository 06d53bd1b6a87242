"""Sets of 64-bit fingerprints of request ids. A fingerprint takes eight bytes, where an id would take hundreds."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

_BUCKETS_BITS: Final = 8
FINGERPRINT_SQL: Final = "md5_number_upper(request_id)"
"""The same as `fingerprint`, in SQL."""


def fingerprint(request_id: str) -> int:
    return int.from_bytes(hashlib.md5(request_id.encode(), usedforsecurity=False).digest()[:8], "little")


def ascending(column: pa.ChunkedArray) -> array[int]:
    """An array of a sorted column of DuckDB, made without a Python object for each value."""
    values: array[int] = array("Q")
    for chunk in column.chunks:
        start = chunk.offset * values.itemsize
        values.frombytes(memoryview(chunk.buffers()[1])[start : start + len(chunk) * values.itemsize])
    return values


class Fingerprints:
    """Fingerprints of request ids that are remembered until `until` at the latest.

    They are in sorted arrays, one for each value of the highest bits, so that adding one moves few others. Fingerprints
    read from a file come sorted and stay in one array.
    """

    __slots__ = ("_buckets", "_shift", "until")

    def __init__(self, ascending: array[int] | None = None, until: int = 0) -> None:
        self.until = until
        if ascending is None:
            self._shift = 64 - _BUCKETS_BITS
            self._buckets = [array("Q") for _ in range(1 << _BUCKETS_BITS)]
        else:
            self._shift = 64
            self._buckets = [ascending]

    def __len__(self) -> int:
        return sum(map(len, self._buckets))

    def add(self, value: int, until: int) -> None:
        insort(self._buckets[value >> self._shift], value)
        if until > self.until:
            self.until = until

    def __contains__(self, value: int) -> bool:
        bucket = self._buckets[value >> self._shift]
        at = bisect_left(bucket, value)
        return at < len(bucket) and bucket[at] == value


class DroppedFingerprints(Fingerprints):
    """Stands for fingerprints that there was no room for: any key may be among them."""

    __slots__ = ()

    def __contains__(self, value: int) -> bool:
        return True
