"""Querator for Spark: a data source to read, write and stream queues.

    from querator.spark import register
    register(spark)
    spark.read.format("querator").options(endpoint="http://queues:2319", queue="mail").load()

The pipelines of the command line are here too. Only this package needs pyspark (`pip install 'querator[spark]'`).
Others import the two names, and from the modules, that `__all__` lists. None of them is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querator.spark.source import QueratorDataSource, register

__all__ = [
    "QueratorDataSource",
    "malformed",
    "moving",
    "options",
    "redriving",
    "register",
    "reporting",
    "running",
    "session",
]


def __getattr__(name: str) -> Any:
    # Imported on use, so that `querator.spark.session` can report a missing pyspark in one line.
    if name in ("QueratorDataSource", "register"):
        from querator.spark import source

        return getattr(source, name)
    raise AttributeError(name)
