"""A SELECT with lookups, and its text after they are joined: FROM, WHERE, stars, merged names, scalar sub-queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from lookupcache.errors import PlanError
from lookupcache.planner.clauses import is_surely_boolean, tokens
from lookupcache.planner.condition import BoundConjunct
from lookupcache.schema import quote
from lookupcache.sql.conditions import Conjunct, in_parentheses
from lookupcache.sql.dialect import span_of
from lookupcache.sql.from_clause import (
    FromClause,
    all_but,
    computed_sql,
    from_text,
    is_group,
    plain_relation,
    resolve_relations,
)
from lookupcache.sql.hints import Hints
from lookupcache.sql.lookups import Lookup
from lookupcache.sql.masks import pipes_of
from lookupcache.sql.query import Query
from lookupcache.sql.reads import unread_stars
from lookupcache.sql.scalars import Scalar, numbered_fields
from lookupcache.sql.scope import Name, Relation, is_count_of_rows, star_columns
from lookupcache.sql.text import Edit, Span

BoundConjuncts = dict[Conjunct, BoundConjunct]
"""Conjuncts as the planner takes them."""


@dataclass(frozen=True)
class Select:
    """A SELECT with its hints, all names in it, the conjuncts of its WHERE, and its joins.

    ``inside`` means that names may belong to a query around it.
    """

    query: Query
    node: exp.Select
    hints: Hints
    names: Sequence[Name]
    where: Sequence[Conjunct]
    joins: Sequence[exp.Join]
    scalars: Sequence[Scalar]
    inside: bool = False

    def within(self, sql: str) -> str:
        """Return a query over relations of the SELECT with the WITH clauses that it sees."""
        return self.query.within(self.node, sql)


@dataclass(frozen=True)
class Joined:
    """The state after some joins of a SELECT: the FROM clause so far, and which parts of the text are processed.

    Later steps skip the spans in ``done``. ``taken`` are conjuncts of WHERE that a lookup applies, and ``later``
    conjuncts of ON that move to WHERE. ``looked_up`` are the lookups, ``found`` those of scalar sub-queries.
    """

    clause: FromClause
    done: tuple[Span, ...] = ()
    taken: tuple[Conjunct, ...] = ()
    later: tuple[Conjunct, ...] = ()
    looked_up: tuple[Lookup, ...] = ()
    functions: tuple[str, ...] = ()
    found: tuple[tuple[Scalar, Lookup], ...] = ()


def adds_rows(later: Sequence[exp.Join]) -> bool:
    """Return whether a join that follows adds rows, to which WHERE must be applied."""
    return any(join.side in ("RIGHT", "FULL") for join in later)


def owners_of(relations: Iterable[Relation], name: str, query: Query) -> list[tuple[Relation, str]]:
    """Return the columns that an unqualified name may refer to."""
    found = [(one, column) for one in relations if (column := one.column(name, query.fold)) is not None]
    return [(one, column) for one, column in found if query.fold(column) not in one.merged]


# ── the text ────────────────────────────────────────────────────────────────────────────────────────────────


def finish(select: Select, joined: Joined) -> None:
    """Edit the text: FROM, WHERE, stars, scalar sub-queries, hints."""
    query, clause = select.query, joined.clause
    select.hints.refuse_unused([one.table.name for one in joined.looked_up], list(joined.functions))
    if select.hints.ours and select.hints.span is not None:
        others = select.hints.others
        query.edits.replace(select.hints.span, f"/*+ {others} */" if others else "")
    for scalar, lookup in joined.found:
        query.edits.replace(span_of(scalar.node), _scalar_text(select, clause, scalar, lookup))
    for edit in (
        *star_edits(select, clause, select.node),
        *merged_edits(select, clause, None),
        *_path_edits(select, clause),
    ):
        query.edits.replace(*edit)
    _name_scalars(select, joined)
    _finish_where(select, joined)
    _finish_from(select, clause)


def _finish_from(select: Select, clause: FromClause) -> None:
    query, first = select.query, select.node.args.get("from_")
    if first is None:
        end = max(span_of(item).end for item in select.node.expressions)
        query.edits.replace(Span(end, end), f" FROM {from_text(clause)}")
        return
    last = select.joins[-1] if select.joins else first
    start, end = span_of(first.this).start, max(span_of(last).end, span_of(first.this).end)
    with query.statement.located(Span(start, end)):
        query.edits.replace(Span(start, end), from_text(clause))


def _finish_where(select: Select, joined: Joined) -> None:
    query, where = select.query, select.node.args.get("where")
    rest = [*(part for part in select.where if part not in joined.taken), *joined.later]
    if not joined.later and (where is None or not joined.taken):
        return
    texts = [in_parentheses(query.edits.text(part.span)) for part in rest]
    if len(texts) == 1 and not is_surely_boolean(texts[0]):
        texts.append("TRUE")  # NULL is a condition beside others only
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


def star_edits(select: Select, clause: FromClause, within: exp.Expr) -> Iterator[Edit]:
    """Yield the edits that exclude internal columns from each ``*`` within a part of a SELECT."""
    views = clause.internal
    _refuse_unread_stars(select, clause)
    for star in _stars(within):
        span = span_of(star)
        if not span.end:  # of a FROM without a SELECT
            columns = ", ".join(_expand_star(select, clause, star)) if clause.merged else all_but(views)
            yield from _edits_of_from(select, columns)
            continue
        if clause.merged:
            yield Edit(span, ", ".join(_expand_star(select, clause, star)))
            yield from numbered_fields(star)
            continue
        excepted = next((t for t in tokens(select.query.statement[span]) if t.text == "("), None)
        if excepted is None and views:
            yield Edit(span, all_but(views))
        elif excepted is not None and views and star.args.get("except_"):
            end = span.start + excepted.end
            yield Edit(Span(end, end), f"{', '.join(views)}, ")


def _refuse_unread_stars(select: Select, clause: FromClause) -> None:
    """Raise PlanError for a star that would have to be written in another way, in a piece that the parser cannot read.

    Text behind a pipe reads the result of the SELECT before it.
    """
    if not clause.internal and not clause.merged:
        return
    query = select.query
    pipes = [query.statement.span_of(pipe).start for pipe in pipes_of(query.statement.tokens)]
    for name in unread_stars(query):
        behind = any(start in pipes and Span(start, end).holds(name.span) for start, end in query.masked)
        if not behind and not name.parts:
            raise PlanError(
                "* stands in an expression that is not supported here.",
                hint="Name the columns; or compute the expression from the result of a sub-query with the joins.",
                position=query.statement.position(name.span),
            )


def _edits_of_from(select: Select, columns: str) -> Iterator[Edit]:
    """Yield the edit that adds SELECT to a FROM without one; ``TABLE t`` has an edit already, which is replaced."""
    query, end = select.query, span_of(select.node.args["from_"].this).start
    table = next((span for span in query.statement.tables if not query.statement[Span(span.end, end)].strip()), None)
    if table is not None and table.end <= end:
        query.edits.made = [edit for edit in query.edits.made if edit.span != table]
        yield Edit(table, f"SELECT {columns} FROM")
        return
    start = query.statement.code[:end].upper().rindex("FROM")
    yield Edit(Span(start, start), f"SELECT {columns} ")


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
    relations = (*clause.relations, *resolve_relations(query, clause, select.within))
    for relation, name in star_columns(relations, fold):
        same = [parts[:-1] for parts in without if fold(parts[-1]) == fold(name)]
        if not any(not qualifier or relation.is_named(qualifier, fold) for qualifier in same):
            yield f"{quote(relation.alias)}.{quote(name)}"


def merged_edits(select: Select, clause: FromClause, within: exp.Expr | None) -> Iterator[Edit]:
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
                raise PlanError(
                    f"Column {name.parts[0]!r} cannot be used in USING again after a lookup with USING or NATURAL.",
                    hint="Write the condition with ON.",
                    position=query.statement.position(name.spans[0]),
                )
            continue
        enclosing = name.node.find_ancestor(exp.Order, exp.Having, exp.Select)  # GROUP BY finds columns first
        if not isinstance(enclosing, exp.Select) and fold(name.parts[0]) in named:
            continue
        owner = owners_of(clause.relations, name.parts[0], query)
        yield Edit(Span(name.spans[0].start, name.spans[0].start), f"{quote(owner[0][0].alias)}.")


def using_edits(select: Select, clause: FromClause, join: exp.Join) -> Iterator[Edit]:
    """Yield the edit that writes USING of columns that a lookup merged before as equalities with the first of them."""
    query, columns = select.query, [name.name for name in join.args.get("using") or []]
    owners = [owners_of(clause.relations, name, query) for name in columns]
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


def _path_edits(select: Select, clause: FromClause) -> Iterator[Edit]:
    """Yield edits that shorten a qualifier such as ``schema.table`` to its last name."""
    for name in select.names:
        for depth in (3, 2):
            paths = [one for one in clause.relations if len(name.parts) > depth - name.is_star]
            if any(len(one.names) >= depth and one.is_named(name.parts[:depth], select.query.fold) for one in paths):
                yield Edit(Span(name.spans[0].start, name.spans[depth - 1].start), "")
                break


# ── scalar sub-queries ────────────────────────────────────────────────────────────────────────────────


def _scalar_text(select: Select, clause: FromClause, scalar: Scalar, lookup: Lookup) -> str:
    relation = lookup.relation

    def column(known: str) -> str:
        if known in relation.computed:
            return computed_sql(relation, known, column)
        return f"{clause.view}.{clause.view}.{quote(clause.columns[relation, known])}"

    text = scalar.text(select.query, column)
    found = "TRUE" if scalar.plain else f"{column(str(lookup.match_column))} IS NOT NULL"
    whole = text if scalar.plain and not _names_a_field(scalar.node) else f"(CASE WHEN {found} THEN {text} END)"
    return f"any_value({whole})" if _is_grouped(select.node, scalar) else whole


def _names_a_field(node: exp.Expr) -> bool:
    """Return whether Spark would name a field after a column that stands there, as in ``struct(…)``."""
    return isinstance(node.parent, exp.Tuple | exp.Func)


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
            end = _with_parentheses(select.query.statement.code, span_of(scalar.node)).end
            select.query.edits.replace(Span(end, end), f" AS {quote(scalar.spark_name)}")


def _with_parentheses(code: str, span: Span) -> Span:
    """Return a span with the parentheses around it, which the tree does not have where they are doubled.

    >>> _with_parentheses("SELECT ( ((SELECT 1)) )", Span(10, 20))
    Span(start=7, end=23)
    """
    before, after = code[: span.start].rstrip(), code[span.end :]
    if not before.endswith("(") or not after.lstrip().startswith(")"):
        return span
    return _with_parentheses(code, Span(len(before) - 1, span.end + after.index(")") + 1))
