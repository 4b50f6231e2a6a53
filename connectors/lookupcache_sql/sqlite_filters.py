"""Filters that SQLite evaluates with Spark's semantics, where the values fit the types of their columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from lookupcache.expr import Call, Column, Expr
from lookupcache_sql.dialects import Dialect

_WHOLE_IN_A_DOUBLE = 2**53
# FLOAT is not among them, since SQLite has only doubles.
_COMPARED = (pa.types.is_integer, pa.types.is_float64, pa.types.is_string, pa.types.is_boolean)


class SqliteDialect(Dialect):
    """SQLite's operators; values are parameters."""

    null_safe_equal = "IS"

    @classmethod
    def holds(cls, value: Any) -> bool:
        return bool(value == value)  # It takes NaN for NULL.

    @classmethod
    def compares(cls, type_: pa.DataType) -> bool:
        return any(is_it(type_) for is_it in _COMPARED)

    @classmethod
    def by_bytes(cls, text: str) -> str:
        return f"{text} COLLATE BINARY"


class Utf16Dialect(SqliteDialect):
    """That of a file in UTF-16: BINARY compares stored bytes, whose order differs from Spark's."""

    @classmethod
    def by_bytes(cls, text: str) -> str:
        return f"{text} COLLATE code_points"


def compared_columns(expr: Expr) -> Iterator[Column]:
    """Yield the columns whose values must fit their types for a filter to have Spark's semantics."""
    if isinstance(expr, Column):
        yield expr
    elif isinstance(expr, Call) and expr.op != "is null":
        for argument in expr.args:
            yield from compared_columns(argument)


def fits(column: Column) -> str:
    """Return the SQL that checks whether a value fits its column's type, as reading it does."""
    name = column_text(column.name)
    if pa.types.is_string(column.type):
        return f"(typeof({name}) IN ('text', 'null'))"
    if pa.types.is_boolean(column.type):
        return f"({name} IS NULL OR typeof({name}) = 'integer' AND +{name} IN (0, 1))"
    if pa.types.is_float64(column.type):
        whole = f"+{name} BETWEEN {-_WHOLE_IN_A_DOUBLE} AND {_WHOLE_IN_A_DOUBLE}"
        return f"(typeof({name}) IN ('real', 'null') OR typeof({name}) = 'integer' AND {whole})"
    least = -(2 ** (column.type.bit_width - 1))
    whole = f"+{name} = CAST({name} AS INTEGER) AND +{name} BETWEEN {least} AND {-1 - least}"
    return f"({name} IS NULL OR typeof({name}) IN ('integer', 'real') AND {whole})"


def column_text(name: str) -> str:
    """Return a column of the looked-up table as SQL."""
    return f"t.{SqliteDialect.quote(name)}"
