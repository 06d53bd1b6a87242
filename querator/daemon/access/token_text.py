"""The text of a token: `qtr-<tag>-<43 characters of secret><6 characters of checksum>`.

The secret is 32 random bytes in base 62, the checksum the CRC-32 of everything before it in base 62. The checksum is
not secret: it finds typing errors without a look-up, and lets scanners recognise a token that was published by mistake.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import zlib
from typing import Final

DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SECRET_BYTES: Final = 32
SECRET_CHARACTERS: Final = 43
CHECKSUM_CHARACTERS: Final = 6
SHOWN_CHARACTERS: Final = 8
"""A list shows this many characters of a secret, so that an operator can tell tokens apart."""
_FORM: Final = re.compile(rb"qtr-[0-9a-z]{1,16}-[0-9A-Za-z]{%d}([0-9A-Za-z]{%d})?" % (SECRET_CHARACTERS, 6))


def generate(tag: str) -> str:
    body = f"qtr-{tag}-" + _base62(int.from_bytes(secrets.token_bytes(SECRET_BYTES), "big"), SECRET_CHARACTERS)
    return with_checksum(body)


def with_checksum(body: str) -> str:
    return body + _checksum(body.encode())


def is_well_formed(text: bytes) -> bool:
    """Whether a text can be a token. Keys of the original service have no checksum, and are accepted too."""
    found = _FORM.fullmatch(text)
    if found is None:
        return False
    return found[1] is None or found[1] == _checksum(text[:-CHECKSUM_CHARACTERS]).encode()


def digest(text: bytes) -> str:
    """The hash that is stored instead of the token. The secret has 256 bits, so a slow hash would add no protection."""
    return hashlib.sha256(text).hexdigest()


def prefix(text: str) -> str:
    """The part of a token that lists show."""
    head, _, secret = text.rpartition("-")
    return f"{head}-{secret[:SHOWN_CHARACTERS]}"


def _checksum(body: bytes) -> str:
    return _base62(zlib.crc32(body), CHECKSUM_CHARACTERS)


def _base62(number: int, width: int) -> str:
    digits = []
    while number:
        number, digit = divmod(number, len(DIGITS))
        digits.append(DIGITS[digit])
    return "".join(reversed(digits)).rjust(width, "0")
