"""The form `broadcast`: a worker gives the whole table to Spark, after constants and calc, and Spark joins.

left ─► count ─► mapInArrow (the table, loaded and held as `lookup.cache` = ALL says) ─► Spark's join ◄─ left ─► select

Left rows are counted where the left side may be read once more at little cost; their number is all that the worker
hears of them.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from lookupcache.forms.judging import listed, selected
from lookupcache.forms.sides import AGE, Sides, conjunction
from lookupcache.plan import LookupPlan
from lookupcache.worker.runner import MATCHES
from lookupcache.worker.task import ScanTask

_HOW = {"inner": "inner", "left": "left", "semi": "left_semi", "anti": "left_anti"}


def by_broadcast(sides: Sides) -> DataFrame:
    """Return the join, made by Spark with the whole table."""
    given, keys = sides.given()
    table = _table(sides, _told(sides, given, keys))
    if AGE in sides.marks and (residual_of(sides.plan) or sides.plan.how in ("semi", "anti")):
        return selected(sides, _by_lists(sides, given, keys, table))
    conditions = [*_same(keys), *(F.expr(conjunction([sides.sql(sql)])) for sql in residual_of(sides.plan))]
    return selected(sides, given.join(F.broadcast(table), conditions, _HOW[sides.plan.how]))


def residual_of(plan: LookupPlan) -> tuple[str, ...]:
    """Return all that is to be judged on pairs of rows."""
    return (*plan.residual_sql, *plan.spark_residual)


def _told(sides: Sides, given: DataFrame, keys: list[str]) -> DataFrame:
    """Return what the worker hears of the left side: how many rows it has, and how many with a key; or nothing."""
    if not sides.counts:
        return sides.spark.range(0, 1, 1, 1)
    whole = " AND ".join(f"{key} IS NOT NULL" for key in keys)
    return given.agg(F.count(F.lit(1)), F.count(F.expr(f"CASE WHEN {whole} THEN 1 END")))


def _table(sides: Sides, told: DataFrame) -> DataFrame:
    """Return the table: its key columns, as `_same` names them, the columns that the join reads, and their age."""
    wanted = {*sides.plan.key_columns, *sides.plan.columns}
    whole = replace(sides.plan, columns=tuple(name for name in sides.plan.schema.names if name in wanted))
    names = [sides.column("r", name) for name in whole.columns]
    age = [AGE] if AGE in sides.marks else []
    schema = T.StructType([*sides.fields([*names, *age]), *sides.channel.fields()])
    task = ScanTask(whole, sides.connector, sides.channel, counted=sides.counts)
    rows = sides.channel.observed(told.mapInArrow(task, schema))
    if sides.plan.never:
        rows = rows.where("false")
    keys = (F.col(sides.column("r", name)).alias(f"a{number}") for number, name in enumerate(sides.plan.key_columns))
    return rows.select(*keys, *sides.right_names, *age)


def _same(keys: list[str]) -> list[Column]:
    return [F.col(key) == F.col(f"a{number}") for number, key in enumerate(keys)]


def _by_lists(sides: Sides, given: DataFrame, keys: list[str], table: DataFrame) -> DataFrame:
    """Join with one row per key, its matches in a list: the age of an answer is told whatever Spark makes of it."""
    matches = F.struct(*sides.right_names) if sides.right_names else F.struct(F.lit(True))
    by_key = table.groupBy(*(f"a{number}" for number in range(len(keys)))).agg(
        F.collect_list(matches).alias(MATCHES), F.max(AGE).alias(AGE)
    )
    rows = given.join(F.broadcast(by_key), _same(keys), "left")
    return listed(sides, rows, residual_of(sides.plan) or ("true",))
