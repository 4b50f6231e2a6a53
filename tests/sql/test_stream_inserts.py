"""INSERT from a stream: the table has the rows of the same INSERT from a batch, and errors say what does not fit."""

from __future__ import annotations

import itertools
import re

import pytest
from multisets import multiset
from sources import options_of

from lookupcache import LookupSession, LookupTable, StatementError

pytestmark = pytest.mark.spark

JOIN = "FROM {} AS o LEFT JOIN people FOR SYSTEM_TIME AS OF PROCTIME() AS c ON o.k = c.id"
PEOPLE = [(1, "ann", 10, (2**31, "x")), (2, "bob", None, None)]
numbers = itertools.count()


@pytest.fixture(scope="module")
def session(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream_inserts")
    spark.range(4).selectExpr("int(id) AS k", "concat('n', id) AS note").coalesce(1).write.parquet(f"{folder}/orders")
    orders = spark.read.parquet(f"{folder}/orders")
    orders.createOrReplaceTempView("batch_orders")
    spark.readStream.schema(orders.schema).parquet(f"{folder}/orders").createOrReplaceTempView("orders_stream")
    session = LookupSession(spark)
    schema = "id INT, name STRING, v INT, s STRUCT<b: BIGINT, a: STRING>"
    options = {"connector": "sources:Memory", **options_of(spark.createDataFrame(PEOPLE, schema).toArrow())}
    session.register_table(LookupTable("people", schema, {**options, "lookup.cache": "ALL"}))
    spark.conf.set("spark.sql.streaming.checkpointLocation", f"{folder}/checkpoints")
    yield session
    spark.conf.unset("spark.sql.streaming.checkpointLocation")


def by_sql(session, text, folder):
    session.sql(text)


def by_set(session, text, folder):
    session.sql(f"EXECUTE STATEMENT SET BEGIN {text}; END")


def by_script(session, text, folder):
    session.run(f"{text};")


def by_plan(session, text, folder):
    session.sql(f"COMPILE PLAN '{folder}/plan.json' FOR {text}")
    session.sql(f"EXECUTE PLAN '{folder}/plan.json'")


def written(session, run, columns, clause, select, source, folder):
    """Return the rows of a new table after an INSERT into it."""
    spark, table = session.spark, f"sink_{next(numbers)}"
    spark.sql(f"CREATE TABLE {table} {columns}")
    try:
        run(session, f"INSERT INTO {table} {clause} SELECT {select} {JOIN.format(source)}", folder)
        for query in spark.streams.active:
            query.processAllAvailable()
    finally:
        for query in spark.streams.active:
            query.stop()
    spark.catalog.refreshTable(table)
    return multiset(spark.table(table))


INSERTS = {
    "other names": ("(x INT, y STRING, z STRING) USING parquet", "", "o.k, c.name, c.s.a"),
    "names in another order": ("(x INT, y STRING) USING parquet", "", "o.k AS y, c.name AS x"),
    "listed columns": ("(x INT, y STRING, z INT) USING parquet", "(y, X)", "c.name, o.k"),
    "a default": ("(x INT, y STRING DEFAULT 'none') USING parquet", "(x)", "o.k"),
    "by name": ("(x STRING, Y INT, z INT) USING parquet", "BY NAME", "o.k AS y, c.name AS x"),
    "casts": ("(x BIGINT, y STRING, z DECIMAL(12, 2)) USING parquet", "", "o.k, c.v, c.v"),
    "a struct of other names": ("(x INT, y STRUCT<p: BIGINT, q: STRING>) USING parquet", "", "o.k, c.s"),
    "two columns of one name": ("(x INT, y INT) USING parquet", "", "o.k, o.k"),
    "texts of a length": ("(x INT, y VARCHAR(4), z CHAR(5)) USING parquet", "", "o.k, c.name || '   ', c.name"),
    "another format": ("(x INT, y STRING) USING json", "", "o.k, c.name"),
}


@pytest.mark.parametrize("run", [by_sql, by_set, by_script, by_plan])
@pytest.mark.parametrize(("columns", "clause", "select"), INSERTS.values(), ids=INSERTS)
def test_a_stream_writes_what_a_batch_does(session, tmp_path, run, columns, clause, select):
    batch = written(session, by_sql, columns, clause, select, "batch_orders", tmp_path)
    assert sum(batch.values()) == 4
    assert written(session, run, columns, clause, select, "orders_stream", tmp_path) == batch


REFUSED = {
    "too few columns": ("(x INT, y STRING) USING parquet", "INTO {}", "o.k", "fit table(?s:.*)Data columns: `k`"),
    "a cast that INSERT refuses": ("(x INT) USING parquet", "INTO {}", "c.name", "do not fit table"),
    "an unknown name": ("(x INT) USING parquet", "INTO {} BY NAME", "o.k AS z", "do not fit table"),
    "a struct in another order": (
        "(x STRUCT<a: STRING, b: BIGINT>) USING parquet", "INTO {} BY NAME", "c.s AS x", "in their order"
    ),
    "overwrite": ("(x INT) USING parquet", "OVERWRITE {}", "o.k", "Write INSERT INTO"),
    "a partition": ("(x INT, p INT) USING parquet PARTITIONED BY (p)", "INTO {} PARTITION (p = 1)", "o.k", "Leave it"),
    "partitioned files": ("(x INT, p INT) USING parquet PARTITIONED BY (p)", "INTO {}", "o.k, 1", "foreachBatch"),
}  # fmt: skip


@pytest.mark.parametrize("run", [by_sql, by_plan])
@pytest.mark.parametrize(("columns", "into", "select", "expected"), REFUSED.values(), ids=REFUSED)
def test_rows_that_do_not_fit_are_refused(session, tmp_path, run, columns, into, select, expected):
    table = f"sink_{next(numbers)}"
    session.spark.sql(f"CREATE TABLE {table} {columns}")
    with pytest.raises(StatementError, match=expected):
        run(session, f"INSERT {into.format(table)} SELECT {select} {JOIN.format('orders_stream')}", tmp_path)
    assert session.spark.streams.active == []
    assert session.spark.table(table).count() == 0


@pytest.mark.parametrize(("type_", "value"), [("INT", "c.s.b"), ("VARCHAR(2)", "c.name"), ("CHAR(2)", "c.name")])
def test_a_value_that_does_not_fit_stops_the_stream_in_any_session(session, tmp_path, type_, value):
    session.spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(Exception, match=rf"A value for column 'x' of `sink_\d*` does not fit {re.escape(type_)}"):
            written(session, by_sql, f"(x {type_}) USING parquet", "", value, "orders_stream", tmp_path)
    finally:
        session.spark.conf.unset("spark.sql.ansi.enabled")
