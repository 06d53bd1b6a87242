"""The cost of a request, on both builds.

The plain build is guarded by executed bytecodes, whose number is the same in every run and on every machine. Compiled
modules execute none, so the compiled build is guarded by its instructions, as a share of those of the plain build on
the same machine: callgrind counts both. Where there is no valgrind, its processor time is compared with that of a fixed
piece of work in the same process. All tests count in processes of their own, so it does not matter on which build the
suite runs.

If a request costs over ten percent more than the number below, make it cheaper, or raise the number on purpose. If it
costs over ten percent less, lower the number.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from bench import hotpath, instructions
from querator import build
from tests import ROOT

BYTECODES = {
    (1, 1): {"produce": 2_630, "lease": 3_281, "complete": 2_484, "in one": 3_554},
    (1, 32): {"produce": 712, "lease": 1_300, "complete": 847, "in one": 1_524},
    (100, 4): {"produce": 2_440, "lease": 3_920, "complete": 1_465, "in one": 4_450},
}
"""Per request of the plain build with Python 3.11, by items per request and clients."""
COMPILED_SHARE_MAX = 0.85
"""The compiled build's instructions per request, of the plain build's; 0.56 to 0.60 when this was written."""
REFERENCES_MAX = {"produce": 1.2, "lease": 1.65, "complete": 1.2, "in one": 1.8}
"""The compiled build's processor time per request, in units of `hotpath.reference_work`, and two thirds more: 0.72,
0.99, 0.71 and 1.09 were measured with Python 3.11."""


def counted(batch: int, clients: int, **settings: Any) -> dict[str, float]:
    """Bytecodes per request of the plain build."""
    return _called(f"run({batch}, {clients}, 4, True, **{settings})", pure=True)


def _called(call: str, *, pure: bool) -> dict[str, float]:
    """The result of a function of bench.hotpath, called in a process of its own."""
    code = f"import json; from bench import hotpath; print(json.dumps(hotpath.{call}))"
    told = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"QUERATOR_PURE": str(int(pure))},
        stdout=subprocess.PIPE,
        timeout=250,
        check=True,
    )
    return json.loads(told.stdout)  # type: ignore[no-any-return]


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the numbers are those of Python 3.11")
@pytest.mark.parametrize("shape", BYTECODES)
def test_a_request_to_the_plain_build_costs_no_more_than_it_did(shape):
    costs = counted(*shape)
    for step, expected in BYTECODES[shape].items():
        assert costs[step] == pytest.approx(expected, rel=0.1), f"{step}: {costs[step]:.0f} bytecodes, not {expected}"


@pytest.mark.skipif(build.name() != build.COMPILED, reason="no compiled modules in this checkout; make compiled")
def test_a_request_to_the_compiled_build_takes_little_time():
    """Needs no tool. The third run decides if other processes slowed the first two down."""
    over: dict[str, float] = {}
    for _ in range(3):
        costs = _called("run_by_reference(1, 1, rounds=300)", pure=False)
        over = {step: costs[step] for step in hotpath.STEPS if costs[step] > REFERENCES_MAX[step]}
        if not over:
            return
    pytest.fail(f"units of the reference work per request: {over}")


@pytest.mark.skipif(build.name() != build.COMPILED, reason="no compiled modules in this checkout; make compiled")
@pytest.mark.skipif(instructions.valgrind() is None, reason="no valgrind; the test above guards the compiled build")
def test_a_request_to_the_compiled_build_costs_much_less():
    # On a busy machine a round can last beyond a second. Work that is done once a second then counts for a request.
    assert any(_dearest_step() < COMPILED_SHARE_MAX for _ in range(2))


def _dearest_step() -> float:
    """The largest share of the plain build's instructions that a step of the compiled one takes."""
    compiled, plain = (instructions.count(["1x1"], rounds=3, pure=pure)["1x1"] for pure in (False, True))
    return max(compiled[step] / plain[step] for step in hotpath.STEPS)


def test_an_item_costs_little_when_it_comes_with_others():
    """A hundred items in one request cost far less than a hundred requests, in every Python version."""
    alone, together = counted(1, 4), counted(100, 4)
    for step in hotpath.STEPS:
        assert together[step] < 13 * alone[step], step


def test_a_request_to_a_queue_of_its_own_costs_a_pass_and_nothing_that_grows_with_the_queues():
    """Each active queue has a pass per turn. What a pass costs must not depend on how many queues there are."""
    together, apart, many = (counted(1, 32, queues=queues) for queues in (1, 8, 32))
    for step in hotpath.STEPS:
        per_pass = (apart[step] - together[step]) / (8 / 32)
        assert many[step] < together[step] + 1.6 * per_pass, step
        assert many[step] < 2.8 * together[step], step


def test_a_request_costs_little_more_with_eight_partitions():
    """A pass looks only at partitions that its requests change. A single lease on one partition has a shorter way."""
    one, eight = (counted(1, 1, partitions=partitions) for partitions in (1, 8))
    for step in hotpath.STEPS:
        assert eight[step] < 1.6 * one[step], step


def test_a_lease_in_protobuf_costs_little_more_steps_than_in_json():
    """JSON needs fewer steps of ours for an answer with items, because msgspec encodes it in a single one."""
    as_json, as_protobuf = (counted(1, 32, dialect=dialect) for dialect in ("json", "protobuf"))
    for step in hotpath.STEPS:
        assert as_protobuf[step] < 1.12 * as_json[step], step
