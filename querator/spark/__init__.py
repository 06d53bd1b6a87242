"""Querator for Spark: a data source to read, write and stream queues.

    from querator.spark import register
    register(spark)
    spark.read.format("querator").options(endpoint="http://queues:2319", queue="mail").load()

The data source needs pyspark (`pip install 'querator[spark]'`), and nothing outside this package does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querator.spark.source import QueratorDataSource, register

__all__ = ["QueratorDataSource", "register"]


def __getattr__(name: str) -> Any:
    # Late, so that `querator.spark.session` can say in a line that pyspark is missing.
    if name in __all__:
        from querator.spark import source

        return getattr(source, name)
    raise AttributeError(name)
