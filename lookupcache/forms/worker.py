"""The form `worker`: every left row goes through a Python worker, which looks up and joins.

left ─► filter · key expressions (Spark) ─► mapInArrow (runner) ─► what only Spark can judge ─► select
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from lookupcache.forms.judging import kept, listed, selected
from lookupcache.forms.sides import Sides
from lookupcache.schema import quote
from lookupcache.worker.runner import MATCHES, Layout
from lookupcache.worker.task import Task

ROW = "row"
"""Stands for the left row where the worker would give no column: a batch without columns has no rows in Spark."""


def by_worker(sides: Sides) -> DataFrame:
    """Return the join, made by the workers."""
    ready = _ready(sides)
    looked_up = _looked_up(sides, ready)
    if ready is not None:
        return looked_up
    return selected(sides, _judged(sides, sides.channel.observed(looked_up)))


def _is_bare(sides: Sides) -> bool:
    """Return whether the worker would give rows without a column."""
    right = () if sides.plan.how in ("semi", "anti") and not sides.plan.spark_residual else sides.plan.columns
    return not (sides.plan.left_columns or right or sides.marks)


def _looked_up(sides: Sides, ready: list[str] | None) -> DataFrame:
    filters, keys = sides.keys()
    carried = sides.carried
    rows = {ROW: "TRUE"} if _is_bare(sides) else {}
    added = {f"k{number}": sql for number, sql in enumerate(sql for sql in keys if sides.sql(sql) not in carried)}
    added = rows | added
    given = sides.rows(filters, added)
    places = {sql: name for name, sql in added.items()}
    names = [places.get(sql) or sides.sql(sql) for sql in keys]
    if sides.plan.config.shuffle:
        given = given.repartition(*names)
    layout = Layout(
        left=(*sides.plan.left_columns, *rows),
        keys=tuple([*carried, *added].index(name) for name in names),
        output=None if ready is None else tuple(_columns(sides).index(name) for name in ready),
    )
    task = Task(sides.plan, sides.connector, layout, sides.channel, sides.letters)
    return given.mapInArrow(task, _schema(sides, ready))


def _ready(sides: Sides) -> list[str] | None:
    """Return the columns of the result, where it is nothing but columns that the worker has.

    It then gives them in their order under their names, which spares Spark a copy of every row.
    """
    plan = sides.plan
    if plan.spark_residual or plan.filter_after or sides.channel.fields():
        return None
    both = {"l": plan.left_columns, "r": plan.columns}
    names = {f"{s}.{quote(name)}": sides.column(s, name) for s, columns in both.items() for name in columns}
    if any(output.sql not in names for output in plan.output):
        return None
    return [*(names[output.sql] for output in plan.output), *sides.marks]


def _columns(sides: Sides) -> list[str]:
    """Return the columns that the worker has where it gives rows as they are in the result."""
    right = [] if sides.plan.how in ("semi", "anti") else sides.right_names
    return [*sides.carried, *right, *sides.marks]


def _schema(sides: Sides, ready: list[str] | None) -> T.StructType:
    """Return the types of what the worker gives."""
    if ready is not None:
        names = [*(output.name for output in sides.plan.output), *sides.marks.values()]
        columns = zip(names, ready, strict=True)
        return T.StructType([T.StructField(name, sides.types[column]) for name, column in columns])
    right = sides.fields(sides.right_names)
    if sides.plan.spark_residual and sides.plan.how != "inner":
        right = [T.StructField(MATCHES, T.ArrayType(T.StructType(right)))]
    elif sides.plan.how in ("semi", "anti"):
        right = []
    marks = sides.fields(list(sides.marks))
    rows = [T.StructField(ROW, T.BooleanType())] if _is_bare(sides) else []
    return T.StructType([*sides.fields(sides.carried), *rows, *right, *marks, *sides.channel.fields()])


def _judged(sides: Sides, rows: DataFrame) -> DataFrame:
    """Apply what only Spark can evaluate: to joined rows, or to each left row's list of matches."""
    residual = sides.plan.spark_residual
    if not residual:
        return rows
    return kept(sides, rows, residual) if sides.plan.how == "inner" else listed(sides, rows, residual)
