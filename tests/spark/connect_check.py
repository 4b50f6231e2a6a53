"""The join on Spark Connect; `test_connect.py` runs this file in a process of its own."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from urllib.request import urlopen

import pytest
from arrivals import Arrivals
from drawn_world import LEFT, ROWS, VARIABLES, compare_drawn, make_worlds, table_of
from multisets import multiset
from needs import needs_spark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from scale import SCALE, SEED, scale_up
from sources import PEOPLE, SCHEMA, options_of
from sql_hostile import AS_FULL_TABLES, STATEMENTS
from sql_statements import NOW
from test_coercion import settings
from test_column import NUMBERS, assert_alike, meant, written
from test_join import (  # noqa: F401 - they run here as well
    TABLE_OF_ALL_TYPES,
    columns_named_by_spark,
    test_a_column_as_condition,
    test_column_names_as_condition_and_transform,
    test_equals_sparks_own_join,
    test_names_and_columns_mean_the_same_as_in_sparks_join,
    test_select_takes_expressions_over_both_sides,
    test_where_filters_the_result,
)

from lookupcache import (
    CompiledPlan,
    LookupJoin,
    LookupSession,
    LookupTable,
    OptionError,
    PlanError,
    PlanReference,
    SchemaError,
    StatementError,
    export_metrics,
    lookup_join,
)
from lookupcache.monitoring.scrape import samples
from lookupcache.planner.column import column_sql, named_column_sql
from lookupcache.spark.doctor import examine
from lookupcache.spark.latest import PROVIDER, ROCKSDB, is_in_source_order, needs_several_states


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    builder = SparkSession.builder.remote("local[2]")
    # Spark 4.0 has scripts behind a setting.
    builder = builder.config("spark.sql.scripting.enabled", "true")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    # As for the classic session of the tests: each query runs once, over a few rows.
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    for name in ("analyzer.singlePassResolver.dualRunWithLegacy", "planChangeValidation"):
        session.conf.set(f"spark.sql.{name}", "false")
    yield session
    session.stop()


def test_the_session_is_one_of_connect(spark):
    assert type(spark).__module__.startswith("pyspark.sql.connect")


FORMS = {
    "distinct": {"lookup.form": "distinct"},
    "broadcast": {"lookup.form": "broadcast", "lookup.cache": "ALL"},
    "distinct of a whole table": {"lookup.form": "distinct", "lookup.cache": "ALL"},
}


@pytest.mark.nightly(keep_one_in=7)
@pytest.mark.parametrize(("how", "form"), list(itertools.product(["inner", "left", "semi", "anti"], FORMS)))
def test_every_form_equals_sparks_own_join(visits, right, how, form):
    options = FORMS[form]
    own = {"connector": "sources:Memory", **options_of(right.toArrow())}
    on = "person = p.id AND visit < p.salary"
    join = LookupJoin(visits, LookupTable("p", SCHEMA, {**own, **options}), on, how)
    assert multiset(join.df) == multiset(visits.join(right.alias("p"), F.expr(on), how))


TYPES = "'n' AS n, struct('a' AS a, array('b') AS b) AS s, map('k', struct('v' AS v)) AS m, CAST(NULL AS DATE) AS d"
TYPE_NAMES = [f"typeof({side}.{name})" for side in ("o", "p") for name in ("n", "s", "m", "d")]


@pytest.mark.parametrize("form", ["worker", *FORMS])
def test_expressions_see_the_types_of_sparks_own_join(spark, form):
    one, other = (spark.sql(f"SELECT 1 AS {name}, {TYPES}") for name in ("k", "id"))
    table = LookupTable("p", other.schema, {"connector": "sources:Memory", **options_of(other.toArrow())})
    wanted = [f"{sql} AS t{number}" for number, sql in enumerate((*TYPE_NAMES, "typeof(struct(o.s, p.m))"))]
    [known] = spark.sql(f"SELECT typeof(struct(n, s)) FROM (SELECT {TYPES})").first()
    on = f"k = id AND typeof(struct(o.n, p.s)) = '{known}'"
    theirs = one.alias("o").join(other.alias("p"), F.expr(on)).selectExpr(*wanted)
    table = table.with_options(FORMS.get(form, {"lookup.form": form}))
    ours = lookup_join(one.alias("o"), table, on, select=wanted)
    again = lookup_join(one.alias("o"), table, "k = id", select=["k AS j", "o.*"]).alias("o")
    assert ours.collect() == theirs.collect()
    assert lookup_join(again, table, on.replace("k =", "j ="), select=wanted).collect() == theirs.collect()


@pytest.mark.parametrize("how", ["left", "semi", "anti"])
def test_a_function_of_the_users_is_called_for_pairs_only(spark, visits, right, people, how):
    spark.udf.register("longer", lambda name: name + "!", "string")
    ours = lookup_join(visits, people, "person = p.id AND longer(p.name) > 'b'", how)
    theirs = visits.join(right.alias("p"), F.expr("person = p.id AND concat(p.name, '!') > 'b'"), how)
    assert multiset(ours) == multiset(theirs)


def test_a_join_on_the_result_of_a_join(visits, right, people):
    first = LookupJoin(visits, people, "person = p.id", "left", ["visit", "person", "p.salary"])
    second = LookupJoin(
        first.df, people, "left.person = p.id AND left.salary > p.salary - 1", "left", ["visit", "p.name"]
    )
    assert "in one Python stage" in second.explain()
    one = visits.join(right.alias("p"), F.expr("person = p.id"), "left").select("visit", "person", "salary")
    other = right.select("id", "name", F.col("salary").alias("pay")).alias("p")
    two = one.join(other, F.expr("person = p.id AND salary > pay - 1"), "left")
    assert multiset(second.df) == multiset(two.select("visit", "name"))
    assert (first.metrics().rows, second.metrics().rows) == (visits.count(), one.count())
    assert multiset(first.df) == multiset(
        visits.join(right.alias("p"), F.expr("person = p.id"), "left").select("visit", "person", "salary")
    )


def test_auto_takes_the_worker_since_the_left_side_does_not_show(visits, people):
    assert LookupJoin(visits, people, "person = p.id").choice.form == "worker"


def test_the_text_of_a_column_is_that_of_classic_spark(spark):
    for column, text in written(F, spark.range(1)):
        assert column_sql(column) == text
    with pytest.raises(PlanError, match="Write the condition as SQL text"):
        column_sql(F.udf(lambda x: x, "int")("a") == 1)
    for column in (F.col("s").withField("q", F.lit(1)), F.col("s").dropFields("q")):
        with pytest.raises(PlanError, match="withField or dropFields"):
            column_sql(column)
    with pytest.raises(PlanError, match="the alias 'b' and metadata"):
        named_column_sql(F.col("a").alias("b", metadata={"c": 1}))


@pytest.mark.parametrize("exponents", ["true", "false"])
def test_the_text_of_a_column_means_what_it_meant(spark, exponents):
    with settings(spark, spark__sql__legacy__exponentLiteralAsDecimal__enabled=exponents):
        assert_alike(F, spark.range(1), list(map(F.lit, NUMBERS)))
    assert_alike(F, *meant(F, spark))


@needs_spark("4.0", "timestamp_add came with Spark 4.0")
def test_a_column_without_alias_has_sparks_name(spark):
    left = spark.range(1).alias("o")
    table = LookupTable.from_function("t", TABLE_OF_ALL_TYPES, key=["k"], function=lambda k: [])
    both = left.crossJoin(spark.createDataFrame([], TABLE_OF_ALL_TYPES).alias("t"))
    for column in columns_named_by_spark(left):
        [found] = LookupJoin(left, table, "o.id = t.k", "left", [column]).plan.output
        assert [found.name] == both.select(column).columns


def test_the_unit_of_a_function_is_a_word_of_its_text(spark):
    days = F.timestamp_add("DAY", F.lit(3), F.lit(datetime(2020, 2, 28)))
    assert_alike(F, spark.range(3), [days, F.timestamp_diff("hour", days, F.lit(datetime(2021, 1, 1)))])


def test_a_column_of_another_frame_is_refused(people, visits):
    other = visits.withColumn("person", F.col("person") + 1)
    with pytest.raises(PlanError, match="Column 'person' was taken from another DataFrame"):
        lookup_join(visits, people, other["person"] == F.col("p.id"))
    first = lookup_join(visits.alias("v"), people, visits["person"] == F.col("p.id"), select=["v.*"])
    assert lookup_join(first, people, visits["person"] == F.col("p.id"), "semi").count() == first.count()


def test_the_left_sides_alias_lives_on_in_the_result(spark, people, visits, right):
    left = visits.alias("v").where("visit > 10").withColumn("more", F.lit(1))
    ours = lookup_join(left, people, "v.person = p.id", "left")
    theirs = left.join(right.alias("p"), F.expr("v.person = p.id"), "left")
    assert multiset(ours.select("v.visit", "name")) == multiset(theirs.select("v.visit", "name"))
    again = LookupJoin(ours.where("v.visit > 11"), people, "v.person = p.id", select=["v.*", "p.name"])
    twice = theirs.where("v.visit > 11").join(right.alias("q"), F.expr("v.person = q.id"))
    assert multiset(again.df.select("v.visit", "name")) == multiset(twice.select("v.visit", "q.name"))
    assert again.df.select("v.*").columns == twice.select("v.*").columns
    visits.createOrReplaceTempView("all_visits")
    assert LookupJoin(spark.table("all_visits"), people, "person = p.id").alias == "all_visits"


def test_sql(spark, people, visits):
    session = LookupSession(spark)
    session.register_table(people)
    visits.createOrReplaceTempView("visits")
    join = "FROM visits AS v LEFT JOIN p FOR SYSTEM_TIME AS OF v.proc_time AS q ON v.person = q.id"
    rows = session.sql(f"SELECT v.visit, upper(q.name) {join} WHERE q.name IS NULL OR v.visit = 10").collect()
    assert sorted(map(tuple, rows), key=str) == [(10, "ANN"), (13, None), (14, None)]
    with pytest.raises(SchemaError, match=r"line 1, column|Line 1, column"):
        session.sql(f"SELECT q.nme {join}")


def test_data_frames_in_sql_need_a_name_where_a_lookup_is(spark, people, visits):
    session = LookupSession(spark)
    session.register_table(people)
    assert session.sql("SELECT count(*) AS n, {m} AS m FROM {v}", v=visits, m=1).collect() == [(visits.count(), 1)]
    join = "JOIN p FOR SYSTEM_TIME AS OF PROCTIME() AS q ON v.person = q.id"
    with pytest.raises(StatementError, match="createOrReplaceTempView"):
        session.sql(f"SELECT q.name FROM {{v}} AS v {join}", v=visits)
    visits.createOrReplaceTempView("visits")
    assert session.sql(f"SELECT q.name FROM visits AS v {join} AND v.visit < {{most}}", most=11).count() == 1


def test_names_stars_and_views_of_sql_are_sparks(spark, people, visits):
    session = LookupSession(spark)
    session.register_table(people, "people")
    visits.createOrReplaceTempView("visits")
    on = "v.person = q.id -- the key\n AND q.id < :n"
    join = f"FROM visits AS v JOIN people FOR SYSTEM_TIME AS OF PROCTIME() AS q ON {on}"
    items = "* EXCEPT (q.salary), to_json(struct(v.visit, q.name)) AS j"
    sql = f"SELECT {items} {join} WHERE v.visit IN (SELECT visit FROM visits)"
    plain = sql.replace("FOR SYSTEM_TIME AS OF PROCTIME()", "").replace("people", "sparks_people")
    spark.createDataFrame(PEOPLE, SCHEMA).createOrReplaceTempView("sparks_people")
    ours, theirs = session.sql(sql, args={"n": 3}), spark.sql(plain, args={"n": 3})
    assert ours.dtypes == theirs.dtypes
    assert multiset(ours) == multiset(theirs)
    session.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW seen (a COMMENT 'x', b) AS SELECT v.visit, q.name {join}", args={"n": 3}
    )
    assert session.sql("SELECT count(a) AS n FROM seen").collect()[0].n == theirs.count()


def test_hostile_statements_of_sql_are_sparks(spark):
    session = LookupSession(spark)
    for name, (schema, _) in ROWS.items():
        frame = spark.createDataFrame(table_of(name), schema)
        frame = frame.selectExpr("*", "upper(name) AS label") if name == "cust" else frame
        frame.createOrReplaceTempView(name if name in LEFT else f"plain_{name}")
    for name, computed in {"cust": ", label AS upper(name)", "many": ""}.items():
        options = {"connector": "sources:Memory", "lookup.full-scan": "true", **options_of(table_of(name))}
        pairs = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
        session.sql(f"CREATE OR REPLACE TABLE {name} ({ROWS[name][0]}{computed}) WITH ({pairs})")
    for name, type_ in VARIABLES.items():
        spark.sql(f"DECLARE OR REPLACE VARIABLE {name} {type_}")
    for text in [*STATEMENTS[1::72], *AS_FULL_TABLES[::54]] if SCALE <= 1 else [*STATEMENTS[1::2], *AS_FULL_TABLES]:
        text = re.sub(r"_all\b", "", text)
        ours = session.sql(text.replace(NOW, "FOR SYSTEM_TIME AS OF PROCTIME()"))
        theirs = spark.sql(re.sub(r"\b(cust|many)\b", r"plain_\1", text.replace(NOW, "")))
        assert (text, ours.dtypes) == (text, theirs.dtypes)
        assert (text, multiset(ours)) == (text, multiset(theirs))


if SCALE > 1:  # in the nightly run only

    def test_drawn_statements_are_sparks(spark, capsys):
        count = scale_up(15)
        found = compare_drawn(*make_worlds(spark), range(SEED + 7000, SEED + 7000 + count))
        with capsys.disabled():
            print(f"\n{found.counts()}")
        assert not found.wrong, found.report()
        assert found.by_ours_alone <= max(0.03 * count, 1), found.refused
        assert found.refused["by both"] < 0.5 * count, found.refused


def test_a_join_is_with_the_latest_version_of_that_time(spark):
    options = {"lookup.as-of.version": "v"}
    history = LookupTable.from_function(
        "h", "id BIGINT, v INT", key=["id"], function=lambda i: [(i, i + n) for n in (0, 3, 6)], options=options
    )
    left = spark.range(4).selectExpr("id", "5 AS at")
    for form in ("worker", "distinct"):
        joined = lookup_join(
            left, history, ["id"], "left", ["left.id", "h.v"], as_of=F.col("at"), options={"lookup.form": form}
        )  # fmt: skip
        assert sorted(map(tuple, joined.collect())) == [(0, 3), (1, 4), (2, 5), (3, 3)]
    left.createOrReplaceTempView("moments")
    session = LookupSession(spark)
    session.register_table(history)
    sql = "SELECT m.id, h.v FROM moments AS m JOIN h FOR SYSTEM_TIME AS OF m.at AS h ON m.id = h.id"
    assert sorted(map(tuple, session.sql(sql).collect())) == [(0, 3), (1, 4), (2, 5), (3, 3)]


def test_counts_are_observed(spark, people):
    left = spark.range(0, 1000, 1, 2).selectExpr("id % 5 AS person")
    join = LookupJoin(left, people.with_options({"lookup.cache.max-rows": "77"}), "person = p.id", "left")
    assert join.df.count() == 1200
    metrics = join.metrics()
    assert (metrics.rows, metrics.hits + metrics.misses) == (1000, 1000)
    assert 5 <= metrics.requested_keys <= 10


def test_accumulators_are_refused(people, visits):
    with pytest.raises(OptionError, match=r"'lookup.metrics' = 'accumulator' needs classic Spark"):
        LookupJoin(visits, people, "person = p.id", options={"lookup.metrics": "accumulator"})


def exported_rows(exporter, query: str, at_least: int) -> float:
    """Return the exported rows of a query, once they have arrived: a listener hears of them after the query."""
    deadline = time.monotonic() + 30
    found = 0.0
    while found < at_least and time.monotonic() < deadline and not threading.Event().wait(0.05):
        with urlopen(exporter.url) as answer:
            series = samples(answer.read().decode())
        found = sum(sample["lookupcache_rows_total"] for one, sample in series.items() if one.query == query)
    return found


def test_a_stream_gives_the_rows_of_the_batch_and_counts(spark, people, right, tmp_path):
    for step in range(3):
        part = spark.range(step * 100, step * 100 + 100, 1, 1).selectExpr("id % 7 AS person")
        part.write.mode("append").parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("person BIGINT").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    with export_metrics(port=0, spark=spark) as exporter:
        join = LookupJoin(stream, people, "person = p.id AND length(p.name) > 2", "left")
        writer = join.df.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "check"))
        query = writer.queryName("watched").trigger(availableNow=True).start(str(tmp_path / "out"))
        query.awaitTermination()
        assert exported_rows(exporter, "watched", at_least=300) == 300
    assert [thread.name for thread in threading.enumerate() if "lookupcache-metrics" in thread.name] == []
    theirs = spark.read.parquet(str(tmp_path / "in")).join(
        right.alias("p"), F.expr("person = p.id AND length(p.name) > 2"), "left"
    )
    assert multiset(spark.read.parquet(str(tmp_path / "out"))) == multiset(theirs)
    counts = [join.metrics_in(progress) for progress in query.recentProgress]
    assert [metrics.rows for metrics in counts] == [100] * 3


def test_explain_tells_where_each_conjunct_went(people, visits):
    text = LookupJoin(visits, people, "person = p.id AND p.country = 'NL' AND visit < p.salary", "left").explain()
    for conjunct, place in (
        ("person = p.id", "field key"),
        ("p.country = 'NL'", "constant key"),
        ("visit <", "residual"),
    ):
        assert any(conjunct in line and place in line for line in text.splitlines()), text


def test_a_variable_is_a_value_and_no_part_of_a_name(spark, people, visits, right):
    """Spark Connect does not show the values of variables as Spark puts them into a text."""
    spark.conf.set("test_low", "1000")
    spark.conf.set("test.name", "id")
    try:
        on, select = "person = p.id AND p.salary > ${test_low}", ["person", "'${test_low} of p.${test.name}' AS text"]
        ours = lookup_join(visits, people, on, select=select)
        theirs = visits.join(right.alias("p"), F.expr(on)).selectExpr(*select)
        assert multiset(ours) == multiset(theirs)
        for text in (
            "p.${test.name}",
            "p.`${test.name}`",
            "p.i${test.name}",
            "p.${id}",
            "${p}.id",
            "p.id + ${test.name}",
        ):
            for on in (f"person = {text}", F.expr(f"person = {text}")):
                with pytest.raises(PlanError, match="has a variable in a name or with a dot"):
                    lookup_join(visits, people, on)
    finally:
        spark.conf.unset("test_low")
        spark.conf.unset("test.name")


REFUSED = {
    "a column nobody has": ("persn = p.id", SchemaError, "persn"),
    "types that do not compare": ("land = p.id", PlanError, "land is STRING and p.id is BIGINT"),
    "no equality": ("person < p.id", PlanError, "no key"),
}


@pytest.mark.parametrize(("on", "error", "named"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_before_any_job(people, visits, on, error, named):
    with pytest.raises(error, match=named):
        lookup_join(visits, people, on)


CONNECT_LIMITS = {"counts by accumulator", "choice of a form by size", "check of Java and the state store"}


def limits_of(spark, query=None) -> set[str]:
    return {finding.name for finding in examine(spark, query) if finding.limit}


def test_the_doctor_names_what_a_connect_session_cannot_do(spark, visits):
    assert limits_of(spark) == {*CONNECT_LIMITS, "real-time mode"}
    assert limits_of(spark, visits) == CONNECT_LIMITS


def test_the_doctor_names_what_serverless_compute_cannot_do(spark, visits, monkeypatch):
    """Such a server shows hardly any setting, not even with a default, and runs no file of lookupcache."""
    get, shown = type(spark.conf).get, "spark.sql.session.timeZone"

    def refuse(conf, key, *default):
        if key != shown:
            raise PySparkException(f"[CONFIG_NOT_AVAILABLE] Configuration {key} is not available. SQLSTATE: 42K0I")
        return get(conf, key, *default)

    monkeypatch.setattr(type(spark.conf), "get", refuse)
    monkeypatch.setattr("lookupcache.spark.doctor._check_in_workers", no_package)
    found = {finding.name: finding for finding in examine(spark, visits)}
    assert {name for name, one in found.items() if one.limit} == {*CONNECT_LIMITS, "settings of the cluster"}
    assert "addArtifact" in found["settings of the cluster"].why
    assert "No module named 'lookupcache'" in found["cache folder of the workers"].why
    assert "addArtifact" in found["cache folder of the workers"].wanted


def no_package(spark):
    raise PySparkException("No module named 'lookupcache'")


def test_a_step_between_two_joins_is_a_separate_stage(visits, people):
    first = lookup_join(visits, people, "person = p.id", "left", ["visit", "land", "p.name", "p.id AS boss"])
    left = first.where("visit < 15").withColumn("boss", F.col("boss") - 1)
    join = LookupJoin(left, people, "boss = p.id", "left", ["left.visit", "p.country"])
    assert "only a join on the result of another" in join.explain(), join.explain()
    right = join.spark.createDataFrame(PEOPLE, SCHEMA).select("id", "country")
    assert multiset(join.df) == multiset(
        left.join(right, F.col("boss") == F.col("id"), "left").select("visit", "country")
    )


@needs_spark("4.1", "Spark Connect can copy a session since Spark 4.1")
def test_a_compiled_plan_runs_under_its_own_settings(spark, people, tmp_path):
    session, path, zone = LookupSession(spark), tmp_path / "a.json", "spark.sql.session.timeZone"
    session.register_table(people)
    spark.range(1, 3).coalesce(1).createOrReplaceTempView("persons")
    spark.sql("CREATE TABLE plan_sink (id BIGINT, name STRING, zone STRING) USING parquet")
    before = spark.conf.get(zone)
    spark.conf.set(zone, "Europe/Paris")
    try:
        query = "SELECT v.id, p.name FROM persons AS v LEFT JOIN p FOR SYSTEM_TIME AS OF PROCTIME() AS p ON v.id = p.id"
        insert = f"INSERT INTO plan_sink WITH a AS ({query}) SELECT *, current_timezone() FROM a"
        session.sql(f"COMPILE PLAN '{path}' FOR {insert}")
        spark.conf.set(zone, "Asia/Tokyo")
        [[shown]] = session.sql(f"EXPLAIN PLAN '{path}'").collect()
        assert shown.endswith("It would run in this session.\n")
        session.sql(f"EXECUTE PLAN '{path}'")
        assert spark.conf.get(zone) == "Asia/Tokyo"
        expected = [(number, name, "Europe/Paris") for number, name in [(1, "ann"), (2, "bob"), (2, "rob")]]
        assert sorted(map(tuple, spark.table("plan_sink").collect())) == expected
    finally:
        spark.conf.set(zone, before)
        spark.sql("DROP TABLE plan_sink")


def test_a_compiled_join_is_applied_to_the_same_columns(people, visits):
    join = LookupJoin(visits, people, "person = p.id", "left", ["visit", "p.name"])
    plan = CompiledPlan.of(PlanReference.from_json_string(join.compile().as_json_string()))
    found = LookupJoin.from_plan(visits, plan)
    assert (found.plan, found.df.schema) == (join.plan, join.df.schema)


# ── the latest value of a stream ─────────────────────────────────────────────────────────────────────────


@pytest.fixture
def arrivals(spark, tmp_path):
    """Let streams keep their state in RocksDB, and return a function from a join of two streams to their arrivals."""
    spark.conf.set(PROVIDER, ROCKSDB)
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield lambda joined: Arrivals(spark, tmp_path, joined, sink="parquet")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.unset(PROVIDER)


EUR = {"ccy": "EUR", "exchange": 1.5, "at": 1}


def test_the_latest_value_in_source_order_with_its_metrics(arrivals):
    joins = []

    def joined(orders, rates):
        rates, options = rates.where("exchange > 0"), {"lookup.metrics": "observe"}
        table = LookupTable.from_stream("r", rates, key="ccy", options=options)
        joins.append(LookupJoin(orders, table, "left.ccy = r.ccy", "left", ["amount", "exchange"]))
        return joins[-1].df

    streams = arrivals(joined)
    streams.arrive("rates", EUR, {**EUR, "exchange": 2.5}, {"ccy": "USD", "exchange": 1.0})
    streams.arrive("orders", {"ccy": "EUR", "amount": 1}, {"ccy": "x", "amount": 2})
    assert streams.run() == [(1, 2.5), (2, None)]
    counts = joins[0].metrics_in(streams.query.lastProgress)
    assert (counts.rows, counts.misses, counts.cached_keys) == (2, 1, 2)
    assert counts.cached_bytes > 0
    streams.arrive("orders", {"ccy": "USD", "amount": 3})
    assert streams.run(restart=True) == [(1, 2.5), (2, None), (3, 1.0)]


@needs_spark("4.1", "Spark Connect has the operator of which Spark allows several since Spark 4.1")
@pytest.mark.nightly
def test_two_joins_and_a_load_phase_in_one_statement(spark, arrivals):
    def joined(orders, rates):
        orders.createOrReplaceTempView("orders")
        rates.createOrReplaceTempView("rates")
        rates.withColumn("at", F.timestamp_seconds("at")).createOrReplaceTempView("timed")
        return LookupSession(spark).sql(
            "SELECT amount, (SELECT exchange FROM rates) AS x, r.exchange FROM orders AS o JOIN LATERAL TABLE(SNAPSHOT("
            "input => TABLE timed, on_time => DESCRIPTOR(at), load_completed_condition => 'user_time', "
            "load_completed_time => TIMESTAMP '1970-01-01 00:00:05')) AS r ON o.ccy = r.ccy"
        )

    streams = arrivals(joined)
    streams.arrive("rates", EUR)
    streams.arrive("orders", {"ccy": "EUR", "amount": 1})
    assert streams.run(restart=True) == []
    streams.arrive("rates", {"ccy": "USD", "exchange": 7.0, "at": 86_400})
    assert streams.run(restart=True) == [(1, 7.0, 1.5)]


def test_the_order_of_a_source_is_not_that_of_a_shuffle(spark):
    rates = spark.readStream.format("rate").load()
    rates.createOrReplaceTempView("rates")
    view = spark.sql("WITH r AS (SELECT * FROM rates WHERE value > 1) SELECT value + 1 AS value FROM r")
    source = LookupTable.from_stream("r", rates, key="value").stream
    assert [is_in_source_order(rows) for rows in (rates, view, rates.distinct())] == [True, True, False]
    with pytest.raises(OptionError, match="another value each time"):
        LookupTable.from_stream("r", rates, key="value", delete_when="rand() > value")
    static = rates.join(spark.range(3), rates.value == F.col("id")).drop("id")
    sides = (rates, static, rates.distinct(), rates.join(static, "value"), rates.groupBy("value").count())
    assert [needs_several_states(left, source) for left in sides] == [False, False, True, True, True]
