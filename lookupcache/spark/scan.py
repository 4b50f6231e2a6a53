"""A lookup table read in full, as any other table of Spark: one task scans it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses

from lookupcache.plan import LookupPlan
from lookupcache.spark.forms.join_context import spark_type
from lookupcache.spark.join import pickle_connector
from lookupcache.table import LookupTable
from lookupcache.worker.full_scan import TableScan
from lookupcache.worker.task import send_errors, unpickle_connector


@dataclass(frozen=True)
class Scan:
    """Called in the worker: yields the rows of the full table, whatever the input."""

    plan: LookupPlan
    connector: bytes = field(repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the table once, however many batches there are."""
        return send_errors(self._rows(batches))

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if sum(batch.num_rows for batch in batches):
            yield from TableScan(self.plan, unpickle_connector(self.plan, self.connector)).batches()


def read_full_table(spark: SparkSession, table: LookupTable) -> DataFrame:
    """Return all rows of a lookup table, read when they are used; raises ConnectorError if it cannot be scanned.

    >>> import os, sqlite3, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "shop.db")
    >>> with sqlite3.connect(path) as shop:
    ...     _ = shop.execute("CREATE TABLE customers AS SELECT 1 AS id, 'Ann' AS name")
    >>> customers = LookupTable("c", "id BIGINT, name STRING",
    ...     {"connector": "sql", "url": f"sqlite:///{path}", "table": "customers"})
    >>> read_full_table(spark, customers).collect()
    [Row(id=1, name='Ann')]
    """
    if table.stream is not None:
        rows: DataFrame = table.stream.rows
        return rows
    table = table.in_session(spark.conf.get)
    scan = TableScan.of(table)
    schema = T.StructType([T.StructField(f.name, spark_type(f.type), f.nullable) for f in table.schema])
    return spark.range(0, 1, 1, 1).mapInArrow(Scan(scan.plan, pickle_connector(table)), schema)
