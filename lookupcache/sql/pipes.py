"""Pipes: ``FROM o |> JOIN … |> WHERE …``.

Joins that directly follow FROM are read as those of a FROM. Of any other pipes, the query before a join with a lookup
becomes a relation of its own: it is rewritten, and run, alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lookupcache.planner.clauses import Token
from lookupcache.sql.statement_target import QUERIES
from lookupcache.sql.text import Span, Statement

_JOINS = {"JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "SEMI", "ANTI"}
_SET_OPERATIONS = {"UNION", "EXCEPT", "MINUS", "INTERSECT", "ALL", "DISTINCT"}


@dataclass(frozen=True)
class Part:
    """A query inside of a statement that is rewritten alone: its span, and what stands for it as a relation.

    ``replaced`` is the span in which ``FROM name AS alias`` stands for it.
    """

    span: Span
    replaced: Span
    alias: str = ""

    def code(self, name: str) -> str | None:
        """Return the code that stands for the query, as long as what it replaces; None where it is too long."""
        text = f"FROM {name}" + (f" AS {self.alias}" if self.alias else "")
        length = self.replaced.end - self.replaced.start
        return text.ljust(length) if len(text) < length else None

    def name_span(self, name: str) -> Span:
        """Return the span of the name in the code."""
        return Span(self.replaced.start + 5, self.replaced.start + 5 + len(name))


def pipes_of(found: Sequence[Token]) -> list[Token]:
    """Return the first letter of each ``|>``."""
    return [a for a, b in pairwise(found) if a.text == "|" and b.text == ">" and a.end == b.start]


def without_pipes(statement: Statement) -> tuple[Statement, int | None]:
    """Return a query without the pipes before joins that follow FROM, and where its first other pipe stands.

    >>> query, pipe = without_pipes(Statement.of("FROM a |> JOIN b USING (c) |> LIMIT 1"))
    >>> query.sql, pipe
    ('FROM a    JOIN b USING (c) |> LIMIT 1', 27)
    """
    found, joins = statement.words, list[Span]()
    main = _main(found)
    for pipe in pipes_of(found):
        start = statement.span.start + pipe.start
        if pipe.depth:
            continue
        if main is None or main.text not in ("FROM", "TABLE") or not _is_join(found, pipe):
            return statement.with_blanks(joins), start
        joins.append(Span(start, start + 2))
    return (statement.with_blanks(joins) if joins else statement), None


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
    """Return the first query in a statement that has to be rewritten alone, the innermost one; None if there is none.

    ``concerns`` says whether some tokens may be about lookups.

    >>> part_of(Statement.of("FROM a |> WHERE x |> AS b |> JOIN c ON y"), lambda found: True)
    Part(span=Span(start=0, end=26), replaced=Span(start=0, end=26), alias='b')
    """
    if "|>" not in statement.sql:
        return None
    found, start = statement.words, statement.span.start
    piped = without_pipes(statement)[1]
    first = len(statement.sql) if piped is None else piped - start
    for begin, end in _inner_queries(found):
        inside = [token for token in found if begin.start <= token.start < end.start]
        has_pipes = any(pipe.depth == begin.depth for pipe in pipes_of(inside))
        if has_pipes or (begin.start > first and concerns(inside)):
            span = Span(start + begin.start, start + end.start)
            return Part(span, span)
    main = _main(found)
    for pipe in pipes_of(found):
        later = [token for token in found if token.start > pipe.start]
        if pipe.depth or pipe.start <= first - (main is not None and main.text == "SELECT") or not concerns(later):
            continue
        alias = _alias([token for token in found if token.end <= pipe.start])
        if alias and main is not None and _is_join(found, pipe):
            last = start + pipe.start
            return Part(Span(start, last), Span(start + main.start, last), alias)
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
            closing = next((t for t in found[number + 1 :] if t.text == ")" and t.depth == opening.depth), None)
            if closing is not None:
                yield begin, closing


def _alias(found: Sequence[Token]) -> str:
    """Return the name that qualifies the columns of a query with pipes; an empty string if it has none, or several."""
    top = [token for token in found if not token.depth]
    cuts = [n for n, token in enumerate(top) if token in pipes_of(found)]
    parts = [top[a:b] for a, b in pairwise([*(cut + 2 for cut in [-2, *cuts]), len(top) + 2])]
    parts = [[token for token in part if token.text not in ("|", ">")] for part in parts]
    for part in reversed(parts[1:]):
        if part and part[0].text == "AS":
            return part[-1].written
        if part and part[0].text in _JOINS:
            return ""
    words = [token.text for token in parts[0]]
    start = words.index("FROM") + 1 if "FROM" in words else words.index("TABLE") + 1 if "TABLE" in words else None
    ends = {"WHERE", "GROUP", "HAVING", "ORDER", "LIMIT"} & set(words)
    if start is None or ends or "," in words[start:] or _JOINS & set(words[start:]):
        return ""
    last = parts[0][-1]
    return last.written if last.kind in ("word", "quoted") else ""
