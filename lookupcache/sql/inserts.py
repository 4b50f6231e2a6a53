"""Runs INSERT, and statement sets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pyspark.sql import DataFrame

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.schema import quote
from lookupcache.sql.detection import concerns
from lookupcache.sql.query import Args, Query, Run, Setting
from lookupcache.sql.refused import refuse
from lookupcache.sql.rewrite import rewrite_query
from lookupcache.sql.statement_target import TableName, insert_target, query_start, words_of
from lookupcache.sql.text import Span, Statement


def read_insert(setting: Setting, statement: Statement, found: Sequence[Token], args: Args) -> Run | None:
    """Return what runs INSERT INTO … SELECT with lookups, which starts a streaming query for a stream.

    Raises StatementError for one that writes to a lookup table.
    """
    _refuse_sink(setting, statement, found)
    if words_of(found)[:1] != ["INSERT"] or not concerns(setting, found) or query_start(found) is None:
        return None
    return lambda: _execute(rewrite_query(setting, statement, found, args), found)


def _refuse_sink(setting: Setting, statement: Statement, found: Sequence[Token]) -> None:
    sink = insert_target(found)
    if sink is not None and sink.plain is not None and sink.plain in setting.catalog.tables:
        raise StatementError(
            f"{sink.plain!r} is a lookup table, which is read-only.",
            hint="Write to a table of Spark's, or to files.",
            position=statement.position(statement.span_within(sink.start, sink.end)),
        )


def _execute_all(planned: Sequence[tuple[Query, Sequence[Token]]]) -> None:
    """Run INSERTs in order, if Spark accepts all of them: those behind the first are checked before it is run."""
    for query, _ in planned[1:]:
        if not _writes_stream(query):
            query.check()
    for query, words in planned:
        _execute(query, words)


def _writes_stream(query: Query) -> bool:
    """Return whether a query reads a stream, by a lookup or by a view that has one."""
    return any(view.isStreaming for view in query.views.values()) or query.sql(query.edited).isStreaming


def _execute(query: Query, found: Sequence[Token]) -> DataFrame:
    sink = insert_target(found)
    if sink is None or not _writes_stream(query):
        return query.run()
    return start_stream(query.df(), sink, found)


def start_stream(rows: DataFrame, sink: TableName, found: Sequence[Token]) -> DataFrame:
    """Start a streaming query that writes rows to a table, by the order of the columns; return its sink and its id."""
    name = ".".join(map(quote, sink.parts))
    columns = _listed(sink, found) or rows.sparkSession.table(name).columns
    rows = rows.toDF(*columns) if len(columns) == len(rows.columns) else rows
    started = rows.writeStream.toTable(name)
    return rows.sparkSession.createDataFrame([(name, str(started.id))], "sink STRING, query STRING")


def _listed(sink: TableName, found: Sequence[Token]) -> list[str]:
    """Return the columns that an INSERT lists behind its table."""
    after = [token for token in found if token.start >= sink.end]
    if len(after) < 3 or after[0].text != "(" or after[2].text not in (",", ")"):
        return []
    closing = next((n for n, token in enumerate(after) if token.text == ")"), 0)
    return [token.name for token in after[1:closing] if token.text != ","]


def read_statement_set(setting: Setting, statement: Statement, found: Sequence[Token], args: Args) -> Run | None:
    """Return what runs EXECUTE STATEMENT SET, or BEGIN STATEMENT SET: all are planned before the first of them runs."""
    if words_of(found)[:4] in (["EXECUTE", "STATEMENT", "SET", "BEGIN"], ["BEGIN", "STATEMENT", "SET", ";"]):
        return lambda: _execute_all(plan_inserts(setting, statement, found, args))
    return None


def plan_inserts(
    setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None
) -> list[tuple[Query, list[Token]]]:
    """Return the planned INSERT statements of a statement set, or of a single statement, with their tokens.

    Args:
        setting: The session.
        statement: The statement.
        found: Its tokens.
        args: The parameters.
    """
    planned, is_set = [], words_of(found)[1:3] == ["STATEMENT", "SET"]
    for part, words in _parts(statement, found) if is_set else [(statement, list(found))]:
        refuse(setting, part, words)
        if words_of(words)[:1] != ["INSERT"]:
            raise StatementError(
                "A statement set can only contain INSERT statements.",
                hint="Write EXECUTE STATEMENT SET BEGIN INSERT INTO … SELECT …; … END.",
                position=part.position(part.span),
            )
        _refuse_sink(setting, part, words)
        planned.append((rewrite_query(setting, part, words, args), words))
    return planned


def _parts(statement: Statement, found: Sequence[Token]) -> list[tuple[Statement, list[Token]]]:
    if words_of(found)[-1:] != ["END"]:
        raise StatementError(
            "A statement set ends with END.",
            hint="Write EXECUTE STATEMENT SET BEGIN …; …; END.",
            position=statement.position(Span(statement.span.end - 1, statement.span.end)),
        )
    start, cuts = statement.span.start, [found[3], *(t for t in found if t.text == ";"), found[-1]]
    parts = []
    for before, after in pairwise(cuts):
        part = statement.part(start + before.end, start + after.start)
        text = part.sql
        part = part.part(part.span.start + len(text) - len(text.lstrip()), part.span.start + len(text.rstrip()))
        if part.sql:
            parts.append((part, list(tokens(part.sql))))
    return parts
