"""The heads of answers, which are put together once for many answers."""

from __future__ import annotations

from querator.daemon.http.gate import ReplyHeads
from querator.wire.content import JSON, PROTOBUF


def dated(date: bytes) -> ReplyHeads:
    heads = ReplyHeads()
    heads.date([(b"date", date)])
    return heads


def test_a_success_has_the_head_of_its_length_and_codec() -> None:
    heads = dated(b"now")
    for codec, length in ((JSON, 5), (JSON, 5), (JSON, 6), (PROTOBUF, 6), (PROTOBUF, 6), (JSON, 6)):
        assert heads.success(codec, length) == heads.start(200, codec, length, close=False)


def test_a_success_has_the_date_of_its_second() -> None:
    heads = dated(b"now")
    assert b"date: now" in heads.success(JSON, 5)
    heads.date([(b"date", b"later")])
    assert b"date: later" in heads.success(JSON, 5)
