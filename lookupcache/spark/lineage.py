"""Which lookup join a DataFrame is the result of, so that another join on it can run in the same Python stage.

Between the two, columns may be selected and computed, and rows filtered: `SelectedJoin` has this selection, which
classic Spark shows in its analyzed plan. On Spark Connect the left side must be the result itself.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from lookupcache.planner import LeftColumn
from lookupcache.planner.catalyst_column import elements, kind_of
from lookupcache.planner.sql_reader import SqlReader
from lookupcache.report import is_classic
from lookupcache.spark.catalyst import COLUMN, Definitions
from lookupcache.spark.forms.between import Selection, plain_column
from lookupcache.spark.forms.join_context import left_column
from lookupcache.spark.forms.left_side import SHOWN, current_execution, path_down
from lookupcache.spark.planned import PendingResult, PlannedJoin

_JOIN = "_lookupcache_join"
"""The attribute of a result that holds its join: a DataFrame then lives as long as its join, and no longer."""

_SELECTIONS = ("Project", "Filter", "SubqueryAlias", "View", "ResolvedHint", "PipeOperator")
"""Plan nodes that may stand between a join and a selection from its result."""

_recent: deque[PlannedJoin] = deque(maxlen=16)
"""The last joins: a DataFrame that was selected from a join's result does not refer to the join.

A join keeps its left DataFrame. So the driver keeps the plans of at most 16 joins, and local data in them, but no rows
of results.
"""

_MOST_NODES = 100


@dataclass(frozen=True, eq=False)
class SelectedJoin:
    """A join, and the selection of a DataFrame from its result."""

    join: PlannedJoin
    selection: Selection


def remember(result: DataFrame, join: PlannedJoin) -> None:
    """Record that a DataFrame is the result of a join."""
    vars(result)[_JOIN] = join
    for stopped in [one for one in _recent if _is_stopped(one)]:
        _recent.remove(stopped)
    _recent.append(join)


def _is_stopped(join: PlannedJoin) -> bool:
    """Return whether the join's session has ended: its DataFrames cannot be used any more."""
    return is_classic(join.spark) and join.spark.sparkContext._jsc is None


def origin_of(df: DataFrame) -> SelectedJoin | None:
    """Return the join from whose result a DataFrame was selected.

    None too if several of its columns have the same name.
    """
    if len(set(df.columns)) < len(df.columns):
        return None
    join = vars(df).get(_JOIN)
    if join is not None:
        positions = {name: plain_column(str(number), name) for number, name in enumerate(df.columns)}
        return SelectedJoin(join, Selection((), positions.__getitem__))
    return _find_selection(df) if _recent and is_classic(df.sparkSession) else None


def is_persisted(df: DataFrame) -> bool:
    """Return whether the rows of a join's result, or of a selection from it, are persisted."""
    if df.isStreaming or isinstance(df, PendingResult):
        return False
    if not is_classic(df.sparkSession):
        return df.storageLevel.useMemory or df.storageLevel.useDisk
    *_, (kind, _) = path_down(current_execution(df).withCachedData(), _SELECTIONS)
    return kind == "InMemoryRelation"


# ── classic Spark ────────────────────────────────────────────────────────────────────────────────────────


def _find_selection(df: DataFrame) -> SelectedJoin | None:
    """Look through the projections and filters of Spark's analyzed plan, down to the result of a join."""
    plan = df._jdf.queryExecution().analyzed()
    if "MapInArrow" not in str(plan.toString()):  # One message to the JVM; the walk takes several per node.
        return None
    above: list[tuple[str, Any]] = []
    for kind, node in path_down(plan, _SELECTIONS):
        join = _join_of(df, node)
        if join is not None:
            return SelectedJoin(join, _selection(df, plan, above, node, join))
        above.append((kind, node))
    return None


def obstacle_of(df: DataFrame) -> str | None:
    """Return the first operation other than a selection between a join's result and a DataFrame; None without one."""
    if not _recent:
        return None
    if len(set(df.columns)) < len(df.columns):
        return "several columns of the left side have the same name"
    if not is_classic(df.sparkSession):
        results = {id(join.df._plan) for join in _recent if not is_classic(join.spark)}
        return _ON_CONNECT if any(id(plan) in results for plan in _connect_plans(df._plan)) else None
    nodes = [(df._jdf.queryExecution().analyzed(), "")]
    for node, obstacle in itertools.islice(_below(nodes), _MOST_NODES):
        if obstacle and _join_of(df, node) is not None:
            return f"{SHOWN.get(obstacle, obstacle)} stands between the two joins"
    return None


def _below(nodes: list[tuple[Any, str]]) -> Iterator[tuple[Any, str]]:
    """Yield the nodes of a plan, each with the topmost kind above it that is no selection."""
    while nodes:
        node, obstacle = nodes.pop()
        yield node, obstacle
        kind = kind_of(node)
        obstacle = obstacle or ("" if kind in _SELECTIONS else kind)
        nodes += [(child, obstacle) for child in elements(node.children())]


def _join_of(df: DataFrame, node: Any) -> PlannedJoin | None:
    """Return the join whose result a node of an analyzed plan is.

    A global view may bring the result of another session, whose settings and views are its own.
    """
    number = identity(df, node)
    session = df.sparkSession._jsparkSession
    found = (join for join in reversed(list(_recent)) if join.plan_identity == number)
    return next((join for join in found if join.spark._jsparkSession == session), None)


def identity(df: DataFrame, plan: Any | None = None) -> int | None:
    """Return an identifier of an analyzed plan, by default the DataFrame's own; None on Spark Connect."""
    if not is_classic(df.sparkSession):
        return None
    assert df.sparkSession._jvm is not None
    plan = df._jdf.queryExecution().analyzed() if plan is None else plan
    return int(df.sparkSession._jvm.System.identityHashCode(plan))


def _selection(df: DataFrame, top: Any, above: list[tuple[str, Any]], result: Any, join: PlannedJoin) -> Selection:
    positions = {attribute: number for number, attribute in enumerate(_attributes(result.output()))}
    computed = {}
    for kind, node in above:
        for column in elements(node.projectList()) if kind == "Project" else ():
            if kind_of(column) == "Alias":
                computed[column.exprId().toString()] = column.child()
    types = [left_column(field).type for field in join.df.schema.fields]
    columns_of_result = [LeftColumn(f"{COLUMN}{number}", type_) for number, type_ in enumerate(types)]
    reader = SqlReader(columns_of_result, pa.schema([]), join.reader.analyst, join.reader.settings)
    definitions = Definitions(df.sparkSession._jvm, reader, positions, computed)
    filters = [
        value
        for kind, node in reversed(above)
        if kind == "Filter"
        for value in definitions.conditions(node.condition())
    ]
    columns = dict(zip(df.columns, elements(top.output()), strict=True))
    return Selection(tuple(filters), cache(lambda name: definitions.value(columns[name])))


def foreign_to(left: DataFrame) -> Callable[[Any], bool]:
    """Return a function that says whether a column, taken from a DataFrame, is certainly none of the left side.

    Spark knows columns by numbers. It numbers those of a lookup's result anew: left columns below count as its.
    """
    known = cache(partial(_known_numbers, left))

    def is_foreign(column: Any) -> bool:
        wanted = _numbers_of(column, is_classic(left.sparkSession))
        return not (wanted <= known(below=False) or wanted <= known(below=True))

    return is_foreign


def _numbers_of(column: Any, classic: bool) -> set[Any]:
    if not classic:
        return {column._plan_id}
    return set(_attributes(column.expressions())) if kind_of(column) == "ResolvedStar" else {column.exprId().toString()}


def _known_numbers(left: DataFrame, *, below: bool) -> frozenset[Any]:
    """Return the numbers of the left columns, or of all below them if there is a lookup."""
    if not is_classic(left.sparkSession):
        return frozenset(plan._plan_id for plan in _connect_plans(left._plan))
    plan = left._jdf.queryExecution().analyzed()
    nodes = [node for node, _ in _below([(plan, "")])] if below else [plan]
    if below and not any("MapInArrow" in kind_of(node) for node in nodes):
        return frozenset()
    return frozenset(number for node in nodes for number in _attributes(node.output()))


def _attributes(output: Any) -> list[str]:
    return [attribute.exprId().toString() for attribute in elements(output)]


# ── Spark Connect ────────────────────────────────────────────────────────────────────────────────────────

_ON_CONNECT = "on Spark Connect, only a join on the result of another, with no step between, shares its stage"


def _connect_plans(plan: Any) -> Iterator[Any]:
    """Yield a plan that the client sends, and all below it; a Column says by number from which of them it was taken."""
    from pyspark.sql.connect.plan import LogicalPlan

    yield plan
    for value in vars(plan).values():
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, LogicalPlan):
                yield from _connect_plans(one)
