"""Columns of type CHAR(n) of lookup tables: padded once they are fetched, as Spark pads the values that it reads.

The lookup itself fetches the text that the source has, which may be padded or not: no equality with such a column is a
key, and no condition on it is a filter of the lookup. Spark evaluates them all over padded values. Their metadata says
that they are CHAR, so that Spark pads what they are compared with too.
"""

from __future__ import annotations

from sqlglot import exp

from lookupcache.errors import StatementError
from lookupcache.planner.settings import KEPT_LENGTHS, READ_PADDED, Settings
from lookupcache.sql.catalog import SqlTable
from lookupcache.sql.dialect import name_span
from lookupcache.sql.query import Query

_NO_CHAR = (
    "spark.sql.legacy.charVarcharAsString", "spark.sql.legacy.noCharPaddingInPredicate", "spark.sql.charAsVarchar",
    KEPT_LENGTHS,
)  # fmt: skip
"""Settings with which a column of type CHAR is another one for Spark."""


def refuse_settings(query: Query, node: exp.Table, table: SqlTable) -> None:
    """Raise StatementError for a table with columns of type CHAR, where settings give those another meaning."""
    other = _other_setting(query.settings) if table.chars else None
    if other is not None:
        name, value = other
        raise StatementError(
            f"Table {node.name!r} has columns of type CHAR, which are not read with {name} = {value}.",
            hint=f"RESET {name}, or declare the columns STRING.",
            position=query.statement.position(name_span(node.this)),
        )


def _other_setting(settings: Settings) -> tuple[str, str] | None:
    if not settings.on(READ_PADDED):
        return READ_PADDED, "false"
    return next(((name, "true") for name in _NO_CHAR if settings.on(name)), None)
