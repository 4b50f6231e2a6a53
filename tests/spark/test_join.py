"""The join on Spark: what it returns, what it counts, what it refuses, batch and streaming."""

from __future__ import annotations

import functools
import itertools
import re
import sys
import threading
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest
from function_columns import function_columns
from multisets import multiset
from needs import needs_spark
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from sources import SCHEMA, always_fails, fails_at_first, options_of, rows_of
from typed_joins import WAYS, typed_and_own

from lookupcache import (
    ConnectorError,
    LookupJoin,
    LookupTable,
    OptionError,
    PlanError,
    SchemaError,
    lookup,
    lookup_join,
)

pytestmark = pytest.mark.spark

LRU = {"lookup.cache": "LRU", "lookup.retry.delay": "1 ms"}


CONDITIONS = {
    "key": "person = p.id",
    "key and filter": "person = p.id AND p.salary > 1000",
    "key and constant": "person = p.id AND p.country = 'NL'",
    "two keys": "person = p.id AND land = p.country",
    "residual": "person = p.id AND visit < p.salary",
    "residual for Spark": "person = p.id AND substring(p.name, 1, 1) < substring(land, 2, 1)",
    "residual with a lambda": "person = p.id AND exists(array(land, p.country), x -> x < p.name)",
    "pre-filter": "person = p.id AND visit <> 11",
    "expression as key": "person + 1 = p.id",
    "null constant": "person = p.id AND p.country = NULL",
    "filter for Spark": "person = p.id AND length(p.name) > 2",
}


@pytest.mark.nightly(keep_one_in=5)
@pytest.mark.parametrize(("how", "name"), list(itertools.product(["inner", "left", "semi", "anti"], CONDITIONS)))
def test_equals_sparks_own_join(people, visits, right, how, name):
    on = CONDITIONS[name]
    ours = lookup_join(visits, people, on, how)
    theirs = visits.join(right.alias("p"), F.expr(on), how)
    assert ours.columns == theirs.columns
    assert ours.dtypes == theirs.dtypes
    assert multiset(ours) == multiset(theirs)


COLUMNS = {
    "key": lambda left: F.col("person") == F.col("p.id"),
    "of the frame": lambda left: left["person"] == F.col("p.id"),
    "filter": lambda left: (left.person == F.col("p.id")) & (F.col("p.name") != F.lit("o'bob")),
    "residual for Spark": lambda left: (left.person == F.col("p.id")) & (F.length("land") < F.length("p.name")),
    "lambda and case": lambda left: (
        (left.person == F.col("p.id"))
        & F.exists(F.array("p.name", "land"), lambda x: x.contains("N"))
        & F.when(F.col("p.salary").isNull(), True).otherwise(F.col("p.salary").between(1, 2000))
    ),
}


@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize(("name", "how"), list(zip(COLUMNS, itertools.cycle(["left", "inner", "semi", "anti"]))))
def test_a_column_as_condition(people, visits, right, name, how):
    condition = COLUMNS[name]
    where = F.col("p.name") < F.col("land") if how == "left" else None
    ours = lookup_join(visits, people, condition(visits), how, where=where)
    theirs = visits.join(right.alias("p"), condition(visits), how)
    assert multiset(ours) == multiset(theirs if where is None else theirs.where("p.name < land"))


FAILS_WITHOUT_A_MATCH = ["n * 2 > 0", "10 / n > 0", "CAST(word AS INT) > 0", "word > 5", "t.u < n * 2"]


@pytest.mark.extended
@pytest.mark.parametrize("form", ["worker", "distinct", "broadcast"])
@pytest.mark.parametrize("how", ["left", "anti"])
def test_a_condition_fails_for_no_row_for_which_sparks_does_not(spark, how, form):
    """Spark's own join evaluates it for the rows that the key matches, and not the operand beside a null."""
    rows = [(1, 5, "7"), (2, 2**31 - 1, "x"), (None, -(2**31), "y"), (3, 0, "z"), (4, 2**31 - 1, "8")]
    left = spark.createDataFrame(rows, "id INT, n INT, word STRING")
    right = spark.createDataFrame([(1, 2), (1, None), (4, None)], "k INT, u INT").coalesce(1)
    options = {"lookup.form": form} | ({"lookup.cache": "ALL"} if form == "broadcast" else {})
    table = LookupTable("t", "k INT, u INT", {"connector": "sources:Memory", **options_of(right.toArrow()), **options})
    for condition in FAILS_WITHOUT_A_MATCH:
        on = f"id = t.k AND {condition}"
        matched = left if "t.u" in condition else left.where("id <> 4")
        theirs = matched.join(right.alias("t"), F.expr(on), how)
        assert multiset(lookup_join(matched, table, on, how)) == multiset(theirs)
        assert multiset(lookup_join(matched, table, on, how, ["id"])) == multiset(theirs.select("id"))


TABLE_OF_ALL_TYPES = (
    "k BIGINT, s STRING, n INT, x DOUBLE, d DATE, at TIMESTAMP, arr ARRAY<INT>, m MAP<STRING,INT>, st STRUCT<a:INT>, "
    "bin BINARY, b BOOLEAN, w DECIMAL(5,2), ntz TIMESTAMP_NTZ, strs ARRAY<STRING>, sts ARRAY<STRUCT<a:STRING,b:INT>>"
)


def columns_named_by_spark(left):
    """Return Columns without an alias; Spark gives many of them another name than their text."""
    n = F.col("t.n")
    numbers = [Decimal(5), Decimal("-5"), Decimal("1E+3"), float("nan"), float("-inf"), 1e300, -1.5, None, True]
    return [
        n.isin([]), n.alias("a").cast("int"), n.alias("b").cast("int").cast("string"), n + Decimal(5), -n,
        F.make_interval(), F.lit(datetime(1500, 1, 1)), F.array(F.lit(Decimal(7))), left["id"] + 1,
        F.col("o.id") - 1, F.col("id") * 3, F.col("T.N") * 2, n.cast("decimal(5,2)"), F.when(n > 1, Decimal(2)),
        F.struct(n.alias("q"))["q"], F.transform("t.arr", lambda x: x + F.col("id")), *map(F.lit, numbers),
    ]  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize("part", range(4))
def test_a_column_without_alias_has_sparks_name_and_type(spark, part):
    """Whatever function of Spark's it calls."""
    left = spark.range(1).alias("o")
    table = LookupTable.from_function("t", TABLE_OF_ALL_TYPES, key=["k"], function=lambda k: [])
    both = left.crossJoin(spark.createDataFrame([], TABLE_OF_ALL_TYPES).alias("t"))
    calls = function_columns(F, both, [f"t.{name}" for name in table.schema.names[1:]], slice(part, None, 4))
    read = {}
    for column in [*columns_named_by_spark(left), *(column for _, column in calls)]:
        try:
            [found] = LookupJoin(left, table, "o.id = t.k", "left", [column]).plan.output
        except PlanError:
            continue
        assert [found.name] == both.select(column).columns
        read[found.name.lower()] = column
    assert len(read) > 60
    ours = lookup_join(left, table, "o.id = t.k", "left", list(read.values()))
    assert ours.dtypes == both.select(*read.values()).dtypes


def test_a_name_that_looks_like_a_variable_stays_as_it_is(spark):
    """In the text of SQL, Spark replaces it by the variable's value."""
    name = "${spark.master}"
    left = spark.createDataFrame([(1, 2)], f"id INT, `{name}` INT").alias("o")
    own = spark.createDataFrame([(1, 3)], "k INT, u INT").alias("t")
    select = [F.col(f"o.`{name}`"), F.col("t.u").alias(name + "2"), F.lit(name + "3"), F.col("o.id")]
    for form in ("worker", "distinct"):
        options = {"lookup.form": form}
        table = LookupTable.from_function("t", "k INT, u INT", key="k", function=lambda k: [(k, 3)], options=options)
        ours = lookup_join(left, table, F.col("o.id") == F.col("t.k"), "left", select)
        theirs = left.join(own, F.col("o.id") == F.col("t.k"), "left").select(*select)
        assert (ours.dtypes, ours.collect()) == (theirs.dtypes, theirs.collect())


VARIABLES = {
    "x.name": "id", "x.sum": "o.id + 1", "x.one": "1", "x.both": "${x.other} AND t.u > ${x.one}",
    "x.other": "o.id = t.k", "x.dollar": "$", "x.round": "${x.round}",
}  # fmt: skip
COLUMNS_NAMED_END = [
    "CASE WHEN n >= start AND n < end AND kind = 'k1' THEN true ELSE n > 2 END", "CASE end WHEN 3 THEN n > 1 END",
    "CASE WHEN n > 1 THEN end > 2 AND start > 1 ELSE end = 4 END", "CASE WHEN n < `end` THEN p.end END > 2",
    "CASE WHEN n > end OR end IN (n, end) THEN true ELSE CASE WHEN - end < 0 THEN NOT end > 3 END END AND n < 9",
]  # fmt: skip


@pytest.mark.parametrize("condition", COLUMNS_NAMED_END)
def test_a_column_named_end_stands_in_a_case(spark, condition):
    left = spark.createDataFrame([(i, i % 4) for i in range(8)], "id INT, n INT")
    rows = [(i % 5, i, i + 2, f"k{i % 3}") for i in range(11)]
    right = spark.createDataFrame(rows, "k INT, start INT, end INT, kind STRING")
    table = LookupTable("p", right.schema, {"connector": "sources:Memory", **options_of(right.toArrow())})
    for how in ("left", "anti"):
        theirs = left.join(right.alias("p"), F.expr(f"id = k AND {condition}"), how)
        assert multiset(lookup_join(left, table, f"id = k AND {condition}", how)) == multiset(theirs)
    theirs = left.join(right.alias("p"), F.expr("id = k")).where(condition)
    assert multiset(lookup_join(left, table, "id = k", where=condition)) == multiset(theirs)


TEXTS_WITH_VARIABLES = [
    "o.${x.name}", "`o`.`${x.name}`", "abs(o.${x.name})", "${x.name}", "${x.sum} AS z", "t.u AS `n${x.one}`",
    "'${x.one}' AS z", "o.${spark:x.name} + ${hiveconf:x.one}", "${x.both}", "${x.both} AND o.${x.name} > 0",
    "'${env:LOOKUPCACHE_NOT_SET} ${system:user.dir} ${more:x.one} ${x.one:-2}' AS z", "${x.none}", "o.${x.none}",
    "concat('${x.dollar}', '{x.one}') AS z", "'${x.round}' AS z", "'${spark.sql.ansi.enabled}' AS z",
    "o.id /* ${x.one */ + ${x.one} AS z", "concat('a', /* ${x.name} */ '\\${x.one}') AS z", "'$${x.one}' AS z",
]  # fmt: skip


@pytest.mark.extended(keep_one_in=4)
@pytest.mark.parametrize("given", ["text", "column"])
@pytest.mark.parametrize("text", TEXTS_WITH_VARIABLES)
def test_variables_in_text_have_the_values_that_spark_finds(spark, text, given):
    """Spark reads them from the session of the left side, which is not always the active one."""
    other = spark.newSession()
    for name, value in VARIABLES.items():
        other.conf.set(name, value)
        spark.conf.set(name, "wrong")
    try:
        left = other.createDataFrame([(1, 2), (2, 0)], "id INT, v INT").alias("o")
        own = other.createDataFrame([(1, 3), (2, 4)], "k INT, u INT").alias("t")
        table = LookupTable.from_function("t", "k INT, u INT", key="k", function=lambda k: [(k, k + 2)])
        is_condition = "both" in text
        on = text if is_condition else "o.id = t.k"
        column = F.expr(text)

        def ours():
            select = None if is_condition else [text if given == "text" else column]
            return lookup_join(left, table, F.expr(on) if given == "column" else on, select=select)

        def theirs():
            joined = left.join(own, F.expr(on))
            return joined if is_condition else joined.select(F.expr(text) if given == "text" else column)

        try:
            expected = theirs()
        except PySparkException:
            with pytest.raises((PlanError, SchemaError)):
                ours()
        else:
            assert (ours().dtypes, multiset(ours())) == (expected.dtypes, multiset(expected))
    finally:
        for name in VARIABLES:
            spark.conf.unset(name)


EXTRACTIONS = {
    "a map's value": lambda: F.col("o.m")["k"],
    "a map's item": lambda: F.col("t.m").getItem("k"),
    "a map's key in the name": lambda: F.col("t.m.k"),
    "a field of an array's structs": lambda: F.col("o.sts").sku,
    "a struct's field": lambda: F.col("t.st")["city"],
    "a field in the name": lambda: F.col("o.st.city"),
    "text": lambda: F.expr("o.m.k"),
    "a field of NULL": lambda: F.lit(None)["city"],
    "an element": lambda: F.get("t.sts", F.lit(0)).sku,
    "an alias": lambda: F.col("t.m")["k"].alias("z"),
    "a cast": lambda: F.col("o.st").city.cast("string"),
    "a column": lambda: F.col("t.m"),
}
STRUCTS = {
    "struct": F.struct,
    "one of two": lambda column: F.struct(F.lit(1), column),
    "in a lambda": lambda column: F.transform(F.array(F.lit(1)), lambda _: F.struct(column)),
    "in a struct": lambda column: F.struct(F.struct(column).alias("in")),
    "beside a star": lambda column: F.struct("o.*", column),
}


@needs_spark("4.0", "classic Spark 3.5 names the fields when the Column is made")
def test_fields_of_a_struct_of_columns_have_sparks_names(spark):
    """Whatever a value was taken from, in the result and in conditions."""
    ddl = "k INT, m MAP<STRING, STRING>, st STRUCT<city: STRING>, sts ARRAY<STRUCT<sku: STRING>>"
    rows = [(1, {"k": "v"}, ("Graz",), [("s1",)]), (2, {"k": "w"}, ("Wien",), [("s2",)]), (3, None, None, None)]
    left, right = spark.createDataFrame(rows, ddl).alias("o"), spark.createDataFrame(rows, ddl).coalesce(1)
    table = LookupTable("t", ddl, {"connector": "sources:Memory", **options_of(right.toArrow())})
    key = F.col("o.k") == F.col("t.k")
    own = left.join(right.alias("t"), key, "left")
    made = [make(take()) for make in STRUCTS.values() for take in EXTRACTIONS.values()]
    columns = [F.col("o.k"), *(one.alias(f"c{number}") for number, one in enumerate(made))]
    ours = lookup_join(left, table, key, "left", columns)
    assert ours.dtypes == own.select(columns).dtypes
    assert multiset(ours) == multiset(own.select(columns))
    text = F.concat(*map(F.to_json, made[: -len(EXTRACTIONS)]))  # ON takes no star.
    like_the_first = text == own.where("o.k = 1").select(text).head()[0]
    for condition in ({"on": key, "where": like_the_first}, {"on": key & like_the_first}):
        assert [row.k for row in lookup_join(left, table, **condition, select=["o.k"]).collect()] == [1]


STARS = [
    "(t.*) IS NOT NULL", "(o.*) IS NULL", "-(t.*) > 1", "(t.*)", "t.*", "NOT (t.*)", "(t.*)[0] IS NULL",
    "1 DIV (t.*) > 1",
    "o.v > 1 AND (t.*)", "o.v BETWEEN (t.*) AND 1", "exists(t.a, x -> t.*)", "struct(t.*) IS NOT NULL",
    "to_json(struct((t.*))) LIKE '%\"s\":\"a\"%'", "(o.v, t.*) IS NOT NULL", "o.v IN (o.*)", "hash((o.*), 1) > 0",
    "to_json(struct(1 x, o.*)) LIKE '%\"x\":1,%'", "to_json(struct(o.*, upper(t.s) y)) LIKE '%\"y\":\"A\"%'",
    "to_json(struct(o.v + 1 AS x, t.s, o.*)) LIKE '%2%'", "to_json(struct(o.*, CAST(o.v AS STRING))) LIKE '%col2%'",
    "to_json(struct(o.*, o.v::string)) LIKE '%col2%'", "count(*) > 1", "CASE WHEN (t.*) THEN TRUE END",
]  # fmt: skip


@pytest.mark.parametrize("text", STARS)
def test_a_star_of_where_is_sparks_or_refused(spark, text):
    left = spark.createDataFrame([(1, 2), (2, 0), (3, 9)], "id INT, v INT").alias("o")
    ddl = "k INT, s STRING, a ARRAY<INT>"
    right = spark.createDataFrame([(1, "a", [1]), (2, "b", None)], ddl).coalesce(1)
    table = LookupTable("t", ddl, {"connector": "sources:Memory", **options_of(right.toArrow())})
    own = left.join(right.alias("t"), F.expr("o.id = t.k"))

    def ours():
        return lookup_join(left, table, "o.id = t.k", where=text)

    try:
        expected = own.where(text)
    except PySparkException:
        with pytest.raises(PlanError):
            ours()
    else:
        try:
            found = ours()
        except PlanError as error:
            assert "has no name beside the star" in error.fact  # noqa: PT017
        else:
            assert multiset(found) == multiset(expected)


@pytest.mark.parametrize("item", ["(t.*)", "((o.*))", "t.s AS ``", "t.s AS 'x'", "t.s AS z;", "-(t.*)", "(t.s)"])
def test_what_spark_does_not_select_is_refused(spark, item):
    left = spark.createDataFrame([(1, 2)], "id INT, v INT").alias("o")
    right = spark.createDataFrame([(1, "a")], "k INT, s STRING")
    table = LookupTable.from_function("t", "k INT, s STRING", key="k", function=lambda k: [(k, "a")])
    try:
        expected = left.join(right.alias("t"), F.expr("o.id = t.k")).selectExpr(item)
    except PySparkException:
        with pytest.raises(PlanError):
            lookup_join(left, table, "o.id = t.k", select=[item])
    else:
        found = lookup_join(left, table, "o.id = t.k", select=[item])
        assert (found.dtypes, multiset(found)) == (expected.dtypes, multiset(expected))


@pytest.mark.parametrize("given", [
    {"on": "o.id = t.${no.name}"}, {"on": "o.id = t.k AND ${no.name} > 1"},
    {"on": "o.id = t.k", "select": ["${no.name}"]},
    {"on": "o.id = t.k", "where": "t.s.${no.name} = 1"}, {"on": "o.id = t.k", "select": ["o.id", "t.s.${no.name}"]},
])  # fmt: skip
def test_a_variable_without_a_value_is_named(spark, given):
    left = spark.createDataFrame([(1, 2)], "id INT, v INT").alias("o")
    table = LookupTable.from_function("t", "k INT, s STRING", key="k", function=lambda k: [(k, "a")])
    with pytest.raises((PlanError, SchemaError), match=r"[$][{]no.name[}] has no value") as raised:
        lookup_join(left, table, **given)
    assert "sqlglot" not in str(raised.value)
    assert lookup_join(left, table, "o.id = t.k ${no.name}", select=["'${no.name}' AS z"]).collect() == [("",)]


COLUMNS_OF_SPARK_3 = {"selected Columns": needs_spark("4.0", "an unnamed struct is refused as a Column of Spark 3.5")}


@pytest.mark.parametrize("name", [pytest.param(one, marks=COLUMNS_OF_SPARK_3.get(one, ())) for one in WAYS])
def test_names_and_columns_mean_the_same_as_in_sparks_join(spark, people, right, name):
    ours, theirs = typed_and_own(spark, people, right, name)
    assert ours.dtypes == theirs.dtypes
    assert multiset(ours) == multiset(theirs)


@pytest.mark.extended(keep_one_in=2)
@pytest.mark.parametrize(("form", "above"), [
    ("worker", lambda df: df), ("distinct", lambda df: df.where("visit > 10").hint("rebalance").select("*")),
])  # fmt: skip
def test_the_left_sides_alias_lives_on_in_the_result(people, visits, right, form, above):
    left, on = above(visits.alias("v")), "v.person = p.id"
    ours = lookup_join(left, people, on, "left", options={"lookup.form": form})
    theirs = left.join(right.alias("p"), F.expr(on), "left")
    for column in (F.col("v.visit"), F.col("v.person") + F.col("salary"), F.col("v.*")):
        assert multiset(ours.select(column)) == multiset(theirs.select(column))
    more, all_of_v = left.withColumn("half", F.col("person") / 2), "struct(v.*) AS v"
    ours_of_more = lookup_join(more, people, on, "left", options={"lookup.form": form})
    theirs_of_more = more.join(right.alias("p"), F.expr(on), "left")  # The alias does not qualify the new column.
    assert multiset(ours_of_more.selectExpr(all_of_v)) == multiset(theirs_of_more.selectExpr(all_of_v))
    twice = theirs.where("v.visit < 15").join(right.alias("q"), F.expr("v.person = q.id"))
    for selected in ("v.*", "struct(v.*) AS all", "v.visit"):
        again = lookup_join(ours.where("v.visit < 15"), people, on, select=[selected, "p.salary * 2 AS twice"])
        assert multiset(again) == multiset(twice.selectExpr(selected, "q.salary * 2 AS twice"))
    assert again.select("v.*").columns == ["visit"]


@pytest.mark.parametrize("taken", [
    lambda frame: {"on": frame["person"] == F.col("p.id")},
    lambda frame: {"on": "person = p.id", "select": ["name", frame["*"]]},
    lambda frame: {"on": "person = p.id", "where": F.col("p.name") < F.upper(frame["land"])},
])  # fmt: skip
def test_a_column_of_another_frame_is_refused(people, visits, taken):
    replaced = visits.withColumns({"person": F.col("person") + 1, "land": F.lit("x")})
    for left, frame in ((visits, replaced), (replaced, visits)):
        with pytest.raises(PlanError, match=r"Column '(person|land|\*)' was taken from another DataFrame"):
            lookup_join(left, people, **taken(frame))
    first = lookup_join(visits, people, "person = p.id", select=["visit", "person", "land"])
    for left in (visits, visits.alias("v").where("visit > 0"), first):
        assert lookup_join(left, people, **taken(visits)).count() == lookup_join(left, people, **taken(left)).count()


def test_an_alias_hides_no_column_and_one_of_several_is_not_kept(spark, people, visits):
    struct = visits.selectExpr("person", "named_struct('name', 'own') AS v").alias("v")
    joined = lookup_join(struct, people, "person = p.id")
    assert {tuple(row) for row in joined.select("v.name", "v.v.name").collect()} == {("own", "own")}
    both = visits.alias("v").join(spark.range(3).alias("w"), F.expr("v.person = w.id"))
    assert LookupJoin(both, people, "person = p.id", select=["visit", "name"]).alias is None
    visits.createOrReplaceTempView("all_visits")
    assert LookupJoin(spark.table("all_visits"), people, "person = p.id").alias == "all_visits"


@pytest.mark.extended(keep_one_in=4)
@pytest.mark.parametrize(("alias", "form"), list(itertools.product(["home", "work", "o"], ["worker", "distinct"])))
def test_a_path_is_a_structs_or_maps_unless_an_alias_has_it(spark, alias, form):
    rows = [
        (1, "Graz", ("Linz", 1, 2), {"city": "Rom"}, 3), (2, "Wien", ("Graz", 2, 4), {}, 5), (3, None, None, None, 6),
    ]  # fmt: skip
    home = "STRUCT<city: STRING, floor: INT, `a,b`: INT>"
    schema = f"id BIGINT, city STRING, home {home}, m MAP<STRING, STRING>, `a,b` INT"
    left = spark.createDataFrame(rows, schema).alias(alias)
    facts = [(1, "Ann", ("Linz", 4), {"city": "Oslo"}), (2, "Wien", ("Graz", 5), {}), (3, "Cem", None, None)]
    schema = "id BIGINT, name STRING, work STRUCT<city: STRING, zip: INT>, mp MAP<STRING, STRING>"
    right = spark.createDataFrame(facts, schema)
    people = LookupTable.from_function("p", right.schema, key=["id"], function=lambda id: facts[id - 1 : id])
    on = f"{alias}.id = p.id AND home.city <> work.city AND m.city <> mp.city"
    theirs = left.join(right.alias("p"), F.expr(on), "left")
    structs = [["home.city", "work.zip"], ["work.city", "home.floor", "struct(home.city, work.city) AS both"]]
    for items in (*structs, ["m.city", "mp.city || m.city AS both"], ["home.`a,b`"]):
        ours = lookup_join(left, people, on, "left", items, options={"lookup.form": form})
        assert multiset(ours) == multiset(theirs.selectExpr(*items))


@pytest.mark.parametrize("matches", ["first", "single"])
def test_the_matches_of_a_left_row(spark, matches):
    twice = LookupTable.from_function("t", "id BIGINT, n INT", key=["id"], function=lambda id: [1, 1])
    joined = spark.range(2).transform(lookup(twice, "id", "left", matches=matches))
    if matches == "first":
        assert sorted(joined.collect()) == [(0, 1), (1, 1)]
        return
    with pytest.raises(PythonException, match="TooManyRowsError"):
        joined.collect()


RESIDUALS = {"none": "", "for the worker": " AND t.n > o.id", "for Spark": " AND substring(string(t.n), 1, 1) <> 'x'"}


@pytest.mark.parametrize("form", ["worker", "distinct", "broadcast"])
@pytest.mark.parametrize("residual", RESIDUALS.values(), ids=RESIDUALS)
def test_a_second_match_is_an_error_that_names_the_argument(spark, form, residual):
    whole = {"connector": "sources:Memory", **options_of(spark.sql("SELECT 0L id, explode(array(1, 2)) n").toArrow())}
    table = LookupTable("t", "id BIGINT, n INT", {**whole, "lookup.cache": "ALL", "lookup.form": form})
    joined = lookup_join(
        spark.range(2).alias("o"), table, f"o.id = t.id{residual}", "left", ["o.id", "n"], matches="single"
    )
    with pytest.raises(PySparkException, match=r"(?s)TooManyRowsError: .*table 't' found.*matches='first'"):
        joined.collect()


FRAME = pd.DataFrame({"id": [1]})
MISPLACED = {
    "pandas on the left": (lambda df, p: (FRAME, p, "id"), {}, "'left' is a DataFrame of pandas(?s:.*)createDataFrame"),
    "a list on the left": (lambda df, p: ([1], p, "id"), {}, "'left' is a list, not a DataFrame of Spark"),
    "swapped": (lambda df, p: (p, df, "id"), {}, "'left' is a LookupTable(?s:.*)Swap them"),
    "a DataFrame as table": (lambda df, p: (df, df, "id"), {}, "'table' is a DataFrame of Spark(?s:.*)left.join.right"),
    "pandas as table": (lambda df, p: (df, FRAME, "id"), {}, "'table' is a DataFrame of pandas(?s:.*)createDataFrame"),
    "a name as table": (lambda df, p: (df, "p", "id"), {}, "'table' is a str(?s:.*)LookupSession"),
    "a DataFrame as condition": (lambda df, p: (df, p, df), {}, "'on' is a DataFrame of Spark(?s:.*)SQL text, names"),
    "a table as select": (lambda df, p: (df, p, "id", "left", p), {}, "'select' is a LookupTable"),
    "pandas as where": (lambda df, p: (df, p, "id"), {"where": FRAME}, "'where' is a DataFrame of pandas"),
    "pandas as options": (lambda df, p: (df, p, "id"), {"options": FRAME}, "'options' is a DataFrame of pandas"),
    "a list as options": (lambda df, p: (df, p, "id"), {"options": ["lookup.cache"]}, "'options' is a list"),
    "no how": (lambda df, p: (df, p, "id", None), {}, "'how' is None(?s:.*)'semi' or 'anti'"),
    "a number in select": (lambda df, p: (df, p, "id"), {"select": [5]}, "'select' has 5"),
    "names and Columns": (lambda df, p: (df, p, ["id", F.col("id")]), {}, "is no name(?s:.*)names only, or Columns"),
}


@pytest.mark.parametrize(("given", "more", "named"), MISPLACED.values(), ids=MISPLACED)
def test_an_argument_in_the_wrong_place_is_named(spark, people, given, more, named):
    with pytest.raises(PlanError, match=named):
        lookup_join(*given(spark.range(3), people), **more)


def test_a_misplaced_table_is_named_without_a_left_side(spark):
    with pytest.raises(PlanError, match="'table' is a DataFrame of Spark"):
        lookup(spark.range(3), "id")


@pytest.mark.parametrize(("script", "named"), [
    ("echo 3 9", r"which is Python 3\.9; the driver's"),
    (f"echo {sys.version_info[0]} {sys.version_info[1]} pyarrow", "where pyarrow is not installed"),
    ("exit 1", "which is no Python that runs"),
])  # fmt: skip
def test_workers_that_would_start_another_python_are_refused(
    spark, people, visits, monkeypatch, tmp_path, script, named
):
    other = tmp_path / "python3"
    other.write_text(f"#!/bin/sh\n{script}\n")
    other.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(other))
    with pytest.raises(OptionError, match=rf"they would start '.*python3', {named}(?s:.*)Hint: .*PYSPARK_PYTHON"):
        lookup_join(visits, people, "person = p.id")


def test_a_name_that_one_side_lacks_is_named(people, visits):
    with pytest.raises(SchemaError, match="Table 'p' has no column 'visit'"):
        lookup_join(visits, people, "visit")


def test_column_names_as_condition_and_transform(spark, people, right):
    left = spark.createDataFrame([(1, "x"), (7, "y")], "id BIGINT, note STRING")
    joined = left.transform(lookup_join, people, on=["id"], how="left")
    assert joined.columns == ["id", "note", "name", "country", "salary"]
    assert multiset(joined) == multiset(left.join(right, ["id"], "left"))


def test_select_takes_expressions_over_both_sides(people, visits):
    joined = lookup_join(
        visits, people, "person = p.id", select=["visit", "p.salary * 2 AS twice", "upper(p.name) AS n"]
    )
    assert sorted(joined.collect())[0].asDict() == {"visit": 10, "twice": 1800.0, "n": "ANN"}


def test_where_filters_the_result(people, visits, right):
    ours = lookup_join(visits, people, "person = p.id", "left", where="p.name IS NULL AND visit > 13")
    theirs = visits.join(right.alias("p"), F.expr("person = p.id"), "left").where("name IS NULL AND visit > 13")
    assert multiset(ours) == multiset(theirs)


def test_options_override_the_tables(people, visits):
    join = LookupJoin(
        visits, people, "person = p.id", options={"lookup.cache": "TTL", "lookup.cache.expire-after-write": "1 h"}
    )
    assert (join.plan.config.cache, join.plan.config.expire_after_write) == ("TTL", 3600.0)


def test_nested_left_columns_pass_through(spark, people):
    left = spark.sql(
        "SELECT 1L AS person, array(named_struct('a', 1, 'b', map('k', DATE'2020-01-01'))) AS deep, "
        "INTERVAL '1 02:03:04' DAY TO SECOND AS i"
    )
    joined = lookup_join(left, people, "person = p.id", select=["deep", "deep[0].b['k'] AS d", "i", "p.name"])
    assert joined.select("deep", "i").collect() == left.select("deep", "i").collect()
    assert str(joined.first().d) == "2020-01-01"


@pytest.mark.parametrize("form", ["worker", "distinct"])
@pytest.mark.parametrize("value", [
    pytest.param("TIME'12:00:00'", marks=needs_spark("4.1", "the type TIME came with Spark 4.1")),
    pytest.param("parse_json('[1]')", marks=needs_spark("4.0", "the type VARIANT came with Spark 4.0")),
    "INTERVAL '1-2' YEAR TO MONTH",
    "named_struct('Term', INTERVAL '3' MONTH)",
    "array()",
])  # fmt: skip
def test_a_left_column_of_any_type_is_carried_or_refused_by_name(spark, people, value, form):
    left = spark.sql(f"SELECT 1L AS person, {value} AS carried")
    join = LookupJoin(left, people, "person = p.id", options={"lookup.form": form})
    refused = {"INTERVAL '1-2' YEAR TO MONTH": "INTERVAL YEAR TO MONTH", "array()": "ARRAY<VOID>",
               "named_struct('Term', INTERVAL '3' MONTH)": "STRUCT<Term:INTERVAL MONTH>"}  # fmt: skip
    if form == "worker" and value in refused:
        with pytest.raises(SchemaError, match=f"Left column 'carried' has type {refused[value]}"):
            _ = join.df
        return
    both = [
        df.selectExpr("CAST(carried AS STRING) AS text", "typeof(carried) AS type").first() for df in (join.df, left)
    ]
    assert both[0] == both[1]


@pytest.fixture(scope="module")
def user_functions(spark):
    """Functions of which the Python ones fail for a NULL: with no row of the table may they be called."""
    spark.udf.register("longer", lambda name: name + "!", "string")
    spark.udf.register("both", lambda name, visit: f"{name}{visit}", "string")
    spark.sql("CREATE TEMPORARY FUNCTION twice(x BIGINT) RETURNS BIGINT RETURN 2 * x")
    spark.sql("CREATE TEMPORARY FUNCTION seven() RETURNS BIGINT RETURN 7")


FUNCTION_CONDITIONS = {
    "longer(p.name) > 'b' AND longer(p.name) > land AND visit <> p.id": (
        "concat(p.name, '!') > 'b' AND concat(p.name, '!') > land AND visit <> p.id"
    ),
    "both(p.name, visit) <> 'ann10'": "concat(p.name, visit) <> 'ann10'",
    "twice(p.id) < visit - 8": "2 * p.id < visit - 8",
    "p.id < twice(visit) - 20": "p.id < 2 * visit - 20",
    "p.id + 0 IN (twice(1), seven())": "p.id IN (2, 7)",
}
"""Conditions, and Spark's own in place of the functions: its join calls none over both sides."""


@needs_spark("4.0", "functions in SQL came with Spark 4.0")
@pytest.mark.extended(keep_one_in=5)
@pytest.mark.parametrize("form", ["worker", "distinct", "broadcast"])
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_a_function_of_the_users_is_called_for_pairs_only(spark, visits, right, user_functions, how, form):
    cache = {"lookup.cache": "ALL"} if form == "broadcast" else {}
    table = LookupTable("p", SCHEMA, {"connector": "sources:People", "lookup.form": form, **cache})
    ours, theirs = [], []
    for number, (functions, own) in enumerate(FUNCTION_CONDITIONS.items()):
        joined = lookup_join(visits, table, f"person = p.id AND {functions}", how)
        ours.append(joined.withColumn("condition", F.lit(number)))
        joined = visits.join(right.alias("p"), F.expr(f"person = p.id AND {own}"), how)
        theirs.append(joined.withColumn("condition", F.lit(number)))
    assert multiset(functools.reduce(DataFrame.union, ours)) == multiset(functools.reduce(DataFrame.union, theirs))


@needs_spark("4.0", "functions in SQL came with Spark 4.0")
def test_a_function_of_the_users_in_a_stream(spark, visits, people, right, user_functions, tmp_path):
    visits.repartition(3).write.parquet(str(tmp_path / "left"))
    left = spark.readStream.schema(visits.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "left"))
    stream = lookup_join(left, people, "person = p.id AND longer(p.name) > 'b'", "left")
    query = stream.writeStream.format("memory").queryName("functions").start()
    query.processAllAvailable()
    query.stop()
    theirs = visits.join(right.alias("p"), F.expr("person = p.id AND concat(p.name, '!') > 'b'"), "left")
    assert multiset(spark.table("functions")) == multiset(theirs)


REFUSED_BY_SPARK = {
    "syntax": ({"on": "person = p.id AND p.salary IN (1) IS TRUE"}, r"'p.salary IN \(1\) IS TRUE': .*Syntax error"),
    "no boolean": ({"on": "person = p.id AND visit"}, r"'left.visit': .*\"visit\" of type \"BIGINT\" is not a boolean"),
    "generator": (
        {"on": "person = p.id AND explode(array(p.name)) = land"},
        r"'explode\(array\(p.name\)\) = left.land': .*outside the SELECT",
    ),
    "field": ({"on": "person = p.id AND land.x = p.name"}, r"'left.land.x': .*from \"land\""),
    "key": ({"on": "nosuch(person) = p.id"}, r"'nosuch\(left.person\)': .*`nosuch`"),
    "where": ({"where": "p.salary"}, r"'p.salary': .*\"salary\" of type \"DOUBLE\" is not a boolean"),
    "field of columns": (
        {"where": "struct(p.name, land).x = 1"},
        r"'struct\(p.name, left.land\).x = 1': .*`x`.*`name`, `land`",
    ),
    "selected": ({"select": ["visit BETWEEN SYMMETRIC 1 AND 2 AS a"]}, r"'left.visit BETWEEN SYMMETRIC 1 AND 2': "),
    "unnamed": ({"select": ["visit BETWEEN SYMMETRIC 1 AND 2"]}, r"'left.visit BETWEEN SYMMETRIC 1 AND 2': "),
}


@pytest.mark.extended(keep_one_in=4)
@pytest.mark.parametrize("name", REFUSED_BY_SPARK)
@pytest.mark.parametrize("form", ["worker", "distinct", "broadcast"])
def test_an_error_of_spark_is_shown_without_internal_names(visits, right, name, form):
    arguments, fact = REFUSED_BY_SPARK[name]
    options = {"lookup.form": form} | ({"lookup.cache": "ALL"} if form == "broadcast" else {})
    people = LookupTable("p", SCHEMA, {"connector": "sources:Memory", **options_of(right.toArrow())})
    with pytest.raises(PlanError, match="Spark refuses " + fact) as raised:
        lookup_join(visits, people, **{"on": "person = p.id", **arguments}, options=options)
    assert not re.search(r"lookup_|SQLSTATE|#\d|named_struct", str(raised.value))


@needs_spark("4.0", "ANSI mode is the default since Spark 4.0")
@pytest.mark.parametrize("where", [None, "p.tags[1] = 'x'"])
def test_an_error_while_a_job_runs_names_the_columns(spark, visits, where):
    people = LookupTable.from_function(
        "p", "id BIGINT, tags ARRAY<STRING>", key=["id"], function=lambda id: [(id, ["a"])]
    )
    joined = lookup_join(visits, people, "person = p.id", "left", ["p.tags[1] AS second"], where=where)
    with pytest.raises(Exception, match=r"INVALID_ARRAY_INDEX(.|\n)*lookup_r1_tags\[1\]"):
        joined.collect()


@needs_spark("4.0", "a star in a call may have EXCEPT since Spark 4.0")
def test_a_column_named_as_the_left_sides_qualifier(spark, people, right):
    left = spark.sql("SELECT 1L AS id, 5 AS v, named_struct('id', 2L, 'v', 8) AS left")
    table = LookupTable.from_function("left", SCHEMA, key=["id"], function=rows_of)
    for of_table in (people, table):
        name = of_table.name
        select = ["v", f"{name}.name", "to_json(struct(o.*)) AS o", "crc32(to_json(struct(* EXCEPT (o.id)))) AS all"]
        ours = lookup_join(left, of_table, left["id"] == F.col(f"{name}.id"), select=select)
        theirs = left.alias("o").join(right.alias(name), F.expr(f"o.id = {name}.id")).selectExpr(*select)
        assert multiset(ours) == multiset(theirs)


def test_the_hidden_column_of_files_is_selected_before_the_join(spark, people, tmp_path):
    spark.range(1, 3).write.parquet(str(tmp_path / "files"))
    left = spark.read.parquet(str(tmp_path / "files"))
    for name in ("left._metadata.file_name", "_metadata.file_name", "_metadata.id", "left._metadata.id"):
        with pytest.raises(SchemaError, match=r"no column '_metadata'.*\n\nHint: .*left.select\('\*', '_metadata'\)"):
            lookup_join(left, people, "left.id = p.id", select=["left.id", name])
    selected = lookup_join(left.select("*", "_metadata"), people, "left.id = p.id", select=["_metadata", "p.name"])
    assert {row.file_name[:5] for row in selected.select("_metadata.file_name").collect()} == {"part-"}


def test_a_struct_field_is_not_taken_for_a_column_of_the_left(spark, people):
    left = spark.sql("SELECT named_struct('id', 2L) AS s, 1L AS id").alias("l")
    joined = lookup_join(left, people, "s.id = p.id AND s.id > 1", select=["s.id AS asked", "p.id AS found"])
    assert set(map(tuple, joined.collect())) == {(2, 2)}


def test_large_arrow_types_are_the_same_to_us(spark, visits, people, right):
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        ours = lookup_join(visits, people, "person = p.id AND land = p.country AND visit < p.salary")
        theirs = visits.join(right.alias("p"), F.expr("person = p.id AND land = p.country AND visit < p.salary"))
        assert multiset(ours) == multiset(theirs)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


# ── counting ─────────────────────────────────────────────────────────────────────────────────────────────


def fresh(function, **options) -> LookupTable:
    """Return a table whose cache no other test shares."""
    mark = threading.get_ident(), len(options), id(options)
    return LookupTable.from_function(
        "p", SCHEMA, key=["id"], function=lambda key, _mark=mark: function(key), options={**LRU, **options}
    )


def test_counts_on_classic_spark(spark):
    left = spark.range(0, 1000, 1, 1).selectExpr("id % 5 AS person")
    join = LookupJoin(left, fresh(rows_of), "person = p.id", "left")
    join.df.collect()
    metrics = join.metrics()
    assert (metrics.rows, metrics.misses, metrics.hits, metrics.requested_keys, metrics.calls) == (1000, 5, 995, 5, 5)
    assert (metrics.fetched_rows, metrics.cached_rows, metrics.cached_keys) == (4, 6, 5)


@pytest.mark.parametrize("shuffle", ["false", "true"])
def test_observed_counts_are_the_accumulated_ones(spark, shuffle):
    left = spark.range(0, 1000, 1, 2).selectExpr("id % 5 AS person")
    options = {"lookup.metrics": "observe", "lookup.shuffle": shuffle}
    join = LookupJoin(left, fresh(rows_of, **options), "person = p.id", "left")
    assert join.df.count() == 1200
    metrics = join.metrics()
    assert (metrics.rows, metrics.hits + metrics.misses) == (1000, 1000)
    assert (metrics.cached_keys == 5) if shuffle == "true" else (5 <= metrics.cached_keys <= 10)
    for observation in join._channel.observations:
        assert isinstance(observation.get["lookup"], str), "a Spark Connect server of Spark 4.0 sends no structs"


def test_metrics_that_are_off_say_so(visits):
    join = LookupJoin(visits, fresh(rows_of, **{"lookup.metrics": "off"}), "person = p.id")
    join.df.collect()
    with pytest.raises(OptionError, match="metrics are off"):
        join.metrics()


def test_a_retried_task_gives_the_same_rows_and_counts_once(spark, right):
    left = spark.range(0, 100, 1, 2).selectExpr("id % 4 AS person")
    join = LookupJoin(left, fresh(fails_at_first), "person = p.id", "left")
    assert multiset(join.df) == multiset(left.join(right.alias("p"), F.expr("person = p.id"), "left"))
    assert join.metrics().rows == 100


def test_a_source_that_fails_fails_the_job_and_says_why(visits):
    with pytest.raises(PythonException, match=r"the lookup of 1 key failed after 3 attempts: ConnectionError"):
        lookup_join(visits, fresh(always_fails, **{"lookup.max-retries": "2"}), "person = p.id").collect()


def test_other_constants_filters_or_columns_never_share_entries(people, visits):
    def identity(on, **more):
        return LookupJoin(visits, people, on, "left", **more).plan.fingerprint

    same = "person = p.id AND p.salary > 1000"
    assert identity(same) == identity("p.id = person AND p.salary > 1000.0D")
    different = [same, "person = p.id", "person = p.id AND p.salary > 1001", "person = p.id AND p.country = 'NL'"]
    different += ["person = p.id AND p.country = 'DE'", "person = p.id AND land = p.country"]
    assert len({identity(on) for on in different}) == len(different)
    assert identity(same) != identity(same, select=["p.name"])
    assert identity(same) != identity(same, options={"lookup.cache.max-rows": "7"})


@pytest.mark.parametrize("run", ["at once", "when all are planned"])
@pytest.mark.parametrize("cache", ["NONE", "LRU"])
def test_each_join_of_one_table_has_the_rows_of_its_time(visits, cache, run):
    """Workers keep a lookup, with its function, for the next join that is the same."""

    def of_tenant(key):
        return [(key, tenant)]

    options = {"lookup.cache": cache}
    table = LookupTable.from_function("p", "id BIGINT, name STRING", key="id", function=of_tenant, options=options)
    joins, found = [], []

    def collect():
        found.extend({row.name for row in joins.pop(0).df.collect()} for _ in range(len(joins)))

    for one in ("ann", "bob", "ann"):
        tenant = one
        joins.append(LookupJoin(visits, table, "person = p.id", select=["p.name"]))
        if run == "at once":
            collect()
    tenant = "cem"
    collect()
    assert found == [{"ann"}, {"bob"}, {"ann"}]


@pytest.mark.extended
def test_joins_that_differ_in_a_filter_return_their_own_rows(people, visits):
    for limit, count in ((0, 5), (1000, 4), (2000, 2), (1000, 4)):
        assert lookup_join(visits, people, f"person = p.id AND p.salary >= {limit}").count() == count


# ── refusing ─────────────────────────────────────────────────────────────────────────────────────────────

REFUSED = {
    "a column nobody has": ("persn = p.id", {}, SchemaError, "persn"),
    "a type that does not compare": ("land = p.id", {}, PlanError, "land is STRING and p.id is BIGINT"),
    "no equality": ("person < p.id", {}, PlanError, "p"),
    "a right join": ("person = p.id", {"how": "right"}, PlanError, "right"),
    "several columns": ("person = p.id", {"select": ["stack(1, p.id, 2)"]}, PlanError, "stack.1, p.id, 2."),
    "a clash of names": ("person = p.id", {"select": ["visit", "p.id AS visit"]}, (PlanError, SchemaError), "visit"),
    "an unknown option": ("person = p.id", {"options": {"lookup.cash": "LRU"}}, OptionError, "lookup.cache"),
}


@pytest.mark.parametrize(("on", "more", "error", "named"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_before_any_job(people, visits, on, more, error, named):
    with pytest.raises(error, match=named):
        lookup_join(visits, people, on, **more)


def test_a_connector_that_cannot_travel_is_refused(visits):
    table = LookupTable("p", SCHEMA, {"connector": "sources:Unpicklable"})
    with pytest.raises(ConnectorError, match=r"cannot be pickled(?s:.)*open\(\)"):
        LookupJoin(visits, table, "person = p.id")


def test_no_secret_shows_anywhere(visits, capfd):
    options = {"phrase": "open-sesame", "url": "db://ann:hunter2@host/x", "api-token": "t0ken"}
    table = LookupTable("p", SCHEMA, {"connector": "sources:Guarded", **options, "lookup.max-retries": "0"})
    join = LookupJoin(visits, table, "person = p.id")
    with pytest.raises(PythonException) as caught:
        join.df.collect()
    join.df.explain("extended")
    shown = [
        str(caught.value),
        repr(table),
        repr(table.connector),
        join.explain(),
        str(join.plan),
        str(join.plan.to_json()),
    ]
    shown += capfd.readouterr()
    assert [text for text in shown for secret in ("open-sesame", "hunter2", "t0ken") if secret in text] == []


# ── streaming ────────────────────────────────────────────────────────────────────────────────────────────


def files_in_steps(spark, folder: Path, steps: int) -> None:
    for step in range(steps):
        spark.range(step * 100, step * 100 + 100, 1, 1).selectExpr("id % 7 AS person").write.mode("append").parquet(
            str(folder)
        )


@pytest.fixture
def reserved_words(spark):
    """Let the session refuse reserved words as names; the SQL that is generated for a join must have none."""
    spark.conf.set("spark.sql.ansi.enforceReservedKeywords", "true")
    yield
    spark.conf.unset("spark.sql.ansi.enforceReservedKeywords")


@pytest.mark.extended
@pytest.mark.usefixtures("reserved_words")
@pytest.mark.parametrize("channel", ["accumulator", "observe"])
def test_a_stream_gives_the_rows_of_the_batch_and_counts(spark, right, tmp_path, channel):
    files_in_steps(spark, tmp_path / "in", 3)
    stream = spark.readStream.schema("person BIGINT").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    join = LookupJoin(stream, fresh(rows_of, **{"lookup.metrics": channel}), "person = p.id", "left")
    query = (
        join.df.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "check"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()
    batch = spark.read.parquet(str(tmp_path / "in"))
    theirs = batch.join(right.alias("p"), F.expr("person = p.id"), "left")
    assert multiset(spark.read.parquet(str(tmp_path / "out"))) == multiset(theirs)
    if channel == "observe":
        assert [join.metrics_in(progress).rows for progress in query.recentProgress if progress["numInputRows"]] == [
            100
        ] * 3
    else:
        metrics = join.metrics()
        assert (metrics.rows, metrics.hits + metrics.misses) == (300, 300)
        assert metrics.misses <= 14
