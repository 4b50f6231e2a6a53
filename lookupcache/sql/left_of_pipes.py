"""What pipes put left of a join with a lookup: ``FROM a JOIN b ON … |> WHERE … |> JOIN lookup …``.

The columns of a query with pipes keep the names of their relations. So Spark is asked which columns are whose, and the
query becomes relations of these names again, as the result of a lookup does:

    (SELECT struct(*) AS lookup_p FROM (FROM a JOIN b … |> SELECT a.id AS c0, b.id AS c1)) AS lookup_p
    JOIN LATERAL (SELECT lookup_p.lookup_p.c0 AS `id`) AS `a`
    JOIN LATERAL (SELECT lookup_p.lookup_p.c1 AS `id`) AS `b`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from sqlglot import exp

from lookupcache.errors import LookupCacheError, PlanError
from lookupcache.schema import quote
from lookupcache.sql.from_clause import FromClause, Plain
from lookupcache.sql.query import InnerQuery, Query

_MOVING = {"SELECT", "AGGREGATE", "PIVOT", "UNPIVOT"}
"""Words of a query after which its columns may stand in another order than those of its relations."""


def left_of_pipe(query: Query, with_text: str, node: exp.Expr, part: InnerQuery) -> FromClause:
    """Return the relations of a query that pipes put left of a join.

    Args:
        query: The query that has the join.
        with_text: The text of WITH before it, or an empty one.
        node: The relation that stands for the query.
        part: The query.
    """
    if len(part.names) == 1 and part.names[0]:
        [name] = part.names
        return FromClause(f"({part.text}) AS {quote(name)}", (Plain(node, (name,)),))
    columns = query.sql(f"{with_text}SELECT * FROM ({part.text})").schema.names
    owned = _owned(query, with_text, part)
    return _clause(query, node, part, list(_groups(query, part, columns, owned)))


def _owned(query: Query, with_text: str, part: InnerQuery) -> dict[str, list[str]]:
    """Return the columns of each relation; one that has none, or is none, is left out."""
    found = {}
    for name in filter(None, part.names):
        text = f"{with_text}SELECT * FROM ({part.text} |> SELECT {quote(name)}.*)"
        try:
            found[name] = query.sql(text).schema.names
        except LookupCacheError:
            continue
    return found


def _groups(
    query: Query, part: InnerQuery, columns: Sequence[str], owned: dict[str, list[str]]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the columns in their order, with the relation that they belong to, an empty name for none.

    Raises PlanError where a column is not surely one relation's.
    """
    fold = query.fold
    every = Counter(map(fold, columns))
    qualified = Counter(fold(name) for names in owned.values() for name in names)
    moved = any(word.text in _MOVING for word in part.statement.words if not word.depth)
    if any(count != every[name] for name, count in qualified.items()) or (moved and max(every.values()) > 1):
        raise _refusal(query, part)  # merged by USING, or of two columns of a name nobody knows which is whose
    rest, position = dict(owned), 0
    while position < len(columns):
        name = next((one for one, names in rest.items() if columns[position : position + len(names)] == names), None)
        if name is not None:
            yield name, rest.pop(name)
            position += len(owned[name])
        else:
            yield "", [columns[position]]
            position += 1


def _clause(query: Query, node: exp.Expr, part: InnerQuery, groups: Sequence[tuple[str, list[str]]]) -> FromClause:
    base = query.unused(f"lookup_p{part.statement.span.start}")
    items, laterals, plain = list[str](), list[str](), list[Plain]()
    for number, (name, columns) in enumerate(groups):
        path, alias = f"{quote(name)}." if name else "", name or f"{base}_{number}"
        own = [(f"c{len(items) + n}", column) for n, column in enumerate(columns)]
        items += [f"{path}{quote(column)} AS {here}" for here, column in own]
        fields = ", ".join(f"{base}.{base}.{here} AS {quote(column)}" for here, column in own)
        laterals.append(f"JOIN LATERAL (SELECT {fields}) AS {quote(alias)}")
        plain.append(Plain(node, (alias,)))
    inner = f"{part.text} |> SELECT {', '.join(items)}"
    first = f"(SELECT struct(*) AS {base} FROM ({inner})) AS {base}"
    return FromClause("\n  ".join([first, *laterals]), tuple(plain), inner_views=(base,))


def _refusal(query: Query, part: InnerQuery) -> PlanError:
    return PlanError(
        "It is not certain to which relations the columns left of this pipe with a lookup belong.",
        hint="Give each column a name of its own, with |> SELECT … |> AS name before the join.",
        position=query.statement.position(part.statement.span),
    )
