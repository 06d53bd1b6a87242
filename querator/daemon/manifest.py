"""What a backup says of itself: `manifest.json` beside the copies of partition files, written last.

A directory without one holds no backup. A later backup into the same directory writes its files under names of its
own and then replaces the manifest in one step, so that there is a whole backup at any time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from querator.daemon.store.files import replace_file
from querator.errors import InvalidRequest, RequestFailed

NAME: Final = "manifest.json"
FORMAT: Final = 1


class Entry(msgspec.Struct, kw_only=True):
    """One partition: its file, and what must be found in it."""

    partition: int
    uuid: str
    file: str
    bytes: int
    sha256: str
    rows: dict[str, int]
    """Per table."""


class Manifest(msgspec.Struct, kw_only=True):
    format: int = FORMAT
    querator_version: str
    queue_name: str
    created_at: str
    partitions: list[Entry]


def target_directory(text: str, field: str) -> Path:
    """A directory of the daemon's machine, as a request names it."""
    path = Path(text)
    if not text or not path.is_absolute():
        raise InvalidRequest(f"{field} is invalid; '{text}' must be an absolute path on the daemon's machine")
    return path


def read(directory: Path) -> Manifest:
    """Blocking."""
    try:
        content = (directory / NAME).read_bytes()
    except OSError as error:
        raise RequestFailed(f"there is no backup in {directory}; {NAME}: {error.strerror}") from None
    try:
        found = msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise RequestFailed(f"the backup in {directory} cannot be read; {NAME}: {error}") from None
    if found.format != FORMAT:
        raise RequestFailed(f"the backup in {directory} cannot be read; its format is {found.format}, not {FORMAT}")
    return found


def files(directory: Path) -> set[str]:
    """Blocking: the names of the files that belong to the backup in a directory, if it holds one."""
    try:
        return {entry.file for entry in read(directory).partitions}
    except RequestFailed:
        return set()


def write(directory: Path, manifest: Manifest) -> None:
    """Blocking: replaces the manifest, durably, and then deletes the files of the backup that was there before."""
    replace_file(directory / NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    kept = {entry.file for entry in manifest.partitions}
    for path in directory.glob("partition-*.duckdb*"):
        if path.name not in kept:
            path.unlink(missing_ok=True)
