"""The journal alone: whatever happens to its bytes, it never loses an acknowledged record without reporting it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from querator import limits
from querator.daemon.store.base import StorageError
from querator.daemon.store.journal.history import History
from querator.daemon.store.journal.records import BATCH, SEGMENT_HEADER_BYTES, decode_segment_header, read_records
from querator.daemon.store.journal.segments import Journal, NewRecord
from querator.daemon.store.journal.syscalls import fdatasync_holding, pwrite_holding

A, B, C = (bytes([letter]) * 16 for letter in b"abc")


@pytest.fixture(autouse=True)
def small_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are small, so that tests can damage every byte, and work on closed segments is never postponed."""
    monkeypatch.setattr(limits, "SEGMENT_BYTES_MAX", 700)
    monkeypatch.setattr(limits, "SEGMENTS_WAITING_MAX", 0)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal")
    journal.recover()
    yield journal
    journal.close()


def append(journal: Journal, *records: tuple[bytes, int, bytes]) -> None:
    entries = [NewRecord(BATCH, number, partition, payload) for partition, number, payload in records]
    journal.append(entries)


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.seg"))


def spares(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.spare"))


def make_spares(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two spare files full of old records, with the partitions and the numbers of records that will be written next."""
    monkeypatch.setattr(limits, "SEGMENT_BYTES_MAX", 700)
    monkeypatch.setattr(limits, "SPARES_AT_REST_MAX", 2)
    monkeypatch.setattr(limits, "SPARES_ROOM_BYTES_MIN", 0)
    for number in range(1, 13):
        append(journal, (A, number, b"old" * number), (B, number, b"\x91\x00"))
    journal.append_closed({A: 12, B: 12})
    journal.roll()
    journal.books.trim()


def abandon(journal: Journal) -> None:
    """Releases the lock without closing the journal, as if the process had been killed."""
    os.close(journal._lock_fd)
    journal._lock_fd = -1


def read(directory: Path) -> tuple[Journal, History]:
    journal = Journal(directory)
    return journal, journal.recover()


def judge(directory: Path, applied: int = 0) -> dict[bytes, list[tuple[int, bytes]] | None]:
    """The records of each partition, or None if the partition is refused."""
    journal, history = read(directory)
    abandon(journal)
    return {
        partition: None if history.missing(partition, applied) else contents(journal, history, partition, applied)
        for partition in (A, B, C)
    }


def contents(journal: Journal, history: History, partition: bytes, applied: int = 0) -> list[tuple[int, bytes]]:
    return list(journal.payloads(history.replay(partition, applied)))


class TestAppending:
    def test_what_is_appended_is_read_back_per_partition(self, journal: Journal, tmp_path: Path) -> None:
        append(journal, (A, 1, b"one"), (B, 1, b"uno"))
        append(journal, (A, 2, b""))
        abandon(journal)
        again, history = read(tmp_path / "journal")
        assert contents(again, history, A) == [(1, b"one"), (2, b"")]
        assert contents(again, history, A, applied=1) == [(2, b"")]
        assert contents(again, history, B) == [(1, b"uno")]
        assert history.missing(A, 0) == history.missing(B, 0) == history.missing(C, 0) == ""

    def test_an_append_is_one_write_and_one_sync(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        append(journal, (A, 1, b"begins the segment"))
        calls: list[str] = []
        for name in ("pwrite", "fdatasync", "fsync"):
            original: Callable[..., object] = getattr(os, name)
            monkeypatch.setattr(
                os, name, lambda *args, name=name, original=original: (calls.append(name), original(*args))[1]
            )
        append(journal, *((partition, 2, b"x" * 100) for partition in (A, B, C)))
        assert calls == ["pwrite", "fdatasync"]

    def test_two_processes_cannot_share_a_journal(self, journal: Journal, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="in use"):
            Journal(tmp_path / "journal")

    def test_nobody_else_can_read_it(self, journal: Journal, tmp_path: Path) -> None:
        append(journal, (A, 1, b"secret"))
        assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "journal").rglob("*"))

    def test_a_full_segment_is_closed(self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "SEGMENT_BYTES_MAX", 400)
        for number in range(1, 11):
            append(journal, (A, number, b"x" * 90))
        assert len(segments(tmp_path / "journal")) == 5
        abandon(journal)
        again, history = read(tmp_path / "journal")
        assert [number for number, _ in contents(again, history, A)] == list(range(1, 11))

    def test_a_start_begins_a_new_segment(self, journal: Journal, tmp_path: Path) -> None:
        append(journal, (A, 1, b"one"))
        abandon(journal)
        again, _ = read(tmp_path / "journal")
        append(again, (A, 2, b"two"))
        assert len(segments(tmp_path / "journal")) == 2


class TestOnTheLoop:
    """Writes on the loop use calls that keep the interpreter's lock."""

    def test_what_is_appended_is_read_back(self, journal: Journal, tmp_path: Path) -> None:
        journal.append([NewRecord(BATCH, 1, A, b"o\0ne")], on_loop=True)
        append(journal, (A, 2, b"two"))
        abandon(journal)
        again, history = read(tmp_path / "journal")
        assert contents(again, history, A) == [(1, b"o\0ne"), (2, b"two")]

    def test_failures_are_reported(self, tmp_path: Path) -> None:
        with (tmp_path / "file").open("wb") as file:
            closed = file.fileno()
            assert pwrite_holding(closed, b"\0abc", 1) == 4
            fdatasync_holding(closed)
        assert (tmp_path / "file").read_bytes() == b"\0\0abc"
        for call in (lambda: pwrite_holding(closed, b"x", 0), lambda: fdatasync_holding(closed)):
            with pytest.raises(OSError, match="Bad file descriptor") as raised:
                call()
            assert raised.value.errno == errno.EBADF


class TestTrimming:
    def test_a_segment_that_somebody_deleted_does_not_keep_others_from_going(
        self, journal: Journal, tmp_path: Path
    ) -> None:
        for number in (1, 2):
            append(journal, (A, number, b"a"))
            journal.roll()
        segments(tmp_path / "journal")[0].unlink()
        journal.books.applied(A, 2)
        assert segments(tmp_path / "journal") == []

    def test_a_segment_goes_when_everybody_has_applied_it(self, journal: Journal, tmp_path: Path) -> None:
        append(journal, (A, 1, b"one"), (B, 1, b"uno"))
        journal.roll()
        assert journal.books.lagging() == {A, B}
        journal.books.applied(A, 1)
        assert len(segments(tmp_path / "journal")) == 1
        assert journal.books.lagging() == {B}
        journal.books.applied(B, 1)
        assert segments(tmp_path / "journal") == []

    def test_a_few_segments_may_wait(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "SEGMENTS_WAITING_MAX", 2)
        for number, partition in enumerate((A, A, B, B), 1):
            append(journal, (partition, number, b"x"))
            journal.roll()
            assert journal.books.lagging() == ({A} if number > 2 else set())

    def test_one_that_somebody_deleted_does_not_stand_in_the_way(self, journal: Journal, tmp_path: Path) -> None:
        append(journal, (A, 1, b"one"))
        journal.roll()
        append(journal, (A, 2, b"two"))
        journal.roll()
        segments(tmp_path / "journal")[0].unlink()
        journal.books.applied(A, 2)
        assert segments(tmp_path / "journal") == []

    def test_the_segment_in_use_stays(self, journal: Journal, tmp_path: Path) -> None:
        append(journal, (A, 1, b"one"))
        journal.books.applied(A, 1)
        assert len(segments(tmp_path / "journal")) == 1
        assert journal.books.lagging() == set()
        journal.roll()
        assert segments(tmp_path / "journal") == []
        append(journal, (A, 2, b"two"))
        assert len(segments(tmp_path / "journal")) == 1

    def test_who_applied_only_some_of_it_keeps_it(self, journal: Journal, tmp_path: Path) -> None:
        append(journal, (A, 1, b"one"), (A, 2, b"two"))
        journal.roll()
        journal.books.applied(A, 1)
        assert len(segments(tmp_path / "journal")) == 1

    def test_records_that_wait_are_carried_along(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "SEGMENTS_KEPT_MAX", 2)
        for number in range(1, 6):
            append(journal, (A, number, b"a" * number), (B, number, b"b"))
            journal.roll()
            journal.books.applied(B, number)
        assert len(segments(tmp_path / "journal")) == 2
        assert [number for number, _ in contents(journal, journal.books.history(), A)] == [1, 2, 3, 4, 5]
        abandon(journal)
        again, history = read(tmp_path / "journal")
        assert history.missing(A, 0) == ""
        assert contents(again, history, A) == [(number, b"a" * number) for number in range(1, 6)]
        again.books.applied(A, 5)
        assert list((tmp_path / "journal").glob("*.kept")) == []
        again.books.applied(B, 5)
        assert segments(tmp_path / "journal") == []

    def test_a_crash_before_a_carried_segment_is_deleted_changes_nothing(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append(journal, (A, 1, b"one"), (A, 2, b"two"))
        journal.roll()
        copy = shutil.copy(segments(tmp_path / "journal")[0], tmp_path / "copy")
        monkeypatch.setattr(limits, "SEGMENTS_KEPT_MAX", 0)
        journal.books.trim()
        assert segments(tmp_path / "journal") == []
        shutil.move(copy, tmp_path / "journal" / "000000000001.seg")
        abandon(journal)
        again, history = read(tmp_path / "journal")
        assert contents(again, history, A) == [(1, b"one"), (2, b"two")]

    def test_a_closed_partition_starts_over(self, journal: Journal, tmp_path: Path) -> None:
        """An operator may replace the file of a closed partition with an older one."""
        append(journal, (A, 7, b"seven"), (B, 1, b"uno"))
        journal.append_closed({A: 7})
        append(journal, (A, 3, b"three"))
        abandon(journal)
        again, history = read(tmp_path / "journal")
        assert contents(again, history, A, applied=2) == [(3, b"three")]
        assert history.missing(A, 2) == ""
        assert history.missing(B, 0) == ""

    def test_closing_writes_nothing_when_there_is_nothing_to_settle(self, journal: Journal, tmp_path: Path) -> None:
        journal.append_closed({A: 7})
        assert segments(tmp_path / "journal") == []


class Meanwhile:
    """A lock that another thread acquires first, to do its work."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._works = [work]

    def __enter__(self) -> None:
        while self._works:
            self._works.pop()()

    def __exit__(self, *_: object) -> None:
        pass


class TestTrimmingMeanwhile:
    """Several threads apply partitions, and each of them trims the journal."""

    def test_what_is_kept_while_less_is_applied_stays(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "SEGMENTS_KEPT_MAX", 1)
        for number in (1, 2):
            append(journal, (A, number, b"a"))
            journal.roll()
        assert len(list((tmp_path / "journal").glob("*.kept"))) == len(segments(tmp_path / "journal")) == 1
        monkeypatch.setattr(limits, "SEGMENTS_KEPT_MAX", 0)
        monkeypatch.setattr(journal.books, "_trimming", Meanwhile(journal.books.trim))
        journal.books.applied(A, 1)
        assert segments(tmp_path / "journal") == []
        abandon(journal)
        again, history = read(tmp_path / "journal")
        assert contents(again, history, A, applied=1) == [(2, b"a")]


class TestMissing:
    def test_a_missing_record_is_noticed(self, journal: Journal, tmp_path: Path) -> None:
        append(journal, (A, 1, b"one"), (B, 1, b"uno"), (A, 3, b"three"))
        abandon(journal)
        _, history = read(tmp_path / "journal")
        assert "records 2 to 2 are missing" in history.missing(A, 0)
        assert history.missing(A, 2) == ""
        assert history.missing(B, 0) == ""

    def test_a_missing_segment_is_noticed(self, journal: Journal, tmp_path: Path) -> None:
        for number in (1, 2, 3):
            append(journal, (A, number, b"a"))
            if number != 2:
                append(journal, (B, number // 2 + 1, b"b"))
            if number == 1:
                append(journal, (C, 1, b"c"))
            journal.roll()
        segments(tmp_path / "journal")[1].unlink()
        abandon(journal)
        _, history = read(tmp_path / "journal")
        assert "records 2 to 2 are missing" in history.missing(A, 0)
        assert history.missing(B, 0) == ""  # its records continue after the gap without a missing number
        assert "segments 2 to 2 are missing" in history.missing(C, 0)  # one of them may have been in there


class TestDamage:
    """Each byte of a journal is cut off or flipped. The records are then read back exactly, or they are refused."""

    RECORDS = (
        ((A, 1, b"\x91\x00"), (B, 1, b"")),
        ((A, 2, b"a" * 9),),
        ((B, 2, b"\x00\x00\x00"), (A, 3, b"\x00")),
        ((A, 4, b"tail"), (B, 3, b"\x00" * 5)),
    )
    """Appends. The second one ends the first segment, and the third one begins the next. Some end with zeros."""

    @pytest.fixture(params=["in new files", "in files written over"])
    def pristine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
        journal = Journal(tmp_path / "pristine")
        journal.recover()
        if request.param == "in files written over":
            make_spares(journal, monkeypatch)
            assert len(spares(tmp_path / "pristine")) == 2
        for at, append_ in enumerate(self.RECORDS):
            append(journal, *append_)
            if at == 1:
                journal.roll()
        abandon(journal)
        assert spares(tmp_path / "pristine") == []
        return tmp_path / "pristine"

    def everything(self, partition: bytes) -> list[tuple[int, bytes]]:
        return [record[1:] for appended in self.RECORDS for record in appended if record[0] == partition]

    def end(self, path: Path) -> int:
        """The position at which the records of a segment end."""
        return read_records(path.read_bytes(), int(path.stem)).end

    def changed(self, pristine: Path, name: str, data: bytes) -> Path:
        directory = pristine.parent / "changed"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(pristine, directory)
        (directory / name).write_bytes(data)
        return directory

    def test_nothing_is_wrong_with_it(self, pristine: Path) -> None:
        assert judge(self.changed(pristine, "LOCK", b"")) == {A: self.everything(A), B: self.everything(B), C: []}

    @pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
    def test_every_byte_flipped(self, pristine: Path, flip: int) -> None:
        refused = 0
        for path in segments(pristine):
            original = path.read_bytes()
            for at in range(len(original)):
                data = bytearray(original)
                data[at] ^= flip
                judged = judge(self.changed(pristine, path.name, bytes(data)))
                for partition in (A, B):
                    assert judged[partition] in (None, self.everything(partition)), (path.name, at)
                    refused += judged[partition] is None
        assert refused

    def test_every_byte_zeroed(self, pristine: Path) -> None:
        for path in segments(pristine):
            original = path.read_bytes()
            for at in range(len(original)):
                data = bytearray(original)
                data[at] = 0
                judged = judge(self.changed(pristine, path.name, bytes(data)))
                for partition in (A, B):
                    assert judged[partition] in (None, self.everything(partition)), (path.name, at)

    def test_a_closed_segment_cut_off_anywhere(self, pristine: Path) -> None:
        path = segments(pristine)[0]
        original = path.read_bytes()
        for at in range(self.end(path)):
            judged = judge(self.changed(pristine, path.name, original[:at]))
            for partition in (A, B):
                assert judged[partition] in (None, self.everything(partition)), at
            assert None in judged.values()

    def test_the_last_segment_cut_off_anywhere(self, pristine: Path) -> None:
        """A crash never cuts a segment off, because the file has its full size before it gets records."""
        path = segments(pristine)[-1]
        original = path.read_bytes()
        for at in range(len(original)):
            assert set(judge(self.changed(pristine, path.name, original[:at])).values()) == {None}, at

    def test_zeros_in_place_of_what_was_acknowledged(self, pristine: Path) -> None:
        journal = Journal(pristine)
        journal.recover()
        append(journal, (A, 5, b"five"))
        journal.note_acknowledged()
        abandon(journal)
        path = segments(pristine)[-1]
        original, end = path.read_bytes(), self.end(path)
        for at in range(SEGMENT_HEADER_BYTES, end):
            assert judge(self.changed(pristine, path.name, original[:at] + bytes(len(original) - at)))[A] is None, at

    def test_a_last_segment_that_is_none_is_refused_and_kept(self, pristine: Path) -> None:
        """A crash never replaces the whole content of a segment. The file may come from another version."""
        path = segments(pristine)[-1]
        other = b"\x5a" * len(path.read_bytes())
        directory = self.changed(pristine, path.name, other)
        assert set(judge(directory).values()) == {None}
        assert (directory / path.name).read_bytes() == other

    def test_what_was_seen_to_is_not_missed_again(self, pristine: Path) -> None:
        directory = self.changed(pristine, segments(pristine)[-1].name, b"")
        journal, history = read(directory)
        assert history.wounds
        journal.seal()
        abandon(journal)
        for _ in range(2):
            journal, history = read(directory)
            assert history.wounds == []
            append(journal, (A, 3, b"again"))
            abandon(journal)

    def test_damage_that_can_be_told_concerns_one_partition(self, pristine: Path) -> None:
        path = segments(pristine)[-1]
        data = path.read_bytes().replace(b"tail", b"tale")
        judged = judge(self.changed(pristine, path.name, data))
        assert judged == {A: None, B: self.everything(B), C: []}

    def test_damage_before_what_the_file_has_concerns_nobody(self, pristine: Path) -> None:
        path = segments(pristine)[0]
        data = path.read_bytes().replace(b"aaaaaaaaa", b"aaaabaaaa")
        journal, history = read(self.changed(pristine, path.name, data))
        assert history.missing(A, 1)
        assert history.missing(A, 2) == ""
        assert contents(journal, history, A, applied=2) == self.everything(A)[2:]

    def test_a_kept_file_cut_off_or_flipped_anywhere(
        self, tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append(journal, (A, 1, b"one"), (B, 1, b"uno"), (A, 2, b"two"))
        journal.roll()
        journal.books.applied(B, 1)
        monkeypatch.setattr(limits, "SEGMENTS_KEPT_MAX", 0)
        journal.books.trim()
        abandon(journal)
        (kept,) = (tmp_path / "journal").glob("*.kept")
        original = kept.read_bytes()
        for at in range(len(original)):
            data = bytearray(original)
            data[at] ^= 0xFF
            for changed in (bytes(data), original[:at]):
                directory = self.changed(tmp_path / "journal", kept.name, changed)
                assert judge(directory)[A] in (None, [(1, b"one"), (2, b"two")]), at
                assert judge(directory, applied=1)[B] == []

    def test_a_kept_file_that_is_gone(self, tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        append(journal, (A, 1, b"one"), (A, 2, b"two"))
        journal.roll()
        monkeypatch.setattr(limits, "SEGMENTS_KEPT_MAX", 0)
        journal.books.trim()
        abandon(journal)
        (kept,) = (tmp_path / "journal").glob("*.kept")
        kept.unlink()
        assert judge(tmp_path / "journal")[A] is None


class TestTornAppends:
    """The power fails during an append. Each sector of the append is either written or unchanged."""

    EARLIER = ((A, 1, b"first"), (B, 1, b"uno"))
    TORN = ((A, 2, b"a" * 700), (B, 2, b"b" * 40), (A, 3, b"\0" * 600), (C, 1, b"c" * 500), (B, 3, b"last"))
    LATER = (A, 4, b"later" * 200)

    @pytest.fixture(params=["in new files", "in files written over"])
    def directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
        monkeypatch.setattr(limits, "SEGMENT_BYTES_MAX", 4096)
        monkeypatch.setattr(limits, "SPARES_AT_REST_MAX", 1 if request.param == "in files written over" else 0)
        monkeypatch.setattr(limits, "SPARES_ROOM_BYTES_MIN", 0)
        journal = Journal(tmp_path / "torn")
        journal.recover()
        for number in range(1, 40):
            append(journal, (A, number, b"old" * number))
            if len(segments(tmp_path / "torn")) > 1:
                break
        journal.append_closed({A: number})
        journal.roll()
        journal.seal()
        abandon(journal)
        return tmp_path / "torn"

    def torn(self, directory: Path, *records: tuple[bytes, int, bytes], noted: bool = False) -> Iterator[bool]:
        """Tears the append TORN in every possible way, one after another. Yields whether a sector is missing. `records`
        are appended after it."""
        journal = Journal(directory)
        journal.recover()
        append(journal, *self.EARLIER)
        (path,) = segments(directory)
        old = path.read_bytes()
        append(journal, *self.TORN)
        new = path.read_bytes()
        for record in records:
            append(journal, record)
        if noted:
            journal.note_acknowledged()
        abandon(journal)
        whole = path.read_bytes()
        changed = [at for at in range(0, len(new), 512) if old[at : at + 512] != new[at : at + 512]]
        assert len(changed) >= 4
        for chosen in range(1 << len(changed)):
            data = bytearray(whole)
            for bit, at in enumerate(changed):
                if chosen >> bit & 1:
                    data[at : at + 512] = old[at : at + 512]
            path.write_bytes(bytes(data))
            yield chosen > 0

    def sent(self, partition: bytes, *records: tuple[bytes, int, bytes]) -> list[tuple[int, bytes]]:
        return [record[1:] for record in records if record[0] == partition]

    def test_a_torn_last_append_is_cut_off(self, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
        for is_torn in self.torn(directory):
            judged = judge(directory)
            for partition in (A, B, C):
                got, everything = judged[partition], self.sent(partition, *self.EARLIER, *self.TORN)
                assert got is not None
                assert len(got) >= len(self.sent(partition, *self.EARLIER))
                assert got == everything[: len(got) if is_torn else None]
        assert "never acknowledged" in caplog.text

    def test_the_first_append_of_a_segment_is_cut_off_too(self, directory: Path) -> None:
        journal = Journal(directory)
        journal.recover()
        old = journal._begin(100).path.read_bytes()
        append(journal, *self.TORN)
        abandon(journal)
        (path,) = segments(directory)
        new = path.read_bytes()
        for at in range(0, 2048, 512):
            path.write_bytes(new[:at] + old[at : at + 512] + new[at + 512 :])
            assert None not in judge(directory, applied=1).values()

    @pytest.mark.parametrize("proof", ["a later append", "HEAD"])
    def test_an_acknowledged_append_is_never_cut_off(self, directory: Path, proof: str) -> None:
        later = [self.LATER] if proof == "a later append" else []
        for is_torn in self.torn(directory, *later, noted=proof == "HEAD"):
            judged = judge(directory)
            for partition in (A, B, C):
                everything = self.sent(partition, *self.EARLIER, *self.TORN, *later)
                assert judged[partition] in (None, everything)
            assert is_torn == (None in judged.values())

    def test_what_follows_a_torn_append_is_read_back(self, directory: Path) -> None:
        for _ in self.torn(directory):
            pass  # in the last way, no sector is written
        for number in (2, 3):
            journal, history = read(directory)
            assert [found for found, _ in contents(journal, history, A)] == list(range(1, number))
            append(journal, (A, number, b"again"))
            abandon(journal)

    def test_a_flipped_bit_is_no_torn_append(self, tmp_path: Path, journal: Journal) -> None:
        """It is damage even if nothing proves that the append was acknowledged. A crash leaves whole sectors, and in a
        new file an unwritten sector is zero."""
        records = [(A, 1, b"a" * 700), (B, 1, b"b" * 40), (A, 2, b"z" * 600), (B, 2, b"last")]
        append(journal, *records)
        abandon(journal)
        (path,) = segments(tmp_path / "journal")
        whole = path.read_bytes()
        for at in range(SEGMENT_HEADER_BYTES, read_records(whole, 1).end):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            judged = judge(tmp_path / "journal")
            assert all(judged[partition] in (None, self.sent(partition, *records)) for partition in (A, B)), at


class TestSpares:
    def test_where_numbers_may_begin_anew_nothing_is_written_over(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise old records in a spare could look like records of a segment with the same number."""
        make_spares(journal, monkeypatch)
        abandon(journal)
        for path in (tmp_path / "journal" / "HEAD", tmp_path / "journal.head"):
            path.unlink()
        again, _ = read(tmp_path / "journal")
        assert spares(tmp_path / "journal") == []
        abandon(again)

    def test_a_crash_may_leave_a_segment_its_old_name_when_it_is_written_over_already(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The crash undoes both renames: from the old segment to a spare, and from the spare to the new segment."""
        make_spares(journal, monkeypatch)
        heads = {path: path.read_bytes() for path in (tmp_path / "journal" / "HEAD", tmp_path / "journal.head")}
        before = decode_segment_header(spares(tmp_path / "journal")[-1].read_bytes())
        append(journal, (A, 13, b"not durable"))
        abandon(journal)
        (path,) = segments(tmp_path / "journal")
        assert before is not None
        path.rename(path.with_name(f"{before.number:012d}.seg"))
        for head, data in heads.items():
            head.write_bytes(data)
        again, history = read(tmp_path / "journal")
        assert (history.missing(A, 12), history.missing(C, 0)) == ("", "")
        assert segments(tmp_path / "journal") == []
        abandon(again)

    def test_what_is_done_with_is_written_over(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_spares(journal, monkeypatch)
        inodes = {path.stat().st_ino for path in spares(tmp_path / "journal")}
        append(journal, (A, 1, b"one"))
        (segment,) = segments(tmp_path / "journal")
        assert segment.stat().st_ino in inodes
        assert segment.stat().st_size > 350
        abandon(journal)
        again, history = read(tmp_path / "journal")
        assert contents(again, history, A) == [(1, b"one")]
        assert history.missing(B, 0) == ""

    def test_one_that_was_never_a_segment_is_made_when_there_is_much_to_do(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "SEGMENT_BYTES_MAX", 480)
        monkeypatch.setattr(limits, "SPARE_AFTER_BYTES", 100)
        monkeypatch.setattr(limits, "SPARES_ROOM_BYTES_MIN", 0)
        assert not journal.wants_spare
        append(journal, (A, 1, b"one" * 50))
        assert journal.wants_spare
        journal.make_spare()
        assert not journal.wants_spare
        (spare,) = spares(tmp_path / "journal")
        assert spare.read_bytes() == bytes(480)
        assert spare.stat().st_mode & 0o077 == 0
        append(journal, (A, 2, b"two" * 50))
        append(journal, (A, 3, b"three" * 50))
        assert spares(tmp_path / "journal") == []
        abandon(journal)
        again, history = read(tmp_path / "journal")
        assert [number for number, _ in contents(again, history, A)] == [1, 2, 3]

    def test_a_large_append_that_the_system_takes_in_part_is_finished(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        payload = os.urandom(limits.INLINE_WRITE_BYTES_MAX)
        monkeypatch.setattr(os, "pwritev", lambda fd, pieces, at: os.pwrite(fd, b"".join(pieces)[:1_000], at))
        append(journal, (A, 1, payload), (A, 2, b"two"))
        append(journal, (A, 3, b"three"))
        abandon(journal)
        again, history = read(tmp_path / "journal")
        assert contents(again, history, A) == [(1, payload), (2, b"two"), (3, b"three")]

    def test_there_is_none_on_a_disk_that_is_nearly_full(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "SEGMENT_BYTES_MAX", 480)
        monkeypatch.setattr(limits, "SPARES_ROOM_BYTES_MIN", 1 << 62)
        append(journal, (A, 1, b"x" * 400))
        journal.make_spare()
        journal.books.applied(A, 1)
        journal.roll()
        assert spares(tmp_path / "journal") == segments(tmp_path / "journal") == []

    def test_a_full_disk_gets_their_room(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_spares(journal, monkeypatch)

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        append(journal, (A, 1, b"one"))
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            with pytest.raises(StorageError, match="No space left"):
                append(journal, (A, 2, b"two"))
        assert spares(tmp_path / "journal") == []
        append(journal, (A, 2, b"two"))
        assert contents(journal, journal.books.history(), A) == [(1, b"one"), (2, b"two")]

    def test_a_record_that_was_written_over_is_not_taken_for_another(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A reader still uses a segment that the journal has overwritten."""
        make_spares(journal, monkeypatch)
        append(journal, (A, 1, b"x" * 400), (A, 2, b"two"))
        reading = journal.payloads(journal.books.history().replay(A, 0))
        assert next(reading) == (1, b"x" * 400)
        monkeypatch.setattr(limits, "SEGMENTS_KEPT_MAX", 0)
        journal.roll()
        for number in range(3, 9):
            append(journal, (A, number, b"y" * 400))
        with pytest.raises(FileNotFoundError):
            list(reading)
        assert [number for number, _ in contents(journal, journal.books.history(), A)] == list(range(1, 9))

    def test_what_has_the_numbers_that_come_next_is_not_used(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without its head, or with a head from a backup, a journal uses earlier numbers again. Then old records of a
        segment with such a number, and its notes about closed partitions, would look current."""
        make_spares(journal, monkeypatch)
        abandon(journal)
        for path in (tmp_path / "journal" / "HEAD", tmp_path / "journal.head"):
            path.unlink()
        again, _ = read(tmp_path / "journal")
        assert spares(tmp_path / "journal") == []
        append(again, (A, 13, b"one more"))
        assert contents(again, again.books.history(), A) == [(13, b"one more")]

    @pytest.mark.parametrize("renamed", [False, True])
    def test_a_crash_before_the_first_record_leaves_an_empty_segment(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: bool
    ) -> None:
        make_spares(journal, monkeypatch)

        class Killed(Exception):
            pass

        def killed(*_: object) -> None:
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr("querator.daemon.store.journal.segments.sync_directory" if renamed else "os.fsync", killed)
            with pytest.raises(Killed):
                append(journal, (A, 13, b"lost"))
        abandon(journal)
        again, history = read(tmp_path / "journal")
        assert history.missing(A, 0) == history.missing(B, 0) == ""
        assert contents(again, history, A) == []
        append(again, (A, 13, b"once more"))
        assert contents(again, again.books.history(), A) == [(13, b"once more")]


class TestHead:
    @pytest.mark.parametrize("gone", [["HEAD"], ["../journal.head"], ["HEAD", "../journal.head"]])
    def test_one_that_is_deleted_while_in_use_is_written_again(
        self, journal: Journal, tmp_path: Path, gone: list[str]
    ) -> None:
        append(journal, (A, 1, b"one"))
        for name in gone:
            (tmp_path / "journal" / name).unlink()
        journal.note_acknowledged()
        for name in gone:
            assert (tmp_path / "journal" / name).exists()
        abandon(journal)
        segments(tmp_path / "journal")[0].unlink()
        assert judge(tmp_path / "journal")[A] is None

    def test_nothing_is_missed_where_nothing_was_needed(self, journal: Journal, tmp_path: Path) -> None:
        append(journal, (A, 1, b"one"))
        journal.books.applied(A, 1)
        journal.roll()
        abandon(journal)
        shutil.rmtree(tmp_path / "journal")
        assert judge(tmp_path / "journal", applied=1) == {A: [], B: [], C: []}


class TestFailures:
    def test_a_failed_sync_refuses_everything_until_reopened(
        self, journal: Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(_: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        append(journal, (A, 1, b"one"))
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", failing)
            with pytest.raises(StorageError, match="Input/output error"):
                append(journal, (A, 2, b"two"))
        with pytest.raises(StorageError, match="reopened"):
            append(journal, (A, 2, b"two"))
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", failing)
            with pytest.raises(StorageError, match="Input/output error"):
                journal.reopen()
        journal.reopen()
        history = journal.recover()
        assert contents(journal, history, A) == [(1, b"one")]
        append(journal, (A, 2, b"two, the second time"))
        assert contents(journal, journal.books.history(), A) == [(1, b"one"), (2, b"two, the second time")]

    @pytest.mark.parametrize("on_loop", [False, True])
    def test_a_full_disk_loses_nothing_and_passes(self, tmp_path: Path, on_loop: bool) -> None:
        """A limit on file sizes causes the same error as a full disk, at the same place."""
        script = f"""
            import resource
            from pathlib import Path
            from querator.daemon.store.base import StorageError
            from querator.daemon.store.journal.segments import Journal, NewRecord
            from querator.daemon.store.journal.records import BATCH

            journal = Journal(Path({str(tmp_path / "journal")!r}))
            journal.recover()
            def append(number, payload):
                journal.append([NewRecord(BATCH, number, b"a" * 16, payload)], {on_loop})
            append(1, b"one")
            resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, resource.RLIM_INFINITY))
            append(2, b"two")
            for _ in range(2):
                try:
                    append(3, b"x" * 6_000_000)
                except StorageError as error:
                    print(error)
            append(3, b"three")
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
            for _ in range(2):
                try:
                    append(4, b"four")
                except StorageError as error:
                    print(error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            append(4, b"4" * 6_000_000)
            append(5, b"five")
        """
        lines = "\n".join(line.removeprefix(" " * 12) for line in script.splitlines())
        ran = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
        assert ran.stdout.count("File too large") == 4
        journal, history = read(tmp_path / "journal")
        assert history.missing(A, 0) == ""
        assert contents(journal, history, A) == [
            (1, b"one"),
            (2, b"two"),
            (3, b"three"),
            (4, b"4" * 6_000_000),
            (5, b"five"),
        ]

    def test_no_space_for_a_new_segment_passes_too(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        append(journal, (A, 1, b"one"))
        journal.roll()
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            with pytest.raises(StorageError, match="No space left"):
                append(journal, (A, 2, b"two"))
        append(journal, (A, 2, b"two"))
        abandon(journal)
        again, history = read(tmp_path / "journal")
        assert contents(again, history, A) == [(1, b"one"), (2, b"two")]


class TestProbes:
    def full(self, *_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def test_a_shortage_is_told_until_there_is_room_again(
        self, journal: Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append(journal, (A, 1, b"one"))
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", self.full)
            with pytest.raises(StorageError):
                append(journal, (A, 2, b"two"))
            assert "No space left on device" in journal.shortage
            journal.probe()
            assert "No space left on device" in journal.shortage
        journal.probe()
        assert journal.shortage == ""

    def test_a_write_ends_a_shortage(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", self.full)
            journal.probe()
        assert journal.shortage
        append(journal, (A, 1, b"one"))
        assert journal.shortage == ""

    @pytest.mark.parametrize("with_spares", [False, True])
    def test_a_probe_leaves_records_as_they_are(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_spares: bool
    ) -> None:
        first = 13 if with_spares else 1
        if with_spares:
            make_spares(journal, monkeypatch)
        journal.probe()
        append(journal, (A, first, b"one"))
        journal.probe()
        append(journal, (A, first + 1, b"two"), (B, first, b"other"))
        journal.probe()
        abandon(journal)
        again, history = read(tmp_path / "journal")
        assert not history.wounds
        assert contents(again, history, A) == [(first, b"one"), (first + 1, b"two")]
        assert contents(again, history, B) == [(first, b"other")]
        again.close()
