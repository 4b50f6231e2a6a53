"""The latest value of a streaming view in SQL: scalar sub-queries, and joins FOR SYSTEM_TIME AS OF PROCTIME()."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from arrivals import Arrivals

from lookupcache import LookupCacheError, LookupSession, LookupTable
from lookupcache.errors import CompiledPlanError
from lookupcache.spark.latest import ROCKSDB

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EUR, USD = {"ccy": "EUR", "exchange": 1.2, "at": 1}, {"ccy": "USD", "exchange": 1.0, "at": 2}


def statement(sql: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
    """Return a function from orders and rates to the result of a statement over views of them."""

    def joined(orders: DataFrame, rates: DataFrame) -> DataFrame:
        orders.createOrReplaceTempView("orders")
        rates.createOrReplaceTempView("rates")
        session = LookupSession(orders.sparkSession)
        session.register_table(LookupTable.from_stream("ordered", rates, key="ccy", order_by="at"))
        return session.sql(sql)

    return joined


def test_the_seed_s_statement(arrivals: Callable[..., Arrivals]) -> None:
    seed = arrivals(statement("SELECT amount, (SELECT exchange FROM rates) AS field1 FROM orders"))
    seed.arrive("rates", EUR)
    seed.arrive("orders", {"amount": 10}, {"amount": 11})
    assert seed.run() == [(10, 1.2), (11, 1.2)]
    seed.arrive("rates", {**EUR, "exchange": 1.3})
    seed.arrive("orders", {"amount": 9})
    assert seed.run() == [(10, 1.2), (11, 1.2), (9, 1.3)]


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """Let streams keep their state in RocksDB."""
    name = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(name, ROCKSDB)
    yield
    spark.conf.unset(name)


@pytest.mark.usefixtures("rocksdb")
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "SELECT amount, amount * (SELECT exchange FROM rates AS r WHERE r.ccy = o.ccy AND r.at < 9 LIMIT 1) AS x, "
            "(SELECT coalesce(exchange, 7D) FROM rates WHERE ccy = 'EUR' LIMIT 1) AS e FROM orders AS o "
            "WHERE (SELECT at FROM ordered AS r WHERE r.ccy = o.ccy) IS NOT NULL",
            [(10, 12.0, 1.2), (20, 20.0, 1.2)],
        ),
        (
            "SELECT o.amount, r.exchange FROM orders AS o LEFT JOIN rates FOR SYSTEM_TIME AS OF PROCTIME() AS r "
            "ON o.ccy = r.ccy AND r.exchange > 1",
            [(10, 1.2), (20, None), (30, None)],
        ),
        (
            "SELECT amount FROM orders AS o LEFT ANTI JOIN rates FOR SYSTEM_TIME AS OF o.proctime AS r "
            "ON o.ccy = r.ccy AND r.exchange > 1",
            [(20,), (30,)],
        ),
        (
            "SELECT amount, exchange FROM orders JOIN rates FOR SYSTEM_TIME AS OF PROCTIME() USING (ccy)",
            [(10, 1.2), (20, 1.0)],
        ),
    ],
    ids=["several", "left", "anti", "using"],
)  # fmt: skip
def test_a_statement_over_streams(
    arrivals: Callable[..., Arrivals], sql: str, expected: list[tuple[object, ...]]
) -> None:
    streams = arrivals(statement(sql))
    streams.arrive("rates", EUR, USD)
    streams.arrive("orders", *({"amount": 10 * n, "ccy": ccy} for n, ccy in enumerate(["EUR", "USD", "x"], 1)))
    assert streams.run(restart=True) == expected


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT (SELECT value FROM rates AS r WHERE r.value < o.value) FROM rates AS o", "by equalities only"),
        ("SELECT (SELECT max(value) FROM rates) FROM rates AS o", "cannot have an aggregate"),
        ("SELECT * FROM rates AS o JOIN nothing FOR SYSTEM_TIME AS OF PROCTIME() AS r ON true", "no lookup table"),
        (
            "SELECT * FROM rates AS o JOIN LATERAL TABLE(SNAPSHOT(input => TABLE rates)) AS r ON o.value = r.value",
            "SNAPSHOT(.|\n)*FOR SYSTEM_TIME",
        ),
        ("SELECT (SELECT value FROM rates), (SELECT value FROM rates) FROM rates", "RocksDBStateStoreProvider"),
        ("SELECT (SELECT value FROM shuffled) AS v FROM rates", "order_by"),
    ],
)  # fmt: skip
def test_what_is_refused(spark: SparkSession, sql: str, text: str) -> None:
    rates = spark.readStream.format("rate").load()
    rates.createOrReplaceTempView("rates")
    rates.distinct().createOrReplaceTempView("shuffled")
    with pytest.raises(LookupCacheError, match=text):
        LookupSession(spark).sql(sql)
    with pytest.raises(CompiledPlanError, match="latest values"):
        LookupSession(spark).compile_plan_sql("INSERT INTO t SELECT value, (SELECT value FROM rates) AS v FROM rates")


def test_statements_that_only_read_streams_are_spark_s(spark: SparkSession) -> None:
    spark.readStream.format("rate").load().createOrReplaceTempView("rates")
    text = "SELECT value FROM (SELECT value FROM rates WHERE value > 1) WHERE value < 5"
    assert LookupSession(spark).sql(text).isStreaming
    assert not LookupSession(spark).query(text).joins


def test_no_table_of_a_metastore_is_read_to_find_streams(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    spark.readStream.format("rate").load().createOrReplaceTempView("rates")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW `of rates` AS SELECT value FROM rates")
    session, read = LookupSession(spark), []
    monkeypatch.setattr(type(spark.catalog), "tableExists", lambda *_: pytest.fail("a catalog was asked"))
    table = type(spark).table
    monkeypatch.setattr(type(spark), "table", lambda self, name: (read.append(name), table(self, name))[1])
    assert session.sql("WITH t AS (SELECT 1 AS b) SELECT (SELECT max(b) FROM t) AS a").collect()
    assert read == []
    assert session.query("SELECT (SELECT value FROM `of rates`) AS v FROM rates").joins
