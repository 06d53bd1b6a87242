"""Item ids: 27-character KSUIDs that name the partition in which the item was created.

    20 bytes = 4 bytes seconds since 1,400,000,000 · 8 bytes partition prefix · 8 bytes sequence

A new sequence is the time in microseconds, or the last sequence plus one if that is larger. The seconds follow from
the sequence. So the ids of a partition always rise, and text order is sequence order. Inside the daemon an item has
only its sequence; the text exists on the wire.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from querator.limits import US_PER_SECOND

KSUID_EPOCH_SECONDS: Final = 1_400_000_000
TEXT_LENGTH: Final = 27
WRONG_LENGTH: Final = "Valid encoded KSUIDs are 27 characters"
OUT_OF_BOUNDS: Final = "Valid encoded KSUIDs are bounded by 000000000000000000000000000 and aWgEPTl1tmebfsQzFP4bxwgy80V"

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VALUE: Final = {digit: value for value, digit in enumerate(_DIGITS)}
_LOW: Final = [a + b for a in _DIGITS for b in _DIGITS]
_LOW_SIZE: Final = len(_LOW)
_MIDDLE_SIZE: Final = _LOW_SIZE * _LOW_SIZE
_HIGH_LENGTH: Final = TEXT_LENGTH - 2
_END_LENGTH: Final = 8
_END_SIZE: Final = 62**_END_LENGTH
"""The last digits of an id: enough for all ids of a second, with few exceptions."""
_CHUNK_PAIRS: Final = 5
_CHUNK_SIZE: Final = 62**10
_ID_LIMIT: Final = 1 << 160
_SECONDS_MAX: Final = 0xFFFFFFFF


class Decoded(NamedTuple):
    prefix: int
    seq: int


def _number(prefix: int, seq: int) -> int:
    seconds = seq // US_PER_SECOND - KSUID_EPOCH_SECONDS
    if not 0 <= seconds <= _SECONDS_MAX:
        # A KSUID can express 2014 to 2150. Other times take the nearest second; the sequence keeps the order.
        seconds = 0 if seconds < 0 else _SECONDS_MAX
    return seconds << 128 | prefix << 64 | seq


def digits_of(number: int, length: int) -> str:
    """The last digits of a number in base 62."""
    pairs: list[str] = []
    while 2 * len(pairs) < length:
        # Numbers of 60 bits are fast. The whole number has up to 160.
        number, chunk = divmod(number, _CHUNK_SIZE)
        for _ in range(_CHUNK_PAIRS):
            pairs.append(_LOW[chunk % _LOW_SIZE])
            chunk //= _LOW_SIZE
    pairs.reverse()
    digits = "".join(pairs)
    return digits[len(digits) - length :]


def start_of_second(prefix: int, second: int) -> int:
    """The number that turns a sequence of this second into its id as a number, by addition."""
    return _number(prefix, second * US_PER_SECOND) - second * US_PER_SECOND


def encode(prefix: int, seq: int) -> str:
    return Ids(prefix).encode(seq)


class Ids:
    """Encodes the ids of one partition. It keeps the digits that all ids of a second share."""

    def __init__(self, prefix: int) -> None:
        self._prefix = prefix
        self._second = -1
        self._beginning = ""
        self._start = 0
        """The number that the last digits of the second's first id stand for."""

    def encode(self, seq: int) -> str:
        second = seq // US_PER_SECOND
        if second != self._second:
            self._beginning, self._start = _second(self._prefix, second)
            self._second = second
        end = self._start + seq % US_PER_SECOND
        if end >= _END_SIZE:
            high, low = divmod(_number(self._prefix, seq), _LOW_SIZE)
            return _high_text(high) + _LOW[low]
        # Numbers of this size are fast. The whole number has 160 bits.
        upper, lower = end // _MIDDLE_SIZE, end % _MIDDLE_SIZE
        a, b, c, d = upper // _LOW_SIZE, upper % _LOW_SIZE, lower // _LOW_SIZE, lower % _LOW_SIZE
        return f"{self._beginning}{_LOW[a]}{_LOW[b]}{_LOW[c]}{_LOW[d]}"


@lru_cache(maxsize=4_096)
def _second(prefix: int, second: int) -> tuple[str, int]:
    """The first digits of the ids of a second, and the number that the last digits of its first id stand for."""
    leading, end = divmod(_number(prefix, second * US_PER_SECOND), _END_SIZE)
    return digits_of(leading, TEXT_LENGTH - _END_LENGTH), end


def encode_many(prefix: int, seqs: list[int]) -> list[str]:
    """The texts of many ids of one partition, in any order. Neighbours share their leading digits."""
    texts: list[str] = []
    at, count = 0, len(seqs)
    while at < count:
        seq = seqs[at]
        # The sequences from first to last belong to one second, and their ids differ only in the last two digits.
        high, rest = divmod(_number(prefix, seq), _LOW_SIZE)
        high_text = _high_text(high)
        room = min(_LOW_SIZE - rest, US_PER_SECOND - seq % US_PER_SECOND, count - at)
        if seqs[at + room - 1] == seq + room - 1 and seqs[at : at + room] == list(range(seq, seq + room)):
            # The items of one produce have consecutive sequences, so their last digits are consecutive too.
            texts += [high_text + low for low in _LOW[rest : rest + room]]
            at += room
        else:
            second = seq - seq % US_PER_SECOND
            first = seq - min(rest, seq - second)
            last = seq + min(_LOW_SIZE - rest - 1, second + US_PER_SECOND - 1 - seq)
            shift = rest - seq
            while at < count and first <= seqs[at] <= last:
                texts.append(high_text + _LOW[seqs[at] + shift])
                at += 1
    return texts


def encode_run(prefix: int, first: int, count: int) -> list[str]:
    """The texts of the ids of consecutive sequences of one partition."""
    texts: list[str] = []
    seq, end = first, first + count
    while seq < end:
        # The ids of one second differ only in their last two digits, until those are used up.
        high, rest = divmod(_number(prefix, seq), _LOW_SIZE)
        room = min(_LOW_SIZE - rest, US_PER_SECOND - seq % US_PER_SECOND, end - seq)
        high_text = _high_text(high)
        texts += [high_text + low for low in _LOW[rest : rest + room]]
        seq += room
    return texts


def _high_text(high: int) -> str:
    leading, rest = divmod(high, _MIDDLE_SIZE)
    pairs, last = divmod(rest, _LOW_SIZE)
    return _leading_text(leading) + _LOW[pairs] + _LOW[last]


@lru_cache(maxsize=4_096)  # the leading digits of a partition change every second
def _leading_text(leading: int) -> str:
    return digits_of(leading, _HIGH_LENGTH - 4)


def decode(text: str) -> Decoded:
    """The parts of an id. Raises ValueError with the wire contract's reason if the text is not a KSUID."""
    if len(text.encode("utf-8", "surrogatepass")) != TEXT_LENGTH:
        raise ValueError(WRONG_LENGTH)
    number = 0
    try:
        for digit in text:
            number = number * 62 + _VALUE[digit]
    except KeyError:
        raise ValueError(OUT_OF_BOUNDS) from None
    if number >= _ID_LIMIT:
        raise ValueError(OUT_OF_BOUNDS)
    return Decoded(number >> 64 & 0xFFFFFFFFFFFFFFFF, number & 0xFFFFFFFFFFFFFFFF)


def first_sequence_from(prefix: int, pivot: str) -> int:
    """The smallest sequence of the partition with this prefix whose id sorts at or after the pivot."""
    decoded = decode(pivot)
    number = 0
    for digit in pivot:
        number = number * 62 + _VALUE[digit]
    carried = number >> 128
    second = carried + KSUID_EPOCH_SECONDS
    start = second * US_PER_SECOND if carried else 0
    end = (second + 1) * US_PER_SECOND if carried < _SECONDS_MAX else 1 << 63
    if decoded.prefix < prefix:
        return start
    if decoded.prefix > prefix:
        return end
    return min(max(decoded.seq, start), end)


def is_own(prefix: int, text: str, decoded: Decoded) -> bool:
    """Whether the partition with this prefix made this id: its seconds must follow from its sequence."""
    return decoded.prefix == prefix and encode(prefix, decoded.seq) == text


def next_sequence(last: int, now_us: int) -> int:
    return max(last + 1, now_us)
