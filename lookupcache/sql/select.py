"""Rewrites one SELECT: its lookups are joined one after the other, and FROM reads the result.

FROM … JOIN … ─► FROM clause ─► left DataFrame ─► lookup join ─► FROM clause ─► … ─► FROM over the last result

Only FROM, WHERE and stars change in the text; Spark resolves every other name, since the relations keep their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from lookupcache.errors import PlanError
from lookupcache.sql.conditions import conjuncts_of
from lookupcache.sql.dialect import span_of
from lookupcache.sql.from_clause import (
    Frame,
    FromClause,
    Plain,
    frame_of,
    from_text,
    plain_of,
    plain_relation,
    refuse_merged,
    without_parentheses,
)
from lookupcache.sql.hints import Hints
from lookupcache.sql.laterals import call_lookup, called_function
from lookupcache.sql.left_of_pipes import left_of_pipe
from lookupcache.sql.lookups import table_lookup
from lookupcache.sql.one_lookup import look_up
from lookupcache.sql.outer import may_read_outside, reads_outside
from lookupcache.sql.query import Query
from lookupcache.sql.reads import names_of
from lookupcache.sql.scalar_aggregates import join_aggregate
from lookupcache.sql.scalars import Scalar, scalar_lookup
from lookupcache.sql.scope import Relation
from lookupcache.sql.select_parts import (
    Joined,
    Select,
    has_lookups,
    inner_joins,
    is_lookup,
    joins_of,
    makes_rows_up_after,
    refuse_first,
    refuse_pivot,
    refuse_recursion,
    table_looked_up,
)
from lookupcache.sql.select_text import finish, merged_edits, using_edits
from lookupcache.sql.text import Edit, Span


def rewrite_select(query: Query, node: exp.Select, scalars: Sequence[Scalar]) -> None:
    """Join the lookups of a SELECT, and edit its text; a SELECT without lookups is not changed."""
    first, joins = node.args.get("from_"), joins_of(node)
    groups = [one for one in [*([first.this] if first else []), *(j.this for j in joins)] if has_lookups(query, one)]
    refuse_first(query, node)
    if not scalars and not groups and not any(is_lookup(query, join) for join in joins):
        return
    refuse_pivot(query, node)
    refuse_recursion(query, node)
    where = node.args.get("where")
    conjuncts = conjuncts_of(query, where.this) if where is not None else []
    hints, names = Hints(query.statement, node), names_of(query, node)
    with_text, inside = query.with_text(node), query.is_inside or may_read_outside(node)
    select = Select(query, node, hints, names, conjuncts, joins, scalars, with_text, inside=inside)
    joined = Joined(FromClause())
    if first is not None:
        end = min([span_of(first.this).end, *(span_of(join).start for join in joins)])
        joined = _begin(select, joined, first.this, Span(span_of(first.this).start, end))
    for number, join in enumerate(joins):
        joined = _join(select, joined, join, joins[number + 1 :])
    for scalar in scalars:
        joined = _join_scalar(select, joined, scalar)
    finish(select, joined)


# ── joins, in order ───────────────────────────────────────────────────────────────────────────────────


def _begin(select: Select, joined: Joined, node: exp.Expr, span: Span) -> Joined:
    done = (*joined.done, span)
    part = select.query.inner_at(node)
    if part is not None and part.is_left:
        _refuse_outside(select, f"{select.with_text}SELECT 1 FROM ({part.text})", span_of(select.joins[0]))
        return replace(joined, clause=left_of_pipe(select.query, select.with_text, node, part), done=done)
    if has_lookups(select.query, node):  # no join is before these, so the parentheses say nothing
        return replace(_join_group(select, joined, node), done=done)
    own = isinstance(node, exp.Table) and node.args.get("joins")  # those of a FROM before its SELECT
    plain = (plain_relation(select.query, node),) if own else tuple(plain_of(select.query, node))
    return replace(joined, clause=FromClause(select.query.edits.text(span).strip(), plain), done=done)


def _join(select: Select, joined: Joined, join: exp.Join, later: Sequence[exp.Join]) -> Joined:
    query = select.query
    if is_lookup(query, join):
        return _join_lookup(select, joined, join, later)
    refuse_merged(query, join)
    clause = joined.clause
    edits = list(using_edits(select, clause, join)) or list(merged_edits(select, clause, join))
    inner_views: tuple[str, ...] = ()
    if has_lookups(query, join.this):
        inner = _join_group(select, joined, join.this)
        joined, group = replace(inner, clause=clause), _in_parentheses(without_parentheses(join.this), inner.clause)
        edits.append(Edit(span_of(join.this), group.text))
        plain, inner_views = group.plain, group.inner_views
    else:
        plain = tuple(plain_of(query, join.this, join))
    clause = replace(
        clause,
        text=f"{clause.text}{_line(query.edits.text(span_of(join), edits))}",
        plain=(*clause.plain, *plain),
        inner_views=(*clause.inner_views, *inner_views),
    )
    return replace(joined, clause=clause, done=(*joined.done, span_of(join)))


def _line(text: str) -> str:
    return text if text.lstrip().startswith(",") else f"\n  {text}"


def _join_group(select: Select, joined: Joined, node: exp.Expr) -> Joined:
    """Join the relations in parentheses on their own."""
    query, node = select.query, without_parentheses(node)
    if node.args.get("alias") or not isinstance(node, exp.Subquery):
        raise PlanError(
            "A lookup is not supported in joins in parentheses that have an alias, or in nested ones without an alias.",
            hint="Put the joins in a sub-query: JOIN (SELECT … FROM … JOIN …) AS alias ON ….",
            position=query.statement.position(span_of(node)),
        )
    first, joins = node.this, inner_joins(node)
    plain = plain_relation(query, first)
    text = query.edits.text(Span(span_of(first).start, span_of(joins[0]).start)) if joins else ""
    inner = replace(joined, clause=FromClause(text.strip(), (plain,)))
    for number, join in enumerate(joins):
        inner = _join(replace(select, where=(), in_group=True), inner, join, joins[number + 1 :])
    return inner


def _in_parentheses(node: exp.Expr, clause: FromClause) -> FromClause:
    """Return joined relations as a FROM clause without a view, which is text in parentheses."""
    read = [one for one in clause.relations if _is_read(clause, one)]
    return FromClause(
        f"({from_text(clause)})",
        (*(Plain(node, one.names, one.merged, in_group=True) for one in read), *clause.plain),
        inner_views=tuple(one.split(".")[0] for one in clause.internal),
    )


def _is_read(clause: FromClause, relation: Relation) -> bool:
    """Return whether the FROM clause has columns of a relation."""
    return any(clause.is_carried(relation, name) for name in relation.column_names)


def _join_lookup(select: Select, joined: Joined, join: exp.Join, later: Sequence[exp.Join]) -> Joined:
    query = select.query
    frame = _left_side(select, joined.clause, span_of(join))
    table = table_looked_up(query, join.this)
    if table is not None:
        lookup = table_lookup(query, select.hints, frame.relations, join, table)
    else:
        lookup = call_lookup(query, select.hints, join, frame)
        joined = replace(joined, functions=(*joined.functions, str(called_function(query, join.this))))
    joined = replace(joined, done=(*joined.done, span_of(join)))
    return look_up(select, joined, frame, lookup, makes_rows_up=makes_rows_up_after(later))


def _left_side(select: Select, clause: FromClause, lookup: Span) -> Frame:
    """Return what stands left of a lookup; raise PlanError where it reads a column of the query around the SELECT."""
    alone = not clause.plain or (clause.view is None and not select.with_text and _is_table(clause))
    if not alone:
        _refuse_outside(select, f"{select.with_text}SELECT 1 FROM {from_text(clause)}", lookup)
    return frame_of(select.query, clause, select.with_text)


def _refuse_outside(select: Select, text: str, lookup: Span) -> None:
    """Raise PlanError for what stands left of a lookup, and is run alone, if it reads columns around the SELECT."""
    if select.inside and reads_outside(select.query, text):
        raise PlanError(
            "What stands left of a lookup in a sub-query cannot read columns of the query around it, or variables.",
            hint="Join the lookup in that query, or compare the column in WHERE, behind the joins.",
            position=select.query.statement.position(lookup),
        )


def _is_table(clause: FromClause) -> bool:
    """Return whether a FROM clause is a single table or view, by its name."""
    nodes = [plain.node for plain in clause.plain]
    return len(nodes) == 1 and isinstance(nodes[0], exp.Table) and isinstance(nodes[0].this, exp.Identifier)


def _join_scalar(select: Select, joined: Joined, scalar: Scalar) -> Joined:
    _refuse_in_joins(select, scalar)
    frame = _left_side(select, joined.clause, span_of(scalar.node))
    lookup = scalar_lookup(select.query, select.hints, scalar)
    joined = replace(joined, done=(*joined.done, span_of(scalar.node)), found=(*joined.found, (scalar, lookup)))
    if scalar.is_aggregate:
        return join_aggregate(select, joined, frame, lookup)
    joined = look_up(select, joined, frame, lookup, makes_rows_up=False)
    return replace(joined, found=(*joined.found[:-1], (scalar, joined.looked_up[-1])))


def _refuse_in_joins(select: Select, scalar: Scalar) -> None:
    span = span_of(scalar.node)
    if any(span_of(join).holds(span) for join in select.joins):
        raise PlanError(
            "A scalar sub-query over a lookup table is not supported in ON.",
            hint="Look it up with another JOIN … FOR SYSTEM_TIME AS OF PROCTIME() before this one.",
            position=select.query.statement.position(span),
        )
