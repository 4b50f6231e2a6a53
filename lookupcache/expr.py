"""Expressions that a worker can evaluate on Arrow columns with exactly Spark's meaning.

Expressions are built from three kinds of nodes, which are plain data. Spark evaluates all other expressions. So this
module contains only operators with exactly Spark's semantics. They have three-valued logic, NaN equal to itself and
greater than all numbers, -0.0 equal to 0.0, and strings and binaries ordered by their bytes.
"""

from __future__ import annotations

import base64
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias
from typing import Literal as OneOf

import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.schema import quote, shown_type, type_name

Side = OneOf["left", "right"]
Values: TypeAlias = Any
"""A pyarrow Array, ChunkedArray or Scalar."""
Rows: TypeAlias = Any
"""A pyarrow Table or RecordBatch."""


@dataclass(frozen=True)
class Column:
    """A column of the left side or of the lookup table."""

    side: Side
    name: str
    type: pa.DataType


@dataclass(frozen=True)
class Literal:
    """A constant; build it with `literal`, read it with `python_value`.

    ``value`` can be represented in JSON. A timestamp is microseconds since 1970, a date ISO text, a decimal its digits,
    a binary base64. NaN and the infinities are their names.
    """

    value: bool | int | float | str | None
    type: pa.DataType


@dataclass(frozen=True)
class Call:
    """An operator on expressions: one of `OPERATORS`, or outside of conditions one of `VALUE_OPERATORS`."""

    op: str
    args: tuple[Expr, ...]
    type: pa.DataType = pa.bool_()


Expr = Column | Literal | Call


def literal(value: Any, type_: pa.DataType) -> Literal:
    """Return the Literal of a Python value.

    >>> literal(Decimal("1.50"), pa.decimal128(3, 2))
    Literal(value='1.50', type=Decimal128Type(decimal128(3, 2)))
    """
    if isinstance(value, float) and not math.isfinite(value):
        return Literal(str(value), type_)
    if isinstance(value, datetime):
        zone = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        return Literal((zone - _EPOCH) // timedelta(microseconds=1), type_)
    if isinstance(value, date):
        return Literal(value.isoformat(), type_)
    if isinstance(value, Decimal):
        return Literal(format(value, "f"), type_)
    if isinstance(value, bytes | bytearray):
        return Literal(base64.b64encode(value).decode(), type_)
    return Literal(value, type_)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def python_value(node: Literal) -> Any:
    """Return a Literal's value as a database driver expects it: Decimal, date, datetime, bytes, float, ….

    >>> python_value(literal(date(2013, 1, 1), pa.date32()))
    datetime.date(2013, 1, 1)
    """
    value, type_ = node.value, node.type
    if value is None:
        return None
    if pa.types.is_timestamp(type_):
        moment = _EPOCH + timedelta(microseconds=int(value))
        return moment if type_.tz else moment.replace(tzinfo=None)
    if pa.types.is_date(type_):
        return date.fromisoformat(str(value))
    if pa.types.is_decimal(type_):
        return Decimal(str(value))
    if pa.types.is_binary(type_):
        return base64.b64decode(str(value))
    if pa.types.is_floating(type_):
        return float(value)
    return value


def evaluate(expr: Expr, resolve: Callable[[Column], Values]) -> Values:
    """Return the expression's values, one per row; ``resolve`` returns the values of a column.

    >>> ages = pa.array([5, None, 20])
    >>> adult = Call(">", (Column("right", "age", pa.int64()), Literal(18, pa.int64())))
    >>> evaluate(adult, lambda column: ages).to_pylist()
    [False, None, True]
    """
    if isinstance(expr, Column):
        return resolve(expr)
    if isinstance(expr, Literal):
        return pa.scalar(python_value(expr), expr.type)
    arguments = _arguments(expr, resolve)
    if expr.op == "cast":
        return pc.cast(arguments[0], expr.type, safe=False)
    floating = any(pa.types.is_floating(argument.type) for argument in expr.args)
    function = _FLOAT_OPERATORS.get(expr.op) if floating else None
    if expr.op == "try_cast":
        return _fitting(arguments[0], expr.type)
    return (function or OPERATORS.get(expr.op) or VALUE_OPERATORS[expr.op])(*arguments)


def _arguments(expr: Call, resolve: Callable[[Column], Values]) -> list[Values]:
    """Return the arguments' values; one that may fail is computed where the other is not null, as Spark does."""
    if expr.op not in _ENDED_BY_NULL or not any(map(can_fail, expr.args)):
        return [evaluate(argument, resolve) for argument in expr.args]
    first, second = expr.args
    if can_fail(first) and not can_fail(second):
        b = evaluate(second, resolve)
        return [evaluate(first, _where_known(b, resolve)), b]
    a = evaluate(first, resolve)
    return [a, evaluate(second, _where_known(a, resolve))]


def _where_known(values: Values, resolve: Callable[[Column], Values]) -> Callable[[Column], Values]:
    """Return columns that are null where these values are."""
    if values.is_valid if isinstance(values, pa.Scalar) else not values.null_count:
        return resolve
    is_known = pc.is_valid(values)
    return lambda column: pc.if_else(is_known, resolve(column), pa.scalar(None, column.type))


def can_fail(expr: Expr) -> bool:
    """Return whether evaluation may end in an error: an overflow."""
    if not isinstance(expr, Call):
        return False
    fails = expr.op in ("+", "-", "*") and pa.types.is_integer(expr.type)
    return fails or any(map(can_fail, expr.args))


def _by_name(rows: Rows, column: Column) -> Values:
    return rows.column(column.name)


def keep(rows: Rows, conjuncts: Sequence[Expr], resolve: Callable[[Rows, Column], Values] = _by_name) -> Rows:
    """Return the rows for which every conjunct is true (neither false nor null)."""
    for conjunct in conjuncts:
        mask = evaluate(conjunct, functools.partial(resolve, rows))
        if not isinstance(mask, pa.Scalar):
            rows = rows.filter(mask)
        elif not mask.as_py():
            rows = rows.slice(0, 0)
    return rows


def columns_of(expr: Expr) -> Iterator[Column]:
    """Yield every column that the expression reads, once per reference."""
    if isinstance(expr, Column):
        yield expr
    elif isinstance(expr, Call):
        for argument in expr.args:
            yield from columns_of(argument)


def to_json(expr: Expr) -> list[Any]:
    """Return the expression as lists and scalars.

    >>> to_json(Call("is null", (Column("right", "age", pa.int64()),)))
    ['is null', 'boolean', ['right', 'age', 'bigint']]
    """
    if isinstance(expr, Column):
        return [expr.side, expr.name, type_name(expr.type)]
    if isinstance(expr, Literal):
        return ["literal", type_name(expr.type), expr.value]
    return [expr.op, type_name(expr.type), *(to_json(argument) for argument in expr.args)]


def to_text(expr: Expr) -> str:
    """Return the expression as readable text; right columns are unqualified, left columns are ``left.name``.

    >>> to_text(Call(">", (Column("right", "age", pa.int64()), Literal(18, pa.int64()))))
    'age > 18'
    """
    if isinstance(expr, Column):
        name = expr.name if expr.name.isidentifier() else quote(expr.name)
        return name if expr.side == "right" else f"left.{name}"
    if isinstance(expr, Literal):
        return literal_text(expr)
    arguments = [_argument_text(argument, bare=expr.op in ("and", "or", "not")) for argument in expr.args]
    if expr.op == "cast":
        return f"CAST({to_text(expr.args[0])} AS {shown_type(expr.type)})"
    if expr.op == "try_cast":
        return f"TRY_CAST({to_text(expr.args[0])} AS {shown_type(expr.type)})"
    if expr.op in VALUE_OPERATORS:
        return f"{expr.op}({', '.join(map(to_text, expr.args))})"
    if expr.op == "is null":
        return f"{arguments[0]} IS NULL"
    if len(arguments) == 1:
        return f"{expr.op.upper()} {arguments[0]}"
    return f"{arguments[0]} {expr.op.upper()} {arguments[1]}"


def literal_text(node: Literal) -> str:
    """Return a literal as SQL text.

    >>> literal_text(Literal("it's", pa.string())), literal_text(literal(date(2013, 1, 1), pa.date32()))
    ("'it''s'", "DATE '2013-01-01'")
    """
    value = python_value(node)
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    return str(value)


def _argument_text(expr: Expr, *, bare: bool) -> str:
    """Return an argument's text, in parentheses where needed; with ``bare``, comparisons have none."""
    text = to_text(expr)
    if not isinstance(expr, Call) or expr.op in ("cast", "try_cast", *VALUE_OPERATORS):
        return text
    return text if bare and expr.op not in ("and", "or", "+", "-", "*") else f"({text})"


def _null_safe_equal(equal: Callable[[Values, Values], Values], a: Values, b: Values) -> Values:
    both_null = pc.and_(pc.is_null(a), pc.is_null(b))
    return pc.or_(pc.coalesce(equal(a, b), pa.scalar(False, pa.bool_())), both_null)


def _float_equal(a: Values, b: Values) -> Values:
    return pc.or_kleene(pc.equal(a, b), pc.and_kleene(pc.is_nan(a), pc.is_nan(b)))


def _float_less(a: Values, b: Values) -> Values:
    return pc.or_kleene(pc.less(a, b), pc.and_kleene(pc.is_nan(b), pc.invert(pc.is_nan(a))))


def _float_less_equal(a: Values, b: Values) -> Values:
    return pc.invert(_float_less(b, a))


def _swap_arguments(function: Callable[[Values, Values], Values]) -> Callable[[Values, Values], Values]:
    return lambda a, b: function(b, a)


OPERATORS: dict[str, Callable[..., Values]] = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "<=>": functools.partial(_null_safe_equal, pc.equal),
    "and": pc.and_kleene,
    "or": pc.or_kleene,
    "not": pc.invert,
    "is null": pc.is_null,
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
    "starts with": lambda a, b: pc.starts_with(a, pattern=b.as_py()),
    "ends with": lambda a, b: pc.ends_with(a, pattern=b.as_py()),
    "contains": lambda a, b: pc.match_substring(a, pattern=b.as_py()),
}

VALUE_OPERATORS: dict[str, Callable[..., Values]] = {
    "coalesce": pc.coalesce,
    "concat": lambda *parts: pc.binary_join_element_wise(*parts, "", null_handling="emit_null"),
    "if": lambda condition, then, otherwise: pc.if_else(pc.fill_null(condition, False), then, otherwise),
}
"""Operators of computed columns, and ``try_cast`` between integers; no source is offered a filter that has them."""


def _fitting(values: Values, type_: pa.DataType) -> Values:
    """Return integers in a narrower type, null where they do not fit."""
    least, most = -(2 ** (type_.bit_width - 1)), 2 ** (type_.bit_width - 1) - 1
    fits = pc.and_(pc.greater_equal(values, least), pc.less_equal(values, most))
    return pc.cast(pc.if_else(fits, values, pa.scalar(None, values.type)), type_)


_ENDED_BY_NULL = ("=", "<", "<=", ">", ">=", "+", "-", "*")
"""Operators whose result is null where an operand is."""

# Replacements for operands of float types: Arrow compares NaN as unequal to everything, unlike Spark, and float
# arithmetic needs no overflow check.
_FLOAT_OPERATORS: dict[str, Callable[..., Values]] = {
    "=": _float_equal,
    "<": _float_less,
    "<=": _float_less_equal,
    ">": _swap_arguments(_float_less),
    ">=": _swap_arguments(_float_less_equal),
    "<=>": functools.partial(_null_safe_equal, _float_equal),
    "+": pc.add,
    "-": pc.subtract,
    "*": pc.multiply,
}
