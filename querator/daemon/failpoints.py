"""Named steps at which a test can kill the process, as kill -9 would: `QUERATOR_FAILPOINT=migrate.copied`.

`name:3` means the third time that the step is reached. Without the variable a step costs one comparison.
"""

from __future__ import annotations

import os
import signal
import threading

_name, _, _count = os.environ.get("QUERATOR_FAILPOINT", "").partition(":")
_left = int(_count or 1)
_lock = threading.Lock()


def failpoint(name: str) -> None:
    if not _name or name != _name:
        return
    global _left
    with _lock:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()  # nothing after this line may run, even if the signal arrives late
