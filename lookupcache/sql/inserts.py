"""Runs INSERT, also behind its query as in Hive's ``FROM … INSERT INTO t SELECT … INSERT …``, and statement sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql import DataFrame

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.schema import quote
from lookupcache.sql.detection import concerns
from lookupcache.sql.query import Args, Query, Setting, nothing
from lookupcache.sql.rewrite import rewrite_query
from lookupcache.sql.statement_target import TableName, insert_target, query_start, words_of
from lookupcache.sql.text import Span, Statement


@dataclass(frozen=True)
class Insert:
    """One of the INSERTs of a statement: its text up to the query, that query without the others, where it begins."""

    prefix: str
    query: Statement
    start: int


def inserts_of(statement: Statement, found: Sequence[Token]) -> list[Insert]:
    """Return the INSERTs that follow the beginning of their query; none in any other statement.

    >>> text = "FROM t INSERT INTO a SELECT x INSERT INTO b SELECT y"
    >>> [(one.prefix, one.query.sql) for one in inserts_of(Statement.of(text), list(tokens(text)))]
    [('INSERT INTO a ', 'FROM t               SELECT x                       '), \
('INSERT INTO b ', 'FROM t                                      SELECT y')]
    """
    words = [token for token in found if token.kind == "word" and not token.depth]
    starts = [token.start for token in words if token.text == "INSERT"]
    if not words or words[0].text not in ("WITH", "FROM") or not starts:
        return []
    made = []
    for start, end in pairwise([*starts, len(statement.sql)]):
        text = statement.sql[start:end]
        begin = query_start(list(tokens(text)))
        if begin is None:
            return []
        others = [span for span in pairwise([*starts, len(statement.sql)]) if span[0] != start]
        offset = statement.span.start
        spans = [Span(offset + first, offset + last) for first, last in (*others, (start, start + begin))]
        made.append(Insert(text[:begin], statement.with_blanks(spans), offset + start))
    return made


def is_insert(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    """Return whether a statement is INSERT INTO … SELECT with lookups, or writes to a lookup table."""
    sink = insert_target(found)
    refused = sink is not None and sink.plain is not None and sink.plain in setting.catalog.tables
    return refused or (
        words_of(found)[:1] == ["INSERT"] and concerns(setting, found) and query_start(found) is not None
    )


def run_insert(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Run INSERT INTO; it is an error for a lookup table, and starts a streaming query for a stream."""
    return _execute(_plan_insert(setting, statement, found, args), found)


def is_query_before_insert(found: Sequence[Token], setting: Setting, statement: Statement) -> bool:
    """Return whether a statement is INSERTs behind a query that may use lookups."""
    return concerns(setting, found) and bool(inserts_of(statement, found))


def run_inserts_behind(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Plan all INSERTs that follow the beginning of their query, then run them in order."""
    _execute_all(_plan_behind(setting, statement, found, args))
    return nothing(setting)


def _plan_behind(
    setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None
) -> list[tuple[Query, list[Token]]]:
    planned = []
    for insert in inserts_of(statement, found):
        head = list(tokens(insert.prefix))
        _refuse_sink(setting, statement.part(insert.start), head)
        words = list(tokens(insert.query.sql))
        planned.append((rewrite_query(setting, insert.query, words, args, insert.prefix), head))
    return planned


def _plan_insert(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> Query:
    _refuse_sink(setting, statement, found)
    return rewrite_query(setting, statement, found, args)


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


def is_statement_set(found: Sequence[Token], _: Setting, __: Statement) -> bool:
    """Return whether a statement is EXECUTE STATEMENT SET, or BEGIN STATEMENT SET."""
    return words_of(found)[:4] in (["EXECUTE", "STATEMENT", "SET", "BEGIN"], ["BEGIN", "STATEMENT", "SET", ";"])


def run_statement_set(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Plan all statements of a set, then run them in order: an error in one is raised before the first runs."""
    _execute_all(plan_inserts(setting, statement, found, args))
    return nothing(setting)


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
    if words_of(found)[1:3] != ["STATEMENT", "SET"]:
        return _plan_inserts_of_one(setting, statement, found, args)
    planned = []
    for part, words in _parts(statement, found):
        if not has_inserts(part, words):
            raise StatementError(
                "A statement set can only contain INSERT statements.",
                hint="Write EXECUTE STATEMENT SET BEGIN INSERT INTO … SELECT …; … END.",
                position=part.position(part.span),
            )
        planned += _plan_inserts_of_one(setting, part, words, args)
    return planned


def has_inserts(statement: Statement, found: Sequence[Token]) -> bool:
    """Return whether a single statement is one or more INSERTs, before or behind their query."""
    return words_of(found)[:1] == ["INSERT"] or bool(inserts_of(statement, found))


def _plan_inserts_of_one(
    setting: Setting, statement: Statement, found: Sequence[Token], args: Args
) -> list[tuple[Query, list[Token]]]:
    if words_of(found)[:1] == ["INSERT"]:
        return [(_plan_insert(setting, statement, found, args), list(found))]
    return _plan_behind(setting, statement, found, args)


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
