"""The bytes of an archive's objects. `docs/adr/0060` describes the format.

    log/<number>           what happened since the object before: journal records, catalog, bases, a new owner
    index/<number>-<time>  the ledger after that log object, so that a reader need not begin at the first one
    base/<uuid>/<name>     a whole partition file, as DuckDB opens it
    heartbeat              when the owner was last there. The only object that is overwritten; it decides nothing

A log object and an index have the same envelope: a magic, the length of a JSON head, the head, a body compressed with
zstd, and the SHA-256 of all of that.
"""

from __future__ import annotations

import hashlib
import struct
from functools import cache
from typing import Any, Final

import msgspec

_MAGIC: Final = b"QAR1"
_START: Final = struct.Struct("<4sIQ")
_HASH_BYTES: Final = 32

CLAIM: Final = "claim"
LOG: Final = "log"


@cache
def _zstd() -> Any:
    import pyarrow as pa

    return pa.Codec("zstd", compression_level=1)


class Owner(msgspec.Struct, frozen=True):
    """Who writes to an archive."""

    data: str
    """The identity of the data directory."""
    host: str
    pid: int
    version: str
    address: str = ""
    """Where clients reach the daemon on TCP; empty if they do not."""
    run: str = ""
    """A random name of this run of the daemon. Two copies of a data directory in two containers may have everything
    else in common."""

    def __str__(self) -> str:
        return f"{self.host} (PID {self.pid})" + (f" at {self.address}" if self.address else "")


class JournalPart(msgspec.Struct, frozen=True):
    """Bytes of a journal that are in the body."""

    storage: str
    segment: int
    begin: int
    size: int


class Base(msgspec.Struct, frozen=True):
    """The state of a partition from which its records are replayed."""

    uuid: str
    queue: str
    applied: int
    """The last record that the base contains."""
    since: int
    """Later records are in this log object or later ones."""
    name: str = ""
    """The object that is the file; empty if the partition was new, and so had nothing."""
    sha256: str = ""
    size: int = 0


class LogHead(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a log object: it describes the body."""

    number: int
    epoch: int
    owner: Owner
    kind: str
    time: int
    """µs since 1970, by the owner's clock. Everything that was durable before is in this object or an earlier one."""
    previous: str
    """The SHA-256 of the object before."""
    is_point: bool = True
    """Whether a restore may end here. If not, the rest of what belongs together follows in the next object."""
    journal: list[JournalPart] = []
    records: dict[str, int] = {}
    """The last record of each partition that has records in this object."""
    closed: list[str] = []
    """Partitions that were closed. Their files may change without a record after that."""
    bases: list[Base] = []
    void: list[str] = []
    """Partitions that cannot be rebuilt from their bases and the records up to this object, because their files changed
    while they were closed. They need new bases."""
    gone: list[str] = []
    """Partitions that no longer exist."""
    catalog_bytes: int = 0
    """The catalog follows the journal parts in the body, if it changed."""


class LogObject(msgspec.Struct, frozen=True):
    head: LogHead
    body: bytes
    sha256: str
    size: int

    def parts(self) -> list[tuple[JournalPart, bytes]]:
        found, at = [], 0
        for part in self.head.journal:
            found.append((part, self.body[at : at + part.size]))
            at += part.size
        return found

    @property
    def catalog(self) -> bytes | None:
        size = self.head.catalog_bytes
        return self.body[len(self.body) - size :] if size else None


class DamagedObject(Exception):
    """The bytes of an object are not what its writer wrote."""


def log_name(number: int) -> str:
    return f"log/{number:016d}"


def log_number(name: str) -> int | None:
    """The number of a log object; None if an object of this name is none of ours."""
    digits = name.removeprefix("log/")
    return int(digits) if len(digits) == 16 and digits.isdecimal() else None


def index_name(number: int, time_us: int) -> str:
    return f"index/{number:016d}-{time_us:016d}"


HEARTBEAT: Final = "heartbeat"


class Heartbeat(msgspec.Struct, frozen=True):
    epoch: int
    owner: Owner
    time: int
    number: int
    """The last log object that the owner has written."""
    beats: int
    """How many there were before in this epoch, so that a standby notices each of them."""
    every: float
    """The seconds between two heartbeats."""
    complete_to: int
    """Everything that was durable at this time is in the log objects up to that number; 0 if that is not known."""
    is_waiting: bool
    """Whether the owner acknowledges nothing that the archive does not have."""


def sealed(head: object, body: bytes) -> bytes:
    """The bytes of an object."""
    return sealed_bytes(msgspec.json.encode(head), body)[0]


def sealed_bytes(head: bytes, body: bytes) -> tuple[bytes, str]:
    """The bytes of an object, and their hash. Large bodies are hashed and copied once."""
    packed = _zstd().compress(body, asbytes=True) if body else b""
    pieces = [_START.pack(_MAGIC, len(head), len(body)), head, packed]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    pieces.append(digest.digest())
    digest.update(pieces[-1])
    return b"".join(pieces), digest.hexdigest()


def sealed_log(head: LogHead, body: bytes) -> tuple[LogObject, bytes]:
    """A log object, and its bytes."""
    data, sha256 = sealed_bytes(msgspec.json.encode(head), body)
    return LogObject(head, body, sha256, len(data)), data


def opened(data: bytes, kind: type[Any] | None, name: str) -> tuple[Any, bytes]:
    """The head and the body of an object. Raises DamagedObject."""
    whole = memoryview(data)
    if len(data) < _START.size + _HASH_BYTES or hashlib.sha256(whole[:-_HASH_BYTES]).digest() != data[-_HASH_BYTES:]:
        raise DamagedObject(f"{name} is damaged: its hash is wrong")
    magic, head_bytes, body_bytes = _START.unpack_from(data)
    if magic != _MAGIC:
        raise DamagedObject(f"{name} is no object of an archive that this version knows")
    try:
        head = msgspec.json.decode(whole[_START.size : _START.size + head_bytes], type=kind)
        packed = whole[_START.size + head_bytes : -_HASH_BYTES]
        body = bytes(_zstd().decompress(packed, body_bytes, asbytes=True)) if body_bytes else b""
    except (msgspec.MsgspecError, OSError, ValueError) as error:
        raise DamagedObject(f"{name} is damaged: {error}") from None
    return head, body


def opened_log(data: bytes, number: int) -> LogObject:
    head, body = opened(data, LogHead, log_name(number))
    if head.number != number:
        raise DamagedObject(f"{log_name(number)} says that it is number {head.number}")
    return LogObject(head, body, hashlib.sha256(data).hexdigest(), len(data))
