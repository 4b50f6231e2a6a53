"""The left side's alias, by which columns of a join's result may be qualified, as after Spark's own join."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lookupcache.plan import LookupPlan
from lookupcache.planner.clauses import tokens
from lookupcache.planner.naming import column_name
from lookupcache.report import is_classic
from lookupcache.schema import quote
from lookupcache.spark.forms.left_side import path_down
from lookupcache.spark.planned import PendingResult

_KEEPS_NAMES = frozenset({
    "Filter", "Project", "Sort", "GlobalLimit", "LocalLimit", "Limit", "Offset", "Tail", "Sample", "Distinct",
    "Deduplicate", "Repartition", "RepartitionByExpression", "RebalancePartitions", "ResolvedHint", "Hint",
    "EventTimeWatermark", "WithWatermark", "CollectMetrics", "WithColumns", "WithColumnsRenamed", "Drop", "Window",
})  # fmt: skip
"""Nodes of a plan, classic or of Spark Connect, above which an alias still qualifies columns."""


def under_alias(result: DataFrame, alias: str, plan: LookupPlan, own: Sequence[str] | None) -> DataFrame:
    """Return a join's result under the alias of its left side, which qualifies columns of the left side only.

    ``own`` are those that it qualifies on the left side, which may also have computed ones, and those of earlier
    tables; None if Spark does not report them, for all.
    """
    qualified = {name.lower() for name in ([output.name for output in plan.output] if own is None else own)}
    lefts = {
        output.name: output.name.lower() in qualified and output.sql.lower() == column_name("left", output.name).lower()
        for output in plan.output
    }
    columns = {name: F.col(quote(name)) for name in [*lefts, *plan.config.marks.values()]}
    # An alias takes the qualifier from a column.
    return result.alias(alias).select(*(c if lefts.get(name) else c.alias(name) for name, c in columns.items()))


def alias_of(left: DataFrame) -> str | None:
    """Return the alias, or the name of the table or view, by which the columns of a DataFrame may be qualified."""
    if isinstance(left, PendingResult):
        return left._lookupcache_join.alias
    if is_classic(left.sparkSession):
        *_, (kind, node) = path_down(left._jdf.queryExecution().analyzed(), _KEEPS_NAMES)
        return str(node.identifier().name()) if kind == "SubqueryAlias" else None
    *_, last = _connect_path(left._plan)
    if type(last).__name__ == "Read":
        return [token.name for token in tokens(last.table_name)][-1]
    return str(last._alias) if type(last).__name__ == "SubqueryAlias" else None


def _connect_path(plan: Any) -> Iterator[Any]:
    yield plan
    while type(plan).__name__ in _KEEPS_NAMES:
        plan = plan._child
        yield plan
