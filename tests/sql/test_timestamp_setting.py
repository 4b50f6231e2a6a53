"""Where ``spark.sql.timestampType`` makes TIMESTAMP another type, columns, casts and variables keep theirs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from lookupcache import LookupSession, LookupTable, lookup_join

pytestmark = pytest.mark.spark

NOON = datetime(2020, 3, 29, 12, tzinfo=UTC)
SETTINGS = {"spark.sql.timestampType": "TIMESTAMP_NTZ", "spark.sql.session.timeZone": "Asia/Kathmandu"}


def at_noon(key):
    return [(key, NOON, [NOON])]


@pytest.fixture(autouse=True)
def settings(spark):
    before = {name: spark.conf.get(name) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture
def table():
    return LookupTable.from_function(
        "t", "id INT, at TIMESTAMP, `timestamp` ARRAY<TIMESTAMP>", key="id", function=at_noon
    )


def test_a_lookup_in_sql_has_the_types_of_its_table(spark, table):
    session = LookupSession(spark)
    session.register_table(table.with_options({"lookup.error-column": "why", "lookup.on-error": "null"}))
    spark.range(1).selectExpr("CAST(id AS INT) AS k").createOrReplaceTempView("ks")
    df = session.sql("SELECT * FROM ks AS o JOIN t FOR SYSTEM_TIME AS OF o.proc_time ON o.k = t.id")
    assert [type_ for _, type_ in df.dtypes] == [
        "int", "int", "timestamp", "array<timestamp>", "struct<code:string,message:string>",
    ]  # fmt: skip
    shown = df.select(F.col("at").cast("string"), F.col("timestamp")[0].cast("string")).first()
    assert tuple(shown) == ("2020-03-29 17:45:00",) * 2


def test_describe_shows_types_of_computed_columns_as_spark_does(spark, table):
    session = LookupSession(spark)
    session.sql(
        "CREATE TABLE c (id INT, at TIMESTAMP, local TIMESTAMP_NTZ, later AS at + INTERVAL 1 DAY, "
        "day AS date_trunc('DAY', local), every AS array(at), `of id` AS id + 1, PRIMARY KEY (id) NOT ENFORCED) "
        "WITH ('connector' = 'sql', 'url' = 'sqlite:///c.db', 'table' = 'c')"
    )
    columns = "at + INTERVAL 1 DAY AS later, date_trunc('DAY', local) AS day, array(at) AS every, id + 1 AS `of id`"
    schema = T.StructType().add("id", "integer").add("at", T.TimestampType()).add("local", T.TimestampNTZType())
    spark.createDataFrame([], schema).createOrReplaceTempView("plain")
    spark.sql(f"SELECT *, {columns} FROM plain").createOrReplaceTempView("computed")
    rows = [tuple(row)[:2] for row in spark.sql("DESCRIBE computed").collect()]
    assert [tuple(row)[:2] for row in session.sql("DESCRIBE c").collect()] == rows
    assert ("later", "timestamp") in rows


@pytest.mark.extended
@pytest.mark.parametrize(
    "type_", ["timestamp_ltz", "timestamp", T.TimestampType(), T.TimestampNTZType()], ids=lambda one: str(one)
)
@pytest.mark.parametrize("text", ["2020-03-29 17:45:00", "2020-03-29 12:00:00", "2020-03-29 12:00:00Z"])
def test_a_cast_in_a_condition_is_that_of_spark(spark, table, type_, text):
    left = spark.createDataFrame([(1, text)], "k INT, s STRING").alias("o")
    right = spark.createDataFrame([(1, NOON)], T.StructType().add("id", "integer").add("at", T.TimestampType()))
    theirs = left.join(right.alias("t"), F.expr("o.k = t.id") & (F.col("o.s").cast(type_) == F.col("t.at")))
    ours = lookup_join(left, table, F.expr("o.k = t.id") & (F.col("o.s").cast(type_) == F.col("t.at")))
    assert ours.count() == theirs.count()
