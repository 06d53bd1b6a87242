"""How `.ci/run` judges a test report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

VERDICT = Path(__file__).parent.parent.parent / ".ci" / "verdict.py"


def judge(report: Path, *, passed: int = 1_000, skipped: int = 0, failed: int = 0) -> subprocess.CompletedProcess[str]:
    kinds = [""] * passed + ["<skipped/>"] * skipped + ["<failure/>"] * failed
    cases = "".join(f'<testcase classname="tests.a" name="n{i}">{kind}</testcase>' for i, kind in enumerate(kinds))
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return subprocess.run([sys.executable, VERDICT, report], capture_output=True, text=True)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "report.xml"


def test_a_clean_run_passes(report: Path) -> None:
    verdict = judge(report)
    assert (verdict.returncode, verdict.stdout) == (0, "1000 tests passed, 0 skipped, 0 flaky\n")


def test_two_flaky_tests_are_named_and_tolerated(report: Path) -> None:
    verdict = judge(report, failed=2)
    assert verdict.returncode == 0
    assert "flaky: tests.a::n1000 failed" in verdict.stdout
    assert "flaky: tests.a::n1001 failed" in verdict.stdout


@pytest.mark.parametrize("counts", [{"failed": 3}, {"passed": 999}, {"skipped": 112}])
def test_three_flaky_tests_too_few_tests_or_too_many_skips_fail_the_run(report: Path, counts: dict[str, int]) -> None:
    assert judge(report, **counts).returncode == 1
