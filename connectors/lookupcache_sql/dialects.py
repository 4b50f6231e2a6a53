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
    """

    mark: ClassVar[str] = '"'
    null_safe_equal: ClassVar[str] = "IS NOT DISTINCT FROM"
    escapes: ClassVar[Mapping[str, str]] = {}

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
        return cls.text(value) if isinstance(value, str) else cls.plain(value, node.type)

    @classmethod
    def plain(cls, value: Any, type_: pa.DataType) -> str:
        """Return a value other than null, a boolean or a text as SQL."""
        raise NotImplementedError

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


def number_text(value: Any) -> str:
    """Return a whole number or a Decimal as SQL, in parentheses, since two minus signs would start a comment."""
    return f"({value:f})" if isinstance(value, Decimal) else f"({value})"


def time_text(value: dt.datetime) -> str:
    """Return a timestamp as databases read it, without its zone.

    >>> time_text(dt.datetime(13, 1, 2, 3, 4, 5, 60))
    '0013-01-02 03:04:05.000060'
    """
    return value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
