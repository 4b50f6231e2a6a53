"""What becomes of left rows whose lookup failed: the job fails, or they are marked, or they are dead letters."""

from __future__ import annotations

import itertools
from itertools import count
from pathlib import Path

import pytest
from multisets import multiset
from pyspark import TaskContext
from pyspark.errors import PythonException
from pyspark.sql import functions as F  # noqa: N812
from sources import PEOPLE, SCHEMA, rows_of

from lookupcache import LookupJoin, LookupTable, PlanError, lookup_join

pytestmark = pytest.mark.spark

HOW = ["inner", "left", "semi", "anti"]
LRU = {"lookup.cache": "LRU", "lookup.max-retries": "0"}
NULL = {**LRU, "lookup.on-error": "null", "lookup.error-column": "problem"}
RIGHT = ["id", "name", "country", "salary"]
_fresh = count()


@pytest.fixture(scope="session")
def right(spark):
    return spark.createDataFrame(PEOPLE, SCHEMA).alias("p")


@pytest.fixture(scope="session")
def visits(spark):
    rows = [(10, 1, "NL"), (11, 2, "NL"), (12, 2, "DE"), (13, 9, "NL"), (14, None, "NL"), (15, 3, None), (16, 2, "NL")]
    return spark.createDataFrame(rows, "visit BIGINT, person BIGINT, land STRING").repartition(2).cache()


def fails_for_two(key):
    if key == 2:
        raise ConnectionError("no route")
    return rows_of(key)


def fails_for_two_and_at_first(key):
    if key == 3 and TaskContext.get().attemptNumber() == 0:
        raise PlanError("no trouble of the source")
    return fails_for_two(key)


def people(options, function=fails_for_two, **more) -> LookupTable:
    """Return a table of which key 2 cannot be had, with a cache that no other test shares."""
    mark = next(_fresh)
    return LookupTable.from_function(
        "p", SCHEMA, key=["id"], function=lambda key, _mark=mark: function(key), options=options, **more
    )


def letters(options, path) -> dict[str, str]:
    return {**LRU, **options, "lookup.on-error": "dead-letter", "lookup.dead-letter.path": str(path)}


def marked(df, code):
    """Return rows of the left side as the join gives them where their lookup failed."""
    return df.select("*", *(F.lit(None).alias(name) for name in RIGHT), F.lit(code).alias("problem"))


# Conditions, and which left rows of key 2 are looked up under them.
CONDITIONS = {
    "key": ("person = p.id", "true"),
    "filter": ("person = p.id AND p.salary > 1000", "true"),
    "constant": ("person = p.id AND p.country = 'NL'", "true"),
    "two keys": ("person = p.id AND land = p.country", "true"),
    "residual": ("person = p.id AND visit < p.salary - 885", "true"),
    "residual for Spark": ("person = p.id AND substring(p.name, 1, 1) < substring(land, 2, 1)", "true"),
    "pre-filter": ("person = p.id AND visit <> 11", "visit <> 11"),
    "a constant that nothing equals": ("person = p.id AND p.country = NULL", "false"),
}


# Observed, a join has a column and a row more on its way.
CASES = {name: (*case, "accumulator") for name, case in CONDITIONS.items()} | {
    f"{name}, observed": (*CONDITIONS[name], "observe") for name in ("key", "residual for Spark")
}


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=5)
@pytest.mark.parametrize(("how", "name"), list(itertools.product(HOW, CASES)))
def test_each_left_row_is_joined_as_by_spark_or_marked_once(visits, right, how, name):
    on, requested, channel = CASES[name]
    failed = F.expr(f"person <=> 2 AND {requested}")
    joined = visits.where(~failed).join(right, F.expr(on), how).withColumn("problem", F.lit(None))
    theirs = joined.unionByName(marked(visits.where(failed), "LOOKUP_FAILED").select(joined.columns))
    ours = LookupJoin(visits, people({**NULL, "lookup.metrics": channel}), on, how)
    assert ours.df.columns == theirs.columns
    assert dict(ours.df.dtypes)["problem"] == "struct<code:string,message:string>"
    assert multiset(ours.df.withColumn("problem", F.col("problem.code"))) == multiset(theirs)
    assert ours.metrics().failed_rows == visits.where(failed).count()


@pytest.mark.extended
@pytest.mark.parametrize("how", HOW)
def test_a_where_drops_no_failed_row_but_for_its_left_columns(visits, right, how):
    wheres = {"semi": "visit > 11", "anti": "visit > 11"}
    where = wheres.get(how, "visit > 11 AND coalesce(p.name, 'bob') <> 'bob'")
    failed = F.expr("person <=> 2")
    theirs = visits.where(~failed).join(right, F.expr("person = p.id"), how).where(where)
    joined = lookup_join(visits, people(NULL), "person = p.id", how, where=where)
    good, bad = joined.where("problem IS NULL").drop("problem"), joined.where("problem IS NOT NULL")
    assert multiset(good) == multiset(theirs)
    assert sorted(row.visit for row in bad.collect()) == [12, 16]


@pytest.mark.parametrize("how", HOW)
def test_selected_expressions_are_computed_for_failed_rows(visits, how):
    right = [] if how in ("semi", "anti") else ["coalesce(p.name, 'nobody') AS name"]
    joined = lookup_join(visits, people(NULL), "person = p.id", how, select=["visit + 1 AS next", *right])
    failed = joined.where("problem IS NOT NULL").drop("problem").collect()
    assert sorted(row.next for row in failed) == [12, 13, 17]
    assert {row.asDict().get("name", "nobody") for row in failed} == {"nobody"}


def test_a_miss_has_no_error_and_an_error_says_what_happened(visits):
    joined = lookup_join(visits, people(NULL), "person = p.id", "left", select=["visit", "p.name"])
    problems = {row.visit: row.problem for row in joined.collect()}
    assert [problems[visit] for visit in (10, 13, 14, 15)] == [None] * 4
    assert problems[11].code == "LOOKUP_FAILED"
    assert "the lookup of 1 key failed after 1 attempt: ConnectionError: no route" in problems[11].message


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=5)
@pytest.mark.parametrize(("how", "name"), list(itertools.product(HOW, CONDITIONS)))
def test_failed_rows_are_dead_letters_and_the_rest_continues(spark, visits, right, how, name, tmp_path):
    on, requested = CONDITIONS[name]
    failed = F.expr(f"person <=> 2 AND {requested}")
    ours = LookupJoin(visits, people(letters({}, tmp_path)), on, how)
    assert multiset(ours.df) == multiset(visits.where(~failed).join(right, F.expr(on), how))
    schema = f"{', '.join(f'{name} {kind}' for name, kind in visits.dtypes)}, lookup_error STRUCT<code STRING>"
    written = spark.read.schema(schema).parquet(str(tmp_path))
    assert multiset(written.select(*visits.columns)) == multiset(visits.where(failed))
    assert {row.code for row in written.select("lookup_error.code").collect()} <= {"LOOKUP_FAILED"}
    assert ours.metrics().dead_letters == visits.where(failed).count()


def test_a_dead_letter_holds_all_columns_whatever_is_selected(spark, visits, tmp_path):
    lookup_join(visits, people(letters({}, tmp_path / "new")), "person = p.id", select=["p.name"]).collect()
    written = spark.read.parquet(str(tmp_path / "new"))
    assert written.dtypes == [
        *visits.dtypes,
        ("lookup_table", "string"),
        ("lookup_error", "struct<code:string,message:string>"),
        ("lookup_failed_at", "timestamp"),
    ]
    assert {(row.visit, row.person, row.lookup_table) for row in written.collect()} == {
        (11, 2, "p"),
        (12, 2, "p"),
        (16, 2, "p"),
    }


def test_any_left_column_is_written_into_a_dead_letter(spark, tmp_path):
    left = spark.sql(
        "SELECT 2L AS person, array(named_struct('a', 1, 'b', map('k', DATE'2020-01-01'))) AS deep, X'00ff' AS bytes, "
        "1.50BD AS price, TIMESTAMP'2020-02-29 12:00:00' AS at, TIMESTAMP_NTZ'2020-02-29 12:00:00' AS wall, "
        "INTERVAL '1' DAY AS i, NULL AS nothing, 1Y AS `tiny, odd`"
    )
    assert lookup_join(left, people(letters({}, tmp_path)), "person = p.id", select=["left.person"]).collect() == []
    written = spark.read.parquet(str(tmp_path))
    as_text = {"i": F.lit("1 day, 0:00:00"), "nothing": F.lit(None).cast("string")}
    expected = left.withColumns(as_text)
    assert written.select(*(f"`{name}`" for name in left.columns)).collect() == expected.collect()
    assert written.dtypes[:9] == expected.dtypes


@pytest.fixture
def row_by_row(spark):
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.usefixtures("row_by_row")
def test_a_retried_task_leaves_the_letters_of_its_last_attempt(spark, tmp_path):
    left = spark.createDataFrame([(person,) for person in (2, 1, 2, 3)], "person BIGINT").coalesce(1)
    table = people(letters({}, tmp_path), fails_for_two_and_at_first)
    joined = lookup_join(left, table, "person = p.id", select=["p.id"])
    assert sorted(row.id for row in joined.collect()) == [1, 3]
    assert [row.person for row in spark.read.parquet(str(tmp_path)).collect()] == [2, 2]
    [name] = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert name.split("-")[3] == "1"


@pytest.mark.extended
def test_a_stream_writes_dead_letters_of_each_micro_batch(spark, tmp_path):
    for _ in range(3):
        rows = spark.range(0, 10, 1, 1).selectExpr("id % 4 AS person")
        rows.write.mode("append").parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("person BIGINT").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    join = LookupJoin(stream, people(letters({}, tmp_path / "letters")), "person = p.id", "left")
    writer = join.df.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "check"))
    writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    assert spark.read.parquet(str(tmp_path / "letters")).where("person = 2").count() == 6
    assert spark.read.parquet(str(tmp_path / "out")).where("person <> 2").count() == 24
    assert join.metrics().dead_letters == 6


def test_an_unwritable_folder_fails_the_job_and_names_the_option(visits, tmp_path):
    (tmp_path / "file").write_text("in the way")
    table = people(letters({}, Path(tmp_path / "file" / "folder")))
    with pytest.raises(PythonException, match=r"dead letters cannot be written(?s:.*)lookup\.dead-letter\.path"):
        lookup_join(visits, table, "person = p.id").collect()


# ── failing ──────────────────────────────────────────────────────────────────────────────────────────────


def no_route(keys):
    raise ConnectionError("no route")


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize("how", HOW)
def test_a_failed_job_names_the_table_the_keys_and_the_attempts(visits, how):
    options = {**LRU, "lookup.max-retries": "2", "lookup.retry.delay": "1 ms"}
    table = LookupTable.from_function("p", SCHEMA, key=["id"], function=no_route, batch=True, options=options)
    message = (
        r"Table 'p' \(function 'no_route'\): the lookup of 4 keys failed after 3 attempts: ConnectionError: no route "
        r"\(in no_route, .*test_on_error.py, line \d+\)"
    )
    with pytest.raises(PythonException, match=message):
        lookup_join(visits.coalesce(1), table, "person = p.id", how).collect()


# ── age ──────────────────────────────────────────────────────────────────────────────────────────────────

AGED = {**NULL, "lookup.age-column": "seconds"}


@pytest.mark.usefixtures("row_by_row")
@pytest.mark.parametrize("strategy", ["LRU", "NONE"])
def test_only_the_age_of_a_cached_answer_grows(spark, strategy):
    left = spark.range(0, 50, 1, 1).selectExpr("id AS n", "1L AS person")
    table = people({**AGED, "lookup.cache": strategy}, rows_of)
    join = LookupJoin(left, table, "person = p.id", select=["n", "p.name"])
    assert join.df.dtypes[2:] == [("seconds", "double"), ("problem", "struct<code:string,message:string>")]
    ages = [row.seconds for row in sorted(join.df.collect())]
    assert min(ages) >= 0
    if strategy == "LRU":
        assert join.metrics().misses == 1
        # The clock of the host's files and that of the worker are read one after the other.
        assert all(later > earlier - 0.01 for earlier, later in itertools.pairwise(ages))
        assert ages[0] < ages[-1]
    else:
        assert join.metrics().misses == 50
        assert sorted(ages) != ages or max(ages) < 1


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize(("how", "strategy"), list(itertools.product(HOW, ["LRU", "NONE"])))
def test_every_answer_has_an_age_and_what_is_no_answer_has_none(visits, how, strategy):
    table = people({**AGED, "lookup.cache": strategy})
    joined = lookup_join(visits, table, "person = p.id", how, select=["visit", "person"])
    ages = {(row.person, row.seconds is None) for row in joined.collect()}
    of_all = {(1, False), (2, True), (3, False), (9, False), (None, True)}
    kept = {"inner": {1, 2, 3}, "left": {1, 2, 3, 9, None}, "semi": {1, 2, 3}, "anti": {2, 9, None}}[how]
    assert ages == {(person, absent) for person, absent in of_all if person in kept}
