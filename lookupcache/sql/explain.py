"""EXPLAIN: the lookup plans, then Spark's plan."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence

from lookupcache.planner.clauses import Token
from lookupcache.sql.detection import concerns
from lookupcache.sql.passthrough import run_unchanged
from lookupcache.sql.query import Args, Query, Run, Setting
from lookupcache.sql.refused import kind_of, refuse
from lookupcache.sql.rewrite import rewrite_query
from lookupcache.sql.statement_target import words_of
from lookupcache.sql.text import Statement

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
    """Return what explains another statement; without lookups it is Spark's."""
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
