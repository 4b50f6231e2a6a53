"""The form `worker`: every left row is sent through a Python worker, which looks up and joins.

left ─► filter · key expressions (Spark) ─► mapInArrow (runner) ─► Spark's residual ─► select
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from lookupcache.report import chain_channels
from lookupcache.spark.forms.chain import ROW, Chain, is_bare, result_columns
from lookupcache.spark.forms.filters import join_lists, keep_rows, select_output
from lookupcache.spark.forms.join_context import JoinContext, map_in_workers
from lookupcache.worker.runner import MATCHES


def by_worker(context: JoinContext, chain: Chain) -> DataFrame:
    """Return the join, made by the workers; ``chain`` are the joins of the same stage, this one the last."""
    channel = chain_channels([one.channel for one in chain.contexts])
    result = None if channel.fields() else result_columns(context)
    looked_up = map_in_workers(chain.rows, chain.task(result, channel), _fields(context, result), channel.fields())
    if result is not None:
        return looked_up
    return select_output(context, _apply_residual(context, channel.observe_reports(looked_up)))


def result_schema(context: JoinContext) -> T.StructType | None:
    """Return the columns of the join's result, or None where Spark computes any of them."""
    result = None if context.channel.fields() else result_columns(context)
    return None if result is None else _result_schema(context, result)


def _result_schema(context: JoinContext, result: list[str]) -> T.StructType:
    names = [*(output.name for output in context.plan.output), *context.marks.values()]
    return T.StructType([context.output_field(name, column) for name, column in zip(names, result, strict=True)])


def _fields(context: JoinContext, result: list[str] | None) -> list[T.StructField]:
    """Return the columns that the worker gives, without those of reports."""
    if result is not None:
        return _result_schema(context, result).fields
    right = context.fields(context.right_names)
    if context.plan.lists_matches:
        right = [T.StructField(MATCHES, T.ArrayType(T.StructType(right)))]
    elif context.plan.how in ("semi", "anti"):
        right = []
    marks = context.fields(list(context.marks))
    rows = [T.StructField(ROW, T.BooleanType())] if is_bare(context) else []
    return [*context.fields(context.carried_columns), *rows, *right, *marks]


def _apply_residual(context: JoinContext, rows: DataFrame) -> DataFrame:
    """Apply Spark's residual: to joined rows, or to each left row's list of matches."""
    residual = context.plan.spark_residual
    if not residual:
        return rows
    return join_lists(context, rows, residual) if context.plan.lists_matches else keep_rows(context, rows, residual)
