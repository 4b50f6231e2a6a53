"""Columns of type CHAR(n): strings for Spark, with the type in their metadata, by which it compares them padded."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.sql import DataFrame
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


def pad(df: DataFrame, lengths: Mapping[str, int]) -> DataFrame:
    """Return a DataFrame with these columns as Spark reads those of type CHAR; longer values stay as they are."""
    if not lengths:
        return df

    def padded(name: str) -> str:
        column = quote(name)
        return f"CASE WHEN length({column}) < {lengths[name]} THEN rpad({column}, {lengths[name]}) ELSE {column} END"

    return df.select(
        *(
            F.expr(padded(name)).alias(name, metadata={CHAR_TYPE: f"char({lengths[name]})"})
            if name in lengths
            else F.col(quote(name))
            for name in df.columns
        )
    )


def keep_metadata(df: DataFrame, source: DataFrame) -> DataFrame:
    """Return a DataFrame whose columns have the metadata of those of the same name, as CHAR, which aggregates lose."""
    known = {field.name: field.metadata for field in source.schema if field.metadata}
    if not known:
        return df
    return df.select(
        *(
            F.col(quote(name)).alias(name, metadata=known[name]) if name in known else F.col(quote(name))
            for name in df.columns
        )
    )
