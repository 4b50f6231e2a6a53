"""How databases write names and values, and compare texts by their bytes; a class for each database.

Written out, as a worker that imported a library for SQL texts would take twice as long to start.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa

from lookupcache.expr import Literal, python_value


class Dialect:
    """Names and texts of standard SQL; a subclass has the values and operators of its database.

    - ``mark``: the character around a quoted name.
    - ``null_safe_equal``: the operator that holds two nulls equal.
    - ``escapes``: the escape sequence of each character that a text cannot have as it is, besides the apostrophe.
    - ``double``, ``binary``, ``date``, ``moment``, ``local_moment``: literals with braces for the value.
    """

    mark: ClassVar[str] = '"'
    null_safe_equal: ClassVar[str] = "IS NOT DISTINCT FROM"
    escapes: ClassVar[Mapping[str, str]] = {}
    double: ClassVar[str] = "CAST('{!r}' AS DOUBLE PRECISION)"
    binary: ClassVar[str] = "x'{}'"
    date: ClassVar[str] = "CAST('{}' AS DATE)"
    moment: ClassVar[str] = "CAST('{}+00' AS TIMESTAMPTZ)"
    local_moment: ClassVar[str] = "CAST('{}' AS TIMESTAMP)"

    @classmethod
    def quote(cls, name: str) -> str:
        """Return an identifier as SQL.

        >>> Dialect.quote('odd"name')
        '"odd""name"'
        """
        return cls.mark + name.replace(cls.mark, 2 * cls.mark) + cls.mark

    @classmethod
    def text(cls, value: str) -> str:
        """Return a string as SQL.

        >>> print(Dialect.text("it's"))
        'it''s'
        """
        return "".join({"'": "''", **cls.escapes}.get(letter, letter) for letter in value).join("''")

    @classmethod
    def literal(cls, node: Literal) -> str:
        """Return a value as SQL."""
        value = python_value(node)
        if value is None:
            return "NULL"
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if isinstance(value, str):
            return cls.text(value)
        if isinstance(value, bytes):
            return cls.binary.format(value.hex())
        if isinstance(value, dt.datetime):
            return (cls.moment if node.type.tz else cls.local_moment).format(time_text(value))
        return cls.date.format(value.isoformat()) if isinstance(value, dt.date) else cls.number(value, node.type)

    @classmethod
    def number(cls, value: Any, type_: pa.DataType) -> str:
        """Return a number as SQL; whole numbers and decimals in parentheses: two minus signs would start a comment."""
        if isinstance(value, float):
            return cls.double.format(value)
        return f"({value:f})" if isinstance(value, Decimal) else f"({value})"

    @classmethod
    def holds(cls, value: Any) -> bool:
        """Return whether the database can represent a value of a filter; None is null."""
        return True

    @classmethod
    def compares(cls, type_: pa.DataType) -> bool:
        """Return whether the database compares values of a type that is not nested as Spark does."""
        return True

    @classmethod
    def by_bytes(cls, text: str) -> str:
        """Return SQL that compares as the UTF-8 bytes of a text."""
        raise NotImplementedError

    @classmethod
    def cast_value(cls, value: str, type_: str) -> str:
        """Return SQL of a value cast to a type of the database; by default as it is."""
        return value


def time_text(value: dt.datetime) -> str:
    """Return a timestamp as databases read it, without its zone.

    >>> time_text(dt.datetime(13, 1, 2, 3, 4, 5, 60))
    '0013-01-02 03:04:05.000060'
    """
    return value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
