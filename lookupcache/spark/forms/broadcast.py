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

from lookupcache.plan import LookupPlan
from lookupcache.spark.forms.filters import listed, selected
from lookupcache.spark.forms.join_context import AGE, JoinContext, conjunction
from lookupcache.worker.runner import MATCHES
from lookupcache.worker.task import ScanTask

_HOW = {"inner": "inner", "left": "left", "semi": "left_semi", "anti": "left_anti"}


def by_broadcast(context: JoinContext) -> DataFrame:
    """Return the join, made by Spark with the whole table."""
    given, keys = context.given()
    table = _table(context, _told(context, given, keys))
    if AGE in context.marks and (residual_of(context.plan) or context.plan.how in ("semi", "anti")):
        return selected(context, _by_lists(context, given, keys, table))
    conditions = [*_same(keys), *(F.expr(conjunction([context.sql(sql)])) for sql in residual_of(context.plan))]
    return selected(context, given.join(F.broadcast(table), conditions, _HOW[context.plan.how]))


def residual_of(plan: LookupPlan) -> tuple[str, ...]:
    """Return all that is to be judged on pairs of rows."""
    return (*plan.residual_sql, *plan.spark_residual)


def _told(context: JoinContext, given: DataFrame, keys: list[str]) -> DataFrame:
    """Return what the worker hears of the left side: how many rows it has, and how many with a key; or nothing."""
    if not context.counts:
        return context.spark.range(0, 1, 1, 1)
    whole = " AND ".join(f"{key} IS NOT NULL" for key in keys)
    return given.agg(F.count(F.lit(1)), F.count(F.expr(f"CASE WHEN {whole} THEN 1 END")))


def _table(context: JoinContext, told: DataFrame) -> DataFrame:
    """Return the table: its key columns, as `_same` names them, the columns that the join reads, and their age."""
    wanted = {*context.plan.key_columns, *context.plan.columns}
    whole = replace(context.plan, columns=tuple(name for name in context.plan.schema.names if name in wanted))
    names = [context.column("r", name) for name in whole.columns]
    age = [AGE] if AGE in context.marks else []
    schema = T.StructType([*context.fields([*names, *age]), *context.channel.fields()])
    task = ScanTask(whole, context.connector, context.channel, counted=context.counts)
    rows = context.channel.observed(told.mapInArrow(task, schema))
    if context.plan.never:
        rows = rows.where("false")
    keys = (
        F.col(context.column("r", name)).alias(f"a{number}") for number, name in enumerate(context.plan.key_columns)
    )
    return rows.select(*keys, *context.right_names, *age)


def _same(keys: list[str]) -> list[Column]:
    return [F.col(key) == F.col(f"a{number}") for number, key in enumerate(keys)]


def _by_lists(context: JoinContext, given: DataFrame, keys: list[str], table: DataFrame) -> DataFrame:
    """Join with one row per key, its matches in a list: the age of an answer is told whatever Spark makes of it."""
    matches = F.struct(*context.right_names) if context.right_names else F.struct(F.lit(True))
    by_key = table.groupBy(*(f"a{number}" for number in range(len(keys)))).agg(
        F.collect_list(matches).alias(MATCHES), F.max(AGE).alias(AGE)
    )
    rows = given.join(F.broadcast(by_key), _same(keys), "left")
    return listed(context, rows, residual_of(context.plan) or ("true",))
