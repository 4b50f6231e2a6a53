"""Constant keys: which expressions have one value for the full join, and that value."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from lookupcache import expr
from lookupcache.errors import PlanError
from lookupcache.expr import Literal
from lookupcache.planner.clauses import string_sql, tokens
from lookupcache.planner.coercion import common_type, decimal_of, is_collated, is_exact, key_sql, mismatch, sql_type
from lookupcache.planner.literals import convert, read_literal
from lookupcache.planner.naming import Fragment
from lookupcache.planner.settings import ANSI, MINIMUM_PRECISION, MOMENT_AS_STRING, Analyst, Settings
from lookupcache.schema import type_name

NONDETERMINISTIC = frozenset({
    "rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle", "monotonically_increasing_id",
    "spark_partition_id", "input_file_name", "input_file_block_start", "input_file_block_length", "java_method",
    "reflect", "try_reflect",
})  # fmt: skip
"""Functions whose value changes from row to row though their arguments do not."""

SETTLED_FUNCTIONS = frozenset({
    "abs", "base64", "cast", "char_length", "coalesce", "concat", "concat_ws", "date", "date_add", "date_sub", "decode",
    "encode", "hex", "if", "ifnull", "int", "bigint", "double", "float", "lower", "lpad", "make_date", "md5",
    "negative", "nullif", "nvl", "pow", "power", "replace", "reverse", "rpad", "sha1", "sha2", "smallint", "sqrt",
    "string", "substr", "substring", "timestamp", "timestamp_micros", "timestamp_millis", "timestamp_seconds",
    "tinyint", "to_binary", "to_date", "to_timestamp", "trim", "try_cast", "unbase64", "unhex", "upper", "year",
})  # fmt: skip
"""Functions whose value for an argument never changes; all others are evaluated for each row."""

_LETTERLESS = frozenset({
    "cast", "coalesce", "date", "date_add", "date_sub", "if", "ifnull", "make_date", "nullif", "nvl", "timestamp",
    "timestamp_micros", "timestamp_millis", "timestamp_seconds", "to_date", "to_timestamp", "try_cast", "year",
})  # fmt: skip
"""Those that make no new string, which as a date might be 'today'."""

_MAKES_MOMENT = re.compile("date|time|year|interval", re.IGNORECASE)
_PASSING = re.compile(r"\s*((now|today|tomorrow|yesterday)\b.*|T?\d{1,2}:.*)", re.IGNORECASE | re.DOTALL)
"""A string whose date or timestamp value depends on today."""

_LASTING = re.compile(r"\s*[+-]?\d{4,}(-\d{1,2}(-\d{1,2}([ T].*)?)?)?\s*", re.DOTALL)
"""A string with a fixed date or timestamp, unlike 'now', 'today' and '12:30'."""


def refuse_chance(fragment: Fragment, what: str) -> None:
    """Raise PlanError for an expression, called ``what``, whose value changes from row to row."""
    if found := sorted(fragment.functions & NONDETERMINISTIC):
        raise PlanError(
            f"{what} calls {found[0]}(), whose value changes from call to call.",
            hint="Compute it as a column of the left side first, with withColumn.",
        )


def is_settled(fragment: Fragment, type_: pa.DataType | None = None) -> bool:
    """Return whether an expression without columns has one fixed value when compared with a column of this type.

    A string that is converted to a date or timestamp may depend on the current time: 'today', 'now', '12:30'.
    """
    if not fragment.functions <= SETTLED_FUNCTIONS:
        return False
    found = list(tokens(fragment.text))
    strings = [token.text for token in found if token.kind == "string"]
    if len(found) > 1 and any(_PASSING.fullmatch(string.lstrip("rR")[1:-1]) for string in strings):
        return False
    moment = type_ is not None and pa.types.is_temporal(type_)
    if not strings or not (moment or any(_MAKES_MOMENT.search(t.text.strip("`")) for t in found if t.kind != "string")):
        return True
    return fragment.functions <= _LETTERLESS and all(map(_is_lasting, strings))


def _is_lasting(string: str) -> bool:
    return string[0] not in "rR" and "\\" not in string and _LASTING.fullmatch(string[1:-1]) is not None


def constant_value(
    analyst: Analyst,
    other: Fragment,
    column: str,
    type_: pa.DataType,
    settings: Settings | None = None,
) -> Literal | None:
    """Return the constant's value in the column's type, or a null literal if no value of that type is equal.

    None is returned for a constant with a collation, by which other values are equal too. Raises PlanError, with the
    name ``column``, if the comparison could be lossy.
    """
    settings = settings or Settings()
    ansi = settings.on(ANSI)
    known = None if other.doubtful else read_literal(other.tree, other.text)
    right = type_name(type_)
    if known is not None and known.value is None:
        return _null(known, other, column, type_, ansi)
    if known is not None and pa.types.is_string(known.type) and pa.types.is_temporal(type_):
        if not ansi and settings.on(MOMENT_AS_STRING):
            raise mismatch(other.text, "string", column, right)
        return _check_literal(_moment(analyst, other, known, type_), other, column)
    if known is not None and right.startswith("decimal") and not settings.on(MINIMUM_PRECISION):
        known = None
    left = _literal_type(known, right) if known is not None else analyst.types([other.sql])[0]
    if left == "void":
        return Literal(None, type_)
    if is_collated(left):
        return None
    common = common_type(left, right, ansi=ansi)
    if common is None or not is_exact(right, common):
        raise mismatch(other.text, left, column, right)
    if known is not None and _is_plain(known, type_, common):
        return convert(known, type_) or Literal(None, type_)
    return _check_literal(_fold_constant(analyst, key_sql(other.sql, left, right, common), type_, other), other, column)


def _null(known: Literal, other: Fragment, column: str, type_: pa.DataType, ansi: bool) -> Literal:
    """Return the null of the column's type, unless Spark would not compare the two types at all."""
    right = type_name(type_)
    left = "void" if pa.types.is_null(known.type) else type_name(known.type)
    if left not in ("void", "string") and common_type(left, right, ansi=ansi) is None:
        raise mismatch(other.text, left, column, right)
    return Literal(None, type_)


def _literal_type(known: Literal, right: str) -> str:
    """Return the literal's type; among decimals, an integer literal has only its own digits."""
    if pa.types.is_integer(known.type) and right.startswith("decimal"):
        return f"decimal({len(str(abs(int(known.value or 0))))},0)"
    return type_name(known.type)


def _is_plain(known: Literal, type_: pa.DataType, common: str) -> bool:
    """Return whether `convert` is exact for the comparison in that type."""
    if known.type == type_:
        return True
    if common == "double":
        return type_ == pa.float64() or (type_ == pa.float32() and pa.types.is_floating(known.type))
    return decimal_of(common) is not None


def _moment(analyst: Analyst, other: Fragment, known: Literal, type_: pa.DataType) -> Literal:
    return (convert(known, type_) if pa.types.is_date(type_) else None) or _fold_constant(
        analyst, f"CAST({other.sql} AS {sql_type(type_name(type_))})", type_, other
    )


_JSON_ABLE = {
    "timestamp": "unix_micros({})", "timestamp_ntz": "CAST({} AS STRING)", "date": "CAST({} AS STRING)",
    "binary": "base64({})",
}  # fmt: skip


def _fold_constant(analyst: Analyst, sql: str, type_: pa.DataType, other: Fragment) -> Literal:
    """Let Spark compute the value, in a form that JSON can represent."""
    name = type_name(type_)
    spelling = _JSON_ABLE.get(name, "CAST({} AS STRING)" if name.startswith("decimal") else "{}")
    try:
        value = analyst.fold([spelling.format(sql)])[0]
    except Exception as error:
        raise PlanError(f"Spark cannot compute the constant {other.text!r}: {str(error).splitlines()[0]}") from error
    return Literal(None, type_) if value is None else _literal(value, type_)


def _literal(value: Any, type_: pa.DataType) -> Literal:
    if type_ == pa.timestamp("us"):
        import datetime

        return expr.literal(datetime.datetime.fromisoformat(value), type_)
    if isinstance(value, float):
        return expr.literal(value, type_)
    return Literal(value, type_)


def _check_literal(value: Literal, other: Fragment, column: str) -> Literal:
    """Raise PlanError for a value that no driver accepts."""
    try:
        expr.python_value(value)
    except (ValueError, OverflowError) as error:
        raise PlanError(f"{other.text} is outside of the years 1 to 9999, the range of keys like {column}.") from error
    return value


def moment(analyst: Analyst, text: str, type_: pa.DataType) -> Literal | None:
    """Return the value of a string as a timestamp in this session, or None if that is unclear."""
    if not _LASTING.fullmatch(text):
        return None
    sql = f"CAST('{text}' AS {sql_type(type_name(type_))})"
    if analyst.types([sql]) != [type_name(type_)]:
        return None
    spelling = _JSON_ABLE[type_name(type_)].format(sql)
    try:
        value = analyst.fold([spelling])[0]
        found = None if value is None else _literal(value, type_)
        return found if found is None or expr.python_value(found) else None
    except (ValueError, OverflowError):
        return None


def literal_sql(node: Literal) -> str:
    """Return the SQL of the literal in its own type.

    >>> literal_sql(Literal(10, pa.int64())), literal_sql(Literal("its", pa.string()))
    ('CAST(10 AS BIGINT)', "'its'")
    >>> literal_sql(Literal("it's", pa.string()))
    "CAST(X'69742773' AS STRING)"
    """
    type_, name = node.type, sql_type(type_name(node.type))
    if node.value is None or isinstance(node.value, bool):
        return f"CAST({'NULL' if node.value is None else str(node.value).upper()} AS {name})"
    if type_ == pa.timestamp("us", "UTC"):
        return f"timestamp_micros({node.value})"
    if pa.types.is_binary(type_):
        return f"unbase64('{node.value}')"
    text = str(expr.python_value(node))
    if pa.types.is_string(type_):
        return string_sql(text)
    return f"CAST({text} AS {name})" if pa.types.is_integer(type_) else f"CAST('{text}' AS {name})"
