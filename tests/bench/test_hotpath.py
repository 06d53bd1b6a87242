"""The cost of a request in executed bytecodes. The number is the same in every run and on every machine.

The test fails when a request costs over ten percent more or less than the number below. If it costs more, make it
cheaper, or raise the number on purpose. If it costs less, lower the number.
"""

from __future__ import annotations

import sys

import pytest

from bench import hotpath

BYTECODES = {
    (1, 1): {"produce": 2_930, "lease": 3_610, "complete": 2_800, "in one": 3_930},
    (1, 32): {"produce": 780, "lease": 1_180, "complete": 930, "in one": 1_440},
    (100, 4): {"produce": 2_450, "lease": 6_170, "complete": 1_360, "in one": 7_240},
}
"""Per request, with Python 3.11, by items per request and clients."""


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the numbers are those of Python 3.11")
@pytest.mark.parametrize("shape", BYTECODES)
def test_a_request_costs_no_more_than_it_did(shape):
    batch, clients = shape
    costs = hotpath.run(batch, clients, rounds=4, count=True)
    for step, expected in BYTECODES[shape].items():
        assert costs[step] == pytest.approx(expected, rel=0.1), f"{step}: {costs[step]:.0f} bytecodes, not {expected}"


def test_an_item_costs_little_when_it_comes_with_others():
    """A hundred items in one request cost far less than a hundred requests, in every Python version."""
    alone, together = hotpath.run(1, 4, 4, count=True), hotpath.run(100, 4, 4, count=True)
    for step in hotpath.STEPS:
        assert together[step] < 8 * alone[step], step


def test_a_request_to_a_queue_of_its_own_costs_a_pass_and_nothing_that_grows_with_the_queues():
    """Each active queue has a pass per turn. What a pass costs must not depend on how many queues there are."""
    together, apart, many = (hotpath.run(1, 32, 4, count=True, queues=queues) for queues in (1, 8, 32))
    for step in hotpath.STEPS:
        per_pass = (apart[step] - together[step]) / (8 / 32)
        assert many[step] < together[step] + 1.6 * per_pass, step
        assert many[step] < 4 * together[step], step
