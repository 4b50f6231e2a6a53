"""What stands between two lookup joins: filters and computed columns that share their stage, and what does not."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from multisets import multiset
from pyspark.sql import functions as F  # noqa: N812
from sources import options_of

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
    "a column next to the key": (lambda df: df.withColumn("label", F.concat("note", F.lit("-"), "person")), WORKER),
    "a column of Spark's next to it": (lambda df: df.withColumn("label", F.reverse("note")), BEFORE),
    "the same text twice, of other columns": (
        lambda df: (
            df.withColumn("a", F.expr("city + 1"))
            .withColumn("city", F.expr("city * 2"))
            .withColumn("b", F.expr("city + 1"))
            .withColumn("city", F.expr("a + b - city - 1"))
        ),
        WORKER,
    ),
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
    "a pipe": (
        lambda df: (df.createOrReplaceTempView("piped"), df.sparkSession.sql("FROM piped |> WHERE city > 7"))[1],
        WORKER,
    ),
    "renamed and filtered": (
        lambda df: df.withColumnRenamed("city", "c").where("c > 7").withColumnRenamed("c", "city"),
        WORKER,
    ),
}


HOWS = ["left", "inner", "semi", "left", "anti"] * 9


@pytest.mark.nightly(keep_one_in=5)
@pytest.mark.parametrize(
    ("between", "who", "how"),
    [(*b, how) for b, how in zip(FUSED.values(), HOWS, strict=False)],
    ids=FUSED,
)
def test_steps_that_spark_or_the_worker_computes_share_the_stage(visits, between, who, how):
    fused, apart = pair(visits, between, how=how)
    text = fused.explain()
    assert "in one Python stage with the lookups of people" in text, text
    assert who in text, text
    assert fused.df.dtypes == apart.df.dtypes
    assert multiset(fused.df) == multiset(apart.df)


async def of_person(key):
    return PEOPLE.get(key, [])


@pytest.mark.extended
@pytest.mark.parametrize("function", [None, of_person], ids=["sync", "async"])
def test_joins_with_the_same_lookup_have_their_own_counts(spark, function):
    left = spark.range(0, 8, 1, 1).selectExpr("id % 4 AS a", "id % 4 + 2 AS b")
    numbered = people()
    if function is not None:
        schema = "id BIGINT, city INT, person STRING, score DOUBLE"
        options = {"lookup.cache": "LRU", "lookup.max-retries": "0"}
        numbered = LookupTable.from_function("people", schema, key=["id"], function=function, options=options)
    one = LookupJoin(left, numbered, "a = people.id", "left", ["a", "b", "people.person AS first"])
    two = LookupJoin(one.df, numbered, "b = people.id", "inner", ["a", "b", "first", "people.person AS second"])
    assert "in one Python stage" in two.explain()
    assert sum(multiset(two.df).values()) == 10
    counts = [
        (m.rows, m.hits, m.misses, m.requested_keys, m.calls, m.fetched_rows) for m in (one.metrics(), two.metrics())
    ]
    # The keys of the second join are requested first, since they are known; the first finds 2 and 3 among them.
    assert counts == [(8, 6, 2, 2, 2, 1), (10, 6, 4, 4, 4, 4)]
    assert one.metrics().cached_keys == two.metrics().cached_keys == 6


UNKNOWN = ["explode(array(1, 2))", "stack(2, 1, 2)", "`rand`()", "noise()"]
"""Calls that may give a row another number of values, or other values each time."""


@pytest.mark.extended
@pytest.mark.parametrize("call", UNKNOWN)
def test_an_unknown_function_ends_the_stage_even_if_unread(spark, visits, call):
    spark.udf.register("noise", F.udf(lambda: 0.5, "double").asNondeterministic())
    one = lookup_join(visits, people(), "person_id = people.id", "left", ["visit", "people.city", f"{call} AS x"])
    two = LookupJoin(one, cities(), "city = cities.cid", "left", ["visit", "cities.name"])
    assert "a function that is not known" in two.explain()
    names = {key: found[0][1] for key, found in CITIES.items()}
    expected = Counter((row.visit, names.get(row.city)) for row in one.collect())
    assert Counter(map(tuple, two.df.collect())) == expected


def test_a_function_redefined_between_the_joins_changes_no_row(spark, visits):
    spark.udf.register("key_of", lambda n: n, "int")
    one = lookup_join(visits, people(), "key_of(person_id) = people.id", "left", ["visit", "people.city"])
    two = pair_of(one)
    assert "in one Python stage" in two[0].explain()
    spark.udf.register("key_of", lambda n: 4, "int")
    three = pair_of(one)
    assert "a function has been defined again" in three[0].explain()
    assert multiset(two[0].df) == multiset(two[1].df) == multiset(three[0].df) == multiset(three[1].df)


def pair_of(left):
    """Return the join with the cities, fused if it may be, and not fused."""
    return [
        LookupJoin(left, cities(**{"lookup.fuse": fuse}), "city = cities.cid", "left", ["visit", "cities.name"])
        for fuse in ("auto", "off")
    ]


ORDER = "spark.sql.functionResolution.sessionOrder"


@pytest.mark.parametrize("defined", ["before", "between"])
def test_a_function_of_the_user_with_a_name_of_sparks(spark, visits, defined):
    """`startswith` and `coalesce` would be evaluated by the worker, and `abs` moved before the stage."""

    def define():
        spark.udf.register("startswith", lambda text, part: False, "boolean")
        spark.udf.register("coalesce", lambda a, b: 21, "int")
        spark.udf.register("abs", lambda a: 1, "int")

    def cleared():
        for name in ("startswith", "coalesce", "abs"):
            spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {name}")

    on, select = "abs(person_id) = people.id", ["visit", "people.city", "people.person", "coalesce(city, 20) AS c"]
    spark.conf.set(ORDER, "first")
    try:
        if defined == "before":
            define()
        one = lookup_join(visits, people(), on, "left", select, where="NOT startswith(person, 'b')")
        own = visits.join(own_people(spark), F.expr(on.replace("people.id", "id")), "left")
        own = own.selectExpr("visit", "city", "person", "coalesce(city, 20) AS c").where("NOT startswith(person, 'b')")
        define()
        kept = [df.where("c > 20 OR startswith(person, 'a')") for df in (one, own)]
        two = LookupJoin(kept[0], cities(), "c = cities.cid", "left", ["visit", "c", "cities.name"])
        names = {key: found[0][1] for key, found in CITIES.items()}
        expected = Counter(repr((row.visit, row.c, names.get(row.c))) for row in kept[1].collect())
        assert Counter(repr(tuple(row)) for row in two.df.collect()) == expected
    finally:
        cleared()
        spark.conf.unset(ORDER)


def own_people(spark):
    return spark.createDataFrame(
        [row for found in PEOPLE.values() for row in found], "id BIGINT, city INT, person STRING, score DOUBLE"
    )


def test_a_boolean_column_of_the_table_is_a_filter(visits):
    flags = {1: [(1, True, 10)], 2: [(2, None, 20)], 3: [(3, False, 21)], 4: [(4, True, 7)]}
    schema = "id BIGINT, flag BOOLEAN, city INT"
    one = lookup_join(visits, table("flags", schema, flags), "person_id = flags.id", "left", ["visit", "flag", "city"])
    for kept, found in ((one.where("flag"), {(10, "Delft"), (16, None)}), (one.where("NOT flag"), {(15, "Gouda")})):
        two = LookupJoin(kept, cities(), "city = cities.cid", "left", ["visit", "cities.name"])
        assert WORKER in two.explain(), two.explain()
        assert {tuple(row) for row in two.df.collect()} == found


LITERALS = ["1.5BD", "2S", "3Y", "4L", "1.5F", "1.5D"]


def test_filters_with_literals_of_each_type(visits):
    numbers = " AND ".join(f"city <> {literal}" for literal in LITERALS)
    others = "DATE'2020-01-01' <> DATE'2020-01-02' AND person <> 'é' AND encode(person, 'utf-8') <> X'00FF'"
    fused, apart = pair(visits, lambda df: df.where(f"{numbers} AND {others}"), how="left")
    assert multiset(fused.df) == multiset(apart.df)


NOT_FUSED = {
    "a function whose value changes": (lambda df: df.where(F.rand() >= 0), "changes from call to call"),
    "an identifier": (lambda df: df.withColumn("note", F.uuid()).select("visit", "city"), ""),
    "numbered rows": (
        lambda df: df.withColumn("visit", F.monotonically_increasing_id() * 0), "changes from call to call",
    ),
    "a limit": (lambda df: df.limit(1000), "a limit stands between"),
    "a sort": (lambda df: df.where("city > 0").sort("visit"), "a sort stands between"),
    "a distinct": (lambda df: df.distinct(), "a distinct stands between"),
    "a shuffle": (lambda df: df.repartition(2), "a shuffle stands between"),
    "a hint that is a shuffle": (lambda df: df.hint("rebalance"), "a shuffle stands between"),
    "a union": (lambda df: df.union(df), "a union stands between"),
    "a join with itself": (
        lambda df: df.join(df.select(F.col("visit").alias("other")), F.col("visit") == F.col("other")),
        "a join stands between",
    ),
    "an aggregate": (lambda df: df.groupBy("city").agg(F.max("visit").alias("visit")), "an aggregate stands between"),
    "a sub-query": (lambda df: df.where("city IN (SELECT id FROM range(100))"), "has a sub-query"),
    "an explosion": (lambda df: df.select("visit", "city", F.explode(F.array(F.lit(1)))), "a generator function"),
    "a Spark function of the table": (lambda df: df.where("upper(person) <> 'X'"), "from a column of people"),
}  # fmt: skip


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize(("between", "reason"), NOT_FUSED.values(), ids=NOT_FUSED)
def test_steps_that_do_not_share_the_stage_name_the_reason(visits, between, reason):
    left = between(
        lookup_join(
            visits, people(), "person_id = people.id", "left", ["visit", "note", "people.city", "people.person"]
        )
    )
    two = LookupJoin(left, cities(), "city = cities.cid", "left", ["visit", "city", "cities.name"])
    assert ("one Python stage" in two.explain()) == (not reason), two.explain()
    assert reason in two.explain(), two.explain()
    names = {key: found[0][1] for key, found in CITIES.items()}
    expected = Counter((row.visit, row.city, names.get(row.city)) for row in left.collect())
    assert Counter(map(tuple, two.df.collect())) == expected


def test_an_expression_raises_no_error_for_a_filtered_row(spark):
    left = spark.createDataFrame([(1, 0, "x"), (2, 2, "20")], "id INT, divisor INT, text STRING")
    joined = lookup_join(left, people(), "left.id = people.id", "left", ["left.id", "divisor", "text", "people.city"])
    kept = joined.where("city >= 20")
    for column in ("CAST(text AS BIGINT)", "CAST(40 / divisor AS BIGINT)"):
        two = LookupJoin(
            kept.withColumn("key", F.expr(column)), cities(), "key = cities.cid", "left", ["id", "cities.name"]
        )
        assert "a join before drops rows" in two.explain()
        assert multiset(two.df) == multiset(
            spark.createDataFrame([(2, "Utrecht"), (2, "Utrecht")], "id INT, name STRING")
        )
    early = joined.where("divisor <> 0").withColumn("key", F.expr("CAST(40 / divisor AS BIGINT)"))
    two = LookupJoin(early, cities(), "key = cities.cid", "left", ["id", "cities.name"])
    assert BEFORE in two.explain()
    assert multiset(two.df) == Counter({"Row(id=2, name='Utrecht')": 2})


def test_an_overflow_in_the_worker_ends_the_job_as_in_spark(spark):
    left = spark.createDataFrame([(1, 2**31 - 1)], "id INT, n INT")
    joined = lookup_join(left, people(), "left.id = people.id", "left", ["left.id", "n", "people.city"])
    for fuse in ("auto", "off"):
        two = LookupJoin(
            joined.withColumn("key", F.expr("city + n")), cities(**{"lookup.fuse": fuse}), "key = cities.cid", "left"
        )
        with pytest.raises(Exception, match=r"(?i)overflow"):
            two.df.collect()


@pytest.mark.extended
def test_failed_rows_pass_only_the_where_of_their_own_join(visits, tmp_path):
    def down(key):
        raise ConnectionError("away")

    options = {
        "lookup.on-error": "null",
        "lookup.error-column": "error",
        "lookup.cache": "LRU",
        "lookup.max-retries": "0",
    }
    broken = LookupTable.from_function("people", "id BIGINT, city INT", key=["id"], function=down, options=options)
    one = LookupJoin(
        visits,
        broken,
        "person_id = people.id",
        "left",
        ["visit", "people.city"],
        where="people.city > 5 AND visit < 16",
    )
    for condition, count in {"error IS NOT NULL": 5, "error IS NULL": 0, "visit < 12": 2, "city > 5": 0}.items():
        two = LookupJoin(
            one.df.where(condition), cities(), "city = cities.cid", "left", ["visit", "error", "cities.name"]
        )
        assert "in one Python stage" in two.explain(), two.explain()
        assert two.df.count() == count, condition


@pytest.mark.extended
def test_a_join_that_is_distinct_alone_shares_the_next_stage(spark, monkeypatch, tmp_path):
    monkeypatch.setattr("lookupcache.spark.forms.choice.WIDE", 1)
    monkeypatch.setattr("lookupcache.spark.forms.choice.LARGE", 1)
    spark.range(0, 50, 1, 1).selectExpr("id % 5 AS person_id", "id AS visit").write.parquet(str(tmp_path / "visits"))
    left = spark.read.parquet(str(tmp_path / "visits"))
    one = LookupJoin(left, people(), "person_id = people.id", "left", ["visit", "people.city"])
    two = LookupJoin(one.df, cities(), "city = cities.cid", "left", ["visit", "cities.name"])
    requested = LookupJoin(
        left, people(**{"lookup.form": "distinct"}), "person_id = people.id", "left", ["visit", "people.city"]
    )
    three = LookupJoin(requested.df, cities(), "city = cities.cid", "left", ["visit", "cities.name"])
    assert (one.choice.form, two.choice.form) == ("distinct", "worker")
    assert "in one Python stage with the lookups of people" in two.explain()
    assert "the lookup of people takes the form distinct" in three.explain()
    assert multiset(two.df) == multiset(three.df)


@pytest.mark.extended
def test_a_join_that_is_broadcast_alone_shares_the_next_stage(spark):
    wide = [f"'' AS s{number}" for number in range(5)]
    visits = spark.range(10, 17).selectExpr("id AS visit", *wide)
    full = spark.createDataFrame([(10, "Delft"), (20, "Utrecht")], "id BIGINT, name STRING").toArrow()
    options = {"connector": "sources:Memory", **options_of(full), "lookup.cache": "ALL"}
    one, two, three = (LookupTable(name, "id BIGINT, name STRING", options) for name in ("one", "two", "three"))
    first = LookupJoin(visits, one, "visit = one.id", "left", ["left.*", "one.name"])
    second = LookupJoin(first.df, two, "visit + 10 = two.id", "left", ["visit", "left.name", "two.name AS other"])
    third = LookupJoin(second.df, three, "visit = three.id", "semi")
    assert (first.choice.form, second.choice.form) == ("broadcast", "worker")
    assert "in one Python stage with the lookups of one" in second.explain()
    assert "in one Python stage with the lookups of one, two" in third.explain()
    assert multiset(third.df) == Counter(["Row(visit=10, name='Delft', other='Utrecht')"])
    kept = LookupTable("kept", "id BIGINT, name STRING", {**options, "lookup.form": "broadcast"})
    requested = lookup_join(visits, kept, "visit = kept.id", "left", ["visit", "kept.name"])
    apart = LookupJoin(requested, two, "visit + 10 = two.id", "left", ["visit", "left.name", "two.name AS other"])
    assert "the lookup of kept takes the form broadcast" in apart.explain()
    assert multiset(apart.df) == multiset(second.df)


@pytest.mark.extended
def test_the_age_of_an_answer_can_be_filtered_by(visits):
    one = LookupJoin(visits, people(**{"lookup.age-column": "age"}), "person_id = people.id", "left")
    two = LookupJoin(
        one.df.where("age < 1000000 OR age IS NULL"), cities(), "city = cities.cid", "semi", ["visit", "age"]
    )
    assert "in one Python stage" in two.explain()
    assert {row.visit for row in two.df.collect()} == {10, 11, 12, 15}


def test_explain_says_that_distinct_repeats_the_join_before(visits):
    distinct = {"lookup.form": "distinct"}
    one = lookup_join(visits, people(**distinct), "person_id = people.id", "left", ["visit", "people.city"])
    two = LookupJoin(one, cities(**distinct), "city = cities.cid", "left", ["visit", "cities.name"])
    assert "the first is computed again for the keys of the second" in two.explain()


@pytest.mark.extended
@pytest.mark.parametrize("how", ["semi", "anti"])
def test_a_semi_join_between(visits, how):
    first = lookup_join(visits, people(), "person_id = people.id", how).where("visit > 10")
    second = LookupJoin(
        first.withColumn("k", F.col("visit") + 10), cities(), "k = cities.cid", "left", ["visit", "cities.name"]
    )
    assert "in one Python stage" in second.explain()
    expected = {"semi": {(11, "Gouda"), (12, None), (15, None), (16, None)}, "anti": {(13, None), (14, None)}}
    assert {tuple(row) for row in second.df.collect()} == expected[how]


def test_a_case_sensitive_session_keeps_columns_apart(spark, visits):
    joined = lookup_join(visits, people(), "person_id = people.id", "left", ["visit", "people.city"])
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        both = joined.withColumn("City", F.col("city") + 11).where("City < 25")
        two = LookupJoin(both, cities(), "City = cities.cid", "left", ["visit", "city", "cities.name"])
        assert "in one Python stage" in two.explain()
        found = sorted(map(tuple, two.df.collect()))
        assert found == [(10, 10, "Gouda"), (15, 10, "Gouda"), (16, 7, None)]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_the_session_time_zone_changes_no_filter_and_no_column(spark):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        left = spark.sql(
            "SELECT 1 AS id, TIMESTAMP '2020-01-01 05:00:00' AS t UNION ALL SELECT 2, TIMESTAMP '2019-01-01'"
        )
        joined = lookup_join(left, people(), "left.id = people.id", "inner", ["left.id", "t", "people.city"])
        kept = joined.where("t > '2020-01-01 04:00:00' AND city > 5")
        kept = kept.withColumn("t", F.expr("if(city = 10, t, TIMESTAMP '2000-01-01 00:00:00')"))
        two = LookupJoin(kept, cities(), "city = cities.cid", "left", ["t", "cities.name"])
        assert "in one Python stage" in two.explain(), two.explain()
        [row] = two.df.selectExpr("CAST(t AS STRING) AS t", "name").collect()
        assert tuple(row) == ("2020-01-01 05:00:00", "Delft")
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.extended
def test_a_result_that_is_kept_filtered_and_joined_with_itself(visits):
    one = lookup_join(visits, people(), "person_id = people.id", "left", ["visit", "people.city"])
    kept = one.where("city > 5")
    two = LookupJoin(kept, cities(), "city = cities.cid", "left", ["visit", "cities.name"]).df
    three = two.alias("a").join(two.alias("b"), F.col("a.visit") == F.col("b.visit"))
    assert (kept.count(), two.count(), three.count(), two.union(two).count()) == (7, 7, 11, 14)
    kept.persist()
    try:
        again = LookupJoin(kept.select("city"), cities(), "city = cities.cid", "left")
        assert "the left side is persisted" in again.explain()
        assert again.df.count() == 7
    finally:
        kept.unpersist()


@pytest.mark.extended
def test_a_stream_filter_shares_the_stage_unlike_a_watermark(spark, visits, tmp_path):
    visits.write.parquet(str(tmp_path / "in"))
    stream = (
        spark.readStream.schema(visits.schema)
        .parquet(str(tmp_path / "in"))
        .withColumn("t", F.timestamp_seconds("visit"))
        .withWatermark("t", "1 hour")
    )
    one = lookup_join(stream, people(), "person_id = people.id", "left", ["visit", "t", "people.city"])
    two = LookupJoin(
        one.where("city >= 10 AND visit < 15"), cities(), "city = cities.cid", "left", ["visit", "t", "cities.name"]
    )
    assert "in one Python stage" in two.explain()
    # Spark refuses this where the watermark is not on the result's column.
    once = two.df.dropDuplicatesWithinWatermark(["visit", "name"]).drop("t")
    late = LookupJoin(one.withWatermark("t", "1 minute"), cities(), "city = cities.cid", "left", ["t", "cities.name"])
    assert "a watermark stands between the two joins" in late.explain()
    query = once.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "check"))
    query.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    found = Counter(map(tuple, spark.read.parquet(str(tmp_path / "out")).collect()))
    assert found == Counter([(10, "Delft"), (11, "Utrecht"), (11, "Gouda"), (12, "Utrecht"), (12, "Gouda")])
