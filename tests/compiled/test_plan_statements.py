"""The statements about plans, and what they refuse."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from plan_world import NOW
from pyspark.errors import PySparkException
from sources import SCHEMA, rows_of
from test_format import altered

from lookupcache import (
    CompiledPlan,
    CompiledPlanError,
    LookupJoin,
    LookupSession,
    LookupTable,
    OptionError,
    PlanReference,
    SchemaError,
    StatementError,
)
from lookupcache.compiled.settings import settings_of
from lookupcache.versions import condition_of

pytestmark = pytest.mark.spark

QUERY = f"SELECT n.id, p.name FROM numbers AS n LEFT JOIN people {NOW} AS p ON n.id = p.id AND p.country = 'NL'"
INSERT = f"INSERT INTO plan_sink {QUERY}"
ROWS = Counter([(0, None), (1, "ann"), (2, "rob"), (3, None)])


@pytest.fixture(scope="module")
def spark_session(spark):
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "UTC")
    own.range(4).coalesce(1).createOrReplaceTempView("numbers")
    for sink in ("plan_sink", "second_sink"):
        own.sql(f"CREATE TABLE {sink} (id BIGINT, name STRING) USING parquet")
    yield own
    own.sql("DROP TABLE plan_sink")
    own.sql("DROP TABLE second_sink")


@pytest.fixture
def session(spark_session):
    spark_session.sql("TRUNCATE TABLE plan_sink")
    session = LookupSession(spark_session)
    session.register_table(LookupTable.from_function("people", SCHEMA, key=["id"], function=rows_of))
    return session


@pytest.fixture(scope="module")
def text(spark_session):
    session = LookupSession(spark_session)
    session.register_table(LookupTable.from_function("people", SCHEMA, key=["id"], function=rows_of))
    return session.compile_plan_sql(INSERT).as_json_string()


def rows(session, sink="plan_sink"):
    return Counter(map(tuple, session.spark.table(sink).collect()))


def test_compile_execute_and_explain(session, tmp_path):
    path = tmp_path / "new folder" / "it''s %20 {x} é.json"
    session.sql(f"COMPILE PLAN '{path}' FOR {INSERT};")
    path = str(path).replace("''", "'")
    assert rows(session) == Counter()
    [[reported]] = session.sql(f"COMPILE PLAN FOR {INSERT}").collect()
    with open(path) as file:
        assert file.read() == reported
    quoted = path.replace("'", "''")
    with pytest.raises(CompiledPlanError, match=r"There is a file .* already"):
        session.sql(f"COMPILE PLAN '{quoted}' FOR {INSERT}")
    session.sql(f"COMPILE PLAN '{quoted}' IF NOT EXISTS FOR INSERT INTO plan_sink SELECT 1, 'x'")
    session.sql(f"EXECUTE PLAN '{quoted}'")
    assert rows(session) == ROWS
    [[shown]] = session.sql(f"EXPLAIN PLAN '{quoted}'").collect()
    assert "left lookup of people AS p by id = l.`id`" in shown
    assert shown.endswith("\nIt would run in this session.\n")


@pytest.mark.extended
def test_compile_and_execute_runs_what_is_there(session, tmp_path):
    path = tmp_path / "a.json"
    session.sql(f"COMPILE AND EXECUTE PLAN '{path}' FOR {INSERT}")
    session.sql(f"COMPILE AND EXECUTE PLAN '{path}' FOR INSERT INTO nowhere SELECT 1")
    assert rows(session) == ROWS + ROWS
    session.sql("SET 'table.plan.force-recompile' = 'true'")
    session.sql(f"COMPILE AND EXECUTE PLAN '{path}' FOR INSERT INTO plan_sink SELECT 9, 'x'")
    assert rows(session) == ROWS + ROWS + Counter([(9, "x")])
    session.sql("RESET 'table.plan.force-recompile'")
    with pytest.raises(CompiledPlanError, match="already"):
        session.sql(f"COMPILE PLAN '{path}' FOR {INSERT}")


def test_a_statement_set_is_one_plan(session, tmp_path):
    statements = f"STATEMENT SET BEGIN {INSERT}; INSERT INTO plan_sink BY NAME SELECT 'b' AS name, 7L AS id; END"
    session.sql(f"COMPILE AND EXECUTE PLAN '{tmp_path}/a.json' FOR {statements}")
    assert rows(session) == ROWS + Counter([(7, "b")])
    plan = session.compile_plan_sql(f"EXECUTE {statements}")
    assert [insert.query_name for _, insert in plan.document.inserts] == ["plan_sink", "plan_sink_2"]
    broken = f"STATEMENT SET BEGIN {INSERT}; INSERT INTO plan_sink SELECT p.nothing FROM people AS p; END"
    with pytest.raises(Exception, match="nothing"):
        session.compile_plan_sql(broken)


INSERTS = {
    "WITH behind it": (f"INSERT INTO plan_sink WITH a AS ({QUERY}) SELECT * FROM a", ROWS, Counter()),
    "without a query": (
        "INSERT INTO plan_sink VALUES (1, 'x'), (2, NULL)", Counter([(1, "x"), (2, None)]), Counter()
    ),
    "a name that Spark computes": (f"INSERT INTO IDENTIFIER(:sink) {QUERY}", ROWS, Counter()),
    "columns, comments and braces": (
        "/* {x} */ INSERT /* y */ INTO TABLE default.plan_sink (name, id) -- z\n"
        f"SELECT concat(q.name, '{{lookup_1}};--'), q.id FROM ({QUERY}) AS q",
        Counter((number, None if name is None else f"{name}{{lookup_1}};--") for number, name in ROWS),
        Counter(),
    ),
}  # fmt: skip


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize("kind", INSERTS)
def test_every_kind_of_insert_is_compiled(session, kind):
    statement, first, second = INSERTS[kind]
    session.spark.sql("TRUNCATE TABLE second_sink")
    text = session.compile_plan_sql(statement, {"sink": "plan_sink"}).as_json_string()
    session.execute_plan(PlanReference.from_json_string(text))
    assert rows(session) == first
    assert rows(session, "second_sink") == second


@pytest.mark.parametrize("query", ["VALUES (1L, DEFAULT)", QUERY.replace("p.name", "default")])
def test_a_default_value_is_given_by_leaving_its_column_out(session, query):
    with pytest.raises(SchemaError, match="DEFAULT has no value here") as caught:
        session.compile_plan_sql(f"INSERT INTO plan_sink {query}")
    assert "INSERT INTO t (id) VALUES (1)" in str(caught.value.hint)
    plan = session.compile_plan_sql("INSERT INTO plan_sink (id) VALUES (1L)")
    plan.execute()
    assert rows(session) == Counter([(1, None)])


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        (QUERY, "SELECT"), ("WITH a AS (SELECT 1) SELECT * FROM a", "SELECT"), ("VALUES (1)", "SELECT"),
        (f"CREATE TABLE t AS {QUERY}", "CREATE TABLE AS"), ("CREATE VIEW v AS SELECT 1", "CREATE VIEW AS"),
        ("DELETE FROM plan_sink", "DELETE"), ("DROP TABLE plan_sink", "DROP"), ("EXECUTE PLAN 'x'", "EXECUTE"),
    ],
)  # fmt: skip
def test_other_statements_are_refused_by_name(session, statement, name):
    for compile_it in (session.compile_plan_sql, lambda text: session.sql(f"COMPILE PLAN FOR {text}")):
        with pytest.raises(StatementError, match=rf"^{name} cannot be compiled: a plan writes to a table\."):
            compile_it(statement)


@pytest.mark.parametrize(
    "statement",
    ["COMPILE PLAN", "COMPILE PLAN 'a'", "COMPILE PLAN IF NOT EXISTS FOR INSERT INTO t SELECT 1",
     "COMPILE PLAN 'a' FOR",
     "COMPILE AND EXECUTE PLAN FOR INSERT INTO t SELECT 1", "EXECUTE PLAN", "EXECUTE PLAN a", "EXECUTE PLAN 'a' 'b'",
     "COMPILE PLAN 'a' IF EXISTS FOR INSERT INTO t SELECT 1"],
)  # fmt: skip
def test_a_statement_that_cannot_be_read_says_how_it_is_written(session, statement):
    with pytest.raises(StatementError, match="Write "):
        session.sql(statement)


def test_options_are_set_shown_and_checked(session):
    name = "table.plan.compile.catalog-objects"
    session.sql(f"SET '{name}' = 'identifier'")
    assert session.sql(f"SET '{name}'").collect()[0].value == "IDENTIFIER"
    plan = json.loads(session.compile_plan_sql(INSERT).as_json_string())
    assert plan["tables"] == {"people": {}}
    session.sql(f"RESET '{name}'")
    assert session.sql(f"SET {name}").collect()[0].value == "ALL"
    with pytest.raises(OptionError, match="Known values"):
        session.sql(f"SET '{name}' = 'some'")
    with pytest.raises(OptionError, match="Did you mean"):
        session.sql("SET 'table.plan.force-recompil' = 'true'")


def test_two_compile_at_once_and_one_file_is_there(session, tmp_path):
    path = tmp_path / "a.json"

    def compile_it(statement):
        try:
            session.sql(f"{statement} '{path}' FOR INSERT INTO plan_sink SELECT 5L, 'x'")
        except CompiledPlanError as error:
            return "already" in str(error)
        return "done"

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(compile_it, ["COMPILE PLAN"] * 4))
    assert Counter(found) == Counter({"done": 1, True: 3})
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.extended
def test_concurrent_compilations_write_one_plan_that_all_run(session, tmp_path):
    """They do not run it at once: Spark's writers of one folder remove each other's temporary files."""
    sql = f"PLAN '{tmp_path}/a.json' FOR INSERT INTO plan_sink SELECT {{}}L, 'x'"
    with ThreadPoolExecutor(3) as pool:
        list(
            pool.map(
                lambda number: session.sql("COMPILE " + sql.format(number).replace("FOR", "IF NOT EXISTS FOR")),
                range(3),
            )
        )
    for number in range(3):
        session.sql("COMPILE AND EXECUTE " + sql.format(number))
    [(_, times)] = rows(session).items()
    assert times == 3


# ── what is not as it was ────────────────────────────────────────────────────────────────────────────────


def refused(session, text, match):
    with pytest.raises(CompiledPlanError, match=match) as caught:
        session.execute_plan(PlanReference.from_json_string(text))
    assert rows(session) == Counter()
    return caught.value


MEANINGS = {
    "spark.sql.session.timeZone": ("Asia/Tokyo", "concat(timestamp_seconds(0), current_timezone())"),
    "spark.sql.ansi.enabled": ("false", "CAST(n.id + 2147483647 AS INT)"),
    "spark.sql.caseSensitive": ("true", "concat(n.ID, P.NAME)"),
    "spark.sql.legacy.castComplexTypesToString.enabled": ("true", "CAST(struct(n.id) AS STRING)"),
    "spark.sql.function.eltOutputAsString": ("true", "typeof(elt(1, CAST('x' AS BINARY), CAST('y' AS BINARY)))"),
    "spark.sql.ansi.doubleQuotedIdentifiers": ("true", 'concat("id", "x")'),
}


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=5)
@pytest.mark.parametrize("setting", MEANINGS)
def test_the_settings_of_the_plan_beat_the_sessions(session, setting):
    """The statement means something else, or nothing, under the value that the session has when the plan runs."""
    value, sql = MEANINGS[setting]
    conf, before = session.spark.conf, settings_of(session.spark)
    on = "ON n.id = p.id WHERE n.id = 0" if "ansi" in setting else "ON n.id = p.id"
    insert = f"INSERT INTO plan_sink SELECT n.id, {sql} FROM numbers AS n LEFT JOIN people {NOW} AS p {on}"
    if "doubleQuoted" not in setting:
        session.sql(insert)
    else:
        session.sql(insert.replace('"id"', "'id'").replace('"x"', "'x'"))
    expected = rows(session)
    assert expected
    text = session.compile_plan_sql(insert).as_json_string()
    session.spark.sql("TRUNCATE TABLE plan_sink")
    conf.set(setting, value)
    conf.set("spark.sql.ansi.enabled", "true") if "doubleQuoted" in setting else None
    try:
        here = settings_of(session.spark)
        session.execute_plan(PlanReference.from_json_string(text))
        assert settings_of(session.spark) == here != before
        assert rows(session) == expected
    finally:
        _reset(conf, before)


def _reset(conf, before):
    for name, value in before.items():
        if name.startswith("spark."):
            conf.set(name, value)
    conf.unset("spark.sql.legacy.castComplexTypesToString.enabled")


def test_another_schema_does_not_matter(session, text):
    session.spark.sql("CREATE DATABASE IF NOT EXISTS other_schema")
    session.spark.sql("USE other_schema")
    try:
        session.execute_plan(PlanReference.from_json_string(text))
        assert session.spark.catalog.currentDatabase() == "other_schema"
    finally:
        session.spark.sql("USE default")
    assert rows(session) == ROWS
    elsewhere = altered(lambda plan: plan["settings"].update(current_schema="other_schema"), text)
    session.spark.sql("DROP DATABASE other_schema")
    with pytest.raises(CompiledPlanError, match="current_schema: plan 'other_schema', here 'default'"):
        session.execute_plan(PlanReference.from_json_string(elsewhere))


@pytest.mark.parametrize(
    ("name", "value"),
    [("spark.sql.noSuchSetting", "1"), ("spark.sql.session.timeZone", "Nowhere/Land"),
     ("spark.sql.legacy.createHiveTableByDefault", "perhaps")],
)  # fmt: skip
def test_a_setting_that_cannot_be_given_is_refused_with_both(session, text, name, value):
    here = settings_of(session.spark)
    error = refused(
        session, altered(lambda plan: plan["settings"].update({name: value}), text), f"{name}: plan {value!r}"
    )
    assert "This Spark does not take them" in str(error.hint)
    assert settings_of(session.spark) == here


def test_a_setting_unknown_to_the_plans_spark_keeps_its_default(session, text):
    older = altered(lambda plan: plan["settings"].update({"spark.sql.groupByOrdinal": None}), text)
    session.execute_plan(PlanReference.from_json_string(older))
    assert rows(session) == ROWS


def test_another_left_side_is_refused_with_both(session, text):
    session.spark.range(4).selectExpr("CAST(id AS INT) AS id").createOrReplaceTempView("numbers")
    try:
        refused(session, text, r"plan: id BIGINT\n  here: id INT")
        session.spark.catalog.dropTempView("numbers")
        refused(session, text, "node 1: .*numbers")
    finally:
        session.spark.range(4).coalesce(1).createOrReplaceTempView("numbers")


def test_a_left_table_may_have_got_a_column(session, text):
    session.spark.sql("CREATE OR REPLACE TEMPORARY VIEW numbers AS SELECT 'x' AS `a.b`, id, id AS c FROM range(4)")
    try:
        session.execute_plan(PlanReference.from_json_string(text))
        assert rows(session) == ROWS
    finally:
        session.spark.range(4).coalesce(1).createOrReplaceTempView("numbers")


def test_another_sink_is_refused_with_both(session, text):
    session.spark.sql("DROP TABLE plan_sink")
    try:
        with pytest.raises(CompiledPlanError, match="There is no table 'plan_sink'"):
            session.execute_plan(PlanReference.from_json_string(text))
        session.spark.sql("CREATE TABLE plan_sink (id BIGINT, title STRING) USING parquet")
        refused(session, text, r"The columns of the sink 'plan_sink'[^\n]*'name', 'title' differ")
    finally:
        session.spark.sql("DROP TABLE IF EXISTS plan_sink")
        session.spark.sql("CREATE TABLE plan_sink (id BIGINT, name STRING) USING parquet")


def test_tables_are_found_by_the_matrix(session, spark_session, text):
    other = LookupSession(spark_session)  # knows no table
    other.execute_plan(PlanReference.from_json_string(text))
    assert rows(session) == ROWS
    other.sql("SET 'table.plan.restore.catalog-objects' = 'IDENTIFIER'")
    session.spark.sql("TRUNCATE TABLE plan_sink")
    refused(other, text, "There is no lookup table 'people'")
    other.register_table(LookupTable.from_function("people", "id STRING, name STRING, country STRING", key=["id"],
                                                   function=rows_of))  # fmt: skip
    refused(other, text, r"plan: id BIGINT, name STRING, country STRING\n  here: id STRING")


def test_options_of_the_plan_beat_the_catalogs(session, text):
    session.sql("SET 'table.plan.restore.catalog-objects' = 'IDENTIFIER'")
    options = {"lookup.cache": "LRU", "lookup.cache.max-rows": 3}
    session.register_table(LookupTable.from_function("people", SCHEMA, key=["id"], function=rows_of, options=options))
    plan = session.load_plan(PlanReference.from_json_string(text))
    from lookupcache.sql.plan_statements import restore

    restored = restore(session._context, plan)
    restored.check()
    assert [join.plan.config.to_json() for join in restored.joins.values()] == [{}]


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("INSERT INTO plan_sink SELECT 1, 'postgresql://ann:hunter2@db/x'", "has a secret"),
        (f"INSERT INTO plan_sink {QUERY}".replace("people ", "people /*+ OPTIONS('lookup.on-error'='dead-letter', "
         "'lookup.dead-letter.path'='s3://a:hunter2@b/x') */ "), "has a secret in option 'lookup.dead-letter.path'"),
        ("INSERT INTO plan_sink SELECT '${x}', 1", "a variable"),
    ],
)  # fmt: skip
def test_secrets_and_variables_are_not_compiled(session, statement, match):
    with pytest.raises(CompiledPlanError, match=match) as caught:
        session.compile_plan_sql(statement)
    assert "hunter2" not in str(caught.value)


def test_a_lambda_is_compiled_by_its_registered_name(session, tmp_path):
    session.register_table(LookupTable.from_function("people", SCHEMA, key=["id"], function=lambda key: rows_of(key)))
    with pytest.raises(CompiledPlanError, match="a lambda"):
        session.compile_plan_sql(INSERT)
    session.sql("SET 'table.plan.compile.catalog-objects' = 'SCHEMA'")
    session.compile_plan_sql(INSERT).execute()
    assert rows(session) == ROWS


def test_a_hostile_plan_calls_no_function_of_python(session, text):
    hostile = altered(lambda plan: plan["tables"]["people"].update(function="os:system", key=["name"]), text)
    refused(session, hostile, "functions of Python's own library are not called for a plan")
    hostile = altered(lambda plan: plan["tables"]["people"].update(function="sources:asyncio.run"), text)
    refused(session, hostile, "not a function that is defined in that module")


@pytest.mark.parametrize(
    ("number", "fields", "match"),
    [
        (1, {"text": "DROP TABLE plan_sink"}, "where a query is expected"),
        (1, {"text": "FROM numbers INSERT INTO plan_sink SELECT id, 'x'"}, "has 'INSERT' where"),
        (1, {"text": "WITH a AS (SELECT 1) INSERT INTO plan_sink SELECT 1, 'x'"}, "has 'INSERT' where"),
        (4, {"head": "INSERT INTO other "}, "in place of INSERT into its sink"),
        (4, {"head": "INSERT INTO plan_sink SELECT 1, 'x' UNION ALL "}, "in place of INSERT into its sink"),
        (4, {"head": "CREATE TABLE x AS "}, "in place of INSERT into its sink"),
        (3, {"views": {}}, "has the name|lookup_1|PARSE_SYNTAX_ERROR|Syntax"),
        (2, {"select": [{"name": "id", "sql": "l.`nothing`"}]}, "node 2|nothing|not in list"),
    ],
)
def test_a_hostile_plan_runs_nothing_that_is_no_query(session, text, number, fields, match):
    def change(plan):
        plan["nodes"][number - 1].update(fields)
        if "views" in fields:
            plan["edges"] = [edge for edge in plan["edges"] if edge["target"] != number]

    refused(session, altered(change, text), match)


@pytest.mark.parametrize("item", ["CAST(1 / (p.id - 1) AS STRING)", "CAST(CAST(p.name AS INT) AS STRING)"])
def test_an_error_of_the_data_is_the_same_as_without_a_plan(session, item):
    insert = INSERT.replace("p.name", item)
    with pytest.raises(PySparkException) as plain:
        session.sql(insert)
    plan = session.compile_plan_sql(insert)
    with pytest.raises(PySparkException) as compiled:
        plan.execute()
    assert condition_of(compiled.value) == condition_of(plain.value) is not None


def test_parameters_keep_their_values(session, text):
    values = {"i": 5, "s": "it's {x}", "f": 1.5, "b": True, "n": None, "x": b"\x00'"}
    sql = "INSERT INTO plan_sink SELECT :i + id, concat(:s, :f, :b, :n IS NULL, hex(:x)) FROM numbers WHERE id = 1"
    plan = session.compile_plan_sql(sql, values)
    session.execute_plan(PlanReference.from_json_string(plan.as_json_string()))
    assert rows(session) == Counter([(6, "it's {x}1.5truetrue0027")])
    for secret in ({"api_key": "hunter2"}, {"url": "postgresql://ann:hunter2@db/x"}):
        with pytest.raises(CompiledPlanError, match="is a secret, whose value would stand in the plan") as caught:
            session.compile_plan_sql(f"INSERT INTO plan_sink SELECT 1, :{next(iter(secret))}", secret)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(CompiledPlanError, match="Parameter 'i' is a value of type list"):
        session.compile_plan_sql("INSERT INTO plan_sink SELECT :i[0], 'x'", {"i": [1]})


# ── joins ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_join_is_applied_to_the_same_columns_only(session):
    spark = session.spark
    table = LookupTable.from_function("p", SCHEMA, key=["id"], function=rows_of)
    join = LookupJoin(spark.table("numbers"), table, "left.id = p.id", select=["left.id", "p.name"])
    plan = CompiledPlan.of(PlanReference.from_json_string(join.compile().as_json_string()))
    found = LookupJoin.from_plan(spark.table("numbers"), plan)
    assert Counter(found.df.collect()) == Counter(join.df.collect())
    assert found.plan == join.plan
    for other in ("id, 1 AS x", "CAST(id AS INT) AS id", "id AS ID"):
        with pytest.raises(CompiledPlanError, match="The columns of the left side"):
            LookupJoin.from_plan(spark.table("numbers").selectExpr(*other.split(", ")), plan)
    with pytest.raises(CompiledPlanError, match="needs a left side"):
        session.execute_plan(plan)
    with pytest.raises(CompiledPlanError, match="not of a lookup join"):
        LookupJoin.from_plan(spark.table("numbers"), session.compile_plan_sql(INSERT))
