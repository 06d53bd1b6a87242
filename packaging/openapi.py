"""The OpenAPI description of the daemon's HTTP API, and the reference page made from it.

Paths, bodies and limits come from the table of routes. Fields and their descriptions come from the messages. This file
adds the message that answers each call, and a sentence about the call. A call or field without a sentence is an error,
so that the description is always complete.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from querator import __version__
from querator.daemon.http import routes
from querator.wire import access_messages, bulk_messages, messages, schema
from querator.wire import access_messages as a
from querator.wire import messages as m

ARROW = bulk_messages.ARROW_CONTENT_TYPE


class Summary(NamedTuple):
    text: str
    answer: type[m.Message] = m.Reply


CALLS: dict[str, Summary] = {
    "queue.produce": Summary("Add items, all or none. The answer comes when they are durable."),
    "queue.lease": Summary(
        "Lease items. Waits for the first one until the request timeout, then 454.", m.QueueLeaseResponse
    ),
    "queue.complete": Summary("Complete items. Safe to repeat; the ids can be of several partitions."),
    "queue.retry": Summary("Return leased items to the queue: now, at a time, or straight to the dead queue."),
    "queue.release": Summary("The same for an operator who takes items from a consumer. It is audited."),
    "queue.extend": Summary("Extend the leases of items, all of them or none.", m.QueueExtendResponse),
    "queue.stats": Summary("Counts by partition, and the requests that wait.", m.QueueStatsResponse),
    "queue.clear": Summary("Delete ready items, scheduled ones, or with `destructive` leased ones too."),
    "queue.reload": Summary("Close, reopen and read every partition again, one after another."),
    "queues.create": Summary("Create a queue."),
    "queues.list": Summary("Queues by name, from `pivot` on.", m.QueuesListResponse),
    "queues.update": Summary(
        "Change a queue. Absent timeouts and partitions stay; every other field takes the value in the request."
    ),
    "queues.delete": Summary("Delete a queue and its items. A queue that is in use as a dead queue needs `force`."),
    "queues.info": Summary("The settings of one queue.", m.QueueInfo),
    "queues.history": Summary("What a queue held and did over time.", m.QueuesHistoryResponse),
    "queues.overview": Summary(
        "One page of all queues, sorted, with their figures and their depths of the last 15 minutes.",
        m.QueuesOverviewResponse,
    ),
    "storage/items.list": Summary("Stored items of a partition by id, leased or not.", m.StorageItemsListResponse),
    "storage/items.import": Summary(
        "Put items into a partition with their state. Items whose `source_id` is already there are skipped."
        " At most 1,000,000 items.",
        m.StorageItemsImportResponse,
    ),
    "storage/items.delete": Summary("Delete items of a partition, leased or not."),
    "storage/scheduled.list": Summary("Scheduled items of a partition by id.", m.StorageItemsListResponse),
    "items.inspect": Summary("Everything about one item, deaths included.", m.ItemsInspectResponse),
    "items.redrive": Summary(
        "Start a job that returns dead items to the queues in which they died, each exactly once.", m.JobReply
    ),
    "items.delete": Summary("Start a job that deletes the ready items that meet a condition.", m.JobReply),
    "sql": Summary("Run a SELECT over the open partitions of a queue. Time and memory are limited."),
    "partitions.list": Summary("Partitions of a queue, or of all queues.", m.PartitionsListResponse),
    "partitions.pause": Summary("Stop produce and lease, until resumed or for a given time."),
    "partitions.resume": Summary("Make partitions available again."),
    "partitions.drain": Summary("Stop produce. Items can be leased until none is left."),
    "partitions.offline": Summary("Close the partition files, so that an operator can work on them."),
    "partitions.reload": Summary("Close, reopen and read partitions again, one by one. The answer comes at the end."),
    "partitions.verify": Summary("Read everything and compare it with the daemon's counts.", m.JobReply),
    "partitions.compact": Summary("Give the space of deleted rows back to the file system.", m.JobReply),
    "partitions.migrate": Summary("Move a partition to a storage, or its items into another partition.", m.JobReply),
    "partitions.backup": Summary("Snapshot live partitions into a directory of the daemon's machine.", m.JobReply),
    "partitions.accept_loss": Summary(
        "Open a partition that cannot be trusted, and give up what it lost.", m.PartitionsAcceptLossResponse
    ),
    "partitions.restore": Summary("Restore partitions from a backup.", m.JobReply),
    "daemon.status": Summary("The daemon's process: memory, uptime, time per fsync, recent warnings.", m.DaemonStatus),
    "storages.list": Summary("The storages: their directories, contents and free space.", m.StoragesListResponse),
    "jobs.list": Summary("Jobs that run, and jobs that ended in the last 24 hours.", m.JobsListResponse),
    "jobs.show": Summary("The state of one job.", m.Job),
    "jobs.cancel": Summary("Stop a job. Its current step is finished or undone."),
    "tokens.create": Summary("Create a token. Its secret is only in this answer.", a.TokenSecret),
    "tokens.list": Summary("All tokens, without their secrets.", a.TokensListResponse),
    "tokens.revoke": Summary("Revoke a token. Its next request is refused, and its waiting leases end."),
    "tokens.rotate": Summary("Give a token a new secret. The old one stays valid for a while.", a.TokenSecret),
    "tokens.whoami": Summary("Who the caller is, and what it may do.", a.TokensWhoamiResponse),
    "audit.list": Summary("Entries of the audit log: changes and denials, oldest first.", a.AuditListResponse),
    "clock.advance": Summary("Advance the test clock. What comes due happens before the answer.", m.ClockResponse),
    "clock.set": Summary("Set the test clock, forwards or backwards.", m.ClockResponse),
}

GROUPS = {
    "queue": "Items of a queue",
    "queues": "Queues",
    "items": "What is stored",
    "storage": "What is stored",
    "sql": "What is stored",
    "partitions": "Partitions",
    "storages": "Storages",
    "daemon": "Daemon",
    "jobs": "Jobs",
    "tokens": "Tokens",
    "audit": "The audit log",
    "clock": "The test clock",
    "bulk": "Bulk data",
}

BULK: dict[str, tuple[str, type[Any] | None, type[Any] | None]] = {
    "items.plan": (
        "Plan id ranges that cut each partition into about equal parts.",
        bulk_messages.PlanRequest,
        bulk_messages.PlanResponse,
    ),
    "items.scan": ("Read the items of an id range as an Arrow stream.", bulk_messages.ScanRequest, None),
    "items.produce": ("Produce the rows of an Arrow stream.", None, bulk_messages.WriteResponse),
    "items.import": ("Import the rows of an Arrow stream, with their state.", None, bulk_messages.WriteResponse),
}

ERRORS = {
    400: "The request is invalid: a bad value, an unknown queue, partition or id, or a conflict.",
    401: "There is no token, or it is malformed, unknown, revoked or expired.",
    403: "The caller may not do that on these queues, whether they exist or not.",
    453: "The request cannot be carried out, and repeating it does not help.",
    454: "Not now: nothing to lease in time, a full inbox, or a partition that is not available. Repeat the request.",
    455: "The body, Content-Type or Accept is not understood.",
}


def document() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    used: set[type[Any]] = {m.Reply}
    for path, route in routes.routes_by_path(test_clock=True).items():
        if route.refusal:
            continue  # access control: always refused, but old clients may call it
        call = CALLS[route.path]
        used |= {route.message, call.answer}
        answer: dict[str, Any] = {
            "application/json": {"schema": _ref(call.answer)},
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
                "x-right": route.right.value,
                "tags": [_group(route.path)],
                "summary": call.text,
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
            "description": "Every call is a POST with a JSON or protobuf body. Answers leave out fields that are "
            "zero or empty. Unknown fields are refused. Durations are text such as `1m30s`, times RFC 3339 in UTC.",
        },
        "servers": [{"url": "http://localhost:2319"}],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "qtr-<tag>-<secret and checksum>",
                    "description": "A token of `querator tokens create`. The Unix socket needs none, and neither does"
                    " TCP on loopback before the first token is created.",
                }
            },
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
        "x-right": routes.STREAMS[name].value,
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
                "name": name,
                "in": "query",
                "required": required,
                "description": described.pop("description"),
                "schema": described,
            }
            for name, described, required, _ in _fields(bulk_messages.WriteParameters)
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
        "summary": "Whether the daemon and its partitions work; 503 if no partition works.",
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
    """The name and schema of a field, whether it is required, and the message it contains."""
    if issubclass(kind, messages.Message):
        for field in schema.fields(kind):
            described: dict[str, Any] = _ref(field.child) if field.child else _TYPES[field.kind]
            if field.repeated:
                described = {"type": "array", "items": described}
            text = DESCRIPTIONS[kind.__name__, field.attribute]
            yield field.json_name, {**described, "description": text}, False, field.child
        return
    _, inner = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    whole = inner[kind.__name__]
    children = {child.__name__: child for child in (bulk_messages.PlannedPartition,)}
    for name, value in whole["properties"].items():
        child = children.get(str(value.get("items", {}).get("$ref", "")).rpartition("/")[2])
        value = {
            key: text for key, text in value.items() if key != "default" or kind is not bulk_messages.WriteParameters
        }
        yield (
            name,
            {**value, "description": DESCRIPTIONS[kind.__name__, name]},
            name in whole.get("required", ()),
            child,
        )


def _descriptions(*modules: Any) -> dict[tuple[str, str], str]:
    """The docstring of every field. A field without one has the meaning of the field with the same name above it."""
    latest: dict[str, str] = {}
    found = {}
    for module in modules:
        for kind in ast.parse(inspect.getsource(module)).body:
            if not isinstance(kind, ast.ClassDef):
                continue
            for statement, following in zip(kind.body, [*kind.body[1:], None], strict=True):
                if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                    continue
                name = statement.target.id
                if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                    latest[name] = " ".join(str(following.value.value).split())
                if name in latest:
                    found[kind.name, name] = latest[name]
    return found


DESCRIPTIONS = _descriptions(messages, access_messages, bulk_messages)


_TYPES: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "bool": {"type": "boolean"},
    "bytes": {"type": "string", "contentEncoding": "base64"},
    "timestamp": {"type": "string", "format": "date-time"},
    "map": {"type": "object", "additionalProperties": {"type": "string"}},
}


def _schema(kind: type[Any]) -> dict[str, Any]:
    properties, required = {}, []
    for name, described, needed, _ in _fields(kind):
        properties[name] = described
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
        "Made from [openapi.json](openapi.json) by `packaging/generate.py`; do not edit. It is for authors of",
        "clients. [consumers.md](consumers.md) has examples to copy.",
        "",
        described["info"]["description"] + " Replies are protobuf if `Accept` says `application/protobuf`.",
        "",
        "| status | meaning |",
        "|---|---|",
        *(f"| {code} | {text} |" for code, text in ERRORS.items()),
        "| 500, 501, 512 | A defect, an unknown path, a body that broke off. |",
        "",
        "An error's body is a [Reply](#reply).",
        "",
        "A client sends its token as `Authorization: Bearer qtr-…`. The column `right` says what its role must allow;"
        " [security.md](security.md) has the roles.",
        "",
        "Long lists, SQL results and scans are sent with `Transfer-Encoding: chunked`, as fast as the client reads."
        " A client that reads nothing for a minute loses its connection. If an error occurs after an answer has begun,"
        " it breaks off without its last chunk. The last line of a JSON list or an SQL result is then the error,"
        " as a [Reply](#reply).",
    ]
    calls = [(path, verb, call) for path, verbs in described["paths"].items() for verb, call in verbs.items()]
    for group in dict.fromkeys(call["tags"][0] for _, _, call in calls):
        lines += ["", f"## {group}", "", "| call | right | body | answer | |", "|---|---|---|---|---|"]
        for path, verb, call in calls:
            if call["tags"][0] == group:
                more = " " + call["description"] if "description" in call else ""
                request = _link(call["requestBody"]["content"]) if "requestBody" in call else ""
                answer = _link(call["responses"]["200"]["content"])
                right = call.get("x-right") or routes.PAGES[path].value
                lines.append(f"| `{verb.upper()} {path}` | {right} | {request} | {answer} | {call['summary']}{more} |")
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
