"""Producers and consumers at full speed, while an operator runs random commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.maintenance import torture


def test_nothing_is_lost_or_doubled(tmp_path: Path):
    torture.run(tmp_path, seconds=8, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 4))
def test_for_two_minutes(tmp_path: Path, seed):
    print(torture.run(tmp_path, seconds=120, seed=seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 6))
def test_with_a_daemon_that_is_killed_again_and_again(tmp_path: Path, seed):
    print(torture.run(tmp_path, seconds=60, seed=seed, kill=True))
