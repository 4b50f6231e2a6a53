"""Rewrites one SELECT: its lookups are joined one after the other, and FROM reads the result.

FROM … JOIN … ─► FROM clause ─► left DataFrame ─► lookup join ─► FROM clause ─► … ─► FROM over the last result

Only FROM, WHERE and stars change in the text; Spark resolves every other name, since the relations keep their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from lookupcache.errors import PlanError
from lookupcache.sql.catalog import SqlTable
from lookupcache.sql.conditions import conjuncts_of
from lookupcache.sql.dialect import span_of
from lookupcache.sql.from_clause import Frame, FromClause, frame_of, from_text, plain_of, refuse_merged
from lookupcache.sql.hints import Hints
from lookupcache.sql.laterals import call_lookup, called_function, pieces_of_call
from lookupcache.sql.lookups import Lookup, is_temporal, table_lookup
from lookupcache.sql.one_lookup import look_up
from lookupcache.sql.query import Query
from lookupcache.sql.reads import may_read_outside, names_of, reads_outside
from lookupcache.sql.scalars import Scalar, scalar_lookup
from lookupcache.sql.select_text import Joined, Select, adds_rows, finish, merged_edits, star_edits, using_edits
from lookupcache.sql.text import Span


def rewrite_select(query: Query, node: exp.Select, scalars: Sequence[Scalar]) -> None:
    """Join the lookups of a SELECT, and edit its text; a SELECT without lookups is not changed."""
    first, joins = node.args.get("from_"), node.args.get("joins") or []
    _refuse_misplaced(query, node)
    if not scalars and not any(_is_lookup(query, join) for join in joins):
        return
    _refuse_pivot(query, node)
    _refuse_recursion(query, node)
    where = node.args.get("where")
    conjuncts = conjuncts_of(query, where.this) if where is not None else []
    hints, names = Hints(query.statement, node), names_of(query, node)
    select = Select(query, node, hints, names, conjuncts, joins, scalars, may_read_outside(node))
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
    plain = tuple(plain_of(select.query, node))
    return replace(joined, clause=FromClause(select.query.edits.text(span).strip(), plain), done=done)


def _join(select: Select, joined: Joined, join: exp.Join, later: Sequence[exp.Join]) -> Joined:
    query = select.query
    if _is_lookup(query, join):
        return _join_lookup(select, joined, join, later)
    refuse_merged(query, join)
    clause = joined.clause
    edits = list(using_edits(select, clause, join)) or merged_edits(select, clause, join)
    text = f"{clause.text}{_line(query.edits.text(span_of(join), edits))}"
    clause = replace(clause, text=text, plain=(*clause.plain, *plain_of(query, join.this, join)))
    return replace(joined, clause=clause, done=(*joined.done, span_of(join)))


def _line(text: str) -> str:
    return text if text.lstrip().startswith(",") else f"\n  {text}"


def _join_lookup(select: Select, joined: Joined, join: exp.Join, later: Sequence[exp.Join]) -> Joined:
    query = select.query
    frame = _left_side(select, joined.clause, span_of(join))
    table = _table_looked_up(query, join.this)
    if table is not None:
        lookup = table_lookup(query, select.hints, frame.relations, join, table)
    else:
        frame, lookup = _call(select, joined, join, frame)
        joined = replace(joined, functions=(*joined.functions, str(called_function(query, join.this))))
    joined = replace(joined, done=(*joined.done, span_of(join)))
    return look_up(select, joined, frame, lookup, rows_added=adds_rows(later))


def _call(select: Select, joined: Joined, join: exp.Join, frame: Frame) -> tuple[Frame, Lookup]:
    """Return the left side and the lookup of a call; parts that only Spark can evaluate become columns of that side."""
    query, number = select.query, len(joined.looked_up)
    pieces = {
        span: query.unused(f"lookup_a{number}_{n}", frame.df.columns)
        for n, span in enumerate(dict.fromkeys(pieces_of_call(query, join, frame)))
    }
    edits = [*merged_edits(select, joined.clause, join.this), *star_edits(select, joined.clause, join.this)]
    computed = {name: query.edits.text(span, edits) for span, name in pieces.items()}
    if computed:
        items = [f"({sql}) AS {name}" for name, sql in computed.items()]
        left = from_text(joined.clause) or "(SELECT 1) AS lookup_one"
        _refuse_outside(select, select.within(f"SELECT {', '.join(items)} FROM {left}"), span_of(join))
        with query.statement.located(span_of(join.this)):
            frame = frame_of(query, joined.clause, select.within, items)
    lookup = call_lookup(query, select.hints, join, frame, pieces)
    return frame, replace(lookup, computed=computed)


def _left_side(select: Select, clause: FromClause, lookup: Span) -> Frame:
    """Return the left side of a lookup; raise PlanError where it reads a column of the query around the SELECT."""
    alone = not clause.plain or (clause.view is None and not select.within("") and _is_table(clause))
    if not alone:
        _refuse_outside(select, select.within(f"SELECT 1 FROM {from_text(clause)}"), lookup)
    return frame_of(select.query, clause, select.within)


def _refuse_outside(select: Select, text: str, lookup: Span) -> None:
    """Raise PlanError if a lookup's left side, which is run alone, reads columns of the query around the SELECT."""
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
    joined = look_up(select, joined, frame, lookup, rows_added=False)
    return replace(joined, found=(*joined.found[:-1], (scalar, joined.looked_up[-1])))


def _refuse_in_joins(select: Select, scalar: Scalar) -> None:
    span = span_of(scalar.node)
    if any(span_of(join).holds(span) for join in select.joins):
        raise PlanError(
            "A scalar sub-query over a lookup table is not supported in ON.",
            hint="Look it up with another JOIN … FOR SYSTEM_TIME AS OF PROCTIME() before this one.",
            position=select.query.statement.position(span),
        )


# ── finding lookups ───────────────────────────────────────────────────────────────────────────────────


def _is_lookup(query: Query, join: exp.Join) -> bool:
    return _table_looked_up(query, join.this) is not None or called_function(query, join.this) is not None


def _table_looked_up(query: Query, node: exp.Expr) -> SqlTable | None:
    return query.table_of(node) if is_temporal(node) else None


def _refuse_misplaced(query: Query, node: exp.Select) -> None:
    """Raise PlanError for a lookup that is no join of a SELECT: the first relation, or one of joins in parentheses."""
    joined = {id(join.this) for join in node.args.get("joins") or []}
    for one in node.find_all(exp.Table, exp.Lateral):
        looked_up = _table_looked_up(query, one) is not None or called_function(query, one) is not None
        if looked_up and id(one) not in joined and one.find_ancestor(exp.Select) is node:
            raise PlanError(
                "A lookup needs a relation on its left, and cannot stand in parentheses with joins.",
                hint="Write it as a join after another relation: FROM orders AS o JOIN … ON …; or in a sub-query: JOIN "
                "(SELECT … FROM … JOIN …) AS q ON …. In place of EXISTS or IN, write LEFT SEMI JOIN; of NOT "
                "EXISTS, LEFT ANTI JOIN. Without FOR SYSTEM_TIME AS OF the full table is read.",
                position=query.statement.position(span_of(one)),
            )


def _refuse_pivot(query: Query, node: exp.Select) -> None:
    """Raise PlanError for PIVOT, which reads columns that it does not name."""
    pivots = [pivot for pivot in node.find_all(exp.Pivot) if pivot.find_ancestor(exp.Select) is node]
    if pivots:
        raise PlanError(
            "PIVOT and UNPIVOT are not supported in a SELECT with lookups.",
            hint="Put one of both in a sub-query: FROM (SELECT … JOIN …) PIVOT (…), FROM (SELECT * FROM o PIVOT (…)) "
            "AS p JOIN ….",
            position=query.statement.position(span_of(pivots[0])),
        )


def _refuse_recursion(query: Query, node: exp.Select) -> None:
    """Raise PlanError for a lookup alongside the relation that a recursive query builds: Spark knows it only inside."""
    below: exp.Expr = node
    while (cte := below.find_ancestor(exp.CTE)) is not None:
        tables = [one for one in node.find_all(exp.Table) if query.fold(one.name) == query.fold(cte.alias)]
        if isinstance(cte.parent, exp.With) and cte.parent.args.get("recursive") and tables:
            raise PlanError(
                f"A lookup is not supported in the recursive part of {cte.alias!r}.",
                hint="Join the lookup to the result of the recursive query.",
                position=query.statement.position(span_of(tables[0])),
            )
        below = cte
