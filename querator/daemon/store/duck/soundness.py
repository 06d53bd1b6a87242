"""Checks the rows of a partition file: it must have our tables, and values that a daemon can write.

A restored file is checked before it is put in place, and a backup before it replaces an earlier one. Verify reports all
faults of a file that is in use. A row is faulty if somebody changed it by hand, or if an earlier version imported it.
"""

from __future__ import annotations

from typing import Final

from querator import times
from querator.daemon.store.duck import tables
from querator.daemon.store.duck.database import Cursor
from querator.limits import ATTEMPTS_MAX, SEQUENCE_MAX

_SEQUENCES: Final = {
    "items": ("seq", "birth"),
    "scheduled": ("seq", "birth"),
    "leases": ("seq",),
    "lost": ("seq", "birth"),
    "parts": ("seq", "number"),
}
_TIMES: Final = {
    "items": ("created_at", "expire_deadline"),
    "scheduled": ("created_at", "expire_deadline", "enqueue_at"),
    "leases": ("deadline", "leased_at"),
    "lost": ("until",),
    "requests": ("until",),
}
_ATTEMPTS: Final = {
    "items": ("attempts", "max_attempts"),
    "scheduled": ("attempts", "max_attempts"),
    "leases": ("attempts",),
}


def check(cursor: Cursor, name: str) -> None:
    """Raises ValueError with the faults of an attached file."""
    _check_tables(cursor, name)
    if found := faults(cursor, name):
        raise ValueError(", ".join(found))


def faults(cursor: Cursor, name: str) -> list[str]:
    """The faults in the rows of a file whose tables are ours: values that a daemon never writes."""
    found = []
    for table in tables.TABLES:
        conditions = {
            f"an impossible {column}": f"{column} NOT BETWEEN {1 if column == 'seq' else 0} AND {SEQUENCE_MAX}"
            for column in _SEQUENCES.get(table, ())
        }
        for column in _TIMES.get(table, ()):
            # Comparing the timestamps themselves also finds infinite ones.
            conditions[f"an impossible {column}"] = (
                f"NOT ({column} >= make_timestamp({times.MIN_US}) AND {column} <= make_timestamp({times.MAX_US}))"
            )
        for column in _ATTEMPTS.get(table, ()):
            conditions[f"impossible {column}"] = f"{column} NOT BETWEEN 0 AND {ATTEMPTS_MAX}"
        counts = ", ".join(f"count(*) FILTER ({condition})" for condition in conditions.values())
        (numbers,) = cursor.execute(f"SELECT {counts} FROM {name}.{table}").fetchall()
        for what, count in zip(conditions, numbers, strict=True):
            if count:
                found.append(f"{count} rows of its table '{table}' have {what}")
    both = f"SELECT seq FROM {name}.items UNION ALL SELECT seq FROM {name}.scheduled"
    for query, what in ((both, "items"), (f"SELECT seq FROM {name}.leases", "leases")):
        ((twice,),) = cursor.execute(f"SELECT count(*) - count(DISTINCT seq) FROM ({query})").fetchall()
        if twice:
            found.append(f"it has {twice} {what} with a sequence that another one has")
    ((incomplete,),) = cursor.execute(
        f"SELECT count(*) FROM (SELECT seq, parts_bytes FROM {name}.items UNION ALL"
        f" SELECT seq, parts_bytes FROM {name}.scheduled)"
        f" LEFT JOIN (SELECT seq, sum(octet_length(content) + octet_length(packed)) AS present,"
        f" count(*) - count(DISTINCT number) AS twice"
        f" FROM {name}.parts GROUP BY seq) USING (seq)"
        " WHERE parts_bytes <> coalesce(present, 0) OR twice > 0"
    ).fetchall()
    if incomplete:
        found.append(f"the payloads of {incomplete} items do not have each of their parts once")
    ((last_seq, applied),) = cursor.execute(f"SELECT last_seq, applied FROM {name}.meta").fetchall()
    if not 0 <= last_seq <= SEQUENCE_MAX or applied > SEQUENCE_MAX:
        found.append("its table 'meta' has impossible numbers")
    return found


def _check_tables(cursor: Cursor, name: str) -> None:
    """The tables must be exactly as a daemon makes them: no views, and no other columns, defaults or constraints."""
    for statement in tables.SCHEMA:
        cursor.execute(statement.format(file="memory"))
    try:
        wanted, found = _definitions(cursor, "memory"), _definitions(cursor, name)
        for table in wanted:
            if found.get(table) != wanted[table]:
                raise ValueError(f"'{table}' is not the table of a partition")
    finally:
        for table in ("meta", *tables.TABLES):
            cursor.execute(f"DROP TABLE memory.{table}")


def _definitions(cursor: Cursor, name: str) -> dict[str, str]:
    rows = cursor.execute(
        "SELECT table_name, sql FROM duckdb_tables() WHERE database_name = ? AND schema_name = 'main'"
        " AND index_count = 0",
        [name],
    ).fetchall()
    return dict(rows)
