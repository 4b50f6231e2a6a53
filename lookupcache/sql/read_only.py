"""Refuses statements about a Spark table, such as TRUNCATE or ALTER, that name a lookup table."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token
from lookupcache.sql.query import Args, Setting, nothing
from lookupcache.sql.statement_target import target_of
from lookupcache.sql.text import Statement


def is_read_only(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    """Return whether a statement about a Spark table names a lookup table."""
    target = target_of(found)
    return target is not None and target.name.plain is not None and target.name.plain in setting.catalog.tables


def refuse_target(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Raise StatementError for a statement about a Spark table that names a lookup table."""
    target = target_of(found)
    if target is not None and target.name.plain is not None and target.name.plain in setting.catalog.tables:
        raise StatementError(
            f"{target.name.plain!r} is a lookup table, which does not support {target.verb}.",
            hint=_cure(target.verb),
            position=statement.position(statement.span_within(target.name.start, target.name.end)),
        )
    return nothing(setting)


def _cure(verb: str) -> str:
    if verb.startswith(("SHOW", "DESC")):
        return "Write SHOW COLUMNS IN name, SHOW CREATE TABLE name, or DESCRIBE [EXTENDED] name [column]."
    if verb.endswith(" VIEW") and verb.startswith("CREATE"):
        return "Choose another name: a lookup table's comes before that of a view."
    default = "A lookup table is read-only; write the schema before the name if you mean a Spark table."
    return _CURES.get(verb, default)


_CURES = {
    "DROP VIEW": "Write DROP TABLE.",
    "ALTER TABLE": "Write CREATE OR REPLACE TABLE.",
    "CACHE TABLE": "Write CACHE TABLE name AS SELECT … FROM …, or set 'lookup.cache' = 'ALL'.",
    "CACHE LAZY TABLE": "Write CACHE LAZY TABLE name AS SELECT … FROM …, or set 'lookup.cache' = 'ALL'.",
}
