"""Rewrites the query of a statement: reads it, checks it with Spark, then joins its lookups.

A query with pipes is rewritten in parts, of which each stands for a relation in the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from sqlglot import exp

from lookupcache.errors import LookupCacheError, PlanError, SchemaError, StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.sql.analysis import add_analysis_edits
from lookupcache.sql.detection import concerns
from lookupcache.sql.dialect import span_of
from lookupcache.sql.dynamic import columns_called
from lookupcache.sql.full_scans import with_full_scans
from lookupcache.sql.laterals import refuse_unknown
from lookupcache.sql.latest import add_streams, read_stream
from lookupcache.sql.lookups import is_present, is_temporal, refuse_strangers
from lookupcache.sql.outer import reads_outside
from lookupcache.sql.pipes import Part, part_of, pipes_of, table_operands, without_pipes
from lookupcache.sql.query import Args, Query, Setting, no_query, query_of, selects, view_marker
from lookupcache.sql.scalars import scalars_of
from lookupcache.sql.select import rewrite_select
from lookupcache.sql.statement_target import QUERIES, query_start
from lookupcache.sql.stream_relations import name_stream_relations
from lookupcache.sql.text import Span, Statement

_ALONE = (
    "A sub-query with lookups, and pipes in or around it, cannot read a column of the query around it, or a variable."
)
_NO_PIPES = "Write the condition in the query around it, or SELECT … FROM … JOIN … in place of the pipes."


def rewrite_query(
    setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None, prefix: str = "", views: str = ""
) -> Query:
    """Return the query of a statement, rewritten so that its lookups are joined.

    Args:
        setting: The session, its catalog and its settings.
        statement: The statement.
        found: The tokens of the query.
        args: The values of parameters by name.
        prefix: Text before the query when it is run, such as that of an INSERT.
        views: How the names of its views begin.
    """
    changed, relations = name_stream_relations(statement, found, lambda text: read_stream(setting, text, args))
    words = list(tokens(changed.sql)) if relations else found

    def read() -> Query:
        query = read_query(setting, changed, words, args, prefix)
        query.view_prefix, query.relations = views, relations
        return query

    return with_full_scans(read(), _with_lookups, read)


def _with_lookups(query: Query) -> Query:
    """Return a query with its lookups joined; Spark's errors, and ours, are raised."""
    add_streams(query)
    refuse_strangers(query, query.tree)
    refuse_unknown(query, query.tree)
    add_analysis_edits(query)
    _ = query.schema  # Spark reports its errors before any lookup is planned
    scalars = scalars_of(query, query.tree)
    inner = {id(scalar.select) for scalar in scalars}
    for span, name in query.operands.items():
        query.edits.replace(span, f"(SELECT * FROM {query.scan(name, query.setting.catalog.tables[name])})")
    _scan_tables(query, {id(scalar.select.args["from_"].this) for scalar in scalars})
    for call in query.tree.find_all(exp.Anonymous):
        if call.name.upper() == "PROCTIME" and is_present(call) and call.find_ancestor(exp.Version) is None:
            query.edits.replace(span_of(call), "current_timestamp()")
    for select in selects(query.tree):
        if id(select) not in inner:
            own = [scalar for scalar in scalars if scalar.node.find_ancestor(exp.Select) is select]
            rewrite_select(query, select, own)
    for edit in columns_called(query.statement, query.tree):
        if not any(one.span.start <= edit.span.end and one.span.end >= edit.span.start for one in query.edits.made):
            query.edits.replace(*edit)
    return query


def read_query(setting: Setting, statement: Statement, found: Sequence[Token], args: Args, prefix: str) -> Query:
    """Parse the query of a statement; raise StatementError where it has none, or more than one."""
    start = query_start(found)
    part = None if start is None else part_of(statement.part(statement.span.start + start), partial(concerns, setting))
    if part is not None:
        return _query_over(setting, statement, part, args, prefix)
    nested = [token for token in pipes_of(found) if token.depth]
    if start is None or nested or (start == 0 and found[:1] and found[0].text not in (*QUERIES, "(")):
        where = nested[0] if nested else found[0]
        raise no_query(statement, statement.span_within(where.start, where.end + bool(nested)))
    body = statement.part(statement.span.start + start)
    prefix += statement[Span(statement.span.start, body.span.start)]
    body, piped = without_pipes(body)
    later = None if piped is None else Span(piped, body.span.end)
    operands = {} if later is None else _operands(setting, body, later)
    query = query_of(setting, body, prefix, args, body if later is None else body.with_blanks([later]))
    query.operands = operands
    values = isinstance(query.tree, exp.Values) and not concerns(setting, found)
    if not (values or isinstance(query.tree, exp.Query)) or query.tree.find(exp.DML, exp.MultitableInserts):
        raise no_query(statement, body.span_within(0, found[0].end - found[0].start))
    return query


def _operands(setting: Setting, body: Statement, later: Span) -> dict[Span, str]:
    """Return the lookup tables that pipes combine with a query; raise StatementError for other lookups in them."""
    found = list(tokens(body[later]))
    named = {cte.name.lower() for cte, word in pairwise(tokens(body.sql)) if word.text in ("AS", "(")}
    known = [
        (word, name)
        for word, name in table_operands(found)
        if name.name in setting.catalog.tables and name.name.lower() not in named
    ]
    names = [name for _, name in known]
    if concerns(setting, [token for token in found if token not in names]):
        raise StatementError(
            "Behind pipes that are no joins, a query may only use lookups in parentheses, or after |> AS name.",
            hint="Write |> AS name before a join with a lookup; or put what uses lookups in a temporary view.",
            position=body.position(Span(later.start, later.start + 2)),
        )
    start = later.start
    return {Span(start + word.start, start + name.end): name.name for word, name in known}


def _query_over(setting: Setting, statement: Statement, part: Part, args: Args, prefix: str) -> Query:
    """Parse the query of a statement in which a relation stands for a query that is rewritten alone."""
    name = next(name for name in map("_q{}".format, range(1000)) if name not in statement.code)
    code, (start, end) = part.code(name), part.replaced
    if code is None:
        raise no_query(statement, part.span)
    changed = statement.with_code(statement.code[:start] + code + statement.code[end:])
    query = read_query(setting, changed, list(tokens(changed.sql)), args, prefix)
    inner, own = statement.part(*part.span), part.name_span(name)
    words = list(tokens(inner.sql))
    if concerns(setting, words):
        try:
            alone = rewrite_query(setting, inner, words, args, views=f"{start}_")
        except SchemaError as error:
            if part.span != part.replaced:
                raise
            raise PlanError(f"{error.fact} {_ALONE}", hint=_NO_PIPES, position=error.position) from None
        if part.span == part.replaced and reads_outside(alone, alone.analysis.text(inner.span)):
            raise PlanError(_ALONE, hint=_NO_PIPES, position=statement.position(part.span))
        query.adopt(alone)
        query.edits.replace(own, view_marker(query.view(alone.df())))
        query.analysis.replace(own, f"({alone.analysis.text(inner.span)})")
    else:
        query.edits.replace(own, f"({inner.sql})")
        query.analysis.replace(own, f"({inner.sql})")
    return query


def _scan_tables(query: Query, looked_up: set[int]) -> None:
    for node in query.tree.find_all(exp.Table):
        table = query.table_of(node)
        if table is None or is_temporal(node) or id(node) in looked_up:
            continue
        try:
            query.scan_table(node, table)
        except LookupCacheError as error:
            raise error.at(query.statement.position(span_of(node))) from None
