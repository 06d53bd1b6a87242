"""Decodes a JSON body exactly by the protobuf JSON mapping, and says what is wrong with it and where.

This is the slow path of `json.py`. It reads what the fast decoder refuses: other spellings of names and numbers, nulls,
unpadded base64, and everything invalid. Its error texts are those of Go's protojson, which existing clients know (wire
contract 1.3).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from querator import times
from querator.errors import ContentError
from querator.wire import schema
from querator.wire.messages import Message

M = TypeVar("M", bound=Message)
Token = re.Match[bytes]
_Read = Callable[["_Reader", Token, schema.Field], Any]

_WHITESPACE: Final = b" \t\r\n"
# Exactly one of the groups below matches, and Match.lastindex says which. All quantifiers are possessive, and the last
# group matches any byte, so that reading takes linear time for every body.
_TOKEN: Final = re.compile(
    rb'[ \t\r\n]*+(?:("[^"\\]*+(?:\\.[^"\\]*+)*+")(?:[ \t\r\n]*+(:))?+|([-+._a-zA-Z0-9]++)|([{}\[\],])|(.))',
    re.DOTALL,
)
# 1 is a string, 2 the colon that makes it a name, 3 a word or number, 4 punctuation, 5 anything else.
_STRING, _NAME = 1, 2
_NUMBER: Final = re.compile(rb"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_UNEXPECTED_END: Final = "proto: unexpected EOF"
_SINGLE, _DOUBLE = "'", '"'
_LITERALS: Final = (b"true", b"false", b"null")
_INTEGER_DIGITS_MAX: Final = 20
_SHOWN_WORD_BYTES_MAX: Final = 32

_GOOD_TEXT: Final = re.compile(
    r'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r'|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})[^"\\\x00-\x1f]*+)*+'
)
_BASE64_PADDED: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_BASE64_UNPADDED: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{2,3})?")
_STANDARD_ALPHABET: Final = str.maketrans("-_+/", "+/!!")
_LINE_BREAKS: Final = str.maketrans("", "", "\r\n")

_string: Final = msgspec.json.Decoder(str).decode


def decode(kind: type[M], body: bytes) -> M:
    return _Reader(body).whole(kind)


class _Entry(NamedTuple):
    field: schema.Field
    read: _Read


@cache
def _table(kind: type[Message]) -> dict[bytes, _Entry]:
    """The fields by both of their names, in quotes as a body has them."""
    table = {}
    proto_names = schema.proto_names(kind)
    for field in schema.fields(kind):
        entry = _Entry(field, _READERS[field.kind])
        for name in (field.json_name, proto_names[field.json_name]):
            table[b'"%b"' % name.encode()] = entry
    return table


class _Reader:
    def __init__(self, body: bytes) -> None:
        self.body = body
        # Without trailing white space the pattern always finds a token.
        self.tokens: Iterator[Token] = _TOKEN.finditer(body, 0, len(body.rstrip(_WHITESPACE)))
        self.next = self.tokens.__next__  # called for every token, so no method of ours wraps it

    def whole(self, kind: type[M]) -> M:
        first = next(self.tokens, None)
        if first is None:
            raise self.syntax_error(len(self.body), "unexpected token ")
        try:
            message = self.message(first, kind)
        except StopIteration:
            raise ContentError(_UNEXPECTED_END) from None
        for token in self.tokens:
            raise self.unexpected(token)
        return message

    # -- the shapes

    def message(self, token: Token, kind: type[M]) -> M:
        if token[4] != b"{":
            raise self.unexpected(token)
        table = _table(kind)
        values: dict[str, Any] = {}
        seen: set[str] = set()
        token = self.next()
        if token[4] == b"}":
            return kind()
        while True:
            if token.lastindex != _NAME:
                raise self.not_a_name(token)
            entry = table.get(token[1]) or table.get(b'"%b"' % self.text(token).encode())
            if entry is None:
                raise self.error(token, f"unknown field {_shown(token)}")
            field, read = entry
            if field.attribute in seen:
                raise self.error(token, f"duplicate field {_shown(token)}")
            seen.add(field.attribute)
            token = self.next()
            if token[3] == b"null":
                pass  # null means unset for every type
            elif field.repeated:
                values[field.attribute] = self.items(token, field, read)
            else:
                values[field.attribute] = read(self, token, field)
            token = self.next()
            if token[4] == b"}":
                return kind(**values)
            if token[4] != b",":
                raise self.unexpected(token)
            token = self.next()

    def items(self, token: Token, field: schema.Field, read: _Read) -> list[Any]:
        if token[4] != b"[":
            raise self.unexpected(token)
        items: list[Any] = []
        token = self.next()
        if token[4] == b"]":
            return items
        while True:
            items.append(read(self, token, field))
            token = self.next()
            if token[4] == b"]":
                return items
            if token[4] != b",":
                raise self.unexpected(token)
            token = self.next()

    # -- the values

    def child(self, token: Token, field: schema.Field) -> Message:
        assert field.child is not None
        return self.message(token, field.child)

    def map(self, token: Token, field: schema.Field) -> dict[str, str]:
        if token[4] != b"{":
            raise self.unexpected(token)
        values: dict[str, str] = {}
        token = self.next()
        if token[4] == b"}":
            return values
        while True:
            if token.lastindex != _NAME:
                raise self.not_a_name(token)
            name = self.text(token)
            if name in values:
                raise self.error(token, f"duplicate map key {_shown(token)}")
            values[name] = self.string(self.next(), field._replace(kind="string"))
            token = self.next()
            if token[4] == b"}":
                return values
            if token[4] != b",":
                raise self.unexpected(token)
            token = self.next()

    def string(self, token: Token, field: schema.Field) -> str:
        if token.lastindex == _STRING:
            return self.text(token)
        raise self.invalid_value(token, field)

    def bool(self, token: Token, field: schema.Field) -> bool:
        if token[3] == b"true":
            return True
        if token[3] == b"false":
            return False
        raise self.invalid_value(token, field)

    def integer(self, token: Token, field: schema.Field) -> int:
        text = self.text(token).encode() if token.lastindex == _STRING else token[3]
        number = _NUMBER.fullmatch(text) if text is not None else None
        value = _integer(number) if number is not None else None
        limit = 1 << 31 if field.kind == "int32" else 1 << 63
        if value is None or not -limit <= value < limit:
            raise self.invalid_value(token, field)
        return value

    def bytes(self, token: Token, field: schema.Field) -> bytes:
        if token.lastindex == _STRING:
            data = _from_base64(self.text(token))
            if data is not None:
                return data
        raise self.invalid_value(token, field)

    def timestamp(self, token: Token, field: schema.Field) -> int:
        if token.lastindex != _STRING:
            raise self.unexpected(token)
        try:
            return times.parse(self.text(token))
        except times.OutOfRange:
            raise self.error(token, f"google.protobuf.Timestamp value out of range: {_shown(token)}") from None
        except ValueError:
            raise self.error(token, f"invalid google.protobuf.Timestamp value {_shown(token)}") from None

    def text(self, token: Token) -> str:
        try:
            return _string(token[1])
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise self.bad_string(token) from None

    # -- what is wrong

    def error(self, token: Token, message: str) -> ContentError:
        line, column = self.place(_start(token))
        return ContentError(f"proto: (line {line}:{column}): {message}")

    def syntax_error(self, position: int, message: str) -> ContentError:
        line, column = self.place(position)
        return ContentError(f"proto: syntax error (line {line}:{column}): {message}")

    def place(self, position: int) -> tuple[int, int]:
        before = self.body[:position]
        return before.count(b"\n") + 1, len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1

    def unexpected(self, token: Token) -> ContentError:
        return self.no_token(token) or self.syntax_error(_start(token), f"unexpected token {_shown(token)}")

    def invalid_value(self, token: Token, field: schema.Field) -> ContentError:
        if token.lastindex == _NAME:
            return self.syntax_error(token.start(2), "invalid value :")
        if token[4] in (b"}", b"]", b","):
            return self.unexpected(token)
        return self.no_token(token) or self.error(token, f"invalid value for {field.kind} type: {_shown(token)}")

    def not_a_name(self, token: Token) -> ContentError:
        if token.lastindex != _STRING:
            return self.unexpected(token)
        following = next(self.tokens, None)
        if problem := self.no_token(token):
            return problem
        if following is None:
            return ContentError(_UNEXPECTED_END)
        place = _start(following)
        return self.syntax_error(place, f'unexpected character {chr(self.body[place])}, missing ":" after field name')

    def no_token(self, token: Token) -> ContentError | None:
        """The reason why this is not a token of JSON. This error takes precedence over errors about the place of a
        token.
        """
        if token[1] is not None:
            try:
                self.text(token)
            except ContentError as error:
                return error
            return None
        if token[5] == b'"':
            return self.bad_string(token)
        if token[5] is not None:
            shown = self.body[token.start(5) : token.start(5) + 4].decode("utf-8", "replace")[0]
            return self.syntax_error(_start(token), f"invalid value {shown}")
        word = token[3]
        if word is None or word in _LITERALS or _NUMBER.fullmatch(word):
            return None
        return self.syntax_error(_start(token), f"invalid value {word[:_SHOWN_WORD_BYTES_MAX].decode()}")

    def bad_string(self, token: Token) -> ContentError:
        """The first error in a string that is invalid or never ends."""
        start = _start(token)
        rest = self.body[start + 1 :]
        try:
            text, problem = rest.decode(), ""
        except UnicodeDecodeError as error:
            text, problem = rest[: error.start].decode(), "invalid UTF-8"
        good = _GOOD_TEXT.match(text)
        assert good is not None  # the pattern matches the empty text
        wrong = text[good.end() : good.end() + 6]
        if wrong.startswith("\\"):
            length = 6 if wrong.startswith("\\u") else 2
            if len(wrong) >= length:
                problem = f"invalid escape code {_quoted(wrong[:length], _DOUBLE)}"
        elif wrong:
            problem = f"invalid character {_quoted(wrong[0], _SINGLE)}"
        return self.syntax_error(start, f"{problem} in string") if problem else ContentError(_UNEXPECTED_END)


def _start(token: Token) -> int:
    return token.start(1 if token[1] is not None else token.lastindex or 0)


def _shown(token: Token) -> str:
    return token[1 if token[1] is not None else token.lastindex or 0].decode("utf-8", "replace")


def _quoted(text: str, quote: str) -> str:
    short = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\"}
    short[quote] = "\\" + quote
    return quote + "".join(short.get(c, f"\\x{ord(c):02x}" if c < " " else c) for c in text) + quote


def _integer(number: Token) -> int | None:
    """The value of a number if it is whole after its exponent is applied, otherwise None."""
    sign, whole, fraction, exponent_text = number.groups(b"")
    digits, fraction = whole.lstrip(b"0"), fraction.rstrip(b"0")
    if len(digits) > _INTEGER_DIGITS_MAX or len(exponent_text) > _INTEGER_DIGITS_MAX:
        return None
    exponent = int(exponent_text or b"0")
    if exponent >= 0:
        if len(fraction) > exponent or len(digits) + exponent > _INTEGER_DIGITS_MAX:
            return None
        digits += fraction.ljust(exponent, b"0")
    else:
        kept = len(digits) + exponent
        if fraction or kept < 0 or digits[kept:].strip(b"0"):
            return None
        digits = digits[:kept]
    value = int(digits or b"0")
    return -value if sign else value


def _from_base64(text: str) -> bytes | None:
    """Decodes base64 in the standard or URL alphabet, padded or not, with line breaks anywhere. None if invalid."""
    # The length that decides about padding includes line breaks: Go counts this way, and clients rely on it.
    padded = len(text) % 4 == 0
    text = text.translate(_LINE_BREAKS)
    if "-" in text or "_" in text:
        text = text.translate(_STANDARD_ALPHABET)
    if not (_BASE64_PADDED if padded else _BASE64_UNPADDED).fullmatch(text):
        return None
    return binascii.a2b_base64(text + "=" * (-len(text) % 4))


_READERS: Final[dict[str, _Read]] = {
    "string": _Reader.string,
    "int32": _Reader.integer,
    "int64": _Reader.integer,
    "bool": _Reader.bool,
    "bytes": _Reader.bytes,
    "timestamp": _Reader.timestamp,
    "message": _Reader.child,
    "map": _Reader.map,
}
