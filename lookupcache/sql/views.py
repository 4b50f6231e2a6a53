"""Runs CREATE TEMPORARY VIEW and CACHE TABLE … AS over queries with lookups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql import DataFrame

from lookupcache.errors import LookupCacheError, StatementError
from lookupcache.planner.clauses import Token
from lookupcache.schema import quote
from lookupcache.sql.catalog import LookupView, SqlTable
from lookupcache.sql.derived import table_of_query
from lookupcache.sql.detection import concerns
from lookupcache.sql.query import Args, Query, Run, Setting
from lookupcache.sql.rewrite import read_query, rewrite_query
from lookupcache.sql.statement_target import TokenReader, query_start, words_of
from lookupcache.sql.text import Statement


def read_view(setting: Setting, statement: Statement, args: Args) -> Run | None:
    """Return a function that creates a view, or caches a table, from a query that may use lookups."""
    found = statement.words
    words = words_of(found)[:6]
    kept = (words[:1] == ["CREATE"] and "VIEW" in words) or words[:2] in (["CACHE", "TABLE"], ["CACHE", "LAZY"])
    if kept and (concerns(setting, found) or _reads_view(setting, found)) and query_start(found) is not None:
        return lambda: _create_view(setting, statement, args)
    return None


def _reads_view(setting: Setting, found: Sequence[Token]) -> bool:
    """Return whether a statement names a view of a lookup table, so that another view may be one as well."""
    return any(token.name in setting.catalog.views for token in found if token.kind in ("word", "quoted"))


def _create_view(setting: Setting, statement: Statement, args: Args) -> DataFrame:
    """Create a temporary view of a query with lookups: Spark keeps its plan, not its text with our internal views."""
    query = rewrite_query(setting, statement, args, is_looked_up=_is_looked_up(setting, statement, args))
    found, words = statement.words, words_of(statement.words)
    if query.views and words[0] == "CREATE":
        before = words[: words.index("VIEW")]
        if not {"TEMPORARY", "TEMP"} & set(before) or "GLOBAL" in before:
            raise StatementError(
                "A view with lookups can only be temporary.",
                hint="Write CREATE [OR REPLACE] TEMPORARY VIEW.",
                position=statement.position(statement.span_within(0, found[words.index("VIEW")].end)),
            )
    with _keep_plans(setting):
        made = query.run()
    if words[0] == "CREATE":
        _keep_table(setting, query, words, found)
    return made


def _is_looked_up(setting: Setting, statement: Statement, args: Args) -> bool:
    """Return whether a view is of one lookup table, whose rows a lookup can read where Spark cannot."""
    query = read_query(setting, statement, args)
    try:
        return words_of(statement.words)[0] == "CREATE" and table_of_query(query, query.tree) is not None
    except LookupCacheError:
        return False


def _keep_table(setting: Setting, query: Query, words: Sequence[str], found: Sequence[Token]) -> None:
    """Remember a view of one lookup table, so that FOR SYSTEM_TIME AS OF can look its rows up."""
    name = TokenReader(found[words.index("VIEW") + 1 :]).name()
    if name is None or name.plain is None:
        return
    rows = setting.spark.table(quote(name.plain))
    table: SqlTable | LookupCacheError | None
    try:
        table = table_of_query(query, query.tree, rows.columns)
    except LookupCacheError as error:
        table = error
    if table is not None:
        setting.catalog.views[name.plain] = LookupView(table, rows)


@contextmanager
def _keep_plans(setting: Setting) -> Iterator[None]:
    name, conf = "spark.sql.legacy.storeAnalyzedPlanForView", setting.spark.conf
    before = conf.get(name, None)
    conf.set(name, "true")
    try:
        yield
    finally:
        conf.set(name, before) if before is not None else conf.unset(name)
