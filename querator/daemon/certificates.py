"""The files of the daemon's TLS certificate: what a server can use, and when it expires.

A file that a server should not use is refused with the reason: unreadable, expired, a key that others can read, a key
of another certificate.
"""

from __future__ import annotations

import calendar
import re
import ssl
import stat
import time
from pathlib import Path
from typing import Final, NamedTuple

from querator import limits, times
from querator.config import TlsConfig
from querator.errors import ConfigError

_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_ENCRYPTED: Final = re.compile(r"BEGIN ENCRYPTED|,ENCRYPTED")
_PEM_HINT: Final = "the files are in PEM format; querator tls init DIR makes a set of them"


class Validity(NamedTuple):
    """The time in which a certificate is valid, in seconds since 1970."""

    begins_at: float
    ends_at: float


def load(files: TlsConfig) -> tuple[ssl.SSLContext, Validity]:
    """A context with the certificate and key of the files. Raises ConfigError if a server should not use them."""
    validity = _check_certificate(files.cert)
    _check_key(files.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    # A resumed session would skip the check of the client's certificate.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        context.load_cert_chain(files.cert, files.key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"key {files.key} does not belong to certificate {files.cert}", hint="give the key that it was made for"
            ) from None
        raise ConfigError(
            f"certificate {files.cert} and key {files.key} cannot be used: {reason(error)}", hint=_PEM_HINT
        ) from None
    if files.client_ca is not None:
        text = _read(files.client_ca, "client CA")
        try:
            context.load_verify_locations(cadata=text)
        except (ssl.SSLError, ValueError):
            raise ConfigError(f"client CA {files.client_ca} has no certificate", hint=_PEM_HINT) from None
        # A client without a certificate may still have a token.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context, validity


def _check_certificate(path: Path) -> Validity:
    found = _CERTIFICATE.search(_read(path, "certificate"))
    if found is None:
        raise ConfigError(f"certificate {path} has no certificate in it", hint=_PEM_HINT)
    try:
        validity = validity_of(ssl.PEM_cert_to_DER_cert(found[0]))
    except (ValueError, IndexError):
        raise ConfigError(f"certificate {path} is damaged", hint=_PEM_HINT) from None
    now = time.time()
    if validity.ends_at <= now:
        raise ConfigError(f"certificate {path} expired at {_text(validity.ends_at)}", hint="renew it, and start again")
    if validity.begins_at > now:
        raise ConfigError(
            f"certificate {path} is not valid before {_text(validity.begins_at)}", hint="is this machine's clock right?"
        )
    return validity


def _check_key(path: Path) -> None:
    text = _read(path, "key")
    status = path.stat()
    # As PostgreSQL does: a group may read a key that belongs to root.
    allowed = 0o640 if status.st_uid == 0 else 0o600
    if stat.S_IMODE(status.st_mode) & 0o077 & ~allowed:
        raise ConfigError(f"key {path} can be read by other users", hint=f"chmod {allowed:o} {path}")
    if "PRIVATE KEY-----" not in text:
        raise ConfigError(f"key {path} has no private key in it", hint=_PEM_HINT)
    if _ENCRYPTED.search(text):
        raise ConfigError(
            f"key {path} is encrypted, and a daemon cannot ask for its passphrase",
            hint=f"openssl pkey -in {path} -out NEW, and chmod 600 NEW",
        )


def _read(path: Path, what: str) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError as error:
        raise ConfigError(
            f"{what} {path} cannot be read: {error.strerror}",
            hint="the user who runs the daemon must be able to read it",
        ) from None


def _text(seconds: float) -> str:
    return times.text(int(seconds) * limits.US_PER_SECOND)


def reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


# The validity is read from DER by hand: Python has no public function for it, and `cryptography` is optional.


def validity_of(der: bytes) -> Validity:
    """When a certificate becomes valid and when it expires. Raises ValueError or IndexError if `der` is not a
    certificate.
    """
    (_, certificate, _) = _element(der)
    (_, fields, _) = _element(certificate)
    tag, _, rest = _element(fields)
    if tag == 0xA0:  # the version, which certificates of version 1 lack
        _, _, rest = _element(rest)  # the serial number
    for _ in range(2):
        _, _, rest = _element(rest)  # the signature algorithm, the issuer
    tag, validity, _ = _element(rest)
    if tag != 0x30:
        raise ValueError("no validity")
    first_tag, begins, rest = _element(validity)
    second_tag, ends, _ = _element(rest)
    return Validity(_seconds(first_tag, begins), _seconds(second_tag, ends))


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """The tag and the content of the first element, and the rest."""
    tag, length, at = data[0], data[1], 2
    if length & 0x80:
        at += length & 0x7F
        length = int.from_bytes(data[2:at], "big")
    if len(data) < at + length:
        raise ValueError("cut off")
    return tag, data[at : at + length], data[at + length :]


def _seconds(tag: int, content: bytes) -> float:
    text = content.decode("ascii")
    if tag == 0x17:  # UTCTime has two digits for the year: 50 and above is 19xx
        text = ("19" if text[:2] >= "50" else "20") + text
    return float(calendar.timegm(time.strptime(text, "%Y%m%d%H%M%SZ")))
