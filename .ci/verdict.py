"""Judges a test run by its report: `verdict.py REPORT.xml`, after every test that failed has passed on its own.

A run that was green because it ran next to nothing fails here. A test that failed beside others and passed alone is
flaky: it is printed with its name, and three of them in one run fail the run.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as xml

PASSED_MIN = 1_000
SKIPPED_SHARE_MAX = 0.1
FLAKY_MAX = 2


def main(path: str) -> int:
    cases = list(xml.parse(path).getroot().iter("testcase"))
    skipped = [case for case in cases if case.find("skipped") is not None]
    flaky = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    passed = len(cases) - len(skipped) - len(flaky)
    for case in flaky:
        print(f"flaky: {case.get('classname')}::{case.get('name')} failed beside other tests and passed alone")
    print(f"{passed} tests passed, {len(skipped)} skipped, {len(flaky)} flaky")
    if passed < PASSED_MIN or len(skipped) > SKIPPED_SHARE_MAX * len(cases):
        print(f"error: a run must pass at least {PASSED_MIN} tests and skip at most {SKIPPED_SHARE_MAX:.0%} of them")
        return 1
    if len(flaky) > FLAKY_MAX:
        print(f"error: at most {FLAKY_MAX} flaky tests are tolerated in one run; mend the ones named above")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
