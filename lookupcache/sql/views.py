"""Runs CREATE TEMPORARY VIEW and CACHE TABLE … AS over queries with lookups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql import DataFrame

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token
from lookupcache.sql.detection import concerns
from lookupcache.sql.query import Args, Setting
from lookupcache.sql.rewrite import rewrite_query
from lookupcache.sql.statement_target import query_start, words_of
from lookupcache.sql.text import Statement


def is_view(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    """Return whether a statement creates a view or caches a table from a query that may use lookups."""
    words = words_of(found)[:6]
    kept = (words[:1] == ["CREATE"] and "VIEW" in words) or words[:2] in (["CACHE", "TABLE"], ["CACHE", "LAZY"])
    return kept and concerns(setting, found) and query_start(found) is not None


def create_view(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Create a temporary view of a query with lookups: Spark keeps its plan, not its text with our internal views."""
    query = rewrite_query(setting, statement, found, args)
    words = words_of(found)
    if query.views and words[0] == "CREATE":
        before = words[: words.index("VIEW")]
        if not {"TEMPORARY", "TEMP"} & set(before) or "GLOBAL" in before:
            raise StatementError(
                "A view with lookups can only be temporary.",
                hint="Write CREATE [OR REPLACE] TEMPORARY VIEW.",
                position=statement.position(statement.span_within(0, found[words.index("VIEW")].end)),
            )
    with _keep_plans(setting):
        return query.run()


@contextmanager
def _keep_plans(setting: Setting) -> Iterator[None]:
    name, conf = "spark.sql.legacy.storeAnalyzedPlanForView", setting.spark.conf
    before = conf.get(name, None)
    conf.set(name, "true")
    try:
        yield
    finally:
        conf.set(name, before) if before is not None else conf.unset(name)
