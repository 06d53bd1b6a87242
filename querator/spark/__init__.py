"""Querator for Spark: a data source to read, write and stream queues.

    from querator.spark import QueratorDataSource
    spark.dataSource.register(QueratorDataSource)
    spark.read.format("querator").options(endpoint="http://queues:2319", queue="mail").load()

Importing this needs pyspark (`pip install 'querator[spark]'`), and nothing outside this package does.
"""

from querator.spark.source import QueratorDataSource

__all__ = ["QueratorDataSource"]
