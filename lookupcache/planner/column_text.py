"""Writes the parts of a Column as Spark SQL, for both readers of its tree.

A Column of Spark 4 and of Spark Connect is read by `planner.column`, that of classic Spark 3.5 by
`planner.catalyst_column`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from lookupcache.errors import PlanError
from lookupcache.planner.argument_names import NAMING_FUNCTIONS, named_sql
from lookupcache.planner.clauses import string_sql, unwrap, without_comments
from lookupcache.planner.coercion import decimal_of, sql_type
from lookupcache.planner.grammar import split_names
from lookupcache.schema import quote, quote_path

_INFIX = {
    "=": "=", "==": "=", "!=": "<>", "<>": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "<=>", "and": "AND",
    "or": "OR", "+": "+", "-": "-", "*": "*", "/": "/", "%": "%", "&": "&", "|": "|", "^": "^", "div": "DIV",
    "like": "LIKE", "ilike": "ILIKE", "rlike": "RLIKE",
}  # fmt: skip
_PREFIX = {"!": "NOT ", "not": "NOT ", "-": "- ", "~": "~"}
_SUFFIX = {"isnull": " IS NULL", "isnotnull": " IS NOT NULL"}
_WITH_UNIT = ("timestampadd", "timestampdiff")
"""Functions whose first argument is a word in SQL, and a string on Connect."""

EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Writing:
    """How a Column is written.

    - ``escapes``: whether strings have escapes.
    - ``null_in_nothing``: whether NULL is neither in an empty list nor outside of it.
    - ``left``: the qualifier of a column that was taken from a DataFrame, which can only be the left one.
    - ``is_foreign``: whether such a column was taken from another DataFrame.
    - ``with_variables``: returns SQL text with the values of its variables.
    """

    escapes: bool = True
    null_in_nothing: bool = False
    left: str = "left"
    is_foreign: Callable[[Any], bool] = lambda _: False
    with_variables: Callable[[str], str] = str


writing = ContextVar("writing", default=Writing())  # noqa: B039
"""The rules for the Column that this thread writes now."""


def taken_sql(node: Any, name: str, path: Sequence[str]) -> str:
    """Return a column, or with ``*`` all of them, that was taken from a DataFrame, which must be the left one."""
    if writing.get().is_foreign(node):
        raise PlanError(
            f"Column {name!r} was taken from another DataFrame than the left side.",
            hint="Take it from the left side of this join, or name it, as in F.col('c.name') for one of the table.",
        )
    left = writing.get().left
    return quote_path([left, *path]) if path else f"{quote(left)}.*"


def text_sql(text: str) -> str:
    """Write the SQL text of a Column, without its alias; a comment at its end would hide the bracket."""
    return f"({_split_text(text)[0]})"


def _split_text(text: str) -> tuple[str, tuple[str, ...]]:
    return split_names(without_comments(writing.get().with_variables(text)))


def call_sql(name: str, args: Sequence[str]) -> str:
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
    if word in _WITH_UNIT and len(args) == 3 and (unit := re.fullmatch(r"'(\w+)'", args[0])):
        args = [unit[1], *args[1:]]
    function = word if name.isidentifier() else quote_path(name.split("."))
    return f"{function}({', '.join(args)})"


Function = tuple[str, list[Any]]
"""The name and the arguments of a call."""


def function_sql(node: Any, call: Callable[[Any], Function | None], write: Callable[[Any], str]) -> str:
    """Write a call; a chain of one operator, such as ``a | b | c``, without parentheses and without recursion."""
    name, args = call(node) or ("", [])
    if name.lower() in NAMING_FUNCTIONS:
        # Spark's parser names the fields of struct(a['k']) before it knows what a is; in backticks, it does not.
        return f"{quote(name.lower())}({', '.join(_named_argument(argument, write) for argument in args)})"
    operator = _INFIX.get(name.lower(), "") if len(args) == 2 else ""
    if operator not in _CHAINED:
        return call_sql(name, [write(argument) for argument in args])
    operands = []
    found: Function | None = (name, args)
    while found is not None and found[0] == name and len(found[1]) == 2:
        node, last = found[1]
        operands.append(last)
        found = call(node)
    return f"({f' {operator} '.join(write(operand) for operand in [node, *reversed(operands)])})"


def _named_argument(argument: Any, write: Callable[[Any], str]) -> str:
    """Write an argument of a function that takes its alias."""
    sql, name = write(argument), alias_name(argument)
    return sql if name is None else named_sql(sql, name)


_CHAINED = ("AND", "OR", "+", "-", "*", "&", "|", "^")
"""Operators that Spark reads from the left, and whose left operand needs no brackets where it has the same one."""


def _in_nothing(value: str) -> str:
    """Write a condition that is false; in a session where NULL IN () is NULL, it is NULL for a value that is NULL."""
    return f"CASE WHEN {value} IS NOT NULL THEN FALSE END" if writing.get().null_in_nothing else "FALSE"


def case_sql(branches: Sequence[tuple[str, str]], otherwise: str | None) -> str:
    cases = "".join(f" WHEN {unwrap(condition)} THEN {value}" for condition, value in branches)
    return f"CASE{cases}{'' if otherwise is None else f' ELSE {otherwise}'} END"


def lambda_sql(variables: Sequence[str], body: str) -> str:
    names = ", ".join(quote(name) for name in variables)
    return f"{f'({names})' if len(variables) > 1 else names} -> {body}"


def value_sql(value: Any, type_: str = "") -> str:
    """Write a Python value; ``type_`` is Spark's name of its type, if the value alone does not determine it.

    >>> value_sql(2**31 - 1), value_sql(2**31 - 1, "bigint"), value_sql(2**31, "bigint")
    ('2147483647', 'CAST(2147483647 AS BIGINT)', '2147483648')
    >>> value_sql(1.5), value_sql(Decimal("1E+3")), value_sql(Decimal("0.05"), "decimal(10,0)")
    ('1.5D', '1000BD', 'CAST(0.05 AS DECIMAL(10,2))')
    """
    if value is None:
        return "NULL" if type_ in ("", "void") else f"CAST(NULL AS {sql_type(type_)})"
    for kind, write in _WRITERS:
        if isinstance(value, kind):
            return write(value, type_)
    raise unsupported_error(f"a literal of type {type(value).__name__}")


def _integer(value: int, type_: str) -> str:
    own = "int" if -(2**31) <= value < 2**31 else "bigint"
    return str(value) if type_ in ("", own) else f"CAST({value} AS {type_.upper()})"


def _floating(value: float, type_: str) -> str:
    if not math.isfinite(value):
        return f"CAST('{str(value).replace('nan', 'NaN').replace('inf', 'Infinity')}' AS {type_.upper() or 'DOUBLE'})"
    text = f"{value!r}D"  # A setting makes a decimal of a number with an exponent alone.
    return text if type_ in ("", "double") else f"CAST({text} AS {type_.upper()})"


def _decimal(value: Decimal, type_: str) -> str:
    """Write a decimal in its own digits, or in the type's where it has more: clients of Connect say DECIMAL(10,0)."""
    text = format(value, "f")
    whole, _, fraction = text.lstrip("-0").partition(".")
    precision, scale = max(len(whole + fraction), 1), len(fraction)
    given = decimal_of(type_)
    if given is None or (given.precision <= precision and given.scale <= scale):
        return text if fraction else f"{text}BD"
    return f"CAST({text} AS DECIMAL({max(precision, given.precision)},{max(scale, given.scale)}))"


def _string(value: str, _type: str) -> str:
    # Spark substitutes variables in text, but not in a Column's literal.
    if "${" in value or not writing.get().escapes:
        return string_sql(value)
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def moment_of(microseconds: int) -> datetime:
    """Return a number of microseconds since 1970 as a datetime; raises PlanError where Python has no such year."""
    try:
        return EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise unsupported_error("a timestamp outside of the years 1 to 9999") from None


def _moment(value: datetime, type_: str) -> str:
    if type_ == "timestamp_ntz":
        return f"TIMESTAMP_NTZ '{value.isoformat(sep=' ')}'"
    return f"TIMESTAMP_LTZ '{value.isoformat(sep=' ')}Z'"


def _duration(value: timedelta, _type: str) -> str:
    size = abs(value)
    return f"INTERVAL '{'-' * (value.days < 0)}{size.days} {size - timedelta(size.days)}' DAY TO SECOND"


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
    (timedelta, _duration),
]


def unsupported_error(what: str) -> PlanError:
    return PlanError(
        f"A Column with {what} cannot be planned.",
        hint='Write the condition as SQL text, as in on="o.id = c.id", or select the Column after the join. '
        "SQL text may call a Python function that spark.udf.register has named.",
    )


def refuse_changed_struct(_node: Any) -> str:
    raise PlanError(
        "A Column with withField or dropFields cannot be planned: SQL text has no such function.",
        hint="Select it after the join, or before it if it reads the left side alone.",
    )


def cast_sql(sql: str, type_: str, mode: str) -> str:
    if mode.lower() not in ("", "try"):
        raise unsupported_error(f"a cast in {mode} mode")
    return f"{'TRY_' if mode else ''}CAST({unwrap(sql)} AS {type_})"


def alias_name(node: Any) -> str | None:
    """Return the alias of a node, if it has one; raises PlanError for several."""
    if type(node).__name__ == "ColumnAlias":
        return _without_metadata(_only(node._alias), node._metadata is None)
    if type(node).__name__ == "SQLExpression":
        return _name_in_text(node._expr)
    kind = node.getClass().getSimpleName() if hasattr(node, "getClass") else ""
    if kind == "SqlExpression":
        return _name_in_text(node.expression())
    if kind == "MultiAlias" or (kind == "Alias" and not isinstance(node.name(), str) and node.name().size() > 1):
        raise unsupported_error(f"several names ({node.sql()})")
    if kind != "Alias":
        return None
    if isinstance(node.name(), str):  # in Spark 3.5
        return _without_metadata(node.name(), node.explicitMetadata().isEmpty())
    return _without_metadata(str(node.name().head()), node.metadata().isEmpty())


def _name_in_text(text: str) -> str | None:
    names = _split_text(text)[1]
    return _only(names) if names else None


def _without_metadata(name: str, is_plain: bool) -> str:
    if is_plain:
        return name
    raise PlanError(
        f"A Column with the alias {name!r} and metadata cannot be planned.",
        hint="Leave the metadata out, and add it after the join: result.withMetadata(name, metadata).",
    )


def _only(names: Sequence[str]) -> str:
    if len(names) > 1:
        raise unsupported_error(f"several names ({', '.join(names)})")
    return names[0]
