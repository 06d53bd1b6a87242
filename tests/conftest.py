"""What holds for all tests."""

from __future__ import annotations

import signal

import pytest


def pytest_configure() -> None:
    # A job that a shell started in the background ignores Ctrl-C, and so would every command that a test interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # One Spark is enough: it takes long to start, and two cores.
    for item in items:
        if "spark" in item.path.parent.name:
            item.add_marker(pytest.mark.xdist_group("spark"))
