"""Converts a PySpark Column to equivalent SQL text.

A Column's own text has no quotes, so its tree is traversed: Spark's column nodes by py4j on classic, the
protocol's expressions on Spark Connect. Both are first converted to one form: a name and parts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from lookupcache.errors import PlanError
from lookupcache.planner.argument_names import NAMING_FUNCTIONS, named_sql
from lookupcache.planner.clauses import string_sql, unwrap
from lookupcache.planner.coercion import sql_type
from lookupcache.planner.depth import LEVELS, deep_recursion
from lookupcache.schema import quote, upper_but_names

_INFIX = {
    "=": "=", "==": "=", "!=": "<>", "<>": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "<=>", "and": "AND",
    "or": "OR", "+": "+", "-": "-", "*": "*", "/": "/", "%": "%", "&": "&", "|": "|", "^": "^", "div": "DIV",
    "like": "LIKE", "ilike": "ILIKE", "rlike": "RLIKE",
}  # fmt: skip
_PREFIX = {"!": "NOT ", "not": "NOT ", "-": "- ", "negative": "- ", "~": "~"}
_SUFFIX = {"isnull": " IS NULL", "isnotnull": " IS NOT NULL"}
_EPOCH = datetime(1970, 1, 1)

LEFT = "left"
"""The qualifier of a column that was taken from a DataFrame, which can only be the left one."""


_escapes = ContextVar("escapes", default=True)
"""Whether strings are written with escapes."""


_null_in_nothing = ContextVar("null_in_nothing", default=False)
"""Whether NULL is neither in an empty list nor outside of it."""


def column_sql(column: Any, *, escapes: bool = True, null_in_nothing: bool = False) -> str:
    """Return a Column as Spark SQL; raises PlanError for what SQL text cannot express, such as a Python UDF.

    Without ``escapes`` the text is for a session in which a backslash in a string is an ordinary character;
    with ``null_in_nothing`` it is for one in which NULL IN () is NULL.

    >>> from pyspark.sql import functions as F
    >>> orders = spark.range(3)
    >>> print(column_sql((orders["id"] == F.col("c.id")) & F.col("c.name").like("o'%")))
    (`left`.`id` = `c`.`id`) AND (`c`.`name` LIKE 'o\\'%')
    """
    parts = vars(column)  # a Column has every attribute
    before, before_nothing = _escapes.set(escapes), _null_in_nothing.set(null_in_nothing)
    try:
        return deep_recursion(
            lambda: unwrap(_connect(parts["_expr"]) if "_expr" in parts else _classic(parts["_jc"].node()))
        )
    except RecursionError:
        raise PlanError(
            f"The Column is nested too deeply to be planned: calls, CASE and NOT may be nested about {LEVELS} times.",
            hint="Compute part of it as a column of the left side first, with withColumn.",
        ) from None
    finally:
        _escapes.reset(before)
        _null_in_nothing.reset(before_nothing)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────


def _call(name: str, args: Sequence[str]) -> str:
    word = name.lower()
    if word in _INFIX and len(args) == 2:
        return f"({args[0]} {_INFIX[word]} {args[1]})"
    if word in _PREFIX and len(args) == 1:
        return f"({_PREFIX[word]}{args[0]})"
    if word in _SUFFIX and len(args) == 1:
        return f"({args[0]}{_SUFFIX[word]})"
    if word == "in" and len(args) == 1:
        return _in_nothing(args[0])
    if word == "in":
        return f"({args[0]} IN ({', '.join(args[1:])}))"
    if word in ("like", "ilike") and len(args) == 3:
        return f"({args[0]} {_INFIX[word]} {args[1]} ESCAPE {args[2]})"
    function = word if name.isidentifier() else _name(name.split("."))
    return f"{function}({', '.join(args)})"


_Function = tuple[str, list[Any]]
"""The name and the arguments of a call."""


def _function(node: Any, call: Callable[[Any], _Function | None], write: Callable[[Any], str]) -> str:
    """Write a call; a chain of one operator, such as ``a | b | c``, without parentheses and without recursion."""
    name, args = call(node) or ("", [])
    if name.lower() in NAMING_FUNCTIONS:
        return _call(name, [_named_argument(argument, write) for argument in args])
    operator = _INFIX.get(name.lower(), "") if len(args) == 2 else ""
    if operator not in _CHAINED:
        return _call(name, [write(argument) for argument in args])
    operands = []
    found: _Function | None = (name, args)
    while found is not None and found[0] == name and len(found[1]) == 2:
        node, last = found[1]
        operands.append(last)
        found = call(node)
    return f"({f' {operator} '.join(write(operand) for operand in [node, *reversed(operands)])})"


def _named_argument(argument: Any, write: Callable[[Any], str]) -> str:
    """Write an argument of `struct`, which takes the name of one that has an alias."""
    name = _alias(argument)
    return write(argument) if name is None else named_sql(write(argument), name)


_CHAINED = ("AND", "OR", "+", "-", "*", "&", "|", "^")
"""Operators that Spark reads from the left, and whose left operand needs no brackets where it has the same one."""


def _in_nothing(value: str) -> str:
    """Write a condition that is false; in a session where NULL IN () is NULL, it is NULL for a value that is NULL."""
    return f"CASE WHEN {value} IS NOT NULL THEN FALSE END" if _null_in_nothing.get() else "FALSE"


def _case(branches: Sequence[tuple[str, str]], otherwise: str | None) -> str:
    cases = "".join(f" WHEN {unwrap(condition)} THEN {value}" for condition, value in branches)
    return f"CASE{cases}{'' if otherwise is None else f' ELSE {otherwise}'} END"


def _lambda(variables: Sequence[str], body: str) -> str:
    names = ", ".join(quote(name) for name in variables)
    return f"{f'({names})' if len(variables) > 1 else names} -> {body}"


def _name(parts: Sequence[str]) -> str:
    return ".".join(quote(part) for part in parts)


def _literal(value: Any, type_: str = "") -> str:
    """Write a Python value; ``type_`` is Spark's name of its type, if the value alone does not determine it."""
    if value is None:
        return "NULL" if type_ in ("", "void") else f"CAST(NULL AS {sql_type(type_)})"
    for kind, write in _WRITERS:
        if isinstance(value, kind):
            return write(value, type_)
    raise _unsupported_error(f"a literal of type {type(value).__name__}")


def _integer(value: int, type_: str) -> str:
    own = "int" if -(2**31) <= value < 2**31 else "bigint"
    return str(value) if type_ in ("", own) else f"CAST({value} AS {type_.upper()})"


def _floating(value: float, type_: str) -> str:
    if not math.isfinite(value):
        return f"CAST('{str(value).replace('nan', 'NaN').replace('inf', 'Infinity')}' AS {type_.upper() or 'DOUBLE'})"
    text = repr(value) if "e" in repr(value) else f"{value!r}E0"
    return text if type_ in ("", "double") else f"CAST({text} AS {type_.upper()})"


def _decimal(value: Decimal, _type: str) -> str:
    text = format(value, "f")
    return text if "." in text else f"CAST({text} AS DECIMAL({len(value.as_tuple().digits)},0))"


def _string(value: str, _type: str) -> str:
    # Spark substitutes variables in text, but not in a Column's literal.
    if "${" in value or not _escapes.get():
        return string_sql(value)
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _moment(value: datetime, type_: str) -> str:
    if type_ == "timestamp_ntz":
        return f"TIMESTAMP_NTZ '{value.isoformat(sep=' ')}'"
    return f"TIMESTAMP_LTZ '{value.isoformat(sep=' ')}Z'"


_WRITERS: list[tuple[type, Callable[[Any, str], str]]] = [
    (bool, lambda value, _: str(value).upper()),
    (int, _integer),
    (float, _floating),
    (Decimal, _decimal),
    (str, _string),
    (bytes, lambda value, _: f"X'{value.hex().upper()}'"),
    (bytearray, lambda value, _: f"X'{value.hex().upper()}'"),
    (datetime, _moment),
    (date, lambda value, _: f"DATE '{value.isoformat()}'"),
]


def _unsupported_error(what: str) -> PlanError:
    return PlanError(
        f"A Column with {what} cannot be planned.", hint='Write the condition as SQL text, as in on="o.id = c.id".'
    )


def _alias(node: Any) -> str | None:
    """Return the name that a node gives to its value, if it gives it one."""
    if type(node).__name__ == "ColumnAlias":
        return str(node._alias[0])
    is_alias = hasattr(node, "getClass") and node.getClass().getSimpleName() == "Alias"
    return str(node.name().head()) if is_alias else None


# ── classic: Spark's column nodes, by py4j ───────────────────────────────────────────────────────────────


def _classic(node: Any) -> str:
    kind = node.getClass().getSimpleName()
    if kind not in _CLASSIC:
        raise _unsupported_error(f"{kind} ({node.sql()})")
    return _CLASSIC[kind](node)


def _each(items: Any) -> Iterator[Any]:
    return (items.apply(position) for position in range(items.size()))


def _classic_attribute(node: Any) -> str:
    parts = list(_each(node.nameParts()))
    return _name([LEFT, *parts] if node.planId().isDefined() else parts)


def _read_resolved(node: Any) -> str:
    """Read a column that was taken from a DataFrame by name."""
    if node.expression().getClass().getSimpleName() != "AttributeReference":
        raise _unsupported_error(f"the resolved expression {node.sql()}")
    return _name([LEFT, node.expression().name()])


def _classic_literal(node: Any) -> str:
    type_ = node.dataType().get().simpleString() if node.dataType().isDefined() else ""
    return _literal(_from_java(node.value()), type_ or _java_type(node.value()))


def _java_type(value: Any) -> str:
    return "timestamp_ntz" if _java_class(value) == "java.time.LocalDateTime" else ""


def _java_class(value: Any) -> str:
    return str(value.getClass().getName()) if hasattr(value, "getClass") else ""


def _from_java(value: Any) -> Any:
    kind = _java_class(value)
    if kind in ("java.sql.Date", "java.time.LocalDate"):
        return date.fromisoformat(value.toString())
    if kind == "java.sql.Timestamp":
        seconds = value.getTime() // 1000
        return _EPOCH + timedelta(seconds=seconds, microseconds=value.getNanos() // 1000)
    if kind == "java.time.Instant":
        return _EPOCH + timedelta(seconds=value.getEpochSecond(), microseconds=value.getNano() // 1000)
    if kind == "java.time.LocalDateTime":
        return datetime.fromisoformat(value.toString())
    return value


def _classic_call(node: Any) -> _Function | None:
    if node.getClass().getSimpleName() != "UnresolvedFunction":
        return None
    if node.isInternal() or node.isDistinct():
        raise _unsupported_error(node.sql())
    return node.functionName(), list(_each(node.arguments()))


def _classic_cast(node: Any) -> str:
    mode = node.evalMode().get().getClass().getSimpleName().strip("$") if node.evalMode().isDefined() else ""
    return _cast(_classic(node.child()), sql_type(node.dataType().sql()), mode)


def _cast(sql: str, type_: str, mode: str) -> str:
    if mode.lower() not in ("", "try"):
        raise _unsupported_error(f"a cast in {mode} mode")
    return f"{'TRY_' if mode else ''}CAST({unwrap(sql)} AS {type_})"


def _classic_case(node: Any) -> str:
    branches = [(_classic(pair._1()), _classic(pair._2())) for pair in _each(node.branches())]
    return _case(branches, _classic(node.otherwise().get()) if node.otherwise().isDefined() else None)


def _classic_lambda(node: Any) -> str:
    return _lambda([variable.name() for variable in _each(node.arguments())], _classic(node.function()))


_CLASSIC: dict[str, Callable[[Any], str]] = {
    "UnresolvedAttribute": _classic_attribute,
    "ExpressionColumnNode": _read_resolved,
    "Literal": _classic_literal,
    "UnresolvedFunction": lambda node: _function(node, _classic_call, _classic),
    "SqlExpression": lambda node: f"({node.expression()})",
    "Cast": _classic_cast,
    "CaseWhenOtherwise": _classic_case,
    "UnresolvedExtractValue": lambda node: f"{_classic(node.child())}[{_classic(node.extraction())}]",
    "Alias": lambda node: _classic(node.child()),
    "LambdaFunction": _classic_lambda,
    "UnresolvedNamedLambdaVariable": lambda node: quote(node.name()),
}


# ── Spark Connect: the protocol's expressions ────────────────────────────────────────────────────────────


def _connect(node: Any) -> str:
    kind = type(node).__name__
    if kind not in _CONNECT:
        raise _unsupported_error(f"{kind} ({node})")
    return _CONNECT[kind](node)


def _connect_attribute(node: Any) -> str:
    parts = [
        part[1:-1].replace("``", "`") if part.startswith("`") else part
        for part in re.findall(r"`(?:[^`]|``)*`|[^.`]+", node._unparsed_identifier)
    ]
    return _name([LEFT, *parts] if node._plan_id is not None else parts)


def _connect_literal(node: Any) -> str:
    type_, value = node._dataType.simpleString(), node._value
    if value is not None and type_ == "date":
        value = _EPOCH.date() + timedelta(days=value)
    if value is not None and type_ in ("timestamp", "timestamp_ntz"):
        value = _EPOCH + timedelta(microseconds=value)
    if type_.startswith(("interval", "time(", "array")):
        raise _unsupported_error(f"a literal of type {type_}")
    return _literal(value, "" if type_ in ("string", "binary", "boolean") and value is not None else type_)


def _connect_call(node: Any) -> _Function | None:
    if type(node).__name__ not in ("UnresolvedFunction", "CallFunction"):
        return None
    if getattr(node, "_is_distinct", False):
        raise _unsupported_error(str(node))
    return node._name, list(node._args)


def _connect_cast(node: Any) -> str:
    # A type given as text is parsed by the session's settings here too; a DataType needs no parsing.
    type_ = node._data_type
    name = upper_but_names(type_) if isinstance(type_, str) else sql_type(type_.simpleString())
    return _cast(_connect(node._expr), name, node._eval_mode or "")


def _connect_case(node: Any) -> str:
    branches = [(_connect(condition), _connect(value)) for condition, value in node._branches]
    return _case(branches, None if node._else_value is None else _connect(node._else_value))


def _connect_lambda(node: Any) -> str:
    return _lambda([".".join(variable._name_parts) for variable in node._arguments], _connect(node._function))


_CONNECT: dict[str, Callable[[Any], str]] = {
    "ColumnReference": _connect_attribute,
    "LiteralExpression": _connect_literal,
    "UnresolvedFunction": lambda node: _function(node, _connect_call, _connect),
    "CallFunction": lambda node: _function(node, _connect_call, _connect),
    "SQLExpression": lambda node: f"({node._expr})",
    "CastExpression": _connect_cast,
    "CaseWhen": _connect_case,
    "UnresolvedExtractValue": lambda node: f"{_connect(node._child)}[{_connect(node._extraction)}]",
    "ColumnAlias": lambda node: _connect(node._child),
    "LambdaFunction": _connect_lambda,
    "UnresolvedNamedLambdaVariable": lambda node: quote(".".join(node._name_parts)),
}
