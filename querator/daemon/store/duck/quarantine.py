"""The quarantine of a storage: copies of damaged files, and for each partition the reason why it is not trusted.

A partition with a reason here is not opened. The daemon never deletes anything from here.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from zlib import crc32

from querator import limits
from querator.daemon.store.files import make_directory, replace_file, sync_directory, sync_file

_log = logging.getLogger(__name__)


class Quarantine:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def reason(self, uuid: str) -> str:
        """Why this partition must not be opened; "" when it may be."""
        try:
            return self._reason_path(uuid).read_text().strip()
        except FileNotFoundError:
            return ""

    def put(self, uuid: str, reason: str, files: list[Path]) -> None:
        """Copies closed files, and then notes the reason, durably."""
        for path in files:
            if not self.copy(path):
                _log.warning("%s stays where it is: there is no room for a copy in %s", path, self._directory)
        make_directory(self._directory)
        replace_file(self._reason_path(uuid), f"{reason}\n".encode())

    def copy(self, path: Path) -> bool:
        """Copies a file, if it exists. False if there is no space for a copy. The name of the copy contains a checksum,
        so that the same contents are not copied twice."""
        make_directory(self._directory)
        if not path.exists():
            return True
        copy = self._directory / f"{path.name}.{_checksum(path):08x}"
        if copy.exists():
            return True
        if shutil.disk_usage(self._directory).free < path.stat().st_size + limits.QUARANTINE_ROOM_BYTES_MIN:
            return False
        fresh = copy.with_name(copy.name + ".new")
        shutil.copyfile(path, fresh)
        sync_file(fresh)
        fresh.rename(copy)
        return True

    def lift(self, uuid: str) -> None:
        """Removes the reason, so that the partition may be opened again."""
        path = self._reason_path(uuid)
        if path.exists():
            path.rename(path.with_suffix(".lifted"))
            sync_directory(self._directory)

    def _reason_path(self, uuid: str) -> Path:
        return self._directory / f"{uuid}.reason"


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            checksum = crc32(data, checksum)
    return checksum
