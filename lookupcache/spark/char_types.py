"""Columns of type CHAR(n): strings for Spark, with the type in their metadata, by which it compares them padded."""

from __future__ import annotations

import re

from pyspark.sql import types as T  # noqa: N812

from lookupcache.planner import LeftColumn
from lookupcache.schema import spark_type_name

CHAR_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
"""The metadata in which Spark keeps the declared type of a column."""

_CHAR = re.compile(r"char\(\d+\)", re.IGNORECASE)


def left_column(field: T.StructField) -> LeftColumn:
    """Return a column of a left side for the planner, with the type ``char(n)`` where it was declared so.

    Workers evaluate no expression of that type, since Spark pads the values that it compares with such a column.

    >>> left_column(T.StructField("code", T.StringType(), metadata={CHAR_TYPE: "char(5)"}))
    LeftColumn(name='code', type='char(5)')
    """
    declared = str((field.metadata or {}).get(CHAR_TYPE, ""))
    return LeftColumn(field.name, declared if _CHAR.fullmatch(declared) else spark_type_name(field.dataType))
