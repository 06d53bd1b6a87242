"""The manifest of a backup: `manifest.json` beside the copies of partition files, written last.

A directory without a manifest holds no backup. A later backup into the same directory writes its files under names of
its own and then replaces the manifest in one step, so that there is a whole backup at any time. Whoever can write to
the directory can forge a manifest: its file names stay inside the directory, and links are never followed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from querator.daemon.store import open_regular, replace_file
from querator.errors import ContentError, InvalidRequest, RequestFailed
from querator.items import State
from querator.limits import MANIFEST_BYTES_MAX, PARTITIONS_MAX
from querator.wire import json as wire_json
from querator.wire.messages import QueueInfo

NAME: Final = "manifest.json"
FORMAT: Final = 2

Count = Annotated[int, msgspec.Meta(ge=0)]


class Entry(msgspec.Struct, kw_only=True):
    """One partition of a backup: its file and the expected contents."""

    partition: Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]
    state: State
    """The requested state. Partitions whose file is closed are not backed up."""
    resume_at: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)] = 0
    """When a pause ends by itself, in microseconds since 1970; 0 if it does not."""
    uuid: str
    file: Annotated[str, msgspec.Meta(pattern=r"\Apartition-[0-9]{1,4}-[0-9a-f]{8}\.duckdb\Z")]
    bytes: Count
    sha256: str
    rows: dict[str, int]
    """Per table."""


class Manifest(msgspec.Struct, kw_only=True):
    format: int = FORMAT
    querator_version: str
    created_at: str
    queue: dict[str, Any]
    """The queue's settings, as `queues.info` gives them."""
    partitions: list[Entry]

    @property
    def settings(self) -> QueueInfo:
        return wire_json.decode(QueueInfo, msgspec.json.encode(self.queue))


def file_name(partition: int, job_id: str) -> str:
    return f"partition-{partition}-{job_id}.duckdb"


def target_directory(text: str, field: str) -> Path:
    """Blocking. Returns the directory that a request names, with links in its path resolved."""
    if "\0" in text or not Path(text).is_absolute():
        raise InvalidRequest(f"{field} is invalid; {text!r} must be an absolute path on the daemon's machine")
    try:
        return Path(text).resolve()
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError
        raise InvalidRequest(f"{field} is invalid; {text!r} cannot be resolved: {error}") from None


def read(directory: Path) -> Manifest:
    """Blocking."""
    try:
        with open_regular(directory / NAME) as file:
            content = file.read(MANIFEST_BYTES_MAX + 1)
    except OSError as error:
        raise RequestFailed(f"there is no backup in {directory}; {NAME}: {error.strerror}") from None
    try:
        if len(content) > MANIFEST_BYTES_MAX:
            raise ValueError(f"it has more than {MANIFEST_BYTES_MAX} bytes")
        if (format_ := msgspec.json.decode(content, type=_AnyFormat).format) != FORMAT:
            raise ValueError(f"its format is {format_}, not {FORMAT}")
        found = msgspec.json.decode(content, type=Manifest)
        numbers = [entry.partition for entry in found.partitions]
        if not numbers:
            raise ValueError("it names no partitions")
        if len(set(numbers)) < len(numbers):
            raise ValueError("it names a partition twice")
        if any(entry.state in (State.UNAVAILABLE, State.ERROR) for entry in found.partitions):
            raise ValueError("it names a state in which no partition is backed up")
        _ = found.settings
    except (ValueError, RecursionError, ContentError) as error:
        raise RequestFailed(f"the backup in {directory} cannot be read; {NAME}: {error}") from None
    return found


class _AnyFormat(msgspec.Struct):
    format: int


def write(directory: Path, manifest: Manifest) -> None:
    """Blocking. Replaces the manifest durably."""
    replace_file(directory / NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
