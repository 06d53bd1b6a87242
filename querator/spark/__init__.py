"""Querator for Spark: a data source to read, write and stream queues.

    from querator.spark import QueratorDataSource
    spark.dataSource.register(QueratorDataSource)
    spark.read.format("querator").options(endpoint="http://queues:2319", queue="mail").load()

The data source needs pyspark (`pip install 'querator[spark]'`), and nothing outside this package does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querator.spark.source import QueratorDataSource

__all__ = ["QueratorDataSource"]


def __getattr__(name: str) -> Any:
    # Late, so that `querator.spark.session` can say in a line that pyspark is missing.
    if name == "QueratorDataSource":
        from querator.spark.source import QueratorDataSource

        return QueratorDataSource
    raise AttributeError(name)
