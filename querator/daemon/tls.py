"""TLS for the TCP listener, and new certificates without a restart.

`ServerTls` owns the certificate in use. Each new connection gets the newest certificate that passed the checks of
`certificates`, and keeps it. The only HTTP here is the answer to a client that speaks plain HTTP.
"""

from __future__ import annotations

import logging
import ssl
import time
from typing import Any, Final

from querator import limits
from querator.config import TlsConfig
from querator.daemon import certificates
from querator.errors import QueratorError

log = logging.getLogger("querator.tls")

SECONDS_PER_DAY: Final = 86_400
_NEEDS_TLS: Final = b'{"code":426,"code_text":"Upgrade Required","message":"this address speaks TLS; use https://"}'
_PLAIN_HTTP_ANSWER: Final = (
    b"HTTP/1.1 426 Upgrade Required\r\nupgrade: TLS/1.2, HTTP/1.1\r\nconnection: upgrade, close\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_NEEDS_TLS), _NEEDS_TLS)
)

FilesVersion = tuple[tuple[int, int, int], ...]
"""What changes when somebody writes or replaces one of the files: inode, size and time of each."""


class ServerTls:
    """The certificate of a daemon. `context` is what the listener uses."""

    def __init__(self, files: TlsConfig) -> None:
        """Raises ConfigError if the files cannot be used."""
        self._files = files
        self._loaded_version = self._seen_version = self._version()
        first, self.validity = _load(files)
        self.context = _NewestContext(first)

    @property
    def days_left(self) -> float:
        return (self.validity.ends_at - time.time()) / SECONDS_PER_DAY

    def health(self) -> dict[str, Any]:
        """The entry of `/health`. It never fails, because each caller decides how many days are too few."""
        return {
            "componentType": "component",
            "status": "pass",
            "observedValue": round(self.days_left, 2),
            "observedUnit": "days",
        }

    def renew(self) -> None:
        """Uses the files as they are now for new connections. If they cannot be used, the old certificate stays."""
        self._loaded_version = self._seen_version = self._version()
        try:
            self.context.newest, self.validity = _load(self._files)
        except QueratorError as error:
            log.error(
                "the new TLS certificate is not used; the old one stays",
                extra={"reason": error.message, "hint": error.hint, "days_left": round(self.days_left, 1)},
            )
        else:
            log.info("the TLS certificate was read again", extra={"days_left": round(self.days_left, 1)})

    def renew_if_changed(self) -> None:
        """Renews once the files have changed and then stayed the same for two calls: key and certificate are written
        one after the other."""
        version = self._version()
        if version == self._seen_version != self._loaded_version:
            self.renew()
        self._seen_version = version

    def _version(self) -> FilesVersion:
        found = []
        for path in (self._files.cert, self._files.key, self._files.client_ca):
            if path is not None:
                try:
                    status = path.stat()
                    found.append((status.st_ino, status.st_size, status.st_mtime_ns))
                except OSError:
                    found.append((0, 0, 0))
        return tuple(found)


def _load(files: TlsConfig) -> tuple[ssl.SSLContext, certificates.Validity]:
    context, validity = certificates.load(files)
    context.sslobject_class = _Handshake
    return context, validity


class _NewestContext(ssl.SSLContext):
    """The context that the event loop keeps for as long as it listens. It hands each new connection to the newest
    context, so that a renewal changes everything at once and touches no open connection."""

    newest: ssl.SSLContext

    def __new__(cls, newest: ssl.SSLContext) -> _NewestContext:
        self = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        self.newest = newest
        return self

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **more: Any) -> ssl.SSLObject:
        handshake = self.newest.wrap_bio(incoming, outgoing, *args, **more)
        assert isinstance(handshake, _Handshake)
        handshake.incoming, handshake.outgoing = incoming, outgoing
        return handshake


class _Handshake(ssl.SSLObject):
    """The TLS side of a connection. A client whose handshake fails is told why before the connection ends.

    The event loop would drop the connection, and the alert with it. So a failed handshake asks for more bytes instead,
    which makes the loop send the alert. The connection ends when the client ends it, sends too much, or takes too long.
    """

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    _failure: ssl.SSLError | None = None
    _ignored_bytes = 0

    def do_handshake(self) -> None:
        if self._failure is None:
            try:
                super().do_handshake()
                return
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                log.debug("a TLS handshake failed", extra={"reason": certificates.reason(error)})
                self._failure = error
                if error.reason == "HTTP_REQUEST":
                    self.outgoing.write(_PLAIN_HTTP_ANSWER)
        self._ignored_bytes += len(self.incoming.read())
        if self._ignored_bytes > limits.OVER_LIMIT_DRAIN_BYTES_MAX:
            raise self._failure
        raise ssl.SSLWantReadError
