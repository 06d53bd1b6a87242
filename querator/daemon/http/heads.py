"""Remembers simple request heads that were parsed once, so that the same bytes need no second parsing.

A client's heads are mostly the same, or differ only in their Content-Length. So a head is remembered twice: whole, and
with the digits of its Content-Length cut out. Only a head that the real parser has accepted can be remembered, and only
if it has no unusual header.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from querator import limits
from querator.daemon.http.dispatch import Call

END_OF_HEAD: Final = b"\r\n\r\n"
_LENGTH_DIGITS_MAX = 8
_UNUSUAL = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"trailer"))


class KnownHead:
    __slots__ = ("bytes", "call", "head", "length")

    def __init__(self, head: bytes, call: Call, length: int) -> None:
        self.head = head
        self.bytes = len(head)
        self.call = call
        self.length = length
        """The bytes of the body."""


class RememberedHeads:
    """The heads that connections of one caller have sent. A head includes its token, so it identifies the caller."""

    def __init__(self) -> None:
        self.whole: dict[bytes, KnownHead] = {}
        """By their bytes. Callers look here first, and call `find` for other heads."""
        self._by_size: dict[int, KnownHead] = {}
        """By the size of a whole request, the head of the last request of that size. Clients mostly repeat their heads,
        and comparing one takes a tenth of the time of finding its end and hashing it.
        """
        self._without_length: dict[bytes, Call] = {}

    def of_request(self, data: bytes) -> KnownHead | None:
        """The head of `data`, if it is known and `data` is exactly one request."""
        known = self._by_size.get(len(data))
        if known is not None and data[: known.bytes] == known.head:
            return known
        end = data.find(END_OF_HEAD) + 4
        known = self.whole.get(data[:end])
        if known is None or end + known.length != len(data):
            return None
        if len(self._by_size) >= limits.REMEMBERED_HEADS_MAX:
            self._by_size.clear()
        self._by_size[len(data)] = known
        return known

    def find(self, head: bytes) -> KnownHead | None:
        """The meaning of a head (with its blank line) that differs from a remembered one only in its Content-Length."""
        cut = _length_digits(head)
        if cut is None:
            return None
        start, end = cut
        call = self._without_length.get(head[:start] + head[end:])
        if call is None:
            return None
        length = int(head[start:end])
        if length > call.route.body_bytes_max:
            return None
        known = KnownHead(head, call, length)
        if len(self.whole) >= limits.REMEMBERED_HEADS_MAX:
            self.whole.clear()
        self.whole[head] = known
        return known

    def forget(self) -> None:
        """Forgets all heads, so that each is parsed again and its caller looked up."""
        self.whole.clear()
        self._by_size.clear()
        self._without_length.clear()

    def learn(self, head: bytes, headers: Sequence[tuple[bytes, bytes]], call: Call) -> None:
        """Remembers the head of an HTTP/1.1 request. The parser read it as `headers`, with names in lower case."""
        if not call.route.hot or call.content_error is not None or len(head) > limits.REMEMBERED_HEAD_BYTES_MAX:
            return
        if not self._is_simple(head, headers):
            return
        cut = _length_digits(head)
        if cut is None:
            return
        if len(self._without_length) >= limits.REMEMBERED_HEADS_MAX:
            del self._without_length[next(iter(self._without_length))]
        self._without_length[head[: cut[0]] + head[cut[1] :]] = call

    @staticmethod
    def _is_simple(head: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        # Equal counts prove that the parser saw the same lines: no folded lines, no bare line ends, no second head.
        if not head.startswith(b"POST /") or head.count(b"\r\n") != len(headers) + 2:
            return False
        if head.count(b"\n") != head.count(b"\r\n") or head.count(b"\r") != head.count(b"\r\n"):
            return False
        names = [name for name, _ in headers]
        if names.count(b"content-length") != 1 or not _UNUSUAL.isdisjoint(names):
            return False
        return all(value.lower() == b"keep-alive" for name, value in headers if name == b"connection")


def _length_digits(head: bytes) -> tuple[int, int] | None:
    """The position of the first Content-Length's digits; None unless its value is a few digits only."""
    start = head.lower().find(b"\r\ncontent-length: ")
    if start < 0:
        return None
    start += 18
    end = head.find(b"\r\n", start)
    if end < 0:
        return None
    digits = head[start:end]
    if not digits.isdigit() or len(digits) > _LENGTH_DIGITS_MAX:
        return None
    return start, end
