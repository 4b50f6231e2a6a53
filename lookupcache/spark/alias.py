"""The left side's alias, by which columns of a join's result may be qualified, as after Spark's own join."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from lookupcache.plan import LookupPlan
from lookupcache.planner.clauses import tokens
from lookupcache.report import is_classic
from lookupcache.spark.forms.left_side import path_down
from lookupcache.spark.pending import PendingResult

_KEEPS_NAMES = frozenset({
    "Filter", "Project", "Sort", "GlobalLimit", "LocalLimit", "Limit", "Offset", "Tail", "Sample", "Distinct",
    "Deduplicate", "Repartition", "RepartitionByExpression", "RebalancePartitions", "ResolvedHint", "Hint",
    "EventTimeWatermark", "WithWatermark", "CollectMetrics", "WithColumns", "WithColumnsRenamed", "Drop", "Window",
})  # fmt: skip
"""Nodes of a plan, classic or of Spark Connect, above which an alias still qualifies columns."""


def alias_of_result(left: DataFrame, plan: LookupPlan) -> str | None:
    """Return the alias that a join's result keeps; None if the left side has none, or is a join of several.

    None too if a column has that name: the alias would hide its fields, also those that are named as columns of the
    table.
    """
    alias = _alias_of(left)
    taken = {output.name.lower() for output in plan.output}
    return None if alias is None or alias.lower() in taken else alias


def _alias_of(left: DataFrame) -> str | None:
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
