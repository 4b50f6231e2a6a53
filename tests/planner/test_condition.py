"""Conditions whose names a statement has bound: the planner takes them as they are bound, and resolves none again."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pyarrow as pa
import pytest
from sqlglot.dialects.spark import Spark

from lookupcache import LookupTable, PlanError, SchemaError
from lookupcache.planner import LeftColumn, plan_join
from lookupcache.planner.condition import BoundCondition, read_condition, read_conjunct, read_nested
from lookupcache.planner.naming import VisibleColumns
from lookupcache.schema import parse_ddl

LEFT = [LeftColumn("id", "bigint"), LeftColumn("o.id", "bigint"), LeftColumn("s", "struct<id:bigint>")]
SCHEMA = pa.schema([("id", pa.int64()), ("age", pa.int64())])


def scope(**bound):
    names = {tuple(name.split("__")): to for name, to in bound.items()}
    return VisibleColumns(LEFT, "c", SCHEMA, bound=names)


@pytest.mark.parametrize(
    ("text", "bound", "sql"),
    [
        ("id = c.id", {"id": ("left", "o.id", 0)}, "l.`o.id` = r.`id`"),
        ("c.id = x.y.id", {"c__id": ("left", "id", 1), "x__y__id": ("right", "age", 2)}, "l.`id` = r.`age`"),
        ("s.id + 1 > age", {"s__id": ("right", "id", 1)}, "r.`id` + 1 > r.`age`"),
        ("s.id > 1", {"s__id": ("left", "s", 0)}, "l.`s`.id > 1"),
        ("`ID` = `id`", {"ID": ("left", "id", 0), "id": ("right", "id", 0)}, "l.`id` = r.`id`"),
        ("user = 'x'", {"user": ("right", "age", 0)}, "r.`age` = 'x'"),
        ("exists(array(age), id -> id > 1)", {"age": ("right", "age", 0), "id": ("left", "id", 0)},
         "exists(array(r.`age`), id -> id > 1)"),
    ],
)  # fmt: skip
def test_names_mean_what_they_are_bound_to(text, bound, sql):
    assert scope(**bound).read(text).sql == sql


def test_both_sides_of_a_key_are_bound_alike():
    found = read_conjunct(scope(id=("left", "o.id", 0), c__age=("right", "id", 1)), "c.age IN (id)")
    assert (found.equality.column, found.equality.other.sql, found.equality.plain) == ("id", "l.`o.id`", False)


def test_an_unbound_name_is_searched_among_the_columns():
    assert scope(o__id=("left", "o.id", 1)).read("o.id = c.age").sql == "l.`o.id` = r.`age`"
    with pytest.raises(SchemaError, match="There is no column 'ages'"):
        scope().read("ages > 1")


def test_a_bound_condition_is_planned_as_its_text_is():
    table = LookupTable.from_function("c", "id BIGINT, age BIGINT", key=["id"], function=lambda i: [])
    left = [LeftColumn("k", "bigint")]
    text, where = "k = c.id AND c.age > 18 AND (k < age OR age IS NULL)", "age <> 20"
    names = VisibleColumns(left, "c", table.schema)
    bound = {"on": read_condition(names, text), "where": read_condition(names, where)}
    as_text = plan_join(left, table, on=text, where=where, how="left", analyst=None)
    assert plan_join(left, table, **bound, how="left", analyst=None) == as_text
    with pytest.raises(PlanError, match="'on' is empty"):
        plan_join(left, table, on=BoundCondition(()), analyst=None)


def test_a_condition_nested_too_deeply_is_refused_when_bound():
    with pytest.raises(PlanError, match="nested too deeply"):
        read_nested(scope(), "(" * 4000 + "id" + ")" * 4000 + " > 1")


@pytest.mark.parametrize("text", ["id = c.id AND s.id = age old", "age > 1 AS old", "id = c.id nd"])
def test_a_condition_that_ends_in_an_alias_is_refused(text):
    with pytest.raises(PlanError, match=r"ends in a name, '(old|nd)'"):
        read_condition(scope(id=("left", "id", 0)), text)


@pytest.mark.parametrize("argument", ["c.age", "'x'", "NULL"])
def test_a_wrong_number_of_arguments_is_left_to_spark_or_an_error_of_this_project(argument):
    """The SQL parser counts the arguments of some functions, and some of its functions then break."""
    functions = sorted({*Spark.parser_class.FUNCTIONS, *Spark.parser_class.FUNCTION_PARSERS})
    assert len(functions) > 600
    for function, count in itertools.product(functions, range(5)):
        with suppress(PlanError, SchemaError):
            call = f"{function}({', '.join([argument] * count)})"
            assert function.lower() in scope().read(f"{call} = c.id").sql.lower()
            assert parse_ddl(f"id INT, v STRING AS {call}") is not None
