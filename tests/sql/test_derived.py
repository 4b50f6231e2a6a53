"""Queries behind FOR SYSTEM_TIME AS OF, drawn from valid and invalid parts: what Spark refuses is refused too."""

from __future__ import annotations

import random

import pytest
from drawn_world import different, make_worlds, result_of
from pyspark.errors import AnalysisException
from scale import SEED, scale_up
from sql_statements import NOW, PERIODS

from lookupcache import LookupCacheError, PlanError, SchemaError

pytestmark = pytest.mark.spark

ITEMS = ("id, k", "id, name AS k", "*", "id, k, name,", "id, nope AS k", "id, upper(name) AS k", "id, s.f AS k",
         "cust.*", "id, label AS k", "id, k, struct(id, c).c AS j", "id, k + var_n AS k", "id, var_n AS k",
         "id, text AS k, r'\\n' AS j", "id, to_json(struct(var_n, k)) AS k", "id, session.var_n AS k",
         "id, r'\\w' || name AS k", "id, PROCTIME() IS NULL AS k")  # fmt: skip
FILTERS = ("", "", "WHERE k > 1", "WHERE name", "WHERE k > 1 ,", "WHERE nope = 1", "WHERE name LIKE",
           "WHERE c > 'a' AND", "WHERE nofunc(k)", "WHERE upper(label) > 'A'", "WHERE (k) IS NOT NULL",
           "WHERE explode(array(k)) > 1", "WHERE k > var_n OR c = text", "WHERE r'\\w' <> name",
           "WHERE PROCTIME() > DATE '2020-01-01'", "WHERE k = = 1", "WHERE sum(k) > 1",
           "WHERE cust.id < 9")  # fmt: skip
ENDS = ("", "", "", "ORDER BY id", "ORDER BY nope", "ORDER BY 9", "ORDER BY 1", "ORDER BY id,", "SORT BY nope",
        "SORT BY k", "CLUSTER BY id", "DISTRIBUTE BY nope")  # fmt: skip
SOURCES = ("cust", "cust", "(SELECT * FROM cust) AS cust", "known AS cust", "(SELECT *, 1 AS one FROM cust) AS cust")
OUTER = f"WITH known AS (SELECT * FROM cust) SELECT o.id, q.k FROM o LEFT JOIN ({{}}) {NOW} AS q ON o.k = q.id"


def drawn(seed):
    draw = random.Random(seed)
    parts = draw.choice(ITEMS), "FROM", draw.choice(SOURCES), draw.choice(FILTERS), draw.choice(ENDS)
    return OUTER.format(" ".join(["SELECT", *(part for part in parts if part)]))


@pytest.fixture(scope="module")
def worlds(spark):
    return make_worlds(spark)


@pytest.mark.parametrize("part", range(scale_up(2)))
def test_what_spark_refuses_is_refused(worlds, part):
    session, theirs = worlds
    pairs, wrong = {}, {}
    for seed in range(SEED + part * 40, SEED + (part + 1) * 40):
        text = drawn(seed)
        ours = result_of(session, text.replace(NOW, PERIODS[0]), None)
        expected = result_of(theirs, text.replace(NOW, "").replace("PROCTIME()", "current_timestamp()"), None)
        if isinstance(expected, str) != isinstance(ours, str):
            wrong[text] = ours, expected
        elif not isinstance(expected, str):
            pairs[text] = ours, expected, None
    assert wrong == {}
    assert len(pairs) > 2
    assert different(dict(enumerate(pairs.values()))) == {}


@pytest.mark.parametrize(("end", "marked"), {
    "WHERE name": "name", "ORDER BY nope": "nope", "WHERE k > 1 AND nofunc(k)": "nofunc(k)", "SORT BY 1, nope": "nope",
}.items())  # fmt: skip
def test_sparks_error_has_its_position(worlds, end, marked):
    session, _ = worlds
    text = OUTER.format(f"SELECT id, k FROM cust {end}").replace(NOW, PERIODS[0])
    with pytest.raises(LookupCacheError) as raised:
        session.sql(text)
    assert marked in raised.value.position.marked


@pytest.mark.parametrize(("items", "why"), {
    "id, s.*": "fields of a struct", "* EXCEPT (s.f)": "fields of a struct",
    "id, to_json(struct(*)) AS k": "a star within", "id, IDENTIFIER('name') AS k": "IDENTIFIER computes",
    "id FROM cust WHERE struct(cust.*) IS NOT NULL": "a star within",
}.items())  # fmt: skip
def test_stars_and_computed_names_are_refused(worlds, items, why):
    session, _ = worlds
    query = items if "FROM" in items else f"{items} FROM cust"
    with pytest.raises(PlanError, match=f"{why}.*write the"):
        session.sql(OUTER.format(f"SELECT {query}").replace("q.k", "q.id").replace(NOW, PERIODS[0]))


@pytest.mark.parametrize("call", ["rand()", "k + randn(1)", "uuid() || name"])
def test_a_column_that_is_another_each_time_is_named(worlds, call):
    session, _ = worlds
    join = "SELECT o.id, {} FROM o JOIN {} FOR SYSTEM_TIME AS OF PROCTIME() AS q ON o.k = q.id"
    options = session._context.catalog.tables["cust"].table.options
    session.sql(
        f"CREATE OR REPLACE TABLE chance (id BIGINT, k INT, name STRING, u AS {call}) WITH ("
        + ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
        + ")"
    )
    for table in (f"(SELECT id, {call} AS u FROM cust)", "chance"):
        with pytest.raises(PlanError, match=r"Column 'u' of 'q' calls (rand|randn|uuid), whose value") as raised:
            session.sql(join.format("q.u", table))
        assert raised.value.position is not None
        assert session.sql(join.format("q.id", table)).count() == 3


@pytest.mark.parametrize("items", ["id, k AS a, a + 1 AS k", "id, name AS text, text AS k"])
def test_a_name_that_the_query_gives_is_no_variable(worlds, items):
    session, _ = worlds
    with pytest.raises(PlanError, match="the name that another of its columns gets"):
        session.sql(OUTER.format(f"SELECT {items} FROM cust").replace(NOW, PERIODS[0]))


FROM_OUTSIDE = ("k + :p", "? + k", "var_n + k", "k * session.var_n", ":p", "k + pair.a", "k + system.session.Pair.t.K",
                "struct(:p, k, var_n).col1", "transform(array(k), p -> p + :p)[0]", "coalesce(k, pair.t.k) + :p + ?",
                "named_struct('v', k + pair.t.k).v")  # fmt: skip
READING = ("", "AND q.x > o.k", "AND o.k < q.x + :p", "WHERE q.x > 1", "WHERE q.x IS NULL OR x > o.k",
           "JOIN (SELECT id, k + :p AS y FROM cust) {now} AS r ON r.id = q.id AND r.y >= q.x",
           "LEFT JOIN (SELECT id, var_n AS y FROM cust WHERE k <> pair.a) {now} r ON r.id = o.k AND x > y")  # fmt: skip
WITHIN = ("SELECT id, {} AS x FROM cust", "SELECT id, x + 1 AS x FROM (SELECT id, {} AS x FROM cust WHERE k < :p + 8)",
          "SELECT id, x FROM (SELECT id, {} AS x FROM cust) WHERE x >= var_n")  # fmt: skip


@pytest.mark.extended(keep_one_in=3)
@pytest.mark.parametrize("item", FROM_OUTSIDE)
def test_a_column_of_parameters_and_variables_can_be_read_anywhere(worlds, item):
    session, theirs = worlds
    for one in (session._context.spark, theirs):
        one.sql("DECLARE OR REPLACE VARIABLE pair = named_struct('a', 1, 't', named_struct('k', 2))")
    draw = random.Random(item)
    pairs = {}
    for reading in READING:
        within = draw.choice(WITHIN).format(item)
        text = f"SELECT o.id, q.x FROM o LEFT JOIN ({within}) {{now}} AS q ON o.k = q.id {reading}"
        text = text.replace("?", ":q") if ":p" in text else text.replace(":q", "?")
        args = {"p": 1, "q": 2} if ":p" in text else [1] * text.count("?") or None
        ours = result_of(session, text.replace("{now}", PERIODS[0]), args)
        pairs[text] = ours, result_of(theirs, text.replace("{now}", ""), args), None
    assert {text: pair for text, pair in pairs.items() if isinstance(pair[0], str) or isinstance(pair[1], str)} == {}
    assert different(dict(enumerate(pairs.values()))) == {}


def test_what_is_neither_a_column_nor_a_field_of_a_variable_is_refused(worlds):
    session, _ = worlds
    session._context.spark.sql("DECLARE OR REPLACE VARIABLE pair = named_struct('a', 1)")
    for name in ("nope", "cust.nope", "nope.a", "o.id", "pair.b", "cust.pair.a", "session.nope.a"):
        for query in (
            f"id, {name} AS k FROM cust",
            f"id, upper({name}) FROM cust",
            f"id, k FROM cust WHERE {name} > 1",
        ):
            with pytest.raises(SchemaError, match=f"'{name}' is no column of 'cust'") as raised:
                session.sql(OUTER.format(f"SELECT {query}").replace("q.k", "q.id").replace(NOW, PERIODS[0]))
            assert raised.value.position.marked == name


UNNAMED = ("struct(k, :p)", "struct(K, cust.name)", "k + :p", "struct(k, var_n)", "array(k, :p, session.var_n)",
           "upper(cust.`name`)", "map('a', k)", "named_struct('k', k, 'p', :p).k", "if(k > :p, struct(k), NULL)",
           "k IS NULL", "struct(struct(k, :p), id)", "count_if", "transform(array(k), e -> struct(e, k))")  # fmt: skip


def test_columns_without_a_name_have_sparks_names(worlds):
    session, theirs = worlds
    wrong, held = {}, 0
    for item in UNNAMED:
        for table in ("cust", "(SELECT *, k + 1 AS count_if FROM cust) AS cust"):
            query = f"SELECT q.* FROM o LEFT JOIN (SELECT id, {item} FROM {table}) {NOW} AS q ON o.k = q.id"
            ours = columns_of(session, query.replace(NOW, PERIODS[0]))
            expected = columns_of(theirs, query.replace(NOW, ""))
            if ours != expected:
                wrong[query] = ours, expected
            held += expected is not None
    assert wrong == {}
    assert held > len(UNNAMED)


def columns_of(session, sql):
    """Return the names and types of the columns of a statement, None if it is refused."""
    try:
        return session.sql(sql, args={"p": 3}).dtypes
    except (LookupCacheError, AnalysisException):
        return None
