"""Runs queries, statements that contain one such as CREATE TABLE … AS, and DESCRIBE of a query."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from itertools import pairwise

from pyspark.sql import DataFrame
from sqlglot import exp

from lookupcache.planner.clauses import Token
from lookupcache.sql.detection import concerns
from lookupcache.sql.dialect import span_of
from lookupcache.sql.passthrough import run_unchanged
from lookupcache.sql.query import Args, Query, Run, Setting, no_query
from lookupcache.sql.refused import kind_of, refuse
from lookupcache.sql.rewrite import read_query, rewrite_query
from lookupcache.sql.statement_target import QUERIES, TokenReader, query_start, words_of
from lookupcache.sql.text import Statement


def run_query(setting: Setting, statement: Statement, args: Args = None) -> DataFrame:
    """Run a query, or a statement that contains one; without a lookup it is passed to Spark unchanged."""
    found = statement.words
    if not concerns(setting, found) or words_of(found)[:1][0] not in (*QUERIES, "CREATE", "REPLACE", "("):
        return run_unchanged(setting, statement, args)
    if words_of(found)[0] in ("CREATE", "REPLACE") and (query_start(found) is None or not _creates_table(found)):
        _refuse_lookups(setting, statement, args)
        return run_unchanged(setting, statement, args)
    query = rewrite_query(setting, statement, args)
    return query.run() if query.edits.made else run_unchanged(setting, statement, args)


def _creates_table(found: Sequence[Token]) -> bool:
    reader = TokenReader(found)
    reader.skip("CREATE", "OR", "REPLACE", "EXTERNAL")
    return reader.take("TABLE")


def _refuse_lookups(setting: Setting, statement: Statement, args: Args) -> None:
    """Raise StatementError for a query with lookups of which Spark would keep the text, as that of a function."""
    if query_start(statement.words) is None:
        return
    for before, token in pairwise(statement.words):
        if before.text == "STREAM" and token.name in setting.catalog.tables:
            raise no_query(statement, statement.span_within(token.start, token.end))
    query = read_query(setting, statement, args)
    for node in query.find(exp.Table):
        if query.table_of(node) is not None:
            raise no_query(statement, span_of(node))


def read_describe(setting: Setting, statement: Statement, args: Args) -> Run | None:
    """Return a function that runs DESCRIBE of a query with lookups, whose columns Spark's analysis gives."""
    reader = TokenReader(statement.words)
    if not (reader.take("DESCRIBE") or reader.take("DESC")):
        return None
    # DESCRIBE TABLE t describes a table, DESCRIBE QUERY TABLE t a query.
    begins = (*QUERIES, "(") if reader.take("QUERY") else (*QUERIES[:4], "(")
    if not reader.rest or reader.rest[0].text not in begins or not concerns(setting, statement.words):
        return None
    inner = statement.part(statement.span.start + reader.rest[0].start)
    schema = rewrite_query(setting, inner, args).schema
    rows = [(column.name, column.dataType.simpleString(), None) for column in schema]
    return lambda: setting.spark.createDataFrame(rows, "col_name STRING, data_type STRING, comment STRING")


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


def read_explain(setting: Setting, statement: Statement, args: Args) -> Run | None:
    """Return a function that explains another statement; without lookups, Spark explains it."""
    found = statement.words
    if words_of(found)[:1] != ["EXPLAIN"] or words_of(found)[1:2] == ["TABLE"]:
        return None
    mode, skipped = mode_of(found)
    if skipped >= len(found):
        return lambda: run_unchanged(setting, statement, args)
    inner = statement.part(statement.span.start + found[skipped].start)
    refuse(setting, inner)
    if not concerns(setting, inner.words) or kind_of(inner.words) is not None:
        mode_word = "" if mode == "simple" else mode.upper()
        return lambda: run_unchanged(setting, Statement.of(f"EXPLAIN {mode_word} {inner.written}"), args)
    text = explain_query(rewrite_query(setting, inner, args), mode)
    return lambda: setting.spark.createDataFrame([(text,)], "plan STRING")
