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
