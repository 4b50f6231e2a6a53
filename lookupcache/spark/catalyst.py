"""Analyzed expressions of classic Spark, read by py4j: as a worker's expressions, and rebuilt over other columns.

An analyzed expression has its types and casts written out, so that nothing is left to a setting of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame

from lookupcache import expr
from lookupcache.errors import SchemaError
from lookupcache.expr import Call, Expr, Literal, can_fail
from lookupcache.planner.catalyst_column import elements, kind_of
from lookupcache.planner.translate import (
    MOST_ALTERNATIVES,
    NoTranslationError,
    balance,
    case,
    cast_to,
    choice,
    concat,
    is_too_deep,
    like,
)
from lookupcache.schema import parse_type
from lookupcache.spark.forms.between import KeyedValue, plain_column
from lookupcache.versions import is_spark_3

_COMPARISONS = {
    "EqualTo": "=", "EqualNullSafe": "<=>", "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}  # fmt: skip
_ARITHMETIC = {"Add": "+", "Subtract": "-", "Multiply": "*"}
_LOGIC = {"And": "and", "Or": "or"}
_PARTS = {"StartsWith": "starts with", "EndsWith": "ends with", "Contains": "contains"}
_TOTAL = frozenset({
    *_COMPARISONS, *_LOGIC, *_PARTS, "AttributeReference", "Literal", "Alias", "Not", "IsNull", "IsNotNull", "In",
    "Coalesce", "If", "CaseWhen", "Upper", "Lower", "Length", "StringTrim", "StringTrimLeft", "StringTrimRight",
    "Substring", "Concat", "Year", "Month", "DayOfMonth", "Quarter", "IsNaN", "GetStructField", "XxHash64",
})  # fmt: skip
"""Expressions that no row can make fail."""

_MOST_NODES = 500


@dataclass(frozen=True)
class Definitions:
    """The meanings of the attributes above a join's result.

    ``positions`` are the columns of that result by Spark's identifiers, ``computed`` the expressions of others.
    """

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
        worker = _translate(self, expression) if len(nodes) <= _MOST_NODES else None
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

    def _rebuilt_column(self, expression: Any, left: DataFrame, names: Mapping[str, str]) -> Column:
        """Return an expression as a Column of a left side, where the columns that it reads have these names."""
        attributes = dict(zip(left.columns, elements(left._jdf.queryExecution().analyzed().output()), strict=True))
        jvm = left.sparkSession._jvm
        assert jvm is not None

        def rebuilt(node: Any) -> Any:
            if kind_of(node) == "AttributeReference":
                position = self.positions.get(_id(node))
                return rebuilt(self.computed[_id(node)]) if position is None else attributes[names[str(position)]]
            if kind_of(node) == "Alias":
                return rebuilt(node.child())
            children = list(elements(node.children()))
            return node.withNewChildren(jvm.PythonUtils.toSeq(list(map(rebuilt, children)))) if children else node

        return _column(jvm, rebuilt(expression))


def _column(jvm: Any, expression: Any) -> Column:
    """Return an expression as a Column."""
    if is_spark_3():
        return Column(jvm.org.apache.spark.sql.Column(expression))
    from pyspark.sql.classic.column import Column as ClassicColumn

    return ClassicColumn(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def _id(attribute: Any) -> str:
    return str(attribute.exprId().toString())


# ── as a worker's expression ─────────────────────────────────────────────────────────────────────────────


def _translate(definitions: Definitions, expression: Any) -> Expr | None:
    """Return a worker's expression of exactly Spark's meaning, or None where only Spark can evaluate it."""
    try:
        found = _Translation(definitions).any(expression)
    except (NoTranslationError, SchemaError, Py4JError, ValueError, OverflowError):
        return None
    return None if is_too_deep(found) else found


@dataclass(frozen=True)
class _Translation:
    definitions: Definitions

    def any(self, node: Any) -> Expr:
        """Return any expression."""
        kind = kind_of(node)
        if kind == "Literal":
            return _literal(node.value(), _type(node))
        if kind == "AttributeReference":
            position = self.definitions.positions.get(_id(node))
            if position is None:
                return self.any(self.definitions.computed[_id(node)])
            return expr.Column("left", str(position), _type(node))
        if node.foldable():
            # Expressions that only the optimizer replaces, such as the current time, refuse to be evaluated.
            return _literal(node.eval(None), _type(node))
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise NoTranslationError
        return handler(self, node)

    def each(self, nodes: Any) -> list[Expr]:
        """Return several expressions."""
        return [self.any(node) for node in (nodes if isinstance(nodes, list) else elements(nodes))]

    def compare(self, node: Any) -> Expr:
        a, b = self.each(node.children())
        if a.type != b.type or pa.types.is_nested(a.type) or pa.types.is_null(a.type):
            raise NoTranslationError
        return Call(_COMPARISONS[kind_of(node)], (a, b))

    def logic(self, node: Any) -> Expr:
        a, b = self.each(node.children())
        if can_fail(b):  # Spark may never get there; a worker would
            raise NoTranslationError
        return Call(_LOGIC[kind_of(node)], (a, b))

    def member(self, node: Any) -> Expr:
        value, items = self.any(node.value()), self.each(node.list())
        if not items or len(items) > MOST_ALTERNATIVES or any(item.type != value.type for item in items):
            raise NoTranslationError
        if pa.types.is_nested(value.type) or not all(isinstance(item, Literal) for item in items):
            raise NoTranslationError
        return balance("or", [Call("=", (value, item)) for item in items])

    def part(self, node: Any) -> Expr:
        value, part = self.each(node.children())
        if not (isinstance(part, Literal) and part.value is not None and pa.types.is_string(value.type)):
            raise NoTranslationError
        return Call(_PARTS[kind_of(node)], (value, part))

    def like(self, node: Any) -> Expr:
        value, pattern = self.each([node.left(), node.right()])
        if not (isinstance(pattern, Literal) and pa.types.is_string(value.type)) or str(node.escapeChar()) != "\\":
            raise NoTranslationError
        return like(value, pattern)

    def compute(self, node: Any) -> Expr:
        a, b = self.each(node.children())
        ansi = str(node.evalMode().toString()) == "ANSI"
        if a.type != b.type or not (pa.types.is_floating(a.type) or (pa.types.is_integer(a.type) and ansi)):
            raise NoTranslationError
        return Call(_ARITHMETIC[kind_of(node)], (a, b), a.type)

    def cast(self, node: Any) -> Expr:
        trying = str(node.evalMode().toString()) == "TRY"
        return cast_to(self.any(node.child()), _type(node), trying=trying)

    def case(self, node: Any) -> Expr:
        branches = [(self.any(pair._1()), self.any(pair._2())) for pair in elements(node.branches())]
        otherwise = self.any(node.elseValue().get()) if node.elseValue().isDefined() else None
        return case(branches, otherwise)

    def either(self, node: Any) -> Expr:
        condition, then, otherwise = self.each(node.children())
        return case([(condition, then)], otherwise)


_HANDLERS: dict[str, Callable[[_Translation, Any], Expr]] = {
    **dict.fromkeys(_COMPARISONS, _Translation.compare),
    **dict.fromkeys(_LOGIC, _Translation.logic),
    **dict.fromkeys(_PARTS, _Translation.part),
    **dict.fromkeys(_ARITHMETIC, _Translation.compute),
    "Alias": lambda self, node: self.any(node.child()),
    "Like": _Translation.like,
    "Not": lambda self, node: Call("not", (self.any(node.child()),)),
    "IsNull": lambda self, node: Call("is null", (self.any(node.child()),)),
    "IsNotNull": lambda self, node: Call("not", (Call("is null", (self.any(node.child()),)),)),
    "In": _Translation.member,
    "Cast": _Translation.cast,
    "Coalesce": lambda self, node: choice("coalesce", self.each(node.children())),
    "Nvl": lambda self, node: self.any(node.replacement()),
    "Concat": lambda self, node: concat(self.each(node.children())),
    "CaseWhen": _Translation.case,
    "If": _Translation.either,
}


def _type(node: Any) -> pa.DataType:
    name = str(node.dataType().simpleString())
    return pa.null() if name == "void" else parse_type(name)


def _literal(value: Any, type_: pa.DataType) -> Literal:
    """Return a literal of Spark's internal value."""
    found = Literal(None, type_) if value is None else _non_null(value, type_)
    expr.python_value(found)  # Raises for a value out of Python's range.
    return found


def _non_null(value: Any, type_: pa.DataType) -> Literal:
    if pa.types.is_string(type_):
        return Literal(str(value.toString()), type_)
    if pa.types.is_decimal(type_):
        return expr.literal(Decimal(str(value.toString())), type_)
    if pa.types.is_date(type_):
        return expr.literal(date(1970, 1, 1) + timedelta(days=value), type_)
    if pa.types.is_timestamp(type_) or pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return Literal(value, type_)
    if pa.types.is_floating(type_) or pa.types.is_binary(type_):
        return expr.literal(bytes(value) if pa.types.is_binary(type_) else float(value), type_)
    raise NoTranslationError
