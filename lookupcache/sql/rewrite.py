"""Rewrites the query of a statement: reads it, checks it with Spark, then joins its lookups."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from sqlglot import exp

from lookupcache.connector import offers
from lookupcache.errors import PlanError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.planner.depth import deep_recursion
from lookupcache.schema import quote
from lookupcache.sql.catalog import SqlTable, empty_table, null_columns
from lookupcache.sql.derived import add_derived, unread_definitions
from lookupcache.sql.detection import concerns
from lookupcache.sql.dialect import name_span, span_of, too_deep
from lookupcache.sql.hints import table_options
from lookupcache.sql.laterals import called_function, refuse_side, refuse_unknown, returned_types
from lookupcache.sql.latest import add_streams, read_stream
from lookupcache.sql.lookups import is_as_of, is_present, is_temporal, refuse_more, refuse_strangers
from lookupcache.sql.masks import without_pipes
from lookupcache.sql.query import Args, FullScan, Query, SqlContext, no_query, query_of, selects
from lookupcache.sql.scalars import scalars_of
from lookupcache.sql.select import rewrite_select
from lookupcache.sql.stream_relations import name_stream_relations
from lookupcache.sql.text import Edit, Span, Statement, put
from lookupcache.sql.token_reader import QUERIES, query_start
from lookupcache.sql.windows import name_windows, put_windows


def rewrite_query(context: SqlContext, statement: Statement, args: Args = None, *, is_looked_up: bool = False) -> Query:
    """Return the query of a statement, rewritten so that its lookups are joined.

    ``is_looked_up`` says that it is a view that can be looked up, so that its table need not be scannable. Raises
    StatementError where it is nested too deeply.
    """
    try:
        return deep_recursion(lambda: _rewrite_query(context, statement, args, is_looked_up))
    except RecursionError:
        raise too_deep(statement) from None


def _rewrite_query(context: SqlContext, statement: Statement, args: Args, is_looked_up: bool) -> Query:
    def read() -> Query:
        query = read_query(context, statement, args)
        query.is_looked_up = is_looked_up
        return query

    query = read()
    try:
        _join_lookups(query)
    except PlanError as error:
        # Read again, with as few full tables as possible.
        allowed = [FullScan(span_of(node).start, node.name, error.fact) for node in _scannable_tables(read())]
        for scans in [*((one,) for one in allowed), *([tuple(allowed)] if len(allowed) > 1 else [])]:
            query = read()
            _read_completely(query, scans)
            try:
                _join_lookups(query)
            except PlanError:
                continue
            for scan in scans:
                _log.warning("Table %r is read completely instead of looked up: %s", scan.table, scan.reason)
            return query
        raise
    return query


def _join_lookups(query: Query) -> None:
    """Join the lookups of a query; Spark's errors, and ours, are raised."""
    add_derived(query)
    add_streams(query)
    refuse_strangers(query)
    refuse_unknown(query)
    _add_analysis_edits(query)
    _ = query.schema  # Spark reports its errors before any lookup is planned
    # The innermost first, each where the names that it sees are known.
    scalars = scalars_of(query)
    inner = {id(scalar.select) for scalar in scalars}
    _scan_tables(query, {id(scalar.select.args["from_"].this) for scalar in scalars})
    for call in query.find(exp.Anonymous):
        if call.name.upper() == "PROCTIME" and is_present(call) and call.find_ancestor(exp.Version) is None:
            query.edits.replace(span_of(call), "current_timestamp()")
    for select in selects(query.tree):
        if id(select) not in inner:
            own = [scalar for scalar in scalars if scalar.node.find_ancestor(exp.Select) is select]
            rewrite_select(query, select, own)


# ── Spark's analysis ─────────────────────────────────────────────────────────────────────────────────────


def _add_analysis_edits(query: Query) -> None:
    """Add the edits that replace lookup tables and table functions by empty relations, for Spark's analysis.

    Spark applies its own rules for scopes, stars and names, and reports whether the statement is valid, and the names
    and types of its columns.
    """
    for node in query.nodes:
        if isinstance(node, exp.Table) and (table := query.table_of(node)) is not None:
            _replace_table(query, node, table)
        elif (name := called_function(query, node)) is not None:
            _replace_call(query, node, name)
        elif isinstance(node, exp.Anonymous) and node.name.upper() == "PROCTIME" and is_present(node):
            query.analysis.replace(span_of(node), "current_timestamp()")
        elif isinstance(node, exp.Hint):
            query.analysis.replace(span_of(node), "")


def _replace_table(query: Query, node: exp.Table, table: SqlTable) -> None:
    name, span = name_span(node.this), span_of(node)
    query.analysis.replace(*_empty_relation(node, table))
    if is_temporal(node):
        refuse_more(query, node)
        query.analysis.replace(span_of(node.args["version"]), _own_alias(node))
    start = query.statement.code.find("/*+", name.end, span.end)
    if start >= 0:
        query.analysis.replace(Span(start, query.statement.code.index("*/", start) + 2), "")


def _empty_relation(node: exp.Table, table: SqlTable) -> Edit:
    """Return the edit that puts an empty relation for the name of a lookup table; a period stands before its alias."""
    return Edit(name_span(node.this), f"({empty_table(table)})" + ("" if is_temporal(node) else _own_alias(node)))


def _own_alias(node: exp.Table) -> str:
    return "" if node.alias else f" AS {quote(node.name)}"


def _replace_call(query: Query, node: exp.Expr, name: str) -> None:
    """Replace a call by a lateral sub-query with its columns; its arguments are checked when it is planned."""
    if isinstance(node.parent, exp.Join):
        refuse_side(query, node.parent)
    alias, whole = node.args.get("alias"), span_of(node)
    with query.statement.located(whole):
        nulls = null_columns(returned_types(query, node))
    qualifier = quote((alias.name if alias else "") or name)
    query.analysis.replace(whole, f"LATERAL (SELECT {nulls}) AS {qualifier}")


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────


def read_query(context: SqlContext, statement: Statement, args: Args) -> Query:
    """Parse the query of a statement; raise StatementError where it has none, or more than one."""
    found = statement.tokens
    start = query_start(found)
    if start is None or (start == 0 and found[:1] and found[0].text not in (*QUERIES, "(")):
        raise no_query(statement, statement.span_of(found[0]))
    body = statement.part(statement.span.start + start)
    prefix = statement[Span(statement.span.start, body.span.start)]

    def may_have_lookups(some: Sequence[Token]) -> bool:
        return concerns(context, some, in_query=True)

    named, relations = name_stream_relations(body, body.tokens, lambda text: read_stream(context, text, args))
    parsed, behind = without_pipes(named, may_have_lookups)
    parsed, windows = name_windows(parsed, parsed.tokens)
    whole = parsed.with_code(put(parsed.code, ((span, body[span]) for span in behind)))

    def may_mask(span: Span) -> bool:
        return not may_have_lookups(list(tokens(whole[span])))

    query = query_of(context, whole, prefix, args, parsed, may_mask)
    query.relations = relations
    query.masked += behind
    put_windows(query, windows)
    values = isinstance(query.tree, exp.Values) and not may_have_lookups(found)
    if not (values or isinstance(query.tree, exp.Query)) or query.tree.find(exp.DML, exp.MultitableInserts):
        raise no_query(statement, body.span_within(0, found[0].end - found[0].start))
    return query


def _scan_tables(query: Query, looked_up: set[int]) -> None:
    """Put the full tables for the names of lookup tables that are not looked up."""
    unread = {id(node) for cte in unread_definitions(query) for node in cte.find_all(exp.Table)}
    for node in query.find(exp.Table):
        table = query.table_of(node)
        if table is None or is_temporal(node) or id(node) in looked_up:
            continue
        if id(node) in unread:
            query.edits.replace(*_empty_relation(node, table))
            continue
        with query.statement.located(span_of(node)):
            query.scan_table(node, table)


# ── joins that cannot be lookups ────────────────────────────────────────────────────────────────────────────


OPTION = "lookup.full-scan"
_log = logging.getLogger("lookupcache.sql")


def _scannable_tables(query: Query) -> Iterator[exp.Table]:
    """Yield the lookup tables whose options permit a full scan, and which can be scanned."""
    for node in query.find(exp.Table):
        table = query.table_of(node)
        if (
            table is None
            or table.shown is not None
            or table.marks
            or not offers(table.table.connector, "scan")
            or is_as_of(query, node)
        ):
            continue
        hint = table_options(query.statement, span_of(node))
        options = {} if hint is None else hint.options()
        if table.table.config.full_scan if OPTION not in options else options[OPTION].lower() == "true":
            yield node


def _read_completely(query: Query, scans: tuple[FullScan, ...]) -> None:
    """Change a query so that some of its lookup tables are ordinary relations."""
    for node in list(_scannable_tables(query)):
        scan = next((one for one in scans if one.start == span_of(node).start), None)
        if scan is None:
            continue
        query.full_scans.append(scan)
        if is_temporal(node):
            query.replace(span_of(node.args["version"]), "")
            node.set("version", None)
        hint = table_options(query.statement, span_of(node))
        if hint is not None:
            query.replace(hint.span, "")
