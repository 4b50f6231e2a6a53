"""Converts a PySpark Column to equivalent SQL text.

A Column's own text has no quotes, so its tree is traversed. On classic these are Spark's column nodes by py4j (in Spark
3.5 its expressions, see `planner.catalyst_column`), on Spark Connect the protocol's expressions. All are first
converted to one
form: a name and parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any

from lookupcache.errors import PlanError
from lookupcache.planner.catalyst_column import elements, expression_sql, java_case, kind_of
from lookupcache.planner.clauses import unwrap
from lookupcache.planner.coercion import sql_type
from lookupcache.planner.column_text import (
    EPOCH,
    Function,
    Writing,
    alias_name,
    case_sql,
    cast_sql,
    function_sql,
    lambda_sql,
    moment_of,
    refuse_changed_struct,
    taken_sql,
    text_sql,
    unsupported_error,
    value_sql,
    writing,
)
from lookupcache.planner.depth import LEVELS, deep_recursion
from lookupcache.schema import quote, quote_path, spark_type_name, upper_but_names
from lookupcache.versions import is_spark_3


def column_sql(column: Any, **rules: Any) -> str:
    """Return a Column as Spark SQL; raises PlanError for one without a form in SQL, such as a Python UDF.

    ``rules`` are fields of `Writing`.

    >>> from pyspark.sql import functions as F
    >>> orders = spark.range(3)
    >>> print(column_sql((orders["id"] == F.col("c.id")) & F.col("c.name").like("o'%")))
    (`left`.`id` = `c`.`id`) AND (`c`.`name` LIKE 'o\\'%')
    """
    return _written(lambda: unwrap(_tree_sql(column)), rules)


def _written(write: Callable[[], str], rules: dict[str, Any]) -> str:
    before = writing.set(Writing(**rules))
    try:
        return deep_recursion(write)
    except RecursionError:
        raise PlanError(
            f"The Column is nested too deeply to be planned: calls, CASE and NOT may be nested about {LEVELS} times.",
            hint="Compute part of it as a column of the left side first, with withColumn.",
        ) from None
    finally:
        writing.reset(before)


def named_column_sql(column: Any, **rules: Any) -> str:
    """Return a Column as an item of a select list, with its alias if it has one; `column_sql` has the arguments.

    >>> from pyspark.sql import functions as F
    >>> named_column_sql(F.upper("c.name").alias("name"))
    'upper(`c`.`name`) AS `name`'
    """
    return _written(lambda: _named_tree_sql(column), rules)


def _named_tree_sql(column: Any) -> str:
    sql, name = unwrap(_tree_sql(column)), alias_name(_tree(column))
    return sql if name is None else f"{sql} AS {quote(name)}"


def _tree(column: Any) -> Any:
    parts = vars(column)  # a Column has every attribute
    if "_expr" in parts:
        return parts["_expr"]
    return parts["_jc"].expr() if is_spark_3() else parts["_jc"].node()


def _tree_sql(column: Any) -> str:
    if "_expr" in vars(column):
        return _connect(_tree(column))
    return expression_sql(_tree(column)) if is_spark_3() else _classic(_tree(column))


# ── classic: Spark's column nodes, by py4j ───────────────────────────────────────────────────────────────


def _classic(node: Any) -> str:
    kind = kind_of(node)
    if kind not in _CLASSIC:
        raise unsupported_error(f"{kind} ({node.sql()})")
    return _CLASSIC[kind](node)


def _classic_attribute(node: Any) -> str:
    parts = list(elements(node.nameParts()))
    return quote_path([writing.get().left, *parts] if node.planId().isDefined() else parts)


def _read_resolved(node: Any) -> str:
    """Read a column, or all of them, that were taken from a DataFrame."""
    expression = node.expression()
    kind = kind_of(expression)
    if kind == "ResolvedStar":
        return taken_sql(expression, "*", ())
    if kind == "PythonUDF":  # Its own text shows how Spark stores its arguments.
        raise unsupported_error(f"the Python function {expression.name()!r}")
    if kind != "AttributeReference":
        raise unsupported_error(f"the resolved expression {node.sql()}")
    return taken_sql(expression, expression.name(), [expression.name()])


def _classic_star(node: Any) -> str:
    target = node.unparsedTarget()
    return str(target.get()) if target.isDefined() else "*"


def _classic_literal(node: Any) -> str:
    type_ = node.dataType().get().simpleString() if node.dataType().isDefined() else ""
    without_zone = "timestamp_ntz" if _java_class(node.value()) == "java.time.LocalDateTime" else ""
    return value_sql(_from_java(node.value()), type_ or without_zone)


def _java_class(value: Any) -> str:
    return str(value.getClass().getName()) if hasattr(value, "getClass") else ""


def _from_java(value: Any) -> Any:
    kind = _java_class(value)
    if kind in ("java.sql.Date", "java.time.LocalDate"):
        return date.fromisoformat(value.toString())
    if kind == "java.sql.Timestamp":
        return moment_of(_microseconds(value))
    if kind == "java.time.Instant":
        return moment_of(value.getEpochSecond() * 1_000_000 + value.getNano() // 1000)
    if kind == "java.time.LocalDateTime":
        return datetime.fromisoformat(value.toString())
    if kind == "java.time.Duration":
        return timedelta(seconds=value.getSeconds(), microseconds=value.getNano() // 1000)
    return value


def _microseconds(value: Any) -> int:
    """Return a Timestamp of Java as Spark reads it: Java has the old ones in the Julian calendar."""
    from pyspark import SparkContext

    assert SparkContext._jvm is not None
    return int(SparkContext._jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils.fromJavaTimestamp(value))


def _classic_call(node: Any) -> Function | None:
    if kind_of(node) != "UnresolvedFunction":
        return None
    if node.isInternal() or node.isDistinct():
        raise unsupported_error(node.sql())
    return node.functionName(), list(elements(node.arguments()))


def _classic_cast(node: Any) -> str:
    mode = kind_of(node.evalMode().get()).strip("$") if node.evalMode().isDefined() else ""
    return cast_sql(_classic(node.child()), sql_type(node.dataType().sql()), mode)


def _classic_lambda(node: Any) -> str:
    return lambda_sql([variable.name() for variable in elements(node.arguments())], _classic(node.function()))


_CLASSIC: dict[str, Callable[[Any], str]] = {
    "UnresolvedAttribute": _classic_attribute,
    "ExpressionColumnNode": _read_resolved,
    "UnresolvedStar": _classic_star,
    "Literal": _classic_literal,
    "UnresolvedFunction": lambda node: function_sql(node, _classic_call, _classic),
    "SqlExpression": lambda node: text_sql(node.expression()),
    "Cast": _classic_cast,
    "UpdateFields": refuse_changed_struct,
    "CaseWhenOtherwise": lambda node: java_case(node.branches(), node.otherwise(), _classic),
    "UnresolvedExtractValue": lambda node: f"{_classic(node.child())}[{_classic(node.extraction())}]",
    "Alias": lambda node: _classic(node.child()),
    "LambdaFunction": _classic_lambda,
    "UnresolvedNamedLambdaVariable": lambda node: quote(node.name()),
}


# ── Spark Connect: the protocol's expressions ────────────────────────────────────────────────────────────


def _connect(node: Any) -> str:
    kind = type(node).__name__
    if kind not in _CONNECT:
        raise unsupported_error(f"{kind} ({node})")
    return _CONNECT[kind](node)


def _connect_attribute(node: Any) -> str:
    parts = [
        part[1:-1].replace("``", "`") if part.startswith("`") else part
        for part in re.findall(r"`(?:[^`]|``)*`|[^.`]+", node._unparsed_identifier)
    ]
    return taken_sql(node, parts[-1], parts) if node._plan_id is not None else quote_path(parts)


def _connect_star(node: Any) -> str:
    if node._plan_id is not None:  # the star of a DataFrame
        return taken_sql(node, "*", ())
    return node._unparsed_target or "*"


def _connect_literal(node: Any) -> str:
    type_, value = node._dataType.simpleString(), node._value
    if value is not None and type_ == "date":
        value = EPOCH.date() + timedelta(days=value)
    if value is not None and type_ in ("timestamp", "timestamp_ntz"):
        value = moment_of(value)
    if value is not None and type_ == "interval day to second":
        return value_sql(timedelta(microseconds=value))
    if type_.startswith(("interval", "time(", "array")):
        raise unsupported_error(f"a literal of type {type_}")
    return value_sql(value, "" if type_ in ("string", "binary", "boolean") and value is not None else type_)


def _connect_call(node: Any) -> Function | None:
    if type(node).__name__ not in ("UnresolvedFunction", "CallFunction"):
        return None
    if getattr(node, "_is_distinct", False):
        raise unsupported_error(str(node))
    return node._name, list(node._args)


def _connect_cast(node: Any) -> str:
    # A type given as text is parsed by the session's settings here too; a DataType needs no parsing.
    type_ = node._data_type
    name = upper_but_names(type_) if isinstance(type_, str) else sql_type(spark_type_name(type_))
    return cast_sql(_connect(node._expr), name, getattr(node, "_eval_mode", None) or "")  # Spark 3.5 has none


def _connect_case(node: Any) -> str:
    branches = [(_connect(condition), _connect(value)) for condition, value in node._branches]
    return case_sql(branches, None if node._else_value is None else _connect(node._else_value))


def _connect_lambda(node: Any) -> str:
    return lambda_sql([".".join(variable._name_parts) for variable in node._arguments], _connect(node._function))


_CONNECT: dict[str, Callable[[Any], str]] = {
    "ColumnReference": _connect_attribute,
    "UnresolvedStar": _connect_star,
    "LiteralExpression": _connect_literal,
    "UnresolvedFunction": lambda node: function_sql(node, _connect_call, _connect),
    "CallFunction": lambda node: function_sql(node, _connect_call, _connect),
    "SQLExpression": lambda node: text_sql(node._expr),
    "CastExpression": _connect_cast,
    "WithField": refuse_changed_struct,
    "DropField": refuse_changed_struct,
    "CaseWhen": _connect_case,
    "UnresolvedExtractValue": lambda node: f"{_connect(node._child)}[{_connect(node._extraction)}]",
    "ColumnAlias": lambda node: _connect(node._parent if hasattr(node, "_parent") else node._child),  # in Spark 3.5
    "LambdaFunction": _connect_lambda,
    "UnresolvedNamedLambdaVariable": lambda node: quote(".".join(node._name_parts)),
}
