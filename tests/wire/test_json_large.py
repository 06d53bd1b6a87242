"""Large produce requests, whose texts are cut out of the body: the result is that of the ordinary decoder."""

from __future__ import annotations

import json as python_json
import sys
from typing import Any

import pyarrow.compute  # noqa: F401  without it no text is cut out
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from querator.errors import ContentError
from querator.wire import json, large, strict
from querator.wire.messages import QueueProduceRequest

TEXT = "a text: with colons, {brackets} and 1 number " * 3_000
REQUEST: dict[str, Any] = {
    "queue_name": "orders",
    "items": [
        {"utf8": TEXT, "kind": "utf8"},
        {"utf8": "short", "reference": "r:1", "encoding": "e"},
        {"bytes": "YWJj"},
        {"kind": "empty", "utf8": ""},
        {"utf8": TEXT[::-1], "bytes": "YWJj", "enqueue_at": "2026-01-01T00:00:00Z"},
        {},
    ],
    "request_timeout": "1m",
}


def plain(request: QueueProduceRequest) -> list[Any]:
    """What the daemon reads of a request."""
    items = [(one.payload, one.kind, one.reference, one.encoding, one.enqueue_at) for one in request.items]
    return [request.queue_name, request.request_timeout, request.request_id, request.first_attempt, items]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_large_texts_are_cut_out_of_the_body(separators: tuple[str, str]) -> None:
    body = python_json.dumps(REQUEST, separators=separators).encode()
    cut = large.cut(body)
    assert cut is not None
    rest, texts = cut
    assert texts == [TEXT.encode(), b"short", TEXT[::-1].encode()]
    assert len(rest) < 500
    request = json.decode(QueueProduceRequest, body)
    assert plain(request) == plain(strict.decode(QueueProduceRequest, body))
    assert all(item.utf8 == "" for item in request.items)


@pytest.mark.parametrize(
    "text", [TEXT + "ä", TEXT + '"', TEXT + "\\", TEXT + "\n", "ä" + TEXT, TEXT + "\u2028"], ids=ascii
)
@pytest.mark.parametrize("is_escaped", [True, False])
def test_texts_with_other_characters_are_decoded(text: str, is_escaped: bool) -> None:
    body = python_json.dumps(REQUEST | {"items": [{"utf8": text}]}, ensure_ascii=is_escaped).encode()
    assert large.cut(body) is None
    assert json.decode(QueueProduceRequest, body).items[0].payload == text.encode()


@pytest.mark.parametrize(
    "mistake",
    [
        b'"utf8":"x","utf8":"y"',
        b'"utf8":"x","utf8" : "y"',
        b'"utf8":"x","kind":1',
        b'"utf8":"x","unknown":1',
        b'"utf8":null,"unknown":"x"',
        b'"utf8":1',
        b'"utf8":["x"]',
        b'"kind":"a"utf8":"b"',
        b'"utf8":"x" "y"',
        b'"utf8":"x\x01"',
        b'"utf8":"x\x00"',
        b'"utf8":"x\xff"',
        b'"utf8":"x\n"',
        b'"utf8":"x',
    ],
)
def test_the_error_of_a_large_body_is_that_of_the_whole_body(mistake: bytes) -> None:
    body = b'{"queue_name":"q","items":[{"utf8":"%b"},{%b}]}' % (TEXT.encode(), mistake)
    with pytest.raises(ContentError) as expected:
        strict.decode(QueueProduceRequest, body)
    with pytest.raises(ContentError) as raised:
        json.decode(QueueProduceRequest, body)
    assert raised.value.message == expected.value.message


@pytest.mark.parametrize(
    "others", [b'{"utf8" :"a"}', b'{"utf8":\t"a"}', b'{"\\u0075tf8":"a"}', b'{"utf8": null}', b'{"utf8":""}']
)
def test_payloads_stay_with_their_items_however_a_key_is_spelled(others: bytes) -> None:
    body = b'{"queue_name":"q","items":[%b,{"utf8":"%b"},%b,{"utf8":"c"}]}' % (others, TEXT.encode(), others)
    assert plain(json.decode(QueueProduceRequest, body)) == plain(strict.decode(QueueProduceRequest, body))


class Searched(bytes):
    """A body that counts how often it is searched."""

    searches = 0

    def find(self, *args: Any) -> int:
        self.searches += 1
        return super().find(*args)


@pytest.mark.parametrize("text", ["", "x" * 100], ids=["empty", "short"])
def test_short_texts_are_decoded(text: str) -> None:
    """To look for each of them would take three times as long."""
    body = Searched(python_json.dumps(REQUEST | {"items": [{"utf8": text}] * 10_000}, separators=(",", ":")).encode())
    assert large.cut(body) is None
    assert body.searches < 10


# Each of these may be a field of an item besides the others. Only a text behind "utf8": is cut out.
TEXTS = [b'"utf8":"x"', b'"utf8": "x:y"', b'"utf8":""', b'"utf8":"' + b"long, {x}: " * 200 + b'"', b'"utf8" :"x"', b""]
OTHERS = [
    [b'"bytes":"YWJj"', b'"bytes":""', b'"bytes":null', b'"bytes":"YQ"', b""],
    [b'"kind":"utf8"', b'"kind" : "-"', b'"kind":""', b""],
    [b'"reference":"r:1"', b'"reference":null', b""],
]
MISTAKES = [
    b'"utf8":"x"',
    b'"utf8":null',
    b'"utf8":',
    b'"',
    b'"-"',
    b"-",
    b",",
    b":",
    b"{",
    b"}",
    b"[",
    b"]",
    b"null",
    b" ",
]


def fields_of_items() -> st.SearchStrategy[list[bytes]]:
    fields = st.tuples(*map(st.sampled_from, [TEXTS, *OTHERS])).flatmap(lambda some: st.permutations(list(some)))
    item = fields.map(lambda some: b"{%b}" % b",".join([one for one in some if one]))
    return st.lists(item, max_size=6)


def body_of(items: list[bytes]) -> bytes:
    return b'{"items":[%b],"queue_name":"q"}' % b",".join([b'{"utf8":"%b"}' % (b"x" * 9_000), *items])


@settings(max_examples=500, deadline=None)
@given(fields_of_items())
def test_the_texts_of_a_valid_body_are_those_of_the_ordinary_decoder(items: list[bytes]) -> None:
    body = body_of(items)
    request = json._with_large_texts(body)
    assert (request is None) == any([b'"utf8" :"x"' in one for one in items])
    if request is not None:
        assert plain(request) == plain(strict.decode(QueueProduceRequest, body))


@settings(max_examples=1_500, deadline=None)
@given(fields_of_items(), st.data())
def test_no_body_gets_another_meaning(items: list[bytes], data: st.DataObject) -> None:
    body = body_of(items)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(9_020, len(body)))
        dropped = data.draw(st.integers(0, 12))
        body = body[:at] + data.draw(st.sampled_from([*MISTAKES, b""])) + body[at + dropped :]
    request = json._with_large_texts(body)
    if request is not None:
        assert plain(request) == plain(strict.decode(QueueProduceRequest, body))


@pytest.mark.parametrize("loaded", [None, object()], ids=["not loaded", "being loaded"])
def test_no_request_waits_for_the_import_of_pyarrow(monkeypatch: pytest.MonkeyPatch, loaded: object) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.compute", loaded)  # type: ignore[arg-type]
    body = python_json.dumps(REQUEST).encode()
    assert large.cut(body) is None
    assert plain(json.decode(QueueProduceRequest, body)) == plain(strict.decode(QueueProduceRequest, body))
