"""Whether a part of a SELECT reads columns of the query around it.

What stands left of a lookup is run alone, where Spark does not know those columns. A name that is a session variable,
too, would silently become its value. So Spark is asked, with the names as columns around that part: it names a scalar
sub-query after the columns that it reads outside.
"""

from __future__ import annotations

from sqlglot import exp

from lookupcache.errors import LookupCacheError
from lookupcache.planner.clauses import tokens
from lookupcache.schema import quote
from lookupcache.sql.query import Query

_CLOSED = "scalarsubquery()"


def may_read_outside(node: exp.Expr) -> bool:
    """Return whether a query is part of an expression, or lateral, so that names may belong to a query around it.

    >>> from sqlglot import parse_one
    >>> texts = "SELECT * FROM (SELECT 1) AS q", "SELECT EXISTS (SELECT 1)"
    >>> [may_read_outside(list(parse_one(text).find_all(exp.Select))[-1]) for text in texts]
    [False, True]
    """
    below = node
    while (above := below.parent) is not None:
        if isinstance(above, exp.From | exp.Join | exp.CTE | exp.With | exp.Query):
            if isinstance(below, exp.Query) and isinstance(above, exp.Select):
                return True
        elif isinstance(below, exp.Query):
            return True
        below = above
    return False


def reads_outside(query: Query, select_sql: str) -> bool:
    """Return whether a query with its WITH, which Spark is about to run alone, reads columns of a query around it."""
    words = [token.name for token in tokens(select_sql) if token.kind in ("word", "quoted")]
    possible = {query.fold(word): word for word in words}
    columns = ", ".join(f"1 AS {quote(name)}" for name in possible.values())
    try:
        found = query.sql(f"SELECT (SELECT count(1) FROM ({select_sql})) FROM (SELECT {columns})")
    except LookupCacheError:
        return True
    return found.columns != [_CLOSED]
