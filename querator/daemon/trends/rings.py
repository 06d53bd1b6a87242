"""The files of the history: rings of samples, one row per step of time.

    row of step N at (N mod rows) · 4096     │ slot 0 │ slot 1 │ … │ slot 84 │
                                               one queue's sample, 48 bytes

A file holds 85 queues in one resolution, so that writing a step is one write of one page per 85 queues, and reading a
queue is one small read per step. A sample contains its time and the tag of its queue, so that a reader recognises
samples of an older lap or an earlier queue in the same slot. All functions block. Nothing is synced, because only
charts need these files.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

ROW_BYTES: Final = 4_096
_LAYOUT: Final = struct.Struct("<10IQ")
_DEATHS: Final = struct.Struct("<2I28xI8x")
"""The same sample, of which only `at`, `tag` and `dead` are read."""
SLOTS_PER_FILE: Final = ROW_BYTES // _LAYOUT.size
_COUNT_MAX: Final = (1 << 32) - 1


class Resolution(NamedTuple):
    name: str
    step_seconds: int
    covered_seconds: int

    @property
    def rows(self) -> int:
        """The number of rows. There are more than are shown, because the next coarser resolution reads a step some time
        after its end.
        """
        return self.covered_seconds // self.step_seconds * 5 // 4


FINE: Final = Resolution("10s", 10, 900)
DAY: Final = Resolution("5m", 300, 86_400)
WEEK: Final = Resolution("30m", 1_800, 7 * 86_400)
RESOLUTIONS: Final = (FINE, DAY, WEEK)
COARSER: Final = ((FINE, DAY), (DAY, WEEK))
"""Pairs of resolutions: the second one is computed from the first."""


class Sample(NamedTuple):
    """One queue in one step. Counts are what happened within `seconds`; the other figures are the largest seen."""

    at: int
    """When the step begins, in seconds since 1970."""
    tag: int
    """Identifies the queue of the sample."""
    seconds: int
    ready: int
    leased: int
    scheduled: int
    produced: int
    leases: int
    completed: int
    dead: int
    oldest_age_us: int


def path_of(directory: Path, resolution: Resolution, file: int) -> Path:
    return directory / f"{resolution.name}-{file:04d}.ring"


def write(directory: Path, resolution: Resolution, at: int, samples: Mapping[int, Sample]) -> None:
    """Writes the samples of one step, by slot."""
    by_file: dict[int, bytearray] = {}
    for slot, sample in samples.items():
        file, place = divmod(slot, SLOTS_PER_FILE)
        row = by_file.get(file)
        if row is None:
            row = by_file[file] = bytearray(ROW_BYTES)
        _LAYOUT.pack_into(row, place * _LAYOUT.size, *[min(one, _COUNT_MAX) for one in sample[:-1]], sample[-1])
    for file, row in by_file.items():
        with _opened(path_of(directory, resolution, file), os.O_RDWR | os.O_CREAT) as descriptor:
            os.pwrite(descriptor, row, _offset(resolution, at))


def read(
    directory: Path, resolution: Resolution, slots: Mapping[int, int], since: int, until: int
) -> dict[int, list[Sample]]:
    """The samples of the steps from `since` to `until`, by slot. `slots` says which tag each slot must have."""
    found: dict[int, list[Sample]] = {slot: [] for slot in slots}
    files: dict[int, list[int]] = {}
    for slot in slots:
        files.setdefault(slot // SLOTS_PER_FILE, []).append(slot)
    steps = range(since // resolution.step_seconds * resolution.step_seconds, until, resolution.step_seconds)
    for file, wanted in files.items():
        for at, row in _rows(path_of(directory, resolution, file), resolution, steps):
            for slot in wanted:
                sample = Sample(*_LAYOUT.unpack_from(row, slot % SLOTS_PER_FILE * _LAYOUT.size))
                if sample.at == at and sample.tag == slots[slot]:
                    found[slot].append(sample)
    return found


def read_deaths(directory: Path, slots: Mapping[int, int], since: int, until: int) -> dict[int, list[tuple[int, int]]]:
    """When items died, and how many, by slot. It is quick for very many queues, because few have deaths."""
    found: dict[int, list[tuple[int, int]]] = {}
    steps = range(since // FINE.step_seconds * FINE.step_seconds, until, FINE.step_seconds)
    for file in {slot // SLOTS_PER_FILE for slot in slots}:
        for step, row in _rows(path_of(directory, FINE, file), FINE, steps):
            fields = _DEATHS.iter_unpack(row[: SLOTS_PER_FILE * _LAYOUT.size])
            for slot, (at, tag, dead) in enumerate(fields, file * SLOTS_PER_FILE):
                if dead and at == step and tag == slots.get(slot):
                    found.setdefault(slot, []).append((at, dead))
    return found


def coarsen(directory: Path, finer: Resolution, coarser: Resolution, file: int, at: int) -> None:
    """Writes one step of a coarser resolution, from the steps of the finer one. Repeating this changes nothing."""
    steps = range(at, at + coarser.step_seconds, finer.step_seconds)
    merged: dict[int, Sample] = {}
    for step, row in _rows(path_of(directory, finer, file), finer, steps):
        for place, fields in enumerate(_LAYOUT.iter_unpack(row[: SLOTS_PER_FILE * _LAYOUT.size])):
            sample = Sample(*fields)
            if sample.at != step or not sample.tag:
                continue
            before = merged.get(place)
            # A queue that was replaced within the step is left out: the later one begins its history.
            merged[place] = sample if before is None or before.tag != sample.tag else _merge(before, sample)
    write(
        directory,
        coarser,
        at,
        {file * SLOTS_PER_FILE + place: sample._replace(at=at) for place, sample in merged.items()},
    )


def _merge(one: Sample, other: Sample) -> Sample:
    return Sample(
        at=one.at,
        tag=one.tag,
        seconds=one.seconds + other.seconds,
        ready=max(one.ready, other.ready),
        leased=max(one.leased, other.leased),
        scheduled=max(one.scheduled, other.scheduled),
        produced=one.produced + other.produced,
        leases=one.leases + other.leases,
        completed=one.completed + other.completed,
        dead=one.dead + other.dead,
        oldest_age_us=max(one.oldest_age_us, other.oldest_age_us),
    )


def _offset(resolution: Resolution, at: int) -> int:
    return at // resolution.step_seconds % resolution.rows * ROW_BYTES


def _rows(path: Path, resolution: Resolution, steps: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    try:
        with _opened(path, os.O_RDONLY) as descriptor:
            for at in steps:
                row = os.pread(descriptor, ROW_BYTES, _offset(resolution, at))
                if len(row) == ROW_BYTES:
                    yield at, row
    except FileNotFoundError:
        return


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
