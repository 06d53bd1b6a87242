"""Decides who owns an archive: the daemon that created the last claim. Only creating the next numbered object decides.

A data directory has an identity of its own. Without `--claim`, a daemon claims an archive only if the archive is new,
or if the last claim came from the same directory. Any other directory may lack what the last owner has written. With
`--claim`, the directory must have been made from the archive as it is, unless `--start-over` says that it replaces it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from querator import __version__, limits
from querator.clock import Clock, SetBackClock, SystemClock
from querator.daemon.archive.bucket import Away, Bucket
from querator.daemon.archive.ledger import Ledger, Lost, LostTail, check_gap, heartbeat, last_readable, read_log
from querator.daemon.archive.objects import CLAIM, LogHead, Owner, log_name, sealed_log
from querator.daemon.store import replace_file
from querator.errors import Conflict, Replaced


class Identity(msgspec.Struct):
    """What a data directory knows about itself and its archive."""

    data: str
    url: str = ""
    number: int = 0
    sha256: str = ""
    """The directory was made from the archive up to this log object, or its daemon has written it as the owner; 0 if
    neither is so."""
    needs_bases: bool = False
    """Whether the daemon that claimed the archive with this directory may have ended before its first cut, so that what
    the archive has need not lead to the files that are here."""
    is_standby: bool = False
    """Whether a standby made the files, and no owner has changed them since."""
    closed: dict[str, tuple[int, int, int]] = {}
    """Size, time of the last change and inode of each partition file when the daemon last stopped in order."""
    behind_us: int = 0
    """By how much the clock of a daemon on this directory was set back when it was promoted, because the clock of its
    machine was ahead or may have been."""
    behind_at: int = 0
    """When that was, by the system's clock (µs). The daemon's clock has been catching up slowly since then."""
    lineages: dict[str, int] = {}
    """For a standby: the log object that last said that a partition needs a new base, for the file that is here."""


def identity_path(data: Path) -> Path:
    return data / "archive.json"


def read_identity(data: Path) -> Identity:
    """Blocking. The identity of a directory. A directory without one gets a new one."""
    try:
        return msgspec.json.decode(identity_path(data).read_bytes(), type=Identity)
    except FileNotFoundError:
        identity = Identity(str(uuid4()))
        save_identity(data, identity)
        return identity


def clock_behind_us(data: Path) -> int:
    """Blocking. By how much the clock of a daemon on this directory is set back by now."""
    if not identity_path(data).exists():
        return 0
    identity = read_identity(data)
    elapsed_us = max(0, SystemClock().now_us() - identity.behind_at)
    return max(0, identity.behind_us - elapsed_us * limits.CLOCK_SLEW_US_PER_SECOND // limits.US_PER_SECOND)


def noted_behind(data: Path, identity: Identity, clock: Clock, behind_us: int) -> Identity:
    """Blocking. Notes that the clock is about to be set back by this much more."""
    already_us = clock.behind_us if isinstance(clock, SetBackClock) else 0
    identity = msgspec.structs.replace(identity, behind_us=already_us + behind_us, behind_at=SystemClock().now_us())
    save_identity(data, identity)
    return identity


def save_identity(data: Path, identity: Identity) -> None:
    replace_file(identity_path(data), msgspec.json.encode(identity))


def owner_of(identity: Identity, address: str) -> Owner:
    """Who a daemon on this directory is, for one run of it."""
    return Owner(identity.data, socket.gethostname(), os.getpid(), __version__, address, uuid4().hex)


def found_for_claim(
    bucket: Bucket, identity: Identity, owner: Owner, may_take: bool, may_start_over: bool
) -> tuple[Ledger, bool]:
    """Blocking. The ledger that a claim follows, and whether the archive has lost newer log objects. Only
    `--start-over` gives their numbers to others.

    For the owner itself, an archive that lacks objects is one that is away: its disk may not be mounted yet. Any other
    directory is refused with Conflict or Replaced. Raises ArchiveError or Gap if an object between others is missing.
    """
    ledger = last_readable(bucket)
    noted = identity.number if identity.url == bucket.url else 0
    try:
        check_end(bucket, ledger.number, noted)
    except LostTail as error:
        check_claim(ledger, owner, may_take, bucket.url)
        if may_start_over:
            return ledger, True
        if ledger.owner is not None and ledger.owner.data != owner.data:
            raise Conflict(str(error), hint=_WAYS_ON) from None
        raise Lost(f"{error}: {_WAYS_TO_OBJECTS}") from None
    return ledger, False


def noted_number(data: Path, identity: Identity, url: str, ledger: Ledger) -> Identity:
    """Blocking. Notes in the owner's directory how far the archive is, so that the directory knows it if the archive
    is shorter one day. If the disk is full, an earlier number must do."""
    identity = msgspec.structs.replace(
        identity, url=url, number=ledger.number, sha256=ledger.sha256, is_standby=False, lineages={}
    )
    with contextlib.suppress(OSError):
        save_identity(data, identity)
    return identity


def stop_following(data: Path) -> None:
    """Blocking. Notes that an owner may change the files of this directory from now on: they no longer lead to what
    the archive has, so no standby may go on from them."""
    if identity_path(data).exists() and (identity := read_identity(data)).is_standby:
        save_identity(data, msgspec.structs.replace(identity, is_standby=False, lineages={}))


def noted_bases(data: Path, identity: Identity, needs_bases: bool) -> Identity:
    """Blocking. Notes whether the archive needs new bases of all files: before a claim, and after the first cut. Raises
    Away if the disk is full before a claim. After the first cut, that only costs the bases at the next start."""
    if identity.needs_bases == needs_bases:
        return identity
    noted = msgspec.structs.replace(identity, needs_bases=needs_bases)
    try:
        save_identity(data, noted)
    except OSError as error:
        if needs_bases:
            raise Away(f"{identity_path(data)} cannot be written: {error.strerror}") from None
        return identity
    return noted


def check_claim(ledger: Ledger, owner: Owner, may_take: bool, url: str) -> None:
    """Refuses a claim by a directory that is not known to have everything that the archive has."""
    if ledger.owner is None or ledger.owner.data == owner.data or may_take:
        return
    raise Replaced(
        f"the archive {url} belongs to {ledger.owner} since epoch {ledger.epoch}, and not to this data directory",
        hint="daemon run --standby follows it, with a new --data; querator archive salvage lists what only this"
        " directory has; --archive off is for looking only; --claim takes the archive over",
    )


def check_continues(bucket: Bucket, ledger: Ledger, identity: Identity, missing: Iterable[str], is_heir: bool) -> None:
    """Blocking. Refuses a claim by a directory that lacks what the archive has: readers would take it for the last
    state. `missing` are the partitions of the archive whose files the directory lacks. `is_heir` says that another
    directory owned the archive before.
    """
    if is_heir:
        number, sha256 = _last_point(bucket, ledger)
        if (identity.number, identity.sha256) != (number, sha256):
            has = f"the archive up to {log_name(identity.number)}" if identity.number else "nothing of the archive"
            raise Conflict(
                f"this data directory does not continue the archive {bucket.url}: it has {has}, and the archive goes"
                f" on to {log_name(number)}",
                hint=_WAYS_ON,
            )
    for uuid in missing:
        raise Conflict(
            f"this data directory does not continue the archive {bucket.url}: it has no file of partition {uuid}",
            hint=_WAYS_ON,
        )


_WAYS_TO_OBJECTS: Final = (
    "mount the archive's disk or bring the objects back; if they are lost, daemon run --start-over makes this directory"
    " the last state of the archive"
)
_WAYS_ON: Final = (
    "check --data and [[storages]]; querator archive restore --to DIR makes a directory that continues the archive, and"
    " daemon run --standby follows it, with a new --data; --start-over makes this directory the last state of the"
    " archive"
)


def _last_point(bucket: Bucket, ledger: Ledger) -> tuple[int, str]:
    """The last log object to which a restore leads. An owner that dies in the middle of a cut leaves more."""
    number, sha256, is_point = ledger.number, ledger.sha256, ledger.is_point
    while not is_point and number > 1:
        number -= 1
        one = read_log(bucket, number)
        if one is None:
            break
        sha256, is_point = one.sha256, one.head.is_point
    return number, sha256


def check_end(bucket: Bucket, number: int, noted: int = 0) -> None:
    """Blocking. Called before a claim, with the last log object that was read. Raises Gap or ArchiveError if it is not
    the last, LostTail if there were later ones, and Conflict if it is gone, because the archive was emptied.

    The next number may have been pruned: then it could be created again, but it is not the end of the log. A reader
    gets there if it was away for longer than the archive keeps, or if a list does not show the last index.
    """
    is_later = check_gap(bucket, number, noted)
    if number and not is_later and not bucket.has(log_name(number)):
        raise Conflict(
            f"{log_name(number)} is missing from the archive {bucket.url}",
            hint="mount the archive's disk or bring its objects back; if they are lost, daemon run --claim --start-over"
            " makes this directory the last state of the archive",
        )


def claim(bucket: Bucket, ledger: Ledger, owner: Owner, now_us: int) -> bool:
    """Blocking. Writes the next object in the name of a new owner. False if another daemon has written it."""
    head = LogHead(
        number=ledger.number + 1,
        epoch=ledger.epoch + 1,
        owner=owner,
        kind=CLAIM,
        time=max(now_us, ledger.time),
        previous=ledger.sha256,
        is_point=ledger.is_point,
    )
    claimed, data = sealed_log(head, b"")
    if bucket.create(log_name(head.number), data) is not None:
        return False
    ledger.advance(claimed)
    return True


def check_log(bucket: Bucket, ledger: Ledger) -> None:
    """Blocking. Raises Lost if the archive lacks what its owner has written: its disk is not mounted, or it was
    emptied. Claims are never deleted, and the next object must follow the last one. Raises Replaced if another daemon
    goes on from what was there before: it takes lower numbers, so that the next one stays free.
    """
    for number in (ledger.claims[-1], ledger.number):
        if not bucket.has(log_name(number)):
            beat = heartbeat(bucket)
            if beat is not None and beat.epoch > ledger.epoch:
                raise Replaced(
                    f"the archive {bucket.url} has started over before {log_name(number)}: it belongs to {beat.owner}"
                    f" since epoch {beat.epoch}",
                    hint="querator archive salvage lists what only this directory has",
                )
            raise Lost(f"{log_name(number)} is missing: {_WAYS_TO_OBJECTS}")
