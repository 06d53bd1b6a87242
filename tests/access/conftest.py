"""One daemon that needs tokens, for all tests of a module that leave it as it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.access.guarded import Guarded


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("guarded")) as guarded:
        yield guarded
