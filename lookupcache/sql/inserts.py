"""Runs INSERT, and statement sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from pyspark.sql import DataFrame

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token
from lookupcache.schema import quote
from lookupcache.sql.detection import concerns
from lookupcache.sql.query import Args, Query, Run, Setting
from lookupcache.sql.refused import refuse
from lookupcache.sql.rewrite import rewrite_query
from lookupcache.sql.statement_target import TableName, insert_target, query_start, words_of
from lookupcache.sql.text import Span, Statement


def read_insert(setting: Setting, statement: Statement, args: Args) -> Run | None:
    """Return a function that runs INSERT INTO … SELECT with lookups; for a stream, it starts a streaming query.

    Raises StatementError for one that writes to a lookup table.
    """
    _refuse_sink(setting, statement)
    found = statement.words
    if words_of(found)[:1] != ["INSERT"] or not concerns(setting, found) or query_start(found) is None:
        return None
    return lambda: _execute(rewrite_query(setting, statement, args))


def _refuse_sink(setting: Setting, statement: Statement) -> None:
    sink = insert_target(statement.words)
    if sink is not None and sink.plain is not None and sink.plain in setting.catalog.tables:
        raise StatementError(
            f"{sink.plain!r} is a lookup table, which is read-only.",
            hint="Write to a table of Spark's, or to files.",
            position=statement.position(statement.span_within(sink.start, sink.end)),
        )


def _execute_all(planned: Sequence[Query]) -> None:
    """Run INSERTs in order, if Spark accepts all of them: those behind the first are checked before it is run."""
    for query in planned[1:]:
        if not _writes_stream(query):
            query.check()
    for query in planned:
        _execute(query)


def _writes_stream(query: Query) -> bool:
    """Return whether a query reads a stream, by a lookup or by a view that has one."""
    return any(view.isStreaming for view in query.views.values()) or query.sql(query.edited).isStreaming


def _execute(query: Query) -> DataFrame:
    found = query.inserted
    sink = insert_target(found)
    return query.run() if sink is None or not _writes_stream(query) else start_stream(query.df(), sink, found)


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


def read_statement_set(setting: Setting, statement: Statement, args: Args) -> Run | None:
    """Return a function that runs EXECUTE STATEMENT SET, or BEGIN STATEMENT SET; it plans all before the first runs."""
    words = words_of(statement.words)[:4]
    if words in (["EXECUTE", "STATEMENT", "SET", "BEGIN"], ["BEGIN", "STATEMENT", "SET", ";"]):
        return lambda: _execute_all(plan_inserts(setting, statement, args))
    return None


def plan_inserts(setting: Setting, statement: Statement, args: Args = None) -> list[Query]:
    """Return the planned INSERT statements of a statement set, or of a single statement."""
    planned, is_set = [], "STATEMENT" in words_of(statement.words)[:2]
    for part in _parts(statement) if is_set else [statement]:
        refuse(setting, part)
        if words_of(part.words)[:1] != ["INSERT"]:
            raise StatementError(
                "A statement set can only contain INSERT statements.",
                hint="Write EXECUTE STATEMENT SET BEGIN INSERT INTO … SELECT …; … END.",
                position=part.position(part.span),
            )
        _refuse_sink(setting, part)
        planned.append(rewrite_query(setting, part, args))
    return planned


def _parts(statement: Statement) -> Iterator[Statement]:
    """Yield the statements of a set, which stand between its first BEGIN and the last END."""
    found, start = statement.words, statement.span.start
    if found[-1].text != "END":
        raise StatementError(
            "A statement set ends with END.",
            hint="Write EXECUTE STATEMENT SET BEGIN …; …; END.",
            position=statement.position(Span(statement.span.end - 1, statement.span.end)),
        )
    begin = next((token for token in found[1:] if token.text == "BEGIN"), found[0])
    for before, after in pairwise([begin, *(token for token in found if token.text == ";"), found[-1]]):
        inside = [token for token in found if before.end <= token.start and token.end <= after.start]
        if inside and inside[0].text != "STATEMENT":  # BEGIN STATEMENT SET;
            yield statement.part(start + inside[0].start, start + inside[-1].end)
