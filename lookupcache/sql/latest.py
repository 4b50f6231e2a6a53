"""Streaming views as lookup tables of their latest values: in scalar sub-queries, and after FOR SYSTEM_TIME AS OF.

    SELECT amount, (SELECT exchange FROM rates) AS rate FROM orders
    SELECT amount, (SELECT exchange FROM rates AS r WHERE r.ccy = o.ccy LIMIT 1) AS rate FROM orders AS o
    SELECT amount, exchange FROM orders AS o
    LEFT JOIN rates FOR SYSTEM_TIME AS OF PROCTIME() AS r ON o.ccy = r.ccy AND r.exchange > 1

Each such use becomes a table of its own, whose key are the columns that its condition compares for equality. The rest
of the rewriting takes it for a lookup table. A sub-query filters the stream by its conditions on the view alone, and
then takes the last row. A join compares them with the last row of the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeGuard

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from lookupcache.errors import PlanError
from lookupcache.latest.source import SEVERAL_PER_QUERY, StreamSource
from lookupcache.planner.clauses import Token, tokens
from lookupcache.planner.grammar import equality, null_safe_sides
from lookupcache.report import is_classic
from lookupcache.schema import quote
from lookupcache.sql.catalog import SqlTable
from lookupcache.sql.conditions import Conjunct, common_conjuncts, conjuncts_of
from lookupcache.sql.dialect import name_span, span_of
from lookupcache.sql.lookups import is_present, is_temporal
from lookupcache.sql.query import Args, Query, SqlContext
from lookupcache.sql.scalars import is_value_of_in, queries_of_values
from lookupcache.sql.scope import Relation, Scope
from lookupcache.sql.stream_relations import StreamRelation
from lookupcache.sql.text import Span
from lookupcache.table import LookupTable

PRESENT = "lookup_is_present"
"""A column that is null only where there is no value."""


def reads_streams(context: SqlContext, found: Sequence[Token]) -> bool:
    """Return whether a statement without lookup tables may read the latest values of a streaming view."""
    words = [token.text for token in found]
    if ("(", "SELECT") not in pairwise(words):
        return False
    names = {b.name for a, b in pairwise(found) if a.text == "FROM" and a.depth and b.kind in ("word", "quoted")}
    return any(_stream(context, name) is not None for name in sorted(names))


def read_stream(context: SqlContext, text: str, args: Args) -> DataFrame | None:
    """Return the rows of a query over streaming views, None where it reads none, or is not Spark's alone."""
    words = [token for token in tokens(text) if token.kind in ("word", "quoted")]
    names = {b.name for a, b in pairwise(words) if a.text in ("FROM", "JOIN", "TABLE")}
    if not any(_stream(context, name) is not None for name in sorted(names)):
        return None
    try:
        rows = context.spark.sql(text, **({} if args is None else {"args": args}))
    except PySparkException:
        return None
    return rows if rows.isStreaming else None


def add_streams(query: Query) -> None:
    """Find the streaming views of a query whose latest values it reads; from now on they are lookup tables of it."""
    known: dict[str, DataFrame | None] = {}
    found: dict[int, LookupTable] = {}
    for use in [*_scalar_uses(query), *_join_uses(query)]:
        start = name_span(use.table.this).start
        relation = query.relations.get(start, StreamRelation())
        rows = relation.rows
        table = None if rows is not None else query.table_of(use.table)
        if table is not None:
            if relation.load is not None and table.table.stream is not None:
                query.stand_ins[start] = _with_load(use, table.table, table.table.stream, relation)
            found[start] = query.stand_ins.get(start, table).table
            continue
        if rows is None and query.is_hidden(use.table):
            rows = _common_table(query, use.table)
        elif rows is None:
            name = use.table.name
            if name not in known:
                known[name] = _stream(query.context, name, or_batch=relation.or_batch)
            rows = known[name]
        if rows is None:
            continue
        with query.statement.located(span_of(use.table)):
            query.stand_ins[start] = _sql_table(query, use, rows, relation)
        found[start] = query.stand_ins[start].table
    query.left_orders = frozenset(name for one in found.values() if one.stream for name in one.stream.left_order_by)
    streams = {start: one for start, one in found.items() if one.stream is not None and one.stream.rows.isStreaming}
    if len(streams) > 1:  # They may be side by side, in parts of the statement that are united or joined.
        query.stand_ins |= {
            start: SqlTable(one.with_stream(operator=SEVERAL_PER_QUERY)) for start, one in streams.items()
        }
    for start, relation in query.relations.items():
        if relation.rows is not None and start not in query.stand_ins:
            raise PlanError(
                "The latest row of this query over a stream cannot be read here.",
                hint="Make it the only relation of a scalar sub-query, or write JOIN (SELECT …) FOR SYSTEM_TIME "
                "AS OF PROCTIME() AS alias ON ….",
                position=query.statement.position(Span(start, start + 1)),
            )


def _with_load(use: _Use, table: LookupTable, source: StreamSource, relation: StreamRelation) -> SqlTable:
    """Return a registered table of latest values with SNAPSHOT's arguments."""
    order_by, ttl = source.order_by or relation.order_by, source.ttl if relation.ttl is None else relation.ttl
    renamed = table.renamed(use.table.alias or use.table.name)
    return SqlTable(renamed.with_stream(order_by=order_by, ttl=ttl, load=relation.load))


def _common_table(query: Query, table: exp.Table) -> DataFrame | None:
    """Return the rows of a common table expression over streams, None for any other."""
    # Only the expressions that it reads: for input_file_name, Spark counts the sources of others as well.
    needed = query.needed(table)
    text = query.within(table, f"SELECT * FROM {quote(table.name)}", needed)
    return read_stream(query.context, text, query.args) if needed else None


@dataclass(frozen=True, eq=False)
class _Use:
    """A view where its latest values may be read, with the condition; ``scalar`` in a scalar sub-query.

    ``later`` are the relations after it, which its condition in WHERE may name as well.
    """

    table: exp.Table
    condition: exp.Expr | None
    using: tuple[str, ...] = ()
    scalar: bool = False
    later: tuple[str, ...] = ()


def _scalar_uses(query: Query) -> Iterator[_Use]:
    for node, select, first in queries_of_values(query):
        if _is_plain(first) and (not isinstance(node.parent, exp.In) or is_value_of_in(node)):
            where = select.args.get("where")
            yield _Use(first, None if where is None else where.this, scalar=True)


def _join_uses(query: Query) -> Iterator[_Use]:
    for join in query.find(exp.Join):
        node = join.this
        moment = node.args["version"].expression if is_temporal(node) else None
        if moment is None or not _is_plain(node):
            continue
        if is_present(moment.unnest()) or isinstance(moment.unnest(), exp.Column):
            using = tuple(name.name for name in join.args.get("using") or [])
            condition, later = join.args.get("on"), tuple[str, ...]()
            # The parser adds TRUE to a join without a condition; ON TRUE and ON 1 = 1 mean the same.
            is_bare = condition is None or condition.find(exp.Column, exp.Query) is None
            if is_bare and not using and not join.side and join.kind not in ("SEMI", "ANTI"):
                condition, later = _where_of(join)
            yield _Use(node, condition, using, later=later)


def _where_of(join: exp.Join) -> tuple[exp.Expr | None, tuple[str, ...]]:
    """Return the condition in WHERE of a join that has none of its own, and the relations that are joined after it."""
    select = join.parent
    if not isinstance(select, exp.Select):
        return None, ()
    joins = select.args.get("joins") or []
    after = [one.this.alias_or_name for one in joins[[one is join for one in joins].index(True) + 1 :]]
    where = select.args.get("where")
    return None if where is None else where.this, tuple(after)


def _is_plain(node: exp.Expr) -> TypeGuard[exp.Table]:
    return isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier) and not node.args.get("db")


def _stream(context: SqlContext, name: str, *, or_batch: bool = False) -> DataFrame | None:
    """Return a streaming view, or any view; None for an unknown name and for other relations."""
    if name in context.catalog.tables:
        return None
    try:
        found = context.spark.table(quote(name)) if _may_stream(context.spark, name) else None
    except PySparkException:
        return None
    return found if found is not None and (or_batch or found.isStreaming) else None


def _may_stream(spark: SparkSession, name: str) -> bool:
    """Return whether a name may be that of a stream, which is a temporary view; classic Spark answers that cheaply.

    Tables are not looked up: a metastore would have to answer, and most statements here are Spark's alone.
    """
    if is_classic(spark):
        return not spark._jsparkSession.sessionState().catalog().getRawTempView(name).isEmpty()
    # Asked for, since PySpark writes an error about a missing table to the log.
    return spark.catalog.tableExists(quote(name))


def _sql_table(query: Query, use: _Use, rows: DataFrame, wanted: StreamRelation) -> SqlTable:
    alias = use.table.alias or use.table.name
    relation = Relation((alias,), tuple((field.name, field.dataType.simpleString()) for field in rows.schema.fields))
    if isinstance(use.table.parent, exp.Join) and use.table.parent.method == "NATURAL":
        raise PlanError(
            f"A NATURAL JOIN does not say which columns are the key of {use.table.name!r}.",
            hint="Write JOIN … USING (…).",
        )
    scope, parts = Scope([[relation]], query.fold), conjuncts_of(query, use.condition)
    key = [relation.column(name, query.fold) or name for name in use.using]
    # After LIMIT 1 there is one row: conditions neither choose rows nor make a key.
    for part in () if wanted.is_limited else parts:
        column = _key_column(query, use, scope, part)
        if column is not None:
            key.append(column)
        elif use.scalar and not _is_outer(scope, part):
            rows = _filter_view(query, use, scope, part, rows, alias)
    if not (use.scalar or wanted.is_limited):
        common = (_key_column(query, use, scope, part) for part in common_conjuncts(query, parts))
        key += [column for column in common if column is not None]
    if use.scalar:
        rows = rows.selectExpr("*", f"true AS {PRESENT}")
    elif not key and not wanted.is_limited:
        _refuse_no_key(query, use, scope, parts)
    key = list(dict.fromkeys(key))
    table = LookupTable.from_stream(alias, rows, key=key, order_by=wanted.order_by, ttl=wanted.ttl, load=wanted.load)
    return SqlTable(table)


def _key_column(query: Query, use: _Use, scope: Scope, part: Conjunct) -> str | None:
    """Return the view's column that a conjunct compares for equality with something that does not read the view."""
    own = [(name, bound) for name in part.names if (bound := scope.bind(name)) is not None]
    later = {query.fold(name) for name in use.later}
    qualifiers = {query.fold(name.parts[0]) for name in part.names if len(name.parts) > 1}
    if len(own) != 1 or len(part.names) == 1 or later & qualifiers:
        return None
    sides, bound = equality(query.statement[part.span]), own[0][1]
    return bound.column if sides is not None and query.statement[bound.span] in sides else None


def _refuse_no_key(query: Query, use: _Use, scope: Scope, parts: Sequence[Conjunct]) -> None:
    """Raise PlanError where an equality of both sides makes no key: the last row of all would be compared."""
    for part in parts:
        text = query.statement[part.span]
        null_safe = null_safe_sides(text)
        sides = null_safe or equality(text)
        if sides is None or not _compares_sides(part, text, sides, scope):
            continue
        why, cure = "one side has to be a column of it", "Select the expression as a column of a view or sub-query"
        if null_safe is not None:
            why, cure = (
                "it is true for two nulls as well, and a null key has no latest row",
                f"Write {' = '.join(sides)}",
            )
        raise PlanError(
            f"{text.strip()!r} is no key for {use.table.name!r}: {why}.",
            hint=f"{cure}; or add another equality, whose latest row is then compared.",
            position=query.statement.position(part.span),
        )


def _compares_sides(part: Conjunct, text: str, sides: tuple[str, str], scope: Scope) -> bool:
    """Return whether one side of an equality reads the view alone, and the other does not read it."""
    first = text.find(sides[0])
    second = text.find(sides[1], first + len(sides[0]))
    if first < 0 or second < 0:
        return False
    read: list[set[bool]] = [set(), set()]
    for name in part.names:
        read[name.start - part.span.start >= second].add(scope.bind(name) is not None)
    return {True} in read and {False} in read


def _filter_view(query: Query, use: _Use, scope: Scope, part: Conjunct, rows: DataFrame, alias: str) -> DataFrame:
    """Return the view's rows for which a conjunct of a sub-query is true, which may read the view alone."""
    if part.foreign or part.has_query or any(scope.bind(name) is None for name in part.names):
        raise PlanError(
            f"A sub-query over the streaming view {use.table.name!r} takes the last of the rows that it selects. "
            f"It may compare them with the outer row by equalities only, not by "
            f"{query.statement[part.span].strip()!r}.",
            hint="Write a LEFT JOIN … FOR SYSTEM_TIME AS OF PROCTIME(), whose condition is compared with the last row.",
        )
    return rows.alias(alias).where(query.statement[part.span])


def _is_outer(scope: Scope, part: Conjunct) -> bool:
    """Return whether a conjunct of a sub-query reads the outer row alone: it chooses none of the view's rows."""
    return bool(part.names) and not part.has_query and all(scope.bind(name) is None for name in part.names)
