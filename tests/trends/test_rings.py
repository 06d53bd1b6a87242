"""Samples on disk: the last lap of a queue is read back, older laps and deleted queues are not, and steps add up."""

from __future__ import annotations

from pathlib import Path

from querator.daemon.trends import rings
from querator.daemon.trends.rings import DAY, FINE, ROW_BYTES, SLOTS_PER_FILE, Sample

START = 1_800_000_000


def sample(at: int, tag: int = 7, **figures: int) -> Sample:
    nothing = dict.fromkeys(Sample._fields, 0) | {"seconds": 10}
    return Sample(**nothing | {"at": at, "tag": tag} | figures)


def write(directory: Path, *samples: Sample, slot: int = 0) -> None:
    for one in samples:
        rings.write(directory, FINE, one.at, {slot: one})


def read(directory: Path, slot: int = 0, tag: int = 7, seconds: int = FINE.covered_seconds) -> list[Sample]:
    return rings.read(directory, FINE, {slot: tag}, START - seconds, START + 10)[slot]


def test_samples_come_back_in_order(tmp_path: Path) -> None:
    written = [sample(START - 10 * steps, ready=steps, oldest_age_us=1 << 40) for steps in range(80, -1, -1)]
    write(tmp_path, *written)
    assert read(tmp_path) == written


def test_a_sample_of_an_earlier_lap_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, sample(START - FINE.rows * FINE.step_seconds, ready=5))
    assert read(tmp_path) == []


def test_a_queue_does_not_see_what_an_earlier_queue_left_in_its_slot(tmp_path: Path) -> None:
    write(tmp_path, sample(START, tag=6, ready=5))
    assert read(tmp_path, tag=7) == [] and len(read(tmp_path, tag=6)) == 1


def test_queues_of_several_files_do_not_mix(tmp_path: Path) -> None:
    slots = {slot: sample(START, tag=slot + 1, ready=slot) for slot in range(0, 3 * SLOTS_PER_FILE, 17)}
    rings.write(tmp_path, FINE, START, slots)
    found = rings.read(tmp_path, FINE, {slot: slot + 1 for slot in slots}, START, START + 10)
    assert {slot: [one.ready for one in samples] for slot, samples in found.items()} == {slot: [slot] for slot in slots}


def test_a_file_never_grows_beyond_its_ring(tmp_path: Path) -> None:
    for lap in range(3):
        write(tmp_path, *(sample(START + (lap * FINE.rows + row) * FINE.step_seconds) for row in range(FINE.rows)))
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size == FINE.rows * ROW_BYTES


def test_a_coarser_step_has_the_sums_of_counts_and_the_peaks_of_depths(tmp_path: Path) -> None:
    begin = START // DAY.step_seconds * DAY.step_seconds
    depths = [3, 9, 4]
    for number, ready in enumerate(depths):
        write(tmp_path, sample(begin + 10 * number, ready=ready, produced=100, oldest_age_us=1000 * number))
    write(tmp_path, sample(begin + DAY.step_seconds, ready=50, produced=1))  # a sample of the next step
    for _ in range(2):  # a repetition changes nothing
        rings.coarsen(tmp_path, FINE, DAY, 0, begin)
    (merged,) = rings.read(tmp_path, DAY, {0: 7}, begin, begin + 1)[0]
    assert (merged.at, merged.seconds, merged.ready, merged.produced) == (begin, 30, 9, 300)
    assert merged.oldest_age_us == 2000


def test_a_count_that_is_too_large_is_kept_as_the_largest_one(tmp_path: Path) -> None:
    write(tmp_path, sample(START, ready=1 << 40))
    assert read(tmp_path)[0].ready == (1 << 32) - 1
