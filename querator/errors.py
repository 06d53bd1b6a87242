"""One tree of errors. Each has its code on the wire and the exit code of the command line.

QueratorError
├── on the wire
│   ├── InvalidRequest     400  Bad Request
│   │   ├── NotFound       400  (a queue, partition or job that does not exist)
│   │   └── Conflict       400  (another operation is under way)
│   ├── Unauthorized       401  Unauthorized
│   ├── Forbidden          403  Forbidden
│   ├── RequestFailed      453  Request Failed
│   ├── RetryRequest       454  Retry Request
│   ├── ContentError       455  Client Content Error
│   ├── InternalError      500  Internal Service Error
│   ├── UnknownMethod      501  Not Implemented
│   └── TransportError     512  Transport Error
└── on this side of the wire
    ├── Unreachable             no daemon answers
    │   └── TlsFailed           a certificate or a setting of TLS is wrong
    ├── TimedOut                the caller's own time ran out
    ├── UsageError              the command line makes no sense
    ├── ConfigError             a setting makes no sense
    ├── PartlyDone              some of it failed
    ├── Replaced                another daemon owns the archive
    └── Interrupted             Ctrl-C
"""

from __future__ import annotations

from typing import ClassVar


class QueratorError(Exception):
    """Something went wrong."""

    code: ClassVar[int] = 0
    code_text: ClassVar[str] = ""
    exit_code: ClassVar[int] = 1

    def __init_subclass__(cls, code: int = 0, text: str = "", exit_code: int = 0) -> None:
        """A subclass inherits what it does not name."""
        cls.code, cls.code_text = code or cls.code, text or cls.code_text
        cls.exit_code = exit_code or cls.exit_code

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        self.message = message or (self.__doc__ or "")
        self.hint = hint
        super().__init__(self.message)


class InvalidRequest(QueratorError, code=400, text="Bad Request"):
    """The request is invalid."""


class NotFound(InvalidRequest, exit_code=4):
    """There is no such thing."""


class Conflict(InvalidRequest, exit_code=5):
    """Something that is under way forbids this."""


class Unauthorized(QueratorError, code=401, text="Unauthorized"):
    """Credentials are missing or invalid."""


class Forbidden(QueratorError, code=403, text="Forbidden"):
    """Access denied."""


class RequestFailed(QueratorError, code=453, text="Request Failed"):
    """The request failed."""


class RetryRequest(QueratorError, code=454, text="Retry Request", exit_code=7):
    """Not now; the same request may succeed later."""


class ContentError(QueratorError, code=455, text="Client Content Error"):
    """The content type or the body is not understood."""


class InternalError(QueratorError, code=500, text="Internal Service Error"):
    """Internal Error"""


class UnknownMethod(QueratorError, code=501, text="Not Implemented"):
    """There is no such method."""


class TransportError(QueratorError, code=512, text="Transport Error"):
    """The request could not be read."""


class Unreachable(QueratorError, exit_code=6):
    """No daemon answers."""


class TlsFailed(Unreachable):
    """The daemon and this client cannot agree on a TLS connection. Repeating the call is useless."""


class TimedOut(QueratorError, exit_code=7):
    """Time ran out."""


class UsageError(QueratorError, exit_code=2):
    """The command line makes no sense."""


class ConfigError(QueratorError):
    """The configuration makes no sense."""


class PartlyDone(QueratorError, exit_code=3):
    """Some of it failed."""


class Replaced(QueratorError, exit_code=8):
    """Another daemon owns the archive."""


class Interrupted(QueratorError, exit_code=130):
    """Interrupted."""


BY_CODE: dict[int, type[QueratorError]] = {
    error.code: error
    for error in (
        InvalidRequest,
        Unauthorized,
        Forbidden,
        RequestFailed,
        RetryRequest,
        ContentError,
        InternalError,
        UnknownMethod,
        TransportError,
    )
}


def from_wire(code: int, message: str) -> QueratorError:
    """The error for a reply's code and message. The text decides which kind of 400 it is."""
    if code == InvalidRequest.code:
        subject = message.partition(";")[0]
        missing = ("queue does not exist", "job does not exist", "storage does not exist", "token does not exist")
        if subject in missing or message.endswith("is not a valid partition"):
            return NotFound(message)
        if subject in ("reload is already running", "partition is busy") or message.endswith("already exists"):
            return Conflict(message)
    return BY_CODE.get(code, QueratorError)(message, hint=_HINTS.get(message.partition(";")[0], ""))


_HINTS = {
    "authentication required": "a token comes from --token-file, QUERATOR_TOKEN_FILE or QUERATOR_TOKEN; an admin makes"
    " one with querator tokens create",
    "api key is invalid": "the token is mistyped or cut off: copy it again",
    "api key does not exist": "the token was revoked or replaced, or it is for another daemon: querator config show"
    " tells which token and daemon you use",
    "api key has expired": "an admin revokes it and creates another one: querator tokens --help",
    "access denied": "querator tokens whoami shows what you may do",
}
"""What to try after an error, by its text. The daemon sends no hints."""
