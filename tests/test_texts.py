"""Texts that are shown to somebody who may not see everything."""

from __future__ import annotations

import pytest

from querator.texts import without_paths


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            'Cannot open file "/srv/my data/x.duckdb": Permission denied',
            'Cannot open file "x.duckdb": Permission denied',
        ),
        ("[Errno 2] No such file or directory: '/srv/q'", "[Errno 2] No such file or directory: 'q'"),
        ("/srv/q/partitions: No space left on device", "partitions: No space left on device"),
        ("backup cannot be written; /srv/b/2026: full", "backup cannot be written; 2026: full"),
        ("archive file:///srv/archive: 0.1s behind", "archive archive: 0.1s behind"),
        ("archive s3://bucket/path: 0.1s behind", "archive s3://bucket/path: 0.1s behind"),
        ("mail/0, mail/1: see https://duckdb.org/docs/x", "mail/0, mail/1: see https://duckdb.org/docs/x"),
        ("1 / 2 and a/b", "1 / 2 and a/b"),
    ],
)
def test_only_the_last_part_of_a_path_is_shown(text: str, shown: str) -> None:
    assert without_paths(text) == shown
