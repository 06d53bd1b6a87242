"""A write whose second task pauses until Spark has started a second attempt of it. Then both attempts continue."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from querator.spark.session import session

SLOW = 1
WAIT_SECONDS = 60


def main() -> None:
    given = json.loads(sys.argv[1])
    marks = Path(given["path"])

    def wait_for_the_other(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt, task = context.attemptNumber(), context.partitionId()
        for number, batch in enumerate(batches):
            if (task, attempt, number) == (SLOW, 0, 3):
                end = time.monotonic() + WAIT_SECONDS
                while not (marks / "second attempt").exists() and time.monotonic() < end:
                    time.sleep(0.05)
            yield batch
            if (task, number) == (SLOW, 1) and attempt:
                (marks / "second attempt").touch()

    settings = {
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
    }
    log_file = marks / "spark.log"
    with session("speculation", master=given["master"], conf=settings, log_file=log_file, verbose=True) as spark:
        rows = spark.range(0, 120_000, 1, 2).selectExpr("cast(id as string) as payload")
        written = rows.mapInArrow(wait_for_the_other, "payload string").write.format("querator").mode("append")
        written.option("endpoint", given["endpoint"]).option("queue", given["queue"]).save()


if __name__ == "__main__":
    main()
