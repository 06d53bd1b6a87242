"""The call that reads the audit log."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from querator import durations, times
from querator.daemon import validation
from querator.daemon.access import AuditLine
from querator.daemon.registry import Calls, Registry
from querator.errors import InvalidRequest
from querator.limits import AUDIT_LIST_MAX, LIST_LIMIT_DEFAULT, NS_PER_MS
from querator.wire import access_messages


async def list_(registry: Registry, request: access_messages.AuditListRequest) -> access_messages.AuditListResponse:
    if not 0 <= request.limit <= AUDIT_LIST_MAX:
        raise InvalidRequest(f"limit is invalid; it must be from 0 to {AUDIT_LIST_MAX}")
    validation.year("since", request.since)

    def is_wanted(line: AuditLine) -> bool:
        return (not request.who or fnmatchcase(line.who, request.who)) and (
            not request.queue_name or fnmatchcase(line.queue, request.queue_name)
        )

    limit = request.limit or LIST_LIMIT_DEFAULT
    lines = await registry.blocking(
        lambda: registry.access.audit.read(request.since or 0, limit, is_wanted, oldest=request.since is not None)
    )
    return access_messages.AuditListResponse(items=[_entry(line) for line in lines])


def _entry(line: AuditLine) -> access_messages.AuditEntry:
    return access_messages.AuditEntry(
        at=times.parse(line.at),
        who=line.who,
        kind=line.kind,
        address=line.address,
        call=line.call,
        queue_name=line.queue,
        partitions=line.partitions,
        asked=msgspec.json.encode(line.asked).decode() if line.asked else "",
        outcome=line.outcome,
        duration=durations.text(round(line.ms * 1_000) * NS_PER_MS // 1_000),
        unrecorded=line.unrecorded,
    )


CALLS: Calls = {"audit.list": list_}
