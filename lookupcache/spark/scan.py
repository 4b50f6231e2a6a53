"""A lookup table read whole, as any other table of Spark: one task scans it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses

from lookupcache.connector import offers
from lookupcache.errors import ConnectorError
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.planner.coercion import is_key_type
from lookupcache.schema import type_name
from lookupcache.spark.forms.join_context import spark_type
from lookupcache.spark.join import pickled
from lookupcache.table import LookupTable
from lookupcache.worker.source import Source
from lookupcache.worker.task import send_errors, unpickled


@dataclass(frozen=True)
class Scan:
    """Called in the worker: the rows of the whole table out, whatever comes in."""

    plan: LookupPlan
    connector: bytes = field(repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the table once, however many batches there are."""
        return send_errors(self._rows(batches))

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if sum(batch.num_rows for batch in batches):
            yield from (
                Source(self.plan, unpickled(self.plan, self.connector))
                .scan()
                .select(self.plan.schema.names)
                .to_batches()
            )


def read_whole(spark: SparkSession, table: LookupTable) -> DataFrame:
    """Return all rows of a lookup table, read when they are wanted; raises ConnectorError where it cannot be scanned.

    >>> import os, sqlite3, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "shop.db")
    >>> with sqlite3.connect(path) as shop:
    ...     _ = shop.execute("CREATE TABLE customers AS SELECT 1 AS id, 'Ann' AS name")
    >>> customers = LookupTable("c", "id BIGINT, name STRING",
    ...     {"connector": "sql", "url": f"sqlite:///{path}", "table": "customers"})
    >>> read_whole(spark, customers).collect()
    [Row(id=1, name='Ann')]
    """
    if table.stream is not None:
        rows: DataFrame = table.stream.rows
        return rows
    if not offers(table.connector, "scan"):
        raise ConnectorError(
            f"Table {table.name!r} cannot be read whole: connector {table.connector_name!r} has no scan.",
            hint="Join it by key: JOIN … FOR SYSTEM_TIME AS OF PROCTIME() AS … ON …",
        )
    names = table.schema.names
    key = next((f.name for f in table.schema if is_key_type(type_name(f.type))), names[0])
    plan = LookupPlan(
        table=table.name,
        connector=table.connector_name,
        source=table.source,
        schema=table.schema,
        how="inner",
        keys=(FieldKey(column=key, sql="NULL"),),
        columns=tuple(names),
        config=table.config,
    )
    schema = T.StructType([T.StructField(f.name, spark_type(f.type), f.nullable) for f in table.schema])
    return spark.range(0, 1, 1, 1).mapInArrow(Scan(plan, pickled(table)), schema)
