"""Columns of type CHAR(n): strings for Spark, with the type in their metadata, by which it compares them padded."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses
from pyspark.sql import types as T  # noqa: N812

from lookupcache.planner import LeftColumn
from lookupcache.schema import quote

CHAR_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
"""The metadata in which Spark keeps the declared type of a column."""

_CHAR = re.compile(r"char\(\d+\)", re.IGNORECASE)


def left_column(field: T.StructField) -> LeftColumn:
    """Return a column of a left side for the planner, with the type ``char(n)`` where it was declared so.

    A worker evaluates nothing of that type, so that Spark does: it pads what it compares such a column with.

    >>> left_column(T.StructField("code", T.StringType(), metadata={CHAR_TYPE: "char(5)"}))
    LeftColumn(name='code', type='char(5)')
    """
    declared = str((field.metadata or {}).get(CHAR_TYPE, ""))
    return LeftColumn(field.name, declared if _CHAR.fullmatch(declared) else field.dataType.simpleString())


def _replaced(df: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    """Return a DataFrame with other columns in place of those of their names."""
    if not columns:
        return df
    return df.select(*(columns[name] if name in columns else F.col(quote(name)) for name in df.columns))
