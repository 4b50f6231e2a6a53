"""Which columns of the joined relations the rest of a SELECT may read.

Spark runs the rest as it is written, so a column too many does no harm, but no column may be missing. A name in an
inner query counts for every relation that it may belong to.

The left side of a lookup runs alone, where Spark does not know the columns of a query around the SELECT. A name that
is also a session variable would silently become its value. So Spark analyzes the left side as a scalar sub-query, with
the names as columns around it. Spark names such a sub-query after the outer columns that it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from sqlglot import exp

from lookupcache.errors import LookupCacheError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.planner.settings import REGEX_COLUMNS
from lookupcache.schema import quote
from lookupcache.sql.dialect import SPAN, name_span
from lookupcache.sql.lookups import is_as_of
from lookupcache.sql.query import Query
from lookupcache.sql.scope import Fold, Name, Relation, names_in
from lookupcache.sql.text import Span
from lookupcache.sql.token_reader import QUERIES


def names_of(query: Query, select: exp.Select) -> list[Name]:
    """Return all names in a SELECT, including the columns that its joins merge, in the order of the text."""
    names = names_in(select, query.fold)
    for join in select.find_all(exp.Join):
        names += [Name((part.name,), (name_span(part),), part) for part in join.args.get("using") or []]
        if join.method == "NATURAL":
            names.append(Name((), (), join, is_star=True))
    for table in select.find_all(exp.Table):
        names += names_in(table.args["version"].expression, query.fold) if is_as_of(query, table) else []
    quoted = any(part.args.get("quoted") for part in select.find_all(exp.Identifier))
    computed = "${" in query.statement.sql or "IDENTIFIER" in query.statement.sql.upper()
    if computed or (quoted and query.settings.on(REGEX_COLUMNS)):
        names.append(Name((), (), exp.Star(), is_star=True))  # at offset 0, which no lookup takes
    names += unread_names(query)
    return sorted(names, key=lambda name: name.start)


def unread_names(query: Query) -> Iterator[Name]:
    """Yield the words and stars of a statement that its tree lacks."""
    yield from _unread_words(query)
    yield from unread_stars(query)


def _unread_words(query: Query) -> Iterator[Name]:
    """Yield the words of a statement that its tree lacks.

    The parser takes some names, as ``fetch``, for keywords, and does not read masked pieces and text behind a pipe.
    """
    read = {name_span(part).start for part in query.find(exp.Identifier) if "start" in part.meta}
    statement, words = query.statement, query.statement.tokens
    calls = {word.start for word, after in pairwise(words) if after.text == "("}
    for before, word, after in zip([None, *words], words, [*words[1:], None], strict=False):
        span = statement.span_of(word)
        if word.text == "SELECT" and _begins_query(before, after):
            continue
        if word.kind in ("word", "quoted") and span.start not in read and word.start not in calls:
            yield Name((word.name,), (span,), query.tree, nested=True)


def _begins_query(before: Token | None, after: Token | None) -> bool:
    """Return whether SELECT begins a query between these tokens, and is no name."""
    follows = before is None or before.kind != "symbol" or before.text in ("(", ")")
    return follows and after is not None and after.text not in (")", ",", ".", "FROM")


def unread_stars(query: Query) -> Iterator[Name]:
    """Yield the stars in the pieces that the parser has not read, apart from those of queries inside of them.

    A star has no operand before it, and that of ``count(*)`` reads no column.
    """
    statement, words = query.statement, query.statement.tokens
    for number, star in enumerate(words):
        span = statement.span_of(star)
        if star.text != "*" or star.kind != "symbol" or not any(masked.holds(span) for masked in query.masked):
            continue
        first = number
        while first > 1 and words[first - 1].text == "." and words[first - 2].kind in ("word", "quoted"):
            first -= 2
        parts = words[first:number:2]
        before = [word.text for word in words[max(number - 2, 0) : number]]
        if parts or (before[-1:] in _BEFORE_A_STAR and before != ["COUNT", "("] and not _is_inside(query, number)):
            node = exp.Star()
            node.meta[SPAN] = span
            texts, spans = tuple(part.name for part in parts), tuple(map(statement.span_of, parts))
            yield Name(texts, spans, node, is_star=True)


_BEFORE_A_STAR = [["("], [","], ["SELECT"], ["DISTINCT"], ["ALL"]]


def _is_inside(query: Query, number: int) -> bool:
    """Return whether a token in an unread piece stands in a query that the piece contains."""
    statement, words = query.statement, query.statement.tokens
    depth = words[number].depth
    for before in range(number - 1, -1, -1):
        if not any(masked.holds(statement.span_of(words[before])) for masked in query.masked):
            return False
        if words[before].depth < depth:
            depth = words[before].depth
        elif words[before].depth == depth and words[before].text in QUERIES:
            return True
    return False


def columns_read(names: Iterable[Name], relations: Sequence[Relation], fold: Fold) -> list[tuple[Relation, str]]:
    """Return the columns that these names may refer to, each once, in the order of the names.

    >>> orders, customers = Relation(("o",), (("id", ""), ("name", ""))), Relation(("c",), (("id", ""),))
    >>> names = [Name(("c", "id"), (), exp.Null()), Name(("name",), (), exp.Null())]
    >>> found = columns_read(names, [orders, customers], str)
    >>> [(relation.alias, column) for relation, column in found]
    [('c', 'id'), ('o', 'name')]
    """
    found = (column for name in names for column in _read(name, relations, fold))
    return list(dict.fromkeys(found))


def outside(names: Iterable[Name], spans: Sequence[Span]) -> list[Name]:
    """Return the names outside of these spans."""
    return [name for name in names if not any(span.start <= name.start < span.end for span in spans)]


def _read(name: Name, relations: Sequence[Relation], fold: Fold) -> Iterator[tuple[Relation, str]]:
    if name.is_star:
        meant = [one for one in relations if not name.parts or one.is_named(name.parts, fold)]
        yield from ((one, column) for one in meant for column in one.column_names)
        if meant:
            return
    for depth in range(min(len(name.parts) - 1, 3), -1, -1):
        owners = [one for one in relations if not depth or one.is_named(name.parts[:depth], fold)]
        found = [(one, column) for one in owners if (column := one.column(name.parts[depth], fold)) is not None]
        if found:
            yield from (one for one in found if depth or name.nested or fold(one[1]) not in one[0].merged)
            if not depth or any(fold(column) not in one.merged for one, column in found):
                return  # else a field of a struct comes before the column, which USING hides


# ── columns of the query around ─────────────────────────────────────────────────────────────────────────────


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
