"""A write on two executors. One of them is killed after it has written a part of its rows."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from querator.spark.session import session


def main() -> None:
    given = json.loads(sys.argv[1])
    mark = Path(given["path"], "killed")

    def kill_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Kills the JVM of the executor, which is the grandparent of this Python worker."""
        for number, batch in enumerate(batches):
            if number == 4 and not mark.exists():
                stat = Path(f"/proc/{os.getppid()}/stat").read_text()
                executor = int(stat.rpartition(")")[2].split()[1])
                # Record the killed process, so that the test can check that it was an executor.
                mark.write_text(Path(f"/proc/{executor}/cmdline").read_text().replace("\0", " "))
                os.kill(executor, signal.SIGKILL)
            yield batch

    settings = {"spark.executor.memory": "768m", "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]}
    with session(
        "cluster", master="local-cluster[2,1,1024]", conf=settings, log_file=Path(given["path"], "spark.log")
    ) as spark:
        rows = spark.range(0, 200_000, 1, 4).selectExpr("cast(id as string) as payload")
        written = rows.mapInArrow(kill_once, "payload string").write.format("querator").mode("append")
        written.option("endpoint", given["endpoint"]).option("queue", given["queue"]).save()


if __name__ == "__main__":
    main()
