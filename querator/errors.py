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
    ├── TimedOut                the caller's own time ran out
    ├── UsageError              the command line makes no sense
    ├── ConfigError             a setting makes no sense
    ├── PartlyDone              some of it failed
    └── Interrupted             Ctrl-C
"""

from __future__ import annotations

from typing import ClassVar


class QueratorError(Exception):
    """Something went wrong."""

    code: ClassVar[int] = 0
    code_text: ClassVar[str] = ""
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        self.message = message or (self.__doc__ or "")
        self.hint = hint
        super().__init__(self.message)


class InvalidRequest(QueratorError):
    """The request is invalid."""

    code = 400
    code_text = "Bad Request"


class NotFound(InvalidRequest):
    """There is no such thing."""

    exit_code = 4


class Conflict(InvalidRequest):
    """Something that is under way forbids this."""

    exit_code = 5


class Unauthorized(QueratorError):
    """Credentials are missing or invalid."""

    code = 401
    code_text = "Unauthorized"


class Forbidden(QueratorError):
    """Access denied."""

    code = 403
    code_text = "Forbidden"


class RequestFailed(QueratorError):
    """The request failed."""

    code = 453
    code_text = "Request Failed"


class RetryRequest(QueratorError):
    """Not now; the same request may succeed later."""

    code = 454
    code_text = "Retry Request"
    exit_code = 7


class ContentError(QueratorError):
    """The content type or the body is not understood."""

    code = 455
    code_text = "Client Content Error"


class InternalError(QueratorError):
    """Internal Error"""

    code = 500
    code_text = "Internal Service Error"


class UnknownMethod(QueratorError):
    """There is no such method."""

    code = 501
    code_text = "Not Implemented"


class TransportError(QueratorError):
    """The request could not be read."""

    code = 512
    code_text = "Transport Error"


class Unreachable(QueratorError):
    """No daemon answers."""

    exit_code = 6


class TimedOut(QueratorError):
    """Time ran out."""

    exit_code = 7


class UsageError(QueratorError):
    """The command line makes no sense."""

    exit_code = 2


class ConfigError(QueratorError):
    """The configuration makes no sense."""


class PartlyDone(QueratorError):
    """Some of it failed."""

    exit_code = 3


class Interrupted(QueratorError):
    """Interrupted."""

    exit_code = 130


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
        missing = ("queue does not exist", "job does not exist", "storage does not exist")
        if subject in missing or message.endswith("is not a valid partition"):
            return NotFound(message)
        if subject in ("reload is already running", "partition is busy") or message.endswith("already exists"):
            return Conflict(message)
    return BY_CODE.get(code, QueratorError)(message)
