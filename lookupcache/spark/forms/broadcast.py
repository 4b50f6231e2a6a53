"""The form `broadcast`: a worker gives the full table to Spark, after constants and calc, and Spark joins.

left ─► count ─► mapInArrow (the table, cached as `lookup.cache` = ALL says) ─► Spark's join ◄─ left ─► select

Left rows are counted where the left side may be read once more at little cost; the worker gets only their number.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lookupcache.plan import LookupPlan
from lookupcache.spark.forms.filters import calls_functions, join_lists, select_output
from lookupcache.spark.forms.join_context import AGE, JoinContext, conjunction, map_in_workers
from lookupcache.worker.runner import MATCHES
from lookupcache.worker.task import ScanTask

_HOW = {"inner": "inner", "left": "left", "semi": "left_semi", "anti": "left_anti"}


def by_broadcast(context: JoinContext) -> DataFrame:
    """Return the join, made by Spark with the full table."""
    left, keys = context.keyed_rows()
    table = _table(context, _counts(context, left, keys))
    if context.plan.latest is not None or (AGE in context.marks and _hides_age(context.plan)) or _tests_pairs(context):
        return select_output(context, _join_with_lists(context, left, keys, table))
    on_pairs = (F.expr(conjunction([context.sql(sql)])) for sql in pair_conditions(context.plan))
    conditions = [*_equal_keys(keys), *on_pairs]
    return select_output(context, left.join(F.broadcast(table), conditions, _HOW[context.plan.how]))


def _hides_age(plan: LookupPlan) -> bool:
    """Return whether Spark's join would give a left row whose key was found, but no row of the table with its age."""
    return plan.how in ("semi", "anti") or (plan.how == "left" and bool(pair_conditions(plan)))


def _tests_pairs(context: JoinContext) -> bool:
    """Return whether a condition calls a Python function over both sides, which Spark's join refuses."""
    return context.plan.how != "inner" and any(calls_functions(context, sql) for sql in pair_conditions(context.plan))


def pair_conditions(plan: LookupPlan) -> tuple[str, ...]:
    """Return the conditions on pairs of rows."""
    return (*plan.residual_sql, *plan.spark_residual)


def _counts(context: JoinContext, left: DataFrame, keys: list[str]) -> DataFrame:
    """Return the row that the worker reads: the counts of left rows and of those with a key, if they are counted."""
    if not context.counts:
        return context.spark.range(0, 1, 1, 1)
    full = " AND ".join(f"{key} IS NOT NULL" for key in keys)
    return left.agg(F.count(F.lit(1)), F.count(F.expr(f"CASE WHEN {full} THEN 1 END")))


def _table(context: JoinContext, counts: DataFrame) -> DataFrame:
    """Return the table: key columns, as `_equal_keys` names them, the columns that the join reads, and their age."""
    read = {*context.plan.key_columns, *context.plan.columns}
    full = replace(context.plan, columns=tuple(name for name in context.plan.schema.names if name in read))
    names = [context.column("r", name) for name in full.columns]
    age = [AGE] if AGE in context.marks else []
    channel = context.channel
    task = ScanTask(full, context.connector, channel, counted=context.counts)
    rows = channel.observe_reports(map_in_workers(counts, task, context.fields([*names, *age]), channel.fields()))
    if context.plan.never:
        rows = rows.where("false")
    keys = (
        F.col(context.column("r", name)).alias(f"a{number}") for number, name in enumerate(context.plan.key_columns)
    )
    return rows.select(*keys, *context.right_names, *age)


def _equal_keys(keys: list[str]) -> list[Column]:
    return [F.col(key) == F.col(f"a{number}") for number, key in enumerate(keys)]


def _join_with_lists(context: JoinContext, left: DataFrame, keys: list[str], table: DataFrame) -> DataFrame:
    """Join with one row per key, its matches in a list: so a key has its age, and a left row all versions of it."""
    matches = F.struct(*context.right_names) if context.right_names else F.struct(F.lit(True))
    by_key = table.groupBy(*(f"a{number}" for number in range(len(keys)))).agg(
        F.collect_list(matches).alias(MATCHES), *([F.max(AGE).alias(AGE)] if AGE in context.marks else [])
    )
    rows = left.join(F.broadcast(by_key), _equal_keys(keys), "left")
    return join_lists(context, rows, pair_conditions(context.plan) or ("true",))
