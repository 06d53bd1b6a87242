"""Who is calling and what they may do: callers, roles, tokens, the count of failed attempts, and the audit log.

    caller = access.authenticate(peer, headers)      raises Unauthorized
    caller = access.caller_of_token(text)            for a page with a field for a token; raises Unauthorized
    caller = access.caller_of_certificate(name)      for TLS; None if the configuration gives the name no role
    access.check(caller, Right.OPERATE, ["orders"])  raises Unauthorized or Forbidden
    access.admit(caller, peer, "queue.clear", …)     the same for a request, with a line in the audit log if denied
    access.audit.changed(caller, peer, …)            a line in the audit log for a change; durable before its answer
    caller.may(Right.VIEW, "orders")                 for lists, which leave out what a caller may not see

A caller ends when its token is revoked or expires. Connections may still remember it, so its `ended` then holds the
text of their 401. Nothing here knows HTTP or checks whether a queue exists.
"""

from querator.daemon.access.admission import ACCESS_DENIED, Access
from querator.daemon.access.audit import AuditLine
from querator.daemon.access.callers import UNIX, Caller, CallerKind, Peer
from querator.daemon.access.failed_attempts import FailedAttempts
from querator.daemon.access.roles import RIGHTS, Right
from querator.daemon.access.web_pages import Headers

__all__ = [
    "ACCESS_DENIED",
    "RIGHTS",
    "UNIX",
    "Access",
    "AuditLine",
    "Caller",
    "CallerKind",
    "FailedAttempts",
    "Headers",
    "Peer",
    "Right",
]
