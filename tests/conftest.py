"""Settings for all tests."""

from __future__ import annotations

import platform
import signal
from typing import Any

import pytest
from hypothesis import settings

from querator import build

TOGETHER = ("tests/console/", "tests/spark/", "tests/docs/", "tests/packaging/")
"""Tests of each of these folders run in one process, because they share something that is slow to create."""


# The duration of an example depends on the machine, so hypothesis must not judge it.
settings.register_profile("querator", deadline=None)
settings.load_profile("querator")


def pytest_configure() -> None:
    # A shell starts background jobs with Ctrl-C ignored. Commands inherit that, and tests could not interrupt them.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for source in build.stale_sources():
        raise pytest.UsageError(f"{source} is newer than its compiled module: make compiled, or make plain")


def pytest_report_header() -> str:
    return f"querator: {build.name()} build, Python {platform.python_version()}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    # pytest 9.2 ignores xdist_group, which is xdist's own marker for this.
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid)

    return Together(config, log)
