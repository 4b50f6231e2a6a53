"""Filters that SQLite evaluates with Spark's semantics, as SQL."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lookupcache.expr import Call, Column, Expr, Literal, python_value
from lookupcache_sql.dialects import STANDARD_SQL

_WHOLE_IN_A_DOUBLE = 2**53


@dataclass(frozen=True)
class SqliteText:
    """SQL with its parameters, and the columns whose values must fit their types for it to have Spark's semantics."""

    text: str
    parameters: tuple[Any, ...] = ()
    guarded: tuple[Column, ...] = ()


def predicate(expr: Expr, text_order: str) -> SqliteText | None:
    """Return the SQL of a filter, or None if SQLite might evaluate it differently from Spark.

    Columns are written with a plus, so that neither their affinity nor their collation changes a comparison.
    """
    if isinstance(expr, Column):
        return _operand(expr) if _family(expr) == "boolean" else None
    if isinstance(expr, Literal):
        return None
    if expr.op == "is null" and isinstance(expr.args[0], Column):
        return SqliteText(f"{column_text(expr.args[0].name)} IS NULL") if expr.args[0].side == "right" else None
    if expr.op in _COMPARISONS:
        return _comparison(expr, text_order)
    if expr.op not in ("and", "or", "not"):
        return None
    parts = [predicate(argument, text_order) for argument in expr.args]
    if any(part is None for part in parts):
        return None
    inner = [part for part in parts if part is not None]
    if expr.op == "not":
        return replace(inner[0], text=f"(NOT {inner[0].text})")
    return _join_fragments(f" {expr.op.upper()} ", inner)


def _comparison(expr: Call, text_order: str) -> SqliteText | None:
    families = {_family(argument) for argument in expr.args}
    operands = [_operand(argument) for argument in expr.args]
    if None in families or len(families) > 1 or None in operands:
        return None
    [family] = families
    if family == "boolean" and expr.op not in ("=", "<=>"):
        return None
    fragment = _join_fragments(_COMPARISONS[expr.op], [operand for operand in operands if operand is not None])
    if family != "string":
        return fragment
    collation = text_order if expr.op in _ORDERS else "BINARY"
    return replace(fragment, text=f"({fragment.text[1:-1]} COLLATE {collation})")


_COMPARISONS = {"=": " = ", "<": " < ", "<=": " <= ", ">": " > ", ">=": " >= ", "<=>": " IS "}
_ORDERS = ("<", "<=", ">", ">=")


def _join_fragments(word: str, parts: Sequence[SqliteText]) -> SqliteText:
    return SqliteText(
        f"({word.join(part.text for part in parts)})",
        tuple(value for part in parts for value in part.parameters),
        tuple(column for part in parts for column in part.guarded),
    )


def _operand(expr: Expr) -> SqliteText | None:
    if isinstance(expr, Column):
        return SqliteText(f"+{column_text(expr.name)}", guarded=(expr,)) if expr.side == "right" else None
    if not isinstance(expr, Literal):
        return None
    value = python_value(expr)
    return None if isinstance(value, float) and math.isnan(value) else SqliteText("?", (value,))


def _family(expr: Expr) -> str | None:
    """Return which operands an expression may be compared with; FLOAT has none, since SQLite has only doubles."""
    families = {
        "integer": pa.types.is_integer(expr.type),
        "double": pa.types.is_float64(expr.type),
        "string": pa.types.is_string(expr.type),
        "boolean": pa.types.is_boolean(expr.type),
    }
    return next((family for family, is_it in families.items() if is_it), None)


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
    return f"t.{STANDARD_SQL.quote(name)}"
