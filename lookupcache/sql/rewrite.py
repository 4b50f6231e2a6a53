"""Rewrites the query of a statement: reads it, checks it with Spark, then joins its lookups.

A query with pipes is read in parts: names stand for those that the parser cannot read together with the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from pyspark.errors import PySparkException
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses
from sqlglot import exp

from lookupcache.errors import LookupCacheError, StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.sql.analysis import add_analysis_edits, empty_relation
from lookupcache.sql.derived import add_derived, unread_definitions
from lookupcache.sql.detection import concerns
from lookupcache.sql.dialect import name_span, span_of
from lookupcache.sql.dynamic import columns_called
from lookupcache.sql.full_scans import with_full_scans
from lookupcache.sql.laterals import refuse_unknown
from lookupcache.sql.latest import add_streams, read_stream
from lookupcache.sql.lookups import is_present, is_temporal, refuse_strangers
from lookupcache.sql.outer import may_read_outside
from lookupcache.sql.pipes import Part, part_of, pipes_of, table_operands, without_pipes
from lookupcache.sql.query import Args, InnerQuery, Query, Setting, no_query, query_of, selects
from lookupcache.sql.scalars import scalars_of
from lookupcache.sql.select import rewrite_select
from lookupcache.sql.statement_target import QUERIES, query_start
from lookupcache.sql.stream_relations import name_stream_relations
from lookupcache.sql.text import Span, Statement
from lookupcache.sql.windows import name_windows


def rewrite_query(
    setting: Setting,
    statement: Statement,
    found: Sequence[Token],
    args: Args = None,
    prefix: str = "",
    *,
    is_looked_up: bool = False,
) -> Query:
    """Return the query of a statement, rewritten so that its lookups are joined.

    Args:
        setting: The session, its catalog and its settings.
        statement: The statement.
        found: The tokens of the query.
        args: The values of parameters by name.
        prefix: Text before the query when it is run, such as that of an INSERT.
        is_looked_up: Whether it is a view that can be looked up, so that its table need not be scannable.
    """

    def read() -> Query:
        query = read_query(setting, statement, found, args, prefix)
        query.is_looked_up = is_looked_up
        return query

    return with_full_scans(read(), _with_lookups, read)


def _with_lookups(query: Query) -> Query:
    """Return a query with its lookups joined; Spark's errors, and ours, are raised."""
    every = list(query.family())
    for one in every:
        add_derived(one)
        add_streams(one)
        refuse_strangers(one, one.tree)
        refuse_unknown(one, one.tree)
    for one in reversed(every):
        add_analysis_edits(one)
    _ = query.schema  # Spark reports its errors before any lookup is planned
    _rewrite(query)
    return query


def _rewrite(query: Query) -> None:
    """Join the lookups of a query, and of those inside of it, each where the names that it sees are known."""
    scalars = scalars_of(query, query.tree)
    inner = {id(scalar.select) for scalar in scalars}
    for span, name in query.operands.items():
        query.edits.replace(span, f"(SELECT * FROM {query.scan(name, query.setting.catalog.tables[name])})")
    _scan_tables(query, {id(scalar.select.args["from_"].this) for scalar in scalars})
    for call in query.tree.find_all(exp.Anonymous):
        if call.name.upper() == "PROCTIME" and is_present(call) and call.find_ancestor(exp.Version) is None:
            query.edits.replace(span_of(call), "current_timestamp()")
    rest = list(query.inner.values())
    for select in selects(query.tree):
        part = query.inner_at(select.args["from_"].this) if select.args.get("from_") is not None else None
        if part is not None:
            rest.remove(part)
            _rewrite_inner(query, part)
        if id(select) not in inner:
            own = [scalar for scalar in scalars if scalar.node.find_ancestor(exp.Select) is select]
            rewrite_select(query, select, own)
        if part is not None and part.is_left and not _is_edited(query, span_of(select.args["from_"].this)):
            query.edits.replace(part.statement.span, part.text)
            for pipe in query.pipes:
                query.edits.replace(pipe, "|>")
    for part in rest:
        _rewrite_inner(query, part)
    for edit in columns_called(query.statement, query.tree):
        if not any(one.span.start <= edit.span.end and one.span.end >= edit.span.start for one in query.edits.made):
            query.edits.replace(*edit)


def _rewrite_inner(query: Query, part: InnerQuery) -> None:
    if part.query is not None:
        _rewrite(part.query)
    if not part.is_left:
        query.edits.replace(part.statement.span, part.text)


def _is_edited(query: Query, span: Span) -> bool:
    return any(edit.span.holds(span) for edit in query.edits.made)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Reader:
    """Reads a statement, and the queries inside of it that names stand for."""

    setting: Setting
    args: Args
    parts: dict[str, tuple[Part, Statement]]

    def concerns(self, found: Sequence[Token]) -> bool:
        """Return whether some tokens may be about lookups, or have the name of a query that is read on its own."""
        if [token.text for token in found[:1]] == ["FROM"] and len(found) == 2 and found[1].written in self.parts:
            return False  # they are what stands for it
        return concerns(self.setting, found) or any(token.written in self.parts for token in found)

    def type_of(self, relation: str, column: str) -> T.DataType | None:
        """Return the type of a column of one of Spark's relations, None where there is none of the name."""
        try:
            return self.setting.spark.sql(f"SELECT {column} FROM {relation}").schema[0].dataType
        except PySparkException:
            return None

    def without_parts(self, statement: Statement, start: int) -> Statement:
        """Return a statement in which names stand for the queries that are read on their own."""
        while (part := part_of(statement.part(statement.span.start + start), self.concerns)) is not None:
            # Queries inside of one another are known by name together, so that each has its own.
            names = map("_q{}".format, range(1000))
            name = next(name for name in names if name not in statement.code and name not in self.parts)
            (begin, end), code = part.span, part.code(name)
            if code is None:
                raise no_query(statement, part.span)
            known = [self.parts[one][0].names if one in self.parts else (one,) for one in part.names]
            self.parts[name] = replace(part, names=tuple(chain(*known))), statement.part(begin, end)
            statement = statement.with_code(statement.code[:begin] + code + statement.code[end:])
        return statement

    def query(self, body: Statement, prefix: str = "") -> Query:
        """Return a query, with those inside of it."""
        body, relations = name_stream_relations(
            body, body.words, lambda text: read_stream(self.setting, text, self.args)
        )
        body, windows = name_windows(body, body.words, self.type_of)
        whole, (body, pipes, piped) = body, without_pipes(body)
        later = None if piped is None else Span(piped, body.span.end)
        operands = {} if later is None else _operands(self, body, later)
        parsed = body if later is None else body.with_blanks([later])

        def may_mask(span: Span) -> bool:
            return not self.concerns(list(tokens(body[span])))

        query = query_of(self.setting, body, prefix, self.args, parsed, may_mask)
        query.operands, query.relations = operands, relations
        _put_windows(query, windows)
        for name in dict.fromkeys(word.written for word in whole.words if word.written in self.parts):
            query.inner[name] = self.inner_query(query, name)
        if query.inner:
            query.pipes = tuple(pipes)
            for pipe in pipes:
                query.analysis.replace(pipe, "|>")
        return query

    def inner_query(self, query: Query, name: str) -> InnerQuery:
        """Return the query that a name stands for."""
        part, statement = self.parts[name]
        statement = self.without_parts(statement, 0)
        if not self.concerns(statement.words):
            return InnerQuery(statement, part.is_left, part.names)
        inner = self.query(statement)
        tables = (one for one in query.tree.find_all(exp.Table) if one.name == name)
        node = next(tables, query.tree).find_ancestor(exp.Select)
        # What is not in the tree stands in parentheses behind a pipe, mostly in an expression.
        is_inside = node is None or may_read_outside(node)
        inner.put_inside(query, node or query.tree, is_inside=is_inside)
        return InnerQuery(statement, part.is_left, part.names, inner)


def read_query(setting: Setting, statement: Statement, found: Sequence[Token], args: Args, prefix: str) -> Query:
    """Parse the query of a statement; raise StatementError where it has none, or more than one."""
    reader, start = _Reader(setting, args, {}), query_start(found)
    if start is not None:
        statement = reader.without_parts(statement, start)
        found = list(tokens(statement.sql)) if reader.parts else found
    nested = [token for token in pipes_of(found) if token.depth]
    if start is None or nested or (start == 0 and found[:1] and found[0].text not in (*QUERIES, "(")):
        where = nested[0] if nested else found[0]
        raise no_query(statement, statement.span_within(where.start, where.end + bool(nested)))
    body = statement.part(statement.span.start + start)
    query = reader.query(body, prefix + statement[Span(statement.span.start, body.span.start)])
    values = isinstance(query.tree, exp.Values) and not concerns(setting, found)
    if not (values or isinstance(query.tree, exp.Query)) or query.tree.find(exp.DML, exp.MultitableInserts):
        raise no_query(statement, body.span_within(0, found[0].end - found[0].start))
    return query


def _put_windows(query: Query, windows: Sequence[tuple[Span, str]]) -> None:
    """Put the SQL of windows for the names that stand for them, which are their aliases where they have no others."""
    tables = [one for one in query.tree.find_all(exp.Table) if isinstance(one.this, exp.Identifier)]
    named = {name_span(one.this) for one in tables if not one.alias}
    for span, sql in windows:
        text = f"{sql} AS {query.statement[span]}" if span in named else sql
        query.analysis.replace(span, text)
        query.edits.replace(span, text)


def _operands(reader: _Reader, body: Statement, later: Span) -> dict[Span, str]:
    """Return the lookup tables that pipes combine with a query; raise StatementError for other lookups in them."""
    found = list(tokens(body[later]))
    named = {cte.name.lower() for cte, word in pairwise(tokens(body.sql)) if word.text in ("AS", "(")}
    known = [
        (word, name)
        for word, name in table_operands(found)
        if name.name in reader.setting.catalog.tables and name.name.lower() not in named
    ]
    names = [name for _, name in known]
    if concerns(reader.setting, [token for token in found if token not in names]):
        raise StatementError(
            "Behind pipes that are no joins, a query may only use lookups in joins, or in parentheses.",
            hint="Put what uses lookups in a temporary view.",
            position=body.position(Span(later.start, later.start + 2)),
        )
    start = later.start
    return {Span(start + word.start, start + name.end): name.name for word, name in known}


def _scan_tables(query: Query, looked_up: set[int]) -> None:
    """Put the full tables for the names of lookup tables that are not looked up."""
    unread = {id(node) for cte in unread_definitions(query) for node in cte.find_all(exp.Table)}
    for node in query.tree.find_all(exp.Table):
        table = query.table_of(node)
        if table is None or is_temporal(node) or id(node) in looked_up:
            continue
        if id(node) in unread:
            query.edits.replace(*empty_relation(node, table))
            continue
        try:
            query.scan_table(node, table)
        except LookupCacheError as error:
            raise error.at(query.statement.position(span_of(node))) from None
