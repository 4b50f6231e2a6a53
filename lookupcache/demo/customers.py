"""The demo's large table: millions of customers in a SQLite database, of whom only some thousand have orders."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lookupcache.demo.comparison import Comparison, Way, difference
from lookupcache.spark.join import LookupJoin
from lookupcache.table import LookupTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CUSTOMERS = 3_000_000
BUYERS = 5_000
ORDERS = 100_000

_SCHEMA = "id BIGINT, name STRING, country STRING"
_ON = "o.customer_id = c.id"
_COLUMNS = ["o.order_id", "c.name", "c.country"]

_CREATE = "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, country TEXT, points INTEGER)"
_FILL = """
    INSERT INTO customers
    WITH RECURSIVE ids(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids LIMIT ?)
    SELECT id, 'Customer ' || id, substr('ATBECZDEDKESFIFRGRHU', 1 + id % 10 * 2, 2), id * 7919 % 1000 FROM ids
"""


def fill_database(path: Path, rows: int) -> None:
    """Create the SQLite database: the table ``customers`` with the ids from 1 to ``rows``."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(_CREATE)
        connection.execute(_FILL, (rows,))


@dataclass(frozen=True)
class Customers:
    """The orders joined with the customers, by a lookup join and by Spark's own; all files are in ``folder``."""

    spark: SparkSession
    folder: Path
    rows: int

    def compare(self, step: Callable[[str], AbstractContextManager[None]]) -> Comparison:
        """Make the table and the joins, and compare what they read; ``step`` shows the progress of each part."""
        with step(f"Making {self.rows:,} customers, {ORDERS:,} orders"):
            fill_database(self._database, self.rows)
            orders = self._write_orders()
        with step("Warming up, both kinds of joins"):
            self._warm_up(orders)
        with step("Joining orders with lookupcache"):
            join = self._lookup_join(orders, "LRU")
            ours, seconds = self._write(join.df, "ours")
            lookup = Way(join.metrics().fetched_rows, join.metrics().calls, seconds)
        with step("Joining orders with Spark alone"):
            theirs, spark_seconds = self._write(_spark_join(orders, self._read()), "theirs")
        with step("Copying the customers, and joining again"):
            copied, copying = self._write(self._read(), "copied")
            again, copy_seconds = self._write(_spark_join(orders, copied), "again")
        with step("Comparing the results"):
            wrong = difference(ours, theirs) + difference(ours, again)
            read = copied.count()
        title = f"{ORDERS:,} orders of {BUYERS:,} customers, with a table of {self.rows:,} customers"
        spark, copy = Way(read, 1, spark_seconds), Way(read, 0, copy_seconds, copying)
        return Comparison(title, ours.count(), wrong, lookup, spark, copy)

    @property
    def _database(self) -> Path:
        return self.folder / "customers.db"

    @property
    def _options(self) -> dict[str, str]:
        return {"connector": "sql", "url": f"sqlite:///{self._database}", "table": "customers"}

    def _write_orders(self) -> DataFrame:
        """Write the orders, whose customers are spread over the table; return them."""
        customer = f"1 + pmod(xxhash64(id), {BUYERS}) * {max(self.rows // BUYERS, 1)} AS customer_id"
        return self._write(self.spark.range(0, ORDERS, 1, 8).selectExpr("id AS order_id", customer), "orders")[0]

    def _lookup_join(self, orders: DataFrame, cache: str) -> LookupJoin:
        table = LookupTable("c", _SCHEMA, {**self._options, "lookup.cache": cache})
        return LookupJoin(orders.alias("o"), table, on=_ON, select=_COLUMNS)

    def _read(self) -> DataFrame:
        """Read the columns of the join from the database, as Spark's own join must."""
        return self.spark.read.format("lookupcache").schema(_SCHEMA).options(**self._options).load()

    def _warm_up(self, orders: DataFrame) -> None:
        """Run each kind of join over a few rows, so that none includes what Spark does once; no cache is filled."""
        some = orders.limit(10)
        self._lookup_join(some, "NONE").df.collect()
        _spark_join(some, self._read().limit(10)).collect()

    def _write(self, df: DataFrame, name: str) -> tuple[DataFrame, float]:
        """Write the rows as Parquet files; return them, and the seconds that took."""
        path = str(self.folder / name)
        started = time.perf_counter()
        df.write.parquet(path)
        return self.spark.read.parquet(path), time.perf_counter() - started


def _spark_join(orders: DataFrame, customers: DataFrame) -> DataFrame:
    from pyspark.sql.functions import expr

    return orders.alias("o").join(customers.alias("c"), expr(_ON)).select(*_COLUMNS)
