"""The bytes of an archive's objects: what was written is read, and anything else is refused."""

from __future__ import annotations

import pytest

from querator.daemon.archive.objects import (
    LOG,
    DamagedObject,
    JournalPart,
    LogHead,
    Owner,
    opened_log,
    sealed_log,
)

OWNER = Owner("data", "host", 7, "1.0")


def head(number: int = 1, **fields: object) -> LogHead:
    return LogHead(number=number, epoch=1, owner=OWNER, kind=LOG, time=10, previous="", **fields)  # type: ignore[arg-type]


def test_an_object_is_read_as_it_was_written() -> None:
    parts = [JournalPart("default", 3, 40, 4), JournalPart("other", 1, 40, 2)]
    written, data = sealed_log(head(journal=parts, catalog_bytes=7), b"aaaabbcatalog")
    read = opened_log(data, 1)
    assert read == written
    assert read.parts() == [(parts[0], b"aaaa"), (parts[1], b"bb")]
    assert read.catalog == b"catalog"


def test_any_changed_byte_is_noticed() -> None:
    _, data = sealed_log(head(), b"some records" * 20)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(DamagedObject):
            opened_log(bytes(changed), 1)


def test_an_object_that_is_cut_off_is_noticed() -> None:
    _, data = sealed_log(head(), b"some records" * 20)
    for size in range(len(data)):
        with pytest.raises(DamagedObject):
            opened_log(data[:size], 1)


def test_an_object_under_another_number_is_refused() -> None:
    _, data = sealed_log(head(4), b"")
    with pytest.raises(DamagedObject, match="says that it is number 4"):
        opened_log(data, 5)
