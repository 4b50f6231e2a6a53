"""Passes statements to Spark as they were written; its errors show no secrets."""

from __future__ import annotations

import functools
import re

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from lookupcache.errors import Position, StatementError
from lookupcache.redaction import STARS
from lookupcache.spark.error_log import muted_error_log
from lookupcache.sql.hints import unquote
from lookupcache.sql.query import Args, Setting, no_query
from lookupcache.sql.text import Span, Statement
from lookupcache.versions import condition_of

_BY_CHANCE = 3


def run_unchanged(setting: Setting, statement: Statement, args: Args = None) -> DataFrame:
    """Pass a statement to Spark; raise StatementError in place of an error of Spark's that would show secrets."""
    shown: PySparkException
    try:
        with muted_error_log(bool(statement.hidden)):
            return setting.spark.sql(statement.written, args)
    except PySparkException as error:
        _refuse_unread(setting, statement, error)
        if not _shows(statement, str(error)):
            raise
        shown = error
    rejected = StatementError(
        f"Spark rejects the statement: {_fact(statement, shown)}",
        hint="Write it as Spark's SQL has it. Spark's own error is not shown, since it contains a secret.",
        position=_error_position(statement, shown),
    )
    rejected.refusal = shown
    raise rejected


def _refuse_unread(setting: Setting, statement: Statement, error: PySparkException) -> None:
    """Raise StatementError where Spark does not find a relation that is a lookup table."""
    if condition_of(error) == "UNRESOLVED_ROUTINE" and "PROCTIME" in str(error.getMessageParameters()).upper():
        raise no_query(statement, statement.span) from None
    if condition_of(error) != "TABLE_OR_VIEW_NOT_FOUND":
        return
    name = unquote((error.getMessageParameters() or {}).get("relationName") or "``")
    if name in setting.catalog.tables:
        raise StatementError(
            f"{name!r} is a lookup table, which a statement of this kind cannot read.",
            hint=f"Write CREATE TEMPORARY VIEW … AS SELECT * FROM {name}, and the view's name here.",
            position=_error_position(statement, error),
        ) from None


def _shows(statement: Statement, text: str) -> bool:
    """Return whether an error of Spark's contains a secret."""
    return bool(statement.hidden) and ("== SQL" in text or any(piece in text for piece in _pieces(statement)))


def _pieces(statement: Statement) -> list[str]:
    """Return the secrets, the longest first; very short ones occur in any text by chance."""
    whole = {statement.text[piece.start : piece.end] for piece in statement.hidden}
    # Spark repeats a literal without its quotes, and two quotes in it as one.
    pieces = whole | {part for piece in whole for part in re.split(r"['\"`\\]+", piece)}
    return sorted((piece for piece in pieces if len(piece) > _BY_CHANCE), key=len, reverse=True)


def _fact(statement: Statement, error: PySparkException) -> str:
    """Return Spark's message without the statement's text, with secrets masked."""
    fact = re.split(r"\n+== SQL|;?\s*\(?line \d+,? pos \d+\)?|JVM stacktrace", str(error))[0].strip()
    return functools.reduce(lambda text, piece: text.replace(piece, STARS), _pieces(statement), fact)


def _error_position(statement: Statement, error: PySparkException) -> Position:
    """Return the position that Spark names, or that of the full statement."""
    found = re.search(r"line (\d+),? pos (\d+)", str(error))
    if found is None:
        return statement.position(statement.span)
    lines = statement.sql.splitlines(keepends=True)
    start = statement.span.start + sum(map(len, lines[: int(found[1]) - 1])) + int(found[2])
    return statement.position(Span(start, start + 1))
