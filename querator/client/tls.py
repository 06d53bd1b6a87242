"""TLS for clients: the context for connections, and TLS errors with a hint what to do.

A call that fails with a TLS error is not repeated, because the next attempt would fail in the same way.
"""

from __future__ import annotations

import os
import ssl
import stat
from typing import TYPE_CHECKING, Final

from querator.config import ClientTls
from querator.errors import ConfigError, TlsFailed, UsageError

if TYPE_CHECKING:
    from querator.client.connection import Address

UPGRADE_REQUIRED: Final = 426
"""The status with which a daemon answers plain HTTP on its TLS port."""
_SETTINGS_HINT: Final = "querator config show tells where the setting came from"
_PLAIN_HTTP_REASONS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
_EXPIRED, _NOT_YET_VALID, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 62, 64
_UNKNOWN_CA: Final = (2, 18, 19, 20, 21)
"""OpenSSL's error numbers for a certificate that no known CA has signed: an issuer is missing, or it is self-signed."""


def client_context(tls: ClientTls) -> ssl.SSLContext:
    """Trusts the CAs of `ca_file`, or those of the system without it. Shows the client certificate if there is one."""
    if tls.client_key and not tls.client_cert:
        raise UsageError("there is a client key, but no client certificate", hint="--client-cert FILE")
    ca_file, cert, key = (os.path.expanduser(path) for path in tls)
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except ssl.SSLError:
        raise ConfigError(f"CA file {ca_file} has no certificate in it", hint=_SETTINGS_HINT) from None
    except OSError as error:
        raise ConfigError(f"CA file {ca_file} cannot be read: {error.strerror}", hint=_SETTINGS_HINT) from None
    if cert:
        _load_certificate(context, cert, key)
    return context


def _load_certificate(context: ssl.SSLContext, cert: str, key: str) -> None:
    for path in filter(None, (cert, key)):
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
        except OSError as error:
            raise ConfigError(
                f"client certificate: {path} cannot be read: {error.strerror}", hint=_SETTINGS_HINT
            ) from None
    # The last file has the key. A group may read a key that belongs to root, as with the key of a daemon.
    allowed = 0o640 if status.st_uid == 0 else 0o600
    if stat.S_IMODE(status.st_mode) & 0o077 & ~allowed:
        raise ConfigError(f"client key {path} can be read by other users", hint=f"chmod {allowed:o} {path}")
    try:
        context.load_cert_chain(cert, key or None, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"client key {key or cert} does not belong to {cert}", hint=_SETTINGS_HINT) from None
        raise ConfigError(
            f"client certificate {cert} cannot be used", hint="give the certificate and its key, both in PEM format"
        ) from None


def tls_failure(address: Address, tls: ClientTls, error: BaseException) -> TlsFailed | None:
    """The reason why a TLS connection failed, with a hint. None if `error` is about something else."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _distrusted(address, tls, cause)
    if cause is None or isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError) or not cause.reason:
        return None
    if cause.reason in _PLAIN_HTTP_REASONS:
        return TlsFailed(f"{address} does not speak TLS", hint=f"--endpoint {address._replace(scheme='http')}")
    alert = cause.reason.rpartition("ALERT_")[2].replace("_", " ").lower()
    if "certificate" in alert or alert == "unknown ca":
        return TlsFailed(
            f"{address} refuses the certificate of this client: {alert}",
            hint="--client-cert must be valid, and a CA of the daemon's --tls-client-ca must have signed it",
        )
    return TlsFailed(f"TLS with {address} failed: {alert}", hint="both sides need TLS 1.2 or newer")


def _distrusted(address: Address, tls: ClientTls, error: ssl.SSLCertVerificationError) -> TlsFailed:
    whose = f"the certificate of {address}"
    if error.verify_code in (_OTHER_HOST, _OTHER_ADDRESS):
        return TlsFailed(
            f"{whose} is not for '{address.host}'",
            hint="use a name that is in the certificate, or make one for this name",
        )
    if error.verify_code in _UNKNOWN_CA:
        hint = f"is {tls.ca_file} the CA of this daemon?" if tls.ca_file else "--ca-file FILE with the CA of the daemon"
        return TlsFailed(f"{whose} comes from an unknown CA", hint=hint)
    if error.verify_code == _EXPIRED:
        return TlsFailed(f"{whose} has expired", hint="renew it, or set the clock of this machine")
    if error.verify_code == _NOT_YET_VALID:
        return TlsFailed(f"{whose} is not valid yet", hint="set the clock of this machine")
    return TlsFailed(f"{whose} cannot be trusted: {error.verify_message}", hint="querator tls init makes new ones")


def check_not_tls(address: Address, status: int) -> None:
    """Raises if the answer says that the daemon speaks TLS here, and this client does not."""
    if status == UPGRADE_REQUIRED and address.scheme == "http":
        raise TlsFailed(f"{address} speaks TLS", hint=f"--endpoint {address._replace(scheme='https')} --ca-file FILE")
