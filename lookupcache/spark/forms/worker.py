"""The form `worker`: every left row goes through a Python worker, which looks up and joins.

left ─► filter · key expressions (Spark) ─► mapInArrow (runner) ─► what only Spark can judge ─► select
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from lookupcache.schema import quote
from lookupcache.spark.forms.filters import join_lists, keep_rows, select_output
from lookupcache.spark.forms.join_context import JoinContext
from lookupcache.worker.runner import MATCHES, Layout
from lookupcache.worker.task import Task

ROW = "row"
"""Stands for the left row where the worker would give no column: a batch without columns has no rows in Spark."""


def by_worker(context: JoinContext) -> DataFrame:
    """Return the join, made by the workers."""
    result = _result_columns(context)
    looked_up = _looked_up(context, result)
    if result is not None:
        return looked_up
    return select_output(context, _apply_residual(context, context.channel.observed(looked_up)))


def _is_bare(context: JoinContext) -> bool:
    """Return whether the worker would give rows without a column."""
    right = () if context.plan.how in ("semi", "anti") and not context.plan.spark_residual else context.plan.columns
    return not (context.plan.left_columns or right or context.marks)


def _looked_up(context: JoinContext, result: list[str] | None) -> DataFrame:
    filters, keys = context.keys()
    carried = context.carried
    rows = {ROW: "TRUE"} if _is_bare(context) else {}
    added = {f"k{number}": sql for number, sql in enumerate(sql for sql in keys if context.sql(sql) not in carried)}
    added = rows | added
    left = context.rows(filters, added)
    added_names = {sql: name for name, sql in added.items()}
    names = [added_names.get(sql) or context.sql(sql) for sql in keys]
    if context.plan.config.shuffle:
        left = left.repartition(*names)
    layout = Layout(
        left=(*context.plan.left_columns, *rows),
        keys=tuple([*carried, *added].index(name) for name in names),
        output=None if result is None else tuple(_columns(context).index(name) for name in result),
    )
    task = Task(context.plan, context.connector, layout, context.channel, context.letters)
    return left.mapInArrow(task, _schema(context, result))


def _result_columns(context: JoinContext) -> list[str] | None:
    """Return the columns of the result, where it is nothing but columns that the worker has.

    It then gives them in their order under their names, which spares Spark a copy of every row.
    """
    plan = context.plan
    if plan.spark_residual or plan.filter_after or context.channel.fields():
        return None
    both = {"l": plan.left_columns, "r": plan.columns}
    names = {f"{s}.{quote(name)}": context.column(s, name) for s, columns in both.items() for name in columns}
    if any(output.sql not in names for output in plan.output):
        return None
    return [*(names[output.sql] for output in plan.output), *context.marks]


def _columns(context: JoinContext) -> list[str]:
    """Return the columns that the worker has where it gives rows as they are in the result."""
    right = [] if context.plan.how in ("semi", "anti") else context.right_names
    return [*context.carried, *right, *context.marks]


def _schema(context: JoinContext, result: list[str] | None) -> T.StructType:
    """Return the types of what the worker gives."""
    if result is not None:
        names = [*(output.name for output in context.plan.output), *context.marks.values()]
        columns = zip(names, result, strict=True)
        return T.StructType([T.StructField(name, context.types[column]) for name, column in columns])
    right = context.fields(context.right_names)
    if context.plan.spark_residual and context.plan.how != "inner":
        right = [T.StructField(MATCHES, T.ArrayType(T.StructType(right)))]
    elif context.plan.how in ("semi", "anti"):
        right = []
    marks = context.fields(list(context.marks))
    rows = [T.StructField(ROW, T.BooleanType())] if _is_bare(context) else []
    return T.StructType([*context.fields(context.carried), *rows, *right, *marks, *context.channel.fields()])


def _apply_residual(context: JoinContext, rows: DataFrame) -> DataFrame:
    """Apply what only Spark can evaluate: to joined rows, or to each left row's list of matches."""
    residual = context.plan.spark_residual
    if not residual:
        return rows
    return keep_rows(context, rows, residual) if context.plan.how == "inner" else join_lists(context, rows, residual)
