"""Filters as SQL, for databases with typed columns that evaluate them with Spark's semantics.

Filters that are pushed: ``IS NULL``, comparisons of a column with a value or column of its type, booleans, and AND, OR
and NOT of these. Texts are compared by their bytes, not by their collation. The rest stays local: casts, arithmetic
(division, overflow), LIKE, and values that the database cannot hold.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa

from lookupcache.expr import Column, Expr, Literal, python_value
from lookupcache_sql.dialects import Dialect

_COMPARISONS = ("=", "<", "<=", ">", ">=", "<=>")
_ONLY_EQUAL = ("=", "<=>")
_NESTED = (pa.types.is_list, pa.types.is_struct, pa.types.is_map)


class Operands:
    """SQL of values, and of comparing texts by their bytes; a class for each database."""

    dialect: ClassVar[Dialect]

    @classmethod
    def holds(cls, value: Any) -> bool:
        """Return whether the database can represent the value."""
        return True

    @classmethod
    def plain(cls, value: Any, type_: pa.DataType) -> str:
        """Return a value other than null, a boolean or a text as SQL."""
        raise NotImplementedError

    @classmethod
    def by_bytes(cls, text: str) -> str:
        """Return SQL that compares as the UTF-8 bytes of a text."""
        raise NotImplementedError

    @classmethod
    def cast_value(cls, value: str, type_: str) -> str:
        """Return SQL of a value cast to a type of the database; by default as it is."""
        return value


def accepts_filter(expr: Expr, operands: type[Operands]) -> bool:
    """Return whether the database evaluates a filter with Spark's semantics."""
    if isinstance(expr, Column):
        return expr.side == "right" and pa.types.is_boolean(expr.type)
    if isinstance(expr, Literal):
        return False
    if expr.op == "is null":
        [tested] = expr.args
        return isinstance(tested, Column) and tested.side == "right" and not _is_nested(tested.type)
    if expr.op in _COMPARISONS:
        return _is_comparison(expr.op, expr.args, operands)
    return expr.op in ("and", "or", "not") and all(accepts_filter(argument, operands) for argument in expr.args)


def _is_comparison(op: str, sides: tuple[Expr, ...], operands: type[Operands]) -> bool:
    # Without a column it is a constant, which Spark folds.
    if len({side.type for side in sides}) > 1 or all(isinstance(side, Literal) for side in sides):
        return False
    if _is_nested(sides[0].type) or (pa.types.is_boolean(sides[0].type) and op not in _ONLY_EQUAL):
        return False
    return all(_is_operand(side, operands) for side in sides)


def _is_operand(side: Expr, operands: type[Operands]) -> bool:
    if isinstance(side, Column):
        return side.side == "right"
    return isinstance(side, Literal) and (side.value is None or operands.holds(python_value(side)))


def _is_nested(type_: pa.DataType) -> bool:
    return any(is_it(type_) for is_it in _NESTED)


def filter_text(expr: Expr, operands: type[Operands], column: Callable[[Column], str]) -> str:
    """Return an accepted filter as SQL; ``column`` gives the SQL that reads a column."""
    if isinstance(expr, Column):
        return column(expr)
    assert not isinstance(expr, Literal), "a bare value is not accepted"
    if expr.op == "is null":
        [tested] = expr.args
        assert isinstance(tested, Column)
        return f"({column(tested)} IS NULL)"
    if expr.op in _COMPARISONS:
        op = operands.dialect.null_safe_equal if expr.op == "<=>" else expr.op
        return f" {op} ".join(_operand(side, operands, column) for side in expr.args).join("()")
    inner = [filter_text(argument, operands, column) for argument in expr.args]
    return f"(NOT {inner[0]})" if expr.op == "not" else f" {expr.op.upper()} ".join(inner).join("()")


def _operand(side: Expr, operands: type[Operands], column: Callable[[Column], str]) -> str:
    text = column(side) if isinstance(side, Column) else literal_text(side, operands)
    return operands.by_bytes(text) if pa.types.is_string(side.type) else text


def literal_text(node: Any, operands: type[Operands]) -> str:
    """Return a value as SQL."""
    value = python_value(node)
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return operands.dialect.text(value)
    return operands.plain(value, node.type)


def number_text(value: Any) -> str:
    """Return a whole number or a Decimal as SQL, in parentheses, since two minus signs would start a comment."""
    return f"({value:f})" if isinstance(value, Decimal) else f"({value})"


def time_text(value: dt.datetime) -> str:
    """Return a timestamp as databases read it, without its zone.

    >>> time_text(dt.datetime(13, 1, 2, 3, 4, 5, 60))
    '0013-01-02 03:04:05.000060'
    """
    return value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
