"""The parts of a SELECT with lookups, the state after some of its joins, and which of its joins are lookups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from lookupcache.errors import PlanError
from lookupcache.planner.condition import BoundConjunct
from lookupcache.sql.conditions import Conjunct
from lookupcache.sql.dialect import span_of
from lookupcache.sql.from_clause import FromClause
from lookupcache.sql.hints import Hints
from lookupcache.sql.laterals import called_function
from lookupcache.sql.lookups import Lookup, is_temporal
from lookupcache.sql.query import Query
from lookupcache.sql.scalars import Scalar
from lookupcache.sql.scope import Name, Relation
from lookupcache.sql.text import Span

Bound = dict[Conjunct, BoundConjunct]
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


# ── finding lookups ───────────────────────────────────────────────────────────────────────────────────


def is_lookup(query: Query, join: exp.Join) -> bool:
    return table_looked_up(query, join.this) is not None or called_function(query, join.this) is not None


def table_looked_up(query: Query, node: exp.Expr) -> Any:
    return query.table_of(node) if is_temporal(node) else None


def refuse_misplaced(query: Query, node: exp.Select) -> None:
    """Raise PlanError for a lookup that is no join of a SELECT: the first relation, or one of joins in parentheses."""
    joined = {id(join.this) for join in node.args.get("joins") or []}
    for one in node.find_all(exp.Table, exp.Lateral):
        looked_up = table_looked_up(query, one) is not None or called_function(query, one) is not None
        if looked_up and id(one) not in joined and one.find_ancestor(exp.Select) is node:
            raise PlanError(
                "A lookup needs a relation on its left, and cannot stand in parentheses with joins.",
                hint="Write it as a join after another relation: FROM orders AS o JOIN … ON …; or in a sub-query: JOIN "
                "(SELECT … FROM … JOIN …) AS q ON …. In place of EXISTS or IN, write LEFT SEMI JOIN; of NOT "
                "EXISTS, LEFT ANTI JOIN. Without FOR SYSTEM_TIME AS OF the full table is read.",
                position=query.statement.position(span_of(one)),
            )


def refuse_pivot(query: Query, node: exp.Select) -> None:
    """Raise PlanError for PIVOT, which reads columns that it does not name."""
    pivots = [pivot for pivot in node.find_all(exp.Pivot) if pivot.find_ancestor(exp.Select) is node]
    if pivots:
        raise PlanError(
            "PIVOT and UNPIVOT are not supported in a SELECT with lookups.",
            hint="Put one of both in a sub-query: FROM (SELECT … JOIN …) PIVOT (…), FROM (SELECT * FROM o PIVOT (…)) "
            "AS p JOIN ….",
            position=query.statement.position(span_of(pivots[0])),
        )


def refuse_recursion(query: Query, node: exp.Select) -> None:
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


def adds_rows(later: Sequence[exp.Join]) -> bool:
    """Return whether a join that follows adds rows, to which WHERE must be applied."""
    return any(join.side in ("RIGHT", "FULL") for join in later)


def owners_of(relations: Iterable[Relation], name: str, query: Query) -> list[tuple[Relation, str]]:
    """Return the columns that an unqualified name may refer to."""
    found = [(one, column) for one in relations if (column := one.column(name, query.fold)) is not None]
    return [(one, column) for one, column in found if query.fold(column) not in one.merged]
