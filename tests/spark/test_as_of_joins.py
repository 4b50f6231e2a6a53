"""As-of joins against Spark's own: a join whose condition has the period, or a window over the versions."""

import datetime as dt
import itertools

import pytest
from pyspark.sql import functions as F  # noqa: N812

from lookupcache import LookupJoin, LookupTable, lookup, lookup_join
from lookupcache.errors import OptionError, PlanError, SchemaError

PERIOD = {"lookup.as-of.period": "since, until"}
VERSION = {"lookup.as-of.version": "v"}


def day(number):
    return None if number is None else dt.datetime(2024, 3, number, tzinfo=dt.UTC)


VALID = [
    (1, "a", day(1), day(3)), (1, "b", day(3), None), (1, "both", day(2), day(5)),
    (2, "old", None, day(4)), (2, "ever", None, None), (3, "never", day(5), day(5)),
]  # fmt: skip
ORDERS = [(n, k, day(d)) for n, (k, d) in enumerate([(1, 1), (1, 2), (1, 3), (2, 4), (2, None), (3, 5), (9, 1)])]
VERSIONS = [(1, "a", 1), (1, "b", 3), (1, "c", 3), (1, "d", 7), (2, "e", 5), (2, None, None), (3, "f", 2)]
READS = [(n, k, v) for n, (k, v) in enumerate([(1, 0), (1, 1), (1, 4), (1, 9), (2, 4), (2, 6), (3, None), (8, 5)])]


def table(rows, schema, options):
    found = {}
    for row in rows:
        found.setdefault(row[0], []).append(row)
    return LookupTable.from_function("r", schema, key=["id"], function=lambda i: found.get(i, []), options=options)


def valid(**options):
    return table(VALID, "id BIGINT, name STRING, since TIMESTAMP, until TIMESTAMP", PERIOD | options)


def versions(type_="INT", **options):
    return table(VERSIONS, f"id BIGINT, name STRING, v {type_}", VERSION | options)


@pytest.fixture(scope="module")
def orders(spark):
    return spark.createDataFrame(ORDERS, "n BIGINT, k BIGINT, ts TIMESTAMP").alias("o")


@pytest.fixture(scope="module")
def reads(spark):
    return spark.createDataFrame(READS, "n BIGINT, k BIGINT, v BIGINT").alias("o")


def rows(df):
    return sorted(map(tuple, df.collect()), key=repr)


def latest_by_window(spark, reads, condition, how):
    """Return the join with the latest versions as a window over Spark's own join makes it."""
    right = spark.createDataFrame(VERSIONS, "id BIGINT, name STRING, v INT").alias("r")
    joined = reads.join(right, F.expr(f"o.k = r.id AND r.v <= o.v AND ({condition})"), how)
    return joined.selectExpr(
        "n", "name", "rank() OVER (PARTITION BY n ORDER BY r.v DESC NULLS LAST) AS place"
    ).where("place = 1").select("n", "name")  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize("cache", ["LRU", "NONE"])
@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_period_gives_all_rows_that_are_valid(spark, orders, how, cache):
    right = spark.createDataFrame(VALID, "id BIGINT, name STRING, since TIMESTAMP, until TIMESTAMP").alias("r")
    period = "(since <= ts OR since IS NULL) AND (until > ts OR until IS NULL) AND ts IS NOT NULL"
    theirs = orders.join(right, F.expr(f"k = id AND {period}"), how).select("n", "name")
    ours = lookup_join(
        orders, valid(**{"lookup.cache": cache}), "k = r.id", how, ["n", "r.name"], as_of="o.ts"
    )  # fmt: skip
    assert rows(ours) == rows(theirs)


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize(
    ("how", "condition", "form"),
    list(
        itertools.product(
            ["inner", "left"],
            ["true", "r.name <> 'd'", "r.name > cast(o.n AS STRING)", "sqrt(o.n) < 1.9"],
            ["worker", "distinct"],
        )
    ),
)
def test_a_version_is_picked_after_all_conditions_of_on(spark, reads, how, condition, form):
    options = {"lookup.form": form, "lookup.cache": "LRU"}
    ours = lookup_join(
        reads, versions(**options), f"o.k = r.id AND {condition}", how, ["n", "r.name"], as_of="o.v"
    )  # fmt: skip
    assert rows(ours) == rows(latest_by_window(spark, reads, condition, how))


@pytest.mark.extended
@pytest.mark.parametrize("how", ["semi", "anti"])
def test_a_semi_join_only_asks_whether_a_version_is_there(spark, reads, how):
    ours = lookup_join(reads, versions(), "o.k = r.id", how, as_of=F.col("v"))
    right = spark.createDataFrame(VERSIONS, "id BIGINT, name STRING, rv INT")
    assert rows(ours) == rows(reads.join(right, F.expr("k = id AND rv <= v"), f"left_{how}"))


def test_where_filters_the_latest_version(reads):
    latest = lookup_join(reads, versions(), "o.k = r.id", select=["n", "r.name"], as_of="v", where="r.name <> 'd'")
    assert rows(latest) == [(1, "a"), (2, "b"), (2, "c"), (5, "e")]


def test_the_number_of_matches_counts_the_latest_ones(reads):
    first = LookupJoin(reads, versions(), "o.k = r.id", "left", ["n", "r.name"], as_of="v", matches="first").df
    assert rows(first) == [(0, None), (1, "a"), (2, "b"), (3, "d"), (4, None), (5, "e"), (6, None), (7, None)]


def test_later_times_are_found_in_the_cache(reads):
    join = LookupJoin(reads, versions(**{"lookup.cache": "LRU"}), "o.k = r.id", as_of="v", select=["n", "r.v"])
    assert rows(join.df) == [(1, 1), (2, 3), (2, 3), (3, 7), (5, 5)]
    assert join.metrics().requested_keys == 3
    assert "the greatest v" in join.explain()
    assert "r.v <= v" in join.explain()


COMPARED = [
    ("DATE", "TIMESTAMP"), ("TIMESTAMP", "DATE"), ("TIMESTAMP_NTZ", "TIMESTAMP"), ("DATE", "TIMESTAMP_NTZ"),
    ("BIGINT", "DECIMAL(20, 3)"), ("DECIMAL(9, 4)", "TINYINT"), ("DECIMAL(9, 4)", "DECIMAL(20, 3)"),
]  # fmt: skip
"""Types of a time and of a version; drawn joins have the others."""


@pytest.mark.parametrize(("left", "type_"), [("DATE", "BIGINT"), ("DECIMAL(9, 4)", "TIMESTAMP")])
def test_a_time_is_not_compared_with_a_number(spark, left, type_):
    times = spark.range(1).selectExpr("id k", f"CAST(NULL AS {left}) ts")
    with pytest.raises(PlanError, match="cannot be compared"):
        lookup_join(times, versions(type_), "k = r.id", as_of="ts")


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=2)
@pytest.mark.parametrize(("left", "type_"), COMPARED)
def test_times_are_compared_as_spark_compares_them(spark, left, type_):
    moments = ["2024-03-30 22:30:00", "2024-03-31 00:00:00", "2024-03-31 01:30:00", "2024-04-01 00:00:00"]
    is_time = left == "DATE" or left.startswith("TIMESTAMP")
    values = [f"TIMESTAMP '{one}'" for one in moments] if is_time else ["-1.5", "0", "1", "1.25"]
    right = spark.sql(" UNION ALL ".join(f"SELECT 1L id, '{n}' name, CAST({one} AS {type_}) v"
                                         for n, one in enumerate(values)))  # fmt: skip
    reads = spark.sql(" UNION ALL ".join(f"SELECT {n} n, 1L k, CAST({one} AS {left}) ts"
                                         for n, one in enumerate(values)))  # fmt: skip
    history = right.toArrow().to_pylist()
    schema = f"id BIGINT, name STRING, v {type_}"
    ours = LookupTable.from_function("r", schema, key=["id"], function=lambda _: history, options=VERSION)
    joined = reads.join(right, F.expr("k = id AND v <= ts"), "left")
    place = "rank() OVER (PARTITION BY n ORDER BY v DESC) AS place"
    theirs = joined.selectExpr("n", "name", place).where("place = 1").select("n", "name")
    assert rows(lookup_join(reads, ours, "k = r.id", "left", ["n", "r.name"], as_of="ts")) == rows(theirs)


def test_a_fixed_time_is_a_filter_before_the_cache(reads):
    join = LookupJoin(reads, versions(), "o.k = r.id", select=["n", "r.name"], as_of="5")
    assert "calc, before the cache" in join.explain()
    assert {name for _, name in rows(join.df)} == {"b", "c", "e", "f"}


@pytest.mark.extended
def test_lookup_is_a_transformation_and_streams_join(spark, orders, tmp_path):
    by_transform = orders.transform(lookup(valid(), "k = r.id", select=["n", "r.name"], as_of="ts"))
    orders.write.parquet(str(tmp_path / "orders"))
    stream = spark.readStream.schema(orders.schema).parquet(str(tmp_path / "orders"))
    joined = lookup_join(stream, valid(), "k = r.id", select=["n", "r.name"], as_of="ts")
    query = joined.writeStream.format("memory").queryName("as_of_rows").trigger(availableNow=True).start()
    query.awaitTermination()
    assert rows(spark.table("as_of_rows")) == rows(by_transform) != []


def test_a_plan_is_restored(reads):
    join = LookupJoin(reads, versions(), "o.k = r.id", "left", ["n", "r.v"], as_of="v")
    compiled = LookupJoin(reads, sql_versions(), "o.k = r.id", "left", ["n", "r.v"], as_of="v").compile()
    again = LookupJoin.from_plan(reads, compiled)
    assert (again.plan.latest, again.plan.residual) == ("v", join.plan.residual)


def sql_versions():
    options = {"connector": "sql", "url": "sqlite:///no.db", "table": "r", **VERSION}
    return LookupTable("r", "id BIGINT, name STRING, v INT", options)


BAD = {
    "declares neither": (lambda: table([], "id BIGINT, v INT", {}), "v", PlanError),
    "has no column 'vv'": (lambda: versions(**{"lookup.as-of.version": "vv"}), "v", SchemaError),
    "has no column 'w'": (versions, "o.w", SchemaError),
    "a column of the table": (versions, "r.v", PlanError),
    "as_of is empty": (versions, " ", PlanError),
    "which cannot be a version": (lambda: versions("DOUBLE"), "v", PlanError),
    "changes from call to call": (versions, "rand()", PlanError),
    "cannot be compared": (versions, "current_date()", PlanError),
    "contradicts": (lambda: versions(**PERIOD), "v", OptionError),
}


@pytest.mark.parametrize("fact", BAD)
def test_an_invalid_as_of_join_is_refused(reads, fact):
    make, as_of, kind = BAD[fact]
    with pytest.raises(kind, match=fact):
        lookup_join(reads, make(), "o.k = r.id", as_of=as_of)


def test_sources_without_versions_are_refused(spark, reads):
    options = {"connector": "redis", "url": "redis://h", "key": "{id}", **VERSION}
    with pytest.raises(PlanError, match="one row per key"):
        lookup_join(reads, LookupTable("r", "id BIGINT, v INT", options), "o.k = r.id", as_of="v")
    stream = LookupTable.from_stream("r", spark.range(3).withColumn("v", F.lit(1)), key=["id"], order_by="v")
    with pytest.raises(PlanError, match="latest values of a stream"):
        lookup_join(reads, stream, "o.k = r.id", as_of="v")
