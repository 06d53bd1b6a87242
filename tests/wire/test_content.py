"""The encodings of a request and of its answer."""

from __future__ import annotations

import pytest

from querator.errors import ContentError
from querator.wire.content import JSON, PROTOBUF, Codec, reply_codec, request_codec
from querator.wire.messages import QueuesInfoRequest

UNDERSTOOD = [
    ("", JSON),
    ("*/*", JSON),
    ("application/*", JSON),
    ("application/json", JSON),
    ("application/json; charset=utf-8", JSON),
    ("application/json, text/plain", JSON),
    ("Application/JSON", JSON),
    ("  application/json  ; x", JSON),
    ("*/*;q=0.8", JSON),
    ("; charset=utf-8", JSON),
    (", text/html", JSON),
    ("application/protobuf", PROTOBUF),
    ("Application/Protobuf; proto=querator", PROTOBUF),
    ("application/protobuf,application/json", PROTOBUF),
]


@pytest.mark.parametrize("header,codec", UNDERSTOOD)
def test_the_first_type_of_a_header_decides(header: str, codec: Codec) -> None:
    assert request_codec(header) is codec
    assert reply_codec(header) is codec


@pytest.mark.parametrize(
    "header", ["text/plain", "application/x-protobuf", "json", "a/b; q=1", "application/jsonx", "text/*"]
)
def test_another_content_type_is_refused_with_the_whole_header(header: str) -> None:
    with pytest.raises(ContentError) as caught:
        request_codec(header)
    assert caught.value.message == f"Content-Type header '{header}' is invalid format or unrecognized content type"


@pytest.mark.parametrize(
    "header,shown",
    [
        ("text/html", "text/html"),
        ("Text/HTML;q=0.9", "Text/HTML"),
        ("text/html,*/*", "text/html"),
        ("text/html ; x", "text/html "),
    ],
)
def test_another_accept_is_refused_with_its_first_type(header: str, shown: str) -> None:
    with pytest.raises(ContentError) as caught:
        reply_codec(header)
    assert caught.value.message == (
        f"Accept header '{shown}' is invalid format or unrecognized content type, "
        "only [application/json,application/protobuf] are supported by this method"
    )


@pytest.mark.parametrize("codec,body", [(JSON, b'{"queue_name":"q"}'), (PROTOBUF, b"\n\x01q")])
def test_a_codec_reads_and_writes(codec: Codec, body: bytes) -> None:
    assert codec.decode(QueuesInfoRequest, body) == QueuesInfoRequest("q")
    assert codec.encode(QueuesInfoRequest("q")) == body
