"""Filters as SQL, for databases that evaluate them with Spark's semantics.

Filters that are pushed: ``IS NULL``, comparisons of a column with a value or column of its type, where all integers are
one, booleans, and AND, OR and NOT of these. Texts are compared by their bytes, not by their collation. The rest stays
local: casts, arithmetic (division, overflow), LIKE, and values and types that the `Dialect` excludes.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from lookupcache.expr import Column, Expr, Literal, python_value
from lookupcache_sql.dialects import Dialect

_COMPARISONS = ("=", "<", "<=", ">", ">=", "<=>")
_ONLY_EQUAL = ("=", "<=>")
_NESTED = (pa.types.is_list, pa.types.is_struct, pa.types.is_map)


def accepts_filter(expr: Expr, dialect: type[Dialect]) -> bool:
    """Return whether the database evaluates a filter with Spark's semantics."""
    if isinstance(expr, Column):
        return expr.side == "right" and pa.types.is_boolean(expr.type) and dialect.compares(expr.type)
    if isinstance(expr, Literal):
        return False
    if expr.op == "is null":
        [tested] = expr.args
        return isinstance(tested, Column) and tested.side == "right" and not _is_nested(tested.type)
    if expr.op in _COMPARISONS:
        return _is_comparison(expr.op, expr.args, dialect)
    return expr.op in ("and", "or", "not") and all(accepts_filter(argument, dialect) for argument in expr.args)


def _is_comparison(op: str, sides: tuple[Expr, ...], dialect: type[Dialect]) -> bool:
    # Without a column it is a constant, which Spark folds.
    types = {"integer" if pa.types.is_integer(side.type) else side.type for side in sides}
    if len(types) > 1 or all(isinstance(side, Literal) for side in sides):
        return False
    type_ = sides[0].type
    if _is_nested(type_) or not dialect.compares(type_) or (pa.types.is_boolean(type_) and op not in _ONLY_EQUAL):
        return False
    return all(_is_operand(side, dialect) for side in sides)


def _is_operand(side: Expr, dialect: type[Dialect]) -> bool:
    if isinstance(side, Column):
        return side.side == "right"
    return isinstance(side, Literal) and dialect.holds(python_value(side))


def _is_nested(type_: pa.DataType) -> bool:
    return any(is_it(type_) for is_it in _NESTED)


def filter_text(
    expr: Expr, dialect: type[Dialect], column: Callable[[Column], str], value: Callable[[Literal], str]
) -> str:
    """Return an accepted filter as SQL; ``column`` gives the SQL that reads a column, ``value`` that of a value."""
    if isinstance(expr, Column):
        return column(expr)
    if isinstance(expr, Literal):
        return value(expr)
    inner = [filter_text(argument, dialect, column, value) for argument in expr.args]
    if expr.op == "is null":
        return f"({inner[0]} IS NULL)"
    if expr.op == "not":
        return f"(NOT {inner[0]})"
    if expr.op not in _COMPARISONS:
        return f" {expr.op.upper()} ".join(inner).join("()")
    op = dialect.null_safe_equal if expr.op == "<=>" else expr.op
    is_text = pa.types.is_string(expr.args[0].type)
    return f" {op} ".join(map(dialect.by_bytes, inner) if is_text else inner).join("()")
