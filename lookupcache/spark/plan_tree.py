"""A DataFrame's analyzed plan as a tree of node names: from the JVM, on Spark Connect from the text of `explain`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from lookupcache.planner.catalyst_column import elements, kind_of
from lookupcache.report import is_classic


@dataclass(frozen=True)
class PlanNode:
    """A node: the name of its class, whether its rows are a stream, and the nodes that it reads.

    >>> PlanNode("Project", children=(PlanNode("Filter"),)).kinds()
    ['Project', 'Filter']
    """

    kind: str
    is_streaming: bool = False
    children: tuple[PlanNode, ...] = ()

    def walk(self) -> Iterator[PlanNode]:
        """Yield this node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def kinds(self) -> list[str]:
        """Return the names of all nodes."""
        return [node.kind for node in self.walk()]


def analyzed_plan(df: DataFrame) -> PlanNode:
    """Return a DataFrame's plan; common table expressions stand where they are read."""
    if is_classic(df.sparkSession):
        return _of_jvm(df._jdf.queryExecution().analyzed(), {})
    return of_text(df._explain_string(mode="extended"))  # type: ignore[operator]


def _of_jvm(plan: Any, common: dict[int, PlanNode]) -> PlanNode:
    kind = kind_of(plan)
    if kind == "WithCTE":
        for definition in elements(plan.cteDefs()):
            common[definition.id()] = _of_jvm(definition.child(), common)
        return _of_jvm(plan.plan(), common)
    if kind == "CTERelationRef":
        return common.get(plan.cteId(), PlanNode(kind))
    children = tuple(_of_jvm(child, common) for child in elements(plan.children()))
    return PlanNode(kind, bool(plan.isStreaming()), children)


# ── from text ────────────────────────────────────────────────────────────────────────────────────────────

_LINE = re.compile(r"((?:   |:  )*(?:\+- |:- )?)~?(\w+) ?(\d+)?")
"""Depth, name and first number; Spark writes a tilde before a node of a stream, though not in all versions."""


@dataclass
class _Open:
    kind: str
    number: int | None
    children: list[_Open] = field(default_factory=list)


def of_text(text: str) -> PlanNode:
    """Return the analyzed plan in the text of ``explain("extended")``.

    >>> text = '''== Analyzed Logical Plan ==
    ... k: int
    ... ~Project [k#1]
    ... +- ~Join LeftOuter
    ...    :- ~SubqueryAlias a
    ...    :  +- ~StreamingRelation rate, [k#1]
    ...    +- LocalRelation [k#2]
    ...
    ... == Optimized Logical Plan ==
    ... Project [k#1]'''
    >>> of_text(text).kinds(), of_text(text).is_streaming
    (['Project', 'Join', 'SubqueryAlias', 'StreamingRelation', 'LocalRelation'], True)
    """
    _, _, section = text.partition("== Analyzed Logical Plan ==\n")
    section = section.partition("\n== Optimized Logical Plan ==")[0]
    path: list[_Open] = []
    for line in section.splitlines()[1:]:  # The first line has the columns.
        found = _LINE.match(line)
        depth = len(found[1]) // 3 if found is not None else 0
        if found is None or depth > len(path) or (path and not depth):
            continue  # A line of a literal with several.
        number = None if found[3] is None else int(found[3])
        del path[depth:]
        path.append(_Open(found[2], number))
        if depth:
            path[depth - 1].children.append(path[depth])
    return _closed(path[0], {}) if path else PlanNode("")


def _closed(node: _Open, common: dict[int | None, PlanNode]) -> PlanNode:
    if node.kind == "CTERelationRef":
        return common.get(node.number, PlanNode(node.kind))
    children = tuple(_closed(child, common) for child in node.children)
    if node.kind == "CTERelationDef":
        common[node.number] = children[0]
    if node.kind == "WithCTE":
        return children[-1]
    is_streaming = node.kind.startswith("Streaming") or any(child.is_streaming for child in children)
    return PlanNode(node.kind, is_streaming, children)
