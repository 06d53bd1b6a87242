"""The data source with the format name "querator"."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from querator.errors import UsageError
from querator.spark.options import Options
from querator.spark.schemas import check_writable, read_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Add the format "querator" to a session."""
    spark.dataSource.register(QueratorDataSource)


class QueratorDataSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = Options.of(options)

    @classmethod
    def name(cls) -> str:
        return "querator"

    def schema(self) -> StructType:
        return read_schema(self._options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        from querator.spark.reading import QueueReader

        self._check_same(schema)
        return QueueReader(self._options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from querator.spark.writing import QueueWriter

        if overwrite:
            raise UsageError("a queue cannot be overwritten; use mode('append')")
        return QueueWriter(self._options, check_writable(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from querator.spark.streaming import QueueStreamReader

        self._check_same(schema)
        if self._options.where:
            raise UsageError("a stream leases every item and cannot take the option 'where'; filter its rows instead")
        return QueueStreamReader(self._options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from querator.spark.writing import QueueStreamWriter

        return QueueStreamWriter(self._options, check_writable(schema))

    def _check_same(self, schema: StructType) -> None:
        if schema.fieldNames() != self.schema().fieldNames():
            raise UsageError("a queue has a schema of its own; use the option 'columns' to choose from it")
