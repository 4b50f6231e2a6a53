"""Joins as Spark's users write them, with names and Columns, each beside Spark's own join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import functions as F  # noqa: N812

from lookupcache import LookupTable, lookup_join

LEFT = "id BIGINT, note STRING, nested STRUCT<a: INT>"
ROWS = [(1, "x", (1,)), (2, "ann", None), (2, "zz", (3,)), (9, "y", (4,)), (None, None, None)]

_c = F.col
_KEY = "o.id = p.id"


def _selected(left: Any) -> list[Any]:
    """Return Columns with and without a name of their own."""
    return [
        left["id"], left.nested.a, _c("o.note"), _c("name"), F.upper("p.name").alias("a`b"), F.length("name"),
        _c("o.id").cast("string").alias("text"), _c("p.salary") * 2, F.lit("o'x\\"), F.struct("note", "p.name"),
        F.struct(left.nested.a.alias("n"), _c("p.name").alias("a b")),
        F.when(_c("p.salary") > 1000, _c("note")).otherwise("-"), F.expr("upper(note) AS loud -- or null"),
        -_c("p.salary"),
    ]  # fmt: skip


def _named_conditions() -> list[Any]:
    """Return conditions from SQL text with a name, which Spark drops within a Column and as a whole."""
    both = F.when(F.expr("o.note <> p.name AS `a b`"), True).otherwise(F.expr("p.name IS NULL b"))
    return [F.expr("o.id + 0 AS k") == _c("p.id"), both, F.expr("p.salary IS NOT NULL OR o.id > 0 AS known")]


def _named_filter() -> Any:
    return ~(F.expr("coalesce(length(p.name), 0) AS n -- letters") > F.expr("5 most"))


def _named_texts() -> list[Any]:
    """Return Columns over SQL text with a name: only `struct` takes that of its argument, and a select list its own."""
    return [
        F.length(F.expr("p.name AS n")), F.expr("p.salary AS pay").alias("money"), F.expr("p.salary + o.id `a,b`"),
        F.struct(F.expr("o.note AS q"), F.expr("p.name n")), F.expr("p.salary AS s").cast("string").alias("text"),
        F.exists(F.array(F.expr("p.salary s"), F.lit(1)), lambda x: x > F.expr("o.id AS i")).alias("found"),
    ]  # fmt: skip


WAYS: dict[str, tuple[Callable[[Any], dict[str, Any]], Callable[[Any, Any], Any]]] = {
    "a name": (lambda left: {"on": "id"}, lambda left, right: left.join(right, "id", "left")),
    "a name in another case, in backticks": (
        lambda left: {"on": " `ID` "}, lambda left, right: left.join(right, "id", "left").withColumnRenamed("id", "id")
    ),
    "the bare name of a key": (
        lambda left: {"on": ["id"], "where": _c("ID") < 9, "select": ["Id", "id + 1 AS next", "p.name"]},
        lambda left, right: left.join(right, ["id"], "left").where("id < 9").selectExpr("Id", "id + 1 AS next", "name"),
    ),
    "several Columns": (
        lambda left: {"on": [left.id == _c("p.id"), _c("o.note") != _c("p.name")], "select": ["note", "name"]},
        lambda left, right: left.join(right, [left.id == _c("p.id"), _c("o.note") != _c("p.name")], "left").select(
            "note", "name"
        ),
    ),
    "where is a Column": (
        lambda left: {"on": ["id"], "where": left["note"] < _c("p.name")},
        lambda left, right: left.join(right, ["id"], "left").where("o.note < p.name"),
    ),
    "selected Columns": (
        lambda left: {"on": F.expr(_KEY), "select": _selected(left)},
        lambda left, right: left.join(right, F.expr(_KEY), "left").select(*_selected(left)),
    ),
    "texts with names, within Columns": (
        lambda left: {"on": _named_conditions(), "where": _named_filter(), "select": _named_texts()},
        lambda left, right: left.join(right, _named_conditions(), "left").where(_named_filter()).select(
            *_named_texts()
        ),
    ),
    "the star of a frame": (
        lambda left: {"on": F.expr(_KEY), "select": [left["*"], "p.name"]},
        lambda left, right: left.join(right, F.expr(_KEY), "left").select(left["*"], "p.name"),
    ),
    "the star of an alias": (
        lambda left: {"on": F.expr(_KEY), "select": [_c("note").alias("first"), _c("p.*")]},
        lambda left, right: left.join(right, F.expr(_KEY), "left").select(_c("note").alias("first"), _c("p.*")),
    ),
    "all columns": (
        lambda left: {"on": "id", "select": [_c("*")]}, lambda left, right: left.join(right, "id", "left").select("*")
    ),
}  # fmt: skip


def typed_and_own(spark: Any, people: LookupTable, right: Any, name: str) -> tuple[Any, Any]:
    """Return a join that is written in one of these ways, and Spark's own."""
    left = spark.createDataFrame(ROWS, LEFT).alias("o")
    arguments, own = WAYS[name]
    return lookup_join(left, people, how="left", **arguments(left)), own(left, right.alias("p"))
