"""Rewrites one SELECT: its lookups are joined one after the other, and FROM reads the result.

FROM … JOIN … ─► FROM clause ─► left DataFrame ─► lookup join ─► FROM clause ─► … ─► FROM over the last result

Only FROM, WHERE and stars change in the text; Spark resolves every other name, since the relations keep their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import AnalysisException
from sqlglot import exp

from lookupcache.errors import LookupCacheError, PlanError
from lookupcache.planner.clauses import tokens
from lookupcache.planner.condition import BoundCondition, BoundConjunct
from lookupcache.planner.grammar import equality
from lookupcache.schema import quote
from lookupcache.spark.join import LookupJoin
from lookupcache.sql.conditions import Conditions, Conjunct, conjuncts_of, in_parentheses
from lookupcache.sql.dialect import span_of
from lookupcache.sql.from_clause import (
    Frame,
    FromClause,
    Plain,
    all_but,
    computed_sql,
    frame_of,
    from_text,
    inputs_of,
    is_group,
    plain_of,
    plain_relation,
    refuse_merged,
    resolve_relations,
    unique_names,
    without_parentheses,
)
from lookupcache.sql.hints import Hints
from lookupcache.sql.laterals import call_lookup, called_function
from lookupcache.sql.latest import PRESENT
from lookupcache.sql.lookups import Lookup, is_temporal, table_lookup, time_span
from lookupcache.sql.query import Query
from lookupcache.sql.reads import columns_read, names_of, outside
from lookupcache.sql.scalars import Scalar, scalar_lookup
from lookupcache.sql.scope import Name, Relation, aliases, is_count_of_rows, star_columns
from lookupcache.sql.text import Edit, Span

Bound = dict[Conjunct, BoundConjunct]
"""Conjuncts as the planner takes them."""


@dataclass(frozen=True)
class Select:
    """A SELECT with its hints, all names in it, the conjuncts of its WHERE, and its joins.

    ``in_group`` means that these are joins in parentheses, to which WHERE does not apply.
    """

    query: Query
    node: exp.Select
    hints: Hints
    names: Sequence[Name]
    where: Sequence[Conjunct]
    joins: Sequence[exp.Join]
    scalars: Sequence[Scalar]
    with_text: str
    in_group: bool = False


@dataclass(frozen=True)
class Joined:
    """The state after some joins of a SELECT: the FROM clause so far, and which parts of the text are processed.

    ``done`` are spans that later steps do not read again, ``taken`` conjuncts of WHERE that a lookup applies, ``later``
    conjuncts of ON that become part of WHERE. ``looked_up`` are the lookups, ``found`` those of scalar sub-queries.
    """

    clause: FromClause
    done: tuple[Span, ...] = ()
    taken: tuple[Conjunct, ...] = ()
    later: tuple[Conjunct, ...] = ()
    looked_up: tuple[Lookup, ...] = ()
    functions: tuple[str, ...] = ()
    found: tuple[tuple[Scalar, Lookup], ...] = ()


def rewrite_select(query: Query, node: exp.Select, scalars: Sequence[Scalar]) -> None:
    """Join the lookups of a SELECT, and edit its text; a SELECT without lookups is not changed."""
    first, joins = node.args.get("from_"), _joins(node)
    groups = [one for one in [*([first.this] if first else []), *(j.this for j in joins)] if _has_lookups(query, one)]
    _refuse_first(query, node)
    if not scalars and not groups and not any(_is_lookup(query, join) for join in joins):
        return
    _refuse_pivot(query, node)
    _refuse_recursion(query, node)
    where = node.args.get("where")
    conjuncts = conjuncts_of(query, where.this) if where is not None else []
    hints, names = Hints(query.statement, node), names_of(query, node)
    select = Select(query, node, hints, names, conjuncts, joins, scalars, query.with_text(node))
    joined = Joined(FromClause())
    if first is not None:
        end = min([span_of(first.this).end, *(span_of(join).start for join in joins)])
        joined = _begin(select, joined, first.this, Span(span_of(first.this).start, end))
    for number, join in enumerate(joins):
        joined = _join(select, joined, join, joins[number + 1 :])
    for scalar in scalars:
        joined = _join_scalar(select, joined, scalar)
    _finish(select, joined)


# ── finding lookups ─────────────────────────────────────────────────────────────


def _is_lookup(query: Query, join: exp.Join) -> bool:
    return _table(query, join.this) is not None or called_function(query, join.this) is not None


def _table(query: Query, node: exp.Expr) -> Any:
    return query.table_of(node) if is_temporal(node) else None


def _joins(node: exp.Select) -> list[exp.Join]:
    """Return the joins of a SELECT; the parser keeps those of a FROM before its SELECT with the first relation."""
    first = node.args.get("from_")
    own = first.this.args.get("joins") or [] if first is not None and isinstance(first.this, exp.Table) else []
    return [*own, *(node.args.get("joins") or [])]


def _has_lookups(query: Query, node: exp.Expr) -> bool:
    """Return whether a relation is a group of joins in parentheses with a lookup among them."""
    if isinstance(node.parent, exp.From) and isinstance(node, exp.Table):
        return False
    return any(_is_lookup(query, join) or _has_lookups(query, join.this) for join in _inner_joins(node))


def _inner_joins(node: exp.Expr) -> list[exp.Join]:
    """Return the joins of a relation that is a group in parentheses."""
    node = without_parentheses(node)
    joins = list(node.args.get("joins") or [])
    if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table | exp.Subquery):
        return [*(node.this.args.get("joins") or []), *joins]
    return joins


def _refuse_first(query: Query, node: exp.Select) -> None:
    """Raise PlanError for a lookup without a left side."""
    first = node.args.get("from_")
    found = [] if first is None else [first.this]
    relations = [join.this for join in _joins(node)]
    for relation in (*found, *relations):
        if isinstance(relation, exp.Subquery) and isinstance(relation.this, exp.Table):
            found.append(relation.this)
    for one in found:
        if _table(query, one) is not None or called_function(query, one) is not None:
            raise PlanError(
                "A lookup needs a relation on its left.",
                hint="Write it as a join after another relation: FROM orders AS o JOIN … ON …. Without FOR "
                "SYSTEM_TIME AS OF the full table is read.",
                position=query.statement.position(span_of(one)),
            )


def _refuse_pivot(query: Query, node: exp.Select) -> None:
    """Raise PlanError for PIVOT, which reads columns that it does not name, unless it is of the first relation."""
    pivots = [pivot for pivot in node.find_all(exp.Pivot) if pivot.find_ancestor(exp.Select) is node]
    pivots = [pivot for pivot in pivots if not _is_of_first(query, pivot)]
    if pivots:
        raise PlanError(
            "PIVOT and UNPIVOT are not supported in a SELECT with lookups.",
            hint="Put the lookups in a sub-query: SELECT … FROM (SELECT … JOIN …) PIVOT (…); or name the relation that "
            "is pivoted before the lookups: FROM o PIVOT (…) AS p JOIN ….",
            position=query.statement.position(span_of(pivots[0])),
        )


def _is_of_first(query: Query, pivot: exp.Pivot) -> bool:
    """Return whether a PIVOT is of the first relation of a FROM, or of joins in parentheses, and gives it a name."""
    relation = pivot.parent
    if relation is None or not pivot.alias:
        return False
    group = relation.this if isinstance(relation, exp.Subquery) and not isinstance(relation.this, exp.Query) else None
    if isinstance(relation.this, exp.Subquery) or (group is not None and any(_inner_joins(group))):
        return False
    return isinstance(relation.parent, exp.From | exp.Subquery) and relation.arg_key == "this"


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


# ── joins, in order ─────────────────────────────────────────────────────────────────────────────


def _begin(select: Select, joined: Joined, node: exp.Expr, span: Span) -> Joined:
    done = (*joined.done, span)
    if _has_lookups(select.query, node):  # no join is before these, so the parentheses say nothing
        return replace(_join_group(select, joined, node), done=done)
    own = isinstance(node, exp.Table) and node.args.get("joins")  # those of a FROM before its SELECT
    plain = (plain_relation(select.query, node),) if own else tuple(plain_of(select.query, node))
    return replace(joined, clause=FromClause(select.query.edits.text(span).strip(), plain), done=done)


def _join(select: Select, joined: Joined, join: exp.Join, later: Sequence[exp.Join]) -> Joined:
    query = select.query
    if _is_lookup(query, join):
        return _join_lookup(select, joined, join, later)
    refuse_merged(query, join)
    clause = joined.clause
    edits = list(_using_edits(select, clause, join)) or list(_merged_edits(select, clause, join))
    inner_views: tuple[str, ...] = ()
    if _has_lookups(query, join.this):
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
    first, joins = node.this, _inner_joins(node)
    text = query.statement[Span(span_of(first).start, span_of(joins[0]).start)] if joins else ""
    inner = replace(joined, clause=FromClause(text.strip(), (plain_relation(query, first),)))
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
    frame = frame_of(query, joined.clause, select.with_text)
    table = _table(query, join.this)
    if table is not None:
        lookup = table_lookup(query, select.hints, frame.relations, join, table)
    else:
        lookup = call_lookup(query, select.hints, join, frame)
        joined = replace(joined, functions=(*joined.functions, str(called_function(query, join.this))))
    joined = replace(joined, done=(*joined.done, span_of(join)))
    return _look_up(select, joined, frame, lookup, makes_rows_up=_makes_rows_up(later))


def _makes_rows_up(later: Sequence[exp.Join]) -> bool:
    """Return whether a join that follows adds rows, to which WHERE must be applied."""
    return any(join.side in ("RIGHT", "FULL") for join in later)


def _join_scalar(select: Select, joined: Joined, scalar: Scalar) -> Joined:
    _refuse_in_joins(select, scalar)
    frame = frame_of(select.query, joined.clause, select.with_text)
    lookup = scalar_lookup(select.query, select.hints, scalar)
    joined = replace(joined, done=(*joined.done, span_of(scalar.node)), found=(*joined.found, (scalar, lookup)))
    joined = _look_up(select, joined, frame, lookup, makes_rows_up=False)
    return replace(joined, found=(*joined.found[:-1], (scalar, joined.looked_up[-1])))


def _refuse_in_joins(select: Select, scalar: Scalar) -> None:
    span = span_of(scalar.node)
    if any(span_of(join).holds(span) for join in select.joins):
        raise PlanError(
            "A scalar sub-query over a lookup table is not supported in ON.",
            hint="Look it up with another JOIN … FOR SYSTEM_TIME AS OF PROCTIME() before this one.",
            position=select.query.statement.position(span),
        )


# ── one lookup join ──────────────────────────────────────────────────────────────────────────────────────


def _look_up(select: Select, joined: Joined, frame: Frame, lookup: Lookup, *, makes_rows_up: bool) -> Joined:
    query = select.query
    if lookup.needs_match_column or lookup.relation.computed:
        lookup = replace(lookup, match_column=_key_column(query, frame, lookup))
    frame, lookup, conditions, on, later = _on(select, joined, frame, lookup, makes_rows_up=makes_rows_up)
    where = {} if makes_rows_up or not select.where else _where(select, joined, conditions)
    taken = (*joined.taken, *where)
    done = (*joined.done, *(part.span for part in taken))
    relations = (*frame.relations, *_visible(lookup))
    read = columns_read(outside(select.names, done), relations, query.fold)
    read += [(one.relation, name) for scalar, one in joined.found for name in scalar.columns]
    read += columns_read([name for scalar, _ in joined.found for name in scalar.outer], relations, query.fold)
    read += columns_read([name for part in later for name in part.names], relations, query.fold)
    match_columns = _match_columns(select, frame, lookup, read)
    columns = _columns(query, lookup, [*read, *match_columns.items()])
    join = _plan_join(select, frame, lookup, conditions, on, where, columns)
    query.joins.append(join)
    query.uses.append(lookup.use)
    view = query.view(join.result)
    computed = frozenset((one, name) for one, name in read if name in one.computed)
    clause = FromClause("", (), view, relations, columns | _marks(lookup), match_columns, computed=computed)
    return replace(
        joined,
        clause=clause,
        taken=taken,
        later=(*joined.later, *later),
        looked_up=(*joined.looked_up, lookup),
    )


def _visible(lookup: Lookup) -> list[Relation]:
    """Return the relation that a lookup adds; of a semi or anti join only the order that its USING gives to ``*``."""
    if lookup.scalar or lookup.how in ("semi", "anti"):
        return [Relation(("",), (), lookup.relation.merged)] if lookup.using else []
    return [lookup.relation]


def _marks(lookup: Lookup) -> dict[tuple[Relation, str], str]:
    return {(lookup.relation, name): name for name in lookup.marks}


def _where(select: Select, joined: Joined, conditions: Conditions) -> Bound:
    """Return the conjuncts of WHERE that this join can apply, and no earlier join has applied."""
    found, names = {}, aliases(select.node)
    for part in select.where:
        bound = None if part in joined.taken else conditions.where(part, names)
        if bound is not None:
            found[part] = bound
    return found


def _key_column(query: Query, frame: Frame, lookup: Lookup) -> str | None:
    """Return a column of the table that an equality of the condition makes non-null in matches."""
    if lookup.using:
        shared = [lookup.relation.column(name, query.fold) for name in lookup.using]
        return next((name for name in shared if name not in lookup.relation.computed), None)
    conditions = Conditions(query, frame, lookup)
    for part in conjuncts_of(query, lookup.on_node):
        sides = equality(query.statement[part.span]) or ()
        for name in part.names:
            bound = conditions.on_scope.bind(name)
            if bound is not None and bound.relation is lookup.relation and query.statement[bound.span] in sides:
                return bound.column if bound.column not in lookup.relation.computed else None
    return lookup.relation.column(PRESENT, query.fold)


def _on(
    select: Select, joined: Joined, frame: Frame, lookup: Lookup, *, makes_rows_up: bool
) -> tuple[Frame, Lookup, Conditions, Bound, tuple[Conjunct, ...]]:
    """Return the conjuncts of ON; parts that only Spark can evaluate become columns of the left side.

    Conjuncts that read the table and need Spark are applied after an inner join, as part of WHERE; not where ON chooses
    the versions that WHERE filters.
    """
    query = select.query
    parts = [part for part in conjuncts_of(query, lookup.on_node) if query.statement[part.span].upper() != "TRUE"]
    conditions = Conditions(query, frame, lookup)
    extras: dict[Span, str] = {}
    later: list[Conjunct] = []
    for part in parts:
        pieces = _pieces(query, conditions, part)
        if pieces is None and (lookup.how != "inner" or makes_rows_up or select.in_group or lookup.has_versions):
            raise PlanError(
                "A sub-query that reads the lookup table is not supported in the condition of this join.",
                hint=f"Write it in WHERE{_IN_WHERE * lookup.has_versions}, or join its result before the lookup.",
                position=query.statement.position(part.span),
            )
        if pieces is None:
            later.append(part)
        for span in pieces or ():
            extras[span] = f"lookup_x{len(joined.looked_up)}_{len(extras)}"
    if extras:
        merged = _merged_edits(select, joined.clause, lookup.on_node) if lookup.on_node else []
        items = [f"({query.edits.text(span, merged)}) AS {name}" for span, name in extras.items()]
        frame = frame_of(query, joined.clause, select.with_text, items)
        conditions = Conditions(query, frame, lookup)
    bound = {}
    for part in parts:
        if part not in later:
            bound[part] = conditions.on(part, {s: name for s, name in extras.items() if part.span.holds(s)})
    return frame, lookup, conditions, bound, tuple(later)


_IN_WHERE = ", which filters the latest versions"


def _pieces(query: Query, conditions: Conditions, part: Conjunct) -> list[Span] | None:
    """Return the spans of a conjunct that Spark evaluates before the join; None if they read the table."""
    if part.is_closed:
        return None if conditions.reads_table(part.names) else [part.span]
    spans = [*(span_of(one) for one in part.foreign), *(_of(name) for name in conditions.unknown(part))]
    for span in spans:
        if conditions.reads_table([name for name in part.names if span.start <= name.start < span.end]):
            return None
    return list(dict.fromkeys(spans))


def _of(name: Name) -> Span:
    return span_of(name.node) if not name.spans else Span(name.spans[0].start, name.spans[-1].end)


def _plan_join(
    select: Select,
    frame: Frame,
    lookup: Lookup,
    conditions: Conditions,
    on: Bound,
    where: Bound,
    columns: dict[tuple[Relation, str], str],
) -> LookupJoin:
    query = select.query
    parts, where_parts = tuple(on.values()), tuple(where.values())
    if lookup.how == "inner" and not on and not lookup.keys and not lookup.using and not lookup.has_versions:
        parts, where_parts = where_parts, ()
    _refuse_keyless(query, lookup, parts)
    condition: Any = list(lookup.using)
    if not lookup.using:
        condition = BoundCondition((*map(conditions.key, lookup.keys), *parts) or (conditions.key("true"),))
    elif not all(_is_plain_pair(frame, lookup, name, query) for name in lookup.using):
        condition = BoundCondition(tuple(_pair(frame, lookup, conditions, name, query) for name in lookup.using))
    items = [_select_item(frame, lookup, conditions, key, name) for key, name in columns.items()]
    try:
        join = LookupJoin(
            frame.df,
            lookup.table,
            condition,
            lookup.how,
            items or [conditions.left_column(frame.df.columns[0])],
            where=BoundCondition(where_parts),
            matches=lookup.matches,
            as_of=None if lookup.as_of is None else conditions.as_of(lookup.as_of),
        )
        _ = join.result
    except AnalysisException as error:
        raise query.error_of(error) from None
    except LookupCacheError as error:
        blamed = _error_span(query, lookup, error, {**on, **where})
        raise error.at(query.statement.position(blamed)) from None
    return join


def _is_plain_pair(frame: Frame, lookup: Lookup, name: str, query: Query) -> bool:
    """Return whether the column of USING has its own name in the left DataFrame."""
    owners = _owners(frame.relations, name, query)
    return len(owners) == 1 and frame.columns.get(owners[0]) == owners[0][1] and name not in lookup.relation.computed


def _owners(relations: Iterable[Relation], name: str, query: Query) -> list[tuple[Relation, str]]:
    """Return the columns that an unqualified name may refer to."""
    found = [(one, column) for one in relations if (column := one.column(name, query.fold)) is not None]
    return [(one, column) for one, column in found if query.fold(column) not in one.merged]


def _pair(frame: Frame, lookup: Lookup, conditions: Conditions, name: str, query: Query) -> BoundConjunct:
    """Return the equality of a column of USING."""
    owner = _owners(frame.relations, name, query)[0]
    right = lookup.relation.column(name, query.fold) or name
    return conditions.pair(owner, right)


def _select_item(frame: Frame, lookup: Lookup, conditions: Conditions, key: tuple[Relation, str], name: str) -> str:
    relation, column = key
    right = relation is lookup.relation
    here = f"{quote(relation.alias)}.{quote(column)}" if right else conditions.left_column(frame.columns[key])
    return here if (column if right else frame.columns[key]) == name else f"{here} AS {quote(name)}"


def _refuse_keyless(query: Query, lookup: Lookup, on: Sequence[BoundConjunct]) -> None:
    if lookup.table.stream is not None and not lookup.table.stream.key:
        return
    if not on and not lookup.keys and not lookup.using:
        alias, column = lookup.table.name, lookup.table.schema.names[0]
        raise PlanError(
            f"The lookup has no key for table {alias!r}: its condition has no equality with a column of the table.",
            hint=f"Add an equality, as in ON o.customer_id = {alias}.{column}.",
            position=query.statement.position(lookup.span),
        )


def _error_span(query: Query, lookup: Lookup, error: LookupCacheError, bound: Bound) -> Span:
    """Return the span of the conjunct that an error is about, else of the condition, else of the join."""
    for part, tree in bound.items():
        if error.about is not None and _without_spaces(tree.fragment.text).strip("()") == _without_spaces(
            error.about
        ).strip("()"):
            return part.span
    if lookup.as_of is not None and error.fact.startswith("as_of"):
        return time_span(query, lookup.as_of)
    on = [part.span for part in bound if lookup.on_node is not None and span_of(lookup.on_node).holds(part.span)]
    return Span(on[0].start, on[-1].end) if on else lookup.span


def _without_spaces(text: str) -> str:
    return "".join(text.split())


# ── columns of the result ──────────────────────────────────────────────────────────────────


def _columns(query: Query, lookup: Lookup, read: Sequence[tuple[Relation, str]]) -> dict[tuple[Relation, str], str]:
    """Return the columns of the join's result with their names; for computed columns, the columns that they read."""
    wanted: dict[tuple[Relation, str], None] = {}
    for relation, name in read:
        for column in inputs_of(relation, name) if name in relation.computed else [name]:
            if not (relation is lookup.relation and column in lookup.marks):
                wanted[relation, column] = None
    names = unique_names(list(wanted), query.fold, list(lookup.marks))
    return dict(zip(wanted, names, strict=True))


def _match_columns(
    select: Select, frame: Frame, lookup: Lookup, read: Sequence[tuple[Relation, str]]
) -> dict[Relation, str]:
    """Return the columns that distinguish matches from rows that an outer join adds."""
    computed = any(one is lookup.relation and name in one.computed for one, name in read)
    padded = lookup.how == "left" or _makes_rows_up(select.joins)
    own = {}
    if lookup.match_column is not None and (lookup.needs_match_column or (computed and padded)):
        own = {lookup.relation: lookup.match_column}
    return {one: name for one, name in frame.match_columns.items() if (one, name) in frame.columns} | own


# ── editing the text ─────────────────────────────────────────────────────────────────────────────────────────


def _finish(select: Select, joined: Joined) -> None:
    """Edit the text: FROM, WHERE, stars, scalar sub-queries, hints."""
    query, clause = select.query, joined.clause
    names = _with_groups(select, clause)
    select.hints.refuse_unused([one.table.name for one in joined.looked_up], list(joined.functions))
    if select.hints.ours and select.hints.span is not None:
        others = select.hints.others
        query.edits.replace(select.hints.span, f"/*+ {others} */" if others else "")
    for scalar, lookup in joined.found:
        query.edits.replace(span_of(scalar.node), _scalar_text(select, clause, scalar, lookup))
    for edit in (*_star_edits(select, names), *_merged_edits(select, names, None), *_path_edits(select, clause)):
        query.edits.replace(*edit)
    _name_scalars(select, joined)
    _finish_where(select, joined)
    _finish_from(select, clause)


def _with_groups(select: Select, clause: FromClause) -> FromClause:
    """Return the clause with the columns of all relations, where lookups in parentheses merge some of them."""
    if not any(plain.in_group and plain.using for plain in clause.plain):
        return clause
    known = resolve_relations(select.query, clause, select.with_text)
    return replace(clause, relations=(*clause.relations, *known), plain=())


def _finish_from(select: Select, clause: FromClause) -> None:
    query, first = select.query, select.node.args.get("from_")
    if first is None:
        end = max(span_of(item).end for item in select.node.expressions)
        query.edits.replace(Span(end, end), f" FROM {from_text(clause)}")
        return
    last = select.joins[-1] if select.joins else first
    start, end = span_of(first.this).start, span_of(last).end
    query.edits.replace(Span(start, max(end, span_of(first.this).end)), from_text(clause))


def _finish_where(select: Select, joined: Joined) -> None:
    query, where = select.query, select.node.args.get("where")
    rest = [*(part for part in select.where if part not in joined.taken), *joined.later]
    if not joined.later and (where is None or not joined.taken):
        return
    texts = [in_parentheses(query.edits.text(part.span)) for part in rest]
    text = "WHERE " + "\n  AND ".join(texts) if texts else ""
    if where is not None:
        query.edits.replace(span_of(where), text)
    else:
        last = select.joins[-1]
        query.edits.replace(Span(span_of(last).end, span_of(last).end), f"\n{text}")


def _stars(node: exp.Expr) -> Iterator[exp.Star]:
    """Yield the unqualified stars of a SELECT."""
    for inner in node.iter_expressions():
        if isinstance(inner, exp.Star):
            if not is_count_of_rows(node, inner):
                yield inner
        elif isinstance(inner, exp.Select) and inner.args.get("from_") is not None:
            continue
        elif not isinstance(inner, exp.Column | exp.From):
            yield from _stars(inner)


def _star_edits(select: Select, clause: FromClause) -> Iterator[Edit]:
    """Yield the edits that exclude internal columns from ``*``."""
    views = clause.internal
    for star in _stars(select.node):
        span = span_of(star)
        if not span.end:  # of a FROM without a SELECT
            yield from _edits_of_from(select, views)
            continue
        if clause.merged:
            yield Edit(span, ", ".join(_expand_star(select, clause, star)))
            continue
        excepted = next((t for t in tokens(select.query.statement[span]) if t.text == "("), None)
        if excepted is None and views:
            yield Edit(span, all_but(views))
        elif excepted is not None and views and star.args.get("except_"):
            end = span.start + excepted.end
            yield Edit(Span(end, end), f"{', '.join(views)}, ")


def _edits_of_from(select: Select, views: Sequence[str]) -> Iterator[Edit]:
    """Yield the edit that adds SELECT to a FROM without one; ``TABLE t`` has an edit already, which is replaced."""
    query, end = select.query, span_of(select.node.args["from_"].this).start
    table = next((span for span in query.statement.tables if not query.statement[Span(span.end, end)].strip()), None)
    if table is not None and table.end <= end:
        query.edits.made = [edit for edit in query.edits.made if edit.span != table]
        yield Edit(table, f"SELECT {all_but(views)} FROM")
        return
    start = query.statement.code[:end].upper().rindex("FROM")
    yield Edit(Span(start, start), f"SELECT {all_but(views)} ")


def _expand_star(select: Select, clause: FromClause, star: exp.Star) -> Iterator[str]:
    """Yield the columns of * with USING: the merged columns first, then the others of each relation."""
    query, fold = select.query, select.query.fold
    if any(not isinstance(one, exp.Column) for one in star.args.get("except_") or []):
        raise PlanError(
            "* is not supported here, with a lookup that has USING or NATURAL.",
            hint="Name the columns, or write the condition with ON.",
            position=query.statement.position(span_of(star)),
        )
    without = [[part.name for part in column.parts] for column in star.args.get("except_") or []]
    relations = (*clause.relations, *resolve_relations(query, clause, select.with_text))
    for relation, name in star_columns(relations, fold):
        same = [parts[:-1] for parts in without if fold(parts[-1]) == fold(name)]
        if not any(not qualifier or relation.is_named(qualifier, fold) for qualifier in same):
            yield f"{quote(relation.alias)}.{quote(name)}"


def _merged_edits(select: Select, clause: FromClause, within: exp.Expr | None) -> Iterator[Edit]:
    """Yield edits that qualify names that USING merges with the first relation that has them."""
    query, fold = select.query, select.query.fold
    if not clause.merged:
        return
    piece = None if within is None else span_of(within)
    named = {fold(item.alias) for item in select.node.expressions if isinstance(item, exp.Alias)}
    for name in select.names:
        outside_piece = piece is not None and not piece.start <= name.start < piece.end
        if (
            len(name.parts) != 1
            or name.is_star
            or name.nested
            or outside_piece
            or fold(name.parts[0]) not in clause.merged
        ):
            continue
        if isinstance(name.node, exp.Identifier):  # in USING, which names no relation
            if piece is not None:
                raise _used_again(query, name)
            continue
        enclosing = name.node.find_ancestor(exp.Order, exp.Having, exp.Group, exp.Select)
        if not isinstance(enclosing, exp.Select) and fold(name.parts[0]) in named:
            continue
        owner = _owners(clause.relations, name.parts[0], query)
        yield Edit(Span(name.spans[0].start, name.spans[0].start), f"{quote(owner[0][0].alias)}.")


def _using_edits(select: Select, clause: FromClause, join: exp.Join) -> Iterator[Edit]:
    """Yield the edit that writes USING of columns that a lookup merged before as equalities with the first of them."""
    query, columns = select.query, [name.name for name in join.args.get("using") or []]
    owners = [_owners(clause.relations, name, query) for name in columns]
    if not clause.merged.issuperset(map(query.fold, columns)) or not all(owners) or is_group(join.this):
        return
    right = quote(plain_relation(query, join.this, join).names[-1])
    start = span_of(join.this).end
    using = next((t for t in tokens(query.statement[Span(start, span_of(join).end)]) if t.text == "USING"), None)
    if using is not None and columns:
        pairs = [
            f"{quote(one[0][0].alias)}.{quote(one[0][1])} = {right}.{quote(n)}"
            for one, n in zip(owners, columns, strict=True)
        ]
        yield Edit(Span(start + using.start, span_of(join).end), f"ON {' AND '.join(pairs)}")


def _used_again(query: Query, name: Name) -> PlanError:
    return PlanError(
        f"Column {name.parts[0]!r} cannot be used in USING again after a lookup with USING or NATURAL.",
        hint="Write the condition with ON.",
        position=query.statement.position(name.spans[0]),
    )


def _path_edits(select: Select, clause: FromClause) -> Iterator[Edit]:
    """Yield edits that shorten a qualifier such as ``schema.table`` to its last name."""
    for name in select.names:
        for depth in (3, 2):
            paths = [one for one in clause.relations if len(name.parts) > depth - name.is_star]
            if any(len(one.names) >= depth and one.is_named(name.parts[:depth], select.query.fold) for one in paths):
                yield Edit(Span(name.spans[0].start, name.spans[depth - 1].start), "")
                break


# ── scalar sub-queries ───────────────────────────────────────────────────────────────────────────────────


def _scalar_text(select: Select, clause: FromClause, scalar: Scalar, lookup: Lookup) -> str:
    relation = lookup.relation

    def column(known: str) -> str:
        if known in relation.computed:
            return computed_sql(relation, known, column)
        return f"{clause.view}.{clause.view}.{quote(clause.columns[relation, known])}"

    text = scalar.text(select.query, column)
    whole = text if scalar.plain else f"(CASE WHEN {column(str(lookup.match_column))} IS NOT NULL THEN {text} END)"
    return f"any_value({whole})" if _is_grouped(select.node, scalar) else whole


def _is_grouped(node: exp.Select, scalar: Scalar) -> bool:
    """Return whether a sub-query is outside of aggregates in a SELECT that groups rows, and not by it."""
    calls = [one for one in node.find_all(exp.AggFunc) if not isinstance(one.parent, exp.Window)]
    own = any(one.find_ancestor(exp.Select, exp.Pivot) is node for one in calls)
    if node.args.get("group") is None and not own:
        return False
    inside = scalar.node.find_ancestor(exp.AggFunc, exp.Group, exp.Where, exp.Select)
    return not isinstance(inside, exp.AggFunc | exp.Group | exp.Where) and not _is_grouping_item(node, scalar)


def _is_grouping_item(node: exp.Select, scalar: Scalar) -> bool:
    """Return whether a sub-query is part of an item of SELECT that GROUP BY names by its number or alias, or by ALL."""
    items = [(n, item) for n, item in enumerate(node.expressions, 1) if any(one is scalar.node for one in item.walk())]
    group = node.args.get("group")
    if not items or group is None:
        return False
    [(number, item)] = items
    keys = [key for key in group.find_all(exp.Literal, exp.Column) if key.find_ancestor(exp.Select) is node]
    named = [key.name for key in keys if not isinstance(key, exp.Column) or not key.table]
    return bool(group.args.get("all")) or str(number) in named or item.alias.lower() in map(str.lower, named)


def _name_scalars(select: Select, joined: Joined) -> None:
    """Name scalar sub-queries in the select list as Spark names them."""
    for scalar, _ in joined.found:
        if any(item is scalar.node for item in select.node.expressions):
            span = span_of(scalar.node)
            select.query.edits.replace(Span(span.end, span.end), f" AS {quote(scalar.spark_name)}")
