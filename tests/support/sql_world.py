"""The tables of the SQL tests: lookup tables in a session, and as views with the same rows for Spark's own joins."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from sources import options_of

from lookupcache import LookupSession, LookupTable

CUSTOMERS = [
    (1, "ann", "AT", "1010", 900.0), (2, "bob", "BE", "2000", 1500.0), (3, "cem", "AT", None, 2500.0),
    (4, "dea", None, "4000", None),
]  # fmt: skip
ORDERS = [(10, 1, 5.0), (11, 2, 7.0), (12, 1, 1.0), (13, 9, 2.0), (14, 3, 9.0), (15, None, 4.0), (16, 4, 0.5)]
COUNTRIES = {"code": ["AT", "BE"], "region": ["Alps", "Coast"]}
PRICES = {"item": [10, 10, 11, 14, 14], "price": [1, 4, 2, 10, 12]}
TAGS = [(1, "x"), (2, "y"), (3, "z"), (7, "x")]
COLUMNS = "id BIGINT, name STRING, country STRING, zip STRING, salary DOUBLE"
VIEWS = ("orders", "tags", "customers", "countries", "prices")


def make_world(spark: Any, folder: Path) -> LookupSession:
    """Return a session that knows the lookup tables; Spark knows views of the same names."""
    session = LookupSession(spark)
    path = folder / "shop.db"
    with closing(sqlite3.connect(path)) as shop, shop:
        shop.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, country TEXT, zip TEXT, salary REAL)")
        shop.executemany("INSERT INTO customers VALUES (?, ?, ?, ?, ?)", CUSTOMERS)
    session.sql(f"""
        CREATE TEMPORARY TABLE customers (
          id BIGINT, name STRING COMMENT 'first name', country STRING, zip STRING, salary DOUBLE,
          label AS upper(name), PRIMARY KEY (id) NOT ENFORCED
        ) WITH ('connector' = 'sql', 'url' = 'sqlite:///{path}', 'table' = 'customers', 'lookup.cache' = 'PARTIAL')
    """)
    tables = {"countries": (COUNTRIES, "code STRING, region STRING"), "prices": (PRICES, "item BIGINT, price INT")}
    for name, (columns, schema) in tables.items():
        types = {"code": pa.string(), "region": pa.string(), "item": pa.int64(), "price": pa.int32()}
        rows = pa.table({column: pa.array(values, types[column]) for column, values in columns.items()})
        session.register_table(LookupTable(name, schema, {"connector": "sources:Memory", **options_of(rows)}))
        view(spark.createDataFrame(rows, schema), name)
    view(spark.createDataFrame(ORDERS, "order_id BIGINT, customer_id BIGINT, total DOUBLE"), "orders")
    view(spark.createDataFrame(TAGS, "id BIGINT, tag STRING"), "tags")
    view(spark.createDataFrame(CUSTOMERS, COLUMNS).selectExpr("*", "upper(name) AS label"), "customers")
    return session


def view(df: Any, name: str) -> None:
    """Make a view of one partition: few rows, so few tasks."""
    df.coalesce(1).createOrReplaceTempView(name)


def sparks_own(sql: str) -> str:
    """Return a query as Spark alone understands it: without periods, and without hints."""
    return re.sub(r"\s+FOR SYSTEM_TIME AS OF \S+|/\*\+.*?\*/", "", sql, flags=re.DOTALL)


def rows_of(df: Any) -> Counter[tuple[Any, ...]]:
    """Return the rows of a DataFrame, as often as each is there."""
    return Counter(tuple(row) for row in df.collect())


def read_once(df: Any) -> Any:
    """Read a large plan of few rows; compiling it would take longer than running it."""
    settings = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
                "spark.sql.adaptive.enabled": "false"}  # fmt: skip
    before = {name: df.sparkSession.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            df.sparkSession.conf.set(name, value)
        return df.collect()
    finally:
        for name, value in before.items():
            df.sparkSession.conf.set(name, value)


def union_all(frames: Any) -> Any:
    """Return the union of DataFrames, as a tree that is not deep."""
    if len(frames) == 1:
        return frames[0]
    middle = len(frames) // 2
    return union_all(frames[:middle]).unionAll(union_all(frames[middle:]))
