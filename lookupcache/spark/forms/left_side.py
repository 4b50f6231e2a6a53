"""Spark's knowledge of a left side before a job runs: whether it may be read twice, and its size."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from lookupcache.planner.catalyst_column import elements, kind_of
from lookupcache.report import is_classic
from lookupcache.spark.planned import PendingResult

_CHEAP = {"Project", "Filter", "Union", "SubqueryAlias"}
"""Plan nodes that cost little when the left side is read a second time."""

_SAME_AGAIN = {"LocalRelation", "Range", "InMemoryRelation", "OneRowRelation"}
_FILES = {"LogicalRelation": "HadoopFsRelation", "DataSourceV2ScanRelation": "FileScan"}
"""Sources that give the same rows again, and where a kind has several, the word in the name of its class."""

SHOWN = {
    "LogicalRDD": "an RDD", "MapInArrow": "a Python function", "MapInPandas": "a Python function",
    "ArrowEvalPython": "a Python function", "BatchEvalPython": "a Python function", "Join": "a join",
    "Aggregate": "an aggregate", "Repartition": "a shuffle", "RepartitionByExpression": "a shuffle",
    "RebalancePartitions": "a shuffle",
    "GlobalLimit": "a limit", "LocalLimit": "a limit", "Sort": "a sort", "Window": "a window function",
    "LogicalRelation": "a source that may change", "DataSourceV2ScanRelation": "a source that may change",
    "Distinct": "a distinct", "Deduplicate": "a distinct", "Union": "a union", "Sample": "a sample",
    "Offset": "an offset", "EventTimeWatermark": "a watermark", "CollectMetrics": "an observation",
    "Generate": "a generator function", "Intersect": "a set operation", "Except": "a set operation",
}  # fmt: skip


_UNKNOWN_BYTES = 1 << 50
"""Spark takes exabytes for the size of what it knows nothing of, less those of columns that are left out."""


@dataclass(frozen=True)
class LeftSide:
    """``obstacle`` says why it should be read once only, None where it may be read twice; ``size`` is in bytes."""

    obstacle: str | None
    size: int

    @classmethod
    def of(cls, left: DataFrame) -> LeftSide:
        """Ask Spark's optimizer; no job runs. Spark Connect does not show its plans."""
        if not is_classic(left.sparkSession):
            return cls("Spark Connect does not show whether it may", 0)
        if isinstance(left, PendingResult):
            return cls(f"it would run {SHOWN['MapInArrow']} twice", 0)
        try:
            execution = current_execution(left)
            if _calls_python(execution.withCachedData()):
                return cls(f"it would run {SHOWN['MapInArrow']} twice", 0)
            plan = execution.optimizedPlan()
        except PySparkException:
            return cls("Spark cannot plan it before it runs", 0)
        return cls(_obstacle(plan), int(str(plan.stats().sizeInBytes())))


def rough_bytes(left: DataFrame) -> int:
    """Return Spark's estimate of a left side's size without its optimizer, which takes long; 0 if it has none."""
    if not is_classic(left.sparkSession) or isinstance(left, PendingResult):
        return 0
    try:
        size = int(str(left._jdf.queryExecution().analyzed().stats().sizeInBytes()))
    except PySparkException:
        return 0
    return 0 if size >= _UNKNOWN_BYTES else size


def path_down(plan: Any, kinds: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield kind and node of the top of a plan, and of each node below, down to the first that is not of ``kinds``."""
    while (kind := kind_of(plan)) in kinds:
        yield kind, plan
        plan = plan.children().head()
    yield kind, plan


def current_execution(df: DataFrame) -> Any:
    """Return Spark's execution of a DataFrame that reads relations persisted by now: a frame keeps its first plan."""
    return df.select("*")._jdf.queryExecution()


def _calls_python(plan: Any) -> bool:
    """Whether a function that stays in any plan, as other lookups are, stands on top: no need then to optimize it."""
    *_, (kind, _) = path_down(plan, _CHEAP - {"Union"})
    return kind == "MapInArrow"


def _obstacle(plan: Any) -> str | None:
    for node in _nodes(plan):
        kind = kind_of(node)
        if kind in _SAME_AGAIN or (kind in _FILES and _FILES[kind] in _source(node, kind)):
            continue
        if kind not in _CHEAP:
            return f"it would run {SHOWN.get(kind, kind)} twice"
        if not all(expression.deterministic() for expression in elements(node.expressions())):
            return "it calls a function whose value changes from call to call"
    return None


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in elements(plan.children()):
        yield from _nodes(child)


def _source(node: Any, kind: str) -> str:
    """Return the names of a source's class and of those above it."""
    kinds = [(node.relation() if kind == "LogicalRelation" else node.scan()).getClass()]
    while kinds[-1].getSuperclass() is not None:
        kinds.append(kinds[-1].getSuperclass())
    return " ".join(one.getSimpleName() for one in kinds)
