"""Waiting for a condition, with a bound. No test waits for time itself: time comes from the test clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 120
"""A test fails when what it waits for has not happened after this long. A busy machine needs far less."""
PAUSE_SECONDS = 0.003
"""The pause between two checks. It leaves the processor to the daemon that the test waits for."""


def until(condition: Callable[[], Any], what: str = "the condition did not become true") -> None:
    """Returns when `condition()` is true. Fails with `what` when that takes too long."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(PAUSE_SECONDS)
