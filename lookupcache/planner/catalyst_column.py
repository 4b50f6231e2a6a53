"""Expressions of Catalyst as SQL text, read by py4j: Columns of classic Spark 3.5, and expressions of analyzed plans.

Later versions keep a Column as a tree of its own, which `planner.column` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

from lookupcache.planner.coercion import sql_type
from lookupcache.planner.column_text import (
    EPOCH,
    Function,
    call_sql,
    case_sql,
    cast_sql,
    function_sql,
    lambda_sql,
    moment_of,
    refuse_changed_struct,
    taken_sql,
    unsupported_error,
    value_sql,
)
from lookupcache.schema import quote, quote_path

_OPERATORS = {
    "EqualTo": "=", "EqualNullSafe": "<=>", "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">",
    "GreaterThanOrEqual": ">=", "And": "and", "Or": "or", "Add": "+", "Subtract": "-", "Multiply": "*", "Divide": "/",
    "Remainder": "%", "IntegralDivide": "div", "BitwiseAnd": "&", "BitwiseOr": "|", "BitwiseXor": "^", "Not": "not",
    "UnaryMinus": "negative", "BitwiseNot": "~", "IsNull": "isnull", "IsNotNull": "isnotnull", "RLike": "rlike",
    "StartsWith": "startswith", "EndsWith": "endswith", "Contains": "contains",
}  # fmt: skip
_TRIMS = {"StringTrim": "trim", "StringTrimLeft": "ltrim", "StringTrimRight": "rtrim"}
_CATALYST = "org.apache.spark.sql.catalyst."
_PARTS = ("scala.collection.", "scala.None", f"{_CATALYST}expressions.", f"{_CATALYST}analysis.Unresolved")
"""Beginnings of the names of classes whose SQL arguments describe them fully."""


def expression_sql(node: Any) -> str:
    """Return an expression as Spark SQL; raises PlanError for one without a form in SQL, such as a Python UDF."""
    write = _WRITERS.get(kind_of(node))
    return function_sql(node, _call, expression_sql) if write is None else write(node)


def kind_of(node: Any) -> str:
    """Return the name of the class of a node of Spark's plans or expressions."""
    return str(node.getClass().getSimpleName())


def elements(sequence: Any) -> Iterator[Any]:
    """Yield the elements of a Scala sequence."""
    return (sequence.apply(number) for number in range(sequence.size()))


def _call(node: Any) -> Function | None:
    """Return the name and the arguments of a call, None for another expression."""
    kind = kind_of(node)
    if kind in _WRITERS:
        return None
    if kind in _OPERATORS:
        if "TRY" in (_mode(node) if kind in ("Add", "Subtract", "Multiply", "Divide") else ""):
            raise unsupported_error(str(node.sql()))
        return _OPERATORS[kind], list(elements(node.children()))
    if kind == "In":
        return "in", [node.value(), *elements(node.list())]
    if kind in _TRIMS and node.children().size() == 1:
        return _TRIMS[kind], [node.srcStr()]
    if kind == "UnresolvedFunction":
        if node.isDistinct() or node.filter().isDefined() or node.ignoreNulls():
            raise unsupported_error(str(node.sql()))
        return ".".join(elements(node.nameParts())), list(elements(node.arguments()))
    return _function(node)


def _function(node: Any) -> Function:
    """Return the name and the arguments of a function that Spark has a class for; raises if it has more than these."""
    replaced = any(one.getSimpleName() == "InheritAnalysisRules" for one in node.getClass().getInterfaces())
    name, arguments = str(node.prettyName()), list(elements(node.parameters() if replaced else node.children()))
    text = f"{name}({', '.join(str(argument.sql()) for argument in arguments)})"
    parts = [node.productElement(position) for position in range(node.productArity())]
    if str(node.sql()) != text or not all(map(_is_argument, parts)) or not _is_builtin(name):
        raise unsupported_error(f"{kind_of(node)} ({node.sql()})")
    return name, arguments


def _is_argument(part: Any) -> bool:
    """Return whether a part of a function is an argument, or is set by the session alone, as its time zone."""
    if isinstance(part, bool):
        return True
    name = "" if isinstance(part, str | int | float | bytes) else str(part.getClass().getName())
    if name == "scala.Some":
        return isinstance(part.get(), str) or _is_argument(part.get())
    return name.startswith(_PARTS) and not name.startswith("scala.collection.immutable.Map")


def _is_builtin(name: str) -> bool:
    from pyspark import SparkContext

    assert SparkContext._jvm is not None
    catalyst = SparkContext._jvm.org.apache.spark.sql.catalyst
    functions = catalyst.analysis.FunctionRegistry.builtin()
    return bool(functions.functionExists(catalyst.FunctionIdentifier(name)))


def _mode(node: Any) -> str:
    return str(node.evalMode().toString())


def _literal(node: Any) -> str:
    value, type_ = node.value(), str(node.dataType().simpleString())
    if value is None:
        return value_sql(None, type_)
    if type_ == "string":
        return value_sql(str(value.toString()))
    if type_.startswith("decimal"):
        return value_sql(Decimal(str(value.toString())))
    if type_ == "date":
        return value_sql(EPOCH.date() + timedelta(days=value))
    if type_ in ("timestamp", "timestamp_ntz"):
        return value_sql(moment_of(value), type_)
    if type_ == "interval day to second":
        return value_sql(timedelta(microseconds=value))
    if type_ in ("binary", "boolean"):
        return value_sql(value)
    if type_ not in ("tinyint", "smallint", "int", "bigint", "float", "double"):
        raise unsupported_error(f"a literal of type {type_}")
    return value_sql(value, type_)


def _cast(node: Any) -> str:
    mode = "TRY" if _mode(node) == "TRY" else ""
    return cast_sql(expression_sql(node.child()), sql_type(node.dataType().sql()), mode)


def java_case(branches: Any, otherwise: Any, write: Callable[[Any], str]) -> str:
    """Write the branches of a CASE, and its value otherwise, as Spark has them in Java."""
    pairs = [(write(pair._1()), write(pair._2())) for pair in elements(branches)]
    return case_sql(pairs, write(otherwise.get()) if otherwise.isDefined() else None)


def _lambda(node: Any) -> str:
    names = [".".join(elements(variable.nameParts())) for variable in elements(node.arguments())]
    return lambda_sql(names, expression_sql(node.function()))


def _like(node: Any) -> str:
    escape = str(node.escapeChar())
    escapes = [] if escape == "\\" else [value_sql(escape)]
    return call_sql(kind_of(node).lower(), [expression_sql(node.left()), expression_sql(node.right()), *escapes])


def _star(node: Any) -> str:
    names = [quote(name) for name in elements(node.target().get())] if node.target().isDefined() else []
    return ".".join([*names, "*"])


_WRITERS: dict[str, Callable[[Any], str]] = {
    "UnresolvedAttribute": lambda node: quote_path(list(elements(node.nameParts()))),
    "AttributeReference": lambda node: taken_sql(node, node.name(), [node.name()]),
    "ResolvedStar": lambda node: taken_sql(node, "*", ()),
    "UnresolvedStar": _star,
    "Literal": _literal,
    "Cast": _cast,
    "UpdateFields": refuse_changed_struct,
    "CaseWhen": lambda node: java_case(node.branches(), node.elseValue(), expression_sql),
    "If": lambda node: call_sql("if", [expression_sql(one) for one in elements(node.children())]),
    "UnresolvedExtractValue": lambda node: f"{expression_sql(node.child())}[{expression_sql(node.extraction())}]",
    "Like": _like,
    "ILike": _like,
    "Alias": lambda node: expression_sql(node.child()),
    "LambdaFunction": _lambda,
    "UnresolvedNamedLambdaVariable": lambda node: quote(".".join(elements(node.nameParts()))),
}
