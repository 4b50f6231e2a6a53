"""What stands between two lookup joins: filters and computed columns that share their stage, and what does not."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from pyspark.sql import functions as F  # noqa: N812

from lookupcache import LookupJoin, LookupTable, lookup_join

pytestmark = pytest.mark.spark

marks = itertools.count()
PEOPLE = {
    1: [(1, 10, "ann", 1.5)],
    2: [(2, 20, None, 2.5), (2, 21, "bea", None)],
    3: [(3, 10, "b", 0.0)],
    4: [(4, 7, "cy", -1.0)],
}
CITIES = {10: [(10, "Delft")], 20: [(20, "Utrecht")], 21: [(21, "Gouda")], 11: [(11, "Leiden")]}


def table(name: str, schema: str, rows: dict, **options) -> LookupTable:
    mark = next(marks)
    answer = lambda key, _mark=mark: rows.get(key, [])  # noqa: E731
    return LookupTable.from_function(
        name,
        schema,
        key=[schema.split()[0]],
        function=answer,
        options={"lookup.cache": "LRU", "lookup.max-retries": "0", **options},
    )


def people(**options) -> LookupTable:
    return table("people", "id BIGINT, city INT, person STRING, score DOUBLE", PEOPLE, **options)


def cities(**options) -> LookupTable:
    return table("cities", "cid BIGINT, name STRING", CITIES, **options)


@pytest.fixture(scope="module")
def visits(spark):
    rows = [(10, 1, "x"), (11, 2, "y"), (12, 2, None), (13, 9, "x1"), (14, None, "7"), (15, 3, "3"), (16, 4, "")]
    return spark.createDataFrame(rows, "visit BIGINT, person_id INT, note STRING").coalesce(1)


def rows(df) -> Counter:
    return Counter(map(repr, df.collect()))


def pair(visits, between, on="city = cities.cid", how="left", first="left", **options):
    """Return the second of two joins, fused if it may be, and the same not fused."""
    return [
        LookupJoin(
            between(lookup_join(visits, people(), "person_id = people.id", first)), cities(**{"lookup.fuse": fuse}),
            on, how, options=options,
        )
        for fuse in ("auto", "off")
    ]  # fmt: skip


WORKER, BEFORE = "by the worker, between the joins", "by Spark, before the stage"
FUSED = {
    "a filter on the left side": (lambda df: df.where("visit < 15"), BEFORE),
    "one that only Spark evaluates": (lambda df: df.where("upper(note) LIKE 'X%'"), BEFORE),
    "a filter on the table": (lambda df: df.where("city >= 10"), WORKER),
    "a filter on both": (lambda df: df.where((F.col("city") > F.col("visit")) | (F.col("person") == "cy")), WORKER),
    "several": (lambda df: df.where("visit > 10 AND city > 5").where("score IS NOT NULL"), WORKER),
    "an anti-filter": (lambda df: df.where("person IS NULL OR NOT person LIKE 'b%'"), WORKER),
    "a list": (lambda df: df.where(F.col("city").isin(10, 20, 21)), WORKER),
    "a float": (lambda df: df.where("score * 2 > 2.5D OR score = 0"), WORKER),
    "a computed key": (lambda df: df.withColumn("city", F.col("city") + 1), WORKER),
    "a key by cases": (
        lambda df: df.selectExpr("visit", "CASE WHEN person = 'ann' THEN 21 ELSE city END AS city"),
        WORKER,
    ),
    "a missing key replaced": (lambda df: df.withColumn("city", F.coalesce("city", F.lit(20))), WORKER),
    "a key from both": (lambda df: df.withColumn("city", F.col("city") + F.col("visit") - 10), WORKER),
    "a column beside the key": (lambda df: df.withColumn("label", F.concat("note", F.lit("-"), "person")), WORKER),
    "a column of Spark's beside it": (lambda df: df.withColumn("label", F.reverse("note")), BEFORE),
    "a column, then a filter on it": (
        lambda df: df.withColumn("n", F.col("city") * 2).where("n > 20").drop("n"),
        WORKER,
    ),
    "a filter, a column, a filter": (
        lambda df: df.where("visit <> 16").withColumn("a", F.expr("length(note)")).where("a < 2").where("city < 21"),
        WORKER,
    ),
    "constants": (
        lambda df: df.withColumn("one", F.lit(1)).withColumn("day", F.lit("2020-01-01").cast("date")),
        BEFORE,
    ),
    "a hint and an alias": (lambda df: df.alias("j").hint("broadcast").where("j.city > 7"), WORKER),
    "renamed and filtered": (
        lambda df: df.withColumnRenamed("city", "c").where("c > 7").withColumnRenamed("c", "city"),
        WORKER,
    ),
}


HOWS = ["left", "inner", "semi", "left", "anti"] * 9


@pytest.mark.parametrize(
    ("between", "who", "how"), [(*b, how) for b, how in zip(FUSED.values(), HOWS, strict=False)], ids=FUSED
)
def test_what_spark_or_the_worker_evaluates_shares_the_stage(visits, between, who, how):
    fused, apart = pair(visits, between, how=how)
    text = fused.explain()
    assert "in one Python stage with the lookups of people" in text, text
    assert who in text, text
    assert fused.df.dtypes == apart.df.dtypes
    assert rows(fused.df) == rows(apart.df)
