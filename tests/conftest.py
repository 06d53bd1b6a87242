"""What holds for all tests."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import settings

TOGETHER = ("tests/spark/", "tests/docs/", "tests/packaging/")
"""Tests that share something which takes long to make: in one process, however many there are."""


# How long an example takes says more about the machine than about us.
settings.register_profile("querator", deadline=None)
settings.load_profile("querator")


def pytest_configure() -> None:
    # A job that a shell started in the background ignores Ctrl-C, and so would every command that a test interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    # xdist's own marker for this, xdist_group, is not heard by pytest 9.2.
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid)

    return Together(config, log)
