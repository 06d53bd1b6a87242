"""Fails if a test run was green because it ran next to nothing: `enough_tests.py REPORT.xml`."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as xml

PASSED_MIN = 1_000
SKIPPED_SHARE_MAX = 0.1


def main(path: str) -> int:
    suites = list(xml.parse(path).getroot().iter("testsuite"))
    total, skipped, failed = (
        sum(int(suite.get(name, 0)) for suite in suites for name in names)
        for names in (["tests"], ["skipped"], ["failures", "errors"])
    )
    passed = total - skipped - failed
    print(f"{passed} tests passed, {skipped} skipped, {failed} failed at first")
    return 0 if passed >= PASSED_MIN and skipped <= SKIPPED_SHARE_MAX * total else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
