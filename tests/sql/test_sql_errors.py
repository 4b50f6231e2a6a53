"""Errors about statements: they show the text that the user wrote, at its positions, and name the cure."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from drawn_world import make_worlds
from pyspark.errors import AnalysisException
from sources import options_of
from sql_statements import PERIODS

from lookupcache import LookupCacheError, LookupSession, LookupTable, StatementError

pytestmark = pytest.mark.spark

NOW = PERIODS[0]
JOIN = f"JOIN cust {NOW} AS c ON o.k = c.id"


@pytest.fixture(scope="module")
def worlds(spark):
    return make_worlds(spark)


def error_of(session, sql, *args):
    with pytest.raises(LookupCacheError) as raised:
        session.sql(sql, *args)
    return raised.value


# ── question marks ──────────────────────────────────────────────────────────────────────────────────────────

WITH_MARKS = {
    "before": f"SELECT o.id + 77, 77, c.nope FROM o {JOIN}",
    "in ON": f"SELECT c.k FROM o {JOIN} AND c.k > 77 AND c.nope > 77",
    "the piece itself": f"SELECT c.k FROM o {JOIN} AND sum(c.k) > 77 WHERE 77 > 0",
    "no key": f"SELECT 77, c.k FROM o JOIN cust {NOW} AS c ON o.k > c.id + 77 AND c.k = c.id + 77",
    "on lines": f"SELECT 77, -- 77\n  c.k FROM o {JOIN}\n  AND '77' < 77 AND c.k > 77 AND c.none = 77 WHERE 77 < 0",
    "syntax": f"SELECT 77 FROM o {JOIN} AND c.k > 77 !!! 77",
    "of a scalar sub-query": "SELECT 77, (SELECT c.nope FROM cust AS c WHERE c.id = 77) FROM o",
    "of a derived table": f"SELECT 7 FROM o JOIN (SELECT id, k + 77 AS k FROM cust WHERE x > 77) {NOW} c ON o.k = id",
    "EXPLAIN": f"EXPLAIN SELECT 77, c.nope FROM o {JOIN}",
    "a variable": "SELECT 77, '${mark.none}', ${mark.items} FROM o " + JOIN,
    "not a kind": f"DELETE FROM o WHERE 77 IN (SELECT c.nope FROM o {JOIN})",
}
"""Statements with errors; each 77 outside of comments and literals can be the value of a parameter."""


@pytest.mark.parametrize("sql", WITH_MARKS.values(), ids=WITH_MARKS)
def test_errors_show_question_marks_at_the_users_positions(worlds, sql):
    session, _ = worlds
    session.spark.conf.set("mark.items", "c.k, c.nope")
    shown = sql.replace("'77'", "'78'").replace("-- 77", "-- 79").split("77")
    written = error_of(session, "7".join(shown))
    marked = error_of(session, "?".join(shown), [7] * (len(shown) - 1))
    assert "lookup_p" not in str(marked)
    assert str(marked).replace("?", "7") == str(written).replace("?", "7")
    assert type(marked) is type(written)
    assert marked.position.column == written.position.column


@pytest.mark.parametrize(
    "sql", ["SELECT ?, none FROM o WHERE id > ?", "SELECT ? FROM o WHERE < ?", "SELECT id ? ? FROM o"]
)
def test_errors_of_statements_without_lookups_are_sparks(worlds, sql):
    session, theirs = worlds
    found = []
    for one in (session, theirs):
        with pytest.raises(AnalysisException) as raised:
            one.sql(sql, [1, 2])
        found.append(str(raised.value).split("\n'")[0])
    assert found[0] == found[1]


def test_a_question_mark_without_a_value_is_marked(worlds):
    session, _ = worlds
    sql = f"SELECT ?, 'lookup_p1' FROM o {JOIN} AND c.k > ?"
    error = error_of(session, sql, [1])
    assert isinstance(error, StatementError)
    assert "UNBOUND_SQL_PARAMETER" in error.fact
    assert "parameter: ?." in error.fact
    assert (error.position.column, error.position.marked) == (len(sql), "?")


# ── parameters and session variables ────────────────────────────────────────────────────────────────────────

REFUSED = {
    "types of a key": "c.id = o.k AND c.name = cast('x' || {x} AS INT)",
    "types of USING": "c.id = o.k AND c.id = array({x})",
    "an aggregate": "c.id = o.k AND sum(c.k + {x}) > 3",
    "a window": "c.id = o.k AND row_number() OVER (ORDER BY {x}) = c.k",
    "no condition": "c.id = o.k AND (c.k + {x})",
    "two types": "c.id = o.k AND if(c.k > {x}, array(c.k), 'a') = 3",
    "no function": "c.id = o.k AND nofn({x}, c.k)",
    "a lambda": "c.id = o.k AND transform({x}, one -> one + c.k) = 1",
    "no key": "c.k > {x}",
    "a query's column": "c.id = o.k AND c.above = array({x})",
}


@pytest.mark.parametrize("condition", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("value", [":low", "var_n"])
def test_refusals_show_parameters_and_variables_as_written(worlds, condition, value):
    session, _ = worlds
    query = f"(SELECT id, k, name, k + {value} AS above FROM cust)"
    sql = f"SELECT o.id FROM o JOIN {query} {NOW} AS c ON {condition.format(x=value)}"
    shown = str(error_of(session, sql, {"low": 7}))
    assert "lookup_" not in shown
    assert value in shown


def test_refusals_show_computed_columns_as_written(spark):
    session = LookupSession(spark.newSession())
    session.sql("""
        CREATE TEMPORARY TABLE t (id BIGINT, name STRING, twice AS id * 2, shown AS concat(name, '!'))
        WITH ('connector' = 'sql', 'url' = 'sqlite:///none.db', 'table' = 't')
    """)
    for condition in ("o.k = t.twice", "t.twice + 1 = o.k", "o.k = twice AND t.shown = 'a!'"):
        error = error_of(session, f"SELECT * FROM (SELECT id AS k FROM range(3)) AS o JOIN t {NOW} ON {condition}")
        assert repr(condition.partition(" AND ")[0]) in error.fact


# ── causes and cures ────────────────────────────────────────────────────────────────────────────────────────

QUERY = f"SELECT c.k FROM o {JOIN}"
SEVERAL = "Pass each statement on its own, or all of them to LookupSession.run"
CAUSES = {
    "a key of IDENTIFIER": (
        f"SELECT o.id FROM o JOIN cust {NOW} AS c ON o.k = IDENTIFIER('c.id')",
        ("IDENTIFIER names 'c.id'", "IDENTIFIER('c.id')", "Write the name"),
    ),
    "a filter of IDENTIFIER": (
        f"{QUERY} AND identifier('c' || '.k') > 1",
        ("IDENTIFIER names 'c.k'", "identifier('c' || '.k')", "Write the name"),
    ),
    "a relation of IDENTIFIER": (
        f"SELECT o.id FROM IDENTIFIER('o') {JOIN}",
        ("no relation 'o': Spark alone knows", "IDENTIFIER('o')", "an alias, as in IDENTIFIER(…) AS o"),
    ),
    "several statements": (f"{QUERY}; SELECT 1", ("takes one statement", ";", SEVERAL)),
    "a lookup in the second statement": (f"SELECT 1;\n{QUERY};", ("takes one statement", ";", SEVERAL)),
    "a view and a query": (f"CREATE TEMPORARY VIEW v AS {QUERY};{QUERY}", ("takes one statement", ";", SEVERAL)),
    "EXPLAIN of several": (f"EXPLAIN {QUERY};{QUERY}", ("takes one statement", ";", SEVERAL)),
    "a collated column": (
        f"SELECT c.k FROM o LEFT JOIN cust {NOW} AS c ON o.name = c.name COLLATE UTF8_LCASE",
        ("is compared by a collation", "o.name = c.name COLLATE UTF8_LCASE", "leave COLLATE out"),
    ),
    "both columns collated": (
        f"SELECT c.k FROM o JOIN cust {NOW} c ON o.name COLLATE UTF8_LCASE = c.name COLLATE UTF8_LCASE",
        ("is compared by a collation", "o.name COLLATE UTF8_LCASE = c.name COLLATE UTF8_LCASE", "leave COLLATE out"),
    ),
}


@pytest.mark.parametrize(("sql", "said"), CAUSES.values(), ids=CAUSES)
def test_errors_name_the_cause_and_the_cure(worlds, sql, said):
    session, theirs = worlds
    error = error_of(session, sql)
    assert said[0] in error.fact
    assert error.position.marked == said[1]
    assert said[2] in error.hint
    if "several" not in said[2] and ";" not in sql:
        assert theirs.sql(sql.replace(NOW, "")).columns  # Spark's own join takes it


CREATED = f"(id BIGINT) WITH ('connector' = 'sources:Memory', 'rows' = '{options_of(pa.table({'id': [1]}))['rows']}')"
KINDS = {
    "CREATE TABLE": f"CREATE TABLE made {CREATED}",
    "CREATE FUNCTION": "CREATE FUNCTION made AS 'math:sin' WITH ('returns' = 'a INT')",
    "CREATE MODEL": "CREATE MODEL made INPUT (a STRING) OUTPUT (b STRING) WITH ('provider' = 'openai')",
    "DROP MODEL": "DROP MODEL IF EXISTS made",
    "EXECUTE PLAN": "EXECUTE PLAN 'no.json'",
    "SHOW": "SHOW TABLES",
}


@pytest.mark.parametrize("second", ["SELECT 1", f"CREATE TABLE later {CREATED}"])
@pytest.mark.parametrize("first", KINDS.values(), ids=KINDS)
def test_a_second_statement_is_refused_before_the_first_runs(worlds, first, second):
    session, _ = worlds
    error = error_of(session, f"{first};\n{second};")
    assert "takes one statement" in error.fact
    assert (error.position.marked, error.hint) == (";", f"{SEVERAL}.")
    assert "made" not in [*session._context.catalog.tables, *session._context.catalog.functions]


@pytest.mark.parametrize("sql", [
    "SELECT c.k, FROM cust AS c", f"SELECT c.k, o.id, FROM o {JOIN}",
    f"SELECT q.id FROM o JOIN (SELECT id, name, FROM cust) {NOW} AS q ON o.k = q.id",
])  # fmt: skip
def test_a_comma_before_from_is_named(worlds, sql):
    session, theirs = worlds
    error = error_of(session, sql)
    with pytest.raises(AnalysisException, match=r"TRAILING_COMMA_IN_SELECT|PARSE_SYNTAX_ERROR"):
        theirs.sql(sql.replace(NOW, ""))
    assert "TRAILING_COMMA_IN_SELECT" in error.fact
    assert error.position.marked == ","


@pytest.mark.parametrize("sql", [
    f"SELECT c.${{no.name}} FROM o {JOIN}", f"SELECT c.k FROM o {JOIN} AND c.k > ${{no.name}}",
    f"SELECT c.nope, ${{no.name}} FROM o {JOIN}", f"SELECT c.k FROM o {JOIN} WHERE ${{hiveconf:no.name}} > 1",
])  # fmt: skip
def test_a_variable_without_a_value_is_named(worlds, sql):
    session, _ = worlds
    error = error_of(session, sql)
    assert re.search(r"[$][{](hiveconf:)?no.name[}] has no value[.]$", error.fact)
    assert "spark.conf.set" in error.hint
    assert "no value" not in error_of(session, f"SELECT c.nope, '${{no.name}}' FROM o {JOIN}").fact


IDENTIFIERS = {
    "of the left side": f"SELECT o.id FROM o JOIN cust {NOW} AS c ON IDENTIFIER('o.k') = c.id",
    "a relation with an alias": f"SELECT o.id FROM IDENTIFIER('o') o {JOIN}",
    "bare columns": f"SELECT v FROM IDENTIFIER('o') JOIN cust {NOW} AS c ON v = c.name",
}


@pytest.mark.parametrize("sql", IDENTIFIERS.values(), ids=IDENTIFIERS)
def test_names_that_identifier_computes_have_sparks_rows(worlds, sql):
    session, theirs = worlds
    expected = sorted(map(tuple, theirs.sql(sql.replace(NOW, "")).collect()))
    assert sorted(map(tuple, session.sql(sql).collect())) == expected != []


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT w.k FROM o JOIN words {now} AS w ON o.k = w.id", {"k"}),
        ("SELECT q.k FROM (SELECT w.k FROM o JOIN words {now} AS w ON o.k = w.id) AS q WHERE q.k > 0", {"k"}),
        ("(SELECT w.k FROM o JOIN words {now} AS w ON o.k = w.id) UNION ALL SELECT 1", {"k"}),
        ("WITH q AS (SELECT 1) SELECT w.k FROM o JOIN words {now} AS w ON o.k = w.id", {"k"}),
        ("SELECT w.k, `select` FROM o JOIN words {now} AS w ON o.k = w.id", {"k", "select"}),
        ("SELECT w.select FROM o JOIN words {now} AS w ON o.k = w.id", {"select"}),
        ("SELECT w.k, (select) FROM o JOIN words {now} AS w ON o.k = w.id", {"k", "select"}),
    ],
)
def test_the_word_select_is_no_column(worlds, sql, columns):
    session, theirs = worlds
    schema = "id BIGINT, k INT, `select` INT"
    rows = pa.table({"id": [1, 2], "k": pa.array([1, 2], pa.int32()), "select": pa.array([3, 4], pa.int32())})
    theirs.createDataFrame(rows, schema).createOrReplaceTempView("words")
    session.register_table(LookupTable("words", schema, {"connector": "sources:Memory", **options_of(rows)}))
    expected = sorted(map(tuple, theirs.sql(sql.format(now="")).collect()))
    assert sorted(map(tuple, session.sql(sql.format(now=NOW)).collect())) == expected
    assert {column for plan in session.plans(sql.format(now=NOW)) for column in plan.columns} - {"id"} == columns
