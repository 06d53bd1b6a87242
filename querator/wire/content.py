"""The encodings of a request and of its answer (wire contract 1.3, 1.4).

Only the first type in a header counts. Its parameters are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from querator.errors import ContentError
from querator.wire import json, leased, protobuf
from querator.wire.leased import LeaseReply
from querator.wire.messages import Message


class Codec(NamedTuple):
    content_type: str
    decode: Callable[[type[Any], bytes], Any]
    encode: Callable[[Message], bytes]
    encode_leases: Callable[[LeaseReply], bytes]
    between_parts: bytes = b""
    end_of_parts: bytes = b""

    def part(self, message: Message, is_first: bool) -> bytes:
        """Encodes one part of a message that consists of a single list. Each part has a piece of the list.

        The caller adds `end_of_parts` after the last part. No piece may be empty.
        """
        encoded = self.encode(message)
        if not self.end_of_parts:
            return encoded
        start = 0 if is_first else encoded.index(b"[") + 1
        return (b"" if is_first else self.between_parts) + encoded[start : -len(self.end_of_parts)]


JSON: Final = Codec("application/json", json.decode, json.encode, leased.as_json, b",", b"]}")
PROTOBUF: Final = Codec("application/protobuf", protobuf.decode, protobuf.encode, leased.as_protobuf)

_CODECS: Final = {
    "": JSON,
    "*/*": JSON,
    "application/*": JSON,
    JSON.content_type: JSON,
    PROTOBUF.content_type: PROTOBUF,
}
_END_OF_TYPE: Final = re.compile("[;,]")


def request_codec(content_type: str) -> Codec:
    """The codec for a Content-Type, which is empty if the header is absent. Raises ContentError."""
    codec = _CODECS.get(content_type) or _CODECS.get(_first_type(content_type).strip().lower())
    if codec is None:
        raise ContentError(f"Content-Type header '{content_type}' is invalid format or unrecognized content type")
    return codec


def reply_codec(accept: str) -> Codec:
    """The codec for an Accept, which is empty if the header is absent. Raises ContentError."""
    codec = _CODECS.get(accept) or _CODECS.get(_first_type(accept).strip().lower())
    if codec is None:
        supported = f"{JSON.content_type},{PROTOBUF.content_type}"
        raise ContentError(
            f"Accept header '{_first_type(accept)}' is invalid format or unrecognized content type, "
            f"only [{supported}] are supported by this method"
        )
    return codec


def _first_type(header: str) -> str:
    return _END_OF_TYPE.split(header, maxsplit=1)[0]
