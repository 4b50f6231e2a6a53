"""Which lookup join a DataFrame is the result of, so that another join on it can run in the same Python stage."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from lookupcache.report import is_classic
from lookupcache.spark.forms.left_side import current_execution, path_down

if TYPE_CHECKING:
    from lookupcache.spark.join import LookupJoin

_JOIN = "_lookupcache_join"
"""The attribute of a result that holds its join: a DataFrame then lives as long as its join, and no longer."""

_SELECTIONS = ("Project", "SubqueryAlias", "View")
"""What may stand in a plan between a join and what was selected from its result."""

_recent: deque[LookupJoin] = deque(maxlen=16)
"""The last joins: a DataFrame that was selected from a join's result does not refer to the join.

A join keeps its left DataFrame, so the driver keeps the plans of at most 16 joins, and local data in them, but no rows
of results.
"""


@dataclass(frozen=True)
class Origin:
    """A join, and the position in its result of each column of the DataFrame, by the column's name."""

    join: LookupJoin
    source: Mapping[str, int]


def remember(result: DataFrame, join: LookupJoin) -> None:
    """Record that a DataFrame is the result of a join."""
    vars(result)[_JOIN] = join
    for stopped in [one for one in _recent if _is_stopped(one)]:
        _recent.remove(stopped)
    _recent.append(join)


def _is_stopped(join: LookupJoin) -> bool:
    """Return whether the join's session has ended: its DataFrames cannot be used any more."""
    return is_classic(join.spark) and join.spark.sparkContext._jsc is None


def origin_of(df: DataFrame) -> Origin | None:
    """Return the join that a DataFrame is the result of, its columns maybe renamed, dropped or in another order.

    None too if several of its columns have the same name. Only classic Spark shows what was selected from a result.
    """
    if len(set(df.columns)) < len(df.columns):
        return None
    join = vars(df).get(_JOIN)
    if join is not None:
        return Origin(join, {name: number for number, name in enumerate(df.columns)})
    found = _selected_from(df) if _recent and is_classic(df.sparkSession) else None
    # A global view may bring the result of another session, whose settings and views are its own.
    return found if found is not None and found.join.spark._jsparkSession == df.sparkSession._jsparkSession else None


def is_persisted(df: DataFrame) -> bool:
    """Return whether the rows of a join's result, maybe with columns selected from it, are persisted."""
    if df.isStreaming:
        return False
    if not is_classic(df.sparkSession):
        level = df.storageLevel
        return level.useMemory or level.useDisk
    *_, (kind, _) = path_down(current_execution(df).withCachedData(), _SELECTIONS)
    return kind == "InMemoryRelation"


def _selected_from(df: DataFrame) -> Origin | None:
    """Look through the projections of Spark's analyzed plan, down to the Python operator of a join."""
    plan = df._jdf.queryExecution().analyzed()
    *selections, (kind, node) = path_down(plan, _SELECTIONS)
    if kind != "MapInArrow":
        return None
    attributes = _attributes(node.output())
    join = next((join for join in reversed(list(_recent)) if join.attributes == attributes), None)
    if join is None:
        return None
    wanted = _attributes(plan.output())
    for projection in (selection for kind, selection in selections if kind == "Project"):
        below = dict(map(_renamed, _elements(projection.projectList())))
        wanted = [below.get(attribute, "") for attribute in wanted]
    if not set(wanted).issubset(attributes):
        return None
    positions = [attributes.index(attribute) for attribute in wanted]
    return Origin(join, dict(zip(df.columns, positions, strict=True)))


def attributes_of(df: DataFrame) -> list[str] | None:
    """Return Spark's identifiers of the columns of a join's result, if a Python operator returns them as they are."""
    if not is_classic(df.sparkSession):
        return None
    plan = df._jdf.queryExecution().analyzed()
    return _attributes(plan.output()) if plan.getClass().getSimpleName() == "MapInArrow" else None


def _attributes(output: Any) -> list[str]:
    return [attribute.exprId().toString() for attribute in _elements(output)]


def _elements(sequence: Any) -> list[Any]:
    return [sequence.apply(number) for number in range(sequence.size())]


def _renamed(column: Any) -> tuple[str, str]:
    """Return the identifier of a selected column, and that of the column below it; no text if it is computed."""
    above = column.exprId().toString()
    while column.getClass().getSimpleName() == "Alias":
        column = column.child()
    is_column = column.getClass().getSimpleName() == "AttributeReference"
    return above, column.exprId().toString() if is_column else ""
