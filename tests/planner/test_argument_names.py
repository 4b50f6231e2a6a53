"""Names that Spark takes from arguments: which of its functions do, and how a plan keeps the user's."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from scale import IS_NIGHT

from lookupcache.planner.argument_names import NAMING_FUNCTIONS
from lookupcache.planner.naming import LeftColumn, VisibleColumns

SCOPE = VisibleColumns(
    [LeftColumn("k", "int"), LeftColumn("addr", "struct<city:string>")], "c", pa.schema([("v", pa.int32())])
)


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("struct(c.V, k)", "struct(named_struct('V', r.`v`).`V`, named_struct('k', l.`k`).`k`)"),
        ("`struct`(v, k = 1)", "`struct`(named_struct('v', r.`v`).`v`, l.`k` = 1)"),
        ("to_json(STRUCT((v)))", "to_json(STRUCT((named_struct('v', r.`v`).`v`)))"),
        ("(k, 1) IN ((v, 1))", "(named_struct('k', l.`k`).`k`, 1) IN ((named_struct('v', r.`v`).`v`, 1))"),
        ("struct(addr.city, k + 1, v AS w)", "struct(l.`addr`.city, l.`k` + 1, r.`v` AS w)"),
        ("k IN (v, 2) AND (k) = abs(v)", "l.`k` IN (r.`v`, 2) AND (l.`k`) = abs(r.`v`)"),
        ("transform(array(k), x -> struct(x, v))", None),
    ],
)
def test_a_plan_has_the_name_that_spark_takes(text: str, sql: str | None) -> None:
    found = SCOPE.read(text).sql
    assert found == (sql or "transform(array(l.`k`), x -> struct(x, named_struct('v', r.`v`).`v`))")
    assert SCOPE.with_names({("l", "k"): ("left", "k", 1), ("r", "v"): ("right", "v", 1)}).read(found).sql == found


TYPES = (
    "1",
    "'a'",
    "array(1)",
    "array(named_struct('z', 1))",
    "named_struct('z', 1)",
    "map('a', 1)",
    "TIMESTAMP'2024-01-01'",
)


@pytest.mark.spark
@pytest.mark.extended
def test_no_other_spark_function_names_fields_by_its_arguments(spark: Any) -> None:
    values = ", ".join(f"{value} AS arg_{number}" for number, value in enumerate(TYPES))
    row = spark.sql(f"SELECT {values}")
    functions = {row.function for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect() if row.function.isidentifier()}
    names = {*sorted(functions)[:: 1 if IS_NIGHT else 60], *NAMING_FUNCTIONS}
    arguments = [", ".join([f"arg_{number}"] * count) for number in range(len(TYPES)) for count in (1, 2)]
    assert {
        name for name in names if any("arg_" in schema_of(row, name, some) for some in arguments)
    } == NAMING_FUNCTIONS


def schema_of(row: Any, function: str, arguments: str) -> str:
    """Return the type of a call, empty where the function does not take these arguments."""
    try:
        return str(row.selectExpr(f"{function}({arguments}) AS called").schema.simpleString())
    except (PySparkException, Py4JError):
        return ""
