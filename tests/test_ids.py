"""Ids are KSUIDs that name the partition of their item, and sort like their sequences (wire contract 4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator import ids
from querator.limits import US_PER_SECOND

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
EPOCH_US = ids.KSUID_EPOCH_SECONDS * US_PER_SECOND
LAST_US = EPOCH_US + (1 << 32) * US_PER_SECOND - 1
SMALLEST, LARGEST = "0" * 27, "aWgEPTl1tmebfsQzFP4bxwgy80V"

prefixes = st.integers(0, (1 << 64) - 1)
sequences = st.integers(EPOCH_US, LAST_US)
# `texts` takes short cuts at the boundaries of seconds and for consecutive sequences.
runs = st.tuples(
    st.integers(EPOCH_US // US_PER_SECOND + 1, LAST_US // US_PER_SECOND - 1), st.integers(-9000, 9000)
).map(lambda place: place[0] * US_PER_SECOND + place[1])


def number(text: str) -> int:
    value = 0
    for digit in text:
        value = value * 62 + DIGITS.index(digit)
    return value


def ksuid(value: int) -> str:
    digits = []
    for _ in range(27):
        value, digit = divmod(value, 62)
        digits.append(DIGITS[digit])
    return "".join(reversed(digits))


@given(prefixes, sequences)
def test_an_id_is_a_ksuid_of_seconds_prefix_and_sequence(prefix: int, seq: int) -> None:
    text = ids.encode(prefix, seq)
    seconds = seq // US_PER_SECOND - 1_400_000_000
    assert len(text) == 27
    assert number(text).to_bytes(20, "big") == b"".join(
        (seconds.to_bytes(4, "big"), prefix.to_bytes(8, "big"), seq.to_bytes(8, "big"))
    )


@given(prefixes, sequences)
def test_an_id_is_read_back(prefix: int, seq: int) -> None:
    text = ids.encode(prefix, seq)
    assert ids.decode(text) == (prefix, seq)
    assert ids.is_own(prefix, text, ids.decode(text))


@given(prefixes, runs, st.lists(st.integers(0, 5000), max_size=50))
def test_ids_of_a_batch_are_those_of_its_members(prefix: int, first: int, steps: list[int]) -> None:
    seqs = [first + step for step in steps]
    assert ids.encode_many(prefix, seqs) == [ids.encode(prefix, seq) for seq in seqs]


@given(prefixes, runs)
def test_ids_of_a_long_run_are_those_of_its_members(prefix: int, first: int) -> None:
    seqs = list(range(first, first + 5000))
    texts = ids.encode_many(prefix, seqs)
    assert len(texts) == 5000
    assert texts[::997] == [ids.encode(prefix, seq) for seq in seqs[::997]]
    assert sorted(set(texts)) == texts
    assert ids.encode_run(prefix, first, 5000) == texts


@given(prefixes, st.lists(sequences | runs, unique=True, max_size=20))
def test_the_order_of_texts_is_the_order_of_sequences(prefix: int, seqs: list[int]) -> None:
    assert sorted(ids.encode_many(prefix, seqs)) == ids.encode_many(prefix, sorted(seqs))


@given(prefixes, sequences)
def test_the_id_before_an_id_is_a_ksuid_that_sorts_just_before_it(prefix: int, seq: int) -> None:
    text = ids.encode(prefix, seq)
    before = ksuid(number(text) - 1)
    assert before < text
    ids.decode(before)


@given(prefixes, sequences, st.integers(0, (1 << 32) - 1))
def test_a_text_with_other_seconds_is_nobodys_own(prefix: int, seq: int, seconds: int) -> None:
    text = ksuid(seconds << 128 | prefix << 64 | seq)
    assert ids.is_own(prefix, text, ids.decode(text)) == (text == ids.encode(prefix, seq))
    assert not ids.is_own(prefix ^ 1, text, ids.decode(text))


@pytest.mark.parametrize("text", ["", "x", "0" * 26, "0" * 28, "é" * 27, "\ud800" * 27])
def test_a_text_of_another_length_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{ids.WRONG_LENGTH}$"):
        ids.decode(text)


@pytest.mark.parametrize("text", ["-" * 27, "é" + "0" * 25, ksuid(number(LARGEST) + 1), "z" * 27, " " + "0" * 26])
def test_a_text_that_is_no_ksuid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{ids.OUT_OF_BOUNDS}$"):
        ids.decode(text)


def test_the_smallest_and_the_largest_ksuid_are_read() -> None:
    assert ids.decode(SMALLEST) == (0, 0)
    assert ids.decode(LARGEST) == ((1 << 64) - 1, (1 << 64) - 1)


nearby = st.integers(EPOCH_US + US_PER_SECOND, LAST_US - US_PER_SECOND)


@given(prefixes, prefixes, nearby, st.integers(-2, 2))
def test_a_pivot_of_any_partition_leads_to_the_first_sequence_at_or_after_it(
    prefix: int, other: int, seq: int, step: int
) -> None:
    for pivot in (ksuid(number(ids.encode(other, seq)) + step), ksuid(number(ids.encode(prefix, seq)) + step)):
        first = ids.first_sequence_from(prefix, pivot)
        assert ids.encode(prefix, first - 1) < pivot <= ids.encode(prefix, first)


@given(st.integers(0, LAST_US), st.integers(0, LAST_US))
def test_the_next_sequence_rises_whatever_the_clock_does(last: int, now: int) -> None:
    following = ids.next_sequence(last, now)
    assert following > last and following >= now


def test_the_ids_of_a_second_go_on_where_their_last_digits_overflow():
    """Which of these rare partitions that are, follows from the numbers: prefix * 2**64 ends in the wanted digits."""
    second, digits, left = 1_800_000_000, 62**8, 500_000
    first = second * 1_000_000
    number = int.from_bytes(((second - 1_400_000_000) << 128 | first).to_bytes(20, "big"), "big")
    wanted = digits - left - (digits - left - number) % 2**8
    prefix = (wanted - number) // 2**8 * pow(2**56, -1, 31**8) % 31**8
    assert (number + (prefix << 64)) % digits == wanted
    one_by_one = [ids.encode(prefix, first + left + step) for step in range(-3, 260)]
    assert one_by_one == ids.encode_many(prefix, [first + left + step for step in range(-3, 260)])
    assert one_by_one == sorted(one_by_one)
    assert [ids.decode(text) for text in one_by_one] == [(prefix, first + left + step) for step in range(-3, 260)]
