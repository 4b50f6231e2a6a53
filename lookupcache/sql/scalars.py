"""Scalar sub-queries over a lookup table: each is a left join with at most one match per row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from lookupcache.compiled.nodes import TableUse
from lookupcache.ddl import SqlglotNode
from lookupcache.errors import PlanError
from lookupcache.planner.argument_names import named_sql
from lookupcache.sql.catalog import SqlTable
from lookupcache.sql.dialect import span_of
from lookupcache.sql.hints import Hints
from lookupcache.sql.lookups import Lookup, is_temporal, relation_of, time_of, with_hints
from lookupcache.sql.query import Query
from lookupcache.sql.scope import Name, Scope, names_in, naming_edits
from lookupcache.sql.text import Edit, Span


@dataclass(frozen=True, eq=False)
class Scalar:
    """A scalar sub-query over a lookup table: its node, its SELECT, and the columns and outer names that it selects."""

    node: exp.Subquery
    select: exp.Select
    table: SqlTable
    columns: tuple[str, ...]
    outer: tuple[Name, ...]
    spark_name: str

    @property
    def item(self) -> exp.Expr:
        """The selected expression."""
        return self.select.expressions[0].unalias()

    @property
    def plain(self) -> bool:
        """Whether the expression is a plain column, which is null if there is no row."""
        is_stored = self.table.shown is None and self.item.name in self.table.table.schema.names
        return isinstance(self.item, exp.Column) and not self.outer and is_stored

    def text(self, query: Query, column: Callable[[str], str]) -> str:
        """Return the selected expression as SQL over the joined rows; ``column`` gives the SQL of a table's column."""
        own, edit = self.scope(query), naming_edits(query.statement, span_of(self.item))
        edits: list[Edit] = []
        for name in names_in(self.item, query.fold):
            if name.is_star:
                known = _columns_of_star(query, own, name)
                columns = ", ".join(named_sql(column(one), one) for one in known)
                edits += [Edit(_span_of_star(name), columns), *numbered_fields(name.node)]
            elif (bound := own.bind(name)) is not None:
                edits.append(edit(bound.span, column(bound.column)))
        return query.edits.text(span_of(self.item), edits)

    def scope(self, query: Query) -> Scope:
        """Return the scope of the sub-query alone."""
        node = self.select.args["from_"].this
        return Scope([[relation_of(node.alias or node.name, self.table, query.fold)]], query.fold)


def scalars_of(query: Query) -> list[Scalar]:
    """Return the scalar sub-queries that are lookups, in text order; raises PlanError for unsupported ones."""
    found = []
    for node, select, first in queries_of_values(query):
        table = query.table_of(first)
        if table is None or any(scan.start == span_of(first).start for scan in query.full_scans):
            continue
        is_stream = table.table.stream is not None
        if isinstance(node.parent, exp.In) and not is_value_of_in(node):
            continue
        if select.args.get("where") is None and not is_stream:
            continue  # an uncorrelated one over the full table is Spark's
        if not is_stream and any(_unsupported(select).values()) and _is_alone(query, select, table):
            continue
        _refuse(query, node, select)
        found.append(_scalar(query, node, select, table))
    return sorted(found, key=lambda scalar: span_of(scalar.node).start)


def queries_of_values(query: Query) -> Iterator[tuple[exp.Subquery, exp.Select, exp.Expr]]:
    """Yield each query inside of an expression that reads a single relation, its SELECT, and the relation."""
    relations = exp.From | exp.Join | exp.CTE | exp.SetOperation | exp.Subquery | exp.Lateral | None
    for node in query.find(exp.Subquery):
        select = node.this
        first = select.args.get("from_") if isinstance(select, exp.Select) else None
        if first is not None and not isinstance(node.parent, relations) and not select.args.get("joins"):
            yield node, select, first.this


def is_value_of_in(node: exp.Subquery) -> bool:
    """Return whether a query stands left of IN, or is one of several values right of it."""
    values = [] if node.parent is None else node.parent.expressions
    return node.arg_key == "this" or (node.arg_key == "expressions" and len(values) > 1)


def _scalar(query: Query, node: exp.Subquery, select: exp.Select, table: SqlTable) -> Scalar:
    scalar = Scalar(node, select, table, (), (), "")
    own = scalar.scope(query)
    item = names_in(scalar.item, query.fold)
    where = names_in(select.args["where"], query.fold) if select.args.get("where") is not None else []
    read = [bound.column for name in item if (bound := own.bind(name)) is not None]
    read += [column for name in item if name.is_star for column in _columns_of_star(query, own, name)]
    outer = tuple(name for name in item if own.bind(name) is None and not name.is_star)
    of_where = [name for name in where if own.bind(name) is None]
    names = ", ".join(dict.fromkeys(name.parts[-1] for name in (*outer, *of_where) if name.parts))
    return replace(scalar, columns=tuple(dict.fromkeys(read)), outer=outer, spark_name=f"scalarsubquery({names})")


def _columns_of_star(query: Query, own: Scope, name: Name) -> list[str]:
    """Return the columns of a sub-query's table that a star in its value means; raise PlanError for another star."""
    [relation] = own.relations
    star = name.node if isinstance(name.node, exp.Star) else name.node.this
    without = star.args.get("except_") or []
    if (name.parts and not relation.is_named(name.parts, query.fold)) or any(len(one.parts) > 1 for one in without):
        raise PlanError(
            "This star is not supported in the value of a scalar sub-query.",
            hint=f"Write the fields, or {relation.alias}.* for the columns of the table.",
            position=query.statement.position(_span_of_star(name)),
        )
    left_out = {query.fold(one.name) for one in without}
    return [column for column in relation.column_names if query.fold(column) not in left_out]


def _span_of_star(name: Name) -> Span:
    star = name.node if isinstance(name.node, exp.Star) else name.node.this
    return Span(name.start, span_of(star).end)


def numbered_fields(star: exp.Expr) -> Iterator[Edit]:
    """Yield the edits that leave the fields of a struct around a star their numbers: Spark counts it as one field."""
    call = star.parent
    is_call = isinstance(call, exp.Anonymous) and isinstance(call.this, str) and call.this.lower() == "struct"
    if call is None or not (is_call or isinstance(call, exp.Tuple)):
        return
    for number, item in enumerate(call.expressions, 1):
        if not isinstance(item, exp.Column | exp.Star | exp.Alias | exp.Dot):
            end = span_of(item).end
            yield Edit(Span(end, end), f" AS col{number}")


def _is_alone(query: Query, select: exp.Select, table: SqlTable) -> bool:
    """Return whether a sub-query reads its own table only, so that it is one query over the full table."""
    first = select.args["from_"].this
    own = Scope([[relation_of(first.alias or first.name, table, query.fold)]], query.fold)
    return not is_temporal(first) and all(own.bind(name) is not None for name in names_in(select, query.fold))


def _unsupported(select: exp.Select) -> dict[str, Any]:
    """Return the parts of a sub-query that a scalar lookup cannot have, by their names."""
    limit, item = select.args.get("limit"), select.expressions[0]
    return {
        "GROUP BY": select.args.get("group"), "ORDER BY": select.args.get("order"),
        "HAVING": select.args.get("having"), "DISTINCT": select.args.get("distinct"),
        "OFFSET": select.args.get("offset"), "a window": item.find(exp.Window), "an aggregate": item.find(exp.AggFunc),
        "a sub-query in its value": item.find(exp.Query),
        "a LIMIT that is not 1": limit is not None and limit.expression.name != "1" and limit,
    }  # fmt: skip


def _refuse(query: Query, node: exp.Subquery, select: exp.Select) -> None:
    unread = {"a pipe, or an expression that is not supported here": query.unread_in(span_of(node))}
    for what, part in (_unsupported(select) | unread).items():
        if part:
            where = span_of(part) if isinstance(part, SqlglotNode) and span_of(part).end else span_of(node)
            raise PlanError(
                f"A scalar sub-query over a lookup table cannot have {what}.",
                hint="Look the rows up with LEFT JOIN … FOR SYSTEM_TIME AS OF PROCTIME(), and compute over the result: "
                "SELECT o.id, max(c.v) FROM o LEFT JOIN … GROUP BY o.id.",
                position=query.statement.position(where),
            )
    item = select.expressions[0]
    is_star = isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star))
    if len(select.expressions) != 1 or is_star:
        raise PlanError(
            "A scalar sub-query has one column.", hint="Select one.", position=query.statement.position(span_of(node))
        )


def scalar_lookup(query: Query, hints: Hints, scalar: Scalar) -> Lookup:
    """Return the lookup of a scalar sub-query."""
    node = scalar.select.args["from_"].this
    alias = node.alias or node.name
    where = scalar.select.args.get("where")
    limit = scalar.select.args.get("limit")
    inner = Hints(query.statement, scalar.select)
    table = with_hints(query, inner if inner.ours else hints, node, alias, scalar.table.table)
    version = node.args.get("version")
    return Lookup(
        span=span_of(scalar.node),
        relation=relation_of(alias, scalar.table, query.fold),
        table=table,
        how="left",
        on_node=None if where is None else where.this,
        matches="single" if limit is None else "first",
        scalar=True,
        needs_match_column=not scalar.plain,
        marks=scalar.table.marks,
        use=TableUse(table=scalar.table.base or node.name),
        source=scalar.table,
        as_of=time_of(query, None, version, table) if isinstance(version, exp.Version) else None,
    )
