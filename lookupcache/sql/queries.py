"""Runs queries, and the statements that contain one: CREATE … AS, views, INSERT, statement sets, DESCRIBE, EXPLAIN."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from pyspark.sql import DataFrame
from sqlglot import exp

from lookupcache.errors import LookupCacheError, StatementError
from lookupcache.planner.clauses import Token
from lookupcache.planner.depth import deep_recursion
from lookupcache.schema import quote
from lookupcache.sql.catalog import LookupView, SqlTable
from lookupcache.sql.derived import table_of_query
from lookupcache.sql.detection import concerns, kind_of, refuse, run_unchanged
from lookupcache.sql.dialect import span_of, too_deep
from lookupcache.sql.query import Args, Query, Run, SqlContext, no_query
from lookupcache.sql.rewrite import read_query, rewrite_query
from lookupcache.sql.stream_inserts import StreamInsert
from lookupcache.sql.text import Span, Statement
from lookupcache.sql.token_reader import QUERIES, TableName, TokenReader, insert_target, query_start, words_of


def run_query(context: SqlContext, statement: Statement, args: Args = None) -> DataFrame:
    """Run a query, or a statement that contains one; without a lookup it is passed to Spark unchanged."""
    found = statement.tokens
    if not concerns(context, found) or words_of(found)[:1][0] not in (*QUERIES, "CREATE", "REPLACE", "("):
        return run_unchanged(context, statement, args)
    if words_of(found)[0] in ("CREATE", "REPLACE") and (query_start(found) is None or not _creates_table(found)):
        _refuse_lookups(context, statement, args)
        return run_unchanged(context, statement, args)
    query = rewrite_query(context, statement, args)
    return query.run() if query.edits.made else run_unchanged(context, statement, args)


def _creates_table(found: Sequence[Token]) -> bool:
    reader = TokenReader(found)
    reader.skip("CREATE", "OR", "REPLACE", "EXTERNAL")
    return reader.take("TABLE")


def _refuse_lookups(context: SqlContext, statement: Statement, args: Args) -> None:
    """Raise StatementError for a query with lookups of which Spark would keep the text, as that of a function."""
    if query_start(statement.tokens) is None:
        return
    for before, token in pairwise(statement.tokens):
        if before.text == "STREAM" and token.name in context.catalog.tables:
            raise no_query(statement, statement.span_of(token))
    query = read_query(context, statement, args)
    for node in query.find(exp.Table):
        if query.table_of(node) is not None:
            raise no_query(statement, span_of(node))


def read_describe(context: SqlContext, statement: Statement, args: Args) -> Run | None:
    """Return a function that runs DESCRIBE of a query with lookups, whose columns Spark's analysis gives."""
    reader = TokenReader(statement.tokens)
    if not (reader.take("DESCRIBE") or reader.take("DESC")):
        return None
    # DESCRIBE TABLE t describes a table, DESCRIBE QUERY TABLE t a query.
    begins = (*QUERIES, "(") if reader.take("QUERY") else (*QUERIES[:4], "(")
    if not reader.rest or reader.rest[0].text not in begins or not concerns(context, statement.tokens):
        return None
    inner = statement.part(statement.span.start + reader.rest[0].start)
    schema = rewrite_query(context, inner, args).schema
    rows = [(column.name, column.dataType.simpleString(), None) for column in schema]
    return lambda: context.spark.createDataFrame(rows, "col_name STRING, data_type STRING, comment STRING")


# ── EXPLAIN ─────────────────────────────────────────────────────────────────────────────────────────────────


_MODES = {
    "EXTENDED": "extended", "CODEGEN": "codegen", "COST": "cost", "FORMATTED": "formatted", "ESTIMATED_COST": "cost",
    "CHANGELOG_MODE": "simple", "JSON_EXECUTION_PLAN": "simple", "PLAN": "simple", "FOR": "simple",
}  # fmt: skip


def mode_of(found: Sequence[Token]) -> tuple[str, int]:
    """Return Spark's mode for the words that follow EXPLAIN, Flink's or Spark's, and how many words to skip."""
    mode, number = "simple", 1
    while number < len(found) - 1 and (found[number].text in _MODES or found[number].text == ","):
        selected = _MODES.get(found[number].text, "simple")
        mode, number = selected if selected != "simple" else mode, number + 1
    return mode, number


def explain_query(query: Query, mode: str) -> str:
    """Return the lookup plans of a query, the remaining Spark SQL, and Spark's plan of it."""
    df = query.df()
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        df.explain(mode=mode)
    parts = [f"Full scan: {one.table}, which is not looked up: {one.reason}" for one in query.full_scans]
    parts += [join.explain() for join in query.joins]
    return "\n\n".join([*parts, f"== Spark SQL ==\n{query.spark_sql.strip()}", shown.getvalue().strip()])


def read_explain(context: SqlContext, statement: Statement, args: Args) -> Run | None:
    """Return a function that explains another statement; without lookups, Spark explains it."""
    found = statement.tokens
    if words_of(found)[:1] != ["EXPLAIN"] or words_of(found)[1:2] == ["TABLE"]:
        return None
    mode, skipped = mode_of(found)
    if skipped >= len(found):
        return lambda: run_unchanged(context, statement, args)
    inner = statement.part(statement.span.start + found[skipped].start)
    refuse(context, inner)
    if not concerns(context, inner.tokens) or kind_of(inner.tokens) is not None:
        mode_word = "" if mode == "simple" else mode.upper()
        return lambda: run_unchanged(context, Statement.of(f"EXPLAIN {mode_word} {inner.written}"), args)
    text = explain_query(rewrite_query(context, inner, args), mode)
    return lambda: context.spark.createDataFrame([(text,)], "plan STRING")


# ── views ───────────────────────────────────────────────────────────────────────────────────────────────────


def read_view(context: SqlContext, statement: Statement, args: Args) -> Run | None:
    """Return a function that creates a view, or caches a table, from a query that may use lookups."""
    found = statement.tokens
    words = words_of(found)[:6]
    kept = (words[:1] == ["CREATE"] and "VIEW" in words) or words[:2] in (["CACHE", "TABLE"], ["CACHE", "LAZY"])
    if kept and (concerns(context, found) or _reads_view(context, found)) and query_start(found) is not None:
        return lambda: _create_view(context, statement, args)
    return None


def _reads_view(context: SqlContext, found: Sequence[Token]) -> bool:
    """Return whether a statement names a view of a lookup table, so that another view may be one as well."""
    return any(token.name in context.catalog.views for token in found if token.kind in ("word", "quoted"))


def _create_view(context: SqlContext, statement: Statement, args: Args) -> DataFrame:
    """Create a temporary view of a query with lookups: Spark keeps its plan, not its text with our internal views."""
    query = rewrite_query(context, statement, args, is_looked_up=_is_looked_up(context, statement, args))
    found, words = statement.tokens, words_of(statement.tokens)
    if query.views and words[0] == "CREATE":
        before = words[: words.index("VIEW")]
        if not {"TEMPORARY", "TEMP"} & set(before) or "GLOBAL" in before:
            raise StatementError(
                "A view with lookups can only be temporary.",
                hint="Write CREATE [OR REPLACE] TEMPORARY VIEW.",
                position=statement.position(statement.span_within(0, found[words.index("VIEW")].end)),
            )
    with _keep_plans(context):
        made = query.run()
    if words[0] == "CREATE":
        _keep_table(context, query, words, found)
    return made


def _is_looked_up(context: SqlContext, statement: Statement, args: Args) -> bool:
    """Return whether a view is of one lookup table, whose rows a lookup can read where Spark cannot."""
    query = read_query(context, statement, args)
    try:
        created = words_of(statement.tokens)[0] == "CREATE"
        return created and deep_recursion(lambda: table_of_query(query, query.tree)) is not None
    except (LookupCacheError, RecursionError):
        return False


def _keep_table(context: SqlContext, query: Query, words: Sequence[str], found: Sequence[Token]) -> None:
    """Remember a view of one lookup table, so that FOR SYSTEM_TIME AS OF can look its rows up."""
    name = TokenReader(found[words.index("VIEW") + 1 :]).name()
    if name is None or name.plain is None:
        return
    rows = context.spark.table(quote(name.plain))
    table: SqlTable | LookupCacheError | None
    try:
        table = deep_recursion(lambda: table_of_query(query, query.tree, rows.columns))
    except RecursionError:
        table = too_deep(query.statement)
    except LookupCacheError as error:
        table = error
    if table is not None:
        context.catalog.views[name.plain] = LookupView(table, rows)


@contextmanager
def _keep_plans(context: SqlContext) -> Iterator[None]:
    name, conf = "spark.sql.legacy.storeAnalyzedPlanForView", context.spark.conf
    before = conf.get(name, None)
    conf.set(name, "true")
    try:
        yield
    finally:
        conf.set(name, before) if before is not None else conf.unset(name)


# ── INSERT, and statement sets ──────────────────────────────────────────────────────────────────────────────


def read_insert(context: SqlContext, statement: Statement, args: Args) -> Run | None:
    """Return a function that runs INSERT INTO … SELECT with lookups; for a stream, it starts a streaming query.

    Raises StatementError for one that writes to a lookup table.
    """
    _refuse_sink(context, statement)
    found = statement.tokens
    if words_of(found)[:1] != ["INSERT"] or not concerns(context, found) or query_start(found) is None:
        return None
    return lambda: _execute(rewrite_query(context, statement, args))


def _refuse_sink(context: SqlContext, statement: Statement) -> None:
    sink = insert_target(statement.tokens)
    if sink is not None and sink.plain is not None and sink.plain in context.catalog.tables:
        raise StatementError(
            f"{sink.plain!r} is a lookup table, which is read-only.",
            hint="Write to a table of Spark's, or to files.",
            position=statement.position_of(sink),
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
    """Start the streaming query of an INSERT; return its sink and its id."""
    insert = StreamInsert.of(sink, found)
    started = insert.start(rows)
    return rows.sparkSession.createDataFrame([(insert.table, str(started.id))], "sink STRING, query STRING")


def read_statement_set(context: SqlContext, statement: Statement, args: Args) -> Run | None:
    """Return a function that runs EXECUTE STATEMENT SET, or BEGIN STATEMENT SET; it plans all before the first runs."""
    words = words_of(statement.tokens)[:4]
    if words in (["EXECUTE", "STATEMENT", "SET", "BEGIN"], ["BEGIN", "STATEMENT", "SET", ";"]):
        return lambda: _execute_all(plan_inserts(context, statement, args))
    return None


def plan_inserts(context: SqlContext, statement: Statement, args: Args = None) -> list[Query]:
    """Return the planned INSERT statements of a statement set, or of a single statement."""
    planned, is_set = [], "STATEMENT" in words_of(statement.tokens)[:2]
    for part in _parts(statement) if is_set else [statement]:
        refuse(context, part)
        if words_of(part.tokens)[:1] != ["INSERT"]:
            raise StatementError(
                "A statement set can only contain INSERT statements.",
                hint="Write EXECUTE STATEMENT SET BEGIN INSERT INTO … SELECT …; … END.",
                position=part.position(part.span),
            )
        _refuse_sink(context, part)
        planned.append(rewrite_query(context, part, args))
    return planned


def _parts(statement: Statement) -> Iterator[Statement]:
    """Yield the statements of a set, which stand between its first BEGIN and the last END."""
    found, start = statement.tokens, statement.span.start
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
