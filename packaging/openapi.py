"""The OpenAPI description of the daemon's HTTP API, and the reference page made from it.

Paths, bodies and limits come from `querator/daemon/http/routes.py` and `querator/wire/`. This file adds only what the
code does not say: which message answers a call, and a sentence on each call and field. A call or field without
its sentence is an error, so that neither file can fall behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from querator import __version__
from querator.daemon.http import routes
from querator.wire import arrow, bulk_messages, messages, schema
from querator.wire import messages as m

ARROW = arrow.CONTENT_TYPE


class Said(NamedTuple):
    summary: str
    answer: type[m.Message] = m.Reply


CALLS: dict[str, Said] = {
    "queue.produce": Said("Add items, all or none. Answered when they are durable."),
    "queue.lease": Said("Lease items; waits for the first until the request timeout, then 454.", m.QueueLeaseResponse),
    "queue.complete": Said("Done with these items. Safe to repeat; ids may be of several partitions."),
    "queue.retry": Said("Hand leased items back: now, at a time, or straight to the dead queue."),
    "queue.extend": Said("Keep leased items for longer, all of them or none.", m.QueueExtendResponse),
    "queue.stats": Said("Counts by partition, and who waits.", m.QueueStatsResponse),
    "queue.clear": Said("Delete ready items, scheduled ones, or with `destructive` leased ones too."),
    "queue.reload": Said("Close, reopen and read every partition again, one after another."),
    "queues.create": Said("Create a queue."),
    "queues.list": Said("Queues by name, from `pivot` on.", m.QueuesListResponse),
    "queues.update": Said(
        "Change a queue. Timeouts and partitions that are absent stay; all else is set to what the request says."
    ),
    "queues.delete": Said("Delete a queue and its items. One that is in use as a dead queue needs `force`."),
    "queues.info": Said("One queue.", m.QueueInfo),
    "storage/items.list": Said("Stored items of a partition by id, leased ones included.", m.StorageItemsListResponse),
    "storage/items.import": Said(
        "Put items into a partition with their state. One whose source_id is there already is skipped.",
        m.StorageItemsImportResponse,
    ),
    "storage/items.delete": Said("Delete items of a partition, leased or not."),
    "storage/scheduled.list": Said("Scheduled items of a partition by id.", m.StorageItemsListResponse),
    "items.inspect": Said("All that is known of one item, deaths included.", m.ItemsInspectResponse),
    "sql": Said("A SELECT over the open partitions of a queue; read-only, with limits on time and memory."),
    "partitions.list": Said("Partitions of a queue, or of all queues.", m.PartitionsListResponse),
    "partitions.pause": Said("No produce and no lease, until resumed or for a while."),
    "partitions.resume": Said("Back to available."),
    "partitions.drain": Said("No produce; what is there is leased until nothing is left."),
    "partitions.offline": Said("Close the files, so that an operator may touch them."),
    "partitions.reload": Said("Close, reopen and read again, one after another; answered when done."),
    "partitions.verify": Said("Read everything and compare it with what the daemon believes.", m.JobReply),
    "partitions.compact": Said("Give the space of deleted rows back.", m.JobReply),
    "partitions.migrate": Said("Move a partition to a storage, or its items into another partition.", m.JobReply),
    "partitions.backup": Said("Snapshot live partitions into a directory of the daemon's machine.", m.JobReply),
    "partitions.accept_loss": Said(
        "Open a partition that cannot be trusted, without what it lost.", m.PartitionsAcceptLossResponse
    ),
    "partitions.restore": Said("Bring a backup back.", m.JobReply),
    "storages.list": Said("Where storages lie, what is in them, and how much room they have.", m.StoragesListResponse),
    "jobs.list": Said("Jobs that run, and those that ended lately.", m.JobsListResponse),
    "jobs.show": Said("One job.", m.Job),
    "jobs.cancel": Said("Stop a job; what it has begun is finished or undone."),
    "clock.advance": Said("Move the test clock on; what comes due has happened when it answers.", m.ClockResponse),
    "clock.set": Said("Set the test clock, also backwards.", m.ClockResponse),
}

GROUPS = {
    "queue": "Items of a queue",
    "queues": "Queues",
    "items": "What is stored",
    "storage": "What is stored",
    "sql": "What is stored",
    "partitions": "Partitions",
    "storages": "Storages",
    "jobs": "Jobs",
    "clock": "The test clock",
    "bulk": "Bulk data",
}

FIELDS: dict[str, str] = {
    "applied": "The last journal record that the partition's file has.",
    "attempts": "How often it was leased.",
    "average_age": "Mean age of the items, as a duration.",
    "average_leased_age": "Mean time left to the leases, as a duration.",
    "at": "When it died, or when the attempt ended.",
    "attempt": "The number of the attempt.",
    "batch_size": "At most so many items, 1 to 1,000.",
    "by": "How far, as a duration.",
    "bytes": "The payload, in base64.",
    "client_id": "The consumer: who leases, or who holds the item. A queue takes one waiting lease per client id.",
    "code": "200, or the error; the same as the HTTP status.",
    "code_text": "The name of the code.",
    "complete_ids": "Items to complete first, in the same step; of any partition, at most 1,000.",
    "complete_waiting": "Completes that wait for a pass.",
    "completed_last_minute": "How many items consumers completed in the last minute.",
    "created_at": "When it was made.",
    "dead": "Straight to the dead queue; wins over retry_at.",
    "dead_deadline": "Not used.",
    "dead_queue": "Where dead items go; must exist and have no dead queue of its own.",
    "destructive": "With `queue`: leased and scheduled items too.",
    "details": "More about what was done: `repeated` if a produce was carried out before, under the same request id.",
    "directory": "Where it lies, on the daemon's machine.",
    "done": "Items or bytes so far.",
    "drained": "Draining, and nothing is left.",
    "encoding": "How the payload is encoded; told to consumers, not looked at.",
    "ended_at": "When it ended.",
    "enqueue_at": "Not before this time; absent or past is now.",
    "expire_deadline": "When it is dead if nobody completes it.",
    "expire_timeout": "How long an item lives if nobody completes it, as a duration.",
    "extended": "Also answer with fields that clients of the original service refuse, such as `figures`.",
    "failures": "How often its storage failed since it last worked.",
    "figures": "What the queue holds and does; only in answers to `extended` requests.",
    "file": "Its file, below the storage's directory.",
    "for": "Resume by itself after this duration.",
    "force": "Delete it although another queue uses it as its dead queue.",
    "format": "`json` (the default), `ndjson`, `csv` or `arrow`.",
    "free_bytes": "Room that is left on its disk.",
    "from": "The backup's directory.",
    "dry_run": "Run every check, change nothing, and start no job.",
    "failed_attempts": "Its last failed attempts, at most 10, the latest last.",
    "held": "How long the client held the item, as a duration.",
    "history": "Its deaths, the latest last.",
    "id": "The item's id, 27 characters.",
    "ids": "Ids of items, 1 to 1,000.",
    "in_flight": "Requests under way, waiting leases included.",
    "is_leased": "Whether somebody holds it.",
    "item": "The item.",
    "items": "The items.",
    "job_id": "The job's id; empty if there is none.",
    "journal_bytes": "What its journal takes on the disk.",
    "kind": "What sort it is.",
    "lease_deadline": "When the lease ends; year 1 if it is not leased.",
    "leased_at": "When it was leased; absent if it is not.",
    "lease_timeout": "How long a consumer may hold an item, as a duration.",
    "lease_waiting": "Leases that wait for an item.",
    "leased": "How many are leased.",
    "limit": "At most so many; 0 is the default.",
    "logicalQueues": "One entry.",
    "max_attempts": "Leases before an item is dead; 0 is no limit.",
    "message": "What happened, in a sentence.",
    "namespace": "Kept for clients that send one; `_system` if empty.",
    "now": "The time.",
    "oldest_age": "Age of the oldest item that is ready or leased, as a duration; empty if there is none.",
    "partition": "Number of the partition.",
    "partition_bytes": "What its partition files take on the disk.",
    "partitions": "Numbers of partitions; none means all.",
    "counts": "Answer with the number of deleted items by state, in `details`.",
    "produced_last_minute": "How many items were added in the last minute.",
    "purpose": "Why the items are deleted, for the daemon's log; at most 256 characters are kept.",
    "keep_states": "Keep each partition's requested state, and skip offline partitions.",
    "payload": "The payload, in base64.",
    "pivot": "From here on, this one included.",
    "produce_waiting": "Produces that wait for a pass.",
    "query": "One SELECT; tables items, leases and scheduled. Their column `text` is the payload as text.",
    "queue": "Ready items.",
    "queue_name": "Name of the queue.",
    "ready": "How many items wait to be leased.",
    "reason": "Why: of a death `max_attempts`, `expired` or `client`; of a state or job a sentence; of a failed attempt"
    " what the client said, at most 2,000 bytes.",
    "reference": "A note of the caller's own.",
    "replayed": "How many later records the journal still has.",
    "request_id": "A repeated request with it adds nothing for an hour; up to 256 bytes.",
    "request_timeout": "How long the caller waits, as a duration; up to 15m.",
    "requested_partitions": "How many partitions, from 1 to 1000.",
    "requested_state": "What an operator asked for.",
    "resume_at": "When a pause ends by itself.",
    "retention": "How long items are kept that died in another queue and came here, such as `30d`. `0` keeps them "
    "until they are redriven, completed, cleared or deleted. Absent: off for a new queue, unchanged for an update.",
    "retry_at": "Not before this time; absent or past is now.",
    "scheduled": "Scheduled items.",
    "since": "Since when it is in its state.",
    "source_id": "The id it had in the queue where it died, or the one it was imported with.",
    "state": "Its state: an item's `ready`, `leased`, `scheduled`; a partition's `available`, `paused`, `draining`, "
    "`unavailable`, `error`; a job's `running`, `done`, `failed`, `cancelled`.",
    "storage": "Name of its storage.",
    "timeout": "How long the query may run, as a duration.",
    "to": "A directory on the daemon's machine.",
    "to_partition": "The partition that takes the items.",
    "to_storage": "The storage that takes the file.",
    "total": "How many there are.",
    "total_bytes": "Size of its disk.",
    "total_leased": "How many are leased.",
    "unapplied_bytes": "What the journal holds that is not in the partition files yet.",
    "unused": "The item was not worked on: this lease does not count as an attempt.",
    "updated_at": "When it was last changed.",
    "utf8": "The payload as text; used if `bytes` is empty.",
    # Bulk
    "added": "How many of them were new.",
    "after_id": "Items after this id.",
    "chunks": "In how many steps they became durable.",
    "columns": "Columns of an item; none means all but `text`, the payload as text.",
    "where": "Only items that meet this condition, in SQL over the columns of one item.",
    "splits": "Into how many parts to cut each partition.",
    "upto_id": "Items up to this id.",
    "upto_ids": "The ends of the ranges; the last one is the end of the view.",
}

BULK: dict[str, tuple[str, type[Any] | None, type[Any] | None]] = {
    "items.plan": (
        "Id ranges that cut each partition into about equal parts.",
        bulk_messages.PlanRequest,
        bulk_messages.PlanResponse,
    ),
    "items.scan": ("The items of an id range as an Arrow stream.", bulk_messages.ScanRequest, None),
    "items.produce": ("Produce the rows of an Arrow stream.", None, bulk_messages.WriteResponse),
    "items.import": ("Import the rows of an Arrow stream, with their state.", None, bulk_messages.WriteResponse),
}

ERRORS = {
    400: "The request makes no sense as it stands: a bad value, an unknown queue, partition or id, a conflict.",
    453: "It cannot be done, and repeating it does not help.",
    454: "Not now: nothing to lease in time, a full inbox, a partition that is not available. Repeat it.",
    455: "A body, Content-Type or Accept that is not understood.",
}


def document() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    used: set[type[Any]] = {m.Reply}
    for path, route in routes.table(test_clock=True).items():
        if route.refusal:
            continue  # access control: named for old clients, and always refused
        said = CALLS[route.path]
        used |= {route.message, said.answer}
        answer: dict[str, Any] = {
            "application/json": {"schema": _ref(said.answer)},
            "application/protobuf": {"schema": {"type": "string", "format": "binary"}},
        }
        if route.path == "sql":
            rows = {"type": "array", "items": {"type": "object"}}
            answer = {"application/json": {"schema": rows}} | {
                kind: {"schema": {"type": "string", "format": "binary"}}
                for kind in ("application/x-ndjson", "text/csv", ARROW)
            }
        paths[path] = {
            "post": {
                "operationId": route.path.replace("/", "."),
                "tags": [_group(route.path)],
                "summary": said.summary,
                "x-body-bytes-max": route.body_bytes_max,
                "requestBody": _body({"application/json": _ref(route.message)}, protobuf=True),
                "responses": _responses(answer),
            }
        }
        if route.only_with_test_clock:
            paths[path]["post"]["description"] = "Only with `daemon run --test-clock`."
    for name, (summary, request, reply) in BULK.items():
        paths[bulk_messages.PREFIX + name] = {"post": _bulk_call(name, summary, request, reply)}
        used |= {kind for kind in (request, reply) if kind is not None}
    paths["/health"] = {"get": _health()}
    paths["/metrics"] = {"get": _get("Metrics in Prometheus' text format.", "text/plain")}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Querator",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "Every call is a POST with a JSON or protobuf body. Fields that are zero or empty are left "
            "out of answers, unknown fields are refused. Durations are text such as `1m30s`, times RFC 3339 in UTC.",
        },
        "servers": [{"url": "http://localhost:2319"}],
        "paths": paths,
        "components": {
            "schemas": {kind.__name__: _schema(kind) for kind in _with_children(used)},
            "responses": {
                str(code): {"description": text, "content": {"application/json": {"schema": _ref(m.Reply)}}}
                for code, text in ERRORS.items()
            },
        },
    }


def _group(path: str) -> str:
    return GROUPS[path.replace("/", ".").split(".")[0]]


def _ref(kind: type[Any]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _body(kinds: Mapping[str, Any], *, protobuf: bool = False) -> dict[str, Any]:
    content = {kind: {"schema": schema_} for kind, schema_ in kinds.items()}
    if protobuf:
        content["application/protobuf"] = {"schema": {"type": "string", "format": "binary"}}
    return {"required": True, "content": content}


def _responses(answer: Mapping[str, Any]) -> dict[str, Any]:
    errors = {str(code): {"$ref": f"#/components/responses/{code}"} for code in ERRORS}
    return {"200": {"description": "Done.", "content": dict(answer)}} | errors


def _bulk_call(name: str, summary: str, request: type[Any] | None, reply: type[Any] | None) -> dict[str, Any]:
    stream = {"type": "string", "format": "binary"}
    call: dict[str, Any] = {
        "operationId": f"bulk.{name}",
        "tags": [GROUPS["bulk"]],
        "summary": summary,
        "requestBody": _body({"application/json": _ref(request)} if request else {ARROW: stream}),
        "responses": _responses(
            {"application/json": {"schema": _ref(reply)}} if reply else {ARROW: {"schema": stream}},
        ),
    }
    if request is None:
        call["parameters"] = [
            {
                "name": field,
                "in": "query",
                "required": field == "queue_name",
                "description": FIELDS[field],
                "schema": {"type": "string"},
            }
            for field in ("queue_name", "request_id", "request_timeout")
        ]
    return call


def _health() -> dict[str, Any]:
    status = {"type": "string", "enum": ["pass", "warn", "fail"]}
    check = {
        "type": "object",
        "required": ["componentType", "status", "time"],
        "properties": {
            "componentType": {"const": "datastore"},
            "status": status,
            "time": {"type": "string", "format": "date-time"},
            "output": {"type": "string", "description": "What is wrong; left out when the status is `pass`."},
        },
    }
    checks = {"queues:storage": {"type": "array", "items": check}}
    schema = {
        "type": "object",
        "required": ["status", "version", "checks"],
        "properties": {
            "status": status,
            "version": {"type": "string"},
            "checks": {"type": "object", "required": list(checks), "properties": checks},
        },
    }
    texts = {
        "200": "`pass`: all partitions work. `warn`: some do not, or a storage is nearly full.",
        "503": "`fail`: no partition works that should be open, or the daemon is shutting down.",
    }
    return {
        "tags": ["Health"],
        "summary": "Whether the daemon and its partitions work; 503 if none of them does.",
        "responses": {
            code: {"description": text, "content": {"application/health+json": {"schema": schema}}}
            for code, text in texts.items()
        },
    }


def _get(summary: str, kind: str) -> dict[str, Any]:
    return {
        "tags": ["Health"],
        "summary": summary,
        "responses": {"200": {"description": "Done.", "content": {kind: {"schema": {"type": "string"}}}}},
    }


def _with_children(kinds: set[type[Any]]) -> list[type[Any]]:
    found: set[type[Any]] = set()
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if kind not in found:
            found.add(kind)
            waiting += [child for *_, child in _fields(kind) if child is not None]
    return sorted(found, key=lambda kind: kind.__name__)


def _fields(kind: type[Any]) -> Iterator[tuple[str, dict[str, Any], bool, type[Any] | None]]:
    """Name, schema without description, whether it is required, and the message inside."""
    if issubclass(kind, messages.Message):
        for field in schema.fields(kind):
            described = _ref(field.child) if field.child else _TYPES[field.kind]
            yield field.json_name, _list_of(described) if field.repeated else described, False, field.child
        return
    _, inner = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    described = inner[kind.__name__]
    children = {child.__name__: child for child in (bulk_messages.PlannedPartition,)}
    for name, value in described["properties"].items():
        child = children.get(str(value.get("items", {}).get("$ref", "")).rpartition("/")[2])
        yield name, value, name in described.get("required", ()), child


_TYPES: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "bool": {"type": "boolean"},
    "bytes": {"type": "string", "contentEncoding": "base64"},
    "timestamp": {"type": "string", "format": "date-time"},
    "map": {"type": "object", "additionalProperties": {"type": "string"}},
}


def _list_of(described: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": described}


def _schema(kind: type[Any]) -> dict[str, Any]:
    properties, required = {}, []
    for name, described, needed, _ in _fields(kind):
        properties[name] = {**described, "description": FIELDS[name]}
        required += [name] if needed else []
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


# The page


def page(described: Mapping[str, Any]) -> str:
    lines = [
        "# HTTP API",
        "",
        "Made from [openapi.json](openapi.json) by `packaging/generate.py`; do not edit. It is for those who make",
        "clients; [consumers.md](consumers.md) has examples to copy.",
        "",
        described["info"]["description"] + " Replies are protobuf if `Accept` says `application/protobuf`.",
        "",
        "| status | meaning |",
        "|---|---|",
        *(f"| {code} | {text} |" for code, text in ERRORS.items()),
        "| 500, 501, 512 | a defect, an unknown path, a body that broke off |",
        "",
        "An error's body is a [Reply](#reply).",
        "",
        "Lists, rows of SQL and scans that are long come with `Transfer-Encoding: chunked`, as fast as the client"
        " reads. A client that reads nothing for a minute loses its connection. An answer that has begun and cannot go"
        " on breaks off without its last chunk; the last line of a list in JSON and of rows of SQL is then the error,"
        " as a [Reply](#reply).",
    ]
    calls = [(path, verb, call) for path, verbs in described["paths"].items() for verb, call in verbs.items()]
    for group in dict.fromkeys(call["tags"][0] for _, _, call in calls):
        lines += ["", f"## {group}", "", "| call | body | answer | |", "|---|---|---|---|"]
        for path, verb, call in calls:
            if call["tags"][0] == group:
                more = " " + call["description"] if "description" in call else ""
                request = _link(call["requestBody"]["content"]) if "requestBody" in call else ""
                answer = _link(call["responses"]["200"]["content"])
                lines.append(f"| `{verb.upper()} {path}` | {request} | {answer} | {call['summary']}{more} |")
    lines += ["", "## Messages"]
    for name, kind in described["components"]["schemas"].items():
        lines += ["", f"### {name}", ""]
        if not kind["properties"]:
            lines.append("No fields.")
            continue
        lines += ["| field | type | |", "|---|---|---|"]
        lines += [
            f"| `{field}` | {_type(said)} | {said['description']} |" for field, said in kind["properties"].items()
        ]
    return "\n".join(lines) + "\n"


def _link(content: Mapping[str, Any]) -> str:
    kind, said = next(iter(content.items()))
    if "$ref" in said["schema"]:
        return _type(said["schema"])
    return {ARROW: "Arrow stream", "application/json": "rows"}.get(kind, "text")


def _type(said: Mapping[str, Any]) -> str:
    if "$ref" in said:
        name = said["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if said.get("type") == "array":
        return "list of " + _type(said["items"])
    if "anyOf" in said:
        return " or ".join(_type(one) for one in said["anyOf"])
    return str(said.get("contentEncoding") or said.get("format") or said["type"])


def files() -> dict[str, str]:
    described = document()
    return {
        "docs/openapi.json": json.dumps(described, indent=2, ensure_ascii=False) + "\n",
        "docs/api.md": page(described),
    }
