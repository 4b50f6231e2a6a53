"""Streaming views as lookup tables of their latest values: in scalar sub-queries, and after FOR SYSTEM_TIME AS OF.

    SELECT amount, (SELECT exchange FROM rates) AS rate FROM orders
    SELECT amount, (SELECT exchange FROM rates AS r WHERE r.ccy = o.ccy LIMIT 1) AS rate FROM orders AS o
    SELECT amount, exchange FROM orders AS o
    LEFT JOIN rates FOR SYSTEM_TIME AS OF PROCTIME() AS r ON o.ccy = r.ccy AND r.exchange > 1

Each such use becomes a table of its own, whose key are the columns that its condition compares for equality. The rest
of the rewriting takes it for a lookup table. A sub-query selects first and then takes the last row, so its conditions
on the view alone filter the stream; a join compares with the last row, whatever it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from lookupcache.errors import LookupCacheError, PlanError, StatementError
from lookupcache.planner.clauses import Token
from lookupcache.planner.grammar import equality
from lookupcache.report import is_classic
from lookupcache.schema import quote
from lookupcache.sql.catalog import SqlTable
from lookupcache.sql.conditions import Conjunct, conjuncts_of
from lookupcache.sql.dialect import name_span, span_of
from lookupcache.sql.lookups import is_present, is_temporal
from lookupcache.sql.query import Query, Setting
from lookupcache.sql.scope import Name, Relation, Scope
from lookupcache.sql.text import Span, Statement
from lookupcache.table import LookupTable

PRESENT = "lookup_is_present"
"""A column that is null only where there is no value."""


def reads_streams(setting: Setting, found: Sequence[Token]) -> bool:
    """Return whether a statement without lookup tables may read the latest values of a streaming view."""
    words = [token.text for token in found]
    if ("(", "SELECT") not in pairwise(words):
        return False
    names = {b.name for a, b in pairwise(found) if a.text == "FROM" and a.depth and b.kind in ("word", "quoted")}
    return any(_stream(setting, name) is not None for name in sorted(names))


def refuse_snapshot(statement: Statement, found: Sequence[Token]) -> None:
    """Raise StatementError for Flink's LATERAL TABLE(SNAPSHOT(input => TABLE …)), which the parser cannot read."""
    for lateral, call, after in zip(found, found[2:], found[3:], strict=False):
        calls = call.text.upper() == "SNAPSHOT" and after.text == "("
        if calls and (lateral.text == "TABLE" or found[found.index(call) - 1].text == "LATERAL"):
            start = statement.span.start
            raise StatementError(
                "SNAPSHOT, whose left rows wait until a stream is loaded, is not supported.",
                hint="Write LEFT JOIN … FOR SYSTEM_TIME AS OF PROCTIME() over the streaming view: left rows do not "
                "wait there; those before the first value have nulls.",
                position=statement.position(Span(start + call.start, start + call.end)),
            )


def add_streams(query: Query) -> None:
    """Find the streaming views of a query whose latest values it reads; from now on they are lookup tables of it."""
    known: dict[str, DataFrame | None] = {}
    for use in [*_scalar_uses(query), *_join_uses(query)]:
        name = use.table.name
        if name not in known:
            known[name] = _stream(query.setting, name)
        rows = known[name]
        if rows is None or query.table_of(use.table) is not None or query.is_hidden(use.table):
            continue
        try:
            query.streams[name_span(use.table.this).start] = _sql_table(query, use, rows)
        except LookupCacheError as error:
            raise error.at(query.statement.position(span_of(use.table))) from None


@dataclass(frozen=True, eq=False)
class _Use:
    """A view where its latest values may be read, with the condition; ``scalar`` in a scalar sub-query."""

    table: exp.Table
    condition: exp.Expr | None
    using: tuple[str, ...] = ()
    scalar: bool = False


def _scalar_uses(query: Query) -> Iterator[_Use]:
    for node in query.tree.find_all(exp.Subquery):
        select = node.this
        first = select.args.get("from_") if isinstance(select, exp.Select) else None
        if first is None or not _is_plain(first.this) or select.args.get("joins"):
            continue
        if isinstance(node.parent, exp.From | exp.Join | exp.In | exp.CTE | exp.SetOperation | exp.Subquery | None):
            continue
        if isinstance(node.parent, exp.Lateral):
            continue
        where = select.args.get("where")
        yield _Use(first.this, None if where is None else where.this, scalar=True)


def _join_uses(query: Query) -> Iterator[_Use]:
    for join in query.tree.find_all(exp.Join):
        node = join.this
        moment = node.args["version"].expression if is_temporal(node) else None
        if moment is None or not _is_plain(node):
            continue
        if is_present(moment.unnest()) or isinstance(moment.unnest(), exp.Column):
            yield _Use(node, join.args.get("on"), tuple(name.name for name in join.args.get("using") or []))


def _is_plain(node: Any) -> bool:
    return isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier) and not node.args.get("db")


def _stream(setting: Setting, name: str) -> DataFrame | None:
    """Return a streaming view, None where the name is none or is another relation."""
    if name in setting.catalog.tables:
        return None
    try:
        found = setting.spark.table(quote(name)) if _may_stream(setting.spark, name) else None
    except PySparkException:
        return None
    return found if found is not None and found.isStreaming else None


def _may_stream(spark: SparkSession, name: str) -> bool:
    """Return whether a name may be that of a stream: a temporary view's, of which classic Spark tells cheaply.

    No table is asked for where a metastore would have to answer, since most statements come here only to be Spark's.
    """
    if is_classic(spark):
        return not spark._jsparkSession.sessionState().catalog().getRawTempView(name).isEmpty()
    # Asked for, since PySpark writes an error about a missing table to the log.
    return spark.catalog.tableExists(quote(name))


def _sql_table(query: Query, use: _Use, rows: DataFrame) -> SqlTable:
    alias = use.table.alias or use.table.name
    relation = Relation((alias,), tuple((field.name, field.dataType.simpleString()) for field in rows.schema.fields))
    scope, parts = Scope([[relation]], query.fold), conjuncts_of(query, use.condition)
    key = [relation.column(name, query.fold) or name for name in use.using]
    for part in parts:
        column = _key_column(query, scope, part)
        if column is not None:
            key.append(column)
        elif use.scalar:
            rows = _filter_view(query, use, scope, part, rows, alias)
    if use.scalar:
        rows = rows.selectExpr("*", f"true AS {PRESENT}")
    return SqlTable(LookupTable.from_stream(alias, rows, key=list(dict.fromkeys(key))))


def _key_column(query: Query, scope: Scope, part: Conjunct) -> str | None:
    """Return the view's column that a conjunct compares for equality with something that does not read the view."""
    own = [(name, bound) for name in part.names if (bound := scope.bind(name)) is not None]
    sides = equality(query.statement[part.span])
    if sides is None or len(own) != 1 or len(part.names) == 1:
        return None
    bound = own[0][1]
    return bound.column if query.statement[bound.span] in sides else None


def _filter_view(query: Query, use: _Use, scope: Scope, part: Conjunct, rows: DataFrame, alias: str) -> DataFrame:
    """Return the view's rows for which a conjunct of a sub-query is true, which may read the view alone."""
    if part.foreign or part.is_closed or not all(_is_own(scope, name) for name in part.names):
        raise PlanError(
            f"A sub-query over the streaming view {use.table.name!r} takes the last row of those that it selects; "
            f"which are selected may depend on the outer row by equalities only, not by "
            f"{query.statement[part.span].strip()!r}.",
            hint="Write a LEFT JOIN … FOR SYSTEM_TIME AS OF PROCTIME(), whose condition is compared with the last row.",
        )
    return rows.alias(alias).where(query.statement[part.span])


def _is_own(scope: Scope, name: Name) -> bool:
    return scope.bind(name) is not None
