"""The options of the data source: their names, defaults and checks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from querator.client import PATIENCE_SECONDS, BulkClient, Client
from querator.config import ClientTls, read_token
from querator.errors import UsageError
from querator.wire import arrow, bulk_messages

if TYPE_CHECKING:
    from querator.config import ClientSettings

KNOWN: Final = {
    "endpoint": "http://host:port of the daemon, reachable from executors (default: the setting of the command line)",
    "context": "the name of a context, instead of an endpoint",
    "token_file": "a file with the token, on the machine of the driver",
    "ca_file": "a file with the CA of an https endpoint, on every machine (default: the CAs of the system)",
    "client_cert": "a file with a client certificate, on every machine",
    "client_key": "a file with its private key, on every machine",
    "queue": "the name of the queue; required",
    "state": "all (default), stored, ready, leased or scheduled",
    "where": "only items that meet this condition, in the language of `querator sql`; the daemon evaluates it",
    "columns": "only these columns, separated by commas (default: all, and `text`, the payload as text)",
    "splits": "Spark partitions per queue partition (default 1)",
    "request_id": "a repeated write with the same id adds nothing (default: a new id for each write)",
    "patience": "seconds to wait for a daemon that does not answer (300)",
    "lease": "streaming: seconds until leases expire if the query is gone (3600)",
    "items_per_batch": "streaming: maximum number of items in a batch (50000)",
}
STATES: Final = ("all", *bulk_messages.STATES)
BY_SOURCE: Final = "by source"
"""A special `request_id`: the id of each request is made from the source ids of its items."""
_DAEMON_VARIABLES: Final = (
    "QUERATOR_ENDPOINT",
    "QUERATOR_SOCKET",
    "QUERATOR_TOKEN_FILE",
    "QUERATOR_TOKEN",
    "QUERATOR_CA_FILE",
    "QUERATOR_CLIENT_CERT",
    "QUERATOR_CLIENT_KEY",
)
_OPTIONS_OF_SPARK: Final = ("path", "checkpointlocation", "querytype")


class Options(NamedTuple):
    """The checked options. Executors need nothing else."""

    endpoint: str
    token: str
    tls: ClientTls
    queue: str
    state: str
    where: str
    columns: tuple[str, ...]
    splits: int
    request_id: str
    patience: float
    lease_seconds: int
    items_per_batch: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        texts = {name.lower(): value for name, value in given.items()}
        unknown = sorted(texts.keys() - KNOWN.keys() - set(_OPTIONS_OF_SPARK))
        if unknown:
            raise UsageError(f"option '{unknown[0]}' is unknown; known are {', '.join(KNOWN)}")
        if not texts.get("queue"):
            raise UsageError("option 'queue' is missing")
        state = texts.get("state", "all")
        if state not in STATES:
            raise UsageError(f"option 'state' is '{state}', not one of {', '.join(STATES)}")
        columns = columns_of(texts.get("columns", ""))
        endpoint, token, tls = _connection(texts)
        return cls(
            endpoint=endpoint,
            token=token,
            tls=tls,
            queue=texts["queue"],
            state=state,
            where=texts.get("where", "").strip(),
            columns=columns or tuple(arrow.ITEM.names),
            splits=_number(texts, "splits", 1),
            request_id=texts.get("request_id", ""),
            patience=_number(texts, "patience", int(PATIENCE_SECONDS)),
            lease_seconds=_number(texts, "lease", 3_600),
            items_per_batch=_number(texts, "items_per_batch", 50_000),
        )

    def __repr__(self) -> str:
        """Without the token: Spark prints a task's arguments when the task fails."""
        return f"Options(queue={self.queue!r}, endpoint={self.endpoint!r})"

    def bulk(self) -> BulkClient:
        return BulkClient(self.endpoint, token=self.token, tls=self.tls, patience=self.patience)

    def client(self) -> Client:
        return Client(self.endpoint, token=self.token, tls=self.tls, timeout=self.patience)


def columns_of(text: str) -> tuple[str, ...]:
    columns = tuple(name.strip() for name in text.split(",") if name.strip())
    try:
        arrow.chosen(arrow.ITEM, columns)
    except arrow.SchemaError as error:
        raise UsageError(str(error)) from None
    return columns


def _connection(texts: Mapping[str, str]) -> tuple[str, str, ClientTls]:
    endpoint, token_file = texts.get("endpoint", ""), texts.get("token_file", "")
    given = {name: texts[name] for name in ClientTls._fields if texts.get(name)}
    if endpoint:
        token = read_token(token_file, "option token_file") if token_file else ""
        return endpoint, token, ClientTls(**given)
    settings = settings_for(texts.get("context", ""), token_file)
    return str(settings.address.value), settings.token(), settings.tls._replace(**given)


def settings_for(context: str, token_file: str = "") -> ClientSettings:
    """The settings as on the command line. If a context is named, environment variables about a daemon are ignored."""
    from querator import config

    environ = {name: value for name, value in os.environ.items() if not context or name not in _DAEMON_VARIABLES}
    return config.client_settings(context=context or None, token_file=token_file or None, environ=environ)


def _number(texts: Mapping[str, str], name: str, default: int) -> int:
    try:
        value = int(texts.get(name, default))
    except ValueError:
        value = 0
    if value < 1:
        raise UsageError(f"option '{name}' is '{texts[name]}', not a number above 0")
    return value
