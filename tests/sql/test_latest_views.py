"""The latest value of a streaming view in SQL: scalar sub-queries, and joins FOR SYSTEM_TIME AS OF PROCTIME()."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from arrivals import Arrivals

from lookupcache import LoadPhase, LookupCacheError, LookupSession, LookupTable
from lookupcache.errors import CompiledPlanError, PlanError, SchemaError
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


SEED = [  # Time, stream 1, stream 2, output: as in the table of FLINK-6073, where stream 1 has the users.
    ("T1", None, 1.2, None),
    ("T2", ("User1", 10), None, (10, 1.2)),
    ("T3", ("User2", 11), None, (11, 1.2)),
    ("T4", None, 1.3, None),
    ("T5", ("User3", 9), None, (9, 1.3)),
]


@pytest.mark.extended
def test_the_seed_s_table_to_the_letter(arrivals: Callable[..., Arrivals]) -> None:
    def joined(orders: DataFrame, rates: DataFrame) -> DataFrame:
        rates.select("exchange").createOrReplaceTempView("inputstream1")
        orders.select("user", "amount").createOrReplaceTempView("inputstream2")
        sql = "SELECT amount, (SELECT exchange FROM inputstream1) AS field1 FROM inputstream2"
        return LookupSession(orders.sparkSession).sql(sql)

    seed, written = arrivals(joined), []
    for time, user, exchange, output in SEED:
        if user is not None:
            seed.arrive("orders", {"user": user[0], "amount": user[1]})
        if exchange is not None:
            seed.arrive("rates", {"exchange": exchange})
        written += [] if output is None else [output]
        assert seed.run() == sorted(written, key=repr), time


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """Let streams keep their state in RocksDB."""
    name = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(name, ROCKSDB)
    yield
    spark.conf.unset(name)


@pytest.mark.usefixtures("rocksdb")
@pytest.mark.nightly
def test_the_seed_s_three_kinds_of_inner_query_give_the_same(arrivals: Callable[..., Arrivals]) -> None:
    def joined(orders: DataFrame, rates: DataFrame) -> DataFrame:
        orders.selectExpr("amount AS item", "ccy AS id").createOrReplaceTempView("stream1")
        rates.selectExpr("exchange AS item2", "ccy AS id").createOrReplaceTempView("stream2")
        session = LookupSession(orders.sparkSession)
        assert session.query("Select item, (select item2 from stream2 ) as itemExtern from stream1;").joins
        q2 = "Select s1.item, (Select item2 from stream2 as t2 where t2.id = s1.id limit 1) from stream1 s1;"
        assert session.query(q2).joins
        return session.sql(
            "Select item, (select item2 from stream2 limit 1) as q2, q3.item2 AS q3 "
            "FROM stream1 AS s1, (SELECT item2 FROM stream2 LIMIT 1) AS q3"
        )

    streams = arrivals(joined)
    streams.arrive("rates", EUR)
    streams.arrive("orders", {"amount": 10, "ccy": "EUR"})
    assert streams.run() == [(10, 1.2, 1.2)]
    streams.arrive("rates", {**EUR, "exchange": 1.3})
    streams.arrive("orders", {"amount": 90, "ccy": "EUR"})
    assert streams.run() == [(10, 1.2, 1.2), (90, 1.3, 1.3)]


@pytest.mark.extended
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


JOIN = "SELECT * FROM rates AS o JOIN LATERAL TABLE(SNAPSHOT("


@pytest.mark.extended
@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT (SELECT value FROM rates AS r WHERE r.value < o.value) FROM rates AS o", "by equalities only"),
        ("SELECT (SELECT max(value) FROM rates) FROM rates AS o", "cannot have an aggregate"),
        ("SELECT * FROM rates AS o JOIN nothing FOR SYSTEM_TIME AS OF PROCTIME() AS r ON true", "no lookup table"),
        (f"{JOIN}input => TABLE rates)) AS r ON o.value = r.value", "would never end(.|\n)*event_time"),
        (f"{JOIN}TABLE rates)) AS r ON o.value = r.value", "arguments have names"),
        (f"{JOIN}inptu => TABLE rates)) AS r ON o.value = r.value", "'inptu'(.|\n)*'input'"),
        (f"{JOIN}state_ttl => INTERVAL '1' DAY)) AS r ON true", "no 'input'"),
        ("SELECT * FROM rates o JOIN TABLE(SNAPSHOT(input => TABLE rates)) r ON o.value = r.value", "LATERAL only"),
        ("SELECT * FROM rates o JOIN rates FOR SYSTEM_TIME AS OF PROCTIME() r ON o.value <=> r.value", "two nulls"),
        ("SELECT * FROM rates o JOIN rates FOR SYSTEM_TIME AS OF o.timestamp r ON o.value = r.value", "are not kept"),
        ("SELECT * FROM rates o JOIN rates FOR SYSTEM_TIME AS OF PROCTIME() r ON r.value + 1 = o.value", "a column of"),
        ("SELECT * FROM rates o, rates FOR SYSTEM_TIME AS OF PROCTIME() r WHERE o.value = abs(r.value)", "a column of"),
        ("SELECT * FROM rates o NATURAL JOIN rates FOR SYSTEM_TIME AS OF PROCTIME() r", "USING"),
        (f"{JOIN}input => TABLE rates, load_completed_time => CAST('soon' AS DATE))) AS r ON true", "no literal"),
        (f"{JOIN}input => TABLE rates, state_ttl => x)) AS r ON true", "'state_ttl' is no interval"),
        (f"{JOIN}input => TABLE nothing)) AS r ON true", "no lookup table 'nothing'"),
        (f"{JOIN}input => (SELECT 1 AS value))) AS r ON true", "no query over a stream"),
        (f"{JOIN}input => TABLE rates, load_completed_condition => 'user_time')) AS r ON true", "load_completed_time"),
        (f"{JOIN}input => TABLE rates, load_completed_time => 'soon')) AS r ON true", "'soon'"),
        (f"{JOIN}input => TABLE rates, load_completed_time => f(1))) AS r ON true", "no literal"),
        (
            "SELECT (SELECT r.value FROM (SELECT value FROM rates) AS r JOIN rates AS q ON true) AS v FROM rates AS o",
            "cannot be read here",
        ),
        ("SELECT value FROM rates AS o WHERE EXISTS (SELECT 1 FROM rates AS r WHERE r.value = o.value)", "LEFT SEMI"),
        ("SELECT value FROM rates WHERE value NOT IN (SELECT value FROM rates)", "LEFT SEMI"),
        ("SELECT (SELECT value FROM rates), (SELECT value FROM rates) FROM rates", "RocksDBStateStoreProvider"),
        ("SELECT (SELECT value FROM shuffled) AS v FROM rates", "order_by"),
    ],
)  # fmt: skip
def test_unsupported_latest_joins_are_refused(spark: SparkSession, sql: str, text: str) -> None:
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


@pytest.mark.extended
@pytest.mark.parametrize(
    ("sql", "how", "conditions"),
    [
        ("SELECT (SELECT v FROM (SELECT value AS v, k FROM rates WHERE k > 'a') i WHERE i.k = o.k) FROM o", "left", 1),
        ("WITH i AS (SELECT value AS v, k FROM rates) SELECT (SELECT v FROM i WHERE i.k = o.k) FROM o", "left", 1),
        ("SELECT o.id, i.v FROM o, (SELECT value AS v FROM rates LIMIT 1) AS i", "inner", 0),
        ("SELECT o.id, v FROM o CROSS JOIN (SELECT value AS v, k FROM rates LIMIT 1) AS i WHERE i.k = o.k", "inner", 0),
        ("SELECT o.id, i.v FROM o LEFT JOIN (SELECT value AS v, k FROM rates) FOR SYSTEM_TIME AS OF PROCTIME() AS i "
         "ON i.k = o.k", "left", 1),
        ("SELECT o.id FROM o LEFT SEMI JOIN rates FOR SYSTEM_TIME AS OF PROCTIME() AS i ON i.k = o.k", "semi", 1),
        ("SELECT o.id FROM o LEFT ANTI JOIN rates FOR SYSTEM_TIME AS OF PROCTIME() AS i ON i.k = o.k AND i.value > 1",
         "anti", 1),
        ("WITH i AS (SELECT value, k FROM rates) SELECT o.id FROM o "
         "LEFT JOIN i FOR SYSTEM_TIME AS OF PROCTIME() AS r ON r.k = o.k", "left", 1),
        ("SELECT (SELECT v FROM (SELECT value AS v, k FROM rates LIMIT 1) i WHERE i.k = o.k AND v > 1) FROM o",
         "left", 0),
        ("SELECT CASE WHEN coalesce(abs((SELECT v FROM (SELECT value AS v, k FROM rates) i WHERE i.k = o.k)), 0) > 1 "
         "THEN 1 END FROM o", "left", 1),
        ("SELECT id FROM o WHERE (SELECT value FROM rates AS i WHERE i.k = o.k) IN (1, 2)", "left", 1),
        ("SELECT id FROM o WHERE id IN ((SELECT value FROM rates AS i WHERE i.k = o.k), 2)", "left", 1),
        ("SELECT (((SELECT value FROM rates AS i WHERE i.k = o.k))) AS v FROM o", "left", 1),
        ("SELECT id, (( (SELECT value FROM rates AS i WHERE i.k = o.k)) ), 1 FROM o", "left", 1),
        ("SELECT (SELECT value FROM rates AS i WHERE i.k = o.k AND o.id > 1) AS v FROM o", "left", 1),
    ],
    ids=["inner-query", "common-table", "from-limit", "cross", "query-join", "semi", "anti", "common-table-join",
         "scalar-limit", "in-functions", "left-of-in", "right-of-in", "doubled", "doubled-unnamed", "outer-row"],
)  # fmt: skip
def test_inner_queries_are_tables_of_latest_values(spark: SparkSession, sql: str, how: str, conditions: int) -> None:
    views_of_rates(spark)
    query = LookupSession(spark).query(sql)
    [join] = query.joins
    assert query.df().isStreaming
    assert join.table.stream is not None
    assert (join.plan.how, len(join.table.stream.key)) == (how, conditions)
    assert join.df.isStreaming


NOW = "FOR SYSTEM_TIME AS OF PROCTIME()"


@pytest.mark.extended
@pytest.mark.usefixtures("rocksdb")
@pytest.mark.parametrize(
    ("relations", "keys"),
    [
        (f"o, rates {NOW} AS r WHERE o.k = r.k", [("k",)]),
        (f"o JOIN rates {NOW} AS r WHERE o.k = r.k AND r.value > 1", [("k",)]),
        ("o, LATERAL TABLE(SNAPSHOT(input => TABLE rates, on_time => DESCRIPTOR(timestamp))) AS r WHERE o.k = r.k",
         [("k",)]),
        (f"o, rates {NOW} AS r, rates {NOW} AS q WHERE o.k = r.k AND r.value = q.value AND q.k = o.k",
         [("k",), ("value", "k")]),
        (f"o JOIN rates {NOW} AS r ON TRUE WHERE o.k = r.k", [("k",)]),
        (f"o JOIN rates {NOW} AS r ON (TRUE) WHERE o.k = r.k", [("k",)]),
        (f"o JOIN rates {NOW} AS r ON 1 = 1 WHERE o.k = r.k", [("k",)]),
        (f"o LEFT JOIN rates {NOW} AS r ON true WHERE o.k = r.k", [()]),
        (f"o JOIN rates {NOW} AS r ON o.k = r.k WHERE o.id = r.value", [("k",)]),
        (f"o JOIN (SELECT k FROM rates LIMIT 1) {NOW} AS r ON o.k = r.k", [()]),
        (f"o JOIN rates {NOW} AS r ON o.id = r.value AND o.k <=> r.k", [("value",)]),
        (f"o JOIN rates {NOW} AS r ON o.id + r.value = 5", [()]),
        (f"o LEFT JOIN rates {NOW} AS r ON o.id = 5 AND r.value = 3 AND o.id < r.value", [()]),
    ],
    ids=["comma", "join", "snapshot", "two", "on-true", "on-true-in-parentheses", "on-equal",
         "left-on-true", "on-and-where", "limit", "null-safe", "sum",
         "constants"],
)  # fmt: skip
def test_the_key_of_a_join_comes_from_on_or_else_from_where(
    spark: SparkSession, relations: str, keys: list[tuple[str, ...]]
) -> None:
    views_of_rates(spark)
    query = LookupSession(spark).query(f"SELECT o.id, r.k FROM {relations}")
    assert [join.table.stream and join.table.stream.key for join in query.joins] == keys
    assert query.df().isStreaming


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT o.id, r.value FROM o LEFT JOIN rates {NOW} AS r ON FALSE",
        f"SELECT o.id FROM o LEFT ANTI JOIN rates {NOW} AS r ON FALSE",
        "SELECT (SELECT value FROM rates WHERE FALSE) AS v FROM o",
    ],
    ids=["left", "anti", "scalar"],
)
def test_a_condition_that_is_false_is_one(spark: SparkSession, sql: str) -> None:
    views_of_rates(spark)
    [join] = LookupSession(spark).query(sql).joins
    assert [text.upper() for text in join.plan.pre_filter] == ["FALSE"]


@pytest.mark.extended
def test_a_cte_is_read_without_the_ctes_that_it_does_not_use(
    arrivals: Callable[..., Arrivals],
) -> None:
    """Spark refuses to tell the file of a row where a plan has several sources, and the order is that of files."""
    sql = (
        "WITH other AS (SELECT * FROM rates), Own AS (SELECT * FROM rates WHERE at > 0), last AS (SELECT * FROM own) "
        "SELECT amount, (SELECT exchange FROM last) AS x FROM orders"
    )
    streams = arrivals(statement(sql))
    streams.arrive("rates", EUR)
    streams.arrive("orders", {"amount": 1})
    assert streams.run() == [(1, 1.2)]


@pytest.mark.usefixtures("rocksdb")
def test_left_order_by_is_a_column_of_the_relations_before_it(spark: SparkSession) -> None:
    views_of_rates(spark)
    session, rates = LookupSession(spark), spark.table("rates")
    table = LookupTable.from_stream("t", rates, key="k", order_by="value", left_order_by="ID")
    session.register_table(table)
    joins = session.query(
        f"SELECT (SELECT value FROM t WHERE t.k = o.k) AS v, (SELECT value FROM t WHERE t.k = o.k) AS w, q.value AS x "
        f"FROM o, rates {NOW} AS q WHERE q.k = o.k"
    ).joins
    assert [join.table.stream and join.table.stream.left_order_by for join in joins] == [(), ("id",), ("id",)]
    assert all(join.df.isStreaming for join in joins)
    two = f"SELECT * FROM o JOIN o AS p ON o.k = p.k JOIN t {NOW} ON t.k = o.k"
    with pytest.raises(PlanError, match=r"'ID', which is a column of 'o' and 'p'(.|\n)*sub-query"):
        session.sql(two)
    session.register_table(LookupTable.from_stream("u", rates, key="k", order_by="value", left_order_by="nope"))
    with pytest.raises(SchemaError, match="'nope', which is not a column"):
        session.sql(f"SELECT * FROM o JOIN u {NOW} ON u.k = o.k")


def test_an_equality_in_all_operands_of_an_or_is_a_key(spark: SparkSession) -> None:
    views_of_rates(spark)
    session, join = LookupSession(spark), f"SELECT o.id, r.value FROM o, rates {NOW} AS r WHERE "
    session.register_table(LookupTable.from_stream("two", spark.table("rates"), key=["k", "value"], order_by="value"))
    either = "(r.k = o.k AND r.value > 1) OR (o.id > 2 AND r.k = o.k)"
    for sql, key in (
        (f"SELECT o.id, r.value FROM o LEFT JOIN rates {NOW} AS r ON {either}", ("k",)),
        (join + either, ("k",)),
        (f"{join}r.value = o.id AND ({either})", ("value", "k")),
        ((f"{join}r.value = o.id AND ({either})").replace("rates", "two"), ("k", "value")),
        (join + "r.k = o.k OR r.value = o.id", ()),
    ):
        [found] = session.query(sql).joins
        assert found.table.stream is not None
        assert found.table.stream.key == key, sql


def views_of_rates(spark: SparkSession) -> None:
    rates = spark.readStream.format("rate").load()
    rates.selectExpr("value", "CAST(value AS STRING) AS k", "timestamp").createOrReplaceTempView("rates")
    rates.selectExpr("value AS id", "CAST(value AS STRING) AS k").createOrReplaceTempView("o")


def test_a_stream_stream_join_of_spark_stays_one(spark: SparkSession) -> None:
    views_of_rates(spark)
    for sql in (
        "SELECT o.id FROM o, (SELECT k FROM rates) AS i WHERE o.k = i.k",
        "SELECT o.id FROM o JOIN (SELECT k FROM rates LIMIT 1) AS i ON o.k = i.k",
        "SELECT i.k FROM (SELECT k FROM (SELECT k FROM rates) AS a) AS i",
    ):
        assert not LookupSession(spark).query(sql).joins


TIME = "TIMESTAMP '2026-07-01 00:00:00'"


@pytest.mark.usefixtures("rocksdb")
@pytest.mark.parametrize(
    ("call", "time"),
    [
        ("LATERAL TABLE(SNAPSHOT({}))", TIME),
        ("LATERAL SNAPSHOT({})", f"CAST({TIME} AS TIMESTAMP_LTZ(3))"),
        ("lateral snapshot({})", "cast('2026-07-01 00:00:00' as timestamp)"),
    ],
    ids=["table", "plain", "lower"],
)
def test_snapshot_says_how_long_left_rows_wait(spark: SparkSession, call: str, time: str) -> None:
    views_of_rates(spark)
    arguments = (
        "input => TABLE rates, on_time => DESCRIPTOR(timestamp), load_completed_condition => 'user_time', "
        f"load_completed_time => {time}, load_completed_idle_timeout => INTERVAL '10' SECOND, "
        "state_ttl => INTERVAL 1 DAY"
    )
    sql = f"SELECT o.id, r.value FROM o LEFT JOIN {call.format(arguments)} AS r ON o.k = r.k AND r.value > 1"
    [join] = LookupSession(spark).query(sql).joins
    source = join.table.stream
    assert source is not None
    assert source.load == LoadPhase("2026-07-01 00:00:00", "10 second", "timestamp")
    assert (source.key, source.order_by, source.ttl) == (("k",), ("timestamp",), 86_400)
    assert "until timestamp reaches 2026-07-01 00:00:00 or no progress for 10 s" in join.explain()


@pytest.mark.usefixtures("rocksdb")
def test_a_registered_table_and_a_batch_in_snapshot(spark: SparkSession) -> None:
    views_of_rates(spark)
    session = LookupSession(spark)
    rates = spark.table("rates")
    session.register_table(LookupTable.from_stream("t", rates, key="k", order_by="timestamp", ttl=5))
    [join] = session.query("SELECT o.id FROM o JOIN LATERAL SNAPSHOT(input => TABLE t) AS r ON o.k = r.k").joins
    assert join.table.stream is not None
    assert (join.table.stream.load, join.table.stream.ttl) == (LoadPhase(), 5)
    spark.sql(
        "SELECT * FROM VALUES (1, 'a', DATE'2026-01-01'), (2, 'a', DATE'2026-01-02') AS (v, k, at)"
    ).createOrReplaceTempView("old")
    call = "LATERAL SNAPSHOT(input => TABLE old, on_time => DESCRIPTOR(at))"
    rows = session.sql(f"SELECT o.k, r.v FROM (SELECT 'a' AS k) AS o JOIN {call} AS r ON o.k = r.k")
    assert [tuple(row) for row in rows.collect()] == [("a", 2)]
