"""Pipes: ``FROM o |> JOIN … |> WHERE …``.

Joins that directly follow FROM are read as those of a FROM. Of any other pipes, the query before a join with a lookup,
and each query in parentheses, is read on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lookupcache.planner.clauses import Token, closing_of
from lookupcache.sql.statement_target import QUERIES
from lookupcache.sql.text import Span, Statement

_JOINS = {"JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "SEMI", "ANTI"}
_SET_OPERATIONS = {"UNION", "EXCEPT", "MINUS", "INTERSECT", "ALL", "DISTINCT"}


@dataclass(frozen=True)
class Part:
    """A query inside of a statement that is read on its own: its span, in which ``FROM name`` stands for it.

    ``is_left`` says that it is what pipes put left of a join; ``names`` are those of the relations in it then.
    """

    span: Span
    is_left: bool = False
    names: tuple[str, ...] = ()

    def code(self, name: str) -> str | None:
        """Return the code that stands for the query, as long as what it replaces; None where it is too long."""
        text, length = f"FROM {name}", self.span.end - self.span.start
        return text.ljust(length) if len(text) < length else None


def pipes_of(found: Sequence[Token]) -> list[Token]:
    """Return the first letter of each ``|>``."""
    return [a for a, b in pairwise(found) if a.text == "|" and b.text == ">" and a.end == b.start]


def without_pipes(statement: Statement) -> tuple[Statement, list[Span], int | None]:
    """Return a query without the pipes before joins that follow FROM, where those stand, and where its first other one.

    >>> query, joins, pipe = without_pipes(Statement.of("FROM a |> JOIN b USING (c) |> LIMIT 1"))
    >>> query.sql, joins, pipe
    ('FROM a    JOIN b USING (c) |> LIMIT 1', [Span(start=7, end=9)], 27)
    """
    found, joins = statement.words, list[Span]()
    main = _main(found)
    for pipe in pipes_of(found):
        start = statement.span.start + pipe.start
        if pipe.depth:
            continue
        if main is None or main.text not in ("FROM", "TABLE") or not _is_join(found, pipe):
            return statement.with_blanks(joins), joins, start
        joins.append(Span(start, start + 2))
    return (statement.with_blanks(joins) if joins else statement), joins, None


def table_operands(found: Sequence[Token]) -> list[tuple[Token, Token]]:
    """Return keyword and name of each ``TABLE t`` that pipes combine with the query before it.

    >>> [name.name for _, name in table_operands(Statement.of("|> UNION ALL TABLE a |> MINUS TABLE b").words)]
    ['a', 'b']
    """
    before = [None, *found]
    return [
        (word, name)
        for previous, word, name in zip(before, found, found[1:], strict=False)
        if word.text == "TABLE" and word.kind == "word" and not word.depth and name.kind in ("word", "quoted")
        if previous is not None and previous.text in _SET_OPERATIONS
    ]


def part_of(statement: Statement, concerns: Callable[[Sequence[Token]], bool]) -> Part | None:
    """Return the first query in a statement that has to be read on its own, the innermost one; None if there is none.

    ``concerns`` says whether some tokens may be about lookups.

    >>> part_of(Statement.of("FROM a |> WHERE x |> AS b |> JOIN c ON y"), lambda found: True)
    Part(span=Span(start=0, end=26), is_left=True, names=('b',))
    """
    if "|>" not in statement.sql:
        return None
    found, start = statement.words, statement.span.start
    piped = without_pipes(statement)[2]
    first = len(statement.sql) if piped is None else piped - start
    for begin, end in _inner_queries(found):
        inside = [token for token in found if begin.start <= token.start < end.start]
        has_pipes = any(pipe.depth == begin.depth for pipe in pipes_of(inside))
        if has_pipes or (begin.start > first and concerns(inside)):
            return Part(Span(start + begin.start, start + end.start))
    main = _main(found)
    for pipe in pipes_of(found):
        later = [token for token in found if token.start > pipe.start]
        if pipe.depth or pipe.start <= first - (main is not None and main.text == "SELECT") or not concerns(later):
            continue
        if main is not None and _is_join(found, pipe):
            before = [token for token in found if main.start <= token.start < pipe.start]
            return Part(Span(start + main.start, start + pipe.start), True, _names(before))
    return None


def _main(found: Sequence[Token]) -> Token | None:
    """Return the keyword that begins a query, behind its WITH."""
    if not found or found[0].text != "WITH":
        return found[0] if found else None
    return next((token for token in found if not token.depth and token.text in QUERIES and token.text != "WITH"), None)


def _is_join(found: Sequence[Token], pipe: Token) -> bool:
    return next((token.text for token in found if token.start > pipe.end), "") in _JOINS


def _inner_queries(found: Sequence[Token]) -> Iterator[tuple[Token, Token]]:
    """Yield first token and closing parenthesis of each query in parentheses, inner ones first."""
    for number, (opening, begin) in reversed(list(enumerate(pairwise(found)))):
        if opening.text == "(" and begin.kind == "word" and begin.text in QUERIES:
            closing = closing_of(found, number)
            if closing is not None:
                yield begin, found[closing]


_BEFORE_JOIN = _JOINS | {"OUTER", "LATERAL"}
_BEHIND_RELATIONS = {"WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "WINDOW", "QUALIFY", "LIMIT",
                     "OFFSET", "UNION", "EXCEPT", "INTERSECT", "MINUS"}  # fmt: skip
_BEHIND_NAME = {"FOR", "TABLESAMPLE", "PIVOT", "UNPIVOT"}
_CONDITION = {"ON", "USING"}


def _names(found: Sequence[Token]) -> tuple[str, ...]:
    """Return the names that may qualify columns of a query with pipes; an empty one for a relation without a name.

    >>> words = "FROM a JOIN b AS c ON x |> WHERE y |> LEFT SEMI JOIN d USING (z) |> JOIN (SELECT 1)"
    >>> _names(Statement.of(words).words), _names(Statement.of(f"{words} |> AS f |> JOIN g").words)
    (('a', 'c', ''), ('f', 'g'))
    """
    names = list[str]()
    for number, part in enumerate(_split(found)):
        words = [token.text for token in part]
        if number and words[:1] == ["AS"]:
            names = [part[-1].name]
        elif not number:
            names += _names_of_relations(part[words.index("FROM") if "FROM" in words else 0 :])
        elif number and words and words[0] in _JOINS:
            names += _names_of_relations(part)
    return tuple(dict.fromkeys(names))


def _split(found: Sequence[Token]) -> Iterator[list[Token]]:
    """Yield the tokens outside of parentheses, and these, between pipes."""
    top = [token for token in found if not token.depth]
    cuts = [number for number, token in enumerate(top) if token in pipes_of(found)]
    for a, b in pairwise([-2, *cuts, len(top)]):
        yield top[a + 2 : b]


def _names_of_relations(part: Sequence[Token]) -> Iterator[str]:
    """Yield the names of the relations in a FROM, or in joins."""
    words = [token.text for token in part]
    end = next(
        (n for n, token in enumerate(part) if token.kind == "word" and token.text in _BEHIND_RELATIONS), len(part)
    )
    starts = [n for n in range(end) if words[n] in ("FROM", "TABLE", "JOIN", ",") and not (n and words[n - 1] == ".")]
    for start, stop in pairwise([*starts, end]):
        if {"SEMI", "ANTI"} & set(words[max(start - 2, 0) : start]):
            continue  # their columns are not there
        relation = [*part[start + 1 : stop]]
        while relation and relation[-1].kind == "word" and relation[-1].text in _BEFORE_JOIN and stop < len(part):
            relation.pop()
        name = _name(relation[: _first(relation, _CONDITION)])
        yield "" if name is None else name.name


def _first(found: Sequence[Token], words: set[str]) -> int:
    """Return which token is the first of these keywords; the number of all tokens where none is."""
    return next((n for n, token in enumerate(found) if token.kind == "word" and token.text in words), len(found))


def _name(relation: Sequence[Token]) -> Token | None:
    """Return the alias of a relation, or else the last part of its path."""
    words = [token.text for token in relation]
    marked = [
        n for n, word in enumerate(words[:-1]) if word == "AS" and words[n + 1] != "OF" and relation[n].kind == "word"
    ]
    if marked:
        return relation[marked[-1] + 1]
    cut = next((n for n, token in enumerate(relation) if token.kind == "word" and token.text in _BEHIND_NAME), None)
    relation = relation[:cut]
    named = [token for token in relation if token.kind in ("word", "quoted") and token.text != "LATERAL"]
    if not named or (words[0] == "(" and relation[-1] is not named[-1]):
        return None
    if relation[-1] is named[-1]:
        return relation[-1]
    path = [relation[0]]
    for dot, token in pairwise(relation[1:]):
        if dot.text != "." or dot.start != path[-1].end:
            break
        path.append(token)
    return path[-1]
