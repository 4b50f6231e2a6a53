"""Analyzed expressions of classic Spark, read by py4j: as a worker's expressions, and rebuilt over other columns.

An analyzed expression has its types and casts written out, so that little is left to settings of the session. For a
worker it is written as SQL, as a Column of Spark 3.5 is, and read as all SQL of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame

from lookupcache.errors import PlanError
from lookupcache.expr import Expr, can_fail
from lookupcache.planner.catalyst_column import elements, expression_sql, kind_of
from lookupcache.planner.column_text import Writing, writing
from lookupcache.planner.settings import ANSI, ESCAPED_STRINGS
from lookupcache.planner.sql_reader import SqlReader
from lookupcache.spark.forms.between import KeyedValue, plain_column, with_columns
from lookupcache.versions import is_spark_3

_ARITHMETIC = ("Add", "Subtract", "Multiply")
_TOTAL = frozenset({
    "EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "And",
    "Or", "StartsWith", "EndsWith", "Contains", "AttributeReference", "Literal", "Alias", "Not", "IsNull", "IsNotNull",
    "In", "Coalesce", "If", "CaseWhen", "Upper", "Lower", "Length", "StringTrim",
    "StringTrimLeft", "StringTrimRight", "Substring", "Concat", "Year", "Month", "DayOfMonth", "Quarter", "IsNaN",
    "GetStructField", "XxHash64",
})  # fmt: skip
"""Expressions that no row can make fail."""

_MOST_NODES = 500


@dataclass(frozen=True)
class Definitions:
    """The meanings of the attributes above a join's result.

    ``positions`` are the columns of that result by Spark's identifiers, ``computed`` the expressions of others.
    ``reader`` reads SQL over the result, whose columns it calls by ``COLUMN`` and their positions.
    """

    jvm: Any
    reader: SqlReader
    positions: Mapping[str, int]
    computed: Mapping[str, Any]

    def value(self, expression: Any) -> KeyedValue:
        """Return an expression as a value over the result."""
        expression = self._definition(expression)
        if kind_of(expression) == "AttributeReference":
            return plain_column(str(self.positions[_id(expression)]), str(expression.name()))
        nodes = list(self._nodes(expression))
        kinds = {kind_of(node) for node in nodes}
        reads = {str(self.positions[_id(node)]) for node in nodes if kind_of(node) == "AttributeReference"}
        worker = self._of_worker(expression, nodes) if len(nodes) <= _MOST_NODES else None
        is_total = kinds <= _TOTAL or (worker is not None and not can_fail(worker))
        movable = len(nodes) <= _MOST_NODES and not any("Subquery" in kind or kind == "Exists" for kind in kinds)
        return KeyedValue(
            str(expression.sql()),
            frozenset(reads),
            worker,
            (lambda left, names: self._rebuilt_column(expression, left, names)) if movable else None,
            deterministic=all(node.deterministic() for node in nodes),
            total=is_total,
        )

    def conditions(self, condition: Any) -> Iterator[KeyedValue]:
        """Yield the conjuncts of a filter."""
        if kind_of(condition) == "And":
            yield from self.conditions(condition.left())
            yield from self.conditions(condition.right())
        else:
            yield self.value(condition)

    def _definition(self, expression: Any) -> Any:
        """Return the column of the result, or the computed expression, that a name stands for."""
        while True:
            if kind_of(expression) == "Alias":
                expression = expression.child()
            elif kind_of(expression) == "AttributeReference" and _id(expression) not in self.positions:
                expression = self.computed[_id(expression)]
            else:
                return expression

    def _nodes(self, expression: Any) -> Iterator[Any]:
        """Yield an expression and all below it, with computed expressions in place of their names."""
        if kind_of(expression) == "AttributeReference" and _id(expression) not in self.positions:
            yield from self._nodes(self.computed[_id(expression)])
            return
        yield expression
        for child in elements(expression.children()):
            yield from self._nodes(child)

    def _rebuilt(self, node: Any, column: Callable[[Any, int], Any]) -> Any:
        """Return an expression over other columns, with computed expressions in place of their names."""
        if kind_of(node) == "AttributeReference":
            position = self.positions.get(_id(node))
            return self._rebuilt(self.computed[_id(node)], column) if position is None else column(node, position)
        if kind_of(node) == "Alias":
            return self._rebuilt(node.child(), column)
        children = [self._rebuilt(child, column) for child in elements(node.children())]
        return node.withNewChildren(self.jvm.PythonUtils.toSeq(children)) if children else node

    def _rebuilt_column(self, expression: Any, left: DataFrame, names: Mapping[str, str]) -> Column:
        """Return an expression as a Column of a left side, where the columns that it reads have these names."""
        attributes = dict(zip(left.columns, elements(left._jdf.queryExecution().analyzed().output()), strict=True))
        rebuilt = self._rebuilt(expression, lambda _, position: attributes[names[str(position)]])
        if is_spark_3():
            return Column(self.jvm.org.apache.spark.sql.Column(rebuilt))
        from pyspark.sql.classic.column import Column as ClassicColumn

        return ClassicColumn(self.jvm.org.apache.spark.sql.classic.ExpressionUtils.column(rebuilt))

    def _of_worker(self, expression: Any, nodes: list[Any]) -> Expr | None:
        """Return a worker's expression of exactly Spark's meaning, or None where only Spark can evaluate it."""
        settings = self.reader.settings
        modes = {str(node.evalMode().toString()) for node in nodes if kind_of(node) in _ARITHMETIC}
        if settings.on(ANSI) and not modes <= {"ANSI"}:  # It was analyzed in another mode than that of the session now.
            return None
        before = writing.set(Writing(escapes=not settings.on(ESCAPED_STRINGS)))
        try:
            named = self._rebuilt(expression, lambda node, position: node.withName(f"{COLUMN}{position}"))
            found = self.reader.expression(expression_sql(named))
        except (PlanError, Py4JError, RecursionError, ValueError, OverflowError):  # such as a date that Python lacks
            return None
        finally:
            writing.reset(before)
        return found and with_columns(found, lambda one: replace(one, name=one.name.removeprefix(COLUMN)))


COLUMN = "c"
"""The beginning of a column's name where a worker's expression is read."""


def _id(attribute: Any) -> str:
    return str(attribute.exprId().toString())
