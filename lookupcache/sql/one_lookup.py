"""One lookup join of a SELECT: which conjuncts it takes, which columns it returns, and its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.errors import AnalysisException
from sqlglot import exp

from lookupcache.errors import LookupCacheError, PlanError
from lookupcache.planner.condition import BoundCondition, BoundConjunct
from lookupcache.planner.grammar import equality
from lookupcache.schema import quote
from lookupcache.spark.join import LookupJoin
from lookupcache.sql.conditions import Conditions, Conjunct, common_conjuncts, conjuncts_of, time_part
from lookupcache.sql.dialect import span_of
from lookupcache.sql.from_clause import Frame, FromClause, frame_of, from_text, inputs_of, stored_column, unique_names
from lookupcache.sql.latest import PRESENT
from lookupcache.sql.lookups import Lookup, time_span
from lookupcache.sql.query import Query
from lookupcache.sql.reads import columns_read, outside, reads_outside
from lookupcache.sql.scope import Relation, aliases
from lookupcache.sql.select_text import BoundConjuncts, Joined, Select, adds_rows, merged_edits, owners_of
from lookupcache.sql.text import Span


def look_up(select: Select, joined: Joined, frame: Frame, lookup: Lookup, *, rows_added: bool) -> Joined:
    query = select.query
    if lookup.needs_match_column or lookup.relation.computed:
        lookup = replace(lookup, match_column=_key_column(query, frame, lookup))
    frame, lookup, conditions, on, later = _on(select, joined, frame, lookup, rows_added=rows_added)
    where = {} if rows_added or not select.where else _where(select, joined, conditions)
    taken = (*joined.taken, *where)
    if lookup.how == "inner" and not rows_added and _wants_common(lookup, {**on, **where}):
        where |= _common_of_where(select, joined, conditions)
    done = (*joined.done, *(part.span for part in taken))
    relations = (*frame.relations, *_visible(lookup))
    read = columns_read(outside(select.names, done), relations, query.fold)
    read += [(one.relation, name) for scalar, one in joined.found for name in scalar.columns]
    read += columns_read([name for scalar, _ in joined.found for name in scalar.outer], relations, query.fold)
    later = (*joined.later, *later)
    read += columns_read([name for part in later for name in part.names], relations, query.fold)
    read += [one for name in sorted(query.left_orders) for one in _left_owners(query, joined, relations, name)]
    match_columns = _match_columns(select, frame, lookup, read)
    columns = _columns(query, lookup, read, match_columns)
    lookup = _with_left_order(query, joined, frame, lookup)
    join = _plan_join(select, frame, lookup, conditions, on, where, columns)
    query.joins.append(join)
    query.uses.append(lookup.use)
    view = query.view(join.result, [name for one in relations for name in one.column_names])
    computed = frozenset((one, name) for one, name in read if name in one.computed)
    columns |= {(lookup.relation, name): name for name in lookup.marks}
    clause = FromClause("", (), view, relations, columns, match_columns, computed=computed)
    return replace(joined, clause=clause, taken=taken, later=later, looked_up=(*joined.looked_up, lookup))


def _left_owners(query: Query, joined: Joined, relations: Sequence[Relation], name: str) -> list[tuple[Relation, str]]:
    """Return the left columns that a name of ``left_order_by`` may mean, those of a lookup table only if no others."""
    found = [(one, column) for one, column in owners_of(relations, name, query) if column not in one.computed]
    tables = [one.relation for one in joined.looked_up]
    return [owner for owner in found if owner[0] not in tables] or found


def _with_left_order(query: Query, joined: Joined, frame: Frame, lookup: Lookup) -> Lookup:
    """Return a lookup whose ``left_order_by`` has the names that the columns have in the left DataFrame."""
    source = lookup.table.stream
    if source is None or not source.left_order_by:
        return lookup
    names = []
    for name in source.left_order_by:
        owners = _left_owners(query, joined, frame.relations, name)
        if len(owners) > 1:
            raise PlanError(
                f"'left_order_by' of table {lookup.table.name!r} names {name!r}, which is a column of "
                f"{' and '.join(repr(relation.alias) for relation, _ in owners)}.",
                hint="Read one of them in a sub-query, under another name or without the column.",
                position=query.statement.position(lookup.span),
            )
        names += [frame.columns[owner] for owner in owners] or [name]
    return replace(lookup, table=lookup.table.with_stream(left_order_by=names))


def _visible(lookup: Lookup) -> list[Relation]:
    """Return the relation that a lookup adds; of a semi or anti join only the order that its USING gives to ``*``."""
    if lookup.scalar or lookup.how in ("semi", "anti"):
        return [Relation(("",), (), lookup.relation.merged)] if lookup.using else []
    return [lookup.relation]


def _where(select: Select, joined: Joined, conditions: Conditions) -> BoundConjuncts:
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
        shared = (lookup.relation.column(name, query.fold) for name in lookup.using)
        every = (stored_column(lookup.relation, name) for name in shared if name is not None)
        return next((name for name in every if name is not None), None)
    conditions = Conditions(query, frame, lookup)
    parts = conjuncts_of(query, lookup.on_node)
    for part in (*parts, *common_conjuncts(query, parts)):
        sides = equality(query.statement[part.span]) or ()
        for name in part.names:
            bound = conditions.on_scope.bind(name)
            if bound is None or bound.relation is not lookup.relation:
                continue
            stored = stored_column(lookup.relation, bound.column)
            if stored is not None and query.statement[bound.span] in sides:
                return stored
    return lookup.relation.column(PRESENT, query.fold)


def _on(
    select: Select, joined: Joined, frame: Frame, lookup: Lookup, *, rows_added: bool
) -> tuple[Frame, Lookup, Conditions, BoundConjuncts, tuple[Conjunct, ...]]:
    """Return the conjuncts of ON; parts that only Spark can evaluate become columns of the left side.

    After an inner join, Spark applies the conjuncts that read the table and need Spark, as part of WHERE. It does not
    where ON chooses the versions that WHERE filters.
    """
    query = select.query
    parts = [part for part in conjuncts_of(query, lookup.on_node) if query.statement[part.span].upper() != "TRUE"]
    conditions = Conditions(query, frame, lookup)
    extras: dict[Span, str] = {}
    later: list[Conjunct] = []

    def unused(number: int) -> str:
        return query.unused(f"lookup_x{len(joined.looked_up)}_{number}", frame.df.columns)

    if lookup.as_of is not None:
        for span in _pieces_of_time(select, joined, conditions, lookup.as_of):
            extras[span] = unused(len(extras))
    for part in parts:
        pieces = _pieces(conditions, part)
        reads = (
            "sub-query, or an expression that only Spark reads,"
            if part.has_query
            else "variant path of the lookup table"
        )
        if pieces and select.inside and not lookup.scalar and _read_outside(select, joined, pieces):
            pieces, reads = None, "column of the query around this one, or a session variable,"
        if pieces is None and (lookup.how != "inner" or rows_added or lookup.has_versions):
            raise PlanError(
                f"A {reads} is not supported in the condition of this join.",
                hint=f"Write it in WHERE{_IN_WHERE * lookup.has_versions}, or join its result before the lookup.",
                position=query.statement.position(part.span),
            )
        if pieces is None:
            later.append(part)
        for span in pieces or ():
            extras[span] = unused(len(extras))
    read = [*parts, *select.where, *([] if lookup.as_of is None else [time_part(query, lookup.as_of)])]
    outside = conditions.read_outside([name for part in read for name in part.names])
    given = {sql: unused(len(extras) + n) for n, sql in enumerate(outside)}
    if extras or given or lookup.computed:
        within = [node for node in (lookup.on_node, lookup.as_of and lookup.as_of.expression) if node is not None]
        merged = [edit for node in within for edit in merged_edits(select, joined.clause, node)]
        items = [f"({query.edits.text(span, merged)}) AS {name}" for span, name in extras.items()]
        items += [f"({sql}) AS {name}" for sql, name in given.items()]
        items += [f"({sql}) AS {name}" for name, sql in lookup.computed.items()]
        frame = frame_of(query, joined.clause, select.within, items)
        conditions = Conditions(query, frame, lookup, given, extras)
    bound = {part: conditions.on(part) for part in parts if part not in later}
    if _wants_common(lookup, bound):
        common = {part: conditions.on(part) for part in common_conjuncts(query, parts)}
        bound |= {part: one for part, one in common.items() if one.equality is not None}
    return frame, lookup, conditions, bound, tuple(later)


def _wants_common(lookup: Lookup, bound: BoundConjuncts) -> bool:
    """Return whether a lookup needs keys of the operands of an OR: it has none, or a stream has a value for each."""
    return not lookup.keys and (lookup.table.stream is not None or not any(one.is_key for one in bound.values()))


def _common_of_where(select: Select, joined: Joined, conditions: Conditions) -> BoundConjuncts:
    """Return the equalities that all operands of an OR in WHERE have; the OR is still to be applied."""
    parts = [part for part in select.where if part not in joined.taken]
    names = aliases(select.node)
    bound = {part: conditions.where(part, names) for part in common_conjuncts(select.query, parts)}
    return {part: one for part, one in bound.items() if one is not None and one.equality is not None}


_IN_WHERE = ", which filters the latest versions"


def _pieces(conditions: Conditions, part: Conjunct) -> list[Span] | None:
    """Return the spans of a conjunct that Spark evaluates before the join; None if that is not possible."""
    if part.has_query:
        return None
    spans = [*(span_of(one) for one in part.foreign), *(name.span for name in conditions.unknown(part))]
    inside = [name for name in part.names if any(span.start <= name.start < span.end for span in spans)]
    return None if conditions.reads_table(inside) else list(dict.fromkeys(spans))


def _pieces_of_time(select: Select, joined: Joined, conditions: Conditions, version: exp.Version) -> list[Span]:
    """Return the spans of the time of an as-of join that Spark evaluates before the join."""
    spans = conditions.pieces_of_time(version)
    if spans and select.inside and not conditions.lookup.scalar and _read_outside(select, joined, spans):
        raise PlanError(
            "FOR SYSTEM_TIME AS OF cannot read a column of the query around this one, or a session variable there.",
            hint="Read it in the SELECT around, or join the lookup there.",
            position=select.query.statement.position(time_span(select.query, version)),
        )
    return spans


def _read_outside(select: Select, joined: Joined, spans: Sequence[Span]) -> bool:
    """Return whether parts of a condition read columns of the query around the SELECT."""
    query, clause = select.query, joined.clause
    items = ", ".join(f"({query.edits.text(span)}) AS lookup_x{n}" for n, span in enumerate(spans))
    left = from_text(clause) or "(SELECT 1) AS lookup_one"
    return reads_outside(query, select.within(f"SELECT {items} FROM {left}"))


def _plan_join(
    select: Select,
    frame: Frame,
    lookup: Lookup,
    conditions: Conditions,
    on: BoundConjuncts,
    where: BoundConjuncts,
    columns: dict[tuple[Relation, str], str],
) -> LookupJoin:
    query = select.query
    parts, where_parts = tuple(on.values()), tuple(where.values())
    if lookup.how == "inner" and not on and not lookup.keys and not lookup.using and not lookup.has_versions:
        parts, where_parts = where_parts, ()
    _refuse_keyless(query, lookup, parts)
    condition: list[str] | BoundCondition = list(lookup.using)
    more = conditions.of_source()
    if not lookup.using:
        condition = BoundCondition((*map(conditions.key, lookup.keys), *parts, *more) or (conditions.key("true"),))
    elif more or not all(_is_plain_pair(frame, lookup, name, query) for name in lookup.using):
        pairs = (_pair(frame, lookup, conditions, name, query) for name in lookup.using)
        condition = BoundCondition((*pairs, *more))
    items = [_select_item(frame, lookup, conditions, key, name) for key, name in columns.items()]
    try:
        join = LookupJoin(
            frame.df,
            lookup.table,
            condition,
            lookup.how,
            items or [conditions.left_column(frame.df.columns[0])],
            where=BoundCondition(where_parts, query.settings),
            matches=lookup.matches,
            as_of=None if lookup.as_of is None else conditions.as_of(lookup.as_of),
        )
        _ = join.result
    except AnalysisException as error:
        raise query.error_of(error) from None
    except LookupCacheError as error:
        blamed = _error_span(query, lookup, error, {**on, **where})
        raise conditions.as_written(error).at(query.statement.position(blamed)) from None
    return join


def _is_plain_pair(frame: Frame, lookup: Lookup, name: str, query: Query) -> bool:
    """Return whether the column of USING has its own name in the left DataFrame."""
    owners = owners_of(frame.relations, name, query)
    return len(owners) == 1 and frame.columns.get(owners[0]) == owners[0][1] and name not in lookup.relation.computed


def _pair(frame: Frame, lookup: Lookup, conditions: Conditions, name: str, query: Query) -> BoundConjunct:
    """Return the equality of a column of USING."""
    owner = owners_of(frame.relations, name, query)[0]
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


def _error_span(query: Query, lookup: Lookup, error: LookupCacheError, bound: BoundConjuncts) -> Span:
    """Return the span of the conjunct that an error is about, else of the condition, else of the join."""

    def bare(text: str) -> str:
        return "".join(text.split()).strip("()")

    for part, tree in bound.items():
        if error.about is not None and bare(tree.fragment.text) == bare(error.about):
            return part.span
    if lookup.as_of is not None and error.fact.startswith("as_of"):
        return time_span(query, lookup.as_of)
    on = [part.span for part in bound if lookup.on_node is not None and span_of(lookup.on_node).holds(part.span)]
    return Span(on[0].start, on[-1].end) if on else lookup.span


# ── columns of the result ─────────────────────────────────────────────────────────────────────────────


def _columns(
    query: Query, lookup: Lookup, read: Sequence[tuple[Relation, str]], match_columns: Mapping[Relation, str]
) -> dict[tuple[Relation, str], str]:
    """Return the columns of the join's result with their names; for computed columns, the columns that they read."""
    stored = [(one, column) for one, name in read for column in _stored(one, name)]
    every = dict.fromkeys([*stored, *match_columns.items()])
    wanted = [key for key in every if not (key[0] is lookup.relation and key[1] in lookup.marks)]
    names = unique_names(wanted, query.fold, list(lookup.marks))
    return dict(zip(wanted, names, strict=True))


def _stored(relation: Relation, name: str) -> list[str]:
    return inputs_of(relation, name) if name in relation.computed else [name]


def _match_columns(
    select: Select, frame: Frame, lookup: Lookup, read: Sequence[tuple[Relation, str]]
) -> dict[Relation, str]:
    """Return the columns that distinguish matches from rows that an outer join adds."""
    computed = any(one is lookup.relation and name in one.computed for one, name in read)
    padded = lookup.how == "left" or adds_rows(select.joins)
    own = {}
    if lookup.match_column is not None and (lookup.needs_match_column or (computed and padded)):
        own = {lookup.relation: lookup.match_column}
    return {one: name for one, name in frame.match_columns.items() if (one, name) in frame.columns} | own
