"""A streaming query in a process that kills itself during its second batch or after it."""

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
    path = Path(given["path"])
    with session("driver", master="local[2]", log_file=path / "driver.log") as spark:
        jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        kill, mark = given["kill"], path / "killed"

        def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            for batch in batches:
                yield batch
                if kill == "inside" and context.getLocalProperty("streaming.sql.batchId") == "1":
                    mark.touch()
                    os.kill(jvm, signal.SIGKILL)

        rows = spark.readStream.format("querator").option("endpoint", given["endpoint"])
        items = rows.option("queue", given["queue"]).option("items_per_batch", 2_000).load()
        writer = items.mapInArrow(pass_on, items.schema).writeStream.format("parquet").option("path", str(path / "out"))
        writer = writer.option("checkpointLocation", str(path / "checkpoint"))
        if kill == "between":
            query = writer.trigger(processingTime="100 milliseconds").start()
            while not (path / "checkpoint" / "commits" / "1").exists():
                query.awaitTermination(0.05)
            os.kill(jvm, signal.SIGKILL)
            os._exit(1)
        writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
