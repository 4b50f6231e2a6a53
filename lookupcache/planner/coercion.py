"""The type in which Spark compares two types, and the conversion of keys between them.

Types have Spark's names. Two numbers, two dates or timestamps, or two equal types can be compared. A key may only be
cast if distinct values stay distinct, since a lookup requests one value of the table's own type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lookupcache.errors import PlanError
from lookupcache.schema import upper_but_names

INTEGERS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
"""Integer types, narrow to wide, and the digits that Spark gives each when it meets a decimal."""

_NUMBERS = [*INTEGERS, "float", "double"]
_MOMENTS = {
    frozenset({"date", "timestamp"}): "timestamp",
    frozenset({"date", "timestamp_ntz"}): "timestamp_ntz",
    frozenset({"timestamp", "timestamp_ntz"}): "timestamp",
}
_KEY_TYPES = {*_NUMBERS, "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz"}
_MOST_DIGITS = 38


@dataclass(frozen=True)
class Decimal:
    """A decimal type."""

    precision: int
    scale: int

    @property
    def integer_digits(self) -> int:
        """Digits before the decimal point."""
        return self.precision - self.scale


def decimal_of(type_: str) -> Decimal | None:
    """Parse a decimal type, or an integer type as a decimal of the same range.

    >>> decimal_of("decimal(10,2)"), decimal_of("smallint"), decimal_of("date")
    (Decimal(precision=10, scale=2), Decimal(precision=5, scale=0), None)
    """
    if type_ in INTEGERS:
        return Decimal(INTEGERS[type_], 0)
    found = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", type_)
    return Decimal(int(found[1]), int(found[2])) if found else None


def plain(type_: str) -> str:
    """Return the type that determines comparisons: VARCHAR(n) and CHAR(n) are strings.

    >>> plain("varchar(10)"), plain("decimal(10, 2)")
    ('string', 'decimal(10,2)')
    """
    type_ = type_.replace(", ", ",")
    return "string" if re.fullmatch(r"(var)?char\(\d+\)", type_) else type_


def is_key_type(type_: str) -> bool:
    """Return whether rows can be looked up by a column of this type."""
    return plain(type_) in _KEY_TYPES or type_.startswith("decimal")


def common_type(left: str, right: str, *, ansi: bool = True) -> str | None:
    """Return the type in which Spark compares two types; None if it would parse text as a number, or raise an error.

    >>> common_type("int", "decimal(5,2)"), common_type("float", "int"), common_type("string", "int")
    ('decimal(12,2)', 'double', None)
    """
    left, right = plain(left), plain(right)
    if left == right or right == "void":
        return left
    if left == "void":
        return right
    if left in _NUMBERS and right in _NUMBERS:
        wider = max(left, right, key=_NUMBERS.index)
        return "double" if wider == "float" and ansi else wider
    a, b = decimal_of(left), decimal_of(right)
    if a and b:
        whole, scale = max(a.integer_digits, b.integer_digits), max(a.scale, b.scale)
        return f"decimal({whole + scale},{scale})" if whole + scale <= _MOST_DIGITS else None
    if {left, right} & {"float", "double"} and (a or b):
        return "double"
    return _MOMENTS.get(frozenset({left, right}))


def is_exact(source: str, target: str) -> bool:
    """Return whether a cast keeps distinct values distinct and never fails.

    >>> is_exact("int", "double"), is_exact("bigint", "double"), is_exact("decimal(4,2)", "decimal(6,3)")
    (True, False, True)
    """
    source, target = plain(source), plain(target)
    if source == target or source == "void":
        return True
    a, b = decimal_of(source), decimal_of(target)
    if a and b:
        return a.integer_digits <= b.integer_digits and a.scale <= b.scale
    return (source, target) in _EXACT


_EXACT = {
    ("tinyint", "float"), ("smallint", "float"), ("tinyint", "double"), ("smallint", "double"), ("int", "double"),
    ("float", "double"), ("date", "timestamp"), ("date", "timestamp_ntz"),
}  # fmt: skip
_PER_ZONE = {("date", "timestamp"), ("timestamp_ntz", "timestamp")}
"""Casts that keep values apart in some time zones only."""

_SKIPPED_A_DAY = {
    "Pacific/Apia", "Pacific/Fakaofo", "Pacific/Kiritimati", "Pacific/Enderbury", "Pacific/Kanton",
    "Pacific/Kwajalein", "Kwajalein", "Asia/Manila", "MIT",
}  # fmt: skip
"""Zones where some day does not exist, so that two dates begin at the same one."""


def is_zone_dependent(left: str, right: str) -> bool:
    """Return whether the session's time zone determines if a left key has exactly one counterpart on the right."""
    return (plain(right), plain(left)) in _PER_ZONE


def key_type(left: str, right: str, *, zone: str = "", ansi: bool = True) -> str | None:
    """Return the type in which a left key is compared with a right column, or None if a lookup would not be exact.

    ``zone`` is the session's time zone; it is used if `is_zone_dependent`.

    >>> key_type("decimal(3,1)", "int"), key_type("bigint", "double"), key_type("timestamp_ntz", "timestamp")
    ('decimal(11,1)', None, 'timestamp')
    """
    common = common_type(left, right, ansi=ansi)
    if common is None or not is_key_type(right) or not (plain(left) == "void" or is_key_type(left)):
        return None
    to_common = is_exact(left, common) or (plain(left), common) == ("timestamp_ntz", "timestamp")
    return common if to_common and _has_one_counterpart(plain(right), common, zone) else None


def _has_one_counterpart(right: str, common: str, zone: str) -> bool:
    if (right, common) == ("timestamp_ntz", "timestamp"):
        return zone.upper() in ("UTC", "ETC/UTC", "GMT", "Z", "UCT", "ZULU", "+00:00")
    if (right, common) == ("date", "timestamp"):
        return zone not in _SKIPPED_A_DAY
    return is_exact(right, common)


def key_sql(sql: str, left: str, right: str, common: str) -> str:
    """Return the SQL of the key in the right column's type; it is null if no value of that type is equal.

    ``common`` is the type in which both are compared, by `key_type`.

    >>> key_sql("l.`n`", "bigint", "bigint", "bigint"), key_sql("l.`n`", "int", "bigint", "bigint")
    ('l.`n`', 'CAST(l.`n` AS BIGINT)')
    >>> print(key_sql("l.`n`", "bigint", "int", "bigint"))
    CASE WHEN CAST(TRY_CAST(l.`n` AS INT) AS BIGINT) = l.`n` THEN TRY_CAST(l.`n` AS INT) END
    """
    left, right = plain(left), plain(right)
    if left == right:
        return sql
    if common == right:
        return f"CAST({sql} AS {sql_type(right)})"
    # From the common type, not from the left one: Spark considers INT to FLOAT lossless and drops that step.
    widened = sql if left == common else f"CAST({sql} AS {sql_type(common)})"
    narrowed = f"TRY_CAST({widened} AS {sql_type(right)})"
    return f"CASE WHEN CAST({narrowed} AS {sql_type(common)}) = {_in_parentheses(widened)} THEN {narrowed} END"


def sql_type(type_: str) -> str:
    """Return a type's name in SQL that is the same in any session: the meaning of TIMESTAMP depends on a setting.

    >>> sql_type("timestamp"), sql_type("struct<`timestamp`:array<timestamp>,`a`:timestamp_ntz>")
    ('TIMESTAMP_LTZ', 'STRUCT<`timestamp`:ARRAY<TIMESTAMP_LTZ>,`a`:TIMESTAMP_NTZ>')
    """
    return type_of_any_session(upper_but_names(type_))


def type_of_any_session(type_: str) -> str:
    """Return a type's name as it is written, except TIMESTAMP.

    >>> type_of_any_session("struct<at:timestamp,`timestamp`:timestamp_ntz>")
    'struct<at:TIMESTAMP_LTZ,`timestamp`:timestamp_ntz>'
    """
    return re.sub(
        r"`(?:[^`]|``)*`|\btimestamp\b(?!:)",
        lambda found: found[0] if found[0][0] == "`" else "TIMESTAMP_LTZ",
        type_,
        flags=re.IGNORECASE,
    )


def _in_parentheses(sql: str) -> str:
    return sql if re.fullmatch(r"[lr]\.`(?:[^`]|``)+`", sql) else f"({sql})"


def is_collated(type_: str) -> bool:
    """Return whether strings of a type are compared by a collation, not by their bytes.

    >>> is_collated("string"), is_collated("string collate UTF8_LCASE")
    (False, True)
    """
    return type_.startswith("string collate ")


def mismatch(left: str, left_type: str, right: str, right_type: str) -> PlanError:
    """Return the error for a key that cannot be compared exactly, with the cast that fixes it."""
    return PlanError(
        f"{left} is {upper_but_names(left_type)} and {right} is {upper_but_names(right_type)}: as a key they cannot "
        "be compared without a lossy or surprising cast.",
        hint=cast_hint(f"CAST({left} AS {upper_but_names(right_type)}) = {right}"),
    )


CAST_IT = "Cast it to the column's type"


def cast_hint(example: str) -> str:
    """Return the cure for a value whose type cannot be compared exactly with that of the table's column."""
    return f"{CAST_IT}, as in {example}. Where Spark casts the column instead, its join may match other rows."
