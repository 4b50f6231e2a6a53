"""The physical forms of a join: the same rows, counts, errors and dead letters from each; which one `auto` takes."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from multisets import multiset
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from sources import SCHEMA, options_of, rows_of

from lookupcache import LookupJoin, LookupTable, OptionError, lookup_join
from lookupcache.errors import SchemaError
from lookupcache.spark.forms.cardinality import chao_lower_bound
from lookupcache.spark.forms.distinct import NOT_LOOKED_UP

pytestmark = pytest.mark.spark

HOW = ["inner", "left", "semi", "anti"]

numbers = itertools.count()


@pytest.fixture(scope="module")
def wide(spark, tmp_path_factory):
    """Return a left side that `distinct` is for: files, wide, and not small."""
    folder = str(tmp_path_factory.mktemp("wide") / "rows")
    texts = [f"sha2(concat(id, '{n}'), 512) AS s{n}" for n in range(10)]
    spark.range(0, 40_000, 1, 8).selectExpr("id % 1000 AS person", *texts).write.parquet(folder)
    return spark.read.parquet(folder)


def people(function=rows_of, **options) -> LookupTable:
    """Return a table whose cache no other join shares; its rows come from a function."""
    mark = next(numbers)
    options = {"lookup.cache": "LRU", "lookup.max-retries": "0", **options}
    return LookupTable.from_function(
        "p", SCHEMA, key=["id"], function=lambda key, _mark=mark: function(key), options=options
    )


def whole(right, **options) -> LookupTable:
    own = {"connector": "sources:Memory", **options_of(right.toArrow()), "mark": str(next(numbers))}
    return LookupTable("p", SCHEMA, {**own, "lookup.cache": "ALL", **options})


# ── the same from each ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=5)
@pytest.mark.parametrize(
    ("how", "form", "adaptive"), list(itertools.product(HOW, ["distinct", "broadcast"], ["true", "false"]))
)
def test_equals_sparks_own_join(spark, visits, right, how, form, adaptive):
    on = "person = p.id AND visit < p.salary AND length(land) = 2"
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        ours = LookupJoin(visits, whole(right), on, how, options={"lookup.form": form})
        assert multiset(ours.df) == multiset(visits.join(right.alias("p"), F.expr(on), how))
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")


FAILING = {
    "a null key of a map": "to_json(struct(map(land, p.name))) LIKE '%'",
    "a cast": "cast(land AS INT) + p.salary > 0",
    "an error": "if(land IS NULL, raise_error('none'), p.salary) > 0",
    "a cast in a lambda": "transform(array(p.salary), x -> cast(land AS INT))[0] < p.salary",
    "a division": "p.salary / (visit - 100) < 0",
}
"""Conditions that fail for some left rows without a match."""


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=5)
@pytest.mark.parametrize(
    ("condition", "form", "how"), list(itertools.product(FAILING, ["worker", "distinct", "broadcast"], HOW))
)
def test_a_condition_fails_only_for_pairs(spark, right, condition, form, how):
    rows = [(1, 1, "5"), (2, 2, "6"), (3, None, None), (4, None, "bad"), (100, 99, "bad"), (100, 98, None)]
    left = spark.createDataFrame(rows, "visit BIGINT, person BIGINT, land STRING")
    on = f"person = p.id AND {FAILING[condition]}"
    table = whole(right, **{"lookup.form": form})
    assert multiset(lookup_join(left, table, on, how)) == multiset(left.join(right.alias("p"), F.expr(on), how))
    if how == "inner":
        filtered = left.join(right.alias("p"), F.expr("person = p.id")).where(FAILING[condition])
        assert multiset(lookup_join(left, table, "person = p.id", where=FAILING[condition])) == multiset(filtered)


@pytest.mark.extended
@pytest.mark.parametrize("channel", ["accumulator", "observe"])
def test_distinct_requests_each_key_once_and_counts_rows(spark, channel):
    left = spark.range(0, 1000, 1, 8).selectExpr("nullif(id % 5, 4) AS person")
    table = people(**{"lookup.form": "distinct", "lookup.metrics": channel})
    join = LookupJoin(left, table, "person = p.id", "left")
    assert join.df.count() == 1200
    metrics = join.metrics()
    assert (metrics.rows, metrics.calls, metrics.requested_keys, metrics.misses, metrics.hits) == (1000, 4, 4, 4, 796)


def test_broadcast_loads_the_table_once_and_counts_left_rows(spark, right):
    left = spark.range(0, 100, 1, 4).selectExpr("nullif(id % 5, 4) AS person")
    join = LookupJoin(left, whole(right, **{"lookup.form": "broadcast"}), "person = p.id AND p.salary > 1000")
    assert join.df.count() == 40
    metrics = join.metrics()
    assert (metrics.calls, metrics.cached_rows, metrics.rows, metrics.hits) == (1, 2, 100, 80)


def failing(key):
    if key == 2:
        raise ConnectionError("no route")
    return rows_of(key)


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=5)
@pytest.mark.parametrize(
    ("how", "on"), list(itertools.product(HOW, ["person = p.id", "person = p.id AND visit < p.salary"]))
)
def test_rows_whose_lookup_failed_are_marked_alike(visits, how, on):
    marks = {"lookup.on-error": "null", "lookup.error-column": "error"}
    joins = [
        LookupJoin(visits, people(failing, **marks, **{"lookup.form": form}), on, how)
        for form in ("worker", "distinct")
    ]
    by_worker, by_keys = (multiset(join.df) for join in joins)
    assert by_keys == by_worker
    assert [join.metrics().failed_rows for join in joins] == [2, 2]


@pytest.mark.extended
@pytest.mark.parametrize("form", ["worker", "distinct"])
def test_dead_letters_are_the_left_rows_whose_lookup_failed(spark, visits, tmp_path, form):
    options = {"lookup.on-error": "dead-letter", "lookup.dead-letter.path": str(tmp_path), "lookup.form": form}
    join = LookupJoin(visits, people(failing, **options), "person = p.id", "left")
    assert sorted(row.visit for row in join.df.collect()) == [10, 13, 14, 15]
    letters = spark.read.parquet(str(tmp_path)).collect()
    assert sorted((row.visit, row.land, row.lookup_error.code) for row in letters) == [
        (11, "NL", "LOOKUP_FAILED"),
        (12, "DE", "LOOKUP_FAILED"),
    ]
    assert join.metrics().dead_letters == 2


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize(
    ("form", "how"), list(itertools.product(["worker", "distinct", "broadcast"], ["left", "semi"]))
)
def test_the_age_of_an_answer_is_reported(visits, right, how, form):
    table = whole(right, **{"lookup.form": form, "lookup.age-column": "age"})
    rows = LookupJoin(visits, table, "person = p.id AND visit < p.salary", how).df.collect()
    assert {row.visit: row.age is not None for row in rows if row.visit in (10, 14)} == (
        {10: True, 14: False} if how == "left" else {10: True}
    )
    assert all(0 <= row.age < 600 for row in rows if row.age is not None)


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=5)
@pytest.mark.parametrize(("how", "form"), list(itertools.product(HOW, ["distinct", "broadcast"])))
def test_a_column_for_the_age_changes_no_row(visits, right, how, form):
    on = "person = p.id AND visit < p.salary AND length(land) = 2"
    ours = LookupJoin(visits, whole(right, **{"lookup.form": form, "lookup.age-column": "age"}), on, how)
    assert multiset(ours.df.drop("age")) == multiset(visits.join(right.alias("p"), F.expr(on), how))


@pytest.mark.extended
@pytest.mark.parametrize("form", ["distinct", "broadcast"])
def test_left_columns_of_any_type_pass_through(spark, right, form):
    left = spark.sql(
        "SELECT id AS person, array(named_struct('a', id, 'b', map('k', DATE'2020-01-01'))) AS deep, "
        "INTERVAL '1' DAY AS i, X'00' AS bytes, NULL AS nothing, parse_json('[1]') AS v FROM range(3)"
    )
    ours = LookupJoin(left, whole(right, **{"lookup.form": form}), "person = p.id", "left")
    assert multiset(ours.df) == multiset(left.join(right.alias("p"), F.expr("person = p.id"), "left"))


# ── a left side that moves ───────────────────────────────────────────────────────────────────────────────


def other_keys(batches):
    import pyarrow as pa

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"person": [random.SystemRandom().randrange(10**12)] * batch.num_rows})


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=5)
@pytest.mark.parametrize(("how", "adaptive"), list(itertools.product(HOW, ["true", "false"])))
def test_an_unrequested_key_stops_the_job_and_names_the_cure(spark, how, adaptive):
    moving = spark.range(4).mapInArrow(other_keys, "person BIGINT")
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        join = LookupJoin(moving, people(**{"lookup.form": "distinct"}), "person = p.id", how)
        with pytest.raises(Exception, match="returned a row at its second reading") as raised:
            join.df.collect()
        assert NOT_LOOKED_UP in str(raised.value)
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")


# ── which form ───────────────────────────────────────────────────────────────────────────────────────────


def chosen(left, table, on="person = p.id", how="left") -> tuple[str, str]:
    choice = LookupJoin(left, table, on, how).choice
    return choice.form, choice.reason


@pytest.mark.extended
def test_auto_takes_distinct_for_a_wide_large_left_side_of_files(wide):
    assert chosen(wide, people())[0] == "distinct"


def test_auto_takes_distinct_for_what_is_persisted(wide):
    moving = wide.withColumn("chance", F.rand())
    assert "changes from call to call" in chosen(moving, people())[1]
    moving.persist()
    try:
        assert moving.count() == 40_000
        assert chosen(moving, people())[0] == "distinct"
    finally:
        moving.unpersist()


def test_auto_takes_worker_if_distinct_does_not_pay_or_is_unsafe(spark, wide, tmp_path):
    again = LookupJoin(wide, people(), "person = p.id", "left", ["left.*", "p.name AS first"]).df
    letters = {"lookup.on-error": "dead-letter", "lookup.dead-letter.path": str(tmp_path)}
    for left, table, on, reason in (
        (wide.select("person", "s1"), people(), "person = p.id", "narrow"),
        (wide.limit(10), people(), "person = p.id", "a limit twice"),
        (wide.where("s1 = 'a'").coalesce(1), people(), "person = p.id", "a shuffle twice"),
        (again, people(), "person = p.id", "twice"),
        (wide, people(**letters), "person = p.id", "dead letters"),
        (wide, people(), "person = p.id AND s1 < p.name", "residual"),
        (wide.withColumn("person", F.xxhash64("s1")), people(), "person = p.id", "more than 327,680 keys"),
        (spark.createDataFrame([(1, *"abcdefgh")], "person BIGINT, a STRING, b STRING, c STRING, d STRING, e STRING, "
                               "f STRING, g STRING, h STRING"), people(), "person = p.id", "RDD"),
    ):  # fmt: skip
        form, why = chosen(left, table, on)
        assert form == "worker"
        assert reason in why


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.adaptive.enabled", "false"),
        ("spark.sql.autoBroadcastJoinThreshold", "-1"),
        ("spark.sql.adaptive.autoBroadcastJoinThreshold", "-1"),
    ],
)
def test_auto_takes_the_worker_where_spark_broadcasts_nothing(spark, wide, setting, value):
    spark.conf.set(setting, value)
    try:
        assert "would not broadcast" in chosen(wide, people())[1]
    finally:
        spark.conf.unset(setting)


@pytest.mark.parametrize("keys", [100, 5_000, 100_000, 1_000_000])
def test_a_few_rows_tell_about_how_many_keys_there_are(keys):
    drawn = np.random.default_rng(7).integers(0, keys, 10_000)
    assert chao_lower_bound(np.unique(drawn, return_counts=True)[1].tolist()) == pytest.approx(keys, rel=0.2)


def test_auto_takes_broadcast_for_a_full_cache(wide, visits, right):
    assert chosen(wide, whole(right))[0] == "broadcast"
    assert chosen(visits, whole(right))[1].startswith("the left rows are narrow (36 bytes")
    shuffled = wide.repartition(2)
    assert "a shuffle twice" in chosen(shuffled, whole(right))[1]
    assert chosen(shuffled, whole(right, **{"lookup.metrics": "off"}))[0] == "broadcast"
    marks = {"lookup.on-error": "null", "lookup.error-column": "error"}
    assert chosen(wide, whole(right, **marks))[0] == "worker"


@pytest.mark.parametrize(
    ("rows", "forms"), [(1_000_000, ["worker", "worker"]), (100_000_000, ["broadcast", "distinct"])]
)
def test_auto_takes_other_forms_for_many_narrow_rows(spark, right, rows, forms):
    left = spark.range(rows).selectExpr("id % 1000 AS person", "id AS visit")
    found = [chosen(left, whole(right)), chosen(left, people())]
    assert [form for form, _ in found] == forms
    if rows == 1_000_000:
        assert (
            found[0][1] == "the left rows are narrow (16 bytes of those the join reads; 'broadcast' pays from 100 on)"
        )


@pytest.mark.parametrize(
    ("rows", "forms"), [(20_000_000, ["worker", "worker"]), (400_000_000, ["broadcast", "distinct"])]
)
def test_auto_takes_other_forms_for_many_keys_where_they_occur_again(spark, right, rows, forms):
    """Of ten million keys a cache of 256 MB holds a part: a worker would request each again and again."""
    left = spark.range(rows).selectExpr("(xxhash64(id) & 1073741823) % 10000000 AS person", "id AS visit")
    found = [chosen(left, whole(right)), chosen(left, people())]
    assert [form for form, _ in found] == forms
    if rows == 20_000_000:
        assert "the table may have as many rows as the left side" in found[0][1]
        assert "more than 327,680 keys" in found[1][1]
    assert chosen(left, people(**{"lookup.cache.max-bytes": "4GB"}))[0] == "worker"


def test_explain_names_the_form_and_the_reason(wide, right):
    reported = LookupJoin(wide, whole(right), "person = p.id").explain()
    assert [line.split()[0] for line in reported.splitlines() if "the full table is cached" in line] == ["broadcast"]


@pytest.mark.parametrize("form", ["distinct", "broadcast"])
def test_a_stream_takes_the_worker(spark, right, form):
    stream = spark.readStream.format("rate").load().selectExpr("value AS person")
    assert chosen(stream, whole(right)) == ("worker", "the left side is a stream")
    with pytest.raises(OptionError, match=f"'lookup.form' = '{form}' reads its left side more than once"):
        chosen(stream, whole(right, **{"lookup.form": form}))


@pytest.mark.extended
def test_a_micro_batch_is_a_batch(spark, right, tmp_path):
    names = [f"s{number}" for number in range(5)]
    spark.range(10).selectExpr("id AS person", *(f"'' AS {name}" for name in names)).write.parquet(str(tmp_path / "in"))
    seen = []

    def join(batch, number):
        batch.persist()
        for form in ("auto", "distinct"):
            one = LookupJoin(batch, whole(right, **{"lookup.form": form}), "person = p.id", "left")
            seen.append((one.choice.form, one.df.count()))
        batch.unpersist()

    stream = spark.readStream.schema(f"person BIGINT, {' STRING, '.join(names)} STRING").parquet(str(tmp_path / "in"))
    query = stream.writeStream.foreachBatch(join).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "check")).start().awaitTermination()
    assert seen == [("broadcast", 11), ("distinct", 11)]


def test_a_column_of_time_in_a_session_that_refuses_the_type(spark):
    if not hasattr(T, "TimeType"):
        pytest.skip("this Spark has no TIME")
    left = spark.sql("SELECT 1 AS person, TIME'12:00:00' AS clock")
    on = spark.conf.get("spark.sql.timeType.enabled")
    spark.conf.set("spark.sql.timeType.enabled", "false")
    try:
        assert LookupJoin(left, people(), "person = p.id", "left").df.selectExpr("CAST(clock AS STRING)").first() == (
            "12:00:00",
        )
        with pytest.raises(SchemaError, match="Left column 'clock' has type TIME"):
            _ = LookupJoin(left, people(**{"lookup.form": "distinct"}), "person = p.id", "left").df
    finally:
        spark.conf.set("spark.sql.timeType.enabled", on)


# ── a result that reads nothing ──────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=5)
@pytest.mark.parametrize(("how", "metrics"), list(itertools.product(HOW, ["accumulator", "observe"])))
def test_rows_without_a_column_are_not_lost(visits, right, how, metrics):
    """The constants are Spark's; from the worker there come rows and nothing else."""
    theirs = visits.join(right.alias("p"), F.expr("person = p.id"), how).selectExpr("1 AS one", "'x'", "1 + 1", "NULL")
    for form in ("worker", "distinct", "broadcast"):
        options = {"lookup.form": form, "lookup.metrics": metrics}
        ours = LookupJoin(
            visits, whole(right), "person = p.id", how, ["1 AS one", "'x'", "1 + 1", "NULL"], options=options
        )
        assert (ours.df.columns, multiset(ours.df)) == (theirs.columns, multiset(theirs))


def test_an_expression_is_named_as_spark_names_it(visits, right):
    select = [
        "visit % 9",
        "upper(LAND)",
        "p.Salary + o.Visit",
        "p.country IS NULL",
        "CASE WHEN visit > 1 THEN name END",
    ]
    ours = LookupJoin(visits, whole(right), "person = p.id", "left", select)
    theirs = visits.alias("o").join(right.alias("p"), F.expr("person = p.id"), "left").selectExpr(*select)
    assert (ours.df.columns, multiset(ours.df)) == (theirs.columns, multiset(theirs))


NAMES = ["r0", "r1", "R0", "l0", "k0", "age", "error", "matches", "m", "n"]


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=13)
@pytest.mark.parametrize(("how", "name"), list(itertools.product(HOW, NAMES)))
def test_a_lambda_variable_hides_no_column_of_the_join(spark, how, name):
    left = spark.createDataFrame([(1, 3), (2, 0)], "person INT, w INT")
    right = spark.createDataFrame([(1, "a"), (2, "b")], "id BIGINT, name STRING")
    table = LookupTable.from_function("p", "id BIGINT, name STRING", key=["id"], function=lambda k: [(k, "ab"[k - 1])])
    on = f"o.person = p.id AND exists(array(o.w), {name} -> {name} > p.id)"
    joined = lookup_join(left.alias("o"), table, on, how, ["o.person"], options={"lookup.form": "worker"})
    spark_how = {"semi": "left_semi", "anti": "left_anti"}.get(how, how)
    theirs = left.alias("o").join(right.alias("p"), F.expr(on), spark_how).select("o.person")
    assert multiset(joined) == multiset(theirs)
