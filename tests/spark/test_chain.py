"""Joins on the results of joins: what shares a Python stage, and that each keeps its counts, errors and letters."""

from __future__ import annotations

import itertools
from collections import Counter

import pyarrow.dataset as ds
import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F  # noqa: N812
from python_stages import python_stages
from sources import Together

from lookupcache import LookupJoin, LookupTable, lookup_join

pytestmark = pytest.mark.spark

numbers = itertools.count()
LRU = {"lookup.cache": "LRU", "lookup.max-retries": "0"}
CITIES = {1: 10, 2: 20, 3: 10, 4: 30}
NAMES = {10: "Delft", 20: "Utrecht"}


def people(**options) -> LookupTable:
    mark = next(numbers)
    rows = lambda key, _mark=mark: [(key, CITIES[key], f"p{key}")] if key in CITIES else []  # noqa: E731
    schema = "id BIGINT, city INT, person STRING"
    return LookupTable.from_function("people", schema, key=["id"], function=rows, options={**LRU, **options})


def cities(function=None, **options) -> LookupTable:
    mark = next(numbers)
    rows = lambda key, _mark=mark: [(key, NAMES[key])] if key in NAMES else []  # noqa: E731
    schema = "id BIGINT, name STRING"
    return LookupTable.from_function(
        "cities", schema, key=["id"], function=function or rows, options={**LRU, **options}
    )


def fails(key):
    raise ConnectionError("cities are away")


@pytest.fixture(scope="module")
def visits(spark):
    rows = [(10, 1), (11, 2), (12, 2), (13, 9), (14, None), (15, 3), (16, 4)]
    return spark.createDataFrame(rows, "visit BIGINT, person_id INT")


def chain(visits, first=None, second=None, *, how="left", between=lambda df: df, on="city = cities.id"):
    """Return the join of visits with people, and that of its result with cities."""
    one = LookupJoin(visits, first or people(), "person_id = people.id", how, ["visit", "people.person", "people.city"])
    two = LookupJoin(between(one.df), second or cities(), on, how, ["visit", "person", "cities.name"])
    return one, two


ALL = Counter([
    (10, "p1", "Delft"), (11, "p2", "Utrecht"), (12, "p2", "Utrecht"), (13, None, None), (14, None, None),
    (15, "p3", "Delft"), (16, "p4", None),
])  # fmt: skip


def rows(df) -> Counter:
    return Counter(map(tuple, df.collect()))


def test_the_second_join_shares_the_stage_of_the_first(visits):
    one, two = chain(visits.coalesce(1))
    assert python_stages(two.df) == 1
    assert "in one Python stage with the lookups of people" in two.explain()
    assert "one Python stage" not in one.explain()
    assert rows(two.df) == ALL
    assert [(m.rows, m.hits + m.misses, m.misses) for m in (one.metrics(), two.metrics())] == [(7, 6, 5), (7, 5, 3)]


def test_sparks_plan_names_the_tables_of_a_stage_and_stays_short(visits, capsys):
    one, two = chain(visits)
    two.df.explain()
    [stage] = [line for line in capsys.readouterr().out.splitlines() if "MapInArrow" in line]
    assert "lookup_join[people, cities](" in stage
    assert len(stage) < 300
    one.df.explain()
    assert "lookup_join[people](" in capsys.readouterr().out


def test_without_fusion_rows_and_counts_are_the_same(visits):
    one, two = chain(visits, second=cities(**{"lookup.fuse": "off"}))
    assert python_stages(two.df) == 2
    assert "'lookup.fuse' of cities is off: a separate Python stage" in two.explain()
    assert rows(two.df) == ALL
    assert [(m.rows, m.hits + m.misses) for m in (one.metrics(), two.metrics())] == [(7, 6), (7, 5)]


def test_a_result_that_is_used_twice(visits):
    one, two = chain(visits)
    assert rows(two.df) == ALL
    assert rows(one.df) == Counter((v, p, {"p1": 10, "p2": 20, "p3": 10, "p4": 30}.get(p)) for v, p, _ in ALL)
    assert rows(two.df.union(two.df)) == Counter([*ALL, *ALL])


def view(df):
    df.createOrReplaceTempView("joined_people")
    return df.sparkSession.table("joined_people")


BETWEEN = {
    "a view": view,
    "renamed": lambda df: df.withColumnRenamed("city", "town").withColumnRenamed("town", "city"),
    "in another order": lambda df: df.select("city", "visit", "person"),
    "an alias": lambda df: df.alias("j").select("j.*"),
    "one dropped and one more": lambda df: df.select("person", F.col("visit"), "city", F.col("city").alias("again")),
}


@pytest.mark.extended
@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_a_select_between_joins_shares_the_stage(visits, between):
    _, two = chain(visits, between=between)
    assert python_stages(two.df) == 1
    assert rows(two.df) == ALL


NEED_SPARK = {
    "a filter of Spark's": (
        {"between": lambda df: df.where("length(person) < 100 OR visit > 0")},
        "filter ((length(person) < 100) OR (visit > CAST(0 AS BIGINT))) is computed by Spark from a column of people",
    ),
    "a column of Spark's": (
        {"between": lambda df: df.withColumn("city", F.abs("city"))},
        "the column city abs(city) is computed by Spark from a column of people",
    ),
    "a key of Spark's": ({"on": "abs(city) = cities.id"}, "is computed by Spark from a column of people"),
    "a shuffle": ({"second": cities(**{"lookup.shuffle": "true"})}, "'lookup.shuffle' of cities partitions"),
    "an observation": ({"first": people(**{"lookup.metrics": "observe"})}, "'lookup.metrics' of people is observe"),
}


@pytest.mark.extended
@pytest.mark.parametrize(("arguments", "reason"), NEED_SPARK.values(), ids=NEED_SPARK)
def test_a_step_that_needs_spark_separates_the_stages(visits, arguments, reason):
    _, two = chain(visits, **arguments)
    assert "one Python stage" not in two.explain()
    assert reason in two.explain()
    assert rows(two.df) == ALL


def test_spark_computes_no_key_for_dropped_rows(spark):
    left = spark.createDataFrame([(1, 1), (9, 0)], "visit INT, divisor INT")
    first = lookup_join(left, people(), "visit = people.id", "inner", ["visit", "divisor"])
    second = LookupJoin(first, cities(), "CAST(10 / divisor AS BIGINT) = cities.id", "left", ["visit", "cities.name"])
    assert "a join before drops rows" in second.explain()
    assert rows(second.df) == Counter([(1, "Delft")])


@pytest.mark.extended
def test_an_error_names_its_table(visits):
    _, two = chain(visits, second=cities(fails))
    with pytest.raises(PythonException, match=r"Table 'cities'(?s:.*)cities are away"):
        two.df.collect()


@pytest.mark.extended
@pytest.mark.parametrize("options", [{}, {"lookup.age-column": "age"}])
def test_failed_rows_are_marked_by_their_own_join(visits, options):
    first = people(**{"lookup.on-error": "null", "lookup.error-column": "first_error"})
    one = LookupJoin(visits, first, "person_id = people.id", "inner", ["visit", "people.city"])
    second = cities(fails, **{"lookup.on-error": "null", "lookup.error-column": "second_error", **options})
    two = LookupJoin(one.df, second, "city = cities.id", "inner", ["visit", "first_error", "cities.name"])
    found = [(row.visit, row.first_error, row.name, row.second_error.code) for row in two.df.collect()]
    assert sorted(found) == [(visit, None, None, "LOOKUP_FAILED") for visit in (10, 11, 12, 15, 16)]
    assert (one.metrics().failed_rows, two.metrics().failed_rows) == (0, 5)
    assert python_stages(two.df) == 1


@pytest.mark.parametrize("failing", [0, 1])
def test_dead_letters_hold_the_left_columns_of_their_own_join(visits, tmp_path, failing):
    letters = {"lookup.on-error": "dead-letter", "lookup.dead-letter.path": str(tmp_path)}
    if failing:
        _, two = chain(visits, second=cities(fails, **letters), how="inner")
        expected = {(10, "p1", 10), (11, "p2", 20), (12, "p2", 20), (15, "p3", 10), (16, "p4", 30)}
        names = ["visit", "person", "city"]
    else:
        first = LookupTable.from_function(
            "people", "id BIGINT, city INT, person STRING", key=["id"], function=fails, options={**LRU, **letters}
        )
        _, two = chain(visits, first, how="inner")
        expected, names = {(10, 1), (11, 2), (12, 2), (13, 9), (15, 3), (16, 4)}, ["visit", "person_id"]
    assert python_stages(two.df) == 1
    assert rows(two.df) == Counter()
    found = ds.dataset(str(tmp_path)).to_table().to_pylist()
    assert {tuple(letter[name] for name in names) for letter in found} == expected
    assert {letter["lookup_table"] for letter in found} == {["people", "cities"][failing]}


def test_sources_of_independent_keys_are_called_at_the_same_time(spark):
    left = spark.range(0, 5, 1, 1).selectExpr("id", "id + 10 AS a", "id + 20 AS b")
    joined = left
    for key in left.columns:
        table = LookupTable.from_function(
            key, "k BIGINT, n STRING", key=["k"], function=Together(key), batch=True, options=LRU
        )
        columns = [*(f"left.{name}" for name in joined.columns), f"{key}.n AS n_{key}"]
        joined = lookup_join(joined, table, f"left.{key} = {key}.k", "left", columns)
    assert rows(joined.select("n_id", "n_a", "n_b")) == Counter(
        (f"id{number}", f"a{number + 10}", f"b{number + 20}") for number in range(5)
    )


def test_a_limit_ends_all_joins_of_the_stage(visits):
    _, two = chain(visits.repartition(1))
    assert len(two.df.limit(1).collect()) == 1
    assert rows(two.df) == ALL


@pytest.mark.extended
def test_a_stream(spark, visits, tmp_path):
    visits.repartition(3).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(visits.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    observe = {"lookup.metrics": "observe"}
    one, two = chain(stream, people(**observe), cities(**observe))
    assert "in one Python stage" in two.explain()
    query = two.df.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    running = query.trigger(availableNow=True).start(str(tmp_path / "out"))
    running.awaitTermination()
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == ALL
    progress = [p for p in running.recentProgress if p["numInputRows"]]
    assert sum(one.metrics_in(p).rows for p in progress) == sum(two.metrics_in(p).rows for p in progress) == 7


# ── what would not be the same ───────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
@pytest.mark.parametrize(
    ("setting", "values", "key"),
    [
        ("spark.sql.session.timeZone", ("UTC", "Asia/Tokyo"), "unix_timestamp(s) = people.id"),
        ("spark.sql.ansi.enabled", ("false", "true"), "cast(s AS BIGINT) = people.id"),
    ],
)
def test_a_setting_that_changes_between_the_joins_changes_no_row(spark, setting, values, key):
    left = spark.createDataFrame([("1970-01-01 00:00:01",), ("no time",)], "s STRING").where("s < 'b' OR s LIKE '%no%'")
    before = spark.conf.get(setting)
    try:
        spark.conf.set(setting, values[0])
        spark.conf.set("spark.sql.legacy.timeParserPolicy", "CORRECTED")
        one = lookup_join(left.where("s < 'b'"), people(), key, "left", ["s", "people.city"])
        spark.conf.set(setting, values[1])
        joins = [
            LookupJoin(one, cities(**{"lookup.fuse": fuse}), "city = cities.id", "left", ["s", "cities.name"])
            for fuse in ("auto", "off")
        ]
        assert "settings have changed" in joins[0].explain()
        assert rows(joins[0].df) == rows(joins[1].df)
    finally:
        spark.conf.set(setting, before)
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")


def test_a_persisted_result_is_not_looked_up_again(visits):
    one, _ = chain(visits)
    one.df.persist()
    try:
        one.df.count()
        calls = one.metrics().calls
        two = LookupJoin(one.df.select("city", "visit"), cities(), "city = cities.id", "left", ["visit", "cities.name"])
        assert "the left side is persisted" in two.explain()
        assert sum(rows(two.df).values()) == 7
        assert one.metrics().calls == calls
    finally:
        one.df.unpersist()


def test_the_result_of_another_session_is_not_extended(spark, visits):
    one, _ = chain(visits)
    one.df.createOrReplaceGlobalTempView("joined_elsewhere")
    other = spark.newSession()
    left = other.table("global_temp.joined_elsewhere")
    two = LookupJoin(left, cities(), "city = cities.id", "left", ["visit", "person", "cities.name"])
    assert "one Python stage" not in two.explain()
    assert two.df.sparkSession._jsparkSession.equals(other._jsparkSession)
    assert rows(two.df) == ALL


@pytest.mark.extended
def test_a_later_filter_keeps_no_row_from_dead_letters(spark, tmp_path):
    left = spark.createDataFrame([(1, True), (2, False)], "visit BIGINT, flag BOOLEAN")
    letters = {"lookup.on-error": "dead-letter", "lookup.dead-letter.path": str(tmp_path)}
    first = LookupTable.from_function(
        "people", "id BIGINT, city INT", key=["id"], function=fails, options={**LRU, **letters}
    )
    one = lookup_join(left, first, "visit = people.id", "left", ["visit", "flag", "people.city"])
    two = LookupJoin(one, cities(), "city = cities.id AND flag", "inner", ["visit", "cities.name"])
    assert "by the worker, between the joins" in two.explain()
    assert rows(two.df) == Counter()
    assert ds.dataset(str(tmp_path)).count_rows() == 2
    two = LookupJoin(one, cities(), "city = cities.id AND isnotnull(reverse(flag))", "inner", ["visit", "cities.name"])
    assert "would keep rows from a join before that reports on each" in two.explain()


@pytest.mark.extended
def test_a_later_filter_hides_no_second_match(spark):
    left = spark.createDataFrame([(1, False)], "visit BIGINT, flag BOOLEAN")
    twice = LookupTable.from_function(
        "people", "id BIGINT, city INT", key=["id"], function=lambda key: [(key, 10), (key, 20)], options=LRU
    )
    one = LookupJoin(left, twice, "visit = people.id", "left", ["visit", "flag", "people.city"], matches="single")
    two = LookupJoin(one.df, cities(), "city = cities.id", "left", ["visit", "cities.name"], where="flag")
    with pytest.raises(PythonException, match="more than one row"):
        two.df.collect()


@pytest.mark.extended
def test_a_join_that_drops_rows_does_not_multiply_later_calls(spark):
    left = spark.range(0, 50_000, 1, 1).selectExpr("id AS visit")
    first = LookupTable.from_function(
        "people", "id BIGINT, city INT", key=["id"], batch=True, options={**LRU, "lookup.cache.max-rows": 100_000},
        function=lambda keys: [[(key, key // 5_000)] if key % 5_000 == 0 else [] for key in keys],
    )  # fmt: skip
    one = lookup_join(left, first, "visit = people.id", "inner", ["visit", "people.city"])
    many = LookupTable.from_function(
        "cities", "id BIGINT, name STRING", key=["id"], batch=True, options=LRU,
        function=lambda keys: [[(key, f"c{key}")] for key in keys],
    )  # fmt: skip
    two = LookupJoin(one, many, "city = cities.id", "inner", ["visit", "cities.name"])
    assert rows(two.df) == Counter((5_000 * number, f"c{number}") for number in range(10))
    assert "one Python stage" in two.explain()
    assert two.metrics().calls == 1


@pytest.mark.extended
@pytest.mark.parametrize("options", [{"lookup.cache.max-rows": 1}, {"lookup.cache.missing-key": "false"}])
def test_a_small_cache_does_not_request_prefetched_rows_again(spark, options):
    left = spark.range(0, 600, 1, 1).selectExpr("id AS visit", "id + 1000 AS other")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    try:
        one = lookup_join(left, people(), "visit = people.id", "left", ["visit", "other", "people.city"])
        two = LookupJoin(one, cities(**options), "other = cities.id", "left", ["visit", "cities.name"])
        assert len(two.df.collect()) == 600
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    found = two.metrics()
    assert (found.hits, found.misses, found.calls) == (0, 600, 600)
