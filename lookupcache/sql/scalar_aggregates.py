"""Scalar sub-queries that aggregate the rows of a lookup table: ``(SELECT max(m.v) FROM m WHERE m.k = o.k)``.

The rows on the left get a number; all their matches are joined, and aggregated for each number:

    SELECT any_value(`o.id`) AS `o.id`, max(v) FILTER (WHERE k IS NOT NULL) AS … FROM {lookup_1} GROUP BY the number

A row without a match is there once, without values: the filter leaves it out, so that its count is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sqlglot import exp

from lookupcache.errors import PlanError
from lookupcache.schema import quote
from lookupcache.spark.char_types import keep_metadata
from lookupcache.sql.dialect import span_of
from lookupcache.sql.from_clause import Frame, FromClause, computed_sql, frame_of
from lookupcache.sql.lookups import Lookup
from lookupcache.sql.one_lookup import look_up
from lookupcache.sql.query import view_marker
from lookupcache.sql.scalars import Scalar
from lookupcache.sql.scope import Name, Relation, Scope, names_in
from lookupcache.sql.select_parts import Joined, Select
from lookupcache.sql.text import Edit, Span


def join_aggregate(select: Select, joined: Joined, frame: Frame, lookup: Lookup) -> Joined:
    """Return the state after a lookup whose matches are aggregated; the sub-query is the last that was found."""
    query, (scalar, _) = select.query, joined.found[-1]
    is_lateral = query.is_inside or select.node.find_ancestor(exp.Lateral) is not None  # where numbers are no columns
    if is_lateral or frame.df.isStreaming:
        raise PlanError(
            "A scalar sub-query with an aggregate over a lookup table is not supported in "
            f"{'a LATERAL sub-query, or pipes in another query' if is_lateral else 'a query of a stream'}.",
            hint="Look the rows up with LEFT JOIN … FOR SYSTEM_TIME AS OF PROCTIME(), and aggregate the result.",
            position=query.statement.position(lookup.span),
        )
    number = len(joined.found)
    row, value = query.unused(f"lookup_row{number}"), query.unused(f"lookup_value{number}")
    rows = Relation((row,), ((row, "bigint"),))
    numbered = frame_of(query, joined.clause, select.with_text, [f"monotonically_increasing_id() AS {row}"])
    clause = FromClause(
        view=query.view(numbered.df),
        relations=(*numbered.relations, rows),
        columns={**numbered.columns, (rows, row): row},
        match_columns=numbered.match_columns,
        computed=joined.clause.computed,
    )
    reading = replace(select, names=[*select.names, Name((row, row), (), exp.Null())])
    left = frame_of(query, clause, select.with_text)
    joined = look_up(reading, replace(joined, clause=clause), left, lookup, makes_rows_up=False)
    clause, done = joined.clause, joined.looked_up[-1]
    kept = {key: name for key, name in clause.columns.items() if key[0] not in (done.relation, rows)}
    items = [f"any_value({quote(name)}) AS {quote(name)}" for name in dict.fromkeys(kept.values())]
    text = _value(select, clause, scalar, done)
    grouped = f"SELECT {', '.join([*items, f'{text} AS {value}'])} FROM {view_marker(str(clause.view))} GROUP BY {row}"
    values = Relation((value,), ((value, ""),))
    known = tuple(one for one in clause.relations if one not in (done.relation, rows))
    clause = replace(
        clause,
        view=query.view(keep_metadata(query.sql(grouped), numbered.df)),
        relations=known,
        columns={**kept, (values, value): value},
        match_columns={one: name for one, name in clause.match_columns.items() if one in known},
    )
    scalar = replace(scalar, columns=(value,), outer=(), value=value)
    return replace(joined, clause=clause, found=(*joined.found[:-1], (scalar, replace(done, relation=values))))


def _value(select: Select, clause: FromClause, scalar: Scalar, lookup: Lookup) -> str:
    """Return the value of the sub-query as SQL over the joined rows; with GROUP BY a row without a match has none."""
    is_match = f"{quote(clause.columns[lookup.relation, str(lookup.match_column)])} IS NOT NULL"
    text = _aggregate(select, clause, scalar, lookup, is_match, scalar.item, scalar.span)
    having = scalar.select.args.get("having")
    tests = [] if scalar.select.args.get("group") is None else [f"bool_or({is_match})"]
    if having is not None:
        condition = _aggregate(select, clause, scalar, lookup, is_match, having.this, span_of(having.this))
        tests.append(f"({condition})")
    return f"CASE WHEN {' AND '.join(tests)} THEN {text} END" if tests else text


def _aggregate(
    select: Select, clause: FromClause, scalar: Scalar, lookup: Lookup, is_match: str, node: exp.Expr, span: Span
) -> str:
    """Return an expression as SQL over the joined rows, of which only matches are aggregated."""
    query, own = select.query, scalar.scope(select.query)
    outer = Scope([clause.relations], query.fold)
    calls = [_whole(call) for call in node.find_all(exp.AggFunc)]
    edits = [edit for call in calls for edit in _filters(call, is_match)]
    for name in names_in(node):
        if node is not scalar.item and scalar.is_alias(name, query.fold):
            value = _aggregate(select, clause, scalar, lookup, is_match, scalar.item, scalar.span)
            edits.append(Edit(Span(*name.spans[0]), f"({value})"))
            continue
        of_table = own.bind(name)
        bound = of_table or outer.bind(name)
        if bound is None:
            continue
        text = _column(clause.columns, lookup.relation if of_table else bound.relation, bound.column)
        if not any(span_of(call).holds(bound.span) for call in calls):
            text = f"any_value({text})" + (f" FILTER (WHERE {is_match})" if of_table else "")
        edits.append(Edit(bound.span, text))
    return query.edits.text(span, edits)


def _column(columns: Mapping[tuple[Relation, str], str], relation: Relation, name: str) -> str:
    def spell(column: str) -> str:
        return quote(columns[relation, column])

    return computed_sql(relation, name, spell) if name in relation.computed else spell(name)


def _whole(call: exp.Expr) -> exp.Expr:
    """Return an aggregate with its clauses."""
    while isinstance(call.parent, exp.Filter | exp.WithinGroup):
        call = call.parent
    return call


def _filters(call: exp.Expr, is_match: str) -> Iterator[Edit]:
    """Yield the edits that filter what an aggregate reads."""
    if isinstance(call, exp.Filter):
        start, end = span_of(call.expression.this)
        yield Edit(Span(start, start), f"{is_match} AND (")
        yield Edit(Span(end, end), ")")
    else:
        end = span_of(call).end
        yield Edit(Span(end, end), f" FILTER (WHERE {is_match})")
