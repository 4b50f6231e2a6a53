"""Table functions in SQL: ways of calling them, arguments, hints, filters."""

from __future__ import annotations

import pyarrow as pa
import pytest
import sql_functions
from needs import needs_spark
from sources import options_of

from lookupcache import LookupSession, OptionError, PlanError, SchemaError, StatementError

pytestmark = pytest.mark.spark

WORDS = {(1, "a bb", 2), (2, None, 1), (3, "", 3), (4, "ccc a", 4)}


@pytest.fixture(scope="module")
def session(spark):
    session = LookupSession(spark)
    names = ("split", "async_split", "each_word", "split_many", "numbers", "of_struct", "always", "Counting")
    for name in names:
        session.sql(f"CREATE FUNCTION {name} AS 'sql_functions:{name}'")
    spark.createDataFrame(sorted(WORDS), "id INT, text STRING, n INT").createOrReplaceTempView("texts")
    yield session
    spark.catalog.dropTempView("texts")


def found(session, sql):
    return sorted(tuple(row) for row in session.sql(sql).collect())


SPLIT = [(1, "a", 1), (1, "bb", 2), (2, "nothing", 0), (4, "a", 1), (4, "ccc", 3)]
CALLS = {
    "Flink's": "SELECT id, c1, c2 FROM texts, LATERAL TABLE({}(text)) AS T(c1, c2)",
    "Flink's cross join": "SELECT id, T.* FROM texts AS x CROSS JOIN LATERAL TABLE({}(x.text)) AS T(c1, c2)",
    "Spark's": "SELECT id, w.word, w.length FROM texts, LATERAL {}(text) AS w(word, length)",
    "Spark's join": "SELECT texts.id, c1, c2 FROM texts JOIN LATERAL {}(texts.text) AS T(c1, c2)",
}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("call", "function"),
    [(call, "async_split") for call in CALLS] + [("Flink's", f) for f in ("split", "each_word", "split_many")],
)
def test_a_call_gives_the_rows_of_each_left_row(session, call, function):
    assert found(session, CALLS[call].format(function)) == SPLIT


NAMED = (
    "to_json(struct(q.word, x.n))", "to_json((X.N, q.Word))", "typeof(struct(x.Text))", "to_json(struct(t.up, t.id))",
    "to_json(arrays_zip(array(q.n), array(x.n)))", "typeof(array(struct(t.up, q.n)))",
)  # fmt: skip


@pytest.mark.parametrize("argument", NAMED)
def test_fields_of_an_argument_have_sparks_names(spark, session, argument):
    rows = options_of(pa.table({"id": pa.array([1, 2], pa.int32()), "word": ["a", "b"], "n": [7, 8]}))["rows"]
    session.sql(
        "CREATE OR REPLACE TABLE named (id INT, up AS upper(word), word STRING, n BIGINT) "
        f"WITH ('connector' = 'sources:Memory', 'rows' = '{rows}')"
    )
    session.sql("CREATE OR REPLACE FUNCTION same AS 'sql_functions:same'")
    now = "FOR SYSTEM_TIME AS OF PROCTIME()"
    query = "SELECT id, upper(word) AS word, n FROM named"
    joins = f"texts AS x JOIN named {now} AS t ON x.id = t.id JOIN ({query}) {now} AS q ON x.id = q.id"
    sql = f"SELECT x.id, f.value FROM {joins} JOIN LATERAL TABLE(same({argument})) AS f(value) ON TRUE"
    table = "(SELECT id, upper(word) AS up, word, n FROM VALUES (1, 'a', 7L), (2, 'b', 8L) AS v(id, word, n))"
    theirs = (
        f"texts AS x JOIN {table} AS t ON x.id = t.id JOIN (SELECT id, up AS word, n FROM {table}) AS q ON x.id = q.id"
    )
    expected = spark.sql(f"SELECT x.id, {argument} AS value FROM {theirs}")
    assert found(session, sql) == sorted(map(tuple, expected.collect()))


ARGUMENTS = {
    "x.t": None, "s.x.t": None, "m.k": None, "s.m['k']": None, ":text": {"text": "a bb"}, "text || ?": [" d"],
    "concat(s.x.t, :text)": {"text": " c"}, "text_of_test": None, "session.text_of_test": None,
    "coalesce(x.t, system.session.text_of_test)": None, "IDENTIFIER('text')": None, "s.`${test.column}`": None,
    "'${test.column}'": None, "(SELECT max(text) FROM texts)": None, "transform(array(x.t, :text), y -> y || 'e')[1]":
    {"text": "a"}, "variant_get(parse_json('\"a d\"'), '$', 'string')": None, "to_json(struct(s.*))": None,
    "to_json(struct(*, :text))": {"text": "a"}, "concat_ws(' ', s.id, s.x.*)": None, "if(id < 2, n > 1, n < 4)::STRING":
    None, "to_json(struct(s.* EXCEPT (x), s.x.*))": None, "to_json(map(id, text)::MAP<STRING, STRING>)": None,
}  # fmt: skip


@needs_spark("4.0", "it has variants")
@pytest.mark.extended(keep_one_in=5)
@pytest.mark.parametrize("how", [", LATERAL TABLE", " LEFT JOIN LATERAL TABLE"])
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_an_argument_is_any_expression_of_the_left_side(spark, session, argument, how):
    spark.sql("SELECT *, named_struct('t', text) AS x, map('k', text) AS m FROM texts").createOrReplaceTempView(
        "nested"
    )
    spark.sql("DECLARE OR REPLACE VARIABLE text_of_test = 'ccc a'")
    spark.conf.set("test.column", "text")
    args = ARGUMENTS[argument]
    try:
        values = spark.sql(f"SELECT id, {argument} AS text FROM nested AS s", args=args)
        expected = session.sql("SELECT id, c1, c2 FROM {values}" + how + "(split(text)) AS T(c1, c2)", values=values)
        sql = f"SELECT id, c1, c2 FROM nested AS s{how}(split({argument})) AS T(c1, c2)"
        rows = session.sql(sql, args=args).collect()
        assert sorted(map(tuple, rows), key=repr) == sorted(map(tuple, expected.collect()), key=repr)
    finally:
        spark.sql("DROP TEMPORARY VARIABLE text_of_test")
        spark.conf.unset("test.column")


@pytest.mark.extended
@pytest.mark.parametrize("join", [", LATERAL TABLE", " LEFT JOIN LATERAL TABLE"])
@pytest.mark.parametrize("star", ["*", "x.*", "T.*", "x.id, T.*", "* EXCEPT (c2)", "x.* EXCEPT (text), *"])
def test_a_star_in_an_argument_means_the_columns_of_the_left_side(spark, session, star, join):
    left = f"SELECT {{}} FROM texts AS x{join}(split(text)) AS T(c1, c2)"
    columns = session.sql(left.format(f"to_json(struct({star})) AS text"))
    expected = session.sql("SELECT c1 FROM {columns}, LATERAL TABLE(split(text)) AS U(c1, c2)", columns=columns)
    rows = session.sql(left.format("d1") + f", LATERAL TABLE(split(to_json(struct({star})))) AS U(d1, d2)")
    assert sorted(rows.collect()) == sorted(expected.collect()) != []


@needs_spark("4.0", "it has variants")
@pytest.mark.parametrize("argument", ["parse_json('1')", "text COLLATE UTF8_LCASE", "struct(parse_json('1') AS vV)"])
def test_an_argument_of_a_type_that_no_key_has_is_named(session, argument):
    with pytest.raises(SchemaError, match=r"Argument 1 is (VARIANT|STRING COLLATE|struct<vV:variant>)") as raised:
        session.sql(f"SELECT * FROM texts, LATERAL split({argument})")
    assert raised.value.position.marked == argument
    assert "STRING" in raised.value.hint or "text" in raised.value.hint


def test_parts_of_arguments_and_of_a_condition_are_computed_together(session):
    sql = """SELECT id, c1, d1 FROM texts, LATERAL TABLE(split(:text)) AS T(c1, c2)
        JOIN LATERAL TABLE(split(concat(T.c1, ' ', :more))) AS U(d1, d2) ON d2 > :least WHERE id = 1"""
    rows = session.sql(sql, args={"text": "a bbb", "more": "cc", "least": 1}).collect()
    assert sorted(map(tuple, rows)) == [(1, "a", "cc"), (1, "bbb", "bbb"), (1, "bbb", "cc")]


def test_a_left_join_keeps_rows_without_any(session):
    sql = "SELECT id, c1 FROM texts LEFT JOIN LATERAL TABLE(split(text)) AS T(c1, c2) ON TRUE WHERE id > 2"
    assert [tuple(row) for row in session.sql(sql + " ORDER BY id, c1").collect()] == [(3, None), (4, "a"), (4, "ccc")]


def test_names_come_from_the_function_without_an_alias(session):
    assert session.sql("SELECT * FROM texts, LATERAL split(text)").columns == ["id", "text", "n", "word", "length"]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("numbers(1, n - id + 2) AS T(x)", {(1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (3, 2), (4, 1), (4, 2)}),
        ("numbers(n, n) AS T(x) WHERE x > 2", {(3, 3), (4, 4)}),
        ("always() AS T(x)", {(1, "here"), (2, "here"), (3, "here"), (4, "here")}),
        ("of_struct(named_struct('a', n, 'b', named_struct('c', text))) AS T(x, y) WHERE id < 3",
         {(1, "{'a': 2, 'b': {'c': 'a bb'}}"), (2, "{'a': 1, 'b': {'c': None}}")}),
        ("of_struct(named_struct('a', n, 'b', id)::STRUCT<a: INT, c: STRING>) AS T(x, y) WHERE id < 2",
         {(1, "{'a': 2, 'c': '1'}")}),
        ("of_struct(if(id = 1, named_struct('a', n), NULL)) AS T(x, y) WHERE id < 3 AND y", {(2, "None")}),
        ("Counting(coalesce(text, '?')) AS T(x, y) WHERE y AND id < 3", {(1, "a bb"), (2, "?")}),
    ],
)  # fmt: skip
def test_arguments_may_be_several_expressions_and_structs(session, call, expected):
    assert set(found(session, f"SELECT id, x FROM texts, LATERAL {call}")) == expected


def test_filters_on_the_functions_columns_go_before_the_cache(session):
    sql = """SELECT id, c1 FROM texts, LATERAL TABLE(split(text)) AS T(c1, c2)
             WHERE c2 > 1 AND length(c1) < 3 AND id < 4"""
    [plan] = session.plans(sql)
    assert {conjunct.text: conjunct.stage for conjunct in plan.conjuncts if "argument" not in conjunct.text} == {
        "c2 > 1": "calc", "length(c1) < 3": "residual", "id < 4": "pre-filter",
    }  # fmt: skip
    assert plan.columns == ("c1",)
    assert found(session, sql) == [(1, "bb")]


def test_a_hint_sets_how_a_function_is_called(session):
    hint = "/*+ ASYNC_TABLE_FUNC({}'output-mode'='allow_unordered', 'capacity'='7', 'timeout'='18s') */"
    for target in ("", "'function'='async_split', "):
        sql = CALLS["Flink's"].format("async_split").replace("SELECT", f"SELECT {hint.format(target)}")
        [plan] = session.plans(sql)
        config = plan.config
        assert (config.output_mode, config.async_capacity, config.timeout) == ("allow-unordered", 7, 18.0)
    assert found(session, sql) == SPLIT


def test_options_of_a_function_are_those_of_any_lookup(session):
    session.register_function("kept", sql_functions.split, options={"lookup.cache": "LRU", "lookup.max-retries": "7"})
    [plan] = session.plans(CALLS["Flink's"].format("kept"))
    assert (plan.config.cache, plan.config.max_retries) == ("LRU", 7)


REFUSED = {
    "an unknown function": ("SELECT * FROM texts, LATERAL TABLE(splitt(text)) AS T(a)", StatementError,
                    "splitt", "split"),
    "too few names": ("SELECT * FROM texts, LATERAL TABLE(split(text)) AS T(a)", PlanError,
                      "LATERAL TABLE(split(text)) AS T(a)", "word, length"),
    "an unknown column": ("SELECT * FROM texts, LATERAL TABLE(split(txt)) AS T(a, b)", SchemaError, "txt", "text"),
    "an array": ("SELECT * FROM texts, LATERAL TABLE(split(array(text))) AS T(a, b)", PlanError,
                    "array(text)", "to_json"),
    "a map type": ("SELECT * FROM texts, LATERAL TABLE(numbers(1, NULL::MAP<STRING, INT>)) AS T(a)", PlanError,
                   "NULL::MAP<STRING, INT>", "to_json"),
    "an array in a struct": ("SELECT * FROM texts, LATERAL TABLE(of_struct(struct(id, array(n) AS `A n`))) AS T(a, b)",
                             PlanError, "struct(id, array(n) AS `A n`)", "to_json"),
    "a name": ("SELECT * FROM texts, LATERAL TABLE(split(text => text)) AS T(a, b)", StatementError, "text => text",
               "without names"),
    "an alias": ("SELECT * FROM texts, LATERAL TABLE(numbers(n, n AS m)) AS T(a)", StatementError, "n AS m", "aliases"),
    "a NULL": ("SELECT * FROM texts, LATERAL split(NULL)", SchemaError, "NULL", "CAST(NULL AS STRING)"),
    "an interval": ("SELECT * FROM texts, LATERAL split(INTERVAL '1' DAY)", SchemaError, "INTERVAL '1' DAY", "STRING"),
    "an aggregate": ("SELECT * FROM texts, LATERAL TABLE(numbers(n, max(n))) AS T(a)", PlanError, "max(n)",
                     "sub-query"),
    "a window": ("SELECT * FROM texts, LATERAL TABLE(numbers(rank() OVER (ORDER BY n), n)) AS T(a)", PlanError,
                 "rank() OVER (ORDER BY n)", "sub-query"),
    "a generator": ("SELECT * FROM texts, LATERAL split(explode(array(text)))", PlanError, "explode(array(text))",
                    "sub-query"),
    "chance": ("SELECT * FROM texts, LATERAL split(text || rand())", PlanError, "text || rand()", "sub-query"),
    "a star": ("SELECT * FROM texts, LATERAL split(texts.*)", PlanError, "texts.*", "struct(t.*)"),
    "an aggregate of a star": ("SELECT * FROM texts, LATERAL split(max(struct(*)).text)", StatementError,
                               "LATERAL split(max(struct(*)).text)", ""),
    "a right join": ("SELECT * FROM texts RIGHT JOIN LATERAL TABLE(split(text)) AS T(a, b) ON TRUE", PlanError,
                     "RIGHT JOIN LATERAL TABLE(split(text)) AS T(a, b) ON TRUE", "LEFT JOIN LATERAL"),
    "a hint for another": ("SELECT /*+ ASYNC_TABLE_FUNC('function'='splat', 'capacity'='1') */ * FROM texts, "
                           "LATERAL TABLE(split(text)) AS T(a, b)", OptionError, "'function'='splat'", "split"),
    "a path that leads nowhere": ("CREATE FUNCTION f AS 'sql_functions:nothing'", StatementError,
                                  "'sql_functions:nothing'", "module:name"),
    "no columns": ("CREATE FUNCTION f AS 'sql_functions:no_annotation'", SchemaError,
                   "'sql_functions:no_annotation'", "returns="),
    "a name that is taken": ("CREATE FUNCTION split AS 'sql_functions:split'", StatementError, "split", "OR REPLACE"),
}  # fmt: skip


@pytest.mark.parametrize(("sql", "kind", "marked", "hint"), REFUSED.values(), ids=REFUSED)
def test_an_error_names_its_position(session, sql, kind, marked, hint):
    with pytest.raises(kind) as raised:
        session.sql(sql)
    assert raised.value.position.marked == marked
    assert hint in (raised.value.hint or "")
    assert not any(name in raised.value.fact for name in ("left", "a0", "lookup_"))


def test_functions_are_created_and_dropped(session):
    session.sql("CREATE OR REPLACE TEMPORARY FUNCTION gone AS 'sql_functions:no_annotation' "
                "WITH ('returns' = 'a STRING, b INT', 'lookup.cache' = 'LRU')")  # fmt: skip
    assert session._context.catalog.functions["gone"].columns().names == ["a", "b"]
    session.sql("DROP TEMPORARY FUNCTION gone")
    assert "gone" not in session._context.catalog.functions
